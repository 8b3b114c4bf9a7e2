// SPDX-License-Identifier: Apache-2.0
// KeyTable: comparing parts, and which key makes room.
#include "node/key_table.h"

#include <cstring>
#include <utility>

// Header only: nothing to link.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ferry {
namespace {

// The bytes and their number, which together identify a short name.
//   REQUIRES: at most KeyTable::kMaxDeviceBytes bytes.
uint64_t Packed(absl::string_view device) {
  uint64_t packed = device.size() << 56;
  std::memcpy(&packed, device.data(), device.size());
  return packed;
}

}  // namespace

KeyTable::Entry* KeyTable::Set::Find(const Tag& tag, absl::string_view name) {
  for (Entry& entry : entries) {
    if (entry.tag == tag && entry.key.has_value() && entry.key->edge() == name) return &entry;
  }
  return nullptr;
}

std::optional<KeyTable::Tag> KeyTable::TagOf(const KeyParts& parts) {
  if (parts.name.size() > kMaxNameBytes || parts.from_device.size() > kMaxDeviceBytes ||
      parts.to_device.size() > kMaxDeviceBytes) {
    return std::nullopt;
  }
  Tag tag;
  tag.from_device = Packed(parts.from_device);
  tag.to_device = Packed(parts.to_device);
  tag.from = parts.from;
  tag.to = parts.to;
  // Names differ within a pair of nodes, and keys of one name are few.
  const uint64_t seed = tag.from_device ^ (tag.to_device << 1) ^
                        (static_cast<uint64_t>(static_cast<uint32_t>(tag.from)) << 32) ^
                        static_cast<uint32_t>(tag.to);
  tag.hash = XXH3_64bits_withSeed(parts.name.data(), parts.name.size(), seed);
  return tag;
}

std::optional<RendezvousKey> KeyTable::Find(const KeyParts& parts, uint64_t incarnation) const {
  const std::optional<Tag> tag = TagOf(parts);
  if (!tag.has_value()) return std::nullopt;
  Set& set = SetOf(*tag);
  SpinLockHolder lock(&set.mu);
  const Entry* const entry = set.Find(*tag, parts.name);
  if (entry == nullptr || entry->key->src_incarnation() != incarnation) return std::nullopt;
  return entry->key;
}

void KeyTable::Keep(const KeyParts& parts, const RendezvousKey& key) {
  const std::optional<Tag> tag = TagOf(parts);
  if (!tag.has_value()) return;
  // Destroyed once the lock is released.
  std::optional<RendezvousKey> replaced = key;
  Set& set = SetOf(*tag);
  SpinLockHolder lock(&set.mu);
  Entry* entry = set.Find(*tag, parts.name);
  if (entry == nullptr) {
    entry = &set.entries[set.oldest];
    set.oldest = static_cast<uint8_t>((set.oldest + 1) % kWays);
  }
  entry->tag = *tag;
  entry->key.swap(replaced);
}

size_t KeyTable::size() const {
  size_t count = 0;
  for (Set& set : *sets_) {
    SpinLockHolder lock(&set.mu);
    for (const Entry& entry : set.entries) count += entry.key.has_value() ? 1 : 0;
  }
  return count;
}

}  // namespace ferry
