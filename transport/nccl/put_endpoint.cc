// SPDX-License-Identifier: Apache-2.0
// PutEndpoint: one device's end of the protocol for one-sided transfers.
#include "transport/nccl/put_endpoint.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/text.h"

namespace ferry {

PutEndpoint::Window* PutEndpoint::WindowOf(DeviceId peer, const CommunicatorName& name) {
  const auto found = windows_.find(peer);
  if (found == windows_.end()) return nullptr;
  if (rules_.checks_communicator && found->second.name != name) return nullptr;
  return &found->second;
}

void PutEndpoint::OpenWindow(DeviceId peer, const CommunicatorName& name, uint64_t peer_bytes,
                             int signals) {
  if (!lost_.ok()) return;
  Window window;
  window.name = name;
  window.peer_bytes = peer_bytes;
  window.signals = signals;
  windows_[peer] = std::move(window);
}

void PutEndpoint::Send(PutMessageKind kind, const TransferKey& key, const CommunicatorName& name,
                       uint64_t offset, const absl::Status& why, PutActions& actions) const {
  actions.push_back(SendPutMessage{
      {.kind = kind, .key = key, .communicator = name, .offset = offset, .why = why}});
}

void PutEndpoint::EndOutgoing(const TransferKey& key, const absl::Status& status,
                              PutActions& actions) {
  const auto found = outgoing_.find(key);
  pool_.Give(found->second.offset);
  outgoing_.erase(found);
  actions.push_back(FinishPut{key, status, std::nullopt});
}

void PutEndpoint::Withdraw(const TransferKey& key, const absl::Status& why, PutActions& actions) {
  const Outgoing& transfer = outgoing_.at(key);
  if (!transfer.is_peer_gone) {
    Send(PutMessageKind::kWithdrawn, key, transfer.name, 0, why, actions);
  }
  EndOutgoing(key, why, actions);
}

void PutEndpoint::EndIncoming(const TransferKey& key, Incoming& transfer, absl::Status status,
                              PutActions& actions) {
  if (std::exchange(transfer.is_over, true)) return;
  actions.push_back(FinishPut{key, std::move(status), std::nullopt});
}

void PutEndpoint::DropIncoming(const TransferKey& key, const absl::Status& status,
                               PutActions& actions) {
  const auto found = incoming_.find(key);
  EndIncoming(key, found->second, status, actions);
  pool_.Give(found->second.offset);
  incoming_.erase(found);
}

void PutEndpoint::RetireBlock(uint64_t offset, const absl::Status& why, PutActions& actions) {
  const uint64_t bytes = pool_.Retire(offset);
  actions.push_back(ReportRetired{bytes, pool_.retired_bytes(), why});
}

void PutEndpoint::LoseIncoming(const TransferKey& key, const absl::Status& why,
                               PutActions& actions) {
  const auto found = incoming_.find(key);
  EndIncoming(key, found->second, why, actions);
  RetireBlock(found->second.offset, why, actions);
  incoming_.erase(found);
}

std::optional<CommunicatorName> PutEndpoint::Offer(const TransferKey& key, uint64_t bytes,
                                                   absl::Time deadline, uint64_t& offset) {
  const auto window = windows_.find(key.destination);
  if (is_paused_ || !lost_.ok() || window == windows_.end() || contains(key)) return std::nullopt;
  if (bytes > window->second.peer_bytes) return std::nullopt;
  const std::optional<uint64_t> block = pool_.Take(bytes);
  if (!block.has_value()) return std::nullopt;
  offset = *block;
  Outgoing transfer;
  transfer.bytes = bytes;
  transfer.offset = *block;
  transfer.name = window->second.name;
  transfer.deadline = deadline;
  outgoing_.emplace(key, transfer);
  return window->second.name;
}

bool PutEndpoint::Accept(const TransferKey& key, const CommunicatorName& name, uint64_t bytes,
                         absl::Time deadline, PutActions& actions) {
  const auto window = windows_.find(key.source);
  if (!HasWindow(key.source) || window->second.name != name || contains(key)) return false;
  const std::optional<uint64_t> block = pool_.Take(bytes);
  if (!block.has_value()) return false;
  Incoming transfer;
  transfer.bytes = bytes;
  transfer.offset = *block;
  transfer.name = name;
  transfer.deadline = deadline;
  incoming_.emplace(key, transfer);
  Send(PutMessageKind::kRoom, key, name, *block, absl::OkStatus(), actions);
  return true;
}

void PutEndpoint::Refuse(const TransferKey& key, PutActions& actions) {
  actions.push_back(SendPutMessage{{.kind = PutMessageKind::kNoRoom, .key = key}});
}

void PutEndpoint::Cancel(const TransferKey& key, const absl::Status& why, PutActions& actions) {
  if (const auto found = outgoing_.find(key); found != outgoing_.end()) {
    switch (found->second.phase) {
      case OutgoingPhase::kOffered:
        return EndOutgoing(key, why, actions);
      case OutgoingPhase::kHeld:
        return Withdraw(key, why, actions);
      case OutgoingPhase::kIssued:
        return;
    }
  }
  const auto found = incoming_.find(key);
  if (found == incoming_.end()) return;
  if (rules_.keeps_promised_blocks || found->second.phase != IncomingPhase::kPromised) {
    return EndIncoming(key, found->second, why, actions);
  }
  DropIncoming(key, why, actions);
}

absl::Status PutEndpoint::OnMessage(const PutMessage& message, PutActions& actions) {
  if (message.to() != self_ || message.from() == self_) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(message), " has come to ", Describe(self_)));
  }
  switch (message.kind) {
    case PutMessageKind::kRoom:
      return OnRoom(message, actions);
    case PutMessageKind::kNoRoom: {
      const auto found = outgoing_.find(message.key);
      // It was cancelled.
      if (found == outgoing_.end()) return absl::OkStatus();
      if (found->second.phase != OutgoingPhase::kOffered) {
        return absl::InvalidArgumentError(absl::StrCat(Describe(message), " after its ROOM"));
      }
      pool_.Give(found->second.offset);
      outgoing_.erase(found);
      actions.push_back(SendInBatch{message.key});
      return absl::OkStatus();
    }
    case PutMessageKind::kPlaced:
      return OnPlaced(message, actions);
    case PutMessageKind::kWithdrawn:
      return OnWithdrawn(message, actions);
  }
  return absl::OkStatus();
}

absl::Status PutEndpoint::OnRoom(const PutMessage& message, PutActions& actions) {
  const TransferKey& key = message.key;
  const auto found = outgoing_.find(key);
  if (found == outgoing_.end()) {
    Send(PutMessageKind::kWithdrawn, key, message.communicator, 0,
         absl::AbortedError(absl::StrCat(Describe(key), " is not wanted any more")), actions);
    return absl::OkStatus();
  }
  Outgoing& transfer = found->second;
  if (transfer.phase != OutgoingPhase::kOffered) {
    return absl::InvalidArgumentError(absl::StrCat(Describe(message), " a second time"));
  }
  transfer.phase = OutgoingPhase::kHeld;
  transfer.name = message.communicator;
  transfer.peer_offset = message.offset;
  const Window* const window = WindowOf(key.destination, message.communicator);
  if (window == nullptr) {
    Withdraw(key,
             absl::AbortedError(absl::StrCat(Describe(message.communicator), " is not open on ",
                                             Describe(self_), " any more")),
             actions);
    return absl::OkStatus();
  }
  if (message.offset > window->peer_bytes || transfer.bytes > window->peer_bytes - message.offset) {
    const absl::Status wrong = absl::InvalidArgumentError(
        absl::StrCat(Describe(message), ", beyond the end of a window of ", window->peer_bytes));
    Withdraw(key, wrong, actions);
    return wrong;
  }
  if (!lost_.ok()) {
    Withdraw(key, lost_, actions);
    return absl::OkStatus();
  }
  Issue(key, transfer, actions);
  return absl::OkStatus();
}

void PutEndpoint::Issue(const TransferKey& key, Outgoing& transfer, PutActions& actions) {
  if (is_paused_ || issued_puts_ >= kMaxIssuedPuts) return;
  transfer.phase = OutgoingPhase::kIssued;
  ++issued_;
  ++issued_puts_;
  actions.push_back(
      IssuePut{key, transfer.name, transfer.offset, transfer.peer_offset, transfer.bytes});
  if (!rules_.announces_after_stream) {
    Send(PutMessageKind::kPlaced, key, transfer.name, 0, absl::OkStatus(), actions);
  }
}

void PutEndpoint::IssueHeld(PutActions& actions) {
  for (auto& [key, transfer] : outgoing_) {
    if (transfer.phase == OutgoingPhase::kHeld) Issue(key, transfer, actions);
  }
}

void PutEndpoint::PutPassed(const TransferKey& key, const absl::Status& status,
                            PutActions& actions) {
  --issued_;
  --issued_puts_;
  const Outgoing& transfer = outgoing_.at(key);
  if (!status.ok()) {
    Withdraw(key, status, actions);
  } else {
    if (!transfer.is_peer_gone && rules_.announces_after_stream) {
      Send(PutMessageKind::kPlaced, key, transfer.name, 0, absl::OkStatus(), actions);
    }
    EndOutgoing(key, status, actions);
  }
  IssueHeld(actions);
}

void PutEndpoint::PutLost(const TransferKey& key, const absl::Status& why, PutActions& actions) {
  if (!rules_.retires_lost_blocks) return PutPassed(key, why, actions);
  --issued_;
  --issued_puts_;
  const auto found = outgoing_.find(key);
  actions.push_back(FinishPut{key, why, std::nullopt});
  RetireBlock(found->second.offset, why, actions);
  outgoing_.erase(found);
  SwitchOff(why, actions);
}

void PutEndpoint::SwitchOff(const absl::Status& why, PutActions& actions) {
  if (!lost_.ok()) return;
  lost_ = absl::AbortedError(
      absl::StrCat(Describe(self_),
                   " makes no one-sided transfers any more, since one was lost: ", why.message()));
  std::vector<TransferKey> held;
  for (const auto& [key, transfer] : outgoing_) {
    if (transfer.phase == OutgoingPhase::kHeld) held.push_back(key);
  }
  for (const TransferKey& key : held) Withdraw(key, lost_, actions);
}

bool PutEndpoint::IsLate(const PutMessage& message) const {
  const auto window = windows_.find(message.from());
  return window == windows_.end() || window->second.name != message.communicator ||
         !rules_.keeps_promised_blocks;
}

absl::Status PutEndpoint::OnPlaced(const PutMessage& message, PutActions& actions) {
  const TransferKey& key = message.key;
  const auto found = incoming_.find(key);
  if (found == incoming_.end() || found->second.phase != IncomingPhase::kPromised ||
      found->second.name != message.communicator) {
    if (IsLate(message)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(Describe(message), ", which had no room"));
  }
  Window* const window = WindowOf(key.source, message.communicator);
  if (window == nullptr) {
    DropIncoming(key,
                 absl::AbortedError(absl::StrCat(Describe(message.communicator),
                                                 " has ended before its signal was received")),
                 actions);
    return absl::OkStatus();
  }
  found->second.phase = IncomingPhase::kPlaced;
  ++window->signals;
  window->placed.push_back(key);
  IssueWaits(key.source, *window, actions);
  return absl::OkStatus();
}

absl::Status PutEndpoint::OnWithdrawn(const PutMessage& message, PutActions& actions) {
  const auto found = incoming_.find(message.key);
  if (found == incoming_.end() || found->second.phase != IncomingPhase::kPromised) {
    if (IsLate(message)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(Describe(message), ", which had no room"));
  }
  DropIncoming(
      message.key,
      absl::AbortedError(absl::StrCat(Describe(message.key), " was withdrawn by ",
                                      Describe(message.key.source), ": ", message.why.message())),
      actions);
  return absl::OkStatus();
}

void PutEndpoint::IssueWaits(DeviceId peer, Window& window, PutActions& actions) {
  // One at a time: those that come meanwhile share the next.
  if (is_paused_ || window.is_waiting || window.placed.empty()) return;
  window.is_waiting = true;
  window.waiting = std::exchange(window.placed, {});
  uint64_t bytes = 0;
  for (const TransferKey& key : window.waiting) {
    Incoming& transfer = incoming_.at(key);
    transfer.phase = IncomingPhase::kWaiting;
    bytes += transfer.bytes;
  }
  ++issued_;
  actions.push_back(IssueWait{peer, window.name, std::exchange(window.signals, 0), bytes});
}

std::vector<TransferKey> PutEndpoint::TakeWaiting(DeviceId peer, const CommunicatorName& name) {
  const auto open = windows_.find(peer);
  if (open != windows_.end() && open->second.name == name) {
    open->second.is_waiting = false;
    return std::exchange(open->second.waiting, {});
  }
  const auto ended = std::find_if(ended_.begin(), ended_.end(), [&](const auto& each) {
    return each.first == peer && each.second.name == name;
  });
  std::vector<TransferKey> waiting = std::move(ended->second.waiting);
  ended_.erase(ended);
  return waiting;
}

void PutEndpoint::WaitPassed(DeviceId peer, const CommunicatorName& name,
                             const absl::Status& status, PutActions& actions) {
  --issued_;
  for (const TransferKey& key : TakeWaiting(peer, name)) {
    const auto found = incoming_.find(key);
    Incoming& transfer = found->second;
    if (!status.ok() || transfer.is_over) {
      DropIncoming(key, status, actions);
      continue;
    }
    actions.push_back(FinishPut{key, absl::OkStatus(), transfer.offset, transfer.bytes});
    incoming_.erase(found);
  }
  const auto open = windows_.find(peer);
  if (open != windows_.end() && open->second.name == name) IssueWaits(peer, open->second, actions);
}

void PutEndpoint::WaitLost(DeviceId peer, const CommunicatorName& name, const absl::Status& why,
                           PutActions& actions) {
  --issued_;
  for (const TransferKey& key : TakeWaiting(peer, name)) LoseIncoming(key, why, actions);
  SwitchOff(why, actions);
}

void PutEndpoint::CommunicatorEnded(const CommunicatorName& name, const absl::Status& why,
                                    DeviceId died, PutActions& actions) {
  const auto found = std::find_if(windows_.begin(), windows_.end(), [&name](const auto& window) {
    return window.second.name == name;
  });
  if (found == windows_.end()) return;
  const DeviceId peer = found->first;
  const absl::Status end =
      died == peer ? absl::UnavailableError(why.message()) : absl::AbortedError(why.message());
  Window window = std::move(found->second);
  windows_.erase(found);
  std::vector<TransferKey> held;
  for (const auto& [key, transfer] : outgoing_) {
    if (key.destination == peer && transfer.phase == OutgoingPhase::kHeld) held.push_back(key);
  }
  for (const TransferKey& key : held) Withdraw(key, end, actions);
  for (const TransferKey& key : std::exchange(window.placed, {})) DropIncoming(key, end, actions);
  std::vector<TransferKey> promised;
  for (auto& [key, transfer] : incoming_) {
    if (key.source == peer && transfer.phase == IncomingPhase::kPromised) promised.push_back(key);
  }
  for (const TransferKey& key : promised) {
    if (rules_.keeps_promised_blocks) {
      EndIncoming(key, incoming_.at(key), end, actions);
    } else {
      DropIncoming(key, end, actions);
    }
  }
  if (window.is_waiting) ended_.emplace_back(peer, std::move(window));
}

void PutEndpoint::PeerFailed(DeviceId peer, const absl::Status& why, PutActions& actions) {
  const absl::Status end =
      absl::UnavailableError(absl::StrCat(Describe(peer), " has failed: ", why.message()));
  std::vector<TransferKey> unissued;
  for (auto& [key, transfer] : outgoing_) {
    if (key.destination != peer) continue;
    transfer.is_peer_gone = true;
    if (transfer.phase != OutgoingPhase::kIssued) unissued.push_back(key);
  }
  for (const TransferKey& key : unissued) EndOutgoing(key, end, actions);
  std::vector<TransferKey> promised;
  for (const auto& [key, transfer] : incoming_) {
    if (key.source == peer && transfer.phase == IncomingPhase::kPromised) promised.push_back(key);
  }
  for (const TransferKey& key : promised) {
    if (!rules_.retires_blocks_of_the_dead) {
      DropIncoming(key, end, actions);
      continue;
    }
    LoseIncoming(key, end, actions);
  }
  if (const auto window = windows_.find(peer); window != windows_.end()) {
    CommunicatorEnded(CommunicatorName(window->second.name), end, peer, actions);
  }
}

void PutEndpoint::Resume(PutActions& actions) {
  is_paused_ = false;
  IssueHeld(actions);
  for (auto& [peer, window] : windows_) IssueWaits(peer, window, actions);
}

absl::Time PutEndpoint::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [key, transfer] : outgoing_) next = std::min(next, transfer.deadline);
  for (const auto& [key, transfer] : incoming_) next = std::min(next, transfer.deadline);
  return next;
}

void PutEndpoint::Expire(PutActions& actions) {
  const absl::Time now = clock_->Now();
  const auto late = [](const TransferKey& key, uint64_t bytes, absl::string_view what) {
    return absl::DeadlineExceededError(
        absl::StrCat(Describe(key), " (", bytes, " bytes): waited too long for ", what));
  };
  std::vector<TransferKey> unanswered;
  for (auto& [key, transfer] : outgoing_) {
    if (transfer.deadline > now) continue;
    if (transfer.phase != OutgoingPhase::kIssued) {
      unanswered.push_back(key);
      continue;
    }
    // Until the end of its communicator tells.
    transfer.deadline = absl::InfiniteFuture();
    const absl::Status why = late(key, transfer.bytes, "NCCL to complete the put");
    if (WindowOf(key.destination, transfer.name) != nullptr) {
      actions.push_back(BreakForPut{transfer.name, why});
    }
  }
  for (const TransferKey& key : unanswered) {
    Cancel(key, late(key, outgoing_.at(key).bytes, "its turn, or for the destination's answer"),
           actions);
  }
  for (auto& [key, transfer] : incoming_) {
    if (transfer.deadline > now) continue;
    // Until the peer answers, or has died.
    transfer.deadline = absl::InfiniteFuture();
    const bool is_waiting = transfer.phase == IncomingPhase::kWaiting;
    const absl::Status why =
        late(key, transfer.bytes,
             is_waiting ? "the put's signal" : absl::StrCat(Describe(key.source), " to put it"));
    EndIncoming(key, transfer, why, actions);
    if (is_waiting && WindowOf(key.source, transfer.name) != nullptr) {
      actions.push_back(BreakForPut{transfer.name, why});
    }
  }
}

std::vector<std::string> PutEndpoint::Pending() const {
  std::vector<std::string> lines;
  for (const auto& [key, transfer] : outgoing_) {
    const absl::string_view what =
        transfer.phase == OutgoingPhase::kOffered ? "the destination to say where to put it"
        : transfer.phase == OutgoingPhase::kHeld  ? "the end of a pause, to be put"
                                                  : "NCCL to complete the put";
    lines.push_back(absl::StrCat(Describe(key), ": waits for ", what));
  }
  for (const auto& [key, transfer] : incoming_) {
    const absl::string_view what =
        transfer.phase == IncomingPhase::kPromised ? "the source to put it"
        : transfer.phase == IncomingPhase::kPlaced ? "the end of a pause, or an earlier wait"
                                                   : "the put's signal";
    lines.push_back(absl::StrCat(Describe(key), ": waits for ", what));
  }
  return lines;
}

}  // namespace ferry
