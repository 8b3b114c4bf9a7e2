// SPDX-License-Identifier: Apache-2.0
// ShmSync: BenchSync for processes that a bench started on this machine, over shared pages.
#ifndef FERRY_BENCH_SHM_SYNC_H_
#define FERRY_BENCH_SHM_SYNC_H_

#include <memory>
#include <string>
#include <utility>

#include "bench/meeting.h"

namespace ferry::cli {

// A barrier of this machine's processes in a shared page. Released by a single store, so that all
// start within a microsecond. Not thread-safe.
class PageBarrier final {
 public:
  // How to wait: spinning, or polling with sleeps so as not to disturb others.
  enum class Wait { kSpinning, kSleeping };

  //   page: index of the file's page, initially all zero.
  //   Errors: UNAVAILABLE with the kernel's reason.
  static absl::StatusOr<std::unique_ptr<PageBarrier>> Map(const std::string& file, int page);
  ~PageBarrier();
  PageBarrier(const PageBarrier&) = delete;
  PageBarrier& operator=(const PageBarrier&) = delete;

  // Blocks until `count` processes have arrived, including this one. Errors: DEADLINE_EXCEEDED
  // saying how many had.
  absl::Status Pass(int count, Wait wait);

 private:
  struct Words;
  explicit PageBarrier(Words* words) : words_(words) {}
  Words* const words_;
};

// Results go to stdout, a line each, for the parent process.
class ShmSync final : public BenchSync {
 public:
  //   size: number of processes.
  //   file: the bench's pages; the first one is used by the baselines.
  static absl::StatusOr<std::unique_ptr<ShmSync>> Map(int size, const std::string& file);

  bool is_on_one_machine() const override { return true; }
  bool KeepsTime(const BenchRoundMembers&) const override { return true; }
  absl::StatusOr<BenchStart> Begin(const BenchRoundMembers& members) override;
  absl::StatusOr<absl::Time> End(const BenchRoundMembers& members) override;
  absl::Status AwaitAll() override;
  absl::Status Tell(const nlohmann::ordered_json& line) override;

 private:
  ShmSync(int size, std::unique_ptr<PageBarrier> rounds, std::unique_ptr<PageBarrier> all)
      : size_(size), rounds_(std::move(rounds)), all_(std::move(all)) {}

  const int size_;
  const std::unique_ptr<PageBarrier> rounds_;
  const std::unique_ptr<PageBarrier> all_;
};

}  // namespace ferry::cli

#endif  // FERRY_BENCH_SHM_SYNC_H_
