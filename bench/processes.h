// SPDX-License-Identifier: Apache-2.0
// The processes that a ferry bench starts on this machine, and what they say.
#ifndef FERRY_BENCH_PROCESSES_H_
#define FERRY_BENCH_PROCESSES_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/unique_fd.h"
#include "bench/lines.h"
#include "bench/stage.h"
#include "cli/tool_process.h"
#include "node/transfer_engine.h"

namespace ferry::cli {

// Of one line of a process: the largest size in one mode takes seconds.
inline constexpr absl::Duration kBenchLineTimeout = absl::Minutes(3);

// Some pages of zeros that other processes can map while this lives. They lie in no folder.
class BenchPages final {
 public:
  //   Errors: UNAVAILABLE with the kernel's reason.
  static absl::StatusOr<std::unique_ptr<BenchPages>> Create();
  BenchPages(const BenchPages&) = delete;
  BenchPages& operator=(const BenchPages&) = delete;

  // That a process of the same user can open.
  std::string path() const;

 private:
  explicit BenchPages(UniqueFd fd) : fd_(std::move(fd)) {}
  const UniqueFd fd_;
};

// A process that serves, and where.
struct BenchServer {
  std::unique_ptr<ToolProcess> process;
  std::string address;
  std::shared_ptr<const BenchWatched> watched;

  // That it has taken so far.
  double CpuSeconds() const;
};

// A process of this program, watched by `stage`, that says "... listening on HOST:PORT" when it is
// ready.
//   Errors: ABORTED how it ended instead; DEADLINE_EXCEEDED.
absl::StatusOr<BenchServer> StartBenchServer(std::string name, std::vector<std::string> arguments,
                                             BenchStage& stage);

// Whether processes see this machine's GPUs, all of them the same.
enum class BenchGpus { kHidden, kShared };

// `bench-worker`s, the nodes of one job, watched by a stage. Not thread-safe; kills them in the
// end.
class BenchWorkers final : public BenchLines {
 public:
  static absl::StatusOr<std::unique_ptr<BenchWorkers>> Start(int count,
                                                             const std::string& coordinator,
                                                             const std::string& plan,
                                                             const TransferEngineOptions& exchange,
                                                             BenchStage& stage,
                                                             BenchGpus gpus = BenchGpus::kHidden);

  // The next line of each, in the order of nodes, all of them {"event": `event`, ...}.
  //   Errors: ABORTED how one has ended, with its last words; whoever was killed comes before those
  //   who only missed it. DEADLINE_EXCEEDED naming one that says nothing; INTERNAL what it said.
  absl::StatusOr<std::vector<Json>> Expect(const std::string& event) override;
  // As ToolProcess::WaitForExit.
  absl::Status WaitForExit();

  const std::vector<std::unique_ptr<ToolProcess>>& processes() const { return processes_; }

 private:
  absl::Status FirstCause(size_t noticed, absl::Status status);

  std::vector<std::unique_ptr<ToolProcess>> processes_;
  std::vector<std::shared_ptr<const BenchWatched>> watched_;
};

// CPU time of this process, of all its threads.
double OwnCpuSeconds();

}  // namespace ferry::cli

#endif  // FERRY_BENCH_PROCESSES_H_
