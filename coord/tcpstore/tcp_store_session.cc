// SPDX-License-Identifier: Apache-2.0
// Executing requests and encoding replies.
#include "coord/tcpstore/tcp_store_session.h"

#include <cstdint>
#include <optional>
#include <utility>

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

}  // namespace

bool TcpStoreSession::EndsWait(char op) {
  switch (parser_.dialect()) {
    case TcpStoreDialect::kTorch22:
      return op == kTorch22CancelWait;
    case TcpStoreDialect::kTorch21:
      return op == kTorch21CancelWait;
    case TcpStoreDialect::kTorch1:
    case TcpStoreDialect::kUnknown:
      // Without a reply: the client has given up the wait.
      if (op != kTorch21CancelWait) {
        store_.CancelWait(client_);
        pending_wait_ = 0;
      }
      return true;
  }
  return true;
}

absl::Status TcpStoreSession::Consume(absl::string_view& bytes) {
  while (!bytes.empty()) {
    if (output_.bytes() > kMaxOutput) return absl::OkStatus();
    if (is_waiting() && parser_.is_at_request() && !EndsWait(bytes.front()))
      return absl::OkStatus();
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
    if (self == nullptr || self->pending_wait_ != wait) return;
    self->pending_wait_ = 0;
    self->output_.AddByte(kStopWaiting);
    self->on_output_();
  };
}

absl::Status TcpStoreSession::Await(const absl::StatusOr<bool>& is_over) {
  if (!is_over.ok()) return is_over.status();
  if (*is_over) {
    output_.AddByte(kStopWaiting);
  } else {
    pending_wait_ = last_wait_;
  }
  return absl::OkStatus();
}

absl::Status TcpStoreSession::Execute(TcpStoreRequest request) {
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
      for (const std::string& key : request.keys) output_.AddVector(store_.Get(key));
      break;
    case TcpStoreOp::kCheck:
      output_.AddByte(store_.Check(request.keys) ? kReady : kNotReady);
      break;
    case TcpStoreOp::kWait:
      return named(Await(store_.Wait(client_, request.keys, OnWaitEnd())));
    case TcpStoreOp::kBarrier:
      return named(Await(store_.Barrier(client_, request.key, request.number, OnWaitEnd())));
    case TcpStoreOp::kCancelWait:
      pending_wait_ = 0;
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
    case TcpStoreOp::kListKeys: {
      const std::vector<std::string> keys = store_.ListKeys();
      output_.AddNumber(static_cast<int64_t>(keys.size()));
      for (const std::string& key : keys) output_.AddVector(absl::string_view(key));
      break;
    }
  }
  return absl::OkStatus();
}

}  // namespace ferry::coord
