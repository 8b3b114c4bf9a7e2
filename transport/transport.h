// SPDX-License-Identifier: Apache-2.0
// Transport: one way of getting a tensor from one process to another. All of them: transports.h.
#ifndef FERRY_TRANSPORT_TRANSPORT_H_
#define FERRY_TRANSPORT_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "base/unique_fd.h"
#include "gpu/gpus.h"
#include "net/event_loop.h"
#include "tensor/copy.h"
#include "tensor/host_arena.h"
#include "tensor/tensor.h"
#include "transport/control/connection_manager.h"
#include "transport/control/control_channel.h"
#include "transport/nccl/nccl_context.h"

namespace ferry {

// A process of the job, as far as choosing a path goes. Published by each in the store.
struct Endpoint {
  PeerId peer;
  // Equal exactly for processes of one machine; empty: unknown.
  std::string boot_id;
  std::string host_name;
  PeerAddresses channels;
  // HOST:PORT of its tensorflow.WorkerService, or several with commas, to try in turn; empty: none.
  std::string grpc_address;
  // UUIDs of its GPUs, by ordinal.
  std::vector<std::string> gpus;
  // As ncclGetVersion says; 0: it does not use NCCL.
  int nccl_version = 0;
  // Whether it has kernels for its GPUs, which nodes of graphs need.
  bool has_gpu_kernels = false;
};

// How a number of a cost is known.
enum class CostBasis : uint8_t {
  kAssumed,
  // Measured by this process for itself, when it started.
  kAtStart,
  // Measured between the two: by what transfers took, or a control channel's pings.
  kSeen,
};

// What a transfer takes, as far as is known.
struct PathCost {
  absl::Duration latency;
  double bytes_per_second = 0;
  CostBasis latency_basis = CostBasis::kAssumed;
  CostBasis bandwidth_basis = CostBasis::kAssumed;
  // Of what was seen, since it was seen last.
  absl::Duration latency_age;
  absl::Duration bandwidth_age;
  // Copies between a GPU's memory and the host's, which are counted in.
  int stages = 0;
  // In which way it does it, and why; for people. Empty: there is one way only.
  std::string note;

  absl::Duration Of(size_t bytes) const {
    return latency + absl::Seconds(static_cast<double>(bytes) / bytes_per_second);
  }
};

// Bytes per second that no copy reaches: nothing is copied.
inline constexpr double kNoCopy = 1e12;

class PathCostEstimator;

// What is to be moved between two processes.
struct PathQuery {
  const Endpoint* source = nullptr;
  const Endpoint* destination = nullptr;
  // Whether the two have a control channel that passes descriptors, and if not, why.
  bool lane_passes_descriptors = false;
  std::string why_no_descriptors;
  size_t bytes = 0;
  // Whether it lies in the source's arena.
  bool is_in_arena = false;
  // Whose memory it is in there, and is wanted in here.
  TensorLocation source_place;
  TensorLocation destination_place;
  // What has been seen between the two, by one of them, and the time; null: nothing.
  const PathCostEstimator* seen = nullptr;
  absl::Time now = absl::InfinitePast();
  // What a send and its receive take within one process, as this process has measured; zero: it has
  // not.
  absl::Duration local_exchange;
};

// What the receiver needs to take a tensor that the sender has offered. Opaque to everyone else.
struct TransferDescriptor {
  std::string body;
  // Only over control channels that pass them; the sender's, open until Release.
  std::vector<int> descriptors;
};

// What a tensor will be. Its elements are of fixed size.
struct TensorHeader {
  DataType dtype = DataType::kInvalid;
  Shape shape;
  size_t bytes = 0;
  // Where the receiver wants it.
  TensorLocation place;
};

// Says something to the peer's receiver (TransportReceiver::OnAnnouncement) that arrives before
// every transfer descriptor that is sent after it; or to its sender (TransportSender::OnReply),
// before every DONE that is sent after it. Thread-safe.
//   Errors: as ControlChannel::Send.
using Announce =
    std::function<absl::Status(absl::string_view body, absl::Span<const int> descriptors)>;

// The producer's half of a pair. Thread-safe. Ids are the caller's; none is used twice.
class TransportSender {
 public:
  using OfferCallback = absl::AnyInvocable<void(absl::StatusOr<TransferDescriptor>) &&>;

  virtual ~TransportSender() = default;
  // Before the first Offer.
  virtual void SetAnnounce(Announce announce) {}
  // The same for what the peer can do without: if it fails nothing else happens. Only of a control
  // channel that passes descriptors, to a peer that may be sent something by this transport.
  virtual void SetHint(Announce hint) {}
  // What the peer's receiver says back; not trusted.
  //   Errors: the peer does not keep to the protocol.
  virtual absl::Status OnReply(absl::string_view body) {
    return absl::InvalidArgumentError("this transport has nothing to reply");
  }
  // Makes `tensor` available to the peer, who wants it in its memory `to`, and keeps it until
  // Release. `done` may be called inside, and is called on any thread.
  //   Errors: RESOURCE_EXHAUSTED naming the option; UNAVAILABLE after Abort; FAILED_PRECONDITION
  //   with the reason when it has turned out that this pair cannot: Cost says so from then on.
  virtual void Offer(uint64_t id, const Tensor& tensor, const TensorLocation& to,
                     OfferCallback done) = 0;
  // Describes why the peer is not receiving what is being sent, as far as it is visible from here,
  // for error texts. Empty if nothing of the kind is known.
  virtual std::string Obstacle() const { return ""; }
  // The peer has what it wanted, or wants it no more. An id that is not known is none of an error.
  virtual void Release(uint64_t id) = 0;
  // The peer has gone: drops everything. Offers that are under way end with `why`.
  virtual void Abort(const absl::Status& why) = 0;
};

// The consumer's half of a pair. Thread-safe. For each transfer descriptor that arrives, Take or
// Drop.
class TransportReceiver {
 public:
  struct TakeInfo {
    // Implicit: most transports say no more.
    TakeInfo(bool later, bool checked = false)  // NOLINT(google-explicit-constructor)
        : release_later(later), has_checked_values(checked) {}
    // The tensor is a view of the producer's memory: the receiver's ReleaseCallback says when it is
    // not used any more.
    bool release_later;
    // The bytes were found to be valid elements while they were in the processor's caches:
    // CheckValues would succeed. False: it has to be called.
    bool has_checked_values;
  };
  // Once it has run, the id is over for this side.
  using TakeCallback = absl::AnyInvocable<void(absl::StatusOr<Tensor>, TakeInfo) &&>;

  virtual ~TransportReceiver() = default;
  // Before the first announcement.
  virtual void SetReply(Announce reply) {}
  // Whether it takes announcements whose descriptors this process had no room for; they are not
  // valid then.
  virtual bool is_fd_optional() const { return false; }
  // What the peer's sender has announced; not trusted.
  //   Errors: the peer does not keep to the protocol.
  virtual absl::Status OnAnnouncement(absl::string_view body, absl::Span<UniqueFd> descriptors) {
    return absl::InvalidArgumentError("this transport has nothing to announce");
  }
  // Gets the tensor; into `destination` if that is valid, which has the header's type and size.
  // Nothing of `body` and `descriptors` is trusted. `done` may be called inside, and is called on
  // any thread.
  //   Errors: INVALID_ARGUMENT for a transfer descriptor that makes no sense; UNAVAILABLE naming
  //   the phase.
  virtual void Take(uint64_t id, const TensorHeader& header, absl::string_view body,
                    absl::Span<UniqueFd> descriptors, const Tensor& destination,
                    TakeCallback done) = 0;
  // A Take that is under way is not wanted any more: nothing is written to its destination when
  // this returns, and its `done` may still run. Does not wait for a GPU: what it has been told to
  // write to a destination in its memory, it writes, and the destination is kept until then. An id
  // that is not known is none of an error.
  virtual void Cancel(uint64_t id) = 0;
  // What a taken tensor's path is called, where the transport has several ways; a literal. Empty:
  // the transport's name. Arguments as of Take.
  virtual absl::string_view PathOf(const TensorHeader& header, absl::string_view body,
                                   const Tensor& destination) const {
    return {};
  }
  // Nobody wants it.
  virtual void Drop(uint64_t id, const TensorHeader& header, absl::string_view body,
                    absl::Span<UniqueFd> descriptors) = 0;
  // The peer has gone. Takes that are under way end with `why`; tensors that were taken stay good.
  virtual void Abort(const absl::Status& why) = 0;
};

// Of views: called once for each id, on the thread that drops the last reference.
using ReleaseCallback = std::function<void(uint64_t id)>;

// What transports may use; outlives them.
struct TransportEnvironment {
  EventLoop* loop = nullptr;
  ConnectionManager* hub = nullptr;
  std::shared_ptr<HostArena> arena;
  CopyPool* copier = nullptr;
  // Null: this process uses none.
  Gpus* gpus = nullptr;
  NcclJob nccl;
  int32_t node_id = 0;
  uint64_t incarnation = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual absl::string_view name() const = 0;
  // One line for people.
  virtual absl::string_view summary() const = 0;
  //   Errors: the reason why it cannot.
  virtual absl::StatusOr<PathCost> Cost(const PathQuery& query) const = 0;
  // Whether it takes tensors in a GPU's memory; others have them staged through the host's.
  virtual bool moves_gpu_memory() const { return false; }
  // Whether a tensor that was offered can still be taken when its producer has gone.
  virtual bool outlives_producer() const { return false; }
  // Whether a Take that ends ABORTED says that the tensor may be offered once more: the consumer
  // asks for that, and the producer keeps the tensor until it is taken.
  virtual bool is_retryable() const { return false; }
  // Whether the time from an offer to its DONE is that of the transfer: costs follow.
  virtual bool is_measurable() const { return false; }
  // Whether its first byte takes as long as a message of a control channel that passes descriptors,
  // or of one that passes none.
  virtual bool latency_is_control_rtt(bool lane_passes_descriptors) const { return false; }

  // The halves for one peer. `peer` is copied. All are aborted before the transport goes.
  virtual std::shared_ptr<TransportSender> CreateSender(const Endpoint& peer) = 0;
  virtual std::shared_ptr<TransportReceiver> CreateReceiver(const Endpoint& peer,
                                                            ReleaseCallback release) = 0;
  // This process is leaving, and all halves have been aborted: waits for what is under way.
  //   Errors: DEADLINE_EXCEEDED something of it hangs in a library, and uses this and what it was
  //   made with if it ever returns: nothing of that may go before the process does.
  virtual absl::Status Stop(const absl::Status& why) { return absl::OkStatus(); }
  // A data connection from a peer, for the transport that uses such; others let it go.
  virtual bool OnDataConnection(DataConnection& connection) { return false; }
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_TRANSPORT_H_
