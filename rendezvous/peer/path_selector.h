// SPDX-License-Identifier: Apache-2.0
// PathSelector: how a tensor reaches one consumer: inline, in the RTS, or by which transport.
#ifndef FERRY_RENDEZVOUS_PEER_PATH_SELECTOR_H_
#define FERRY_RENDEZVOUS_PEER_PATH_SELECTOR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "base/spin_lock.h"
#include "rendezvous/peer/latency_probe.h"
#include "rendezvous/peer/transfer_context.h"
#include "tensor/tensor.h"
#include "transport/control/control_channel.h"
#include "transport/transports.h"

namespace ferry {

struct SelectedPath {
  enum class Kind : uint8_t {
    // The RTS carries the elements.
    kInline,
    // They are in GPU memory, and must be copied to host memory before they can be sent.
    kStage,
    kTransport,
    // There is no path; `error` says why.
    kNone,
  };
  Kind kind = Kind::kNone;
  // For kTransport: its index in the list.
  size_t transport = 0;
  bool is_in_arena = false;
  // For kTransport: it is the zero-copy path, of a transport that is neither retried nor measured.
  bool is_zero_copy = false;
  // Coarse.
  absl::Time now;
  absl::Status error;
};

// Thread-safe, once it has its channel.
class PathSelector final {
 public:
  // `needs_checksums`: the elements are read here, for a checksum.
  // `descriptors_unavailable_reason`: if the control channel passes none.
  PathSelector(const TransferContext& context, const Endpoint& consumer, bool needs_checksums,
               std::string descriptors_unavailable_reason, std::shared_ptr<LatencyProbe> probe);

  // Call before the first Select. The channel must outlive this.
  void set_channel(ControlChannel* channel);
  // Up to this size a tensor in host memory is sent in a message.
  size_t inline_max(bool is_in_arena) const {
    return is_in_arena ? inline_max_in_arena_ : inline_max_elsewhere_;
  }
  // Costs of transfers to the consumer.
  PathCostEstimator& costs() const { return *probe_->costs(); }

  // For a tensor that is requested in the memory `to`.
  SelectedPath Select(const Tensor& tensor, const TensorLocation& to) ABSL_LOCKS_EXCLUDED(mu_);
  // A transport has turned out not to connect the two: its Cost fails from now on.
  void OnTransportFailed() { zero_copy_.store(kNoTransport, std::memory_order_relaxed); }
  // The path of a tensor of `bytes` in host memory, and why not others. Also starts a latency
  // measurement, for the next call.
  //   Errors: as ExplainPath.
  absl::StatusOr<PathExplanation> Explain(size_t bytes, bool is_in_arena) const;

 private:
  static constexpr size_t kNoTransport = SIZE_MAX;

  // For a tensor from here to the consumer; all but its source and destination memory.
  PathQuery Query(size_t bytes, bool is_in_arena, absl::Time now) const;
  // Logs the path of such a tensor, and why, if that is new or has changed.
  void LogPath(const PathQuery& query, absl::string_view path) ABSL_LOCKS_EXCLUDED(mu_);

  const TransferContext& context_;
  const Endpoint& consumer_;
  const bool needs_checksums_;
  const std::string descriptors_unavailable_reason_;
  const std::shared_ptr<LatencyProbe> probe_;
  // The transports that the consumer has too.
  const TransportSet common_;
  ControlChannel* channel_ = nullptr;
  // Up to these sizes tensors in host memory go inline.
  size_t inline_max_in_arena_ = 0;
  size_t inline_max_elsewhere_ = 0;
  // See ZeroCopyPath: most tensors take this transport, and no other is asked for its cost.
  std::atomic<size_t> zero_copy_{kNoTransport};
  // That transport is neither retried nor measured.
  bool is_zero_copy_final_ = false;

  SpinLock mu_;
  // For the log, and empty unless that is enabled: the last path of each kind of tensor, by its
  // size, source and destination memory, and whether it is in an arena.
  absl::flat_hash_map<std::tuple<uint32_t, uint32_t, uint32_t, bool>, std::string> logged_paths_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_PATH_SELECTOR_H_
