// SPDX-License-Identifier: Apache-2.0
// Parsing of device names, part by part.
#include "rendezvous/device_name.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ferry {
namespace {

bool ParseNumber(absl::string_view text, int64_t& number) {
  // SimpleAtoi would accept signs and blanks.
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit) &&
         absl::SimpleAtoi(text, &number) && number <= INT32_MAX;
}

bool IsWord(absl::string_view text) {
  return !text.empty() && absl::ascii_isalpha(text[0]) &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '-'; });
}

// The parts of a name; each occurs at most once.
struct Parts {
  std::optional<std::string> job;
  std::optional<int64_t> replica;
  std::optional<int64_t> task;
  std::optional<std::string> type;
  int64_t index = 0;
};

bool ParsePart(absl::string_view part, Parts& parts) {
  const std::vector<absl::string_view> words = absl::StrSplit(part, ':');
  int64_t number = 0;
  if (words[0] == "job") {
    if (words.size() != 2 || parts.job.has_value() || !IsWord(words[1])) return false;
    parts.job = std::string(words[1]);
    return true;
  }
  if (words[0] == "replica" || words[0] == "task") {
    std::optional<int64_t>& field = words[0] == "task" ? parts.task : parts.replica;
    if (words.size() != 2 || field.has_value() || !ParseNumber(words[1], number)) return false;
    field = number;
    return true;
  }
  const size_t type = words[0] == "device" ? 1 : 0;
  if (words.size() != type + 2 || parts.type.has_value() || !IsWord(words[type]) ||
      !ParseNumber(words[type + 1], parts.index)) {
    return false;
  }
  parts.type = type == 1 ? std::string(words[1]) : absl::AsciiStrToUpper(words[0]);
  return true;
}

std::optional<Parts> ParseParts(absl::string_view name) {
  if (!absl::StartsWith(name, "/")) return std::nullopt;
  Parts parts;
  for (const absl::string_view part : absl::StrSplit(name.substr(1), '/')) {
    if (!ParsePart(part, parts)) return std::nullopt;
  }
  if (!parts.job.has_value() || !parts.task.has_value()) return std::nullopt;
  return parts;
}

}  // namespace

int64_t WorkerNumber(const TaskName& name) {
  return name.replica == 0 && name.job == "worker" ? name.task : -1;
}

std::optional<TaskName> ParseTaskName(absl::string_view name) {
  std::optional<Parts> parts = ParseParts(name);
  if (!parts.has_value() || parts->type.has_value()) return std::nullopt;
  return TaskName{*std::move(parts->job), parts->replica.value_or(0), *parts->task};
}

std::optional<TaskDevice> ParseDeviceName(absl::string_view name) {
  std::optional<Parts> parts = ParseParts(name);
  if (!parts.has_value() || !parts->type.has_value()) return std::nullopt;
  return TaskDevice{{*std::move(parts->job), parts->replica.value_or(0), *parts->task},
                    *std::move(parts->type),
                    parts->index};
}

TensorLocation LocationOf(const TaskDevice& device) {
  if (device.type != "GPU") return {};
  return {MemorySpace::kCuda, static_cast<int>(device.index)};
}

std::string ToString(const TaskName& name) {
  return absl::StrCat("/job:", name.job, "/replica:", name.replica, "/task:", name.task);
}

std::string ToString(const TaskDevice& name) {
  return absl::StrCat(ToString(name.task), "/device:", name.type, ":", name.index);
}

}  // namespace ferry
