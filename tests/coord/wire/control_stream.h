// SPDX-License-Identifier: Apache-2.0
// ControlStream: ferry.v1.Control spoken frame by frame, as no decent agent would.
#ifndef FERRY_TESTS_COORD_WIRE_CONTROL_STREAM_H_
#define FERRY_TESTS_COORD_WIRE_CONTROL_STREAM_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/client_context.h>
#include <grpcpp/support/sync_stream.h>

#include "absl/time/clock.h"

#include "proto/ferry_control.grpc.pb.h"
#include "wire_client.h"

namespace ferry::coord {

// One stream. Not thread-safe. Everything ends within kTimeout.
class ControlStream {
 public:
  explicit ControlStream(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(v1::Control::NewStub(channel)), context_(new grpc::ClientContext) {
    context_->set_deadline(absl::ToChronoTime(absl::Now() + kTimeout));
    stream_ = stub_->Attach(context_.get());
  }
  ~ControlStream() {
    if (stream_ != nullptr) Break();
  }

  void Send(const v1::ClientFrame& frame) {
    if (stream_ != nullptr) stream_->Write(frame);
  }
  void Send(std::vector<v1::Request> requests) {
    v1::ClientFrame frame;
    for (v1::Request& request : requests) *frame.add_requests() = std::move(request);
    Send(frame);
  }
  void Acknowledge(uint64_t sequence) {
    v1::ClientFrame frame;
    frame.set_acked_sequence(sequence);
    Send(frame);
  }

  // Attaches; fails the test unless it is welcome.
  v1::Welcome Attach(uint64_t session_id = 0, uint64_t acked_sequence = 0) {
    v1::Hello hello;
    hello.set_session_id(session_id);
    hello.set_acked_sequence(acked_sequence);
    return Attach(hello);
  }
  v1::Welcome Attach(const v1::Hello& hello) {
    SendHello(hello);
    while (!welcome_.has_value()) {
      if (!ReadOne()) {
        ADD_FAILURE() << "no welcome";
        return v1::Welcome();
      }
    }
    return *welcome_;
  }
  void SendHello(const v1::Hello& hello) {
    v1::ClientFrame frame;
    *frame.mutable_hello() = hello;
    Send(frame);
  }

  // Reads one frame; false when the stream has ended.
  bool ReadOne() {
    v1::ServerFrame frame;
    if (stream_ == nullptr || !stream_->Read(&frame)) return false;
    if (frame.has_welcome()) welcome_ = frame.welcome();
    if (frame.sequence() != 0) sequences.push_back(frame.sequence());
    for (const v1::Reply& reply : frame.replies()) {
      ++reply_counts[reply.request_id()];
      replies[reply.request_id()] = reply;
      if (reply.has_blob()) blobs[reply.request_id()] = frame.blob();
    }
    for (const v1::Event& event : frame.events()) events.push_back(event);
    return true;
  }
  // Reads until the answer to `id` is there.
  v1::Reply ReplyTo(uint64_t id) {
    while (replies.count(id) == 0) {
      if (!ReadOne()) {
        ADD_FAILURE() << "the stream ended before request " << id
                      << " was answered: " << Finish().error_message();
        return v1::Reply();
      }
    }
    return replies[id];
  }
  // Sends one request and reads until it is answered.
  v1::Reply Call(v1::Request request) {
    const uint64_t id = request.id();
    Send({std::move(request)});
    return ReplyTo(id);
  }
  bool ReadUntilEvents(size_t count) {
    while (events.size() < count) {
      if (!ReadOne()) return false;
    }
    return true;
  }
  // Reads to the end and returns the final status.
  absl::Status End() {
    while (ReadOne()) {
    }
    const grpc::Status status = Finish();
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  }
  // Breaks the connection.
  void Break() {
    context_->TryCancel();
    while (ReadOne()) {
    }
    if (stream_ != nullptr) Finish();
    stream_ = nullptr;
  }

  uint64_t last_sequence() const { return sequences.empty() ? 0 : sequences.back(); }

  // Everything that has come, ever.
  std::map<uint64_t, v1::Reply> replies;
  std::map<uint64_t, int> reply_counts;
  std::map<uint64_t, std::string> blobs;
  std::vector<v1::Event> events;
  std::vector<uint64_t> sequences;

 private:
  grpc::Status Finish() {
    if (stream_ == nullptr) return grpc::Status(grpc::StatusCode::UNKNOWN, "ended before");
    const grpc::Status status = stream_->Finish();
    stream_ = nullptr;
    return status;
  }

  std::unique_ptr<v1::Control::Stub> stub_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ClientFrame, v1::ServerFrame>> stream_;
  std::optional<v1::Welcome> welcome_;
};

// Requests, by operation.
inline v1::Request PutRequest(uint64_t id, Entries entries, bool overwrite = false) {
  v1::Request request;
  request.set_id(id);
  request.mutable_put()->set_overwrite(overwrite);
  for (auto& [key, value] : entries) {
    v1::KeyValue* entry = request.mutable_put()->add_entries();
    entry->set_key(key);
    entry->set_value(value);
  }
  return request;
}
inline v1::Request GetRequest(uint64_t id, const std::vector<std::string>& keys,
                              absl::Duration timeout) {
  v1::Request request;
  request.set_id(id);
  for (const std::string& key : keys) request.mutable_get()->add_keys(key);
  request.mutable_get()->set_timeout_ms(absl::ToInt64Milliseconds(timeout));
  return request;
}
inline v1::Request IncrementRequest(uint64_t id, const std::string& key, int64_t increment) {
  v1::Request request;
  request.set_id(id);
  request.mutable_increment()->set_key(key);
  request.mutable_increment()->set_increment(increment);
  return request;
}
inline v1::Request BarrierRequest(uint64_t id, const std::string& name, absl::Duration timeout,
                                  int64_t counter = 0) {
  v1::Request request;
  request.set_id(id);
  request.mutable_barrier()->set_id(name);
  request.mutable_barrier()->set_timeout_ms(absl::ToInt64Milliseconds(timeout));
  request.mutable_barrier()->set_counter(counter);
  return request;
}
inline v1::Request CancelRequest(uint64_t id, uint64_t other) {
  v1::Request request;
  request.set_id(id);
  request.mutable_cancel()->set_request_id(other);
  return request;
}
inline v1::Hello RankHello(int node_id, uint64_t incarnation, const std::string& host) {
  v1::Hello hello;
  hello.mutable_node()->set_node_id(node_id);
  hello.mutable_node()->set_incarnation(incarnation);
  hello.mutable_node()->set_host_name(host);
  hello.mutable_node()->set_process_id(1000 + node_id);
  return hello;
}

}  // namespace ferry::coord

#endif  // FERRY_TESTS_COORD_WIRE_CONTROL_STREAM_H_
