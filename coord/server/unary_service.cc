// SPDX-License-Identifier: Apache-2.0
// The two ways in which gRPC represents a unary call.
#include "coord/server/unary_service.h"

#include <atomic>
#include <chrono>
#include <utility>

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "base/text.h"

namespace ferry::coord {
namespace {

// A call's state: its wait, and whether it has been answered. Thread-safe.
class CallState final {
 public:
  explicit CallState(Frontend& frontend) : frontend_(frontend) {}

  void Park(WaitId wait) {
    if (wait == kNoWait) return;
    uint64_t before = kRunning;
    if (!state_.compare_exchange_strong(before, wait.value()) && before == kDropped) {
      frontend_.Drop(wait);
    }
  }
  // The client disconnected, cancelled, or timed out.
  void Drop() {
    const uint64_t before = state_.exchange(kDropped);
    if (before != kRunning && before != kAnswered && before != kDropped) {
      frontend_.Drop(WaitId(before));
    }
  }
  void NoteAnswered() { state_.store(kAnswered); }

  // An answered call only has to be deleted. gRPC would do that, and report a late cancellation,
  // on yet another thread, unless a reactor declares that unnecessary: see
  // grpc::internal::ServerReactor.
  bool is_answered() const { return state_.load() == kAnswered; }

 private:
  // Any other value is a WaitId.
  static constexpr uint64_t kRunning = 0;
  static constexpr uint64_t kDropped = ~uint64_t{0};
  static constexpr uint64_t kAnswered = kDropped - 1;

  Frontend& frontend_;
  std::atomic<uint64_t> state_{kRunning};
};

absl::Duration TimeUntil(std::chrono::system_clock::time_point deadline) {
  // gRPC's value for a call without a deadline.
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteDuration();
  return absl::FromChrono(deadline - std::chrono::system_clock::now());
}

// A deferred call of a method in gRPC's table. Deletes itself when it is over.
class RegisteredDeferredCall final : public grpc::ServerUnaryReactor, public DeferredCall {
 public:
  RegisteredDeferredCall(Frontend& frontend, grpc::CallbackServerContext* context,
                         grpc::ByteBuffer* response)
      : context_(context), response_(response), state_(frontend) {}

  std::string peer() const override { return context_->peer(); }
  absl::Duration TimeLeft() const override { return TimeUntil(context_->deadline()); }
  void SetWait(WaitId wait) override { state_.Park(wait); }
  void Answer(grpc::Status status, grpc::ByteBuffer response) override {
    state_.NoteAnswered();
    response_->Swap(&response);
    ServerUnaryReactor::Finish(std::move(status));
  }

 private:
  DeferredCall* Keep() override { return this; }
  void OnCancel() override { state_.Drop(); }
  void OnDone() override { delete this; }
  bool InternalInlineable() override { return state_.is_answered(); }

  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const response_;
  CallState state_;
};

// A call of such a method in its handler. One that is answered at once needs no object of its own:
// every gRPC call contains a default reactor.
class RegisteredCall final : public UnaryCall {
 public:
  RegisteredCall(Frontend& frontend, grpc::CallbackServerContext* context,
                 grpc::ByteBuffer* response)
      : frontend_(frontend), context_(context), response_(response) {}

  std::string peer() const override { return context_->peer(); }
  absl::Duration TimeLeft() const override { return TimeUntil(context_->deadline()); }
  void Answer(grpc::Status status, grpc::ByteBuffer response) override {
    response_->Swap(&response);
    reactor_ = context_->DefaultReactor();
    reactor_->Finish(std::move(status));
  }
  // The reactor that the handler returns to gRPC.
  grpc::ServerUnaryReactor* reactor() const { return reactor_; }

 private:
  DeferredCall* Keep() override {
    auto* call = new RegisteredDeferredCall(frontend_, context_, response_);
    reactor_ = call;
    return call;
  }

  Frontend& frontend_;
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const response_;
  grpc::ServerUnaryReactor* reactor_ = nullptr;
};

using Stream = grpc::ServerGenericBidiReactor;

// A call of any other method: gRPC treats it as a stream, of which one message is read and one
// written, in the packets of a unary call. Deletes itself when it is over.
class GenericCall final : public Stream, public DeferredCall {
 public:
  GenericCall(Frontend& frontend, grpc::CallbackServerContext* context, const UnaryHandler& handler)
      : context_(context), handler_(handler), state_(frontend) {
    StartRead(&request_);
  }

  std::string peer() const override { return context_->peer(); }
  absl::Duration TimeLeft() const override { return TimeUntil(context_->deadline()); }
  void SetWait(WaitId wait) override { state_.Park(wait); }
  void Answer(grpc::Status status, grpc::ByteBuffer response) override {
    state_.NoteAnswered();
    if (!status.ok()) return Stream::Finish(std::move(status));
    response_.Swap(&response);
    StartWriteAndFinish(&response_, grpc::WriteOptions(), std::move(status));
  }

 private:
  DeferredCall* Keep() override { return this; }
  // gRPC keeps the call at least until this returns. A missing request counts as one that cannot
  // be parsed, as for the methods in gRPC's table.
  void OnReadDone(bool) override { handler_(*this, request_); }
  void OnCancel() override { state_.Drop(); }
  void OnDone() override { delete this; }
  bool InternalInlineable() override { return state_.is_answered(); }

  grpc::CallbackServerContext* const context_;
  const UnaryHandler& handler_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
  CallState state_;
};

// A call of an unknown method. Deletes itself when it is over.
class UnknownCall final : public Stream {
 public:
  explicit UnknownCall(const std::string& why) {
    Finish(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, why));
  }

 private:
  void OnDone() override { delete this; }
};

std::string UnknownMethodText(const std::string& method) {
  for (const absl::string_view service :
       {"/tensorflow.WorkerService/", "/tensorflow.grpc.WorkerService/", "/ferry.v1.TensorStream/",
        "/ferry.v1.Trace/"}) {
    if (!absl::StartsWith(method, service)) continue;
    return absl::StrCat("this is the coordinator's port; ", method,
                        " is served by workers, each at its own port: `ferry kv get "
                        "--text ferry/exchange/0` shows the address of node 0 as grpc_address");
  }
  return absl::StrCat("this is the coordinator's port, which has no method ", Quoted(method));
}

}  // namespace

grpc::ServerGenericBidiReactor* GenericMethodTable::CreateReactor(
    grpc::GenericCallbackServerContext* context) {
  const auto found = handlers_.find(context->method());
  if (found == handlers_.end()) {
    const auto other = others_.find(context->method());
    if (other != others_.end()) return other->second(context);
    return new UnknownCall(UnknownMethodText(context->method()));
  }
  return new GenericCall(frontend_, context, found->second);
}

const UnaryHandler* UnaryService::Find(absl::string_view path) const {
  for (const auto& method : frequent_) {
    if (method->path == path) return &method->handler;
  }
  return rare_.Find(path);
}

void UnaryService::AddHandler(std::string path, bool is_frequent, UnaryHandler handler) {
  if (!is_frequent) return rare_.Add(std::move(path), std::move(handler));
  frequent_.push_back(
      std::make_unique<const Frequent>(Frequent{std::move(path), std::move(handler)}));
  const Frequent& method = *frequent_.back();
  AddUnary(method.path.c_str(), [&frontend = frontend_, &handler = method.handler](
                                    grpc::CallbackServerContext* context,
                                    const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
    RegisteredCall call(frontend, context, response);
    grpc::ByteBuffer bytes = *request;
    handler(call, bytes);
    return call.reactor();
  });
}

}  // namespace ferry::coord
