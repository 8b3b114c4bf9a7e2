// SPDX-License-Identifier: Apache-2.0
// ReplayExports: handles by their bytes, descriptors by their files.
#include "benchmarks/gpu/calls/replay_exports.h"

#include <unistd.h>

namespace ferry::calls {
namespace {

bool IsOfPool(const RecordedCall& call) {
  return std::string_view(call.description->symbol).find("Pool") != std::string_view::npos;
}

}  // namespace

ReplayExports::~ReplayExports() {
  for (const Descriptor& each : descriptors_) close(each.live);
}

void ReplayExports::Add(size_t process, const RecordedCall& call, const Foreign& live) {
  for (size_t i = 0; i < call.values.size(); ++i) {
    const Argument& argument = call.description->arguments[i];
    const Value& value = call.values[i];
    if (!argument.is_output || value.is_absent) continue;
    if (!value.bytes.empty() &&
        (argument.kind == Kind::kBlob || argument.kind == Kind::kShareable)) {
      handles_[value.bytes] = live.bytes;
    } else if (argument.kind == Kind::kShareable && live.descriptor >= 0) {
      descriptors_.push_back({.process = process,
                              .is_pool = IsOfPool(call),
                              .number = value.number,
                              .file = value.file,
                              .live = live.descriptor,
                              .importers = {}});
      return;
    }
  }
  // A call that failed in the record.
  if (live.descriptor >= 0) close(live.descriptor);
}

std::optional<Foreign> ReplayExports::Find(size_t process, const RecordedCall& call) {
  for (size_t i = 0; i < call.values.size(); ++i) {
    const Argument& argument = call.description->arguments[i];
    const Value& value = call.values[i];
    if (argument.is_output || value.is_absent) continue;
    if (argument.kind != Kind::kBlob && argument.kind != Kind::kShareable) continue;
    if (value.bytes.empty()) return FindDescriptor(process, IsOfPool(call), value);
    const auto found = handles_.find(value.bytes);
    if (found == handles_.end()) return std::nullopt;
    return Foreign{.bytes = found->second};
  }
  return std::nullopt;
}

std::optional<Foreign> ReplayExports::FindDescriptor(size_t process, bool is_pool,
                                                     const Value& value) {
  Descriptor* chosen = nullptr;
  for (auto each = descriptors_.rbegin(); each != descriptors_.rend(); ++each) {
    if (each->is_pool != is_pool || each->file != value.file) continue;
    if (each->process == process && each->number == value.number) {
      chosen = &*each;
      break;
    }
    // The newest if each has been imported, else the oldest that has not.
    if (chosen == nullptr || !each->importers.contains(process)) chosen = &*each;
  }
  if (chosen == nullptr) return std::nullopt;
  chosen->importers.insert(process);
  return Foreign{.descriptor = chosen->live};
}

}  // namespace ferry::calls
