// SPDX-License-Identifier: Apache-2.0
// The enabled events of the world, and the effects that follow without a choice.
#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"

#include "base/status_macros.h"
#include "tests/transport/nccl/grant_world.h"

namespace ferry::grant_test {

// An event that may as well happen now: it is independent of all that can come before it. It is
// enough to continue from it alone, which makes the search much smaller.
std::optional<Event> World::IndifferentEvent() const {
  if (!ground_->options.reductions.indifferent_events) return std::nullopt;
  for (int from = 0; from < static_cast<int>(devices_.size()); ++from) {
    for (int to = 0; to < static_cast<int>(devices_.size()); ++to) {
      if (channel(from, to).empty()) continue;
      if (IsIndifferent(channel(from, to).front(), from, to)) {
        return Event{Event::Kind::kDeliver, from, to};
      }
    }
  }
  for (size_t i = 0; i < communicators_->size(); ++i) {
    if (!IsOfNoUse((*communicators_)[i])) continue;
    for (const int device : (*communicators_)[i].devices) {
      if (((devices_[device].opened | devices_[device].freed) >> i & 1) == 0) {
        return Event{Event::Kind::kOpen, device, static_cast<int>(i)};
      }
    }
  }
  return std::nullopt;
}

bool World::IsIndifferent(const Item& item, int from, int to) const {
  // Whether it arrives at all matters once its sender may be dead.
  const bool arrives = deaths_left_ == 0 && devices_[from].is_alive;
  // A device with the larger id only waits for the grant when it receives a transfer descriptor,
  // and the grant comes after it; unless the transfer may be cancelled.
  if (item.message == nullptr) return arrives && from < to && cancels_left_ == 0;
  if (item.descriptor >= 0) return false;
  // It ends transfers that nothing else can end any more.
  if (item.message->kind == BatchAgreementMessageKind::kDone && arrives) return true;
  // A message without effect now never has one, so its arrival does not matter: answers and DONE
  // name a batch, and names are not reused; CANCEL of transfers that the receiver has known, which
  // do not come back, and of one that is agreed, which does not become pending again; BREAK and
  // SETTLED of a communicator that does not open again under its generation; and a GRANT has no
  // effect only if its communicator is over.
  return Hear(item, to).changes_nothing;
}

// No transfer can go over it, nothing can fail on it, and no device can die: whether it is open is
// all that it changes, now or later, and late messages of earlier generations have no effect in
// either case.
bool World::IsOfNoUse(const Communicator& communicator) const {
  if (deaths_left_ > 0 || failed_opens_left_ > 0 || communicator.is_given_up) return false;
  for (size_t i = 0; i < transfers_->size(); ++i) {
    const TransferKey& key = (*transfers_)[i].key;
    const auto has = [&communicator](DeviceId device) {
      return std::find(communicator.devices.begin(), communicator.devices.end(), device.value()) !=
             communicator.devices.end();
    };
    if (has(key.source) && has(key.destination) &&
        !(outcomes_[i].ended[0].has_value() && outcomes_[i].ended[1].has_value())) {
      return false;
    }
  }
  for (const int device : communicator.devices) {
    if (!devices_[device].is_alive) return false;
  }
  return true;
}

// Transfers that no device has received yet, in the same direction, can be swapped (with their ids
// and sizes) without a difference: endpoints compare ids and sizes only for equality, and for how
// much fits into a batch, where these are all the same. So it is enough that the first of them is
// matched first.
bool World::HasEqualBefore(size_t transfer) const {
  if (!ground_->options.reductions.equal_transfers) return false;
  const TransferKey& key = (*transfers_)[transfer].key;
  for (size_t i = 0; i < transfer; ++i) {
    const TransferKey& other = (*transfers_)[i].key;
    if (!outcomes_[i].is_matched && other.source == key.source &&
        other.destination == key.destination) {
      return true;
    }
  }
  return false;
}

bool World::CanMeet() const {
  for (size_t i = 0; i < devices_.size(); ++i) {
    const Device& device = devices_[i];
    if ((ground_->options.collective >> i & 1) == 0 || !device.is_alive) continue;
    if (!device.has_joined || !device.known->endpoint.is_quiet() || !device.stream.empty())
      return false;
  }
  return ground_->options.collective != 0 && !has_met_;
}

std::vector<Event> World::Enabled() const {
  if (const std::optional<Event> one = IndifferentEvent(); one.has_value()) return {*one};
  std::vector<Event> events;
  using Kind = Event::Kind;
  const int count = static_cast<int>(devices_.size());
  if (CanMeet()) events.push_back({Kind::kMeet});
  for (size_t i = 0; i < transfers_->size(); ++i) {
    const int source = (*transfers_)[i].key.source.value();
    const int destination = (*transfers_)[i].key.destination.value();
    const int index = static_cast<int>(i);
    if (!outcomes_[i].is_matched && devices_[source].is_alive && !HasEqualBefore(i)) {
      events.push_back({Kind::kMatch, index});
    }
    for (const bool side : {false, true}) {
      if (cancels_left_ > 0 && devices_[side ? destination : source].is_alive &&
          outcomes_[i].is_added[side] && !outcomes_[i].ended[side].has_value()) {
        events.push_back({Kind::kCancel, index, 0, side});
      }
    }
  }
  for (int device = 0; device < count; ++device) {
    const Device& self = devices_[device];
    for (int to = 0; to < count; ++to) {
      if (!channel(device, to).empty()) events.push_back({Kind::kDeliver, device, to});
    }
    if (!self.is_alive) {
      for (int other = 0; other < count; ++other) {
        if (devices_[other].is_alive && (devices_[other].knows_dead >> device & 1) == 0) {
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
    if ((ground_->options.collective >> device & 1) != 0) {
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
      if ((*communicators_)[i].is_given_up && ground_->options.hears_of_failed_opens &&
          ((self.flagged | self.freed) >> i & 1) == 0) {
        events.push_back({Kind::kHearGivenUp, device, index});
      }
    }
  }
  return events;
}

// A communicator that is over is followed by one of the live devices, made by all of them.
void World::SucceedCommunicators() {
  for (size_t i = 0; i < communicators_->size(); ++i) {
    if ((*communicators_)[i].has_successor) continue;
    const uint64_t bit = uint64_t{1} << i;
    bool is_over = true;
    bool has_ended = false;
    Communicator next;
    for (const int device : (*communicators_)[i].devices) {
      const Device& member = devices_[device];
      has_ended |= !member.is_alive || (member.freed & bit) != 0;
    }
    for (const int device : (*communicators_)[i].devices) {
      const Device& member = devices_[device];
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
  if (!ground_->options.runs_again) return;
  for (size_t i = 0; i < outcomes_.size(); ++i) {
    const Outcome& outcome = outcomes_[i];
    if (outcome.is_run_again || outcome.ended[0] != absl::StatusCode::kAborted ||
        outcome.ended[1] != absl::StatusCode::kAborted) {
      continue;
    }
    outcomes_[i].is_run_again = true;
    BatchAgreementTransfer again = (*transfers_)[i];
    again.key.id += 1000;
    transfers_.Edit().push_back(again);
    outcomes_.emplace_back();
  }
}

}  // namespace ferry::grant_test
