// SPDX-License-Identifier: Apache-2.0
// Segments of a peer's arenas: a receiver that could not open one requests its descriptor again.
#include "transport/cuda_ipc/cuda_ipc_mappings.h"

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/cuda/gpu_arena.h"
#include "tests/transport/cuda_ipc_fixture.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

class CudaIpcMappingsTest : public CudaIpcTest {
 protected:
  static constexpr size_t kSegmentBytes = size_t{2} << 20;

  CudaIpcMappingsTest() {
    cache_ = std::make_unique<cuda::IpcImportCache>(
        *gpu_->side, gpus_->gate(),
        cuda::IpcImportCacheOptions{.own_incarnation = environment_.incarnation});
    {
      absl::MutexLock lock(&link_->mu);
      link_->gpus = gpus_.get();
    }
    mappings_ = std::make_shared<CudaIpcMappings>(
        environment_, peer_, [this](Gpu&) -> cuda::IpcImportCache& { return *cache_; },
        [this] { cache_->ClosePeer(peer_.peer.incarnation); }, link_);
    mappings_->SetControlChannel([this](absl::string_view body, absl::Span<const int>) {
      absl::MutexLock lock(&mu_);
      sent_.emplace_back(body);
      return absl::OkStatus();
    });
    arena_ =
        *cuda::GpuArena::Create(gpu_->device, gpus_->gate(),
                                {.budget_bytes = kSegmentBytes, .segment_bytes = kSegmentBytes});
    buffer_ = *arena_->Allocate(1000);
    piece_.memory = arena_->Describe(*buffer_);
    piece_.is_kept = true;
  }
  ~CudaIpcMappingsTest() override {
    if (mappings_ != nullptr) mappings_->Abort(absl::UnavailableError("over"));
    cache_ = nullptr;
    mappings_ = nullptr;
    buffer_ = nullptr;
    arena_ = nullptr;
    Finish();
  }

  // The end of an Open.
  struct End {
    absl::Notification is_over;
    absl::Status status;
  };
  // Without the descriptor.
  std::shared_ptr<End> Open() {
    auto end = std::make_shared<End>();
    mappings_->Open(*gpu_, GpuPair(), piece_, UniqueFd(),
                    [end](absl::StatusOr<cuda::ImportedMemory> memory) {
                      end->status = memory.status();
                      end->is_over.Notify();
                    });
    return end;
  }
  static bool IsOver(const std::shared_ptr<End>& end) {
    return end->is_over.WaitForNotificationWithTimeout(kPatience);
  }
  // Returns true if another thread can take the link's lock during this call.
  bool CanLockLink() const {
    auto has_lock = std::make_shared<absl::Notification>();
    std::thread([link = link_, has_lock] {
      const absl::MutexLock lock(&link->mu);
      has_lock->Notify();
    }).detach();
    return has_lock->WaitForNotificationWithTimeout(absl::Seconds(5));
  }
  std::vector<std::string> sent() {
    absl::MutexLock lock(&mu_);
    return sent_;
  }

  const std::shared_ptr<GpuLink> link_ = std::make_shared<GpuLink>();
  std::unique_ptr<cuda::IpcImportCache> cache_;
  std::shared_ptr<CudaIpcMappings> mappings_;
  std::shared_ptr<cuda::GpuArena> arena_;
  std::shared_ptr<cuda::DeviceBuffer> buffer_;
  CudaIpcPiece piece_;
  absl::Mutex mu_;
  std::vector<std::string> sent_ ABSL_GUARDED_BY(mu_);
};

// The peer exports it again for each request.
TEST_F(CudaIpcMappingsTest, TwoTensorsNeedASegmentThatIsNotOpen_ItIsRequestedOnceForBoth) {
  const auto first = Open();
  const auto second = Open();
  Flush(*gpu_->side);
  ASSERT_EQ(sent().size(), 1u);
  const CudaIpcWanted wanted = *DecodeCudaIpcWanted(sent()[0]);
  EXPECT_EQ(wanted.allocation_id, piece_.memory.allocation_id);
  EXPECT_FALSE(first->is_over.HasBeenNotified());
  mappings_->OnSegment({wanted.pair, piece_.memory}, *arena_->ExportSegment(*buffer_));
  ASSERT_TRUE(IsOver(first) && IsOver(second));
  EXPECT_TRUE(first->status.ok()) << first->status;
  EXPECT_TRUE(second->status.ok()) << second->status;
  // It stays open, though no tensor uses it.
  const auto third = Open();
  ASSERT_TRUE(IsOver(third));
  EXPECT_TRUE(third->status.ok()) << third->status;
  EXPECT_EQ(sent().size(), 1u);
  EXPECT_EQ(cache_->stats().used_count, 1);
}

TEST_F(CudaIpcMappingsTest,
       SegmentComesWithoutItsDescriptor_TheTensorFailsAndTheNextRequestsAgain) {
  const auto first = Open();
  Flush(*gpu_->side);
  mappings_->OnSegment({GpuPair(), piece_.memory}, UniqueFd());
  ASSERT_TRUE(IsOver(first));
  EXPECT_THAT(std::string(first->status.message()), HasSubstr("without its descriptor"));
  const auto second = Open();
  Flush(*gpu_->side);
  EXPECT_EQ(sent().size(), 2u);
  EXPECT_FALSE(second->is_over.HasBeenNotified());
}

TEST_F(CudaIpcMappingsTest, SegmentThatWasNotRequested_IsIgnored) {
  mappings_->OnSegment({GpuPair(), piece_.memory}, *arena_->ExportSegment(*buffer_));
  Flush(*gpu_->side);
  EXPECT_EQ(cache_->stats().mapping_count, 0);
}

TEST_F(CudaIpcMappingsTest, ControlChannelEnds_TensorsThatWaitForASegmentEnd) {
  const auto first = Open();
  Flush(*gpu_->side);
  ASSERT_EQ(sent().size(), 1u);
  mappings_->Abort(absl::UnavailableError("the peer is gone"));
  ASSERT_TRUE(IsOver(first));
  EXPECT_TRUE(absl::IsCancelled(first->status)) << first->status;
  const auto late = Open();
  ASSERT_TRUE(IsOver(late));
  EXPECT_TRUE(absl::IsCancelled(late->status)) << late->status;
  EXPECT_EQ(sent().size(), 1u);
}

// A send may end the control channel there and then, and with it what waits for the link's lock, as
// the transport's destructor does.
TEST_F(CudaIpcMappingsTest, RepliesAreSentWithoutTheLinksLock) {
  absl::Notification has_sent_all;
  int replies = 0;
  mappings_->SetControlChannel([&](absl::string_view body, absl::Span<const int>) {
    EXPECT_EQ(*KindOfCudaIpc(body), CudaIpcMessage::kReclaimed);
    EXPECT_TRUE(CanLockLink());
    // Called back there and then.
    mappings_->Abort(absl::UnavailableError("the channel has closed"));
    if (++replies == 1) has_sent_all.Notify();
    return absl::UnavailableError("the channel has closed");
  });
  // Nothing of it is open, so that the reply is sent at once.
  mappings_->OnReclaim({GpuPair(), 77});
  ASSERT_TRUE(has_sent_all.WaitForNotificationWithTimeout(kPatience));
}

// The same for memory that is asked for while it is being opened, and cannot be.
TEST_F(CudaIpcMappingsTest, MemoryThatCannotBeOpened_IsGivenBackWithoutTheLinksLock) {
  CudaIpcPiece foreign;
  foreign.memory = piece_.memory;
  foreign.memory.export_by = cuda::ExportBy::kLegacyHandle;
  foreign.memory.allocation_id = 78;
  foreign.may_stay_open = true;
  absl::Notification has_replied;
  mappings_->SetControlChannel([&](absl::string_view, absl::Span<const int>) {
    EXPECT_TRUE(CanLockLink());
    has_replied.Notify();
    return absl::OkStatus();
  });
  CudaIpcMappings::Held held;
  absl::Notification is_over;
  WhileHeld(*gpu_->side, [&] {
    mappings_->OpenInto(held, *gpu_, GpuPair(), foreign, UniqueFd(),
                        [&](const absl::Status& opened) {
                          EXPECT_FALSE(opened.ok());
                          is_over.Notify();
                        });
    mappings_->OnReclaim({GpuPair(), 78});
    EXPECT_FALSE(has_replied.HasBeenNotified());
  });
  EXPECT_TRUE(is_over.WaitForNotificationWithTimeout(kPatience));
  EXPECT_TRUE(has_replied.WaitForNotificationWithTimeout(kPatience));
}

// Memory opened over a control channel keeps its lifeline, wherever it is used, until it is
// closed.
TEST_F(CudaIpcMappingsTest, LifelineLastsAsLongAsWhatWasOpened) {
  auto lifeline = *PeerLifeline::Make();
  mappings_->AddLifeline(std::move(lifeline.to_send));
  std::optional<cuda::ImportedMemory> held;
  absl::Notification is_open;
  CudaIpcPiece piece = piece_;
  piece.has_fd = true;
  mappings_->Open(*gpu_, GpuPair(), piece, *arena_->ExportSegment(*buffer_),
                  [&](absl::StatusOr<cuda::ImportedMemory> memory) {
                    ASSERT_TRUE(memory.ok()) << memory.status();
                    held = *std::move(memory);
                    is_open.Notify();
                  });
  ASSERT_TRUE(is_open.WaitForNotificationWithTimeout(kPatience));
  mappings_->Abort(absl::UnavailableError("over"));
  mappings_ = nullptr;
  Flush(*gpu_->side);
  EXPECT_EQ(lifeline.line.Look(), PeerLifeline::State::kHeld);
  held.reset();
  Flush(*gpu_->side);
  EXPECT_EQ(lifeline.line.Look(), PeerLifeline::State::kClosed);
}

}  // namespace
}  // namespace ferry
