// SPDX-License-Identifier: Apache-2.0
// The two halves of a pair, and the connections between them.
#include "transport/tcp/tcp_transport.h"

#include <deque>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "transport/lane/bytes.h"
#include "transport/tcp/loopback_probe.h"

namespace ferry {
namespace {

// Until something has been seen: a fast network's latency, and a slow one's bandwidth.
constexpr absl::Duration kLatency = absl::Microseconds(50);
constexpr double kAssumedBytesPerSecond = 1e9;

}  // namespace

// Sends what was offered over whichever connections there are.
class TcpTransport::TcpOutlet final : public Outlet,
                                      public SliceSource,
                                      public std::enable_shared_from_this<TcpOutlet> {
 public:
  explicit TcpOutlet(DataPlane& plane) : plane_(plane) {}

  void Offer(uint64_t id, const Tensor& tensor, const MemoryPlace& to,
             OfferCallback done) override {
    auto transfer = std::make_shared<OutgoingTransfer>();
    transfer->id = id;
    transfer->tensor = tensor;
    absl::Status status;
    std::vector<std::shared_ptr<SliceWriter>> kicked;
    {
      absl::MutexLock lock(&mu_);
      status = aborted_;
      if (status.ok()) {
        queue_.push_back(std::move(transfer));
        // No more threads than there are slices. Those that are busy look for more by themselves.
        size_t slices = std::max<size_t>(1, (tensor.bytes() + kSliceBytes - 1) / kSliceBytes);
        for (; slices > 0 && !idle_.empty(); --slices) {
          kicked.push_back(std::move(idle_.back()));
          idle_.pop_back();
        }
      }
    }
    if (!status.ok()) return std::move(done)(std::move(status));
    for (const auto& writer : kicked) writer->Kick();
    std::move(done)(TransportTicket{});
  }

  // The connections hold what they are sending; what nobody wants is sent all the same, since the
  // receiver counts on it.
  void Release(uint64_t id) override {}

  void Abort(const absl::Status& why) override {
    std::vector<std::shared_ptr<SliceWriter>> writers;
    std::deque<std::shared_ptr<OutgoingTransfer>> dropped;
    {
      absl::MutexLock lock(&mu_);
      if (aborted_.ok()) aborted_ = why;
      writers.swap(writers_);
      idle_.clear();
      dropped.swap(queue_);
    }
    for (const auto& writer : writers) writer->Stop();
  }

  void AddConnection(DataConnection connection) {
    std::shared_ptr<SliceWriter> writer;
    {
      absl::MutexLock lock(&mu_);
      if (!aborted_.ok()) return;
      writer = std::make_shared<SliceWriter>(plane_.loop(connection.index),
                                             std::move(connection.socket), weak_from_this());
      writers_.push_back(writer);
    }
    writer->Start();
  }

  bool NextSlice(SliceWriter& writer, Slice& slice) override {
    absl::MutexLock lock(&mu_);
    const auto idle =
        absl::c_find_if(idle_, [&writer](const auto& each) { return each.get() == &writer; });
    while (!queue_.empty()) {
      const std::shared_ptr<OutgoingTransfer>& front = queue_.front();
      const size_t total = front->tensor.bytes();
      const size_t offset = front->next.fetch_add(kSliceBytes, std::memory_order_relaxed);
      if (offset >= total) {
        queue_.pop_front();
        continue;
      }
      slice = {front, offset, std::min(kSliceBytes, total - offset)};
      // It has come by itself.
      if (idle != idle_.end()) idle_.erase(idle);
      return true;
    }
    // Whoever was the last to be busy is the next: its thread is warm.
    if (idle == idle_.end() && aborted_.ok()) idle_.push_back(writer.shared_from_this());
    return false;
  }

  // The receiver notices as well, and ends its lane; then Abort comes.
  void OnBroken(const absl::Status& why) override { Abort(why); }

 private:
  DataPlane& plane_;
  absl::Mutex mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  std::deque<std::shared_ptr<OutgoingTransfer>> queue_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<SliceWriter>> writers_ ABSL_GUARDED_BY(mu_);
  // Those that wait to be kicked.
  std::vector<std::shared_ptr<SliceWriter>> idle_ ABSL_GUARDED_BY(mu_);
};

// Opens the connections, and puts slices where they belong.
class TcpTransport::TcpInlet final : public Inlet,
                                     public SliceSink,
                                     public std::enable_shared_from_this<TcpInlet> {
 public:
  TcpInlet(TransportEnvironment environment, DataPlane& plane, Endpoint peer)
      : environment_(std::move(environment)), plane_(plane), peer_(std::move(peer)) {}

  void Take(uint64_t id, const TensorHeader& header, absl::string_view body,
            absl::Span<UniqueFd> descriptors, const Tensor& destination,
            TakeCallback done) override {
    if (!body.empty()) {
      return std::move(done)(absl::InvalidArgumentError("a TCP ticket that says something"), false);
    }
    Incoming incoming;
    incoming.done = std::move(done);
    if (destination.is_valid()) {
      incoming.tensor = destination;
    } else {
      absl::StatusOr<std::shared_ptr<Buffer>> buffer = environment_.arena->Allocate(header.bytes);
      // A full arena is no reason to fail: the heap is slower only at first touch.
      if (!buffer.ok()) buffer = AllocateHeapBuffer(header.bytes);
      absl::StatusOr<Tensor> tensor =
          buffer.ok() ? Tensor::Create(header.dtype, header.shape, *buffer) : buffer.status();
      if (!tensor.ok()) {
        auto refused = std::move(incoming.done);
        Drop(id, header, body, descriptors);
        return std::move(refused)(tensor.status(), false);
      }
      incoming.tensor = *std::move(tensor);
    }
    // No slice says that nothing has come; honest senders put it in the ticket.
    if (header.bytes == 0) return std::move(incoming.done)(std::move(incoming.tensor), false);
    Expect(id, header.bytes, std::move(incoming));
  }

  void Drop(uint64_t id, const TensorHeader& header, absl::string_view body,
            absl::Span<UniqueFd> descriptors) override {
    Expect(id, header.bytes, {});
  }

  void Cancel(uint64_t id) override {
    std::shared_ptr<WriteGate> gate;
    {
      absl::MutexLock lock(&mu_);
      const auto found = incoming_.find(id);
      if (found == incoming_.end()) return;
      // The rest is read and forgotten.
      found->second.tensor = Tensor();
      gate = found->second.gate;
    }
    gate->Close();
  }

  void Abort(const absl::Status& why) override {
    std::vector<std::shared_ptr<WriteGate>> gates;
    std::vector<TakeCallback> failed;
    std::vector<std::shared_ptr<SliceReader>> readers;
    {
      absl::MutexLock lock(&mu_);
      if (aborted_.ok()) aborted_ = why;
      for (auto& [id, incoming] : incoming_) {
        if (incoming.done) failed.push_back(std::move(incoming.done));
        gates.push_back(incoming.gate);
      }
      incoming_.clear();
      readers.swap(readers_);
    }
    for (const auto& reader : readers) reader->Stop();
    for (const auto& gate : gates) gate->Close();
    for (TakeCallback& done : failed) std::move(done)(why, false);
  }

  Verdict Place(const SliceHeader& header, SlicePlace* place) override {
    absl::MutexLock lock(&mu_);
    if (!aborted_.ok()) return Verdict::kError;
    const auto found = incoming_.find(header.transfer);
    if (found == incoming_.end()) {
      // Its ticket is under way in the lane, which is read by another thread.
      is_somebody_waiting_ = true;
      return Verdict::kWait;
    }
    const Incoming& incoming = found->second;
    if (header.bytes == 0 || header.bytes > kSliceBytes || header.offset > incoming.bytes ||
        header.bytes > incoming.bytes - header.offset || header.bytes > incoming.left) {
      return Verdict::kError;
    }
    if (!incoming.tensor.is_valid()) return Verdict::kSkip;
    Tensor tensor = incoming.tensor;
    *place = {static_cast<char*>(tensor.mutable_data()) + header.offset, tensor.buffer(),
              incoming.gate};
    return Verdict::kPlace;
  }

  void OnSlice(const SliceHeader& header) override {
    Tensor tensor;
    TakeCallback done;
    {
      absl::MutexLock lock(&mu_);
      const auto found = incoming_.find(header.transfer);
      if (found == incoming_.end()) return;
      if (header.bytes > found->second.left) return;
      found->second.left -= header.bytes;
      if (found->second.left > 0) return;
      tensor = std::move(found->second.tensor);
      done = std::move(found->second.done);
      incoming_.erase(found);
    }
    if (done && tensor.is_valid()) return std::move(done)(std::move(tensor), false);
    // Cancelled: whoever waited has been told.
    if (done) std::move(done)(absl::CancelledError("cancelled"), false);
  }

  void OnBroken(const absl::Status& why) override {
    Abort(absl::UnavailableError(
        absl::StrCat(Describe(peer_.peer), ", while receiving by tcp: ", why.message())));
  }

 private:
  struct Incoming {
    // Not valid: nobody wants it.
    Tensor tensor;
    TakeCallback done;
    size_t bytes = 0;
    size_t left = 0;
    std::shared_ptr<WriteGate> gate = std::make_shared<WriteGate>();
  };

  void Expect(uint64_t id, size_t bytes, Incoming incoming) {
    incoming.bytes = incoming.left = bytes;
    absl::Status status;
    bool is_first = false;
    std::vector<std::shared_ptr<SliceReader>> waiting;
    {
      absl::MutexLock lock(&mu_);
      status = aborted_;
      if (status.ok()) {
        is_first = connecting_ == 0 && readers_.empty();
        if (is_first) connecting_ = plane_.connections();
        if (bytes > 0 && !incoming_.emplace(id, std::move(incoming)).second) {
          status = absl::InvalidArgumentError(absl::StrCat("transfer ", id, " for a second time"));
        }
        if (std::exchange(is_somebody_waiting_, false)) waiting = readers_;
      }
    }
    if (!status.ok()) {
      if (incoming.done) std::move(incoming.done)(status, false);
      return;
    }
    for (const auto& reader : waiting) reader->Resume();
    if (is_first) Connect();
  }

  void Connect() {
    for (int i = 0; i < plane_.connections(); ++i) {
      environment_.hub->ConnectData(
          peer_.peer, peer_.lanes, static_cast<uint32_t>(i),
          [weak = weak_from_this()](absl::StatusOr<DataConnection> connection) {
            const auto self = weak.lock();
            if (self == nullptr) return;
            if (!connection.ok()) return self->OnNoConnection(connection.status());
            self->AddConnection(*std::move(connection));
          });
    }
  }

  void OnNoConnection(const absl::Status& why) {
    // Only another lane would try again.
    if (!absl::IsResourceExhausted(why)) return Abort(absl::UnavailableError(why.message()));
    // One of the two has no descriptors left: no reason to end what needs none. Those that there
    // are carry all, and if there are none the next transfer tries again.
    std::vector<TakeCallback> failed;
    std::vector<std::shared_ptr<WriteGate>> gates;
    {
      absl::MutexLock lock(&mu_);
      --connecting_;
      if (!aborted_.ok() || connecting_ > 0 || !readers_.empty()) return;
      for (auto& [id, incoming] : incoming_) {
        if (incoming.done) failed.push_back(std::exchange(incoming.done, nullptr));
        // It comes with the next connection, and is read and forgotten.
        incoming.tensor = Tensor();
        gates.push_back(incoming.gate);
      }
    }
    for (const auto& gate : gates) gate->Close();
    for (TakeCallback& done : failed) std::move(done)(why, false);
  }

  void AddConnection(DataConnection connection) {
    std::shared_ptr<SliceReader> reader;
    {
      absl::MutexLock lock(&mu_);
      --connecting_;
      if (!aborted_.ok()) return;
      reader = std::make_shared<SliceReader>(plane_.loop(connection.index),
                                             std::move(connection.socket), weak_from_this());
      readers_.push_back(reader);
    }
    reader->Start();
  }

  const TransportEnvironment environment_;
  DataPlane& plane_;
  const Endpoint peer_;
  absl::Mutex mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  // Connections that have not come yet, nor failed.
  int connecting_ ABSL_GUARDED_BY(mu_) = 0;
  bool is_somebody_waiting_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<uint64_t, Incoming> incoming_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<SliceReader>> readers_ ABSL_GUARDED_BY(mu_);
};

absl::StatusOr<std::unique_ptr<TcpTransport>> TcpTransport::Create(TransportEnvironment environment,
                                                                   TcpTransportOptions options) {
  if (options.connections < 1 || options.connections > 64) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.connections,
                     " connections of a pair; it must be from 1 to 64 (--tcp-connections, or in "
                     "programs TransportOptions::tcp.connections in ExchangeOptions::transports)"));
  }
  FERRY_ASSIGN_OR_RETURN(std::unique_ptr<DataPlane> plane, DataPlane::Create(options.connections));
  return std::unique_ptr<TcpTransport>(new TcpTransport(std::move(environment), std::move(plane)));
}

TcpTransport::TcpTransport(TransportEnvironment environment, std::unique_ptr<DataPlane> plane)
    : environment_(std::move(environment)),
      plane_(std::move(plane)),
      loopback_(MeasureLoopback()) {}

TcpTransport::~TcpTransport() = default;

absl::StatusOr<PathCost> TcpTransport::Cost(const PathQuery& query) const {
  if (query.source->lanes.tcp.empty()) {
    return absl::UnavailableError(
        absl::StrCat(Describe(query.source->peer), " listens on no TCP address"));
  }
  const std::string& machine = query.source->boot_id;
  // Between GPUs it is beside what nobody has measured at start: both are assumed.
  const bool is_between_hosts = query.source_place.space == MemorySpace::kHost &&
                                query.destination_place.space == MemorySpace::kHost;
  if (is_between_hosts && loopback_.ok() && !machine.empty() &&
      machine == query.destination->boot_id) {
    return *loopback_;
  }
  return PathCost{kLatency, kAssumedBytesPerSecond};
}

std::shared_ptr<Outlet> TcpTransport::MakeOutlet(const Endpoint& peer) {
  auto outlet = std::make_shared<TcpOutlet>(*plane_);
  absl::MutexLock lock(&mu_);
  // Those of peers that have gone.
  absl::erase_if(outlets_, [](const auto& each) { return each.second.expired(); });
  outlets_[{peer.peer.node_id, peer.peer.incarnation}] = outlet;
  return outlet;
}

std::shared_ptr<Inlet> TcpTransport::MakeInlet(const Endpoint& peer, ReleaseCallback release) {
  return std::make_shared<TcpInlet>(environment_, *plane_, peer);
}

bool TcpTransport::OnDataConnection(DataConnection& connection) {
  std::shared_ptr<TcpOutlet> outlet;
  {
    absl::MutexLock lock(&mu_);
    const auto found = outlets_.find({connection.peer.node_id, connection.peer.incarnation});
    if (found != outlets_.end()) outlet = found->second.lock();
  }
  if (outlet == nullptr) return false;
  outlet->AddConnection(std::move(connection));
  return true;
}

}  // namespace ferry
