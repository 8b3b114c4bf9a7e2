// SPDX-License-Identifier: Apache-2.0
// Watches by prefix, in order.
#include "coord/core/store_watches.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ferry::coord {

StoreWatch StoreWatches::Add(std::string prefix, Callback callback) {
  const StoreWatch watch(++last_);
  const auto group = groups_.try_emplace(std::move(prefix)).first;
  group->second.watches.emplace(watch, std::move(callback));
  group->second.list = nullptr;
  prefixes_.emplace(watch, group);
  return watch;
}

void StoreWatches::Remove(StoreWatch watch) {
  const auto found = prefixes_.find(watch);
  if (found == prefixes_.end()) return;
  const Groups::iterator group = found->second;
  prefixes_.erase(found);
  group->second.watches.erase(watch);
  group->second.list = nullptr;
  if (group->second.watches.empty()) groups_.erase(group);
}

void StoreWatches::Visit(absl::string_view key, absl::FunctionRef<void(Group&)> visit) {
  // `rest` is a prefix of the key, and all longer watched prefixes have been visited. The last
  // watched prefix in order up to `rest` determines all that are prefixes of `rest`: it is the
  // longest of them itself, or they are prefixes of what it has in common with `rest`.
  for (absl::string_view rest = key;;) {
    ++lookups_;
    auto group = groups_.upper_bound(rest);
    if (group == groups_.begin()) return;
    --group;
    const absl::string_view prefix = group->first;
    const size_t common = static_cast<size_t>(std::distance(
        rest.begin(), std::mismatch(rest.begin(), rest.end(), prefix.begin(), prefix.end()).first));
    if (common == prefix.size()) {
      visit(group->second);
      if (common == 0) return;
      rest = rest.substr(0, common - 1);
    } else {
      rest = rest.substr(0, common);
    }
  }
}

std::vector<StoreWatches::List> StoreWatches::Of(absl::string_view key) {
  std::vector<List> lists;
  Visit(key, [&lists](Group& group) {
    if (group.list == nullptr) {
      auto list = std::make_shared<std::vector<Callback>>();
      list->reserve(group.watches.size());
      for (const auto& [watch, callback] : group.watches) list->push_back(callback);
      group.list = std::move(list);
    }
    lists.push_back(group.list);
  });
  return lists;
}

size_t StoreWatches::CountOf(absl::string_view key) {
  size_t count = 0;
  Visit(key, [&count](Group& group) { count += group.watches.size(); });
  return count;
}

}  // namespace ferry::coord
