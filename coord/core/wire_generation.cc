// SPDX-License-Identifier: Apache-2.0
// Distinguishes generations by field numbers and wire types (docs/protocols.md has the table).
#include "coord/core/wire_generation.h"

#include <cstdint>
#include <cstring>

namespace ferry::coord {
namespace {

enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

struct Field {
  uint64_t number = 0;
  int type = 0;
  // For kBytes only.
  absl::string_view content;
};

bool ReadVarint(absl::string_view& bytes, uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const uint8_t byte = static_cast<uint8_t>(bytes[0]);
    bytes.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

// Consumes the next field of `bytes`; returns false when there is none or it is malformed.
bool ReadField(absl::string_view& bytes, Field& field) {
  uint64_t tag = 0;
  if (bytes.empty() || !ReadVarint(bytes, tag)) return false;
  field.number = tag >> 3;
  field.type = static_cast<int>(tag & 7);
  uint64_t size = 0;
  switch (field.type) {
    case kVarint:
      return ReadVarint(bytes, size);
    case kFixed64:
      size = 8;
      break;
    case kFixed32:
      size = 4;
      break;
    case kBytes:
      if (!ReadVarint(bytes, size)) return false;
      break;
    default:
      return false;
  }
  if (size > bytes.size()) return false;
  field.content = bytes.substr(0, size);
  bytes.remove_prefix(size);
  return true;
}

// {1 task varint, 2 fixed64, 3 fixed64}, each at most once and in order, and nothing else. A key
// or a task message of the older layouts does not match.
bool IsIncarnations(absl::string_view bytes) {
  uint64_t last = 0;
  Field field;
  while (!bytes.empty()) {
    if (!ReadField(bytes, field) || field.number <= last || field.number > 3) return false;
    if (field.type != (field.number == 1 ? kVarint : kFixed64)) return false;
    last = field.number;
  }
  return true;
}

// A task as a message: its job at 1, which every client sets, and numbers at 2 and 3. A packed
// list of numbers does not match.
bool IsNamedTask(absl::string_view bytes) {
  bool has_job = false;
  Field field;
  while (!bytes.empty()) {
    if (!ReadField(bytes, field) || field.number > 3) return false;
    if (field.type != (field.number == 1 ? kBytes : kVarint)) return false;
    has_job |= field.number == 1;
  }
  return has_job;
}

// The number of the field that names the calling task in the older layouts; 0 if there is none.
uint64_t SourceField(absl::string_view method) {
  if (method == "Heartbeat" || method == "Barrier") return 4;
  if (method == "RegisterTask" || method == "WaitForAllTasks" || method == "ReportErrorToService") {
    return 5;
  }
  if (method == "CancelBarrier") return 2;
  if (method == "ShutdownTask" || method == "ResetTask" || method == "PollForError" ||
      method == "GetAliveTasks" || method == "GetTaskState") {
    return 1;
  }
  return 0;
}

// Methods that the layout with incarnations does not have.
bool IsOldOnly(absl::string_view method) {
  return method == "WaitForAllTasks" || method == "ResetTask" || method == "GetTaskState" ||
         method == "GetJobState" || method == "WatchJobState" || method == "ReportErrorToService";
}

}  // namespace

WireGeneration TellGeneration(absl::string_view method, absl::string_view request) {
  if (method == "WatchTasks") return WireGeneration::kIncarnations;
  const uint64_t source = SourceField(method);
  bool has_first = false;
  bool has_incarnations = false;
  int second_type = -1;
  int source_type = -1;
  bool is_named_task = false;
  Field field;
  for (absl::string_view rest = request; !rest.empty();) {
    if (!ReadField(rest, field)) return WireGeneration::kIncarnations;
    if (field.number == 1) {
      has_first = true;
      has_incarnations = field.type == kBytes && IsIncarnations(field.content);
    }
    if (field.number == 2) second_type = field.type;
    if (field.number == source) {
      source_type = field.type;
      is_named_task = field.type == kBytes && IsNamedTask(field.content);
    }
  }
  if (method == "RegisterTask") {
    // Both layouts with numbers are identical here, and so are the answers.
    return source_type == kBytes ? WireGeneration::kNamedTasks : WireGeneration::kIncarnations;
  }
  if (method == "WatchJobState") {
    // The job's name was removed when tasks became numbers.
    return has_first ? WireGeneration::kNamedTasks : WireGeneration::kNumberedTasks;
  }
  if (!IsOldOnly(method)) {
    if (has_incarnations) return WireGeneration::kIncarnations;
    if (!has_first) {
      // The list of task 0, whose number is omitted; the new layout has its list at 3.
      if (method == "GetAliveTasks" && second_type == kBytes) return WireGeneration::kNumberedTasks;
      // A key, a barrier id or a heartbeat's incarnation at 2 occurs in the new layout only; so
      // does a task's number at 2 where the older ones have it at 1.
      const bool second_is_new = second_type == kBytes || second_type == kFixed64;
      if (second_is_new || request.empty() || source == 1) return WireGeneration::kIncarnations;
    }
  }
  if (method == "GetTaskState") {
    // Both have a list: of messages, or of packed numbers.
    const bool is_named = is_named_task || source_type == -1;
    return is_named ? WireGeneration::kNamedTasks : WireGeneration::kNumberedTasks;
  }
  if (source == 0 || source_type == kBytes) return WireGeneration::kNamedTasks;
  return WireGeneration::kNumberedTasks;
}

}  // namespace ferry::coord
