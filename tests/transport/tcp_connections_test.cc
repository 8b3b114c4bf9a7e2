// SPDX-License-Identifier: Apache-2.0
// Which of a pair's connections carries a tensor, and on which thread it arrives.
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

#include "tensor/copy.h"
#include "tensor/host_arena.h"
#include "tests/transport/control_channel_pair.h"
#include "transport/tcp/tcp_transport.h"

namespace ferry {
namespace {

constexpr size_t kConnections = 2;

class TcpConnectionsTest : public ::testing::Test {
 protected:
  TcpConnectionsTest() {
    for (Side* side : {&sending_, &receiving_}) {
      side->environment.loop = side->end.loop.get();
      side->environment.connection_manager = side->end.connection_manager.get();
      side->environment.arena = *HostArena::Create({});
      side->environment.copier = &copier_;
      side->transport =
          *TcpTransport::Create(side->environment, {.connections = static_cast<int>(kConnections)});
    }
    sending_.end.on_data = [this](DataConnection connection) {
      absl::MutexLock lock(&mu_);
      accepted_.push_back(std::move(connection));
    };
    Endpoint to_receiver;
    to_receiver.peer = receiving_.end.peer;
    sender_ = sending_.transport->CreateSender(to_receiver);
    Endpoint to_sender;
    to_sender.peer = sending_.end.peer;
    to_sender.channels = sending_.end.addresses;
    receiver_ = receiving_.transport->CreateReceiver(to_sender, [](uint64_t) {});
  }
  ~TcpConnectionsTest() override {
    sender_->Abort(absl::CancelledError("over"));
    receiver_->Abort(absl::CancelledError("over"));
  }

  struct Side {
    explicit Side(PeerId self) : end(self) {}

    ControlEnd end;
    TransportEnvironment environment;
    std::unique_ptr<TcpTransport> transport;
  };
  struct Arrival {
    std::string descriptor;
    absl::StatusOr<Tensor> tensor = absl::UnknownError("nothing has come");
    bool came_on_event_loop = false;
  };

  // Begins a transfer, which gives the transfer descriptor, and the connections if it is the first.
  std::string Begin(uint64_t id, size_t bytes) {
    Tensor tensor =
        *Tensor::Allocate(DataType::kUint8, *Shape::Create({static_cast<int64_t>(bytes)}));
    for (size_t i = 0; i < bytes; ++i) {
      static_cast<uint8_t*>(tensor.mutable_data())[i] = ByteOf(id, i);
    }
    const TensorHeader header = {tensor.dtype(), tensor.shape(), bytes};
    auto arrived = std::make_unique<Waiting>();
    Waiting* const waiting = arrived.get();
    waiting_.emplace(id, std::move(arrived));
    std::string body;
    sender_->Expose(id, tensor, {}, [&](absl::StatusOr<TransferDescriptor> descriptor) {
      ASSERT_TRUE(descriptor.ok()) << descriptor.status();
      body = descriptor->body;
      // As a control channel would: on the receiver's loop.
      receiving_.end.loop->Post([this, id, header, body, waiting] {
        receiver_->Fetch(id, header, body, {}, Tensor(),
                         [this, waiting](auto result, TransportReceiver::FetchInfo) {
                           waiting->arrival.tensor = std::move(result);
                           waiting->arrival.came_on_event_loop = receiving_.end.loop->IsOnLoop();
                           waiting->done.Notify();
                         });
      });
    });
    return body;
  }
  // Until it has arrived, with the content that was sent.
  Arrival Finish(uint64_t id) {
    Waiting& waiting = *waiting_.at(id);
    EXPECT_TRUE(waiting.done.WaitForNotificationWithTimeout(absl::Seconds(20)));
    const absl::StatusOr<Tensor>& tensor = waiting.arrival.tensor;
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    for (size_t i = 0; tensor.ok() && i < tensor->bytes(); ++i) {
      if (static_cast<const uint8_t*>(tensor->data())[i] == ByteOf(id, i)) continue;
      ADD_FAILURE() << "byte " << i << " of transfer " << id;
      break;
    }
    return std::move(waiting.arrival);
  }
  // The connections that the receiver has opened; the sender uses those that `is_used` selects, and
  // keeps the others open.
  void Connect(absl::FunctionRef<bool(uint32_t index)> is_used) {
    absl::MutexLock lock(&mu_);
    const auto all = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return accepted_.size() == kConnections + 1;
    };
    ASSERT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&all), absl::Seconds(20)));
    for (DataConnection& each : accepted_) {
      if (!is_used(each.index)) continue;
      ASSERT_TRUE(sending_.transport->OnDataConnection(each));
    }
    // Its own connections are in use when the function posted after them has run.
    absl::Notification are_there;
    sending_.end.loop->Post([&are_there] { are_there.Notify(); });
    are_there.WaitForNotification();
  }
  static uint8_t ByteOf(uint64_t id, size_t i) {
    return static_cast<uint8_t>(id * 31 + i * 7 + i / 251);
  }

  struct Waiting {
    Arrival arrival;
    absl::Notification done;
  };

  CopyPool copier_;
  absl::Mutex mu_;
  std::vector<DataConnection> accepted_ ABSL_GUARDED_BY(mu_);
  Side sending_{{1, 10}};
  Side receiving_{{2, 20}};
  std::map<uint64_t, std::unique_ptr<Waiting>> waiting_;
  std::shared_ptr<TransportSender> sender_;
  std::shared_ptr<TransportReceiver> receiver_;
};

TEST_F(TcpConnectionsTest, SingleTransfer_ArrivesOnTheChannelsLoop) {
  EXPECT_EQ(Begin(1, 1000), "") << "there are no connections yet";
  Connect([](uint32_t) { return true; });
  EXPECT_FALSE(Finish(1).came_on_event_loop);
  sender_->Release(1);
  for (uint64_t id = 2; id < 10; ++id) {
    EXPECT_EQ(Begin(id, id % 2 == 0 ? kNearBytes : 300'000), kComesNear);
    EXPECT_TRUE(Finish(id).came_on_event_loop);
    sender_->Release(id);
  }
}

TEST_F(TcpConnectionsTest, StreamsAndLargeTransfers_HaveTheirOwnThreads) {
  Begin(1, 1000);
  Connect([](uint32_t) { return true; });
  Finish(1);
  sender_->Release(1);
  EXPECT_EQ(Begin(2, kNearBytes + 1), "");
  EXPECT_FALSE(Finish(2).came_on_event_loop);
  sender_->Release(2);
  EXPECT_EQ(Begin(3, 200'000), kComesNear);
  // Until the first is over.
  for (uint64_t id = 4; id < 8; ++id) EXPECT_EQ(Begin(id, 200'000), "");
  for (uint64_t id = 3; id < 8; ++id) {
    EXPECT_EQ(Finish(id).came_on_event_loop, id == 3);
    sender_->Release(id);
  }
  EXPECT_EQ(Begin(8, 200'000), kComesNear);
  Finish(8);
}

// The others may fail for lack of descriptors.
TEST_F(TcpConnectionsTest, NearConnectionAlone_CarriesEverything) {
  Begin(1, 5 * kNearBytes);
  Connect([](uint32_t index) { return index == kNearConnection; });
  EXPECT_TRUE(Finish(1).came_on_event_loop);
  sender_->Release(1);
  EXPECT_EQ(Begin(2, 3 * kNearBytes), "");
  EXPECT_EQ(Begin(3, 200'000), "");
  EXPECT_TRUE(Finish(2).came_on_event_loop);
  EXPECT_TRUE(Finish(3).came_on_event_loop);
}

TEST_F(TcpConnectionsTest, OtherConnections_WorkWithoutTheNearOne) {
  Begin(1, 1000);
  Connect([](uint32_t index) { return index != kNearConnection; });
  Finish(1);
  sender_->Release(1);
  EXPECT_EQ(Begin(2, 200'000), "");
  EXPECT_FALSE(Finish(2).came_on_event_loop);
}

// A sender's thread that writes while the loop finds the connection broken.
TEST_F(TcpConnectionsTest, BrokenNearConnection_EndsBothEndpoints) {
  Begin(1, 1000);
  Connect([](uint32_t) { return true; });
  Finish(1);
  sender_->Release(1);
  receiver_->Abort(absl::UnavailableError("gone"));
  // It notices by the connections, which the receiver has closed, sooner or later.
  absl::Status status;
  for (uint64_t id = 2; status.ok(); ++id) {
    ASSERT_LT(id, 100'000u);
    sender_->Expose(
        id, *Tensor::Allocate(DataType::kUint8, *Shape::Create({300'000})), {},
        [&](absl::StatusOr<TransferDescriptor> descriptor) { status = descriptor.status(); });
    sender_->Release(id);
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

}  // namespace
}  // namespace ferry
