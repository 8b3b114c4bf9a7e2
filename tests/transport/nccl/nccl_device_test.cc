// SPDX-License-Identifier: Apache-2.0
// A GPU's transfers when their peer does nothing: each ends, once, with its reason.
#include "transport/nccl/nccl_device.h"

#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

#include "net/event_loop.h"
#include "tests/transport/nccl/no_store.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Far longer than anything here takes.
constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr uint64_t kIncarnation = 1000;
constexpr DeviceId kSelf(0);

class NcclDeviceTest : public ::testing::Test {
 protected:
  NcclDeviceTest() {
    for (const char* const name : {"FERRY_CUDA_LIBRARY", "FERRY_NCCL_LIBRARY"}) {
      setenv(name, FERRY_STRICT_CUDA, /*overwrite=*/1);
    }
    gpus_ = *Gpus::Create(*cuda::CudaApi::Load(), AllocateHeapBuffer, nullptr, {});
    loop_ = *EventLoop::Create({});
    common_.job.library = *nccl::NcclApi::Load();
    common_.job.store = [](std::shared_ptr<BootstrapStoreListener>) {
      return std::make_unique<NoStore>();
    };
    common_.gpus = gpus_.get();
    common_.loop = loop_.get();
    common_.threads = &threads_;
    common_.incarnation = kIncarnation;
    common_.send = [](const BatchAgreementMessage&) {};
    common_.learn = [](size_t, absl::Duration) {};
    common_.options.open_timeout = kPatience;
    common_.options.transfer_timeout = kPatience;
  }
  ~NcclDeviceTest() override {
    if (device_ != nullptr) device_->Stop(absl::CancelledError("the test is over"), kPatience);
    EXPECT_THAT(threads_.StopWithin(kPatience), IsEmpty());
    loop_->Stop();
    gpus_->Stop();
  }

  void Make() { device_ = *NcclDevice::Create(common_, 0, kSelf); }

  // A transfer's end; there is one.
  struct End {
    absl::Notification is_over;
    absl::Status status;
    absl::Status Await() {
      return is_over.WaitForNotificationWithTimeout(kPatience) ? status
                                                               : absl::UnknownError("never ended");
    }
  };
  NcclTransfer TransferOf(const TransferKey& key, const std::shared_ptr<End>& end) {
    NcclTransfer transfer;
    transfer.key = key;
    transfer.peer = peer_;
    transfer.memory = *Tensor::Allocate(DataType::kUint8, *Shape::Create({1000}));
    transfer.done = [end](absl::Status status) {
      end->status = std::move(status);
      end->is_over.Notify();
    };
    return transfer;
  }
  std::shared_ptr<End> Send(uint64_t id) {
    auto end = std::make_shared<End>();
    device_->Send(TransferOf({kSelf, peer_.id, id}, end),
                  [this](const std::optional<BatchAgreementMessage>&,
                         const std::optional<CommunicatorName>&) { ++told_; });
    return end;
  }
  std::shared_ptr<End> Receive(uint64_t id,
                               const std::optional<BatchAgreementMessage>& grant = std::nullopt) {
    auto end = std::make_shared<End>();
    device_->Receive(TransferOf({peer_.id, kSelf, id}, end), grant);
    return end;
  }
  uint64_t CommunicatorIdWith(uint64_t incarnation) const {
    return CommunicatorKey::Create({{kSelf.value(), kIncarnation}, {peer_.id.value(), incarnation}},
                                   "keyed transfers")
        ->id();
  }

  std::unique_ptr<Gpus> gpus_;
  std::unique_ptr<EventLoop> loop_;
  ThreadGroup threads_;
  NcclDevice::Common common_;
  PeerDevice peer_ = {DeviceId(16), 2000, "gpu:0 of node 1"};
  std::shared_ptr<NcclDevice> device_;
  int told_ = 0;
};

// One timer serves those that wait, and is set again for those that come later.
TEST_F(NcclDeviceTest, Transfers_EndAtTheirTimeouts) {
  common_.options.transfer_timeout = absl::Milliseconds(50);
  Make();
  for (uint64_t id = 1; id <= 2; ++id) {
    const auto sent = Send(id);
    const auto received = Receive(id);
    for (const auto& end : {sent, received}) {
      EXPECT_EQ(end->Await().code(), absl::StatusCode::kDeadlineExceeded) << end->status;
      EXPECT_THAT(std::string(end->status.message()), HasSubstr("(1000 bytes): waited "));
    }
  }
  EXPECT_THAT(device_->Pending(), IsEmpty());
  EXPECT_EQ(told_, 2);
}

TEST_F(NcclDeviceTest, NoCommunicator_EndsItsTransfersAndRefusesFurtherOnes) {
  common_.options.open_timeout = absl::Milliseconds(50);
  std::atomic<int> attempts = 0;
  common_.job.store = [&attempts](std::shared_ptr<BootstrapStoreListener>) {
    ++attempts;
    return std::make_unique<NoStore>();
  };
  Make();
  EXPECT_TRUE(device_->Refusal(peer_.id).ok());
  auto sent = std::make_shared<End>();
  std::shared_ptr<End> later;
  absl::Status refusal;
  NcclTransfer transfer = TransferOf({kSelf, peer_.id, 1}, sent);
  // As soon as it has failed, long before it is tried again.
  transfer.done = [&, end = std::move(transfer.done)](absl::Status status) mutable {
    refusal = device_->Refusal(peer_.id);
    later = Receive(2);
    std::move(end)(std::move(status));
  };
  device_->Send(std::move(transfer), [](const std::optional<BatchAgreementMessage>&,
                                        const std::optional<CommunicatorName>&) {});
  const auto received = Receive(1);
  ASSERT_TRUE(sent->is_over.WaitForNotificationWithTimeout(kPatience));
  for (const auto& end : {sent, received, later}) {
    EXPECT_EQ(end->Await().code(), absl::StatusCode::kAborted) << end->status;
    EXPECT_THAT(std::string(end->status.message()),
                HasSubstr("no communicator with gpu:0 of node 1"));
  }
  EXPECT_EQ(attempts, 1);
  EXPECT_THAT(std::string(refusal.message()), HasSubstr("no communicator with gpu:0 of node 1"));
  EXPECT_THAT(std::string(refusal.message()), HasSubstr("tried again in"));
  EXPECT_TRUE(device_->Refusal(DeviceId(17)).ok()) << "nothing is known of another GPU";
  EXPECT_THAT(device_->Pending(), IsEmpty());
}

TEST_F(NcclDeviceTest, Stopped_EndsTransfersAndRefusesFurtherOnes) {
  Make();
  const auto sent = Send(1);
  const auto received = Receive(1);
  EXPECT_EQ(told_, 1);
  EXPECT_THAT(device_->Pending(), SizeIs(2));
  device_->Stop(absl::UnavailableError("this process leaves"), kPatience);
  const auto late_sent = Send(2);
  const auto late_received = Receive(2);
  for (const auto& end : {sent, received, late_sent, late_received}) {
    EXPECT_FALSE(end->Await().ok());
    EXPECT_THAT(std::string(end->status.message()), HasSubstr("this process leaves"));
  }
  EXPECT_EQ(told_, 1) << "nobody is told of a transfer that is refused";
  EXPECT_THAT(device_->Pending(), IsEmpty());
}

TEST_F(NcclDeviceTest, DuplicateTransfer_IsRefusedAndTheFirstStays) {
  Make();
  const auto first_sent = Send(1);
  const auto first_received = Receive(1);
  for (const auto& end : {Send(1), Receive(1)}) {
    ASSERT_TRUE(end->is_over.HasBeenNotified());
    EXPECT_FALSE(end->status.ok());
  }
  EXPECT_EQ(told_, 1);
  EXPECT_FALSE(first_sent->is_over.HasBeenNotified());
  EXPECT_FALSE(first_received->is_over.HasBeenNotified());
  EXPECT_THAT(device_->Pending(), SizeIs(2));
}

TEST_F(NcclDeviceTest, CancelledTransfer_Ends) {
  Make();
  const auto sent = Send(1);
  const auto received = Receive(1);
  device_->Cancel({kSelf, peer_.id, 1}, absl::CancelledError("not wanted"));
  EXPECT_EQ(sent->Await().message(), "not wanted");
  EXPECT_FALSE(received->is_over.HasBeenNotified());
  device_->Cancel({peer_.id, kSelf, 1}, absl::CancelledError("nor this"));
  EXPECT_EQ(received->Await().message(), "nor this");
}

// A transfer descriptor's grant is trusted no more than other messages.
TEST_F(NcclDeviceTest, TransferWithAMalformedGrant_IsRefusedAndForgotten) {
  Make();
  BatchAgreementMessage good;
  good.kind = BatchAgreementMessageKind::kGrant;
  good.from = peer_.id;
  good.to = kSelf;
  good.serial = 1;
  good.communicator = {CommunicatorIdWith(peer_.incarnation), 1};
  good.operations = {{{peer_.id, kSelf, 1}, 1000}};
  BatchAgreementMessage other_communicator = good;
  other_communicator.communicator.id ^= 1;
  BatchAgreementMessage other_device = good;
  other_device.operations = {{{peer_.id, DeviceId(5), 1}, 1000}};
  for (const BatchAgreementMessage& grant : {other_communicator, other_device}) {
    const auto end = Receive(1, grant);
    EXPECT_EQ(end->Await().code(), absl::StatusCode::kInvalidArgument) << end->status;
    EXPECT_THAT(device_->Pending(), IsEmpty());
  }
  // Its number is free again.
  const auto end = Receive(1, good);
  EXPECT_FALSE(end->is_over.HasBeenNotified());
  EXPECT_THAT(device_->Pending(), SizeIs(1));
}

// A program whose turns follow each other closely has one second for each.
TEST_F(NcclDeviceTest, TurnOfAProgram_EndsThePatienceOfItsOwnTurnOnly) {
  std::vector<absl::AnyInvocable<void() &&>> timeouts;
  common_.after = [&timeouts](absl::Duration, absl::AnyInvocable<void() &&> function) {
    timeouts.push_back(std::move(function));
  };
  Make();
  const std::shared_ptr<NcclArbiter> turns = gpus_->nccl_arbiter(0);
  turns->Request();
  turns->Request();
  turns->End();
  ASSERT_THAT(timeouts, SizeIs(1)) << "several programs share a turn";
  turns->End();
  turns->Request();
  ASSERT_THAT(timeouts, SizeIs(2));
  const auto waiting = Receive(1);
  std::move(timeouts[0])();
  EXPECT_FALSE(waiting->is_over.HasBeenNotified());
  std::move(timeouts[1])();
  const auto late = Receive(2);
  for (const auto& end : {waiting, late}) {
    EXPECT_EQ(end->Await().code(), absl::StatusCode::kFailedPrecondition) << end->status;
    EXPECT_THAT(std::string(end->status.message()),
                HasSubstr("a program's own NCCL work has been under way on gpu:0 for "));
  }
  turns->End();
  // Nobody waits any more when the last one comes.
  turns->Request();
  turns->End();
  ASSERT_THAT(timeouts, SizeIs(3));
  const auto next = Receive(3);
  std::move(timeouts[2])();
  EXPECT_FALSE(next->is_over.HasBeenNotified());
  EXPECT_THAT(device_->Pending(), SizeIs(1));
}

TEST_F(NcclDeviceTest, MessageAboutAnotherCommunicator_IsRefused) {
  Make();
  BatchAgreementMessage message;
  message.kind = BatchAgreementMessageKind::kBreak;
  message.from = peer_.id;
  message.to = kSelf;
  message.died = peer_.id;
  message.why = absl::UnavailableError("it has failed");
  message.communicator = {CommunicatorIdWith(peer_.incarnation), 1};
  EXPECT_TRUE(device_->OnMessage(message, peer_).ok());
  message.communicator.id ^= 1;
  EXPECT_EQ(device_->OnMessage(message, peer_).code(), absl::StatusCode::kInvalidArgument);
  // The process that took its place has another one.
  PeerDevice restarted = peer_;
  restarted.incarnation = 3000;
  message.communicator = {CommunicatorIdWith(restarted.incarnation), 1};
  EXPECT_EQ(device_->OnMessage(message, peer_).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(device_->OnMessage(message, restarted).ok());
  message.communicator = {CommunicatorIdWith(peer_.incarnation), 1};
  EXPECT_EQ(device_->OnMessage(message, restarted).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ferry
