// SPDX-License-Identifier: Apache-2.0
// The parts of a shard that are not needed for every transfer.
#include "rendezvous/rendezvous_shard.h"

#include <algorithm>
#include <utility>

namespace ferry {

// One line for every exchange, and one for the rest.
static_assert(sizeof(RendezvousShard) == size_t{2} * 64);

RendezvousShard::~RendezvousShard() {
  for (size_t i = 0; i < bucket_count(); ++i) {
    while (buckets_[i] != nullptr) PopFirst(&buckets_[i]);
  }
}

void RendezvousShard::Grow() {
  const size_t count = 4 * bucket_count();
  auto grown = std::make_unique<Item*[]>(count);
  for (size_t i = 0; i < bucket_count(); ++i) {
    for (Item* item = buckets_[i]; item != nullptr;) {
      Item* const next = item->next_in_bucket;
      Item*& head = grown[(item->key.hash() >> kShardBits) & (count - 1)];
      item->next_in_bucket = head;
      head = item;
      item = next;
    }
  }
  more_buckets_ = std::move(grown);
  buckets_ = more_buckets_.get();
  bucket_bits_ += 2;
}

RendezvousShard::ItemPtr RendezvousShard::TakeReceive(const RendezvousKey& key, uint64_t id) {
  Item** const link = Find(key);
  Item* const first = *link;
  if (first == nullptr || first->is_send) return nullptr;
  if (first->id == id) return PopFirst(link);
  for (Item* before = first; before->next_of_key != nullptr; before = before->next_of_key) {
    Item* const item = before->next_of_key;
    if (item->id != id) continue;
    before->next_of_key = item->next_of_key;
    if (first->last_of_key == item) first->last_of_key = before;
    Count(*item, -1);
    return ItemPtr(item);
  }
  return nullptr;
}

void RendezvousShard::TakeAll(absl::FunctionRef<bool(const Item&)> matches,
                              std::vector<ItemPtr>& taken) {
  for (size_t i = 0; i < bucket_count(); ++i) {
    Item** link = &buckets_[i];
    while (*link != nullptr) {
      // The items of one key, put back without those that match.
      Item* item = *link;
      Item* const rest = item->next_in_bucket;
      Item* first = nullptr;
      while (item != nullptr) {
        Item* const next = item->next_of_key;
        item->next_of_key = nullptr;
        item->next_in_bucket = nullptr;
        if (matches(*item)) {
          Count(*item, -1);
          taken.emplace_back(item);
        } else if (first == nullptr) {
          first = item;
          first->last_of_key = item;
        } else {
          first->last_of_key->next_of_key = item;
          first->last_of_key = item;
        }
        item = next;
      }
      if (first == nullptr) {
        *link = rest;
        continue;
      }
      first->next_in_bucket = rest;
      *link = first;
      link = &first->next_in_bucket;
    }
  }
}

void RendezvousShard::ForEach(absl::FunctionRef<void(const Item&)> visit) const {
  for (size_t i = 0; i < bucket_count(); ++i) {
    for (const Item* first = buckets_[i]; first != nullptr; first = first->next_in_bucket) {
      for (const Item* item = first; item != nullptr; item = item->next_of_key) visit(*item);
    }
  }
}

void RendezvousShard::AddDeadline(const Item& item) {
  // Entries of completed receives stay in the heap until they are the majority.
  if (deadlines.size() > 64 + 2 * item_count.load(std::memory_order_relaxed)) {
    const auto is_over = [this](const Deadline& deadline) {
      for (const Item* each = *Find(deadline.key); each != nullptr; each = each->next_of_key) {
        if (each->id == deadline.id) return false;
      }
      return true;
    };
    deadlines.erase(std::remove_if(deadlines.begin(), deadlines.end(), is_over), deadlines.end());
    std::make_heap(deadlines.begin(), deadlines.end());
  }
  deadlines.push_back({item.receive.args.deadline, item.id, item.key});
  std::push_heap(deadlines.begin(), deadlines.end());
}

void RendezvousShard::TakeDue(absl::Time now, std::vector<Deadline>& due) {
  while (!deadlines.empty() && deadlines.front().when <= now) {
    std::pop_heap(deadlines.begin(), deadlines.end());
    due.push_back(std::move(deadlines.back()));
    deadlines.pop_back();
  }
}

}  // namespace ferry
