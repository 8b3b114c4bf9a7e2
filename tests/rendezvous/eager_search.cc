// SPDX-License-Identifier: Apache-2.0
// Explores every execution of a small world of the eager protocol.
#include <algorithm>
#include <random>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

#include "tests/rendezvous/eager_world.h"

namespace ferry::eager_test {
namespace {

// Depth first: few worlds are pending, and the last of them are in the cache.
SearchResult FindOut(const WorldOptions& options, int64_t max_states) {
  SearchResult result;
  absl::flat_hash_set<uint64_t> seen;
  std::vector<World> open;
  open.emplace_back(options);
  seen.insert(open.back().Hash());
  while (!open.empty() && result.violation.empty()) {
    const World world = std::move(open.back());
    open.pop_back();
    bool has_to_go_on = false;
    for (const Event& event : world.Enabled()) {
      has_to_go_on |= !IsMischief(event);
      World next = world;
      next.Apply(event);
      if (!seen.insert(next.Hash()).second) continue;
      if (!next.violation().empty()) result.violation = next.violation();
      open.push_back(std::move(next));
    }
    if (!has_to_go_on && result.violation.empty()) result.violation = world.CheckEnd();
    if (static_cast<int64_t>(seen.size()) > max_states) break;
  }
  result.states = static_cast<int64_t>(seen.size());
  result.is_complete = open.empty();
  return result;
}

// Nearest first, with the trace to the violation.
SearchResult FindNearest(const WorldOptions& options, int64_t max_states) {
  struct Step {
    uint64_t parent = 0;
    Event event;
  };
  const World start(options);
  absl::flat_hash_map<uint64_t, Step> seen;
  seen.emplace(start.Hash(), Step{});
  std::vector<std::pair<uint64_t, World>> level;
  level.emplace_back(start.Hash(), start);
  SearchResult result;
  const auto stop = [&](std::string violation, uint64_t at) {
    std::vector<Event> events;
    for (uint64_t hash = at; hash != start.Hash(); hash = seen.find(hash)->second.parent) {
      events.push_back(seen.find(hash)->second.event);
    }
    World world = start;
    for (auto event = events.rbegin(); event != events.rend(); ++event) {
      result.trace.push_back(world.Describe(*event));
      world.Apply(*event);
    }
    result.violation = std::move(violation);
    result.states = static_cast<int64_t>(seen.size());
    return result;
  };
  while (!level.empty() && static_cast<int64_t>(seen.size()) <= max_states) {
    std::vector<std::pair<uint64_t, World>> next_level;
    for (const auto& [hash, world] : level) {
      bool has_to_go_on = false;
      for (const Event& event : world.Enabled()) {
        has_to_go_on |= !IsMischief(event);
        World next = world;
        next.Apply(event);
        const uint64_t next_hash = next.Hash();
        if (!seen.emplace(next_hash, Step{hash, event}).second) continue;
        if (!next.violation().empty()) return stop(next.violation(), next_hash);
        next_level.emplace_back(next_hash, std::move(next));
      }
      if (has_to_go_on) continue;
      if (std::string wrong = world.CheckEnd(); !wrong.empty()) return stop(wrong, hash);
    }
    level = std::move(next_level);
  }
  result.states = static_cast<int64_t>(seen.size());
  return result;
}

}  // namespace

SearchResult Search(const WorldOptions& options, int64_t max_states) {
  const SearchResult result = FindOut(options, max_states);
  return result.violation.empty() ? result : FindNearest(options, max_states);
}

SearchResult RunAtRandom(const WorldOptions& options, uint64_t seed) {
  std::mt19937_64 random(seed);
  SearchResult result;
  World world(options);
  for (;;) {
    std::vector<Event> must;
    std::vector<Event> may;
    for (const Event& event : world.Enabled()) (IsMischief(event) ? may : must).push_back(event);
    if (must.empty()) break;
    const std::vector<Event>& events = !may.empty() && random() % 64 == 0 ? may : must;
    const Event event = events[random() % events.size()];
    result.trace.push_back(world.Describe(event));
    world.Apply(event);
    ++result.states;
    if (!world.violation().empty()) break;
  }
  result.violation = world.violation().empty() ? world.CheckEnd() : world.violation();
  result.is_complete = true;
  return result;
}

}  // namespace ferry::eager_test
