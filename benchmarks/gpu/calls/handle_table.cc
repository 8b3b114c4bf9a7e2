// SPDX-License-Identifier: Apache-2.0
// HandleTable: exact values of handles, ranges of addresses.
#include "benchmarks/gpu/calls/handle_table.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ferry::calls {
namespace {

// How far behind its address memory of unknown size may reach: an allocation opened by its handle,
// which is never host memory (a stack may lie behind it).
constexpr uint64_t kMaxUnknown = uint64_t{32} << 30;
// CU_STREAM_LEGACY and CU_STREAM_PER_THREAD.
constexpr uint64_t kLastOwnStream = 2;

}  // namespace

HandleTable::Key HandleTable::KeyOf(Kind kind, uint64_t recorded) {
  return {kind == Kind::kHost ? Kind::kMemory : kind, recorded};
}

void HandleTable::Add(Kind kind, uint64_t recorded, std::optional<uint64_t> live, int line,
                      uint64_t bytes) {
  meanings_[KeyOf(kind, recorded)].push_back({.live = live, .line = line, .bytes = bytes});
}

void HandleTable::Remove(Kind kind, uint64_t recorded, std::optional<uint64_t> live) {
  const auto found = meanings_.find(KeyOf(kind, recorded));
  if (found == meanings_.end()) return;
  std::vector<Meaning>& meanings = found->second;
  const auto meaning = std::find_if(meanings.begin(), meanings.end(),
                                    [live](const Meaning& each) { return each.live == live; });
  if (meaning != meanings.end()) meanings.erase(meaning);
  if (meanings.empty()) meanings_.erase(found);
}

absl::StatusOr<uint64_t> HandleTable::Find(Kind kind, uint64_t recorded) const {
  if (recorded == 0 || (kind == Kind::kStream && recorded <= kLastOwnStream)) return recorded;
  const Key key = KeyOf(kind, recorded);
  const auto reaches = [&](uint64_t begin, const Meaning& meaning) {
    const uint64_t offset = recorded - begin;
    if (!IsAddress(kind)) return offset == 0;
    if (meaning.bytes > 0) return offset < meaning.bytes;
    return kind != Kind::kHost && offset < kMaxUnknown;
  };
  for (auto at = meanings_.upper_bound(key); at != meanings_.begin();) {
    --at;
    const auto& [begin, meanings] = *at;
    if (begin.first != key.first || (!IsAddress(kind) && begin != key)) break;
    const auto meaning = std::find_if(
        meanings.rbegin(), meanings.rend(),
        [&, first = begin.second](const Meaning& each) { return reaches(first, each); });
    if (meaning == meanings.rend()) continue;
    if (!meaning->live.has_value()) {
      return absl::FailedPreconditionError(absl::StrCat(
          PrefixOf(kind), ":0x", absl::Hex(recorded), " does not exist in the replay, since line ",
          meaning->line, " failed or was not performed"));
    }
    return *meaning->live + (recorded - begin.second);
  }
  return absl::NotFoundError(absl::StrCat(PrefixOf(kind), ":0x", absl::Hex(recorded),
                                          " comes from no call of this record"));
}

}  // namespace ferry::calls
