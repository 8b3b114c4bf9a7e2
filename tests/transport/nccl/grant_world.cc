// SPDX-License-Identifier: Apache-2.0
// The events of the world, and their effects.
#include "tests/transport/nccl/grant_world.h"

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"

namespace ferry::grant_test {
World::World(const WorldOptions& options, const Clock& clock)
    : ground_(std::make_shared<Ground>(options)),
      outcomes_(options.transfers.size()),
      devices_(options.device_count),
      channels_(options.device_count * options.device_count),
      deaths_left_(options.deaths),
      errors_left_(options.errors),
      cancels_left_(options.cancels),
      failed_opens_left_(options.failed_opens),
      pauses_left_(options.pauses) {
  transfers_.Edit() = options.transfers;
  for (int i = 0; i < options.device_count; ++i) {
    devices_[i].known =
        ground_->steps.Know(BatchAgreementEndpoint(DeviceId(i), options.endpoint, clock));
  }
  const auto add = [this](std::vector<int> members) {
    uint64_t mask = 0;
    for (const int member : members) mask |= uint64_t{1} << member;
    communicators_.Edit().push_back({.name = {mask, 1}, .devices = std::move(members)});
  };
  if (options.has_pair_communicators) {
    for (int a = 0; a < options.device_count; ++a) {
      for (int b = a + 1; b < options.device_count; ++b) add({a, b});
    }
  } else {
    std::vector<int> all;
    for (int i = 0; i < options.device_count; ++i) all.push_back(i);
    add(all);
  }
  if (options.failed_opens > 0) return;
  for (int i = 0; i < static_cast<int>(communicators_->size()); ++i) {
    for (const int device : (*communicators_)[i].devices) Apply({Event::Kind::kOpen, device, i});
  }
}

template <typename Call, typename... What>
const GrantStep& World::Take(int device, Call call, Input input, const What&... what) const {
  return ground_->steps.Take(*devices_[device].known,
                             absl::HashOf(static_cast<int>(input), what...), call);
}

template <typename Call, typename... What>
void World::Happen(int device, Call call, Input input, const What&... what) {
  Perform(device, Take(
                      device,
                      [&call](BatchAgreementEndpoint& endpoint, BatchAgreementActions& actions) {
                        call(endpoint, actions);
                        return absl::OkStatus();
                      },
                      input, what...));
}

void World::Violate(std::string what) {
  if (violation_.empty()) violation_ = std::move(what);
}

int World::IndexOf(const CommunicatorName& name) const {
  for (size_t i = 0; i < communicators_->size(); ++i) {
    if ((*communicators_)[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

std::optional<size_t> World::FirstAborted(int device) const {
  const auto& stream = devices_[device].stream;
  for (size_t i = 0; i < stream.size(); ++i) {
    if (devices_[device].aborted >> stream[i].communicator & 1) return i;
  }
  return std::nullopt;
}

bool World::IsRunning(int device) const {
  const auto& stream = devices_[device].stream;
  if (stream.empty() || stream[0].is_stuck) return false;
  if (stream[0].has_data) return true;
  const Device& peer = devices_[stream[0].batch->peer.value()];
  return !peer.stream.empty() && !peer.stream[0].has_data && !peer.stream[0].is_stuck &&
         peer.stream[0].batch->name == stream[0].batch->name &&
         peer.stream[0].batch->peer.value() == device;
}

// NCCL matches by position: the first batches on both streams run, whatever they are.
void World::Check(int device) {
  const auto& stream = devices_[device].stream;
  if (stream.empty() || stream[0].has_data || stream[0].is_stuck) return;
  const AgreedBatch& mine = *stream[0].batch;
  const auto& other = devices_[mine.peer.value()].stream;
  if (other.empty() || other[0].has_data || other[0].is_stuck) return;
  const AgreedBatch& theirs = *other[0].batch;
  if (theirs.peer.value() != device || theirs.name.communicator != mine.name.communicator) return;
  // Aborted batches do not run.
  if (FirstAborted(device) == size_t{0} || FirstAborted(mine.peer.value()) == size_t{0}) return;
  if (mine.name != theirs.name || mine.operations != theirs.operations ||
      mine.is_first != theirs.is_first) {
    Violate(absl::StrCat("device ", device, " and device ", mine.peer.value(),
                         " run different batches: ", mine.name.serial, " of ",
                         ferry::Describe(mine.name.granter), " against ", theirs.name.serial,
                         " of ", ferry::Describe(theirs.name.granter)));
  }
}

void World::OnFinish(int device, const FinishTransfer& finish) {
  for (const Running& running : devices_[device].stream) {
    for (const BatchAgreementOperation& operation : running.batch->operations) {
      if (operation.key == finish.key) {
        Violate(absl::StrCat(ferry::Describe(finish.key), " is over while it runs"));
      }
    }
  }
  for (size_t i = 0; i < transfers_->size(); ++i) {
    if ((*transfers_)[i].key != finish.key) continue;
    const int side = finish.key.source.value() == device ? 0 : 1;
    if (outcomes_[i].ended[side].has_value()) {
      Violate(absl::StrCat(ferry::Describe(finish.key), " ends twice on device ", device));
    }
    outcomes_[i].ended[side] = finish.status.code();
    ++(finish.status.ok() ? finished_ok_ : finished_badly_);
    return;
  }
  Violate(absl::StrCat(ferry::Describe(finish.key), " ends, which never was"));
}

void World::Perform(int device, const GrantStep& step, size_t first_action) {
  Device& self = devices_[device];
  self.known = step.after;
  for (size_t i = first_action; i < step.actions.size(); ++i) {
    const GrantAction& action = step.actions[i];
    if (const auto* send = std::get_if<SendMessage>(&action)) {
      const int to = send->message.to.value();
      if (devices_[to].is_alive)
        channel(device, to).push_back({-1, &send->message, step.hashes[i]});
    } else if (const auto* launch = std::get_if<LaunchBatch>(&action)) {
      const int index = IndexOf(launch->batch.name.communicator);
      if (index < 0 || (self.opened >> index & 1) == 0 || (self.flagged >> index & 1) != 0) {
        Violate(absl::StrCat("device ", device, " launches on ",
                             ferry::Describe(launch->batch.name.communicator),
                             ", which is not open"));
        return;
      }
      ++launches_;
      self.stream.push_back({&launch->batch, step.hashes[i], index});
      if (self.stream.size() == 1) Check(device);
    } else if (const auto* finish = std::get_if<FinishTransfer>(&action)) {
      OnFinish(device, *finish);
    } else if (const auto* flag = std::get_if<FlagCommunicator>(&action)) {
      self.flagged |= uint64_t{1} << IndexOf(flag->name);
    } else if (const auto* abort = std::get_if<AbortCommunicator>(&action)) {
      const uint64_t bit = uint64_t{1} << IndexOf(abort->name);
      if ((self.flagged & bit) == 0) Violate("aborted before it was flagged");
      self.aborted |= bit;
    } else if (const auto* free = std::get_if<FreeCommunicator>(&action)) {
      const uint64_t bit = uint64_t{1} << IndexOf(free->name);
      if ((self.aborted & bit) == 0 || (self.freed & bit) != 0) Violate("freed at a wrong time");
      if (FirstAborted(device).has_value()) Violate("freed while an aborted one runs");
      self.freed |= bit;
    }
  }
}

void World::Return(int device, size_t position, bool is_ok, bool data_arrives) {
  Device& self = devices_[device];
  const Running running = self.stream[position];
  if (position == 0 && IsRunning(device) && !running.has_data) {
    Running& other = devices_[running.batch->peer.value()].stream[0];
    other.has_data = is_ok || data_arrives;
    other.is_stuck = !other.has_data;
  }
  self.stream.erase(self.stream.begin() + static_cast<int64_t>(position));
  Happen(
      device,
      [&](BatchAgreementEndpoint& endpoint, BatchAgreementActions& actions) {
        endpoint.Completed(running.batch->name,
                           is_ok ? absl::OkStatus() : absl::InternalError("unhandled error"),
                           actions);
      },
      Input::kCompleted, running.batch->name, is_ok);
  Check(device);
}

void World::Die(int device, bool data_arrives) {
  Device& self = devices_[device];
  if (IsRunning(device) && !self.stream[0].has_data) {
    Running& other = devices_[self.stream[0].batch->peer.value()].stream[0];
    other.has_data = data_arrives;
    other.is_stuck = !data_arrives;
  }
  self.is_alive = false;
  self.stream.clear();
  for (size_t from = 0; from < devices_.size(); ++from)
    channel(static_cast<int>(from), device).clear();
}

void World::Hold(int device) {
  Happen(
      device,
      [](BatchAgreementEndpoint& endpoint, BatchAgreementActions& actions) {
        endpoint.Pause(actions);
      },
      Input::kPause);
}

// Unless it has another reason to agree on nothing new.
void World::GoOn(int device) {
  const Device& self = devices_[device];
  if (self.is_paused || (self.has_joined && !self.has_left)) return;
  Happen(
      device,
      [](BatchAgreementEndpoint& endpoint, BatchAgreementActions& actions) {
        endpoint.Resume(actions);
      },
      Input::kResume);
}

void World::Match(int index) {
  outcomes_[index].is_matched = true;
  outcomes_[index].is_added[0] = true;
  const BatchAgreementTransfer& transfer = (*transfers_)[index];
  const int source = transfer.key.source.value();
  const int destination = transfer.key.destination.value();
  const GrantStep& step = Take(
      source,
      [&](BatchAgreementEndpoint& endpoint, BatchAgreementActions& actions) {
        return endpoint.Add(transfer, actions);
      },
      Input::kAdd, transfer.key);
  if (!step.status.ok()) Violate("Add has failed");
  // The transfer descriptor is sent first, and carries a grant for it.
  Item item = {index, nullptr, absl::HashOf(transfer.key)};
  if (!step.actions.empty()) {
    const auto* send = std::get_if<SendMessage>(&step.actions.front());
    if (send != nullptr && send->message.kind == BatchAgreementMessageKind::kGrant &&
        send->message.to == transfer.key.destination) {
      item.message = &send->message;
      item.hash = absl::HashOf(transfer.key, step.hashes.front());
    }
  }
  if (devices_[destination].is_alive) channel(source, destination).push_back(item);
  Perform(source, step, item.message == nullptr ? 0 : 1);
}

const GrantStep& World::Hear(const Item& item, int device) const {
  return Take(
      device,
      [&](BatchAgreementEndpoint& endpoint, BatchAgreementActions& actions) {
        if (item.descriptor < 0) return endpoint.OnMessage(*item.message, actions);
        const BatchAgreementTransfer& transfer = (*transfers_)[item.descriptor];
        return item.message == nullptr ? endpoint.Add(transfer, actions)
                                       : endpoint.AddWithGrant(transfer, *item.message, actions);
      },
      Input::kHear, item.hash);
}

void World::Apply(const Event& event) {
  switch (event.kind) {
    case Event::Kind::kMatch:
      Match(event.index);
      break;
    case Event::Kind::kDeliver: {
      ControlChannel& from = channel(event.index, event.other);
      const Item item = from.front();
      from.erase(from.begin());
      if (item.descriptor >= 0) outcomes_[item.descriptor].is_added[1] = true;
      const GrantStep& step = Hear(item, event.other);
      if (!step.status.ok()) Violate(step.status.ToString());
      Perform(event.other, step);
      break;
    }
    case Event::Kind::kComplete:
      Return(event.index, 0, true, true);
      break;
    case Event::Kind::kFail:
      --errors_left_;
      has_failed_ = true;
      Return(event.index, 0, false, event.choice);
      break;
    case Event::Kind::kThrowOut:
      Return(event.index, event.other, false, event.choice);
      break;
    case Event::Kind::kThrowOutLate:
      Return(event.index, 0, true, true);
      break;
    case Event::Kind::kDie:
      --deaths_left_;
      has_failed_ = true;
      Die(event.index, event.choice);
      break;
    case Event::Kind::kNotice:
      devices_[event.index].knows_dead |= uint32_t{1} << event.other;
      // Transfers that had not arrived by then never do.
      channel(event.other, event.index).clear();
      Happen(
          event.index,
          [&](BatchAgreementEndpoint& endpoint, BatchAgreementActions& actions) {
            endpoint.PeerFailed(DeviceId(event.other), absl::UnavailableError("no heartbeat"),
                                actions);
          },
          Input::kPeerFailed, event.other);
      break;
    case Event::Kind::kOpen: {
      const uint64_t bit = uint64_t{1} << event.other;
      const Communicator communicator = (*communicators_)[event.other];
      std::vector<DeviceId> members;
      bool is_whole = true;
      for (const int member : communicator.devices) {
        members.push_back(DeviceId(member));
        is_whole &= devices_[member].is_alive;
      }
      // With a member dead it cannot be made.
      if (!is_whole) {
        devices_[event.index].freed |= bit;
        break;
      }
      devices_[event.index].opened |= bit;
      const GrantStep& step = Take(
          event.index,
          [&](BatchAgreementEndpoint& endpoint, BatchAgreementActions& actions) {
            return endpoint.Open(communicator.name, members, actions);
          },
          Input::kOpen, communicator.name);
      if (!step.status.ok()) devices_[event.index].freed |= bit;
      Perform(event.index, step);
      break;
    }
    case Event::Kind::kGiveUp:
      --failed_opens_left_;
      has_failed_ = true;
      communicators_.Edit()[event.other].is_given_up = true;
      devices_[event.index].freed |= uint64_t{1} << event.other;
      break;
    case Event::Kind::kHearGivenUp: {
      const uint64_t bit = uint64_t{1} << event.other;
      if ((devices_[event.index].opened & bit) == 0) {
        devices_[event.index].freed |= bit;
        break;
      }
      const CommunicatorName name = (*communicators_)[event.other].name;
      Happen(
          event.index,
          [&](BatchAgreementEndpoint& endpoint, BatchAgreementActions& actions) {
            endpoint.Break(name, absl::AbortedError("given up"), actions);
          },
          Input::kBreak, name);
      break;
    }
    case Event::Kind::kCancel: {
      --cancels_left_;
      const BatchAgreementTransfer& transfer = (*transfers_)[event.index];
      outcomes_[event.index].is_cancelled = true;
      Happen(
          event.choice ? transfer.key.destination.value() : transfer.key.source.value(),
          [&](BatchAgreementEndpoint& endpoint, BatchAgreementActions& actions) {
            endpoint.Cancel(transfer.key, absl::CancelledError("not wanted"), actions);
          },
          Input::kCancel, transfer.key);
      break;
    }
    case Event::Kind::kPause:
      --pauses_left_;
      devices_[event.index].is_paused = true;
      Hold(event.index);
      break;
    case Event::Kind::kResume:
      devices_[event.index].is_paused = false;
      GoOn(event.index);
      break;
    case Event::Kind::kJoin:
      devices_[event.index].has_joined = true;
      Hold(event.index);
      break;
    case Event::Kind::kMeet:
      has_met_ = true;
      break;
    case Event::Kind::kLeave:
      devices_[event.index].has_left = true;
      GoOn(event.index);
      break;
  }
  SucceedCommunicators();
}

}  // namespace ferry::grant_test
