// SPDX-License-Identifier: Apache-2.0
// Part: a piece of gpu_check that runs in a process of its own, and its report.
#ifndef FERRY_BENCHMARKS_GPU_CHECK_PART_H_
#define FERRY_BENCHMARKS_GPU_CHECK_PART_H_

#include <cstddef>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "benchmarks/gpu/check_samples.h"

namespace ferry::check {

using Json = nlohmann::ordered_json;

inline constexpr size_t kKiB = size_t{1} << 10;
inline constexpr size_t kMiB = size_t{1} << 20;
inline constexpr char kGpu[] = "gpu:0";
// The timeout for another process, and for operations of a GPU.
inline constexpr absl::Duration kTimeout = absl::Seconds(20);

// The machine, as the first part found it. A value.
struct Machine {
  int gpu_count = 0;
  // The smallest GPU's.
  size_t gpu_bytes = 0;
  // Why there are none; empty if there are.
  std::string no_gpu_reason;
};

struct Options {
  // Small sizes and few rounds: shows that everything runs, measures nothing.
  bool is_quick = false;
  // Where the programs of the part "tests" lie.
  std::string tests_folder;
  // A test of theirs that takes longer is killed and has failed.
  absl::Duration most_for_test = absl::Seconds(45);
};

// The report of a part's processes; each line goes to the parent at once, so that results are kept
// when one of them dies. Thread-safe, and usable in forked children.
class Reporter final {
 public:
  //   fd: a socket that keeps messages apart.
  explicit Reporter(int fd) : fd_(fd) {}

  // The result of one check; any error makes the part fail.
  void Check(absl::string_view name, const absl::Status& status, Json details = Json::object());
  // One check that could not run.
  void SkipCheck(absl::string_view name, absl::string_view reason);
  // The whole part could not run.
  void SkipPart(absl::string_view reason);
  // An observation without a judgement.
  void Note(absl::string_view text);
  void Fact(absl::string_view key, Json value);
  // In the form of FigureJson.
  void Figure(Json figure);

 private:
  void Say(const Json& line);

  const int fd_;
};

struct PartContext {
  Reporter& report;
  const Options& options;
  const Machine& machine;
  // By when the part is killed.
  absl::Time deadline;
};

struct Part {
  std::string name;
  // A line of text.
  std::string title;
  // Its process group is killed when this has expired.
  absl::Duration limit;
  bool needs_gpu = true;
  // In a process that has not touched CUDA, nor has its parent: it may fork. An error is one more
  // check that failed.
  absl::Status (*run)(PartContext& context) = nullptr;
  // Runs only if named: for tests of gpu_check itself.
  bool is_hidden = false;
};

// In the order in which they run.
const std::vector<Part>& AllParts();

absl::Status RunMachinePart(PartContext& context);
absl::Status RunTestsPart(PartContext& context);
absl::Status RunIpcPart(PartContext& context);
absl::Status RunForeignPart(PartContext& context);
absl::Status RunRunningPart(PartContext& context);
absl::Status RunFailuresPart(PartContext& context);
absl::Status RunMemoryFailuresPart(PartContext& context);
absl::Status RunLeaksPart(PartContext& context);
absl::Status RunNcclSelfPart(PartContext& context);
absl::Status RunNcclSharedGpuPart(PartContext& context);
absl::Status RunSeveralGpusPart(PartContext& context);
absl::Status RunNcclTurnsPart(PartContext& context);
absl::Status RunLatencyPart(PartContext& context);
absl::Status RunLaunchPart(PartContext& context);
absl::Status RunCopyPart(PartContext& context);
absl::Status RunStagedPart(PartContext& context);
absl::Status RunNcclKeyedPart(PartContext& context);

}  // namespace ferry::check

#endif  // FERRY_BENCHMARKS_GPU_CHECK_PART_H_
