// SPDX-License-Identifier: Apache-2.0
// Transfer descriptors of a malicious peer that knows the job's token, for every transport between
// processes: all it can do to others is to end its own control channel.
#include <sys/socket.h>

#include <numeric>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/node/conformance/conformance.h"
#include "tests/node/rogue_peer.h"
#include "transport/tcp/data_plane.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

class ConformanceOfDescriptors : public ::testing::TestWithParam<std::string> {
 protected:
  using End = RoguePeer::End;

  bool over_tcp() const { return GetParam() == "tcp"; }
  bool is_extra() const { return FindTransport(ExtraTransports(), GetParam()) != nullptr; }
  TransferEngineOptions Options() const {
    TransferEngineOptions options;
    options.extra_transports = ExtraTransports();
    // Cheaper ones would be selected.
    if (is_extra()) options.require_transport = GetParam();
    return options;
  }
  // Its number in the messages of the engine.
  int Number() const {
    const std::vector<TransportDescription>& all = end_->engine->self().transports;
    const auto found = std::find_if(all.begin(), all.end(),
                                    [](const auto& each) { return each.name == GetParam(); });
    return static_cast<int>(found - all.begin()) + 1;
  }
  // Tensors of the engine that are kept for the peer.
  int64_t Exposed() const {
    return is_extra() ? FileDirectory::FileCount() : end_->engine->arena().stats().block_count;
  }
  static Tensor InArena(RoguePeer& rogue, int64_t bytes) {
    Tensor tensor = *Tensor::Create(DataType::kUint8, *Shape::Create({bytes}),
                                    *rogue.arena().Allocate(static_cast<size_t>(bytes)));
    FillPattern(tensor, 3);
    return tensor;
  }
  Receipt Ask(RoguePeer& rogue, Tensor destination = Tensor()) {
    RecvArgs args;
    args.destination = std::move(destination);
    Receipt receipt;
    end_->Step(1)->RecvAsync(rogue.KeyTo(*end_, absl::StrCat("t", ++asked_)), args,
                             receipt.callback());
    return receipt;
  }
  template <typename Condition>
  static bool Becomes(Condition condition) {
    for (int i = 0; i < 5000 && !condition(); ++i) absl::SleepFor(absl::Milliseconds(2));
    return condition();
  }

  Directory directory_;
  std::unique_ptr<EngineEnd> end_ = std::make_unique<EngineEnd>(directory_, 2, Options());
  int asked_ = 0;
};

// Honest senders put the smallest into the transfer descriptor itself: a transport brings them all
// the same.
TEST_P(ConformanceOfDescriptors, AnySizeIsAccepted) {
  int64_t bytes = 0;
  RoguePeer* self = nullptr;
  RoguePeer rogue(
      directory_, 1,
      [&](End& end, uint64_t id) {
        end.SendRts(id, self->NumberOf(GetParam()),
                    bytes == 0 ? *Tensor::Allocate(DataType::kUint8, *Shape::Create({0}))
                               : InArena(*self, bytes));
      },
      {}, false, ExtraTransports());
  self = &rogue;
  for (const int64_t each : {0, 1, 2, 63, 64, 4095, 4097, 300'000, (1 << 20) + 1}) {
    for (const bool into_buffer : {false, true}) {
      Tensor expected = *Tensor::Allocate(DataType::kUint8, *Shape::Create({each}));
      FillPattern(expected, 3);
      rogue.Do([&] { bytes = each; });
      Receipt receipt =
          Ask(rogue,
              into_buffer ? *Tensor::Allocate(DataType::kUint8, *Shape::Create({each})) : Tensor());
      const auto received = receipt.Wait();
      ASSERT_TRUE(received.ok()) << each << ": " << received.status();
      EXPECT_TRUE(IsEqual(received->tensor, expected)) << each;
      EXPECT_EQ(received->path, GetParam());
    }
  }
  EXPECT_EQ(rogue.ended(), 0);
  // All of it was released.
  EXPECT_TRUE(Becomes([&] { return rogue.arena().stats().block_count == 0; }));
}

TEST_P(ConformanceOfDescriptors, GarbageOrTruncatedOnesEndTheirChannelOnly) {
  constexpr int64_t kBytes = 100'000;
  EngineEnd honest(directory_, 3, Options());
  std::function<void(ReadyToSendMessage&, std::string&)> change;
  RoguePeer* self = nullptr;
  RoguePeer rogue(
      directory_, 1,
      [&](End& end, uint64_t id) {
        end.SendRts(id, self->NumberOf(GetParam()), InArena(*self, kBytes), change);
      },
      {}, false, ExtraTransports());
  self = &rogue;
  size_t whole = 0;
  rogue.Do(
      [&] { change = [&whole](ReadyToSendMessage&, std::string& body) { whole = body.size(); }; });
  ASSERT_TRUE(Ask(rogue).Wait().ok());

  std::vector<std::function<void(ReadyToSendMessage&, std::string&)>> changes;
  for (size_t size = 0; size < whole; ++size) {
    changes.push_back([size](ReadyToSendMessage&, std::string& body) { body.resize(size); });
  }
  changes.push_back([](ReadyToSendMessage&, std::string& body) { body += '\0'; });
  auto random = std::make_shared<std::mt19937>(17);
  for (int i = 0; i < 60; ++i) {
    changes.push_back([random, whole, i](ReadyToSendMessage&, std::string& body) {
      body.assign(i % 2 == 0 && whole > 0 ? whole : 1 + (*random)() % 200, '\0');
      for (char& each : body) each = static_cast<char>((*random)());
    });
  }
  // For unknown transports, and beyond the end of the memory.
  changes.push_back([](ReadyToSendMessage& rts, std::string&) { rts.transport = 200; });
  changes.push_back([count = rogue.transports().size()](ReadyToSendMessage& rts, std::string&) {
    rts.transport = static_cast<uint8_t>(count + 1);
  });
  changes.push_back([](ReadyToSendMessage& rts, std::string&) { rts.id += 1000; });
  if (!over_tcp()) {
    changes.push_back([](ReadyToSendMessage& rts, std::string&) {
      rts.header.shape = *Shape::Create({int64_t{1} << 40});
      rts.header.bytes = size_t{1} << 40;
    });
  }
  for (size_t i = 0; i < changes.size(); ++i) {
    const int ended = rogue.ended();
    rogue.Do([&] { change = changes[i]; });
    Receipt receipt = Ask(rogue);
    const absl::Status status = receipt.Wait().status();
    EXPECT_TRUE(absl::IsInvalidArgument(status) || absl::IsUnavailable(status))
        << "change " << i << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("node 1")) << "change " << i;
    EXPECT_TRUE(Becomes([&] { return rogue.ended() == ended + 1; })) << "change " << i;
  }
  // Bits that make a transfer descriptor of something else of the same peer's, or of nothing. All
  // elements are read, whatever their sum.
  [[maybe_unused]] volatile uint64_t sum = 0;
  for (size_t bit = 0; bit < 8 * whole; ++bit) {
    rogue.Do([&] {
      change = [bit](ReadyToSendMessage&, std::string& body) {
        body[bit / 8] = static_cast<char>(body[bit / 8] ^ (1 << (bit % 8)));
      };
    });
    const auto received = Ask(rogue).Wait();
    const absl::Status& status = received.status();
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << "bit " << bit << ": " << status;
    // A descriptor that is still valid names memory that the peer has exported: all of it can be
    // read, and nothing else.
    if (received.ok()) {
      EXPECT_EQ(received->tensor.bytes(), static_cast<size_t>(kBytes)) << "bit " << bit;
      sum = std::accumulate(
          static_cast<const uint8_t*>(received->tensor.data()),
          static_cast<const uint8_t*>(received->tensor.data()) + received->tensor.bytes(),
          uint64_t{0});
    }
  }
  // Another control channel with the peer works, and so do those of all others.
  rogue.Do([&] { change = {}; });
  const auto received = Ask(rogue).Wait();
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ(received->tensor.bytes(), static_cast<size_t>(kBytes));
  const Tensor sent = *Tensor::Allocate(DataType::kUint8, *Shape::Create({kBytes}));
  ASSERT_TRUE(honest.Step(1)->Send(KeyBetween(honest, *end_, "h"), sent).ok());
  Receipt of_honest;
  end_->Step(1)->RecvAsync(KeyBetween(honest, *end_, "h"), {}, of_honest.callback());
  EXPECT_TRUE(of_honest.Wait().ok()) << of_honest.Wait().status();
}

// Frames of each type, and of unknown ones, with arbitrary content.
TEST_P(ConformanceOfDescriptors, FramesOfArbitraryBytesEndTheirChannelOnly) {
  constexpr int kConnections = 150;
  RoguePeer rogue(directory_, 1, {}, {}, over_tcp(), ExtraTransports());
  EngineEnd honest(directory_, 3, Options());
  std::mt19937 random(41);
  for (int i = 0; i < kConnections; ++i) {
    std::string body(random() % 100, '\0');
    for (char& each : body) each = static_cast<char>(random());
    // Small numbers hit more cases.
    if (i % 3 == 0) {
      for (char& each : body) each = static_cast<char>(each & 1);
    }
    const int ended = rogue.ended();
    absl::Notification said;
    rogue.Open(end_->engine->self(), over_tcp(), [&](End& end) {
      for (int n = 0; n < 20; ++n) {
        (void)end.channel().Send(static_cast<uint16_t>((i + n) % 12), {body});
      }
      said.Notify();
    });
    // Among them is a second HELLO.
    EXPECT_TRUE(Becomes([&] { return rogue.ended() > ended; })) << i;
    EXPECT_TRUE(said.HasBeenNotified()) << i << ": " << rogue.why();
  }
  const Tensor sent = *Tensor::Allocate(DataType::kUint8, *Shape::Create({300'000}));
  ASSERT_TRUE(honest.Step(1)->Send(KeyBetween(honest, *end_, "h"), sent).ok());
  Receipt of_honest;
  end_->Step(1)->RecvAsync(KeyBetween(honest, *end_, "h"), {}, of_honest.callback());
  EXPECT_TRUE(of_honest.Wait().ok()) << of_honest.Wait().status();
  EXPECT_TRUE(Becomes([&] { return end_->engine->fetcher().connection_count() == 1; }));
}

// A consumer that acknowledges tensors that it never fetched, twice, and tensors that were never
// exposed.
TEST_P(ConformanceOfDescriptors, ReleasedWithoutAFetchReturnTheMemory) {
  constexpr int kCount = 20;
  absl::Mutex mu;
  std::vector<uint64_t> descriptors;
  RoguePeer rogue(
      directory_, 1, {},
      [&](End& end, const ReadyToSendMessage& rts) {
        EXPECT_EQ(rts.transport, Number());
        for (int i = 0; i < 2; ++i) {
          (void)SendId(end.channel(), PeerMessageType::kAck, rts.id);
        }
        (void)SendId(end.channel(), PeerMessageType::kAck, rts.id + 5000);
        absl::MutexLock lock(&mu);
        descriptors.push_back(rts.id);
      },
      over_tcp(), ExtraTransports());
  const auto key = [&](int i) {
    const auto device = [](int node) {
      return absl::StrCat("/job:worker/replica:0/task:", node, "/device:CPU:0");
    };
    return RendezvousKey::Text(device(2), 1002, device(1), absl::StrCat("r", i));
  };
  for (int i = 0; i < kCount; ++i) {
    Tensor sent = end_->Allocate(DataType::kUint8, *Shape::Create({200'000}));
    ASSERT_TRUE(end_->Step(1)->Send(*RendezvousKey::Parse(key(i)), std::move(sent)).ok());
  }
  rogue.Open(end_->engine->self(), over_tcp(), [&](End& end) {
    for (int i = 0; i < kCount; ++i) {
      (void)SendRequest(end.channel(), {static_cast<uint64_t>(i) + 1, 1, false, key(i)});
    }
  });
  EXPECT_TRUE(Becomes([&] {
    absl::MutexLock lock(&mu);
    return descriptors.size() == kCount;
  }));
  EXPECT_TRUE(Becomes([&] {
    bool is_any = false;
    end_->engine->ForEachTransfer(absl::ZeroDuration(),
                                  [&](const PendingStepOp&) { is_any = true; });
    return !is_any;
  }));
  EXPECT_EQ(rogue.ended(), 0) << rogue.why();
  // TCP completes a transfer that it has begun, since receivers, which open the connections, count
  // on it. It is given up with the control channel.
  if (over_tcp()) end_->engine->FailNode(1, absl::UnavailableError("given up by the test"));
  EXPECT_TRUE(Becomes([&] { return Exposed() == 0; }));
}

// The same without a message.
TEST_P(ConformanceOfDescriptors, UnfetchedOnesAreGivenUpWithTheirChannel) {
  absl::Notification got;
  RoguePeer rogue(
      directory_, 1, {}, [&](End&, const ReadyToSendMessage&) { got.Notify(); }, over_tcp(),
      ExtraTransports());
  const auto device = [](int node) {
    return absl::StrCat("/job:worker/replica:0/task:", node, "/device:CPU:0");
  };
  const std::string key = RendezvousKey::Text(device(2), 1002, device(1), "never");
  Tensor sent = end_->Allocate(DataType::kUint8, *Shape::Create({200'000}));
  ASSERT_TRUE(end_->Step(1)->Send(*RendezvousKey::Parse(key), std::move(sent)).ok());
  rogue.Open(end_->engine->self(), over_tcp(), [&](End& end) {
    (void)SendRequest(end.channel(), {1, 1, false, key});
  });
  ASSERT_TRUE(got.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_EQ(Exposed(), 1);
  const auto transfers = [&] {
    int count = 0;
    end_->engine->ForEachTransfer(absl::ZeroDuration(), [&](const PendingStepOp&) { ++count; });
    return count;
  };
  EXPECT_EQ(transfers(), 1);
  end_->engine->FailNode(1, absl::UnavailableError("given up by the test"));
  EXPECT_TRUE(Becomes([&] { return Exposed() == 0; }));
  EXPECT_EQ(transfers(), 0);
}

// Bytes on the connections of a valid transfer descriptor: they are written only to the promised
// tensor, and the waiting receive ends with an error or at its deadline.
class ConformanceOfSlices : public ::testing::TestWithParam<uint32_t> {};

TEST_P(ConformanceOfSlices, GarbageOrTruncatedOnesEndTheirChannelOnly) {
  const uint32_t index = GetParam();
  constexpr int64_t kBytes = 100'000;
  const auto slice = [](uint64_t transfer, uint64_t offset, uint32_t bytes, size_t sent) {
    const SliceHeader header = {.transfer = transfer, .offset = offset, .bytes = bytes};
    return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) +
           std::string(sent, 'x');
  };
  std::mt19937 random(31);
  std::string noise(5000, '\0');
  for (char& each : noise) each = static_cast<char>(random());
  struct Attack {
    const char* what;
    std::string bytes;
    bool closes = false;
    // Which cannot be distinguished from a slow one.
    bool is_silent = false;
  };
  // Ids are the consumer's: the first is 1, on each control channel.
  const std::vector<Attack> attacks = {
      {"a slice of no bytes", slice(1, 0, 0, 0)},
      {"one that is too long", slice(1, 0, 300'000, 300'000)},
      {"one beyond the end", slice(1, kBytes - 10, 11, 11)},
      {"one far beyond the end", slice(1, UINT64_MAX - 5, 100, 100)},
      {"one more than all of it", slice(1, 0, 60'000, 60'000) + slice(1, 0, 60'000, 60'000)},
      {"half a header", slice(1, 0, kBytes, 0).substr(0, 13), true},
      {"half a slice", slice(1, 0, kBytes, kBytes / 2), true},
      {"nothing", "", true},
      {"noise", noise, true},
      {"of a transfer that nobody knows", slice(77, 0, 100, 100), false, true},
      {"a byte now and then", slice(1, 0, kBytes, 3), false, true},
  };
  for (const Attack& attack : attacks) {
    SCOPED_TRACE(attack.what);
    Directory directory;
    TransferEngineOptions options;
    options.require_transport = "tcp";
    auto end = std::make_unique<EngineEnd>(directory, 2, options);
    std::vector<DataConnection> connections;
    RoguePeer rogue(
        directory, 1,
        [&](RoguePeer::End& channel, uint64_t id) {
          channel.SendRtsOfNothing(id, 2,
                                   *Tensor::Allocate(DataType::kUint8, *Shape::Create({kBytes})),
                                   index == kNearConnection ? std::string(kComesNear) : "");
        },
        {}, true);
    rogue.TakeData([&](DataConnection connection) {
      if (connection.index == index) {
        (void)send(connection.socket.get(), attack.bytes.data(), attack.bytes.size(), MSG_NOSIGNAL);
      }
      if (!attack.closes) connections.push_back(std::move(connection));
    });
    Receipt receipt;
    RecvArgs args;
    args.deadline = absl::InfiniteFuture();
    if (attack.is_silent) args.deadline = SteadyClock().Now() + absl::Milliseconds(200);
    end->Step(1)->RecvAsync(rogue.KeyTo(*end, "t"), args, receipt.callback());
    end->engine->NoteDeadline(args.deadline);
    const absl::Status status = receipt.Wait().status();
    EXPECT_EQ(status.code(), attack.is_silent ? absl::StatusCode::kDeadlineExceeded
                                              : absl::StatusCode::kUnavailable)
        << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("node 1"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("by tcp"));
    EngineEnd honest(directory, 3, options);
    const Tensor sent = *Tensor::Allocate(DataType::kUint8, *Shape::Create({kBytes}));
    ASSERT_TRUE(honest.Step(1)->Send(KeyBetween(honest, *end, "h"), sent).ok());
    Receipt of_honest;
    end->Step(1)->RecvAsync(KeyBetween(honest, *end, "h"), {}, of_honest.callback());
    EXPECT_TRUE(of_honest.Wait().ok()) << of_honest.Wait().status();
    end.reset();
  }
}

INSTANTIATE_TEST_SUITE_P(Over, ConformanceOfSlices, ::testing::Values(0, kNearConnection),
                         [](const auto& info) {
                           return info.param == kNearConnection ? "TheNearConnection" : "AnyOther";
                         });

INSTANTIATE_TEST_SUITE_P(Of, ConformanceOfDescriptors,
                         ::testing::ValuesIn(TransportsBetweenProcesses()),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace ferry
