// SPDX-License-Identifier: Apache-2.0
// The processes that a ferry bench starts on this machine, and what they say.
#ifndef FERRY_CLI_BENCH_PROCESSES_H_
#define FERRY_CLI_BENCH_PROCESSES_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "cli/bench_lines.h"
#include "cli/tool_process.h"
#include "runtime/exchange.h"

namespace ferry::cli {

// Of one line of a process: the largest size in one mode takes seconds.
inline constexpr absl::Duration kBenchLinePatience = absl::Minutes(3);

// What is being measured, for the line that says so. Thread-safe.
class BenchStage final {
 public:
  explicit BenchStage(std::string text) : text_(std::move(text)) {}
  void Set(std::string text) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    text_ = std::move(text);
  }
  std::string Get() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return text_;
  }

 private:
  mutable absl::Mutex mu_;
  std::string text_ ABSL_GUARDED_BY(mu_);
};

// Some pages of zeros that other processes can map while this lives.
class BenchPages final {
 public:
  //   Errors: UNAVAILABLE naming the file.
  static absl::StatusOr<std::unique_ptr<BenchPages>> Create();
  ~BenchPages();
  BenchPages(const BenchPages&) = delete;
  BenchPages& operator=(const BenchPages&) = delete;

  const std::string& path() const { return path_; }

 private:
  explicit BenchPages(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

// A process that serves, and where.
struct BenchServer {
  std::unique_ptr<ToolProcess> process;
  std::string address;

  // That it has taken so far.
  double CpuSeconds() const;
};

// A process of this program that says "... listening on HOST:PORT" when it is ready.
//   Errors: ABORTED how it ended instead; DEADLINE_EXCEEDED.
absl::StatusOr<BenchServer> StartBenchServer(std::string name, std::vector<std::string> arguments);

// `bench-worker`s, the nodes of one job. Not thread-safe; kills them in the end.
class BenchWorkers final : public BenchLines {
 public:
  // They take part in no GPU: one that two nodes use is refused.
  static absl::StatusOr<std::unique_ptr<BenchWorkers>> Start(int count,
                                                             const std::string& coordinator,
                                                             const std::string& plan,
                                                             const ExchangeOptions& exchange);

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
};

// CPU time of this process, of all its threads.
double OwnCpuSeconds();

}  // namespace ferry::cli

#endif  // FERRY_CLI_BENCH_PROCESSES_H_
