// SPDX-License-Identifier: Apache-2.0
// Simulated ranks over streams of ferry.v1.Control, and the baseline's echo: no thread of their
// own, and as little work as possible, so that the server dominates the measurement.
#ifndef FERRY_BENCHMARKS_SUPPORT_CONTROL_RANKS_H_
#define FERRY_BENCHMARKS_SUPPORT_CONTROL_RANKS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/channel.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "benchmarks/support/control_frames.h"
#include "proto/ferry_control.pb.h"

namespace ferry::bench {

// One stream of frames. Thread-safe; `on_frame` is called one call at a time.
class ControlStream {
 public:
  using OnFrame = std::function<void(const ScannedFrame&)>;

  // A gRPC stream, for floors.
  static std::unique_ptr<ControlStream> OverGrpc(std::shared_ptr<grpc::Channel> channel,
                                                 const std::string& method, OnFrame on_frame);
  // Like the agents': a connection of the same class as theirs.
  static std::unique_ptr<ControlStream> OverConnection(const std::string& address,
                                                       OnFrame on_frame);
  // Waits for the end of the stream.
  virtual ~ControlStream() = default;

  // Writes the frame as soon as those before it are written.
  virtual void Send(grpc::ByteBuffer frame) = 0;
  virtual void Cancel() = 0;
  // A frame with one request and an acknowledgement of all that has come; ids count from 1.
  void SendRequest(absl::string_view op) ABSL_LOCKS_EXCLUDED(mu_);
  // The same with all `ops` in one frame; `hello`, if not null, goes first.
  void SendRequests(const v1::Hello* hello, const std::vector<std::string>& ops)
      ABSL_LOCKS_EXCLUDED(mu_);

 protected:
  explicit ControlStream(OnFrame on_frame) : on_frame_(std::move(on_frame)) {}
  // Ends the process if a request was refused.
  void Take(const ScannedFrame& frame) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const OnFrame on_frame_;
  absl::Mutex mu_;
  uint64_t last_request_id_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t acked_sequence_ ABSL_GUARDED_BY(mu_) = 0;
};

// A rank's script: sends the requests of a step in one frame, waits for that many replies, and
// continues with the next step.
struct Step {
  std::vector<std::string> ops;
  int replies = 1;
};
using Script = std::vector<Step>;

// Ranks 0, 1, ... of a job, with a connection and a stream each. Thread-compatible.
class ControlRanks final {
 public:
  // Makes channels only; a rank attaches with its first step.
  ControlRanks(const std::string& address, int count);
  ~ControlRanks();

  // Every rank of the first `count` runs its script; returns the time until all have finished. Ends
  // the process if a request is refused.
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
