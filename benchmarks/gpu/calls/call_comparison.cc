// SPDX-License-Identifier: Apache-2.0
// Differences and NoteHandles: by the kind of each output.
#include "benchmarks/gpu/calls/call_comparison.h"

#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace ferry::calls {
namespace {

std::string Told(absl::string_view name, const Value& recorded, const Value& live) {
  return absl::StrCat(name, ": recorded ", recorded.text, ", replayed ", live.text);
}

// Null on both sides, or on none; the same handle if the record knows it.
bool IsSameHandle(Kind kind, const Value& recorded, const Value& live, bool is_new,
                  const HandleTable& handles) {
  if ((recorded.number == 0) != (live.number == 0)) return false;
  if (is_new || recorded.number == 0) return true;
  const absl::StatusOr<uint64_t> expected =
      handles.Find(kind, static_cast<uint64_t>(recorded.number));
  return !expected.ok() || *expected == static_cast<uint64_t>(live.number);
}

bool IsSame(Kind kind, Compare compare, bool is_new, const Value& recorded, const Value& live,
            const HandleTable& handles) {
  if (recorded.is_absent != live.is_absent) return false;
  switch (compare) {
    case Compare::kExact:
      return recorded.text == live.text;
    case Compare::kHandle:
      return IsSameHandle(kind, recorded, live, is_new, handles);
    case Compare::kNever:
      return true;
  }
  return true;
}

void CompareValues(const RecordedCall& recorded, const RecordedCall& live,
                   const HandleTable& handles, std::vector<std::string>& differences) {
  const std::vector<Value>& attributes = recorded.Find("attributes")->items;
  const std::vector<Value>& expected = recorded.Find("values")->items;
  const std::vector<Value>& found = live.Find("values")->items;
  for (size_t i = 0; i < attributes.size() && i < expected.size() && i < found.size(); ++i) {
    const AttributeShape shape = ShapeOf(attributes[i].number);
    if (shape.kind == Kind::kNone) continue;
    if (!IsSame(shape.kind, shape.compare, /*is_new=*/false, expected[i], found[i], handles)) {
      differences.push_back(
          Told(absl::StrCat("attribute ", attributes[i].number), expected[i], found[i]));
    }
  }
}

// Differs between devices of one generation, and no emulation depends on it.
bool IsOfTheMachine(const RecordedCall& call) {
  const Value* const attribute = call.Find("attribute");
  return std::string_view(call.description->symbol) == "cuDeviceGetAttribute" &&
         attribute->number == cuda::kMultiprocessorCount;
}

// Success or "not ready", which of both is a matter of time.
bool IsProgress(cuda::Result result) {
  return result == cuda::kSuccess || result == cuda::kErrorNotReady;
}

}  // namespace

std::vector<std::string> Differences(const RecordedCall& recorded, const RecordedCall& live,
                                     const HandleTable& handles) {
  if (recorded.result != live.result) {
    // A recorded success is awaited by the player, so that "not ready" then is a difference.
    const bool is_early = recorded.description->is_poll &&
                          recorded.result == cuda::kErrorNotReady && IsProgress(live.result);
    if (is_early) return {};
    return {absl::StrCat("result: recorded ", recorded.result, ", replayed ", live.result)};
  }
  std::vector<std::string> differences;
  if (recorded.result != cuda::kSuccess) return differences;
  for (size_t i = 0; i < recorded.values.size(); ++i) {
    const Argument& argument = recorded.description->arguments[i];
    if (!argument.is_output) continue;
    if (IsOfTheMachine(recorded)) continue;
    if (argument.kind == Kind::kValues) {
      CompareValues(recorded, live, handles, differences);
    } else if (!IsSame(argument.kind, argument.compare, argument.creates, recorded.values[i],
                       live.values[i], handles)) {
      differences.push_back(Told(argument.name, recorded.values[i], live.values[i]));
    }
  }
  return differences;
}

void NoteHandles(const RecordedCall& recorded, const RecordedCall& live, const uint64_t* words,
                 HandleTable& handles) {
  if (recorded.result != cuda::kSuccess) return;
  const bool is_done = live.result == cuda::kSuccess;
  const Value* const size = recorded.Find("bytes");
  for (size_t i = 0; i < recorded.values.size(); ++i) {
    const Argument& argument = recorded.description->arguments[i];
    const Value& value = recorded.values[i];
    if (value.is_absent || value.number == 0) continue;
    const auto old = static_cast<uint64_t>(value.number);
    if (argument.maps && !is_done) {
      handles.Add(argument.kind, old, std::nullopt, recorded.line,
                  static_cast<uint64_t>(size->number));
      continue;
    }
    if (argument.unmaps) {
      // If it could not be mapped, it is not missing any more.
      handles.Remove(argument.kind, old, std::nullopt);
      continue;
    }
    if (argument.destroys) {
      if (is_done) handles.Remove(argument.kind, old, words[i]);
      continue;
    }
    if (!IsHandle(argument.kind) && !IsAddress(argument.kind)) continue;
    // One that the record did not make, such as a context that was current before.
    const bool is_first = argument.is_output && IsHandle(argument.kind) &&
                          absl::IsNotFound(handles.Find(argument.kind, old).status());
    if (!argument.creates && !is_first) continue;
    std::optional<uint64_t> made;
    if (is_done) {
      made = argument.is_output ? static_cast<uint64_t>(live.values[i].number) : words[i];
    }
    const bool has_size = IsAddress(argument.kind) && size != nullptr;
    handles.Add(argument.kind, old, made, recorded.line,
                has_size ? static_cast<uint64_t>(size->number) : 0);
  }
}

}  // namespace ferry::calls
