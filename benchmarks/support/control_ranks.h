// SPDX-License-Identifier: Apache-2.0
// Simulated ranks over streams of ferry.v1.Control (or the floor's echo): no thread of their own,
// and as little work as can be, so that the server is what is measured.
#ifndef FERRY_BENCHMARKS_SUPPORT_CONTROL_RANKS_H_
#define FERRY_BENCHMARKS_SUPPORT_CONTROL_RANKS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/client_callback.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

#include "benchmarks/support/control_frames.h"
#include "proto/ferry_control.pb.h"

namespace ferry::bench {

inline constexpr char kAttachMethod[] = "/ferry.v1.Control/Attach";

// One stream. Thread-safe; `on_frame` is called by gRPC's threads, one call at a time.
class ControlStream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  using OnFrame = std::function<void(const ScannedFrame&)>;

  ControlStream(std::shared_ptr<grpc::Channel> channel, const std::string& method,
                OnFrame on_frame);
  // Waits for the end of the stream.
  ~ControlStream() override;

  // Writes the frame as soon as those before it are written.
  void Send(grpc::ByteBuffer frame) ABSL_LOCKS_EXCLUDED(mu_);
  // A frame with one request and an acknowledgement of all that has come; ids count from 1.
  void SendRequest(absl::string_view op) ABSL_LOCKS_EXCLUDED(mu_);
  // The same with all `ops` in one frame; `hello`, if not null, goes first.
  void SendRequests(const v1::Hello* hello, const std::vector<std::string>& ops)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Cancel() { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnDone(const grpc::Status& status) override;
  void SendLocked(grpc::ByteBuffer frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const OnFrame on_frame_;
  grpc::ClientContext context_;
  grpc::ByteBuffer in_;
  absl::Notification is_done_;

  absl::Mutex mu_;
  grpc::ByteBuffer out_ ABSL_GUARDED_BY(mu_);
  std::deque<grpc::ByteBuffer> queue_ ABSL_GUARDED_BY(mu_);
  bool is_writing_ ABSL_GUARDED_BY(mu_) = false;
  bool is_broken_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t last_request_id_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t acked_sequence_ ABSL_GUARDED_BY(mu_) = 0;
};

// What a rank does: sends the requests of a step in one frame, waits for that many replies, goes on
// to the next step.
struct Step {
  std::vector<std::string> ops;
  int replies = 1;
};
using Script = std::vector<Step>;

// Ranks 0, 1, ... of a job, with a connection and a stream each. Thread-compatible.
class ControlRanks final {
 public:
  // Makes channels only; a rank attaches with the first step it takes.
  ControlRanks(const std::string& address, int count);
  ~ControlRanks();

  // Every rank of the first `count` goes through its script; returns when all have, with the time
  // it took. Ends the process if a request is refused.
  absl::Duration RunAll(const std::vector<Script>& scripts);
  // The blob that rank `index` has received last.
  std::string blob(int index) const;
  int count() const { return static_cast<int>(ranks_.size()); }

 private:
  class Rank;
  struct Pending;

  std::unique_ptr<Pending> pending_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

// v1::Request's fields of one operation, without the id.
std::string Op(const v1::Request& request);
std::string RegisterOp();
std::string BarrierOp(const std::string& id, int64_t counter);

}  // namespace ferry::bench

#endif  // FERRY_BENCHMARKS_SUPPORT_CONTROL_RANKS_H_
