// SPDX-License-Identifier: Apache-2.0
// SequenceTable: values with consecutive numbers, most of which are removed soon.
#ifndef FERRY_RENDEZVOUS_PEER_SEQUENCE_TABLE_H_
#define FERRY_RENDEZVOUS_PEER_SEQUENCE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace ferry {

// The latest numbers are the indices of a ring, so that the usual case needs neither hashing nor
// allocation; values that stay for longer than `kMaxRing` numbers are moved to a hash table. Not
// thread-safe. Copyable.
template <typename T>
class SequenceTable final {
 public:
  // Adds a value, T(), with the next number. REQUIRES: it is one more than the last one's, unless
  // the table has never had a value. Returns it; valid until the next call.
  T& Add(uint64_t sequence) {
    if (begin_ == end_) begin_ = end_ = sequence;
    if (end_ - begin_ == ring_.size()) MakeRoom();
    ++size_;
    return At(end_++).emplace();
  }

  // Null: there is none. Valid until the next call.
  T* Find(uint64_t sequence) {
    if (sequence - begin_ < end_ - begin_) {
      std::optional<T>& value = At(sequence);
      return value.has_value() ? &*value : nullptr;
    }
    const auto found = older_.find(sequence);
    return found == older_.end() ? nullptr : &found->second;
  }

  // REQUIRES: Find(sequence) is not null.
  void Erase(uint64_t sequence) {
    --size_;
    if (sequence - begin_ >= end_ - begin_) {
      older_.erase(sequence);
      return;
    }
    At(sequence).reset();
    DropFront();
  }

  // Removes those with the numbers [first, end), after `visit(sequence, value)` for each, in order.
  template <typename Visit>
  void EraseRange(uint64_t first, uint64_t end, const Visit& visit) {
    for (uint64_t sequence = first; sequence < end; ++sequence) {
      if (sequence - begin_ >= end_ - begin_) {
        const auto found = older_.find(sequence);
        if (found == older_.end()) continue;
        visit(sequence, found->second);
        older_.erase(found);
      } else {
        std::optional<T>& value = At(sequence);
        if (!value.has_value()) continue;
        visit(sequence, *value);
        value.reset();
      }
      --size_;
    }
    DropFront();
  }

  // Calls `visit(sequence, value)` for each, in no particular order.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (const auto& [sequence, value] : older_) visit(sequence, value);
    for (uint64_t sequence = begin_; sequence != end_; ++sequence) {
      const std::optional<T>& value = ring_[sequence & (ring_.size() - 1)];
      if (value.has_value()) visit(sequence, *value);
    }
  }

  // Removes those for which `matches(sequence, value)` returns true.
  template <typename Matches>
  void EraseIf(const Matches& matches) {
    for (auto each = older_.begin(); each != older_.end();) {
      const auto at = each++;
      if (!matches(at->first, at->second)) continue;
      older_.erase(at);
      --size_;
    }
    for (uint64_t sequence = begin_; sequence != end_; ++sequence) {
      std::optional<T>& value = At(sequence);
      if (!value.has_value() || !matches(sequence, *value)) continue;
      value.reset();
      --size_;
    }
    DropFront();
  }

  size_t size() const { return size_; }

 private:
  static constexpr size_t kFirstRing = 16;
  static constexpr size_t kMaxRing = 4096;

  std::optional<T>& At(uint64_t sequence) { return ring_[sequence & (ring_.size() - 1)]; }

  void DropFront() {
    while (begin_ != end_ && !At(begin_).has_value()) ++begin_;
  }

  void MakeRoom() {
    if (ring_.size() >= kMaxRing) {
      older_.emplace(begin_, *std::move(At(begin_)));
      At(begin_).reset();
      DropFront();
      return;
    }
    std::vector<std::optional<T>> larger(ring_.empty() ? kFirstRing : 2 * ring_.size());
    for (uint64_t sequence = begin_; sequence != end_; ++sequence) {
      larger[sequence & (larger.size() - 1)] = std::move(At(sequence));
    }
    ring_ = std::move(larger);
  }

  // The numbers in the ring, whose first value, if there is one, is present.
  uint64_t begin_ = 0;
  uint64_t end_ = 0;
  size_t size_ = 0;
  std::vector<std::optional<T>> ring_;
  absl::flat_hash_map<uint64_t, T> older_;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_SEQUENCE_TABLE_H_
