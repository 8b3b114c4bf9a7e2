// SPDX-License-Identifier: Apache-2.0
// Executes requests and encodes replies.
#include "coord/tcpstore/tcp_store_session.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace ferry::coord {
namespace {

// Replies of CHECK and WAIT.
constexpr uint8_t kReady = 0;
constexpr uint8_t kNotReady = 1;
constexpr uint8_t kStopWaiting = 0;
constexpr uint8_t kWaitCanceled = 1;

constexpr char kTorch21CancelWait = 11;
constexpr char kTorch22CancelWait = 12;

// Each client that is created with a world size adds 1 to this key.
constexpr absl::string_view kClientCount = "init/";
// The prefix of the rendezvous state of torchrun's c10d backend, which each agent first sets with
// COMPARE_SET, expecting it to be absent.
constexpr absl::string_view kRendezvous = "/torch.rendezvous.";

// True for requests with which the clients of a new job begin. If the key exists already, it was
// set by an earlier job.
bool BeginsJob(const TcpStoreRequest& request) {
  if (request.op == TcpStoreOp::kAdd) return request.key == kClientCount && request.number == 1;
  return request.op == TcpStoreOp::kCompareSet && request.values[0].empty() &&
         absl::StartsWith(request.key, kRendezvous);
}

// False for requests that say nothing about which job the client belongs to.
bool ConcernsKeys(TcpStoreOp op) {
  return op != TcpStoreOp::kValidate && op != TcpStoreOp::kPing && op != TcpStoreOp::kCancelWait;
}

}  // namespace

bool TcpStoreSession::InterruptsWait(char op) {
  const bool is_torch22 = parser_.dialect() == TcpStoreDialect::kTorch22;
  if (op == (is_torch22 ? kTorch22CancelWait : kTorch21CancelWait)) {
    // If the wait has ended already, both are answered.
    if (!store_.IsWaiting(client_)) EndWait(pending_wait_);
    return true;
  }
  if (is_torch22 || parser_.dialect() == TcpStoreDialect::kTorch21) return false;
  // Clients of 1.13 to 2.0 do not cancel a wait that timed out; they send their next request, and
  // expect no reply to the wait.
  store_.CancelWait(client_);
  pending_wait_ = 0;
  wait_bytes_ = 0;
  return true;
}

absl::Status TcpStoreSession::Consume(absl::string_view& bytes) {
  if (has_more_parts()) ContinueLongReply();
  while (!bytes.empty()) {
    if (long_reply_ != nullptr || output_.bytes() > kMaxOutput) return absl::OkStatus();
    if (is_waiting() && parser_.is_at_request() && !InterruptsWait(bytes.front())) {
      return absl::OkStatus();
    }
    FERRY_ASSIGN_OR_RETURN(std::optional<TcpStoreRequest> request, parser_.Next(bytes));
    if (!request.has_value()) return absl::OkStatus();
    FERRY_RETURN_IF_ERROR(Execute(*std::move(request)));
  }
  return absl::OkStatus();
}

absl::Status TcpStoreSession::ResolveAmbiguity() { return Execute(parser_.ResolveAmbiguity()); }

TcpStore::WaitCallback TcpStoreSession::OnWaitEnd() {
  return [weak = weak_from_this(), wait = ++last_wait_] {
    const std::shared_ptr<TcpStoreSession> self = weak.lock();
    if (self != nullptr) self->on_wait_end_(*self, wait);
  };
}

void TcpStoreSession::EndWait(uint64_t wait) {
  if (pending_wait_ != wait) return;
  pending_wait_ = 0;
  wait_bytes_ = 0;
  output_.AddByte(kStopWaiting);
}

absl::Status TcpStoreSession::ReplyOrWait(const absl::StatusOr<bool>& is_over) {
  if (!is_over.ok()) return is_over.status();
  if (*is_over) {
    output_.AddByte(kStopWaiting);
  } else {
    pending_wait_ = last_wait_;
    wait_bytes_ = store_.WaitBytes(client_);
  }
  return absl::OkStatus();
}

void TcpStoreSession::SetLongReply(TcpStoreOp op, std::vector<std::string> keys) {
  long_reply_ = std::make_unique<LongReply>();
  long_reply_->op = op;
  long_reply_->keys = std::move(keys);
  for (const std::string& key : long_reply_->keys) {
    long_reply_->held_bytes += key.capacity() + sizeof(std::string);
  }
}

void TcpStoreSession::BeginLongReply(TcpStoreRequest request) {
  SetLongReply(request.op, std::move(request.keys));
  ContinueLongReply();
}

void TcpStoreSession::ContinueLongReply() {
  if (long_reply_->op == TcpStoreOp::kMultiGet) return ContinueMultiGet();
  ContinueListKeys();
}

void TcpStoreSession::ContinueMultiGet() {
  LongReply& reply = *long_reply_;
  const size_t end = std::min(reply.keys.size(), reply.done + kKeysInPart);
  while (reply.done < end && output_.bytes() <= kMaxOutput) {
    output_.AddVector(store_.Get(reply.keys[reply.done++]));
  }
  if (reply.done == reply.keys.size()) long_reply_ = nullptr;
}

// The reply begins with the number of keys, so nothing is sent before all have been listed.
void TcpStoreSession::ContinueListKeys() {
  LongReply& reply = *long_reply_;
  bool is_over = true;
  size_t count = 0;
  store_.ForEachEntry("", reply.last, [&](absl::string_view key, const StoreValue&) {
    if (count++ == kKeysInPart) {
      is_over = false;
      return false;
    }
    const uint64_t length = key.size();
    reply.list.append(reinterpret_cast<const char*>(&length), sizeof(length));
    reply.list.append(key.data(), key.size());
    ++reply.listed;
    if (count == kKeysInPart) reply.last.emplace(key);
    return true;
  });
  reply.held_bytes = reply.list.capacity();
  if (!is_over) return;
  output_.AddNumber(reply.listed);
  output_.AddOwned(std::move(reply.list));
  long_reply_ = nullptr;
}

absl::Status TcpStoreSession::Execute(TcpStoreRequest request) {
  ++request_count_;
  if (store_.is_idle() && ConcernsKeys(request.op)) {
    store_.ClearIfNewJob(BeginsJob(request) && store_.Contains(request.key));
  }
  if (request.op != TcpStoreOp::kQueuePop && request.op != TcpStoreOp::kPing) {
    store_.Release(client_);
  }
  const auto named = [&request](const absl::Status& status) {
    if (status.ok()) return status;
    return absl::Status(status.code(),
                        absl::StrCat(TcpStoreOpName(request.op), ": ", status.message()));
  };
  switch (request.op) {
    case TcpStoreOp::kValidate:
      break;
    case TcpStoreOp::kPing:
      output_.AddNumber(static_cast<uint32_t>(request.number));
      break;
    case TcpStoreOp::kSet:
      return named(store_.Set(request.key, std::move(request.values[0])));
    case TcpStoreOp::kMultiSet:
      return named(store_.MultiSet(request.keys, std::move(request.values)));
    case TcpStoreOp::kAppend:
      return named(store_.Append(request.key, request.values[0]));
    case TcpStoreOp::kCompareSet: {
      const absl::StatusOr<StoreValue> value = store_.CompareSet(
          request.key, std::move(request.values[0]), std::move(request.values[1]));
      if (!value.ok()) return named(value.status());
      output_.AddVector(*value);
      break;
    }
    case TcpStoreOp::kAdd: {
      const absl::StatusOr<int64_t> sum = store_.Add(request.key, request.number);
      if (!sum.ok()) return named(sum.status());
      output_.AddNumber(*sum);
      break;
    }
    case TcpStoreOp::kGet:
      output_.AddVector(store_.Get(request.key));
      break;
    case TcpStoreOp::kMultiGet:
    case TcpStoreOp::kListKeys:
      BeginLongReply(std::move(request));
      break;
    case TcpStoreOp::kCheck:
      output_.AddByte(store_.Check(request.keys) ? kReady : kNotReady);
      break;
    case TcpStoreOp::kWait:
      return named(ReplyOrWait(store_.Wait(client_, request.keys, OnWaitEnd())));
    case TcpStoreOp::kBarrier:
      return named(ReplyOrWait(store_.Barrier(client_, request.key, request.number, OnWaitEnd())));
    case TcpStoreOp::kCancelWait:
      pending_wait_ = 0;
      wait_bytes_ = 0;
      output_.AddByte(kWaitCanceled);
      break;
    case TcpStoreOp::kGetNumKeys:
      output_.AddNumber(store_.key_count());
      break;
    case TcpStoreOp::kDeleteKey:
      output_.AddNumber(store_.Delete(request.key));
      break;
    case TcpStoreOp::kQueuePush:
      return named(store_.Push(request.key, std::move(request.values[0])));
    case TcpStoreOp::kQueuePop: {
      int64_t length = 0;
      const StoreValue value = store_.Pop(client_, request.key, length);
      output_.AddNumber(length);
      if (value != nullptr) output_.AddVector(value);
      break;
    }
    case TcpStoreOp::kQueueLength:
      output_.AddNumber(store_.QueueLength(request.key));
      break;
  }
  return absl::OkStatus();
}

TcpStoreSessionState TcpStoreSession::Export() const {
  TcpStoreSessionState state{.client = client_,
                             .parser = parser_.Export(),
                             .output = output_.Export(),
                             .request_count = request_count_};
  if (long_reply_ == nullptr) return state;
  // Nothing of a list has been sent, so it begins again.
  const bool is_list = long_reply_->op == TcpStoreOp::kListKeys;
  state.long_reply = is_list ? TcpStoreLongReply::kListKeys : TcpStoreLongReply::kMultiGet;
  const auto& keys = long_reply_->keys;
  state.long_reply_keys.assign(keys.begin() + static_cast<ptrdiff_t>(long_reply_->done),
                               keys.end());
  return state;
}

absl::Status TcpStoreSession::Restore(TcpStoreSessionState state) {
  FERRY_RETURN_IF_ERROR(parser_.Restore(state.parser));
  FERRY_RETURN_IF_ERROR(output_.Restore(std::move(state.output)));
  request_count_ = state.request_count;
  if (state.long_reply == TcpStoreLongReply::kNone) return absl::OkStatus();
  const bool is_list = state.long_reply == TcpStoreLongReply::kListKeys;
  SetLongReply(is_list ? TcpStoreOp::kListKeys : TcpStoreOp::kMultiGet,
               std::move(state.long_reply_keys));
  return absl::OkStatus();
}

absl::Status TcpStoreSession::RestoreWait(const TcpStoreWaitInfo& wait) {
  FERRY_RETURN_IF_ERROR(store_.RestoreWait(client_, wait, OnWaitEnd()));
  pending_wait_ = last_wait_;
  wait_bytes_ = store_.WaitBytes(client_);
  return absl::OkStatus();
}

absl::Status TcpStoreSession::RestoreWaits(const TcpStoreState& state, const Sessions& sessions) {
  const auto unknown = [](TcpStoreClient client) {
    return absl::InvalidArgumentError(absl::StrCat("there is no client ", client.value()));
  };
  for (const TcpStoreState::Reservation& each : state.reservations) {
    const auto session = sessions.find(each.client);
    if (session == sessions.end()) return unknown(each.client);
    FERRY_RETURN_IF_ERROR(session->second->store_.RestoreReservation(session->second->client_,
                                                                     each.queue, each.until));
  }
  for (const TcpStoreWaitInfo& wait : state.waits) {
    const auto session = sessions.find(wait.client);
    if (session == sessions.end()) return unknown(wait.client);
    FERRY_RETURN_IF_ERROR(session->second->RestoreWait(wait));
  }
  return absl::OkStatus();
}

}  // namespace ferry::coord
