// SPDX-License-Identifier: Apache-2.0
// CallPlayer: a call's arguments, the call, what it gave.
#include "benchmarks/gpu/calls/call_player.h"

#include <dlfcn.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"

#include "benchmarks/gpu/calls/call_comparison.h"

namespace ferry::calls {
namespace {

constexpr absl::Duration kBetweenPolls = absl::Microseconds(50);

// Handles and descriptors that other processes may open.
std::optional<Foreign> ExportedBy(const RecordedCall& live) {
  if (live.result != cuda::kSuccess) return std::nullopt;
  for (size_t i = 0; i < live.values.size(); ++i) {
    const Argument& argument = live.description->arguments[i];
    if (!argument.is_output || live.values[i].is_absent) continue;
    if (argument.kind == Kind::kBlob) return Foreign{.bytes = live.values[i].bytes};
    if (argument.kind == Kind::kShareable) {
      const Value& value = live.values[i];
      if (!value.bytes.empty()) return Foreign{.bytes = value.bytes};
      return Foreign{.descriptor = static_cast<int>(value.number)};
    }
  }
  return std::nullopt;
}

}  // namespace

PlayedCall CallPlayer::Play(size_t index, const std::optional<Foreign>& foreign) {
  const RecordedCall& recorded = record_.calls[index];
  const DriverCall& description = *recorded.description;
  PlayedCall played;
  void* const function = dlsym(library_, description.symbol);
  if (function == nullptr) {
    played.differences.push_back("the library has no such function");
    return played;
  }
  absl::StatusOr<LiveCall> live = [&] {
    const absl::MutexLock lock(&mutex_);
    return LiveCall::Build(recorded, handles_, host_, foreign);
  }();
  if (!live.ok()) {
    played.skipped = std::string(live.status().message());
    played.is_error = !absl::IsFailedPrecondition(live.status());
    RecordedCall none = recorded;
    none.result = cuda::kErrorNotFound;
    const uint64_t words[kMaxArguments] = {};
    const absl::MutexLock lock(&mutex_);
    NoteHandles(recorded, none, words, handles_);
    return played;
  }
  DoneCall done = {.description = &description,
                   .words = live->words(),
                   .result = Invoke(description, function, live->words()),
                   .began_ns = 0,
                   .duration_ns = 0,
                   .thread = 0};
  const absl::Time deadline = absl::Now() + patience_;
  while (description.is_poll && recorded.result == cuda::kSuccess &&
         done.result == cuda::kErrorNotReady && absl::Now() < deadline) {
    absl::SleepFor(kBetweenPolls);
    done.result = Invoke(description, function, live->words());
  }
  std::string line;
  writer_.Append(line, done);
  const absl::StatusOr<RecordedCall> parsed = ParseCall(absl::StripSuffix(line, "\n"));
  if (!parsed.ok()) {
    played.differences.push_back(std::string(parsed.status().message()));
    return played;
  }
  const absl::MutexLock lock(&mutex_);
  played.differences = Differences(recorded, *parsed, handles_);
  NoteHandles(recorded, *parsed, live->words(), handles_);
  played.exported = ExportedBy(*parsed);
  if (std::string_view(description.symbol) == "cuMemHostAlloc" && done.result == cuda::kSuccess) {
    FillWithFlags(reinterpret_cast<void*>(parsed->Find("pointer")->number),
                  static_cast<uint64_t>(recorded.Find("bytes")->number));
  }
  return played;
}

}  // namespace ferry::calls
