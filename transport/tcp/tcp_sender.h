// SPDX-License-Identifier: Apache-2.0
// TcpSender: the producer's half of a pair over TCP.
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

// Sends what was offered over whichever connections there are.
class TcpSender final : public TransportSender,
                        public SliceSource,
                        public std::enable_shared_from_this<TcpSender> {
 public:
  // `event_loop` is of the near connection. Both outlive it.
  TcpSender(DataPlane& plane, EventLoop& event_loop) : plane_(plane), event_loop_(event_loop) {}

  void Offer(uint64_t id, const Tensor& tensor, const TensorLocation& to,
             OfferCallback done) override ABSL_LOCKS_EXCLUDED(mu_);
  // The connections hold what they are sending; what nobody wants is sent all the same, since the
  // receiver counts on it.
  void Release(uint64_t id) override ABSL_LOCKS_EXCLUDED(mu_);
  // The obstacle of the first connection that has one.
  std::string Obstacle() const override ABSL_LOCKS_EXCLUDED(mu_);
  void Abort(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);

  void AddConnection(DataConnection connection) ABSL_LOCKS_EXCLUDED(mu_);

  bool NextSlice(SliceWriter& writer, Slice& slice) override ABSL_LOCKS_EXCLUDED(mu_);
  // The receiver notices as well, and ends its control channel; then Abort comes.
  void OnBroken(const absl::Status& why) override { Abort(why); }

 private:
  using Transfers = std::deque<std::shared_ptr<OutgoingTransfer>>;

  static bool NextOf(Transfers& queue, Slice& slice);

  DataPlane& plane_;
  EventLoop& event_loop_;
  mutable absl::Mutex mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  Transfers queue_ ABSL_GUARDED_BY(mu_);
  // At most one transfer, which the near connection sends alone.
  Transfers near_queue_ ABSL_GUARDED_BY(mu_);
  // Offered and not released: more than one is a stream, which several threads carry faster.
  absl::flat_hash_set<uint64_t> under_way_ ABSL_GUARDED_BY(mu_);
  // All but the near one.
  std::vector<std::shared_ptr<SliceWriter>> writers_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<SliceWriter> near_ ABSL_GUARDED_BY(mu_);
  // Those that wait to be kicked.
  std::vector<std::shared_ptr<SliceWriter>> idle_ ABSL_GUARDED_BY(mu_);
  bool is_near_idle_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_TCP_TCP_SENDER_H_
