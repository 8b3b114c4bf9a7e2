// SPDX-License-Identifier: Apache-2.0
// The processes that a ferry bench starts on this machine, and their output.
#ifndef FERRY_BENCH_PROCESSES_H_
#define FERRY_BENCH_PROCESSES_H_

#include <cstddef>
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

// Timeout per line of a process: the largest size in one mode takes seconds.
inline constexpr absl::Duration kBenchLineTimeout = absl::Minutes(3);

inline constexpr size_t kBenchPagesBytes = 4 * 4096;

// Zero-filled pages that other processes can map while this exists. Not in any directory.
class BenchPages final {
 public:
  //   Errors: UNAVAILABLE with the kernel's reason.
  static absl::StatusOr<std::unique_ptr<BenchPages>> Create();
  BenchPages(const BenchPages&) = delete;
  BenchPages& operator=(const BenchPages&) = delete;

  // A path that a process of the same user can open.
  std::string path() const;

 private:
  explicit BenchPages(UniqueFd fd) : fd_(std::move(fd)) {}
  const UniqueFd fd_;
};

// A server process and its address.
struct BenchServer {
  std::unique_ptr<ToolProcess> process;
  std::string address;
  std::shared_ptr<const BenchWatched> watched;

  // Returns the CPU time it has used so far.
  double CpuSeconds() const;
};

// Starts a process of this program, watched by `stage`, that prints "... listening on HOST:PORT"
// when ready.
//   Errors: ABORTED with how it ended instead; DEADLINE_EXCEEDED.
absl::StatusOr<BenchServer> StartBenchServer(std::string name, std::vector<std::string> arguments,
                                             BenchStage& stage);

// Whether the processes may use this machine's GPUs; the same for all of them.
enum class BenchGpus { kHidden, kShared };

// `bench-worker` processes, the nodes of one job, watched by a stage. Not thread-safe; the
// destructor kills them.
class BenchWorkers final : public BenchLines {
 public:
  static absl::StatusOr<std::unique_ptr<BenchWorkers>> Start(int count,
                                                             const std::string& coordinator,
                                                             const std::string& plan,
                                                             const TransferEngineOptions& transfer,
                                                             BenchStage& stage,
                                                             BenchGpus gpus = BenchGpus::kHidden);

  // Returns the next line of each, by node, all of them {"event": `event`, ...}.
  //   Errors: ABORTED with how one ended, and the end of its stderr; a killed process takes
  //   precedence over those that noticed its loss. DEADLINE_EXCEEDED naming a silent one; INTERNAL
  //   with an unexpected line.
  absl::StatusOr<std::vector<Json>> Expect(const std::string& event) override;
  // Like ToolProcess::WaitForExit.
  absl::Status WaitForExit();

  const std::vector<std::unique_ptr<ToolProcess>>& processes() const { return processes_; }

 private:
  absl::Status FirstCause(size_t noticed, absl::Status status);

  std::vector<std::unique_ptr<ToolProcess>> processes_;
  std::vector<std::shared_ptr<const BenchWatched>> watched_;
};

// Returns the CPU time of this process, over all its threads.
double OwnCpuSeconds();

}  // namespace ferry::cli

#endif  // FERRY_BENCH_PROCESSES_H_
