// SPDX-License-Identifier: Apache-2.0
// Groups keys by rank.
#include "coord/tcpstore/tcp_store_missing.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"

namespace ferry::coord {
namespace {

// Larger numbers are not taken for ranks, which also bounds the ranks of an entry.
constexpr int kMaxRank = 1 << 16;
// The number of groups for which the store's keys are listed.
constexpr size_t kMaxGroups = 64;

std::optional<int> RankOf(absl::string_view text) {
  int rank = 0;
  const bool is_plain = !text.empty() && (text == "0" || text[0] != '0') &&
                        text.find_first_not_of("0123456789") == absl::string_view::npos;
  if (!is_plain || !absl::SimpleAtoi(text, &rank) || rank > kMaxRank) return std::nullopt;
  return rank;
}

struct RankKey {
  // The key up to and including the last slash.
  std::string group;
  int rank = 0;
};

// ProcessGroupNCCL's keys end in the number of a communicator, not a rank:
// "/default_pg/0//cuda//1". They are recognized by the empty component before it.
std::optional<RankKey> AsRankKey(absl::string_view key) {
  const size_t slash = key.rfind('/');
  if (slash == absl::string_view::npos || slash == 0 || key[slash - 1] == '/') return std::nullopt;
  const std::optional<int> rank = RankOf(key.substr(slash + 1));
  if (!rank.has_value()) return std::nullopt;
  return RankKey{std::string(key.substr(0, slash + 1)), *rank};
}

// Keys that differ only in the rank.
struct Group {
  std::set<int> waited_for;
  std::set<int> present;
  // `present` has all ranks whose keys exist.
  bool is_complete = true;

  // Ranks begin at 0, while other numbers need not ("step/12"), and a group has more than one key.
  bool has_ranks() const {
    return !present.empty() && (present.contains(0) || waited_for.contains(0));
  }
};

std::map<std::string, Group> GroupsOf(const std::vector<TcpStoreWaitInfo>& waits,
                                      ForEachTcpStoreKey for_each_key) {
  std::map<std::string, Group> groups;
  for (const TcpStoreWaitInfo& wait : waits) {
    if (wait.is_barrier) continue;
    for (size_t i = 0; i < std::min(wait.keys.size(), kMaxMissingKeysOfWait); ++i) {
      const std::optional<RankKey> key = AsRankKey(wait.keys[i]);
      if (!key.has_value()) continue;
      if (groups.size() == kMaxGroups && !groups.contains(key->group)) continue;
      groups[key->group].waited_for.insert(key->rank);
    }
  }
  size_t left = kMaxKeysListedForRanks;
  for (auto& [name, group] : groups) {
    for_each_key(name, [&left, &name = name, &group = group](absl::string_view key) {
      const std::optional<int> rank = RankOf(key.substr(name.size()));
      if (rank.has_value()) group.present.insert(*rank);
      group.is_complete = left > 0;
      if (left > 0) --left;
      return group.is_complete;
    });
  }
  return groups;
}

// The ranks that are waited for, and those below the largest one that has set its key.
std::vector<int> MissingRanks(const Group& group) {
  std::vector<int> missing;
  const int last = std::max(*group.present.rbegin(), *group.waited_for.rbegin());
  for (int rank = 0; rank <= last; ++rank) {
    const bool is_absent =
        group.is_complete && rank < *group.present.rbegin() && !group.present.contains(rank);
    if (is_absent || group.waited_for.contains(rank)) missing.push_back(rank);
  }
  return missing;
}

struct Entry {
  MissingTcpStoreKey missing;
  // The last wait that was counted, since a wait may name several keys of a group.
  const TcpStoreWaitInfo* counted = nullptr;
};

}  // namespace

std::vector<MissingTcpStoreKey> MissingTcpStoreKeys(const std::vector<TcpStoreWaitInfo>& waits,
                                                    ForEachTcpStoreKey for_each_key,
                                                    size_t max_keys) {
  const std::map<std::string, Group> groups = GroupsOf(waits, for_each_key);
  // Keyed by group, or by the key if it has none.
  std::map<std::string, Entry> entries;
  for (const TcpStoreWaitInfo& wait : waits) {
    for (size_t i = 0; i < std::min(wait.keys.size(), kMaxMissingKeysOfWait); ++i) {
      const std::string& key = wait.keys[i];
      const std::optional<RankKey> rank_key = wait.is_barrier ? std::nullopt : AsRankKey(key);
      const auto group = rank_key.has_value() ? groups.find(rank_key->group) : groups.end();
      const bool is_of_group = group != groups.end() && group->second.has_ranks();
      const auto [at, is_new] = entries.try_emplace(is_of_group ? group->first : key);
      Entry& entry = at->second;
      if (is_new) {
        entry.missing = {.key = key,
                         .ranks = is_of_group ? MissingRanks(group->second) : std::vector<int>(),
                         .since = wait.since,
                         .world_size = wait.world_size,
                         .arrived = wait.arrived};
      }
      entry.missing.since = std::min(entry.missing.since, wait.since);
      if (std::exchange(entry.counted, &wait) != &wait) ++entry.missing.clients;
    }
  }
  std::vector<MissingTcpStoreKey> missing;
  for (auto& [name, entry] : entries) missing.push_back(std::move(entry.missing));
  std::stable_sort(missing.begin(), missing.end(),
                   [](const MissingTcpStoreKey& a, const MissingTcpStoreKey& b) {
                     return a.clients > b.clients;
                   });
  if (missing.size() > max_keys) missing.resize(max_keys);
  return missing;
}

}  // namespace ferry::coord
