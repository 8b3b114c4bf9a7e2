// SPDX-License-Identifier: Apache-2.0
// Explores every execution of a small world, and checks the invariants at each end.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/table_sizes.h"
#include "tests/transport/nccl/grant_world.h"

namespace ferry::grant_test {

std::string World::Describe(const Event& event) const {
  switch (event.kind) {
    case Event::Kind::kMatch:
      return absl::StrCat("match ", ferry::Describe((*transfers_)[event.index].key));
    case Event::Kind::kDeliver: {
      const Item& item = channel(event.index, event.other).front();
      std::string text = "deliver ";
      if (item.descriptor >= 0) {
        absl::StrAppend(&text, "descriptor of ",
                        ferry::Describe((*transfers_)[item.descriptor].key),
                        item.message != nullptr ? " with " : "");
      }
      if (item.message != nullptr) absl::StrAppend(&text, ferry::Describe(*item.message));
      return text;
    }
    case Event::Kind::kComplete:
      return absl::StrCat("device ", event.index, " completes batch ",
                          devices_[event.index].stream[0].batch->name.serial, " with device ",
                          devices_[event.index].stream[0].batch->peer.value());
    case Event::Kind::kFail:
      return absl::StrCat("NCCL fails on device ", event.index);
    case Event::Kind::kThrowOut:
      return absl::StrCat("an aborted batch returns on device ", event.index);
    case Event::Kind::kThrowOutLate:
      return absl::StrCat("an aborted batch returns on device ", event.index, ", complete");
    case Event::Kind::kDie:
      return absl::StrCat("device ", event.index, " dies");
    case Event::Kind::kNotice:
      return absl::StrCat("device ", event.index, " hears that device ", event.other, " is dead");
    case Event::Kind::kOpen:
      return absl::StrCat("device ", event.index, " opens ",
                          ferry::Describe((*communicators_)[event.other].name));
    case Event::Kind::kGiveUp:
      return absl::StrCat("device ", event.index, " cannot open ",
                          ferry::Describe((*communicators_)[event.other].name));
    case Event::Kind::kHearGivenUp:
      return absl::StrCat("device ", event.index, " hears that another one cannot open ",
                          ferry::Describe((*communicators_)[event.other].name));
    case Event::Kind::kCancel:
      return absl::StrCat("cancel ", ferry::Describe((*transfers_)[event.index].key), " at the ",
                          event.choice ? "destination" : "source");
    case Event::Kind::kPause:
      return absl::StrCat("device ", event.index, " is to become quiet");
    case Event::Kind::kResume:
      return absl::StrCat("device ", event.index, " goes on");
    case Event::Kind::kJoin:
      return absl::StrCat("device ", event.index, " is to take part in the collective");
    case Event::Kind::kMeet:
      return "the collective runs";
    case Event::Kind::kLeave:
      return absl::StrCat("device ", event.index, " goes on after the collective");
  }
  return "";
}

std::string World::CheckEnd() const {
  std::vector<std::string> wrong;
  for (size_t i = 0; i < transfers_->size(); ++i) {
    const Outcome& outcome = outcomes_[i];
    const bool alive[2] = {devices_[(*transfers_)[i].key.source.value()].is_alive,
                           devices_[(*transfers_)[i].key.destination.value()].is_alive};
    for (const int side : {0, 1}) {
      if (alive[side] && outcome.is_added[side] && !outcome.ended[side].has_value()) {
        wrong.push_back(absl::StrCat(ferry::Describe((*transfers_)[i].key),
                                     " has not ended at the ",
                                     side == 0 ? "source" : "destination"));
      }
    }
    if (!alive[0] || !alive[1] || !outcome.ended[0].has_value() || !outcome.ended[1].has_value()) {
      continue;
    }
    if ((*outcome.ended[0] == absl::StatusCode::kOk) !=
        (*outcome.ended[1] == absl::StatusCode::kOk)) {
      wrong.push_back(absl::StrCat(ferry::Describe((*transfers_)[i].key), " is ",
                                   absl::StatusCodeToString(*outcome.ended[0]), " at the source, ",
                                   absl::StatusCodeToString(*outcome.ended[1]),
                                   " at the destination"));
    } else if (*outcome.ended[0] != absl::StatusCode::kOk && !has_failed_ &&
               !outcome.is_cancelled) {
      wrong.push_back(absl::StrCat(ferry::Describe((*transfers_)[i].key), " failed for no reason"));
    }
  }
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (!devices_[i].is_alive) continue;
    if ((ground_->options.collective >> i & 1) != 0 && !devices_[i].has_left) {
      wrong.push_back(absl::StrCat("device ", i, " waits for the collective"));
    }
    if (!devices_[i].known->endpoint.is_idle())
      wrong.push_back(absl::StrCat("device ", i, " waits"));
    if (const std::string left = NonEmptyTables(devices_[i].known->endpoint.InnerTableSizes());
        !left.empty()) {
      wrong.push_back(absl::StrCat("device ", i, " still has ", left));
    }
    for (const Running& running : devices_[i].stream) {
      wrong.push_back(absl::StrCat("device ", i, " runs batch ", running.batch->name.serial, " of ",
                                   ferry::Describe(running.batch->name.granter), " with ",
                                   ferry::Describe(running.batch->peer)));
    }
    for (const std::string& line : devices_[i].known->endpoint.Pending()) wrong.push_back(line);
  }
  return absl::StrJoin(wrong, "; ");
}

// Dead devices are not compared. Of transfers that are over on both sides only success matters, and
// for failed ones whether they have been cancelled.
void World::AddOutcome(size_t index, size_t& hash) const {
  const auto add = [&hash](const auto&... values) { hash = absl::HashOf(hash, values...); };
  const Outcome& outcome = outcomes_[index];
  const TransferKey& key = (*transfers_)[index].key;
  add(key);
  const auto code = [&outcome](int side) {
    return outcome.ended[side].has_value() ? static_cast<int>(*outcome.ended[side]) : -1;
  };
  if (!ground_->options.reductions.forgets_ends) {
    add(outcome.is_matched, outcome.is_cancelled, outcome.is_added[0], outcome.is_added[1], code(0),
        code(1));
    return;
  }
  const bool alive[2] = {is_alive(key.source.value()), is_alive(key.destination.value())};
  if (alive[0] && alive[1] && outcome.ended[0].has_value() && outcome.ended[1].has_value()) {
    const bool is_ok[2] = {code(0) == 0, code(1) == 0};
    add(is_ok[0], is_ok[1], is_ok[0] && is_ok[1] ? false : outcome.is_cancelled);
    return;
  }
  add(alive[0] && outcome.is_matched, outcome.is_cancelled);
  for (const int side : {0, 1}) {
    add(alive[side] && outcome.is_added[side], alive[side] ? code(side) : -1);
  }
}

// Transfers in the same direction may have been swapped.
std::string World::DescribeEnd() const {
  std::vector<std::string> parts;
  for (size_t i = 0; i < outcomes_.size(); ++i) {
    const Outcome& outcome = outcomes_[i];
    const TransferKey& key = (*transfers_)[i].key;
    std::string part = absl::StrCat(key.source.value(), ">", key.destination.value());
    const int sides[2] = {key.source.value(), key.destination.value()};
    for (const int side : {0, 1}) {
      if (!is_alive(sides[side])) {
        absl::StrAppend(&part, " dead");
      } else if (!outcome.is_added[side]) {
        absl::StrAppend(&part, " unknown");
      } else if (!outcome.ended[side].has_value()) {
        absl::StrAppend(&part, " open");
      } else {
        absl::StrAppend(&part, *outcome.ended[side] == absl::StatusCode::kOk ? " OK" : " not OK");
      }
    }
    parts.push_back(std::move(part));
  }
  std::sort(parts.begin(), parts.end());
  return absl::StrJoin(parts, ", ");
}

size_t World::Hash() const {
  size_t hash = 0;
  const auto add = [&hash](const auto&... values) { hash = absl::HashOf(hash, values...); };
  for (const Device& device : devices_) {
    add(device.is_alive ? device.known->hash : 0, device.is_alive, device.is_paused,
        device.has_joined, device.has_left, device.knows_dead, device.opened, device.flagged,
        device.aborted, device.freed);
    for (const Running& running : device.stream) {
      add(running.hash, running.has_data, running.is_stuck);
    }
  }
  for (const ControlChannel& channel : channels_) {
    add(channel.empty());
    for (const Item& item : channel) add(item.hash);
  }
  for (size_t i = 0; i < outcomes_.size(); ++i) AddOutcome(i, hash);
  for (const Communicator& communicator : *communicators_) {
    add(communicator.name, communicator.is_given_up);
  }
  add(deaths_left_, errors_left_, cancels_left_, failed_opens_left_, pauses_left_, has_met_);
  return hash;
}

namespace {

// Depth first: few worlds are pending, and the last of them are in the cache.
SearchResult FindOut(const WorldOptions& options, int64_t max_states) {
  static FakeClock& clock = *new FakeClock;
  SearchResult result;
  absl::flat_hash_set<size_t> seen;
  std::vector<World> open;
  open.emplace_back(options, clock);
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
    if (!has_to_go_on) {
      ++result.ends[world.DescribeEnd()];
      result.end_states.insert(world.Hash());
      if (result.violation.empty()) result.violation = world.CheckEnd();
    }
    if (static_cast<int64_t>(seen.size()) > max_states) break;
  }
  result.states = static_cast<int64_t>(seen.size());
  result.is_complete = open.empty();
  return result;
}

// Nearest first.
SearchResult FindNearest(const WorldOptions& options, int64_t max_states) {
  static FakeClock& clock = *new FakeClock;
  struct Step {
    size_t parent = 0;
    Event event;
  };
  const World start(options, clock);
  absl::flat_hash_map<size_t, Step> seen;
  seen.emplace(start.Hash(), Step{});
  std::vector<std::pair<size_t, World>> level;
  level.emplace_back(start.Hash(), start);
  SearchResult result;

  const auto stop = [&](std::string violation, size_t at) {
    std::vector<Event> events;
    for (size_t hash = at; hash != start.Hash(); hash = seen.find(hash)->second.parent) {
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

  while (!level.empty()) {
    std::vector<std::pair<size_t, World>> next_level;
    for (const auto& [hash, world] : level) {
      const std::vector<Event> events = world.Enabled();
      bool has_to_go_on = false;
      for (const Event& event : events) {
        has_to_go_on |= !IsMischief(event);
        World next = world;
        next.Apply(event);
        const size_t next_hash = next.Hash();
        if (!seen.emplace(next_hash, Step{hash, event}).second) continue;
        if (!next.violation().empty()) return stop(next.violation(), next_hash);
        next_level.emplace_back(next_hash, std::move(next));
      }
      if (!has_to_go_on) {
        if (std::string wrong = world.CheckEnd(); !wrong.empty()) return stop(wrong, hash);
      }
      if (static_cast<int64_t>(seen.size()) > max_states) {
        result.states = static_cast<int64_t>(seen.size());
        return result;
      }
    }
    level = std::move(next_level);
  }
  result.states = static_cast<int64_t>(seen.size());
  result.is_complete = true;
  return result;
}

}  // namespace

SearchResult Search(const WorldOptions& options, int64_t max_states) {
  const SearchResult result = FindOut(options, max_states);
  return result.violation.empty() ? result : FindNearest(options, max_states);
}

}  // namespace ferry::grant_test
