// SPDX-License-Identifier: Apache-2.0
// ShmSync: the processes that a bench has started on this machine, which share some pages.
#ifndef FERRY_BENCH_SHM_SYNC_H_
#define FERRY_BENCH_SHM_SYNC_H_

#include <memory>
#include <string>
#include <utility>

#include "bench/meeting.h"

namespace ferry::cli {

// Processes of this machine that wait for each other in a shared page: nothing but a look at a
// word tells them to go, so that all start within a microsecond. Not thread-safe.
class PageBarrier final {
 public:
  // How it is waited: looking all the time, or now and then, by whom nobody is to notice.
  enum class Wait { kSpinning, kSleeping };

  //   page: which of the file's pages, all zero at first.
  //   Errors: UNAVAILABLE with the kernel's reason.
  static absl::StatusOr<std::unique_ptr<PageBarrier>> Map(const std::string& file, int page);
  ~PageBarrier();
  PageBarrier(const PageBarrier&) = delete;
  PageBarrier& operator=(const PageBarrier&) = delete;

  // Until so many have come, this one included. Errors: DEADLINE_EXCEEDED saying how many had.
  absl::Status Pass(int count, Wait wait);

 private:
  struct Words;
  explicit PageBarrier(Words* words) : words_(words) {}
  Words* const words_;
};

// What is told goes to stdout, a line each, for the process that has started this one.
class ShmSync final : public BenchSync {
 public:
  //   size: how many processes there are.
  //   file: that of the bench; its first page is the floor's.
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
