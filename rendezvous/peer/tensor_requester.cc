// SPDX-License-Identifier: Apache-2.0
// Requests and their completion; incoming frames: tensor_requester_frames.cc.
#include "rendezvous/peer/tensor_requester.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/logging.h"
#include "base/recycled.h"
#include "base/status_macros.h"

namespace ferry {

void TensorRequester::Waiting::Cancel() {
  if (const auto owner = client.lock()) owner->Cancel(id);
}

std::string TensorRequester::Waiting::Phase() const {
  const auto owner = client.lock();
  return owner == nullptr ? "ending" : owner->Phase(id);
}

TensorRequester::TensorRequester(const TransferContext& exchange, Endpoint producer)
    : exchange_(exchange),
      producer_(std::move(producer)),
      costs_(std::make_shared<PathCostEstimator>(
          exchange.transports == nullptr ? 0 : exchange.transports->size())) {}

TensorRequester::~TensorRequester() = default;

std::shared_ptr<RemoteFetch> TensorRequester::Request(int64_t step_id, const RendezvousKey& key,
                                                      const RecvArgs& args, RecvCallback done) {
  const auto waiting = std::allocate_shared<Waiting>(RecyclingAllocator<Waiting>());
  waiting->client = weak_from_this();
  waiting->step_id = step_id;
  waiting->done = std::move(done);
  waiting->place = PlaceOf(key.dst());
  waiting->destination = args.destination;
  if (exchange_.checksum) {
    waiting->name = absl::StrCat("step ", step_id, ", ", absl::CEscape(key.text()));
  }
  if (exchange_.checksum || args.destination.is_valid()) waiting->rejected_key = key.text();
  if (IsLogged(LogComponent::kTransport, LogLevel::kDebug)) {
    waiting->logged_key = absl::CEscape(key.text());
  }
  absl::Status status;
  std::shared_ptr<ControlChannel> channel;
  uint64_t id = 0;
  {
    SpinLockHolder lock(&mu_);
    status = ended_;
    id = waiting->id = ++last_id_;
    channel = channel_;
    if (status.ok()) {
      if (exchange_.policy.forbids_tcp() &&
          (channel == nullptr || !channel->passes_descriptors())) {
        waiting->rejected_key = key.text();
      }
      if (channel == nullptr) waiting->key = key.text();
      waiting_.emplace(id, waiting);
    }
  }
  if (!status.ok()) {
    std::move(waiting->done)(std::move(status), {});
    return nullptr;
  }
  if (channel != nullptr) {
    FERRY_LOG_DEBUG(kTransport, "request sent: peer={} step={} request={} key={}",
                    producer_.peer.node_id, step_id, id, waiting->logged_key);
    status = SendRequest(*channel, {id, step_id, waiting->may_reject(), key.text()});
    if (!status.ok()) Complete(id, Named(status), {});
  }
  return waiting;
}

void TensorRequester::OnOpen(std::shared_ptr<ControlChannel> channel) {
  for (const auto& transport : *exchange_.transports) {
    receivers_.push_back(
        transport->CreateReceiver(producer_, [weak = weak_from_this()](uint64_t id) {
          if (const auto client = weak.lock()) client->Done(id);
        }));
    const auto number = static_cast<uint8_t>(receivers_.size());
    receivers_.back()->SetControlChannel(
        [weak = std::weak_ptr<ControlChannel>(channel), number](absl::string_view body,
                                                                absl::Span<const int> descriptors) {
          const auto open = weak.lock();
          if (open == nullptr || !descriptors.empty()) {
            return absl::UnavailableError("the control channel has closed");
          }
          absl::Status status = SendReceiverControl(*open, {number, body});
          // The peer would wait forever for a lost message.
          if (absl::IsResourceExhausted(status)) open->Close(status);
          return status;
        });
  }
  absl::Status status;
  // In the order of the calls; more requests may be added while these are being sent.
  uint64_t last_sent = 0;
  std::vector<uint64_t> cancelled;
  while (status.ok()) {
    std::vector<RequestMessage> requests;
    std::vector<std::string> keys;
    {
      SpinLockHolder lock(&mu_);
      for (auto& [id, waiting] : waiting_) {
        if (id <= last_sent || waiting->key.empty()) continue;
        requests.push_back({id, waiting->step_id, waiting->may_reject(), {}});
      }
      if (requests.empty()) {
        channel_ = channel;
        // Cancelled while their requests were being sent.
        cancelled.assign(cancelled_.begin(), cancelled_.end());
        break;
      }
      std::sort(requests.begin(), requests.end(),
                [](const auto& a, const auto& b) { return a.id < b.id; });
      for (const RequestMessage& request : requests) {
        keys.push_back(std::exchange(waiting_.find(request.id)->second->key, ""));
      }
    }
    for (size_t i = 0; i < requests.size() && status.ok(); ++i) {
      last_sent = requests[i].id;
      requests[i].key = keys[i];
      FERRY_LOG_DEBUG(kTransport, "request sent: peer={} step={} request={} key={}",
                      producer_.peer.node_id, requests[i].step_id, last_sent,
                      absl::CEscape(keys[i]));
      if (absl::Status sent = SendRequest(*channel, requests[i]); absl::IsInvalidArgument(sent)) {
        Complete(last_sent, std::move(sent), {});
      } else {
        status = std::move(sent);
      }
    }
  }
  if (!status.ok()) return channel->Close(status);
  for (const uint64_t id : cancelled) Tell(*channel, PeerMessageType::kCancel, id);
}

TensorRequester::WaitingPtr TensorRequester::TakeOut(uint64_t id) {
  SpinLockHolder lock(&mu_);
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return nullptr;
  WaitingPtr waiting = std::move(found->second);
  waiting_.erase(found);
  return waiting;
}

void TensorRequester::LogEnd(const Waiting& waiting, absl::string_view path,
                             const absl::Status& status) const {
  if (status.ok()) {
    FERRY_LOG_DEBUG(kTransport, "fetch done: peer={} step={} request={} path={} key={}",
                    producer_.peer.node_id, waiting.step_id, waiting.id, path, waiting.logged_key);
  } else {
    FERRY_LOG_DEBUG(kTransport, "fetch failed: peer={} step={} request={} reason={} key={}",
                    producer_.peer.node_id, waiting.step_id, waiting.id, status,
                    waiting.logged_key);
  }
}

void TensorRequester::ExpectAcknowledgement(const Waiting& waiting) {
  if (!IsLogged(LogComponent::kTransport, LogLevel::kDebug)) return;
  SpinLockHolder lock(&mu_);
  if (ended_.ok()) unacknowledged_[waiting.id] = {waiting.step_id, waiting.logged_key};
}

void TensorRequester::LogAcknowledgement(uint64_t id, const absl::Status& status) {
  std::pair<int64_t, std::string> request;
  {
    SpinLockHolder lock(&mu_);
    const auto found = unacknowledged_.find(id);
    if (found != unacknowledged_.end()) {
      request = std::move(found->second);
      unacknowledged_.erase(found);
    }
  }
  if (status.ok()) {
    FERRY_LOG_DEBUG(kTransport, "acknowledgement sent: peer={} step={} request={} key={}",
                    producer_.peer.node_id, request.first, id, request.second);
  } else {
    FERRY_LOG_DEBUG(kTransport, "tensor rejected: peer={} step={} request={} reason={} key={}",
                    producer_.peer.node_id, request.first, id, status, request.second);
  }
}

void TensorRequester::Complete(uint64_t id, absl::Status status, Received received) {
  const WaitingPtr waiting = TakeOut(id);
  if (waiting == nullptr) return;
  LogEnd(*waiting, received.path, status);
  // The caller may keep the handle.
  RecvCallback done = std::move(waiting->done);
  waiting->destination = {};
  std::move(done)(std::move(status), std::move(received));
}

void TensorRequester::Cancel(uint64_t id) {
  WaitingPtr cancelled;
  std::shared_ptr<ControlChannel> channel;
  {
    SpinLockHolder lock(&mu_);
    const auto found = waiting_.find(id);
    if (found == waiting_.end()) return;
    cancelled = std::move(found->second);
    waiting_.erase(found);
    channel = channel_;
    // Unless its request was not sent yet.
    if (cancelled->key.empty() && !cancelled->is_taking) cancelled_.insert(id);
  }
  if (channel != nullptr && !cancelled->is_taking) Tell(*channel, PeerMessageType::kCancel, id);
  if (cancelled->is_taking && cancelled->transport > 0) {
    receivers_[cancelled->transport - 1]->Cancel(id);
  }
  FERRY_LOG_DEBUG(kTransport, "fetch cancelled: peer={} step={} request={} key={}",
                  producer_.peer.node_id, cancelled->step_id, id, cancelled->logged_key);
  RecvCallback done = std::move(cancelled->done);
  cancelled->destination = {};
  std::move(done)(MakeDerived(absl::CancelledError("the fetch is cancelled")), {});
}

bool TensorRequester::AskAgain(uint64_t id, const absl::Status& why) {
  std::shared_ptr<ControlChannel> open;
  {
    SpinLockHolder lock(&mu_);
    const auto found = waiting_.find(id);
    if (found == waiting_.end() || channel_ == nullptr) return false;
    found->second->is_taking = false;
    found->second->is_again = true;
    found->second->transport = 0;
    open = channel_;
  }
  FERRY_LOG_DEBUG(kTransport, "another descriptor requested: peer={} request={} reason={}",
                  producer_.peer.node_id, id, why);
  const absl::Status status = SendRetry(*open, {id, why});
  if (!status.ok()) open->Close(status);
  return true;
}

void TensorRequester::Done(uint64_t id) {
  const std::shared_ptr<ControlChannel> open = channel();
  if (open == nullptr) return;
  if (IsLogged(LogComponent::kTransport, LogLevel::kDebug)) {
    LogAcknowledgement(id, absl::OkStatus());
  }
  Tell(*open, PeerMessageType::kAck, id);
}

void TensorRequester::Reject(uint64_t id, const Waiting* waiting, const absl::Status& why) {
  const std::shared_ptr<ControlChannel> open = channel();
  if (open == nullptr) return;
  RejectedMessage rejected = {.id = id, .status = why};
  if (waiting != nullptr) {
    rejected.step_id = waiting->step_id;
    rejected.key = waiting->rejected_key;
  }
  if (IsLogged(LogComponent::kTransport, LogLevel::kDebug)) LogAcknowledgement(id, why);
  const absl::Status status = SendRejected(*open, rejected);
  if (!status.ok()) open->Close(status);
}

void TensorRequester::Tell(ControlChannel& channel, PeerMessageType type, uint64_t id) {
  const absl::Status status = SendId(channel, type, id);
  if (!status.ok()) channel.Close(status);
}

absl::Status TensorRequester::Named(const absl::Status& why) const {
  const std::string name = Describe(producer_.peer);
  if (absl::StrContains(why.message(), name)) return why;
  return absl::Status(why.code(), absl::StrCat("connection to ", name, ": ", why.message()));
}

std::string TensorRequester::Phase(uint64_t id) const {
  SpinLockHolder lock(&mu_);
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return "ending";
  const std::string peer = Describe(producer_.peer);
  if (channel_ == nullptr) return absl::StrCat("connecting to ", peer);
  if (!found->second->is_taking) return absl::StrCat("asked ", peer, ", which has not sent it");
  if (found->second->transport == 0) return absl::StrCat("receiving from ", peer);
  return absl::StrCat("receiving from ", peer, " by ",
                      (*exchange_.transports)[found->second->transport - 1]->name());
}

std::shared_ptr<ControlChannel> TensorRequester::channel() const {
  SpinLockHolder lock(&mu_);
  return channel_;
}

bool TensorRequester::has_ended() const {
  SpinLockHolder lock(&mu_);
  return !ended_.ok();
}

void TensorRequester::set_descriptors_unavailable_reason(std::string why) {
  SpinLockHolder lock(&mu_);
  descriptors_unavailable_reason_ = std::move(why);
}

std::string TensorRequester::descriptors_unavailable_reason() const {
  SpinLockHolder lock(&mu_);
  return descriptors_unavailable_reason_;
}

std::string TensorRequester::DescribeChannel() const {
  const std::shared_ptr<ControlChannel> open = channel();
  return open == nullptr ? "not connected yet" : open->Describe();
}

void TensorRequester::OnClosed(const absl::Status& why) {
  absl::flat_hash_map<uint64_t, WaitingPtr> waiting;
  absl::Status status = Named(why);
  {
    SpinLockHolder lock(&mu_);
    if (!ended_.ok()) status = ended_;
    ended_ = status;
    channel_ = nullptr;
    waiting.swap(waiting_);
    cancelled_.clear();
    unacknowledged_.clear();
  }
  for (const auto& receiver : receivers_) receiver->Abort(status);
  for (auto& [id, each] : waiting) {
    absl::string_view phase = !each->key.empty() ? "before it was asked"
                              : each->is_taking  ? "while the tensor was on its way"
                                                 : "while it was asked for a value";
    RecvCallback done = std::move(each->done);
    each->destination = {};
    LogEnd(*each, "", status);
    std::move(done)(
        absl::Status(status.code(), absl::StrCat(status.message(), " (", phase,
                                                 each->name.empty() ? "" : "; ", each->name, ")")),
        {});
  }
  is_over_.store(true, std::memory_order_release);
}

void TensorRequester::Close(const absl::Status& why) {
  std::shared_ptr<ControlChannel> open;
  {
    SpinLockHolder lock(&mu_);
    if (!ended_.ok()) return;
    open = channel_;
    // No more requests; pending ones end when the control channel closes.
    if (open != nullptr) ended_ = why;
  }
  if (open != nullptr) open->Close(why);
}

TableSizes TensorRequester::InnerTableSizes() const {
  SpinLockHolder lock(&mu_);
  return {{"client.waiting", waiting_.size()}, {"client.cancelled", cancelled_.size()}};
}

}  // namespace ferry
