// SPDX-License-Identifier: Apache-2.0
// The cost of one small value between two processes without their ring: two ends of a control
// channel in one thread, whose frames are copied to the other end and read there at once.
//
//   build/release/benchmarks/eager_bench
//
// Cache lines that move between cores, wake-ups and polling are measured by exchange_bench.
// `requested`: each value is requested, and sent in the answer. `eager`: sent before it is
// requested.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "rendezvous/peer/eager_peers.h"
#include "rendezvous/peer/peer_connection.h"
#include "rendezvous/rendezvous_manager.h"

namespace ferry {
namespace {

constexpr size_t kFrames = 256;
// Frames that are delivered together.
constexpr size_t kTogether = 64;
constexpr size_t kMaxFrame = 16 * 1024;
// A link keeps 16384 names (EagerLimits): in turns, each of so many is a new one.
constexpr int64_t kMoreNamesThanKept = 32768;

void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "eager_bench: %s\n", what);
  std::abort();
}

// One direction of the other end's frames.
class MemoryChannel final : public ControlChannel {
 public:
  explicit MemoryChannel(const PeerId& peer) : peer_(peer) {}

  absl::Status Send(uint16_t type, absl::Span<const absl::string_view> parts,
                    absl::Span<const int>) override {
    Require(count_ < kFrames, "too many frames under way");
    Frame& frame = frames_[(first_ + count_++) % kFrames];
    frame.type = type;
    frame.bytes = 0;
    for (const absl::string_view part : parts) {
      Require(frame.bytes + part.size() <= kMaxFrame, "a frame too large");
      if (!part.empty()) std::memcpy(frame.body + frame.bytes, part.data(), part.size());
      frame.bytes += part.size();
    }
    return absl::OkStatus();
  }
  void Close(const absl::Status& why) override {
    if (!is_over_) std::fprintf(stderr, "closed: %s\n", why.ToString().c_str());
    Require(is_over_, "a control channel was closed");
  }
  const PeerId& peer() const override { return peer_; }
  bool passes_descriptors() const override { return true; }
  std::string Describe() const override { return "memory"; }

  // Passes what was sent to the other end. False: nothing was.
  bool Deliver(ControlHandler& to) {
    if (count_ == 0) return false;
    while (count_ > 0) {
      // As from a ring: together what is there.
      absl::InlinedVector<ControlFrame, kTogether> together;
      while (together.size() < std::min(count_, kTogether)) {
        const Frame& frame = frames_[(first_ + together.size()) % kFrames];
        together.push_back({.type = frame.type, .body = {frame.body, frame.bytes}});
      }
      const absl::Status status = to.OnFrames(together);
      if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
      Require(status.ok(), "a frame was rejected");
      first_ += together.size();
      count_ -= together.size();
    }
    return true;
  }
  void End() { is_over_ = true; }

 private:
  struct Frame {
    uint16_t type = 0;
    size_t bytes = 0;
    char body[kMaxFrame];
  };

  const PeerId peer_;
  bool is_over_ = false;
  size_t first_ = 0;
  size_t count_ = 0;
  std::array<Frame, kFrames> frames_;
};

class End final : public RemoteFetcher, public PeerConnectionObserver {
 public:
  End(int32_t node_id, bool is_eager) : eager_(context_, EagerLimits()) {
    context_.self.peer = {node_id, 100u + static_cast<uint64_t>(node_id)};
    context_.transports = &transports_;
    if (is_eager) context_.eager = &eager_;
    manager_ = std::make_unique<RendezvousManager>(SteadyClock(), *this);
    context_.manager = manager_.get();
  }

  std::shared_ptr<RemoteFetch> Fetch(int64_t step_id, const RendezvousKey& key,
                                     const RecvArgs& args, RecvCallback done) override {
    return requester_->Request(step_id, key, args, std::move(done));
  }
  EagerLinks* eager_links() override { return context_.eager; }

  absl::Status OnConnectionOpen(const std::shared_ptr<PeerConnection>&) override {
    return absl::OkStatus();
  }
  absl::StatusOr<std::shared_ptr<TensorRequester>> OnPeerHello(
      const std::shared_ptr<PeerConnection>&, const Endpoint&) override {
    return requester_;
  }
  void OnResponderReady(PeerConnection&, const std::shared_ptr<TensorResponder>&) override {}
  void OnConnectionClosed(PeerConnection&, const absl::Status& why) override {
    requester_->OnClosed(why);
  }

  void Connect(const PeerId& peer, bool is_opener) {
    Endpoint producer;
    producer.peer = peer;
    requester_ = std::make_shared<TensorRequester>(context_, producer);
    channel_ = std::make_shared<MemoryChannel>(peer);
    connection_ = std::make_shared<PeerConnection>(
        context_, std::shared_ptr<PeerConnectionObserver>(std::shared_ptr<void>(), this), peer,
        is_opener);
    connection_->OnOpen(channel_);
    step_ = *manager_->Find(1);
    Require(step_->Initialize({"worker", 0, context_.self.peer.node_id}).ok(), "no step");
  }
  void Disconnect() {
    step_ = nullptr;
    manager_->CleanupAll();
    channel_->End();
    connection_->OnClosed(absl::CancelledError("the benchmark is over"));
  }

  const PeerId& peer() const { return context_.self.peer; }
  RemoteRendezvous& step() { return *step_; }
  MemoryChannel& channel() { return *channel_; }
  PeerConnection& connection() { return *connection_; }

 private:
  TransportList transports_;
  TransferContext context_;
  EagerPeers eager_;
  std::unique_ptr<RendezvousManager> manager_;
  std::shared_ptr<TensorRequester> requester_;
  std::shared_ptr<MemoryChannel> channel_;
  std::shared_ptr<PeerConnection> connection_;
  std::shared_ptr<RemoteRendezvous> step_;
};

class Pair final {
 public:
  explicit Pair(bool is_eager) : producer(1, is_eager), consumer(2, is_eager) {
    consumer.Connect(producer.peer(), /*is_opener=*/true);
    producer.Connect(consumer.peer(), /*is_opener=*/false);
    Settle();
  }
  ~Pair() {
    producer.Disconnect();
    consumer.Disconnect();
  }

  void Settle() {
    bool did_something = true;
    while (did_something) {
      did_something = producer.channel().Deliver(consumer.connection());
      did_something |= consumer.channel().Deliver(producer.connection());
    }
  }

  End producer;
  End consumer;
};

// Each end has key objects of its own, as two processes have.
std::vector<RendezvousKey> Keys(const End& from, const End& to, int64_t count) {
  const auto device = [](const End& end) {
    return absl::StrCat("/job:worker/replica:0/task:", end.peer().node_id, "/device:CPU:0");
  };
  std::vector<RendezvousKey> keys;
  for (int64_t i = 0; i < count; ++i) {
    keys.push_back(*RendezvousKey::Parse(RendezvousKey::Text(
        device(from), from.peer().incarnation, device(to), absl::StrCat("edge_", i))));
  }
  return keys;
}

// Arguments: eager; names; posted first.
void BM_Value(benchmark::State& state) {
  Pair pair(state.range(0) != 0);
  const std::vector<RendezvousKey> sent = Keys(pair.producer, pair.consumer, state.range(1));
  const std::vector<RendezvousKey> received = Keys(pair.producer, pair.consumer, state.range(1));
  const bool is_posted_first = state.range(2) != 0;
  Tensor value = *Tensor::Allocate(DataType::kFloat, *Shape::Create({2}));
  std::memset(value.mutable_data(), 1, value.bytes());
  int64_t count = 0;
  absl::string_view path;
  size_t i = 0;
  for (auto _ : state) {
    const auto receive = [&] {
      pair.consumer.step().RecvAsync(received[i], {},
                                     [&](const absl::Status& status, const Received& got) {
                                       Require(status.ok(), "a receive has failed");
                                       path = got.path;
                                       ++count;
                                     });
    };
    if (is_posted_first) receive();
    pair.Settle();
    Require(pair.producer.step().Send(sent[i], value).ok(), "a send has failed");
    pair.Settle();
    if (!is_posted_first) {
      receive();
      pair.Settle();
    }
    i = i + 1 == sent.size() ? 0 : i + 1;
  }
  Require(count == static_cast<int64_t>(state.iterations()), "a value was not received");
  state.SetLabel(std::string(path));
}

// 64 values of as many names, per value; receives are posted first. Arguments: how many are posted,
// and sent, by a call; names.
void BM_Batch(benchmark::State& state) {
  constexpr size_t kValues = 64;
  Pair pair(/*is_eager=*/true);
  const std::vector<RendezvousKey> sent = Keys(pair.producer, pair.consumer, state.range(1));
  const std::vector<RendezvousKey> received = Keys(pair.producer, pair.consumer, state.range(1));
  const auto batch = static_cast<size_t>(state.range(0));
  Tensor value = *Tensor::Allocate(DataType::kFloat, *Shape::Create({2}));
  std::memset(value.mutable_data(), 1, value.bytes());
  std::vector<SendItem> items(kValues);
  std::vector<RecvItem> posted(kValues);
  int64_t count = 0;
  size_t first = 0;
  for (auto _ : state) {
    const auto done = [&](const absl::Status& status, const Received&) {
      Require(status.ok(), "a receive has failed");
      ++count;
    };
    if (batch > 1) {
      for (size_t i = 0; i < kValues; ++i) posted[i] = {.key = &received[first + i], .done = done};
      pair.consumer.step().RecvMany(absl::MakeSpan(posted));
    } else {
      for (size_t i = 0; i < kValues; ++i) {
        pair.consumer.step().RecvAsync(received[first + i], {}, done);
      }
    }
    for (size_t i = 0; i < kValues; ++i) items[i] = {.key = &sent[first + i], .tensor = value};
    for (size_t i = 0; i < kValues; i += batch) {
      if (batch > 1) {
        pair.producer.step().SendMany(absl::MakeSpan(items).subspan(i, batch));
      } else {
        items[i].status = pair.producer.step().Send(sent[first + i], value);
      }
    }
    pair.Settle();
    for (const SendItem& item : items) Require(item.status.ok(), "a send has failed");
    first = (first + kValues) % sent.size();
  }
  const int64_t all = static_cast<int64_t>(state.iterations()) * int64_t{kValues};
  Require(count == all, "a value was not received");
  state.SetItemsProcessed(all);
}

BENCHMARK(BM_Value)
    ->ArgNames({"eager", "names", "posted_first"})
    ->ArgsProduct({{0, 1}, {1, 1024}, {1, 0}});
BENCHMARK(BM_Batch)
    ->ArgNames({"batch", "names"})
    ->ArgsProduct({{1, 8, 64}, {64, kMoreNamesThanKept}});

}  // namespace
}  // namespace ferry

BENCHMARK_MAIN();
