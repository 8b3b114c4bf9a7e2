// SPDX-License-Identifier: Apache-2.0
// Senders and receivers without control channels: handling of transfer descriptors, valid and
// malformed.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"

#include "net/sockets.h"
#include "tests/transport/control_channel_pair.h"
#include "transport/shm/shm_endpoints.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"

namespace ferry {
namespace {

constexpr int64_t kBytes = 4096;

// Segments of arenas, in this process.
int ArenaMappings() {
  int count = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:ferry") != std::string::npos) ++count;
  }
  return count;
}

class EndpointsTest : public ::testing::Test {
 protected:
  EndpointsTest() : end_({1, 10}, "token", absl::Milliseconds(100)) {
    environment_.loop = end_.loop.get();
    environment_.connection_manager = end_.connection_manager.get();
    environment_.arena = *HostArena::Create({});
    environment_.copier = &copier_;
  }

  Tensor InArena(char fill) {
    Tensor tensor = *Tensor::Create(DataType::kUint8, *Shape::Create({kBytes}),
                                    *environment_.arena->Allocate(kBytes));
    std::memset(tensor.mutable_data(), fill, kBytes);
    return tensor;
  }
  static TensorHeader Header(int64_t bytes) {
    return {DataType::kUint8, *Shape::Create({bytes}), static_cast<size_t>(bytes)};
  }

  ControlEnd end_;
  CopyPool copier_;
  TransportEnvironment environment_;
};

// A transfer descriptor that arrives before its segment would end the control channel.
TEST_F(EndpointsTest, SegmentIsAnnouncedOnceAndBeforeItsDescriptors) {
  auto sender = std::make_shared<ShmSender>(environment_);
  auto receiver = std::make_shared<ShmReceiver>(environment_, [](uint64_t) {});
  int announcements = 0;
  sender->SetControlChannel([&](absl::string_view body, absl::Span<const int> descriptors) {
    ++announcements;
    std::vector<UniqueFd> copies;
    for (const int fd : descriptors) copies.emplace_back(dup(fd));
    return receiver->OnControlMessage(body, absl::MakeSpan(copies));
  });
  std::string seen;
  for (uint64_t id = 1; id <= 3; ++id) {
    sender->Expose(id, InArena(static_cast<char>('a' + id)), {},
                   [&](absl::StatusOr<TransferDescriptor> descriptor) {
                     ASSERT_TRUE(descriptor.ok()) << descriptor.status();
                     receiver->Fetch(id, Header(kBytes), descriptor->body, {}, Tensor(),
                                     [&seen](auto tensor, TransportReceiver::FetchInfo) {
                                       ASSERT_TRUE(tensor.ok()) << tensor.status();
                                       seen += *static_cast<const char*>(tensor->data());
                                     });
                   });
  }
  EXPECT_EQ(seen, "bcd");
  EXPECT_EQ(announcements, 1);
  sender->Abort(absl::CancelledError("over"));
  receiver->Abort(absl::CancelledError("over"));
}

// The peer maps it while it is being filled.
TEST_F(EndpointsTest, NewSegmentIsAnnouncedBeforeItIsNeeded) {
  ShmTransport transport(environment_);
  const auto sender = transport.CreateSender({});
  const auto receiver = transport.CreateReceiver({}, [](uint64_t) {});
  const auto announce = [&](absl::string_view body, absl::Span<const int> descriptors) {
    std::vector<UniqueFd> copies;
    for (const int fd : descriptors) copies.emplace_back(dup(fd));
    return receiver->OnControlMessage(body, absl::MakeSpan(copies));
  };
  int announcements = 0;
  int hints = 0;
  bool fails = true;
  sender->SetControlChannel([&](absl::string_view body, absl::Span<const int> descriptors) {
    ++announcements;
    return announce(body, descriptors);
  });
  sender->SetHintChannel([&](absl::string_view body, absl::Span<const int> descriptors) {
    ++hints;
    return fails ? absl::ResourceExhaustedError("the control channel is full")
                 : announce(body, descriptors);
  });
  const auto hand_over = [&](uint64_t id, const Tensor& tensor) {
    sender->Expose(id, tensor, {}, [&](absl::StatusOr<TransferDescriptor> descriptor) {
      ASSERT_TRUE(descriptor.ok()) << descriptor.status();
      receiver->Fetch(id, Header(kBytes), descriptor->body, {}, Tensor(),
                      [](auto tensor, TransportReceiver::FetchInfo) {
                        ASSERT_TRUE(tensor.ok()) << tensor.status();
                      });
    });
    sender->Release(id);
  };
  const Tensor first = InArena('a');
  EXPECT_EQ(hints, 1);
  hand_over(1, first);
  EXPECT_EQ(announcements, 1) << "of what could not be announced before";
  fails = false;
  // Another class, and so another segment.
  const Tensor second = *Tensor::Create(DataType::kUint8, *Shape::Create({kBytes}),
                                        *environment_.arena->Allocate(8 * kBytes));
  EXPECT_EQ(hints, 2);
  hand_over(2, second);
  EXPECT_EQ(announcements, 1);
  sender->Abort(absl::CancelledError("over"));
  receiver->Abort(absl::CancelledError("over"));
}

TEST_F(EndpointsTest, UnmappableSegment_FailsWhenItIsNeeded) {
  auto receiver = std::make_shared<ShmReceiver>(environment_, [](uint64_t) {});
  std::vector<UniqueFd> lost(1);
  EXPECT_TRUE(
      receiver->OnControlMessage(EncodeShmSegmentNotice({1, 65536}), absl::MakeSpan(lost)).ok());
  absl::Status status;
  receiver->Fetch(
      1, Header(kBytes), ShmDescriptor{.segment = 1}.bytes(), {}, Tensor(),
      [&status](auto tensor, TransportReceiver::FetchInfo) { status = tensor.status(); });
  // Which ends the control channel: on the next one it is announced again.
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "ulimit -n")) << status;
  EXPECT_TRUE(receiver->OnControlMessage(EncodeShmSegmentNotice({.segment = 1}), {}).ok());
  receiver->Abort(absl::CancelledError("over"));
}

// A segment that the arena releases would stay allocated as long as any receiver maps it.
TEST_F(EndpointsTest, ReleasedSegment_IsUnmappedWithItsLastView) {
  ShmTransport transport(environment_);
  const auto sender = transport.CreateSender({});
  const auto receiver = transport.CreateReceiver({}, [](uint64_t) {});
  bool is_full = false;
  sender->SetControlChannel([&](absl::string_view body, absl::Span<const int> descriptors) {
    if (is_full) return absl::ResourceExhaustedError("the control channel is full");
    std::vector<UniqueFd> copies;
    for (const int fd : descriptors) copies.emplace_back(dup(fd));
    return receiver->OnControlMessage(body, absl::MakeSpan(copies));
  });
  const int before = ArenaMappings();
  const auto hand_over = [&](uint64_t id) {
    Tensor view;
    sender->Expose(id, InArena('a'), {}, [&](absl::StatusOr<TransferDescriptor> descriptor) {
      ASSERT_TRUE(descriptor.ok()) << descriptor.status();
      receiver->Fetch(
          id, Header(kBytes), descriptor->body, {}, Tensor(),
          [&view](auto tensor, TransportReceiver::FetchInfo) { view = *std::move(tensor); });
    });
    sender->Release(id);
    return view;
  };
  Tensor view = hand_over(1);
  EXPECT_EQ(ArenaMappings(), before + 2);
  EXPECT_GT(environment_.arena->Trim(), 0u);
  // A peer that follows the protocol has released its views by now; this one has not.
  EXPECT_EQ(ArenaMappings(), before + 1);
  EXPECT_EQ(*static_cast<const char*>(view.data()), 'a');
  view = Tensor();
  EXPECT_EQ(ArenaMappings(), before);

  // A control channel that is full at that moment is notified later.
  hand_over(2);
  is_full = true;
  environment_.arena->Trim();
  EXPECT_EQ(ArenaMappings(), before + 1);
  is_full = false;
  hand_over(3);
  EXPECT_EQ(ArenaMappings(), before + 2);
  // Segments that were never announced, or have ended, are not announced as ended.
  EXPECT_FALSE(receiver->OnControlMessage(EncodeShmSegmentNotice({.segment = 1}), {}).ok());
  sender->Abort(absl::CancelledError("over"));
  receiver->Abort(absl::CancelledError("over"));
}

TEST_F(EndpointsTest, UnannouncedSegments_AreNotExposed) {
  auto sender = std::make_shared<ShmSender>(environment_);
  sender->SetControlChannel([](absl::string_view, absl::Span<const int>) {
    return absl::ResourceExhaustedError("the control channel is full");
  });
  absl::Status status;
  sender->Expose(1, InArena('a'), {}, [&](absl::StatusOr<TransferDescriptor> descriptor) {
    status = descriptor.status();
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(environment_.arena->stats().block_count, 0);
}

// A control channel that keeps the last frame, or rejects it.
class OneFrameChannel final : public ControlChannel {
 public:
  absl::Status Send(uint16_t type, absl::Span<const absl::string_view> parts,
                    absl::Span<const int>) override {
    if (!refusal.ok()) return refusal;
    last_type = type;
    for (const absl::string_view part : parts) body.append(part.data(), part.size());
    return absl::OkStatus();
  }
  void Close(const absl::Status& why) override { closed = why; }
  const PeerId& peer() const override { return peer_; }
  bool passes_descriptors() const override { return true; }
  std::string Describe() const override { return "one frame"; }

  absl::Status refusal;
  absl::Status closed;
  uint16_t last_type = 0;
  std::string body;

 private:
  const PeerId peer_ = {2, 20};
};

TEST_F(EndpointsTest, ExposeNow_SendsTheDescriptorBehindTheHead) {
  auto sender = std::make_shared<ShmSender>(environment_);
  bool is_announced = false;
  sender->SetControlChannel([&](absl::string_view, absl::Span<const int>) {
    is_announced = true;
    return absl::OkStatus();
  });
  OneFrameChannel channel;
  const Tensor tensor = InArena('a');
  ASSERT_TRUE(
      sender->TryExposeAndSend(1, tensor, {.channel = &channel, .type = 3, .head = "head"}));
  EXPECT_TRUE(is_announced);
  EXPECT_EQ(channel.last_type, 3);
  ASSERT_EQ(channel.body.substr(0, 4), "head");
  const absl::StatusOr<ShmDescriptor> descriptor = DecodeShmDescriptor(channel.body.substr(4));
  ASSERT_TRUE(descriptor.ok()) << descriptor.status();
  EXPECT_EQ(descriptor->offset, tensor.buffer()->arena_offset().offset);
  sender->Abort(absl::CancelledError("over"));
}

TEST_F(EndpointsTest, ExposeNow_NeedsACopyOrFails_SendsNothing) {
  auto sender = std::make_shared<ShmSender>(environment_);
  absl::Status announced;
  sender->SetControlChannel([&](absl::string_view, absl::Span<const int>) { return announced; });
  OneFrameChannel channel;
  const DescriptorFrame frame = {.channel = &channel, .type = 3, .head = "head"};
  const Tensor elsewhere = *Tensor::Allocate(DataType::kUint8, *Shape::Create({kBytes}));
  EXPECT_FALSE(sender->TryExposeAndSend(1, elsewhere, frame));
  announced = absl::ResourceExhaustedError("the control channel is full");
  EXPECT_FALSE(sender->TryExposeAndSend(2, InArena('a'), frame));
  EXPECT_EQ(channel.body, "");
  EXPECT_TRUE(channel.closed.ok());
  EXPECT_EQ(environment_.arena->stats().block_count, 0);
}

// The peer would wait forever for the frame.
TEST_F(EndpointsTest, ExposeNow_FrameIsRejected_ClosesTheChannel) {
  auto sender = std::make_shared<ShmSender>(environment_);
  sender->SetControlChannel(
      [](absl::string_view, absl::Span<const int>) { return absl::OkStatus(); });
  OneFrameChannel channel;
  channel.refusal = absl::ResourceExhaustedError("the control channel is full");
  EXPECT_TRUE(
      sender->TryExposeAndSend(1, InArena('a'), {.channel = &channel, .type = 3, .head = ""}));
  EXPECT_EQ(channel.closed, channel.refusal);
  sender->Abort(absl::CancelledError("over"));
}

TEST_F(EndpointsTest, MalformedControlMessagesAreRefused) {
  auto receiver = std::make_shared<ShmReceiver>(environment_, [](uint64_t) {});
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  UniqueFd other(pipe_ends[1]);
  std::vector<UniqueFd> descriptors;
  descriptors.emplace_back(pipe_ends[0]);
  const std::string notice = EncodeShmSegmentNotice({.segment = 3, .bytes = 1 << 20});
  EXPECT_FALSE(receiver->OnControlMessage(notice, {}).ok());
  EXPECT_FALSE(receiver->OnControlMessage(notice, absl::MakeSpan(descriptors)).ok());
  EXPECT_FALSE(receiver->OnControlMessage("short", {}).ok());
  bool is_done = false;
  receiver->Fetch(1, Header(kBytes), ShmDescriptor{.segment = 3}.bytes(), {}, Tensor(),
                  [&is_done](auto tensor, TransportReceiver::FetchInfo) {
                    is_done = true;
                    EXPECT_EQ(tensor.status().code(), absl::StatusCode::kInvalidArgument);
                  });
  EXPECT_TRUE(is_done);
}

// No connection would bring data for it, and the receive would wait forever.
TEST_F(EndpointsTest, TcpDescriptorForNoBytes_CompletesAtOnce) {
  auto transport = TcpTransport::Create(environment_, {});
  ASSERT_TRUE(transport.ok()) << transport.status();
  Endpoint peer;
  peer.peer = {2, 20};
  const std::shared_ptr<TransportReceiver> receiver =
      (*transport)->CreateReceiver(peer, [](uint64_t) {});
  bool is_done = false;
  receiver->Fetch(1, Header(0), "", {}, Tensor(),
                  [&is_done](auto tensor, TransportReceiver::FetchInfo) {
                    is_done = true;
                    EXPECT_TRUE(tensor.ok()) << tensor.status();
                  });
  EXPECT_TRUE(is_done);
  receiver->Abort(absl::CancelledError("over"));
}

// A sender that accepts connections and sends nothing: if the control channel stayed, every later
// tensor would fail because of the first.
TEST_F(EndpointsTest, UnansweredDataConnections_EndTheChannel) {
  auto transport = TcpTransport::Create(environment_, {});
  ASSERT_TRUE(transport.ok()) << transport.status();
  const auto silent = ListenTcp("127.0.0.1:0");
  ASSERT_TRUE(silent.ok()) << silent.status();
  Endpoint peer;
  peer.peer = {2, 20};
  peer.channels.tcp = {absl::StrCat("127.0.0.1:", silent->port)};
  const std::shared_ptr<TransportReceiver> receiver =
      (*transport)->CreateReceiver(peer, [](uint64_t) {});
  absl::Notification done;
  absl::Status status;
  receiver->Fetch(1, Header(kBytes), "", {}, Tensor(),
                  [&](auto tensor, TransportReceiver::FetchInfo) {
                    status = tensor.status();
                    done.Notify();
                  });
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(10)));
  // On which a consumer closes its control channel.
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_NE(status.message().find("node 2"), std::string::npos) << status;
}

// Next to the assumed cost of a copy between GPUs, a number that was measured on the host would
// make TCP look the cheapest.
TEST_F(EndpointsTest, TcpBetweenGpus_HasAssumedCostsLikeTheOthers) {
  const auto transport = TcpTransport::Create(environment_, {});
  ASSERT_TRUE(transport.ok()) << transport.status();
  Endpoint ends[2];
  for (Endpoint& each : ends) {
    each.boot_id = "one machine";
    each.channels.tcp = {"127.0.0.1:1"};
  }
  PathQuery query = {.source = &ends[0], .destination = &ends[1], .bytes = kBytes};
  absl::StatusOr<PathCost> cost = (*transport)->Cost(query);
  ASSERT_TRUE(cost.ok()) << cost.status();
  EXPECT_EQ(cost->latency_basis, CostBasis::kAtStart);
  const TensorLocation gpu = {.space = MemorySpace::kCuda, .ordinal = 0};
  for (const bool is_source : {true, false}) {
    query.source_location = is_source ? gpu : TensorLocation{};
    query.destination_location = is_source ? TensorLocation{} : gpu;
    cost = (*transport)->Cost(query);
    ASSERT_TRUE(cost.ok()) << cost.status();
    EXPECT_EQ(cost->latency_basis, CostBasis::kAssumed);
    EXPECT_EQ(cost->bandwidth_basis, CostBasis::kAssumed);
  }
}

// Added to the mapping's address it would point outside of it, or wrap around.
TEST_F(EndpointsTest, OffsetBeyondTheSegment_IsInvalidArgument) {
  auto receiver = std::make_shared<ShmReceiver>(environment_, [](uint64_t) {});
  const Tensor tensor = InArena('a');
  const MemorySegment& memory = environment_.arena->memory(tensor.buffer()->arena_offset());
  std::vector<UniqueFd> fds;
  fds.emplace_back(dup(memory.fd()));
  ASSERT_TRUE(
      receiver->OnControlMessage(EncodeShmSegmentNotice({1, memory.bytes()}), absl::MakeSpan(fds))
          .ok());
  absl::Status status;
  receiver->Fetch(1, Header(kBytes),
                  ShmDescriptor{.segment = 1, .offset = memory.bytes() + (size_t{1} << 40)}.bytes(),
                  {}, Tensor(),
                  [&status](auto got, TransportReceiver::FetchInfo) { status = got.status(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  receiver->Abort(absl::CancelledError("over"));
}

// A receiver that was notified of the peer's death may reuse its buffer at once.
TEST_F(EndpointsTest, AbortWhileACopyIsQueued_TheBufferIsNotWritten) {
  constexpr size_t kLarge = size_t{1} << 20;
  CopyPool held({.threads = 1});
  environment_.copier = &held;
  absl::Notification is_held;
  absl::Notification release;
  char from = 'x';
  char to = ' ';
  held.CopyAsync(&to, &from, 1, [&] {
    is_held.Notify();
    release.WaitForNotification();
  });
  is_held.WaitForNotification();
  auto receiver = std::make_shared<ShmReceiver>(environment_, [](uint64_t) {});
  const std::shared_ptr<Buffer> source = *environment_.arena->Allocate(kLarge);
  std::memset(source->data(), 's', kLarge);
  const MemorySegment& memory = environment_.arena->memory(source->arena_offset());
  std::vector<UniqueFd> fds;
  fds.emplace_back(dup(memory.fd()));
  ASSERT_TRUE(
      receiver->OnControlMessage(EncodeShmSegmentNotice({1, memory.bytes()}), absl::MakeSpan(fds))
          .ok());
  Tensor destination = *Tensor::Allocate(DataType::kUint8, *Shape::Create({kLarge}));
  std::memset(destination.mutable_data(), 'd', kLarge);
  absl::Notification is_taking;
  absl::Notification is_over;
  // On the loop, as a control channel calls it: there a copy goes to the pool.
  end_.loop->Post([&] {
    receiver->Fetch(1, Header(kLarge),
                    ShmDescriptor{.segment = 1, .offset = source->arena_offset().offset}.bytes(),
                    {}, destination,
                    [&is_over](auto, TransportReceiver::FetchInfo) { is_over.Notify(); });
    is_taking.Notify();
  });
  is_taking.WaitForNotification();
  ASSERT_FALSE(is_over.HasBeenNotified());
  receiver->Abort(absl::UnavailableError("the peer is gone"));
  release.Notify();
  is_over.WaitForNotification();
  const auto* const bytes = static_cast<const char*>(destination.data());
  EXPECT_EQ(std::count(bytes, bytes + kLarge, 'd'), static_cast<ptrdiff_t>(kLarge));
}

// A control channel that ends unmaps its segments, whether the receiver is still held or not;
// existing views stay valid.
TEST_F(EndpointsTest, ReceiverAborted_SegmentsAreUnmapped) {
  const int before = ArenaMappings();
  auto receiver = std::make_shared<ShmReceiver>(environment_, [](uint64_t) {});
  Tensor tensor = InArena('a');
  const MemorySegment& memory = environment_.arena->memory(tensor.buffer()->arena_offset());
  std::vector<UniqueFd> fds;
  fds.emplace_back(dup(memory.fd()));
  ASSERT_TRUE(
      receiver->OnControlMessage(EncodeShmSegmentNotice({1, memory.bytes()}), absl::MakeSpan(fds))
          .ok());
  EXPECT_EQ(ArenaMappings(), before + 2);
  receiver->Abort(absl::UnavailableError("the peer is gone"));
  EXPECT_EQ(ArenaMappings(), before + 1);
}

// A peer closes its control channel when a segment is retired twice.
TEST_F(EndpointsTest, SegmentRetiredTwice_IsReportedOnce) {
  auto sender = std::make_shared<ShmSender>(environment_);
  int announcements = 0;
  sender->SetControlChannel([&announcements](absl::string_view, absl::Span<const int>) {
    ++announcements;
    return absl::OkStatus();
  });
  const Tensor tensor = InArena('a');
  sender->Expose(1, tensor, {}, [](absl::StatusOr<TransferDescriptor> descriptor) {
    ASSERT_TRUE(descriptor.ok()) << descriptor.status();
  });
  EXPECT_EQ(announcements, 1);
  const uint32_t segment = tensor.buffer()->arena_offset().segment;
  for (int i = 0; i < 2; ++i) sender->Retire(segment);
  EXPECT_EQ(announcements, 2);
  // A segment that the peer never had is not announced.
  sender->Retire(segment + 1);
  EXPECT_EQ(announcements, 2);
  sender->Abort(absl::CancelledError("over"));
}

// A view that ends with the segment is whole; one byte further is another process's crash.
TEST_F(EndpointsTest, LastBytesOfASegment_AreAcceptedAndNoneBeyond) {
  auto receiver = std::make_shared<ShmReceiver>(environment_, [](uint64_t) {});
  const Tensor tensor = InArena('a');
  const MemorySegment& memory = environment_.arena->memory(tensor.buffer()->arena_offset());
  std::vector<UniqueFd> fds;
  fds.emplace_back(dup(memory.fd()));
  ASSERT_TRUE(
      receiver->OnControlMessage(EncodeShmSegmentNotice({1, memory.bytes()}), absl::MakeSpan(fds))
          .ok());
  const auto take = [&](const TensorHeader& header, uint64_t offset) {
    absl::Status status;
    receiver->Fetch(1, header, ShmDescriptor{.segment = 1, .offset = offset}.bytes(), {}, Tensor(),
                    [&status](auto got, TransportReceiver::FetchInfo) { status = got.status(); });
    return status;
  };
  const uint64_t last = memory.bytes() - kBytes;
  EXPECT_TRUE(take(Header(kBytes), last).ok());
  EXPECT_EQ(take(Header(kBytes), last + 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(take(Header(0), memory.bytes()).ok());
  EXPECT_EQ(take(Header(0), memory.bytes() + 1).code(), absl::StatusCode::kInvalidArgument);
  // Elements are aligned for the processor.
  const TensorHeader doubles = {DataType::kDouble, *Shape::Create({2}), 16};
  EXPECT_TRUE(take(doubles, 8).ok());
  EXPECT_EQ(take(doubles, 4).code(), absl::StatusCode::kInvalidArgument);
  // The number of a segment that is there is not given to another one.
  fds.clear();
  fds.emplace_back(dup(memory.fd()));
  EXPECT_EQ(
      receiver->OnControlMessage(EncodeShmSegmentNotice({1, memory.bytes()}), absl::MakeSpan(fds))
          .code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(take(Header(kBytes), last).ok());
  receiver->Abort(absl::CancelledError("over"));
}

// The peer does not know the segment: the next tensor in it would end the control channel.
TEST_F(EndpointsTest, SegmentCouldNotBeAnnounced_IsAnnouncedWithTheNextTensor) {
  auto sender = std::make_shared<ShmSender>(environment_);
  int announcements = 0;
  bool is_full = true;
  sender->SetControlChannel([&](absl::string_view, absl::Span<const int>) {
    if (is_full) return absl::ResourceExhaustedError("the control channel is full");
    ++announcements;
    return absl::OkStatus();
  });
  const Tensor tensor = InArena('a');
  uint64_t id = 0;
  const auto expose = [&] {
    absl::Status status;
    sender->Expose(++id, tensor, {}, [&](absl::StatusOr<TransferDescriptor> descriptor) {
      status = descriptor.status();
    });
    return status;
  };
  EXPECT_FALSE(expose().ok());
  is_full = false;
  EXPECT_TRUE(expose().ok());
  EXPECT_TRUE(expose().ok());
  EXPECT_EQ(announcements, 1);
  sender->Abort(absl::CancelledError("over"));
  EXPECT_EQ(expose().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace ferry
