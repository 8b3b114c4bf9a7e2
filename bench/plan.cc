// SPDX-License-Identifier: Apache-2.0
// Sizes and iteration counts.
#include "bench/plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "base/numbers.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace ferry::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxSize = size_t{16} << 30;
constexpr size_t kMaxSizes = 64;
// Target bytes to move per size and mode; determines the number of rounds.
constexpr size_t kBytesOfASize = size_t{512} << 20;
constexpr size_t kFewest = 3;

// A flag that takes a range or a list, and its limits.
struct ListFlag {
  const char* name;
  const char* of;
  uint64_t least;
  uint64_t most;
};
constexpr ListFlag kSizesFlag = {"--sizes", "8:1G:x8, nor a list of sizes from 1 to 16G", 1,
                                 kMaxSize};
constexpr ListFlag kNodesFlag = {"--nodes", "2:64:x2, nor a list of numbers from 2 to 16384", 2,
                                 16384};

absl::Status Wrong(const ListFlag& flag, absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(
      flag.name, ": ", Quoted(text), " is neither FIRST:LAST:xFACTOR, such as ", flag.of));
}

bool ParseSize(const ListFlag& flag, absl::string_view text, size_t* size) {
  size_t unit = 1;
  if (!text.empty()) {
    const char suffix = absl::ascii_toupper(static_cast<unsigned char>(text.back()));
    if (suffix == 'K') unit = size_t{1} << 10;
    if (suffix == 'M') unit = size_t{1} << 20;
    if (suffix == 'G') unit = size_t{1} << 30;
    if (unit > 1) text.remove_suffix(1);
  }
  const std::optional<uint64_t> number = ParseCount(text, 0, flag.most / unit);
  if (!number) return false;
  *size = *number * unit;
  return *size >= flag.least;
}

absl::StatusOr<std::vector<size_t>> ParseList(const ListFlag& flag, absl::string_view text) {
  std::vector<size_t> sizes;
  const std::vector<absl::string_view> range = absl::StrSplit(text, ':');
  if (range.size() == 1) {
    for (const absl::string_view part : absl::StrSplit(text, ',')) {
      size_t size = 0;
      if (!ParseSize(flag, part, &size)) return Wrong(flag, text);
      sizes.push_back(size);
    }
  } else {
    size_t first = 0;
    size_t last = 0;
    absl::string_view by = range.back();
    const bool is_good = range.size() == 3 && ParseSize(flag, range[0], &first) &&
                         ParseSize(flag, range[1], &last) && first <= last &&
                         absl::ConsumePrefix(&by, "x");
    const std::optional<uint64_t> factor =
        is_good ? ParseCount(by, 2, 1024) : std::optional<uint64_t>();
    if (!factor) return Wrong(flag, text);
    for (size_t size = first; size <= last; size *= *factor) sizes.push_back(size);
  }
  // Duplicate sizes get one row.
  std::vector<size_t> different;
  for (const size_t size : sizes) {
    if (std::find(different.begin(), different.end(), size) == different.end()) {
      different.push_back(size);
    }
  }
  sizes = std::move(different);
  if (sizes.size() > kMaxSizes) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag.name, ": ", sizes.size(), " of them; at most ", kMaxSizes));
  }
  return sizes;
}

}  // namespace

int BenchPlan::IterationsOf(size_t bytes) const {
  if (iterations > 0) return iterations;
  return static_cast<int>(
      std::clamp(kBytesOfASize / bytes, kFewest, static_cast<size_t>(most_iterations)));
}

int BenchPlan::RoundsOf(size_t bytes, int at_a_time) const {
  const int all = IterationsOf(bytes);
  // The requested number, rounded up to whole rounds; at least one.
  if (iterations > 0) return (all + at_a_time - 1) / at_a_time;
  return std::max(all / at_a_time, static_cast<int>(kFewest));
}

std::vector<int> BenchPlan::DepthsOf(size_t bytes) const {
  const bool fits = bytes <= kMostBenchBytesAtOnce / static_cast<size_t>(inflight);
  return inflight > 1 && fits ? std::vector<int>{1, inflight} : std::vector<int>{1};
}

std::vector<int> BenchPlan::BatchesOf(int depth) const {
  // The share of a thread.
  const int most = pattern == "keyed" ? (keys + threads - 1) / threads : depth;
  const int size = std::min(batch, most);
  return size > 1 ? std::vector<int>{1, size} : std::vector<int>{1};
}

bool BenchPlan::uses_gpus() const {
  return std::any_of(devices.begin(), devices.end(),
                     [](const std::string& device) { return device != kHostDevice; });
}

bool BenchPlan::has_later_floors() const {
  return DeviceOf(0) != kHostDevice && DeviceOf(1) != kHostDevice &&
         (pattern == "sendrecv" || pattern == "bidir" || pattern == "steps");
}

const char* BenchModeName(BenchMode mode) {
  return mode == BenchMode::kHandoff ? "handoff"
         : mode == BenchMode::kRead  ? "handoff+read"
                                     : "into";
}

std::string EncodeBenchPlan(const BenchPlan& plan) {
  Json modes = Json::array();
  for (const BenchMode mode : plan.modes) modes.push_back(static_cast<int>(mode));
  return Json({{"pattern", plan.pattern},
               {"sizes", plan.sizes},
               {"modes", modes},
               {"iterations", plan.iterations},
               {"most_iterations", plan.most_iterations},
               {"inflight", plan.inflight},
               {"keys", plan.keys},
               {"threads", plan.threads},
               {"batch", plan.batch},
               {"is_unexpected", plan.is_unexpected},
               {"devices", plan.devices},
               {"dtype", plan.dtype},
               {"element_bytes", plan.element_bytes},
               {"is_polling", plan.is_polling},
               {"is_sleeping", plan.is_sleeping},
               {"has_tcp_floor", plan.has_tcp_floor},
               {"tcp_streams", plan.tcp_streams},
               {"floor_file", plan.floor_file}})
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<BenchPlan> DecodeBenchPlan(absl::string_view text) {
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("sizes") || !json.contains("modes")) {
    return absl::InvalidArgumentError("--plan is for ferry bench's own use");
  }
  BenchPlan plan;
  for (const Json& size : json["sizes"]) plan.sizes.push_back(size.get<size_t>());
  for (const Json& mode : json["modes"]) {
    plan.modes.push_back(static_cast<BenchMode>(mode.get<int>()));
  }
  plan.pattern = json.value("pattern", plan.pattern);
  plan.iterations = json.value("iterations", 0);
  plan.most_iterations = json.value("most_iterations", plan.most_iterations);
  plan.keys = json.value("keys", 1);
  plan.threads = json.value("threads", 1);
  plan.batch = json.value("batch", 1);
  plan.is_unexpected = json.value("is_unexpected", false);
  plan.inflight = json.value("inflight", 1);
  plan.devices = json.value("devices", plan.devices);
  if (plan.devices.empty()) return absl::InvalidArgumentError("--plan: no devices");
  plan.dtype = json.value("dtype", plan.dtype);
  plan.element_bytes = json.value("element_bytes", plan.element_bytes);
  plan.is_polling = json.value("is_polling", false);
  plan.is_sleeping = json.value("is_sleeping", false);
  plan.has_tcp_floor = json.value("has_tcp_floor", false);
  plan.tcp_streams = json.value("tcp_streams", 1);
  plan.floor_file = json.value("floor_file", "");
  return plan;
}

absl::StatusOr<std::vector<size_t>> ParseSizesFlag(absl::string_view text) {
  return ParseList(kSizesFlag, text);
}

absl::StatusOr<std::vector<int>> ParseNodesFlag(absl::string_view text) {
  FERRY_ASSIGN_OR_RETURN(const std::vector<size_t> counts, ParseList(kNodesFlag, text));
  return std::vector<int>(counts.begin(), counts.end());
}

}  // namespace ferry::cli
