// SPDX-License-Identifier: Apache-2.0
// StoreWatches: finds the watches affected by a change of a key.
#ifndef FERRY_COORD_CORE_STORE_WATCHES_H_
#define FERRY_COORD_CORE_STORE_WATCHES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

#include "base/strong_id.h"

namespace ferry::coord {

struct StoreEvent;
using StoreWatch = StrongId<struct StoreWatchTag, uint64_t>;

// Not thread-safe: part of a Store. The cost of a change depends on the affected watches, not on
// their total number.
class StoreWatches final {
 public:
  using Callback = std::function<void(const StoreEvent&)>;
  // The watches of one prefix, in the order in which they were added. Immutable; shared with
  // changes that are still to be delivered.
  using List = std::shared_ptr<const std::vector<Callback>>;

  StoreWatch Add(std::string prefix, Callback callback);
  void Remove(StoreWatch watch);

  // Returns the lists of all watched prefixes of `key`; the longest prefix first.
  std::vector<List> Of(absl::string_view key);
  // Returns the total number of these watches.
  size_t CountOf(absl::string_view key);
  size_t count() const { return prefixes_.size(); }
  // The number of prefix lookups for changes so far, which is their total cost.
  uint64_t lookups() const { return lookups_; }
  // The number of watched prefixes.
  size_t prefix_count() const { return groups_.size(); }

 private:
  struct Group {
    absl::btree_map<StoreWatch, Callback> watches;
    // Built on demand; null after a change.
    List list;
  };
  using Groups = std::map<std::string, Group, std::less<>>;

  void Visit(absl::string_view key, absl::FunctionRef<void(Group&)> visit);

  Groups groups_;
  absl::flat_hash_map<StoreWatch, Groups::iterator> prefixes_;
  uint64_t last_ = 0;
  uint64_t lookups_ = 0;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_STORE_WATCHES_H_
