// SPDX-License-Identifier: Apache-2.0
// Transport: one mechanism for moving a tensor between processes. The list of all: transports.h.
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
#include "tensor/tensor.h"
#include "transport/control/connector.h"
#include "transport/control/control_channel.h"

namespace ferry {

class ConnectionManager;
class CopyPool;
class EventLoop;
class Gpus;
class HostArena;
struct DataConnection;

// The transports of one process, beyond which its engine does not start.
inline constexpr size_t kMaxTransports = 32;
// Limits of a TransportInfo's name and of Transport::local_descriptor.
inline constexpr size_t kMaxTransportNameBytes = 32;
inline constexpr size_t kMaxTransportDescriptorBytes = 1024;

// A transport of a process, as told to its peers.
struct TransportDescription {
  std::string name;
  // Transport::local_descriptor; untrusted, and opaque to all but the transport of that name.
  std::string descriptor;

  friend bool operator==(const TransportDescription&, const TransportDescription&) = default;
};

// A process of the job, as path selection sees it. Each process publishes its own in the store.
struct Endpoint {
  PeerId peer;
  // Equal exactly for processes on the same machine; empty: unknown.
  std::string boot_id;
  std::string host_name;
  PeerAddresses channels;
  // HOST:PORT of its tensorflow.WorkerService, or several separated by commas, to try in turn;
  // empty: none.
  std::string grpc_address;
  // UUIDs of its GPUs, by ordinal.
  std::vector<std::string> gpus;
  // True if it has kernels for its GPUs, which graph nodes need.
  bool has_gpu_kernels = false;
  // Its transports, in the order in which its messages number them.
  std::vector<TransportDescription> transports;

  // Null: it has no transport of that name.
  const TransportDescription* FindTransport(absl::string_view name) const {
    for (const TransportDescription& each : transports) {
      if (each.name == name) return &each;
    }
    return nullptr;
  }
};

// Transports of one list, by index.
class TransportSet final {
 public:
  static constexpr TransportSet None() { return TransportSet(0); }
  static constexpr TransportSet All() { return TransportSet(UINT32_MAX); }

  void Add(size_t index) { bits_ |= uint32_t{1} << index; }
  bool Has(size_t index) const { return (bits_ >> index & 1) != 0; }

 private:
  static_assert(kMaxTransports <= 32);
  explicit constexpr TransportSet(uint32_t bits) : bits_(bits) {}

  uint32_t bits_;
};

// How a transport differs from others, for all code that is not its own. Constants of its class.
struct TransportCapabilities {
  // It moves tensors in GPU memory; otherwise they are staged through host memory.
  bool moves_gpu_memory = false;
  // An exposed tensor can still be fetched after its producer has exited.
  bool outlives_producer = false;
  // A Fetch that ends ABORTED may be retried: the consumer requests the tensor again, and the
  // producer keeps it until it is received.
  bool retryable = false;
  // The time from Expose to ACK is that of the transfer, so that it can be used as a cost sample.
  bool measurable = false;
  // Its latency is that of a message on a control channel that passes descriptors, or on one that
  // passes none, so that no separate estimate is needed.
  bool has_fd_channel_latency = false;
  bool has_plain_channel_latency = false;
  // Its receiver accepts control messages whose descriptors this process had no room for; those
  // descriptors are then invalid.
  bool fd_optional = false;
  // It is given the data connections that peers open (OnDataConnection). At most one transport of a
  // process, since a connection does not say whose it is.
  bool uses_data_connections = false;
  // The receiver reads memory of the sender, so that both are on one host.
  bool shares_memory = false;
  // Its bytes go over TCP, like the messages of control channels between hosts. If it is the
  // required one, control channels to peers of this host are over TCP too, and a tensor inline in a
  // message over TCP has come by the required transport.
  bool moves_over_tcp = false;
  // If it is the required one and no control channel that passes descriptors can be opened to a
  // peer of this host, none over TCP is tried instead.
  bool needs_fd_channel = false;

  bool has_control_channel_latency(bool channel_passes_descriptors) const {
    return channel_passes_descriptors ? has_fd_channel_latency : has_plain_channel_latency;
  }
  friend bool operator==(const TransportCapabilities&, const TransportCapabilities&) = default;
};

// A transport's class, as people and the rest of Ferry know it. A constant.
struct TransportInfo {
  // Lower case letters, digits and '_', at most kMaxTransportNameBytes of them. Two processes match
  // their transports by name. A literal: paths refer to it for as long as the process lives.
  absl::string_view name;
  // One line, human-readable.
  absl::string_view summary;
  TransportCapabilities capabilities;

  friend bool operator==(const TransportInfo&, const TransportInfo&) = default;
};

// Where a number in a cost comes from.
enum class CostBasis : uint8_t {
  kAssumed,
  // Measured by this process against itself at startup.
  kAtStart,
  // Measured between the two processes, from transfer durations or control channel pings.
  kMeasured,
};

// The best available estimate of what a transfer costs.
struct PathCost {
  absl::Duration latency;
  double bytes_per_second = 0;
  CostBasis latency_basis = CostBasis::kAssumed;
  CostBasis bandwidth_basis = CostBasis::kAssumed;
  // For kMeasured: time since the last measurement.
  absl::Duration latency_age;
  absl::Duration bandwidth_age;
  // Staging copies between GPU and host memory; their cost is included.
  int stages = 0;
  // Human-readable: which variant is used, and why. Empty: there is only one.
  std::string note;

  absl::Duration Of(size_t bytes) const {
    return latency + absl::Seconds(static_cast<double>(bytes) / bytes_per_second);
  }
};

// Bytes per second beyond any copy: means zero-copy.
inline constexpr double kNoCopy = 1e12;

class PathCostEstimator;

// A transfer between two processes, for path selection.
struct PathQuery {
  const Endpoint* source = nullptr;
  const Endpoint* destination = nullptr;
  // Whether the two have a control channel that passes descriptors, and if not, why.
  bool channel_passes_descriptors = false;
  std::string descriptors_unavailable_reason;
  size_t bytes = 0;
  // True if the tensor is in the source's arena.
  bool is_in_arena = false;
  // The tensor's memory at the source, and the memory requested at the destination.
  TensorLocation source_location;
  TensorLocation destination_location;
  // Measurements of one of the two between them, and the current time; null: none.
  const PathCostEstimator* estimates = nullptr;
  absl::Time now = absl::InfinitePast();
  // Duration of a send and its receive within one process, as measured here; zero: not measured.
  absl::Duration local_latency;
  // The transports of the list that both processes have. See CommonTransports.
  TransportSet common = TransportSet::All();
};

// Transport-specific descriptor that lets the receiver fetch an exposed tensor. Opaque to the core.
struct TransferDescriptor {
  std::string body;
  // Only over control channels that pass them. Owned by the sender, and open until Release.
  std::vector<int> descriptors;
};

// Describes the tensor to be received. Its elements are of fixed size.
struct TensorHeader {
  DataType dtype = DataType::kInvalid;
  Shape shape;
  size_t bytes = 0;
  // Memory in which the receiver requested it.
  TensorLocation location;
};

// Sends a control message to the peer's receiver (TransportReceiver::OnControlMessage), delivered
// before every transfer descriptor sent after it; or to its sender
// (TransportSender::OnControlMessage), delivered before every ACK sent after it. Thread-safe.
//   Errors: as ControlChannel::Send.
using ControlMessageSender =
    std::function<absl::Status(absl::string_view body, absl::Span<const int> descriptors)>;

// The frame of a control channel that brings a transfer descriptor to the peer: `head`, and then
// the descriptor's body.
struct DescriptorFrame {
  ControlChannel* channel = nullptr;
  uint16_t type = 0;
  absl::string_view head;
};

// The producer's endpoint of a pair. Thread-safe. Ids are chosen by the caller and never reused.
class TransportSender {
 public:
  using ExposeCallback = absl::AnyInvocable<void(absl::StatusOr<TransferDescriptor>) &&>;

  virtual ~TransportSender() = default;
  // Call before the first Expose.
  virtual void SetControlChannel(ControlMessageSender channel) {}
  // Like SetControlChannel, for messages that the peer can do without: failures are ignored. Only
  // for a control channel that passes descriptors, and a peer to which this transport may send.
  virtual void SetHintChannel(ControlMessageSender channel) {}
  // Handles a message from the peer's receiver. The content is untrusted.
  //   Errors: the peer violates the protocol.
  virtual absl::Status OnControlMessage(absl::string_view body) {
    return absl::InvalidArgumentError("this transport has no control messages from receivers");
  }
  // Exposes `tensor` to the peer, which requested it in its memory `to`, and keeps it until
  // Release. `done` may be called inline, and is called on any thread.
  //   Errors: RESOURCE_EXHAUSTED naming the option; UNAVAILABLE after Abort; FAILED_PRECONDITION
  //   with the reason when this pair has turned out not to work: Cost then fails from there on.
  virtual void Expose(uint64_t id, const Tensor& tensor, const TensorLocation& to,
                      ExposeCallback done) = 0;
  // Exposes `tensor` and sends its transfer descriptor in `frame`, if that takes neither a copy nor
  // a wait; otherwise, or if it fails, does nothing and returns false: Expose is called then, and
  // reports the error. Closes a channel that does not accept the frame, or the peer would wait
  // forever. Called for the path that ZeroCopyPath finds, of a transport that is neither
  // retryable nor measurable.
  virtual bool TryExposeAndSend(uint64_t id, const Tensor& tensor, const DescriptorFrame& frame) {
    return false;
  }
  // Describes why the peer is not receiving what is being sent, as far as it is visible from here,
  // for error texts. Empty: unknown.
  virtual std::string Obstacle() const { return ""; }
  // The transfer completed or was cancelled by the receiver. Unknown ids are ignored.
  virtual void Release(uint64_t id) = 0;
  // The peer has failed: releases everything. Pending calls of Expose end with `why`.
  virtual void Abort(const absl::Status& why) = 0;
};

// Ends the paths of tensors that are views of the producer's memory, where others are copied.
inline constexpr absl::string_view kViewSuffix = ", view";

// The consumer's endpoint of a pair. Thread-safe. Each incoming transfer descriptor is passed to
// either Fetch or Discard.
class TransportReceiver {
 public:
  struct FetchInfo {
    // Implicit: most transports pass only the first.
    FetchInfo(bool later, bool checked = false)  // NOLINT(google-explicit-constructor)
        : release_later(later), has_checked_values(checked) {}
    // The tensor is a view of the producer's memory: the receiver's ReleaseCallback reports when it
    // is no longer used.
    bool release_later;
    // The elements were validated while the bytes were in the CPU's caches: CheckValues would
    // succeed. False: the caller must call it.
    bool has_checked_values;
    // Not empty: it has taken this path instead of that of PathOf; a literal.
    absl::string_view path = {};
  };
  // The id is finished on this side when the callback runs.
  using FetchCallback = absl::AnyInvocable<void(absl::StatusOr<Tensor>, FetchInfo) &&>;

  virtual ~TransportReceiver() = default;
  // Call before the first control message.
  virtual void SetControlChannel(ControlMessageSender channel) {}
  // Handles a message from the peer's sender. The content is untrusted.
  //   Errors: the peer violates the protocol.
  virtual absl::Status OnControlMessage(absl::string_view body, absl::Span<UniqueFd> descriptors) {
    return absl::InvalidArgumentError("this transport has no control messages from senders");
  }
  // Fetches the tensor, into `destination` if that is valid; it then has the header's type and
  // size. `body` and `descriptors` are untrusted. `done` may be called inline, and is called on any
  // thread.
  //   Errors: INVALID_ARGUMENT for a malformed transfer descriptor; UNAVAILABLE naming the phase.
  virtual void Fetch(uint64_t id, const TensorHeader& header, absl::string_view body,
                     absl::Span<UniqueFd> descriptors, const Tensor& destination,
                     FetchCallback done) = 0;
  // Cancels a pending Fetch: nothing writes to its destination after this returns, and its `done`
  // may still run. Does not wait for a GPU: copies already enqueued to a destination in its memory
  // complete, and the destination is kept until then. Unknown ids are ignored.
  virtual void Cancel(uint64_t id) = 0;
  // Name of a tensor's path that is about to be fetched, where the transport has several: the
  // transport's, ", " and the variant's; a literal. Empty: use the transport's name. Arguments as
  // for Fetch.
  virtual absl::string_view PathOf(const TensorHeader& header, absl::string_view body,
                                   const Tensor& destination) const {
    return {};
  }
  // Discards a transfer that is no longer requested.
  virtual void Discard(uint64_t id, const TensorHeader& header, absl::string_view body,
                       absl::Span<UniqueFd> descriptors) = 0;
  // The peer has failed. Pending calls of Fetch end with `why`; tensors already fetched stay valid.
  virtual void Abort(const absl::Status& why) = 0;
};

// For views: called once for each id, on the thread that drops the last reference.
using ReleaseCallback = std::function<void(uint64_t id)>;

// Resources that transports may use; outlives them.
struct TransportEnvironment {
  EventLoop* loop = nullptr;
  ConnectionManager* connection_manager = nullptr;
  std::shared_ptr<HostArena> arena;
  CopyPool* copier = nullptr;
  // Null: this process uses no GPUs.
  Gpus* gpus = nullptr;
  int32_t node_id = 0;
  uint64_t incarnation = 0;
};

// docs/adding_a_transport.md tells how to write one. Thread-safe.
class Transport {
 public:
  // `info` must be that of its registration (TransportFactory).
  explicit Transport(const TransportInfo& info) : info_(info) {}
  virtual ~Transport() = default;

  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  const TransportInfo& info() const { return info_; }
  absl::string_view name() const { return info_.name; }
  absl::string_view summary() const { return info_.summary; }
  const TransportCapabilities& capabilities() const { return info_.capabilities; }

  // Describes this process to the same transport of its peers, in at most
  // kMaxTransportDescriptorBytes; empty: they need to know nothing. Constant.
  virtual std::string local_descriptor() const { return ""; }
  // The cost of a transfer between two processes that both have this transport, of which this
  // process need not be one.
  //   Errors: the reason why the transport cannot be used.
  virtual absl::StatusOr<PathCost> Cost(const PathQuery& query) const = 0;

  // The endpoints for one peer that has this transport. `peer` is copied. All are aborted before
  // the transport is destroyed.
  virtual std::shared_ptr<TransportSender> CreateSender(const Endpoint& peer) = 0;
  virtual std::shared_ptr<TransportReceiver> CreateReceiver(const Endpoint& peer,
                                                            ReleaseCallback release) = 0;
  // Called when this process is leaving, after all endpoints were aborted: waits for pending
  // operations.
  //   Errors: DEADLINE_EXCEEDED an operation hangs in a library. If it ever returns it uses this
  //   object and what it was made with, so these must live until the process exits.
  virtual absl::Status Stop(const absl::Status& why) { return absl::OkStatus(); }
  // Takes a data connection from a peer, or returns false; with uses_data_connections only.
  virtual bool OnDataConnection(DataConnection& connection) { return false; }

 protected:
  // A peer's local_descriptor, untrusted; empty also if it has no such transport.
  absl::string_view DescriptorOf(const Endpoint& peer) const {
    const TransportDescription* const found = peer.FindTransport(name());
    return found == nullptr ? absl::string_view() : found->descriptor;
  }

 private:
  const TransportInfo info_;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_TRANSPORT_H_
