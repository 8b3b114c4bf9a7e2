// SPDX-License-Identifier: Apache-2.0
// Streams and the ranks that use them.
#include "benchmarks/support/control_ranks.h"

#include <deque>
#include <utility>

#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/client_callback.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

#include "base/clock.h"
#include "benchmarks/support/server_process.h"
#include "benchmarks/support/unary_calls.h"
#include "coord/wire/direct_connection.h"
#include "net/resolver.h"
#include "net/socket_loop.h"

namespace ferry::bench {

namespace {

class GrpcStream final : public ControlStream,
                         public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  GrpcStream(std::shared_ptr<grpc::Channel> channel, const std::string& method, OnFrame on_frame)
      : ControlStream(std::move(on_frame)) {
    context_.set_wait_for_ready(true);
    RawStub(std::move(channel)).PrepareBidiStreamingCall(&context_, method, {}, this);
    StartRead(&in_);
    StartCall();
  }
  ~GrpcStream() override {
    context_.TryCancel();
    is_done_.WaitForNotification();
  }

  void Send(grpc::ByteBuffer frame) override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    SendLocked(std::move(frame));
  }
  void Cancel() override { context_.TryCancel(); }

 private:
  void SendLocked(grpc::ByteBuffer frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    // A read is always pending unless the stream is broken, so that writing is allowed.
    if (is_broken_) return;
    if (is_writing_) {
      queue_.push_back(std::move(frame));
      return;
    }
    is_writing_ = true;
    out_ = std::move(frame);
    StartWrite(&out_);
  }

  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_) {
    if (!ok) {
      absl::MutexLock lock(&mu_);
      is_broken_ = true;
      return;
    }
    const ScannedFrame frame = ScanFrame(in_);
    in_.Clear();
    Take(frame);
    StartRead(&in_);
  }

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    is_writing_ = false;
    if (!ok || queue_.empty()) return;
    grpc::ByteBuffer next = std::move(queue_.front());
    queue_.pop_front();
    SendLocked(std::move(next));
  }

  void OnDone(const grpc::Status&) override { is_done_.Notify(); }

  grpc::ClientContext context_;
  grpc::ByteBuffer in_;
  absl::Notification is_done_;

  absl::Mutex mu_;
  grpc::ByteBuffer out_ ABSL_GUARDED_BY(mu_);
  std::deque<grpc::ByteBuffer> queue_ ABSL_GUARDED_BY(mu_);
  bool is_writing_ ABSL_GUARDED_BY(mu_) = false;
  bool is_broken_ ABSL_GUARDED_BY(mu_) = false;
};

class ConnectionStream final : public ControlStream {
 public:
  ConnectionStream(const std::string& address, OnFrame on_frame)
      : ControlStream(std::move(on_frame)), loop_(Loop()) {
    const auto addresses = ResolveAddress(address);
    if (!addresses.ok()) Fatal(addresses.status().ToString());
    connection_ = std::make_shared<Connection>(*this);
    connection_->Connect(*addresses);
  }
  ~ConnectionStream() override {
    Cancel();
    is_closed_.WaitForNotification();
  }

  void Send(grpc::ByteBuffer frame) override {
    std::vector<grpc::Slice> slices;
    if (frame.Dump(&slices).ok()) connection_->Send(slices);
  }
  void Cancel() override { connection_->Close(absl::CancelledError("done")); }

 private:
  class Connection final : public coord::DirectConnection {
   public:
    explicit Connection(ConnectionStream& stream)
        : DirectConnection(*stream.loop_), stream_(stream) {}

   private:
    bool OnFrame(const coord::DirectFrame& received) override {
      if (received.is_last) return true;
      ScannedFrame frame = ScanFrame(received.bytes);
      if (frame.has_blob) {
        frame.bytes = received.whole != nullptr ? grpc::ByteBuffer(received.whole, 1)
                                                : ToBuffer(received.bytes);
      }
      stream_.Take(frame);
      return true;
    }
    void OnDrained() override {}
    void OnClosed(const absl::Status& why) override {
      if (why.code() != absl::StatusCode::kCancelled) Fatal(why.ToString());
      stream_.is_closed_.Notify();
    }

    ConnectionStream& stream_;
  };

  static std::shared_ptr<SocketLoop> Loop() {
    auto loop = SocketLoop::OfClients();
    if (!loop.ok()) Fatal(loop.status().ToString());
    return *loop;
  }

  const std::shared_ptr<SocketLoop> loop_;
  absl::Notification is_closed_;
  std::shared_ptr<Connection> connection_;
};

}  // namespace

std::unique_ptr<ControlStream> ControlStream::OverGrpc(std::shared_ptr<grpc::Channel> channel,
                                                       const std::string& method,
                                                       OnFrame on_frame) {
  return std::make_unique<GrpcStream>(std::move(channel), method, std::move(on_frame));
}

std::unique_ptr<ControlStream> ControlStream::OverConnection(const std::string& address,
                                                             OnFrame on_frame) {
  return std::make_unique<ConnectionStream>(address, std::move(on_frame));
}

void ControlStream::SendRequest(absl::string_view op) {
  std::string frame;
  absl::MutexLock lock(&mu_);
  AppendAck(acked_sequence_, frame);
  AppendRequest(++last_request_id_, op, frame);
  Send(ToBuffer(frame));
}

void ControlStream::SendRequests(const v1::Hello* hello, const std::vector<std::string>& ops) {
  std::string frame;
  if (hello != nullptr) AppendHello(*hello, frame);
  absl::MutexLock lock(&mu_);
  AppendAck(acked_sequence_, frame);
  for (const std::string& op : ops) AppendRequest(++last_request_id_, op, frame);
  Send(ToBuffer(frame));
}

void ControlStream::Take(const ScannedFrame& frame) {
  if (frame.code != 0) Fatal(absl::StrCat("a request was refused with code ", frame.code));
  if (frame.sequence != 0) {
    absl::MutexLock lock(&mu_);
    acked_sequence_ = frame.sequence;
  }
  on_frame_(frame);
}

struct ControlRanks::Pending {
  absl::Mutex mu;
  int count ABSL_GUARDED_BY(mu) = 0;

  bool IsOver() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return count == 0; }
};

// Constant or used by the stream's own callbacks only, and by Start while there are none.
class ControlRanks::Rank final {
 public:
  Rank(const std::string& address, int index, Pending& pending)
      : address_(address), pending_(pending) {
    v1::Node& node = *hello_.mutable_node();
    node.set_node_id(index);
    node.set_incarnation(static_cast<uint64_t>(index) + 1);
    node.set_host_name(absl::StrCat("host", index));
    node.set_boot_id(absl::StrCat("boot-", index));
  }

  void Start(const Script& script) {
    script_ = &script;
    step_ = 0;
    missing_ = script[0].replies;
    const bool is_new = stream_ == nullptr;
    if (is_new) {
      stream_ = ControlStream::OverConnection(
          address_, [this](const ScannedFrame& frame) { OnFrame(frame); });
    }
    stream_->SendRequests(is_new ? &hello_ : nullptr, script[0].ops);
  }
  void Cancel() {
    if (stream_ != nullptr) stream_->Cancel();
  }
  std::string blob() const { return BlobOf(blob_); }

 private:
  void OnFrame(const ScannedFrame& frame) {
    if (frame.has_blob) blob_ = frame;
    if (frame.replies == 0) return;  // The Welcome.
    missing_ -= frame.replies;
    if (missing_ > 0) return;
    if (++step_ < script_->size()) {
      missing_ = (*script_)[step_].replies;
      stream_->SendRequests(nullptr, (*script_)[step_].ops);
      return;
    }
    absl::MutexLock lock(&pending_.mu);
    --pending_.count;
  }

  const std::string address_;
  Pending& pending_;
  v1::Hello hello_;
  const Script* script_ = nullptr;
  size_t step_ = 0;
  int missing_ = 0;
  ScannedFrame blob_;
  // Last: its callbacks use the rest.
  std::unique_ptr<ControlStream> stream_;
};

ControlRanks::ControlRanks(const std::string& address, int count)
    : pending_(std::make_unique<Pending>()) {
  ranks_.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    ranks_.push_back(std::make_unique<Rank>(address, i, *pending_));
  }
}

ControlRanks::~ControlRanks() {
  for (const auto& rank : ranks_) rank->Cancel();
}

absl::Duration ControlRanks::RunAll(const std::vector<Script>& scripts) {
  {
    absl::MutexLock lock(&pending_->mu);
    pending_->count = static_cast<int>(scripts.size());
  }
  const absl::Time begin = SteadyClock().Now();
  for (size_t i = 0; i < scripts.size(); ++i) ranks_[i]->Start(scripts[i]);
  absl::MutexLock lock(&pending_->mu);
  pending_->mu.Await(absl::Condition(pending_.get(), &Pending::IsOver));
  return SteadyClock().Now() - begin;
}

std::string ControlRanks::blob(int index) const {
  return ranks_[static_cast<size_t>(index)]->blob();
}

std::string Op(const v1::Request& request) { return request.SerializeAsString(); }

std::string RegisterOp() {
  v1::Request request;
  request.mutable_register_();
  return Op(request);
}

std::string BarrierOp(const std::string& id, int64_t counter) {
  v1::Request request;
  request.mutable_barrier()->set_id(id);
  request.mutable_barrier()->set_counter(counter);
  request.mutable_barrier()->set_timeout_ms(600'000);
  return Op(request);
}

}  // namespace ferry::bench
