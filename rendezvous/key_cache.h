// SPDX-License-Identifier: Apache-2.0
// KeyCache: recently parsed keys; a step's keys recur in the next step.
#ifndef FERRY_RENDEZVOUS_KEY_CACHE_H_
#define FERRY_RENDEZVOUS_KEY_CACHE_H_

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "rendezvous/key.h"

namespace ferry {

// Parsing takes most of a microsecond, a lookup a tenth of that. Direct-mapped: a key replaces the
// previous one in its slot. Not thread-safe.
class KeyCache final {
 public:
  // As RendezvousKey::Parse; the result is valid until the next call.
  absl::StatusOr<const RendezvousKey*> Parse(absl::string_view text) {
    if (slots_.empty()) slots_.resize(kSlots);
    std::optional<RendezvousKey>& slot = slots_[RendezvousKey::HashOf(text) % kSlots];
    if (slot.has_value() && slot->text() == text) return &*slot;
    absl::StatusOr<RendezvousKey> key = RendezvousKey::Parse(text);
    if (!key.ok()) return key.status();
    slot = *std::move(key);
    return &*slot;
  }

 private:
  static constexpr size_t kSlots = 1024;

  std::vector<std::optional<RendezvousKey>> slots_;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_KEY_CACHE_H_
