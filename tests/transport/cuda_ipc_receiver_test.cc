// SPDX-License-Identifier: Apache-2.0
// A receiver of memory that its peer owns: each allocation is closed behind its last tensor, and
// each tensor is released behind that, however its fetch ends.
#include "transport/cuda_ipc/cuda_ipc_receiver.h"

#include <map>

#include "gpu/cuda/gpu_arena.h"
#include "tests/transport/cuda_ipc_fixture.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CudaIpcReceiverTest : public CudaIpcTest {
 protected:
  static constexpr size_t kBytes = 4096;

  CudaIpcReceiverTest() {
    cache_ = std::make_unique<cuda::IpcImportCache>(
        *gpu_->side, gpus_->gate(),
        cuda::IpcImportCacheOptions{.own_incarnation = environment_.incarnation});
    {
      absl::MutexLock lock(&link_->mu);
      link_->gpus = gpus_.get();
    }
    receiver_ = std::make_shared<CudaIpcReceiver>(
        environment_, peer_, [this](Gpu&) -> cuda::IpcImportCache& { return *cache_; },
        [this] { cache_->ClosePeer(peer_.peer.incarnation); }, link_,
        [this](uint64_t id) {
          absl::MutexLock lock(&mu_);
          released_.emplace_back(id, cache_->stats().closed);
        });
    receiver_->SetControlChannel(
        [](absl::string_view, absl::Span<const int>) { return absl::OkStatus(); });
  }
  ~CudaIpcReceiverTest() override {
    receiver_->Abort(absl::UnavailableError("over"));
    cache_ = nullptr;
    receiver_ = nullptr;
    memory_.clear();
    Finish();
  }

  // Memory of the peer's that it keeps no longer than the transfer. An allocation of its own.
  struct Foreign {
    std::shared_ptr<cuda::GpuArena> arena;
    std::shared_ptr<cuda::DeviceBuffer> buffer;
    CudaIpcPiece piece;
    UniqueFd Export() const { return *arena->ExportSegment(*buffer); }
  };
  const Foreign& MakeForeign() {
    auto foreign = std::make_unique<Foreign>();
    foreign->arena = *cuda::GpuArena::Create(
        gpu_->device, gpus_->gate(),
        {.budget_bytes = size_t{2} << 20, .segment_bytes = size_t{2} << 20});
    foreign->buffer = *foreign->arena->Allocate(kBytes);
    foreign->piece.memory = foreign->arena->Describe(*foreign->buffer);
    foreign->piece.memory.bytes = kBytes;
    memory_.push_back(std::move(foreign));
    return *memory_.back();
  }

  // The end of a Fetch.
  struct End {
    absl::Notification is_over;
    absl::StatusOr<Tensor> tensor = absl::UnknownError("not called");
    bool release_later = false;
    int calls = 0;
  };
  // `with_fds`: of those pieces, or of none.
  std::shared_ptr<End> Fetch(uint64_t id, const std::vector<const Foreign*>& pieces,
                             std::vector<bool> with_fds, const Tensor& destination = Tensor()) {
    CudaIpcDescriptor descriptor;
    std::vector<UniqueFd> fds;
    for (size_t i = 0; i < pieces.size(); ++i) {
      descriptor.pieces.push_back(pieces[i]->piece);
      descriptor.pieces.back().has_fd = with_fds[i];
      if (with_fds[i]) fds.push_back(pieces[i]->Export());
    }
    TensorHeader header;
    header.dtype = DataType::kUint8;
    header.bytes = pieces.size() * kBytes;
    header.shape = *Shape::Create({static_cast<int64_t>(header.bytes)});
    header.location = {MemorySpace::kCuda, 0};
    auto end = std::make_shared<End>();
    receiver_->Fetch(id, header, EncodeCudaIpcDescriptor(descriptor), absl::MakeSpan(fds),
                     destination,
                     [end](absl::StatusOr<Tensor> tensor, TransportReceiver::FetchInfo info) {
                       end->tensor = std::move(tensor);
                       end->release_later = info.release_later;
                       if (++end->calls == 1) end->is_over.Notify();
                     });
    return end;
  }
  static absl::Status Await(const std::shared_ptr<End>& end) {
    if (!end->is_over.WaitForNotificationWithTimeout(kPatience)) {
      return absl::DeadlineExceededError("the fetch does not end");
    }
    return end->tensor.status();
  }
  // The transfers that were released, and how many mappings had been closed by then.
  using Released = std::vector<std::pair<uint64_t, int64_t>>;
  Released AwaitReleased(size_t count) {
    absl::MutexLock lock(&mu_);
    const auto are_there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return released_.size() >= count;
    };
    mu_.AwaitWithTimeout(absl::Condition(&are_there), kPatience);
    return released_;
  }
  Released released() { return AwaitReleased(0); }

  std::vector<std::unique_ptr<Foreign>> memory_;
  const std::shared_ptr<GpuLink> link_ = std::make_shared<GpuLink>();
  std::unique_ptr<cuda::IpcImportCache> cache_;
  absl::Mutex mu_;
  Released released_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<CudaIpcReceiver> receiver_;
};

// Its owner may free it as soon as it is closed; closed under the other tensor, a later one would
// need its descriptor again.
TEST_F(CudaIpcReceiverTest, TwoTensorsOfOneAllocation_ItIsClosedBehindTheSecond) {
  const Foreign& memory = MakeForeign();
  const auto first = Fetch(1, {&memory}, {true});
  ASSERT_TRUE(Await(first).ok()) << Await(first);
  const auto second = Fetch(2, {&memory}, {false});
  ASSERT_TRUE(Await(second).ok()) << Await(second);
  EXPECT_TRUE(first->release_later && second->release_later);
  first->tensor = Tensor();
  EXPECT_THAT(released(), ElementsAre(std::pair(1u, 0)));
  EXPECT_EQ(cache_->stats().mapping_count, 1);
  EXPECT_EQ(cache_->stats().closing_count, 0);
  // It is found without a descriptor.
  const auto third = Fetch(3, {&memory}, {false});
  ASSERT_TRUE(Await(third).ok()) << Await(third);
  second->tensor = Tensor();
  third->tensor = Tensor();
  EXPECT_THAT(AwaitReleased(3), ElementsAre(std::pair(1u, 0), std::pair(2u, 0), std::pair(3u, 1)));
  EXPECT_EQ(cache_->stats().mapping_count, 0);
}

// Both wait for the allocation to be opened.
TEST_F(CudaIpcReceiverTest, TwoTensorsOpenAnAllocationTogether_ItIsClosedBehindTheSecond) {
  const Foreign& memory = MakeForeign();
  std::shared_ptr<End> first;
  std::shared_ptr<End> second;
  WhileHeld(*gpu_->side, [&] {
    first = Fetch(1, {&memory}, {true});
    second = Fetch(2, {&memory}, {false});
    receiver_->Cancel(1);
  });
  EXPECT_TRUE(absl::IsCancelled(Await(first)));
  ASSERT_TRUE(Await(second).ok()) << Await(second);
  EXPECT_THAT(AwaitReleased(1), ElementsAre(std::pair(1u, 0)));
  EXPECT_EQ(cache_->stats().closing_count, 0);
  second->tensor = Tensor();
  EXPECT_THAT(AwaitReleased(2), ElementsAre(std::pair(1u, 0), std::pair(2u, 1)));
}

TEST_F(CudaIpcReceiverTest, SecondPieceCannotBeOpened_TheFirstIsClosed) {
  const Foreign& memory = MakeForeign();
  const Foreign& missing = MakeForeign();
  const auto failed = Fetch(1, {&memory, &missing}, {true, false});
  EXPECT_THAT(std::string(Await(failed).message()), HasSubstr("without its descriptor"));
  EXPECT_TRUE(failed->release_later);
  EXPECT_THAT(AwaitReleased(1), ElementsAre(std::pair(1u, 1)));
  // Neither allocation has a user left.
  const auto next = Fetch(2, {&memory, &missing}, {true, true});
  ASSERT_TRUE(Await(next).ok()) << Await(next);
  next->tensor = Tensor();
  EXPECT_THAT(AwaitReleased(2), ElementsAre(std::pair(1u, 1), std::pair(2u, 3)));
}

TEST_F(CudaIpcReceiverTest, NothingCouldBeOpened_TheTensorIsReleasedByItsEnd) {
  const Foreign& missing = MakeForeign();
  const auto failed = Fetch(1, {&missing}, {false});
  EXPECT_FALSE(Await(failed).ok());
  EXPECT_FALSE(failed->release_later);
  Flush(*gpu_->side);
  EXPECT_THAT(released(), IsEmpty());
}

TEST_F(CudaIpcReceiverTest, CancelledWhileBeingOpened_IsClosedAndReleasedOnce) {
  const Foreign& memory = MakeForeign();
  std::shared_ptr<End> end;
  WhileHeld(*gpu_->side, [&] {
    end = Fetch(1, {&memory}, {true});
    receiver_->Cancel(1);
    receiver_->Cancel(1);
  });
  EXPECT_TRUE(absl::IsCancelled(Await(end)));
  EXPECT_TRUE(end->release_later);
  EXPECT_THAT(AwaitReleased(1), ElementsAre(std::pair(1u, 1)));
  gpus_->WaitIdle(SteadyClock().Now() + kPatience);
  EXPECT_EQ(released().size(), 1u);
  EXPECT_EQ(end->calls, 1);
}

TEST_F(CudaIpcReceiverTest, CancelledAndNotOpened_IsReleasedOnce) {
  const Foreign& missing = MakeForeign();
  std::shared_ptr<End> end;
  WhileHeld(*gpu_->side, [&] {
    end = Fetch(1, {&missing}, {false});
    receiver_->Cancel(1);
  });
  EXPECT_TRUE(absl::IsCancelled(Await(end)));
  EXPECT_TRUE(end->release_later);
  EXPECT_THAT(AwaitReleased(1), ElementsAre(std::pair(1u, 0)));
  EXPECT_EQ(end->calls, 1);
}

TEST_F(CudaIpcReceiverTest, CopyCannotBeEnqueued_MemoryIsClosedAndReleased) {
  const Foreign& memory = MakeForeign();
  const Tensor destination = *gpus_->Allocate(0, DataType::kUint8, *Shape::Create({kBytes}));
  cuda::FailNext("cuMemcpyAsync", cuda::kErrorOutOfMemory);
  const auto end = Fetch(1, {&memory}, {true}, destination);
  EXPECT_THAT(std::string(Await(end).message()), HasSubstr("cuMemcpyAsync"));
  EXPECT_TRUE(end->release_later);
  EXPECT_THAT(AwaitReleased(1), ElementsAre(std::pair(1u, 1)));
}

TEST_F(CudaIpcReceiverTest, Copied_MemoryIsClosedAndReleasedWhileTheCopyIsKept) {
  const Foreign& memory = MakeForeign();
  const Tensor destination = *gpus_->Allocate(0, DataType::kUint8, *Shape::Create({kBytes}));
  const auto end = Fetch(1, {&memory}, {true}, destination);
  ASSERT_TRUE(Await(end).ok()) << Await(end);
  EXPECT_TRUE(end->release_later);
  EXPECT_THAT(AwaitReleased(1), ElementsAre(std::pair(1u, 1)));
  EXPECT_EQ(end->tensor->data(), destination.data());
}

// Its owner would wait for it for ever.
TEST_F(CudaIpcReceiverTest, ViewIsDroppedWhileTheExecutorIsFull_ItIsReleasedBehindItsReader) {
  const Foreign& memory = MakeForeign();
  const auto kept = Fetch(1, {&memory}, {true});
  ASSERT_TRUE(Await(kept).ok()) << Await(kept);
  cuda::HeldStream held(gpu_->device);
  ASSERT_TRUE(cuda::AddUse(*kept->tensor, *cuda::ReadyEvent::Record(*gpu_->events, held.get())));
  WhileFull(*gpu_->executor, [&] { kept->tensor = Tensor(); });
  EXPECT_THAT(released(), IsEmpty());
  held.Go();
  EXPECT_THAT(AwaitReleased(1), ElementsAre(std::pair(1u, 1)));
  held.Finish();
}

// The producer has ended: it is told nothing, and nothing of its memory stays mapped.
TEST_F(CudaIpcReceiverTest, AbortedWhileATensorIsKept_IsClosedBehindIt) {
  const Foreign& memory = MakeForeign();
  const auto kept = Fetch(1, {&memory}, {true});
  ASSERT_TRUE(Await(kept).ok()) << Await(kept);
  receiver_->Abort(absl::UnavailableError("the peer is gone"));
  EXPECT_EQ(cache_->stats().used_count, 1);
  kept->tensor = Tensor();
  gpus_->WaitIdle(SteadyClock().Now() + kPatience);
  EXPECT_EQ(cache_->stats().mapping_count, 0);
  const auto late = Fetch(2, {&memory}, {true});
  EXPECT_EQ(Await(late).message(), "the peer is gone");
  EXPECT_FALSE(late->release_later);
}

}  // namespace
}  // namespace ferry
