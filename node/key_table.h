// SPDX-License-Identifier: Apache-2.0
// KeyTable: the keys that a node has made recently, by the parts they were made of.
#ifndef FERRY_NODE_KEY_TABLE_H_
#define FERRY_NODE_KEY_TABLE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"

#include "base/spin_lock.h"
#include "rendezvous/key.h"

namespace ferry {

// The parts of a key, besides the incarnation of its source. A view.
struct KeyParts {
  absl::string_view name;
  int from = 0;
  int to = 0;
  // "host:0", "gpu:1".
  absl::string_view from_device;
  absl::string_view to_device;
};

// A program uses the same names in every step, and making a key takes longer than the transfer of a
// small tensor. Set-associative: a key replaces the oldest one of its set, so that the number of
// keys, and of the bytes of their names, is bounded. Thread-safe; calls for different keys rarely
// wait for each other.
class KeyTable final {
 public:
  static constexpr size_t kMaxKeys = 8192;
  // Keys with a longer name are not kept, nor those of devices whose names are longer than any of a
  // real one.
  static constexpr size_t kMaxNameBytes = 256;
  static constexpr size_t kMaxDeviceBytes = 7;

  KeyTable() : sets_(std::make_unique<std::array<Set, kSets>>()) {}

  KeyTable(const KeyTable&) = delete;
  KeyTable& operator=(const KeyTable&) = delete;

  // Returns the key that was kept for `parts`, unless its source had another incarnation.
  std::optional<RendezvousKey> Find(const KeyParts& parts, uint64_t incarnation) const;
  // Keeps `key`, which was made of `parts`.
  void Keep(const KeyParts& parts, const RendezvousKey& key);
  // The number of keys that are kept; for tests.
  size_t size() const;

 private:
  static constexpr size_t kWays = 4;
  static constexpr size_t kSets = kMaxKeys / kWays;

  // Numbers that stand for the parts.
  struct Tag {
    uint64_t hash = 0;
    uint64_t from_device = 0;
    uint64_t to_device = 0;
    int from = 0;
    int to = 0;
    friend bool operator==(const Tag&, const Tag&) = default;
  };
  struct Entry {
    Tag tag;
    std::optional<RendezvousKey> key;
  };
  struct alignas(64) Set {
    mutable SpinLock mu;
    uint8_t oldest ABSL_GUARDED_BY(mu) = 0;
    std::array<Entry, kWays> entries ABSL_GUARDED_BY(mu);

    // The entry of the parts, or null.
    Entry* Find(const Tag& tag, absl::string_view name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  };

  // Returns nullopt if their key is not to be kept.
  static std::optional<Tag> TagOf(const KeyParts& parts);
  Set& SetOf(const Tag& tag) const { return (*sets_)[tag.hash % kSets]; }

  const std::unique_ptr<std::array<Set, kSets>> sets_;
};

}  // namespace ferry

#endif  // FERRY_NODE_KEY_TABLE_H_
