// SPDX-License-Identifier: Apache-2.0
// The fetches of a receiver: each ends once, whatever ends it.
#include "transport/cuda_ipc/cuda_ipc_fetches.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"

namespace ferry {
namespace {

class CudaIpcFetchesTest : public ::testing::Test {
 protected:
  // The end of a fetch, as its caller saw it.
  struct End {
    int calls = 0;
    absl::Status status;
    bool release_later = false;
  };
  static CudaIpcFetches::FetchCallback Into(End& end) {
    return [&end](absl::StatusOr<Tensor> tensor, TransportReceiver::FetchInfo info) {
      ++end.calls;
      end.status = tensor.status();
      end.release_later = info.release_later;
    };
  }
  static std::shared_ptr<CudaIpcFetch> Mapped(uint64_t id) {
    auto fetch = std::make_shared<CudaIpcFetch>();
    fetch->id = id;
    fetch->descriptor.pieces.emplace_back();
    return fetch;
  }

  CudaIpcFetches fetches_;
};

TEST_F(CudaIpcFetchesTest, EndedThenCancelled_IsCalledOnceWithItsTensor) {
  End end;
  const auto fetch = Mapped(1);
  ASSERT_TRUE(fetches_.Add(fetch, Into(end)));
  EXPECT_EQ(fetches_.Find(1), fetch);
  EXPECT_FALSE(fetches_.IsOver(*fetch));
  EXPECT_TRUE(fetches_.End(*fetch, Tensor(), /*release_later=*/true));
  fetches_.Cancel(1);
  EXPECT_EQ(end.calls, 1);
  EXPECT_TRUE(end.status.ok()) << end.status;
  EXPECT_TRUE(end.release_later);
  EXPECT_TRUE(fetches_.IsOver(*fetch));
  EXPECT_EQ(fetches_.Find(1), nullptr);
}

TEST_F(CudaIpcFetchesTest, CancelledThenEnded_IsCalledOnceWithCancelled) {
  End end;
  const auto fetch = Mapped(1);
  ASSERT_TRUE(fetches_.Add(fetch, Into(end)));
  fetches_.Cancel(1);
  EXPECT_FALSE(fetches_.End(*fetch, Tensor(), /*release_later=*/true));
  EXPECT_EQ(end.calls, 1);
  EXPECT_TRUE(absl::IsCancelled(end.status)) << end.status;
}

// The slots of a staged tensor are returned one by one, so there is nothing to release.
TEST_F(CudaIpcFetchesTest, Cancelled_OnlyAMappedTensorIsReleasedLater) {
  End mapped;
  End staged;
  ASSERT_TRUE(fetches_.Add(Mapped(1), Into(mapped)));
  const auto fetch = Mapped(2);
  fetch->descriptor.pieces.clear();
  ASSERT_TRUE(fetches_.Add(fetch, Into(staged)));
  fetches_.Cancel(1);
  fetches_.Cancel(2);
  EXPECT_TRUE(mapped.release_later);
  EXPECT_FALSE(staged.release_later);
}

// Its copy would write into memory that the caller has back.
TEST_F(CudaIpcFetchesTest, CancelledBeforeItsCopyIsEnqueued_ThereIsNoCopy) {
  End end;
  const auto fetch = Mapped(1);
  ASSERT_TRUE(fetches_.Add(fetch, Into(end)));
  int copies = 0;
  const auto copy = [&copies] {
    ++copies;
    return absl::OkStatus();
  };
  EXPECT_TRUE(fetches_.EnqueueUnlessOver(*fetch, copy).ok());
  fetches_.Cancel(1);
  EXPECT_TRUE(absl::IsCancelled(fetches_.EnqueueUnlessOver(*fetch, copy)));
  EXPECT_EQ(copies, 1);
}

TEST_F(CudaIpcFetchesTest, IdInUse_OnlyTheSecondFetchFails) {
  End first;
  End second;
  const auto fetch = Mapped(1);
  ASSERT_TRUE(fetches_.Add(fetch, Into(first)));
  const auto same_id = Mapped(1);
  EXPECT_FALSE(fetches_.Add(same_id, Into(second)));
  EXPECT_TRUE(absl::IsInvalidArgument(second.status)) << second.status;
  EXPECT_TRUE(fetches_.IsOver(*same_id));
  EXPECT_FALSE(fetches_.End(*same_id, Tensor(), false));
  EXPECT_EQ(first.calls, 0);
  EXPECT_EQ(fetches_.Find(1), fetch);
  fetches_.Cancel(1);
}

TEST_F(CudaIpcFetchesTest, Aborted_EndsAllAndThoseThatCome) {
  End first;
  End second;
  End late;
  ASSERT_TRUE(fetches_.Add(Mapped(1), Into(first)));
  ASSERT_TRUE(fetches_.Add(Mapped(2), Into(second)));
  fetches_.Abort(absl::UnavailableError("the peer is gone"));
  fetches_.Abort(absl::UnavailableError("again"));
  EXPECT_EQ(first.status.message(), "the peer is gone");
  EXPECT_EQ(second.status.message(), "the peer is gone");
  EXPECT_EQ(first.calls + second.calls, 2);
  EXPECT_FALSE(fetches_.Add(Mapped(3), Into(late)));
  EXPECT_EQ(late.status.message(), "the peer is gone");
  EXPECT_FALSE(late.release_later);
}

// A driver call that takes long holds up neither other fetches nor their ends.
TEST_F(CudaIpcFetchesTest, SlowEnqueue_HoldsUpItsOwnEndAlone) {
  End slow_end;
  End other_end;
  const auto slow = Mapped(1);
  const auto other = Mapped(2);
  ASSERT_TRUE(fetches_.Add(slow, Into(slow_end)));
  ASSERT_TRUE(fetches_.Add(other, Into(other_end)));
  absl::Notification is_enqueuing;
  absl::Notification go;
  std::atomic<bool> is_enqueued = false;
  std::thread driver([&] {
    const absl::Status status = fetches_.EnqueueUnlessOver(*slow, [&] {
      is_enqueuing.Notify();
      go.WaitForNotificationWithTimeout(absl::Seconds(30));
      is_enqueued = true;
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status;
  });
  is_enqueuing.WaitForNotification();
  EXPECT_TRUE(fetches_.EnqueueUnlessOver(*other, [] { return absl::OkStatus(); }).ok());
  fetches_.Cancel(2);
  EXPECT_EQ(other_end.calls, 1);
  EXPECT_FALSE(is_enqueued);
  // Nothing is enqueued once it has returned.
  std::thread canceller([&] {
    fetches_.Cancel(1);
    EXPECT_TRUE(is_enqueued);
  });
  while (!fetches_.IsOver(*slow)) std::this_thread::yield();
  go.Notify();
  canceller.join();
  driver.join();
  EXPECT_EQ(slow_end.calls, 1);
}

}  // namespace
}  // namespace ferry
