// SPDX-License-Identifier: Apache-2.0
// TcpSender: the producer's endpoint of a pair over TCP.
#ifndef FERRY_TRANSPORT_TCP_TCP_SENDER_H_
#define FERRY_TRANSPORT_TCP_TCP_SENDER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"

#include "transport/control/connection_manager.h"
#include "transport/tcp/data_plane.h"
#include "transport/transport.h"

namespace ferry {

// Sends exposed tensors over the connections that exist.
class TcpSender final : public TransportSender,
                        public SliceSource,
                        public std::enable_shared_from_this<TcpSender> {
 public:
  // `event_loop` runs the near connection. Both must outlive it.
  TcpSender(DataPlane& plane, EventLoop& event_loop) : plane_(plane), event_loop_(event_loop) {}

  void Expose(uint64_t id, const Tensor& tensor, const TensorLocation& to,
              ExposeCallback done) override ABSL_LOCKS_EXCLUDED(mu_);
  // Connections keep what they are sending; a cancelled tensor is still sent in full, since the
  // receiver counts its bytes.
  void Release(uint64_t id) override ABSL_LOCKS_EXCLUDED(mu_);
  // The obstacle of the first connection that has one.
  std::string Obstacle() const override ABSL_LOCKS_EXCLUDED(mu_);
  void Abort(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);

  void AddConnection(DataConnection connection) ABSL_LOCKS_EXCLUDED(mu_);

  bool NextSlice(SliceWriter& writer, Slice& slice) override ABSL_LOCKS_EXCLUDED(mu_);
  // The receiver notices too, and closes its control channel; then Abort is called.
  void OnBroken(const absl::Status& why) override { Abort(why); }

 private:
  using Transfers = std::deque<std::shared_ptr<OutgoingBytes>>;

  static bool NextOf(Transfers& queue, Slice& slice);

  DataPlane& plane_;
  EventLoop& event_loop_;
  mutable absl::Mutex mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  Transfers queue_ ABSL_GUARDED_BY(mu_);
  // At most one transfer, sent by the near connection alone.
  Transfers near_queue_ ABSL_GUARDED_BY(mu_);
  // Exposed and not released: more than one is a stream, which several threads carry faster.
  absl::flat_hash_set<uint64_t> under_way_ ABSL_GUARDED_BY(mu_);
  // All but the near one.
  std::vector<std::shared_ptr<SliceWriter>> writers_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<SliceWriter> near_ ABSL_GUARDED_BY(mu_);
  // Waiting for Kick.
  std::vector<std::shared_ptr<SliceWriter>> idle_ ABSL_GUARDED_BY(mu_);
  bool is_near_idle_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_TCP_TCP_SENDER_H_
