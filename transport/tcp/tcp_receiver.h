// SPDX-License-Identifier: Apache-2.0
// TcpReceiver: the consumer's endpoint of a pair over TCP.
#ifndef FERRY_TRANSPORT_TCP_TCP_RECEIVER_H_
#define FERRY_TRANSPORT_TCP_TCP_RECEIVER_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

#include "transport/control/connection_manager.h"
#include "transport/tcp/data_plane.h"
#include "transport/transport.h"

namespace ferry {

// Opens the connections, and writes slices to their targets.
class TcpReceiver final : public TransportReceiver,
                          public SliceSink,
                          public std::enable_shared_from_this<TcpReceiver> {
 public:
  // `plane` must outlive it.
  TcpReceiver(TransportEnvironment environment, DataPlane& plane, Endpoint peer)
      : environment_(std::move(environment)), plane_(plane), peer_(std::move(peer)) {}

  void Fetch(uint64_t id, const TensorHeader& header, absl::string_view body,
             absl::Span<UniqueFd> descriptors, const Tensor& destination,
             FetchCallback done) override ABSL_LOCKS_EXCLUDED(mu_);
  void Discard(uint64_t id, const TensorHeader& header, absl::string_view body,
               absl::Span<UniqueFd> descriptors) override ABSL_LOCKS_EXCLUDED(mu_);
  void Cancel(uint64_t id) override ABSL_LOCKS_EXCLUDED(mu_);
  void Abort(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);

  Verdict FindTarget(const SliceHeader& header, SliceTarget* target) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void OnSlice(const SliceHeader& header) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnBroken(const absl::Status& why) override;

 private:
  struct Incoming {
    // Invalid: cancelled.
    Tensor tensor;
    FetchCallback done;
    size_t bytes = 0;
    size_t left = 0;
    std::shared_ptr<ClosableWriter> gate = std::make_shared<ClosableWriter>();
    // For booleans only, as in SliceTarget.
    std::shared_ptr<std::atomic<bool>> has_non_boolean;
  };

  void Expect(uint64_t id, size_t bytes, Incoming incoming) ABSL_LOCKS_EXCLUDED(mu_);
  // Polls for a tensor that is about to arrive over the near connection.
  void PollForArrival(const TensorHeader& header, absl::string_view body) ABSL_LOCKS_EXCLUDED(mu_);
  void Connect();
  void ConnectAs(uint32_t index);
  void OnNoConnection(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  void AddConnection(DataConnection connection) ABSL_LOCKS_EXCLUDED(mu_);

  const TransportEnvironment environment_;
  DataPlane& plane_;
  const Endpoint peer_;
  absl::Mutex mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  // Connections still being opened.
  int connecting_ ABSL_GUARDED_BY(mu_) = 0;
  bool has_waiting_reader_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<uint64_t, Incoming> incoming_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<SliceReader>> readers_ ABSL_GUARDED_BY(mu_);
  // One of the readers.
  std::shared_ptr<SliceReader> near_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_TCP_TCP_RECEIVER_H_
