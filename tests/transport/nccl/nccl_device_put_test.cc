// SPDX-License-Identifier: Apache-2.0
// One-sided transfers between two GPUs of this process, each with a device of its own, while their
// messages come at the worst moments.
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

#include "base/clock.h"
#include "base/logging.h"
#include "base/thread.h"
#include "net/event_loop.h"
#include "tests/gpu/cuda_fixture.h"
#include "tests/node/directory_store.h"
#include "transport/nccl/nccl_device.h"

namespace ferry {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Far longer than anything here takes.
constexpr absl::Duration kTooLong = absl::Seconds(30);
constexpr uint64_t kPool = uint64_t{16} << 20;
constexpr int64_t kBytes = 100'000;

class NcclDevicePutTest : public ::testing::Test {
 protected:
  NcclDevicePutTest() {
    for (const char* const name : {"FERRY_CUDA_LIBRARY", "FERRY_NCCL_LIBRARY"}) {
      setenv(name, FERRY_STRICT_CUDA, /*overwrite=*/1);
    }
    setenv("STRICT_CUDA_NCCL_VERSION", "23007", /*overwrite=*/1);
    SetLogOutput([this](absl::string_view line) {
      const absl::MutexLock lock(&mu_);
      lines_.emplace_back(line);
    });
    gpus_ = *Gpus::Create(*cuda::CudaApi::Load(), AllocateHeapBuffer, nullptr, {});
    loop_ = *EventLoop::Create({});
    for (int i = 0; i < 2; ++i) {
      NcclDevice::Common& common = common_[i];
      common.job.library = *nccl::NcclApi::Load();
      common.job.store = DirectoryStores(folder_);
      common.gpus = gpus_.get();
      common.loop = loop_.get();
      common.threads = &threads_;
      common.incarnation = PeerOf(1 - i).incarnation;
      common.learn = [](size_t, absl::Duration) {};
      common.send = [this, i](const BatchAgreementMessage& message) {
        const absl::Status heard = device_[1 - i]->OnMessage(message, PeerOf(1 - i));
        EXPECT_TRUE(heard.ok()) << heard;
      };
      common.send_put = [this, i](const PutMessage& message) {
        {
          const absl::MutexLock lock(&mu_);
          put_messages_.push_back(message);
          if (holds_ == message.kind) return;
        }
        const absl::Status heard = device_[1 - i]->OnPutMessage(message, PeerOf(1 - i));
        EXPECT_TRUE(heard.ok()) << heard;
      };
      common.options.put_bytes = kPool;
      common.options.open_timeout = kTooLong;
      common.options.transfer_timeout = kTooLong;
    }
  }
  ~NcclDevicePutTest() override {
    for (const auto& device : device_) {
      if (device != nullptr) device->Stop(absl::CancelledError("the test is over"), kTooLong);
    }
    EXPECT_THAT(threads_.StopWithin(kTooLong), IsEmpty());
    loop_->Stop();
    gpus_->Stop();
    SetLogOutput(nullptr);
    std::filesystem::remove_all(folder_);
  }

  void Make() {
    for (int i = 0; i < 2; ++i) device_[i] = *NcclDevice::Create(common_[i], i, DeviceId(i));
  }
  // As device i knows the other one.
  static PeerDevice PeerOf(int i) {
    return {DeviceId(1 - i), static_cast<uint64_t>(1001 - i), absl::StrCat("gpu:", 1 - i), kPool};
  }
  void OpenWindows() {
    Await([&] {
      // Once more if the first one has ended.
      for (int i = 0; i < 2; ++i) device_[i]->Prepare(PeerOf(i));
      return device_[0]->PutRefusal(DeviceId(1)).ok() && device_[1]->PutRefusal(DeviceId(0)).ok();
    });
    ASSERT_TRUE(device_[0]->PutRefusal(DeviceId(1)).ok()) << device_[0]->PutRefusal(DeviceId(1));
    name_ = {CommunicatorKey::Create({{0, 1000}, {1, 1001}}, "keyed transfers")->id(),
             device_[0]->CommunicatorWith(DeviceId(1))->generation()};
  }
  static void Await(const std::function<bool()>& is_done) {
    const absl::Time deadline = SteadyClock().Now() + kTooLong;
    while (!is_done() && SteadyClock().Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  }

  struct End {
    absl::Notification is_over;
    absl::Status status;
    bool was_put = false;
    absl::Status Await() {
      return is_over.WaitForNotificationWithTimeout(kTooLong) ? status
                                                              : absl::UnknownError("never ended");
    }
  };
  static TransferKey Key(uint64_t id) { return {DeviceId(0), DeviceId(1), id}; }
  NcclTransfer TransferOf(int at, uint64_t id, const std::shared_ptr<End>& end) {
    NcclTransfer transfer;
    transfer.key = Key(id);
    transfer.peer = PeerOf(at);
    transfer.put_bytes = kBytes;
    transfer.memory = *Tensor::Create(DataType::kUint8, *Shape::Create({kBytes}),
                                      *(*gpus_->Get(at))->arena->Allocate(kBytes));
    transfer.done = [end](absl::Status status) {
      end->status = std::move(status);
      end->is_over.Notify();
    };
    transfer.deliver = [end](const std::shared_ptr<Buffer>&) {
      end->was_put = true;
      end->is_over.Notify();
    };
    return transfer;
  }
  // From device 0. It must be offered; the destination is not told.
  std::shared_ptr<End> Offer(uint64_t id) {
    auto end = std::make_shared<End>();
    device_[0]->Send(TransferOf(0, id, end), [this](const std::optional<BatchAgreementMessage>&,
                                                    const std::optional<CommunicatorName>& offer) {
      EXPECT_EQ(offer, name_);
    });
    return end;
  }
  std::shared_ptr<End> Accept(uint64_t id) {
    auto end = std::make_shared<End>();
    NcclTransfer transfer = TransferOf(1, id, end);
    EXPECT_TRUE(device_[1]->ReceivePut(transfer, name_));
    return end;
  }
  PutMessage Sent(PutMessageKind kind) {
    PutMessage found;
    Await([&] {
      const absl::MutexLock lock(&mu_);
      for (const PutMessage& each : put_messages_) {
        if (each.kind == kind) found = each;
      }
      return found.kind == kind;
    });
    EXPECT_EQ(found.kind, kind) << "it was not sent";
    return found;
  }
  void HearPut(const PutMessage& message) {
    const absl::Status heard = device_[0]->OnPutMessage(message, PeerOf(0));
    EXPECT_TRUE(heard.ok()) << heard;
  }
  // The other device has ended the communicator.
  void HearBreak() {
    BatchAgreementMessage message;
    message.kind = BatchAgreementMessageKind::kBreak;
    message.from = DeviceId(1);
    message.to = DeviceId(0);
    message.communicator = name_;
    message.why = absl::AbortedError("it was broken");
    const absl::Status heard = device_[0]->OnMessage(message, PeerOf(0));
    EXPECT_TRUE(heard.ok()) << heard;
  }
  // While it exists device 0 changes its state, and does nothing of what follows from that.
  class Busy final {
   public:
    explicit Busy(NcclDevicePutTest& test) {
      auto begun = std::make_shared<absl::Notification>();
      thread_ = std::make_unique<Thread>("busy", [&test, begun, go = go_] {
        NcclTransfer transfer = test.TransferOf(0, 77, std::make_shared<End>());
        test.device_[0]->Send(std::move(transfer),
                              [begun, go](const std::optional<BatchAgreementMessage>&,
                                          const std::optional<CommunicatorName>&) {
                                begun->Notify();
                                go->WaitForNotification();
                              });
      });
      begun->WaitForNotification();
    }
    ~Busy() {
      go_->Notify();
      thread_->Join();
    }

   private:
    const std::shared_ptr<absl::Notification> go_ = std::make_shared<absl::Notification>();
    std::unique_ptr<Thread> thread_;
  };

  const std::string folder_ = absl::StrCat(testing::TempDir(), "ferry-device-put-", getpid());
  std::unique_ptr<Gpus> gpus_;
  std::unique_ptr<EventLoop> loop_;
  ThreadGroup threads_;
  NcclDevice::Common common_[2];
  std::shared_ptr<NcclDevice> device_[2];
  CommunicatorName name_;
  absl::Mutex mu_;
  std::vector<std::string> lines_;
  std::vector<PutMessage> put_messages_;
  // Such messages are sent, but not heard.
  std::optional<PutMessageKind> holds_;
};

TEST_F(NcclDevicePutTest, TensorIsPut) {
  Make();
  OpenWindows();
  const auto sent = Offer(1);
  const auto received = Accept(1);
  EXPECT_TRUE(sent->Await().ok()) << sent->status;
  EXPECT_TRUE(received->Await().ok()) << received->status;
  EXPECT_TRUE(received->was_put);
}

// Its first announcement is out already, with a block of the pool.
TEST_F(NcclDevicePutTest, OfferForASecondTime_IsRefused) {
  Make();
  OpenWindows();
  const auto sent = Offer(1);
  auto again = std::make_shared<End>();
  device_[0]->Send(TransferOf(0, 1, again), [](const std::optional<BatchAgreementMessage>&,
                                               const std::optional<CommunicatorName>&) {
    ADD_FAILURE() << "it was announced";
  });
  EXPECT_EQ(again->Await().code(), absl::StatusCode::kInvalidArgument) << again->status;
  EXPECT_FALSE(sent->is_over.HasBeenNotified());
  const auto received = Accept(1);
  EXPECT_TRUE(sent->Await().ok()) << sent->status;
  EXPECT_TRUE(received->Await().ok()) << received->status;
}

// Otherwise what is heard of it next, a grant or a cancellation, finds nothing.
TEST_F(NcclDevicePutTest, RefusedOffer_IsABatchsTransferAtOnce) {
  Make();
  OpenWindows();
  const auto sent = Offer(1);
  auto received = std::make_shared<End>();
  {
    const Busy busy(*this);
    device_[1]->Receive(TransferOf(1, 1, received), std::nullopt, /*is_offered=*/true);
    EXPECT_THAT(device_[0]->Pending(), Contains(HasSubstr("transfer 1 from device 0")));
  }
  EXPECT_TRUE(sent->Await().ok()) << sent->status;
  EXPECT_TRUE(received->Await().ok()) << received->status;
  EXPECT_FALSE(received->was_put);
}

TEST_F(NcclDevicePutTest, RoomOnACommunicatorThatHasJustEnded_IsNotUsed) {
  Make();
  OpenWindows();
  holds_ = PutMessageKind::kRoom;
  const auto sent = Offer(1);
  const auto received = Accept(1);
  {
    const Busy busy(*this);
    HearBreak();
    HearPut(Sent(PutMessageKind::kRoom));
  }
  EXPECT_TRUE(absl::IsAborted(sent->Await())) << sent->status;
  EXPECT_THAT(Sent(PutMessageKind::kWithdrawn).why.message(),
              HasSubstr("generation 1 is not open on device 0 any more"));
  EXPECT_TRUE(absl::IsAborted(received->Await())) << received->status;
}

// It was to be issued when the communicator ended.
TEST_F(NcclDevicePutTest, PutOfACommunicatorThatHasJustEnded_IsNotIssued) {
  Make();
  OpenWindows();
  holds_ = PutMessageKind::kRoom;
  const auto sent = Offer(1);
  const auto received = Accept(1);
  {
    const Busy busy(*this);
    HearPut(Sent(PutMessageKind::kRoom));
    HearBreak();
  }
  EXPECT_TRUE(absl::IsAborted(sent->Await())) << sent->status;
  EXPECT_THAT(Sent(PutMessageKind::kWithdrawn).why.message(),
              HasSubstr("generation 1 is not open any more"));
  EXPECT_TRUE(absl::IsAborted(received->Await())) << received->status;
}

// A tensor that another stream may still access is kept, without a wait.
TEST_F(NcclDevicePutTest, PutThatDoesNotPass_IsLost_AndTheLastOfItsGpu) {
  for (NcclDevice::Common& common : common_) {
    // Longer than the other rank's end waits for quiet: the fake driver reports calls that
    // synchronise the device while it is busy, as some are once the put is lost.
    common.options.grants.abort_grace = absl::Milliseconds(2500);
  }
  Make();
  OpenWindows();
  const auto set_delay_us =
      reinterpret_cast<void (*)(int)>(cuda::StrictSymbol("strict_cuda_set_delay_us"));
  set_delay_us(4'500'000);
  const auto sent = Offer(1);
  const auto received = Accept(1);
  Await([&] { return gpus_->gate()->work_count() > 0; });
  // Its copy has begun. What follows is not slow.
  absl::SleepFor(absl::Milliseconds(200));
  set_delay_us(0);
  // A revocation would wait for it, and so would an abort.
  const auto linger =
      reinterpret_cast<void (*)(int)>(cuda::StrictSymbol("strict_cuda_nccl_linger"));
  linger(1);
  reinterpret_cast<void (*)(const char*, int, int, int)>(cuda::StrictSymbol("strict_cuda_fail"))(
      "ncclCommRevoke", nccl::kInvalidUsage, 0, 2);
  HearBreak();
  EXPECT_TRUE(absl::IsAborted(sent->Await())) << sent->status;
  EXPECT_THAT(std::string(sent->status.message()), HasSubstr("has not passed it within 2.5s"));
  EXPECT_TRUE(absl::IsAborted(received->Await())) << received->status;
  EXPECT_EQ(gpus_->gate()->work_count(), 0);
  EXPECT_THAT(std::string(device_[0]->PutRefusal(DeviceId(1)).message()),
              HasSubstr("device 0 makes no one-sided transfers any more"));
  Await([] {
    return reinterpret_cast<int (*)()>(cuda::StrictSymbol("strict_cuda_outstanding"))() == 0;
  });
  linger(0);
  const absl::MutexLock lock(&mu_);
  for (const PutMessage& each : put_messages_) EXPECT_NE(each.kind, PutMessageKind::kWithdrawn);
  EXPECT_THAT(lines_, Contains(HasSubstr("100352 bytes of the pool for one-sided transfers are not "
                                         "used again (100352 of 16777216 by now): ABORTED")));
}

// The other device has ended it before it was opened here. The next one's is the only window.
TEST_F(NcclDevicePutTest, CommunicatorThatCannotBeOpened_LeavesNoWindow) {
  Make();
  name_ = {CommunicatorKey::Create({{0, 1000}, {1, 1001}}, "keyed transfers")->id(), 1};
  HearBreak();
  OpenWindows();
  EXPECT_EQ(name_.generation, 2u);
  EXPECT_EQ(device_[0]->window_count(), 1u);
}

}  // namespace
}  // namespace ferry
