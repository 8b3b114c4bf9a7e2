// SPDX-License-Identifier: Apache-2.0
// What can happen next in the world, and what follows by itself.
#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"

#include "base/status_macros.h"
#include "tests/transport/nccl/grant_world.h"

namespace ferry::grant_test {

// Deliveries that may as well happen now: no other event that can come before them at their device
// cares. It is enough to go on from each of them alone, which makes the search much smaller.
std::optional<Event> World::IndifferentDelivery() const {
  for (int from = 0; from < static_cast<int>(devices_.size()); ++from) {
    for (int to = 0; to < static_cast<int>(devices_.size()); ++to) {
      if (lane(from, to).empty()) continue;
      if (IsIndifferent(lane(from, to).front(), from, to)) {
        return Event{Event::Kind::kDeliver, from, to};
      }
    }
  }
  return std::nullopt;
}

bool World::IsIndifferent(const Item& item, int from, int to) const {
  // Whether it arrives at all matters once its sender may be dead.
  const bool arrives = deaths_left_ == 0 && devices_[from]->is_alive;
  // All that a device with the larger id does with a ticket is to wait for the grant, which comes
  // after it; unless the transfer may be cancelled.
  if (item.message == nullptr) return arrives && from < to && cancels_left_ == 0;
  switch (item.message->kind) {
    case GrantMessageKind::kDone:
      // It ends transfers that nothing else can end any more.
      return arrives;
    case GrantMessageKind::kBreak:
    case GrantMessageKind::kSettled: {
      // What is no news now never is.
      GrantEndpoint endpoint = *devices_[to]->endpoint;
      GrantActions actions;
      (void)endpoint.OnMessage(*item.message, actions);
      return actions.empty() && absl::HashOf(endpoint) == devices_[to]->hash;
    }
    default:
      return false;
  }
}

bool World::CanMeet() const {
  for (size_t i = 0; i < devices_.size(); ++i) {
    const Device& device = *devices_[i];
    if ((options_->collective >> i & 1) == 0 || !device.is_alive) continue;
    if (!device.has_joined || !device.endpoint->is_quiet() || !device.stream.empty()) return false;
  }
  return options_->collective != 0 && !has_met_;
}

std::vector<Event> World::Enabled() const {
  if (const std::optional<Event> one = IndifferentDelivery(); one.has_value()) return {*one};
  std::vector<Event> events;
  using Kind = Event::Kind;
  const int count = static_cast<int>(devices_.size());
  if (CanMeet()) events.push_back({Kind::kMeet});
  for (size_t i = 0; i < transfers_->size(); ++i) {
    const int source = (*transfers_)[i].key.source.value();
    const int destination = (*transfers_)[i].key.destination.value();
    const int index = static_cast<int>(i);
    if (!outcomes_[i].is_matched && devices_[source]->is_alive) {
      events.push_back({Kind::kMatch, index});
    }
    for (const bool side : {false, true}) {
      if (cancels_left_ > 0 && devices_[side ? destination : source]->is_alive &&
          outcomes_[i].is_added[side] && !outcomes_[i].ended[side].has_value()) {
        events.push_back({Kind::kCancel, index, 0, side});
      }
    }
  }
  for (int device = 0; device < count; ++device) {
    const Device& self = *devices_[device];
    for (int to = 0; to < count; ++to) {
      if (!lane(device, to).empty()) events.push_back({Kind::kDeliver, device, to});
    }
    if (!self.is_alive) {
      for (int other = 0; other < count; ++other) {
        if (devices_[other]->is_alive && (devices_[other]->knows_dead >> device & 1) == 0) {
          events.push_back({Kind::kNotice, other, device});
        }
      }
      continue;
    }
    const std::optional<size_t> aborted = FirstAborted(device);
    const bool is_running = IsRunning(device);
    if (aborted.has_value()) {
      events.push_back({Kind::kThrowOut, device, static_cast<int>(*aborted), false});
      if (*aborted == 0 && is_running) {
        events.push_back({Kind::kThrowOutLate, device, 0});
        if (!self.stream[0].has_data) events.push_back({Kind::kThrowOut, device, 0, true});
      }
    }
    if (!self.stream.empty() && aborted != size_t{0}) {
      if (is_running) events.push_back({Kind::kComplete, device});
      if (errors_left_ > 0) {
        events.push_back({Kind::kFail, device, 0, false});
        if (is_running && !self.stream[0].has_data) {
          events.push_back({Kind::kFail, device, 0, true});
        }
      }
    }
    if (self.is_paused && self.stream.empty()) events.push_back({Kind::kResume, device});
    if (!self.is_paused && pauses_left_ > 0) events.push_back({Kind::kPause, device});
    if ((options_->collective >> device & 1) != 0) {
      if (!self.has_joined) events.push_back({Kind::kJoin, device});
      if (self.has_joined && has_met_ && !self.has_left) events.push_back({Kind::kLeave, device});
    }
    if (deaths_left_ > 0) {
      events.push_back({Kind::kDie, device, 0, false});
      if (is_running && !self.stream[0].has_data) events.push_back({Kind::kDie, device, 0, true});
    }
    for (size_t i = 0; i < communicators_->size(); ++i) {
      const std::vector<int>& members = (*communicators_)[i].devices;
      if (std::find(members.begin(), members.end(), device) == members.end()) continue;
      const int index = static_cast<int>(i);
      if (((self.opened | self.freed) >> i & 1) == 0) {
        events.push_back({Kind::kOpen, device, index});
        if (failed_opens_left_ > 0) events.push_back({Kind::kGiveUp, device, index});
      }
      if ((*communicators_)[i].is_given_up && options_->hears_of_failed_opens &&
          ((self.flagged | self.freed) >> i & 1) == 0) {
        events.push_back({Kind::kHearGivenUp, device, index});
      }
    }
  }
  return events;
}

// A communicator that is over has a next one of those devices that live, made by all of them.
void World::SucceedCommunicators() {
  for (size_t i = 0; i < communicators_->size(); ++i) {
    if ((*communicators_)[i].has_successor) continue;
    const uint64_t bit = uint64_t{1} << i;
    bool is_over = true;
    bool has_ended = false;
    Communicator next;
    for (const int device : (*communicators_)[i].devices) {
      const Device& member = *devices_[device];
      has_ended |= !member.is_alive || (member.freed & bit) != 0;
    }
    for (const int device : (*communicators_)[i].devices) {
      const Device& member = *devices_[device];
      if (!member.is_alive) continue;
      next.devices.push_back(device);
      next.name.id |= uint64_t{1} << device;
      is_over &= (member.freed & bit) != 0;
    }
    if (!is_over || !has_ended) continue;
    communicators_.Edit()[i].has_successor = true;
    if (next.devices.size() < 2) continue;
    next.name.generation = next.name.id == (*communicators_)[i].name.id
                               ? (*communicators_)[i].name.generation + 1
                               : (*communicators_)[i].name.generation;
    if (IndexOf(next.name) < 0) communicators_.Edit().push_back(std::move(next));
  }
  // One bit for each, at every device.
  FERRY_CHECK(communicators_->size() <= 64);
  if (!options_->runs_again) return;
  for (size_t i = 0; i < outcomes_.size(); ++i) {
    const Outcome& outcome = outcomes_[i];
    if (outcome.is_run_again || outcome.ended[0] != absl::StatusCode::kAborted ||
        outcome.ended[1] != absl::StatusCode::kAborted) {
      continue;
    }
    outcomes_[i].is_run_again = true;
    GrantTransfer again = (*transfers_)[i];
    again.key.id += 1000;
    transfers_.Edit().push_back(again);
    outcomes_.emplace_back();
  }
}

}  // namespace ferry::grant_test
