// SPDX-License-Identifier: Apache-2.0
// Parses and merges parts of device names.
#include "tensorflow/graph/device_spec.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "base/status_macros.h"

namespace ferry::graph {
namespace {

bool IsWord(absl::string_view text) {
  return !text.empty() && absl::ascii_isalpha(text[0]) &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '-'; });
}

// Reads a 64-bit number, or "*", which leaves `number` empty. Larger numbers saturate: no such
// device exists.
bool ReadNumber(absl::string_view text, std::optional<int64_t>& number) {
  number.reset();
  if (text == "*") return true;
  uint64_t value = 0;
  if (!std::all_of(text.begin(), text.end(), absl::ascii_isdigit) ||
      !absl::SimpleAtoi(text, &value)) {
    return false;
  }
  number = static_cast<int64_t>(std::min<uint64_t>(value, std::numeric_limits<int64_t>::max()));
  return true;
}

bool ReadWord(absl::string_view text, std::optional<std::string>& word) {
  word.reset();
  if (text == "*") return true;
  if (!IsWord(text)) return false;
  word = std::string(text);
  return true;
}

bool ReadPart(absl::string_view part, DeviceSpec& spec) {
  if (absl::ConsumePrefix(&part, "job:")) return ReadWord(part, spec.job);
  if (absl::ConsumePrefix(&part, "replica:")) return ReadNumber(part, spec.replica);
  if (absl::ConsumePrefix(&part, "task:")) return ReadNumber(part, spec.task);
  const bool is_long = absl::ConsumePrefix(&part, "device:");
  const std::vector<absl::string_view> words = absl::StrSplit(part, ':');
  if (words.size() > 2 || (!is_long && words.size() != 2)) return false;
  if (!ReadWord(words[0], spec.type)) return false;
  if (!is_long) {
    // The short form allows two types, case-insensitive.
    if (!spec.type.has_value()) return false;
    absl::AsciiStrToUpper(&*spec.type);
    if (spec.type != "CPU" && spec.type != "GPU") return false;
  }
  spec.index.reset();
  return words.size() == 1 || ReadNumber(words[1], spec.index);
}

template <typename T>
bool Disagree(const std::optional<T>& a, const std::optional<T>& b) {
  return a.has_value() && b.has_value() && *a != *b;
}

template <typename T>
void Adopt(const std::optional<T>& from, std::optional<T>& to) {
  if (from.has_value()) to = from;
}

}  // namespace

std::optional<DeviceSpec> ParseDeviceSpec(absl::string_view text) {
  DeviceSpec spec;
  if (text.empty() || text == "/") return spec;
  if (!absl::ConsumePrefix(&text, "/")) return std::nullopt;
  for (const absl::string_view part : absl::StrSplit(text, '/')) {
    if (!ReadPart(part, spec)) return std::nullopt;
  }
  return spec;
}

bool Matches(const DeviceSpec& spec, const TaskDevice& device) {
  return spec.job.value_or(device.task.job) == device.task.job &&
         spec.replica.value_or(device.task.replica) == device.task.replica &&
         spec.task.value_or(device.task.task) == device.task.task &&
         spec.type.value_or(device.type) == device.type &&
         spec.index.value_or(device.index) == device.index;
}

std::string ToString(const DeviceSpec& spec) {
  std::string text;
  if (spec.job.has_value()) absl::StrAppend(&text, "/job:", *spec.job);
  if (spec.replica.has_value()) absl::StrAppend(&text, "/replica:", *spec.replica);
  if (spec.task.has_value()) absl::StrAppend(&text, "/task:", *spec.task);
  if (spec.type.has_value() || spec.index.has_value()) {
    absl::StrAppend(&text, "/device:", spec.type.value_or("*"), ":");
    if (spec.index.has_value()) {
      absl::StrAppend(&text, *spec.index);
    } else {
      absl::StrAppend(&text, "*");
    }
  }
  return text;
}

absl::Status Merge(const DeviceSpec& other, bool is_soft, DeviceSpec& spec) {
  const auto contradiction = [&other, &spec](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("Cannot merge devices with incompatible ", what,
                                                   ": '", ToString(other), "' and '",
                                                   ToString(spec), "'"));
  };
  if (Disagree(other.job, spec.job)) return contradiction("jobs");
  if (Disagree(other.replica, spec.replica)) return contradiction("replicas");
  if (Disagree(other.task, spec.task)) return contradiction("tasks");
  const bool is_other_type = Disagree(other.type, spec.type);
  if (is_other_type && !is_soft) return contradiction("types");
  const bool is_other_index = Disagree(other.index, spec.index);
  if (is_other_index && !is_soft) return contradiction("ids");
  Adopt(other.job, spec.job);
  Adopt(other.replica, spec.replica);
  Adopt(other.task, spec.task);
  if (is_other_type) {
    spec.type.reset();
    spec.index.reset();
  } else {
    Adopt(other.type, spec.type);
    if (is_other_index) {
      spec.index.reset();
    } else {
      Adopt(other.index, spec.index);
    }
  }
  return absl::OkStatus();
}

}  // namespace ferry::graph
