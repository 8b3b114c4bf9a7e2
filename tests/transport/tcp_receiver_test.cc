// SPDX-License-Identifier: Apache-2.0
// TcpReceiver: which slices are accepted. The sender is not trusted, and its headers say where in
// this process's memory the bytes go.
#include "transport/tcp/tcp_receiver.h"
#include "tensor/host_arena.h"

#include <cstdint>
#include <memory>

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"

#include "tests/transport/control_channel_pair.h"

namespace ferry {
namespace {

using Verdict = SliceSink::Verdict;

// For two slices.
constexpr size_t kWholeTensor = kSliceBytes + 100;

class TcpReceiverTest : public ::testing::Test {
 protected:
  TcpReceiverTest() : end_(PeerId{1, 10}) {
    environment_.loop = end_.loop.get();
    environment_.connection_manager = end_.connection_manager.get();
    environment_.arena = *HostArena::Create({});
    Endpoint peer;
    peer.peer = {2, 20};
    receiver_ = std::make_shared<TcpReceiver>(environment_, *plane_, peer);
    // Nothing becomes of its connections, which are made there: the slices are the test's.
    end_.loop->Post([this] {
      is_held_.Notify();
      let_go_.WaitForNotification();
    });
    is_held_.WaitForNotification();
  }
  ~TcpReceiverTest() override {
    receiver_->Abort(absl::CancelledError("over"));
    let_go_.Notify();
  }

  static TensorHeader HeaderOf(size_t elements, DataType dtype = DataType::kUint8) {
    return {dtype, *Shape::Create({static_cast<int64_t>(elements)}), elements};
  }
  void Fetch(uint64_t id, const TensorHeader& header = HeaderOf(kWholeTensor)) {
    receiver_->Fetch(id, header, "", {}, Tensor(),
                     [this](absl::StatusOr<Tensor> tensor, TransportReceiver::FetchInfo info) {
                       ++done_;
                       status_ = tensor.status();
                       has_checked_values_ = info.has_checked_values;
                     });
  }
  Verdict FindTarget(uint64_t id, uint64_t offset, size_t bytes) {
    target_ = {};
    return receiver_->FindTarget(
        {.transfer = id, .offset = offset, .bytes = static_cast<uint32_t>(bytes)}, &target_);
  }
  // It has come.
  void Slice(uint64_t id, uint64_t offset, size_t bytes) {
    receiver_->OnSlice({.transfer = id, .offset = offset, .bytes = static_cast<uint32_t>(bytes)});
  }

  // Outlive the loop, which uses them.
  absl::Notification is_held_;
  absl::Notification let_go_;
  ControlEnd end_;
  TransportEnvironment environment_;
  const std::unique_ptr<DataPlane> plane_ = *DataPlane::Create(1);
  std::shared_ptr<TcpReceiver> receiver_;
  SliceTarget target_;
  int done_ = 0;
  absl::Status status_;
  bool has_checked_values_ = false;
};

TEST_F(TcpReceiverTest, SlicesOutsideOfTheTensor_AreErrors) {
  EXPECT_EQ(FindTarget(1, 0, 1), Verdict::kWait) << "its descriptor is still to come";
  Fetch(1);
  EXPECT_EQ(FindTarget(1, 0, 0), Verdict::kError);
  EXPECT_EQ(FindTarget(1, 0, kSliceBytes + 1), Verdict::kError);
  EXPECT_EQ(FindTarget(1, kWholeTensor, 1), Verdict::kError);
  EXPECT_EQ(FindTarget(1, kWholeTensor + 1, 1), Verdict::kError);
  EXPECT_EQ(FindTarget(1, kWholeTensor - 10, 11), Verdict::kError);
  // The end of this one overflows to 0.
  EXPECT_EQ(FindTarget(1, UINT64_MAX, 1), Verdict::kError);
  EXPECT_EQ(FindTarget(1, UINT64_MAX - 9, 20), Verdict::kError);
  ASSERT_EQ(FindTarget(1, 0, kSliceBytes), Verdict::kRead);
  const char* const begin = target_.data;
  ASSERT_EQ(FindTarget(1, kWholeTensor - 10, 10), Verdict::kRead);
  EXPECT_EQ(target_.data, begin + (kWholeTensor - 10));
  EXPECT_EQ(done_, 0);
}

// As many bytes as the tensor has, and no more, wherever they lie: a part of it would never arrive,
// and its receiver would get the memory's previous content.
TEST_F(TcpReceiverTest, SlicesThatOverlap_AreErrors) {
  Fetch(1);
  Slice(1, 0, kSliceBytes);
  EXPECT_EQ(FindTarget(1, 0, 101), Verdict::kError);
  EXPECT_EQ(FindTarget(1, kSliceBytes - 1, 101), Verdict::kError);
  EXPECT_EQ(FindTarget(1, kSliceBytes, 100), Verdict::kRead);
  // Two connections may have requested the destination of their slice before either had arrived.
  Slice(1, 0, 101);
  EXPECT_EQ(done_, 0);
  Slice(1, kSliceBytes, 100);
  EXPECT_EQ(done_, 1);
  EXPECT_TRUE(status_.ok()) << status_;
  EXPECT_EQ(FindTarget(1, 0, 1), Verdict::kWait) << "of what is there nothing more is known";
}

TEST_F(TcpReceiverTest, DuplicateTransfer_IsRefusedAndTheFirstContinues) {
  Fetch(1);
  Fetch(1);
  EXPECT_EQ(done_, 1);
  EXPECT_EQ(status_.code(), absl::StatusCode::kInvalidArgument);
  Slice(1, 0, kSliceBytes);
  Slice(1, kSliceBytes, 100);
  EXPECT_EQ(done_, 2);
  EXPECT_TRUE(status_.ok()) << status_;
  // Its number is free again.
  Fetch(1);
  EXPECT_EQ(done_, 2);
  EXPECT_EQ(FindTarget(1, 0, kSliceBytes), Verdict::kRead);
}

// Its receiver may reuse the buffer at once; further bytes must still be well-formed.
TEST_F(TcpReceiverTest, CancelledOrDropped_IsReadAndDiscarded) {
  Fetch(1);
  ASSERT_EQ(FindTarget(1, 0, kSliceBytes), Verdict::kRead);
  const std::shared_ptr<ClosableWriter> gate = target_.gate;
  receiver_->Cancel(1);
  EXPECT_FALSE(gate->Pass([] {}));
  receiver_->Discard(2, HeaderOf(kWholeTensor), "", {});
  for (const uint64_t id : {1, 2}) {
    EXPECT_EQ(FindTarget(id, 0, kSliceBytes), Verdict::kSkip);
    EXPECT_EQ(FindTarget(id, kWholeTensor, 1), Verdict::kError);
    Slice(id, 0, kSliceBytes);
    EXPECT_EQ(FindTarget(id, kSliceBytes, 101), Verdict::kError);
    EXPECT_EQ(FindTarget(id, kSliceBytes, 100), Verdict::kSkip);
    Slice(id, kSliceBytes, 100);
    EXPECT_EQ(FindTarget(id, 0, 1), Verdict::kWait) << "it has come, and is forgotten";
    EXPECT_EQ(done_, 1);
    EXPECT_EQ(status_.code(), absl::StatusCode::kCancelled);
  }
}

TEST_F(TcpReceiverTest, Aborted_NothingIsPlacedAndTheFirstReasonStays) {
  Fetch(1);
  ASSERT_EQ(FindTarget(1, 0, kSliceBytes), Verdict::kRead);
  const std::shared_ptr<ClosableWriter> gate = target_.gate;
  const absl::Status why = absl::UnavailableError("node 2 has gone");
  receiver_->Abort(why);
  EXPECT_EQ(done_, 1);
  EXPECT_EQ(status_, why);
  EXPECT_FALSE(gate->Pass([] {}));
  EXPECT_EQ(FindTarget(1, 0, kSliceBytes), Verdict::kError);
  receiver_->Abort(absl::InternalError("later"));
  Fetch(2);
  EXPECT_EQ(done_, 2);
  EXPECT_EQ(status_, why);
}

// Booleans that were checked here are not checked again, and all others are.
TEST_F(TcpReceiverTest, OneInvalidBoolean_TheValuesCountAsUnchecked) {
  uint64_t id = 0;
  for (const bool is_damaged : {false, true, false}) {
    Fetch(++id, HeaderOf(10, DataType::kBool));
    for (const uint64_t offset : {0, 5}) {
      ASSERT_EQ(FindTarget(id, offset, 5), Verdict::kRead);
      ASSERT_NE(target_.has_non_boolean, nullptr);
      // In the first of two slices.
      if (is_damaged && offset == 0) target_.has_non_boolean->store(true);
      Slice(id, offset, 5);
    }
    EXPECT_EQ(has_checked_values_, !is_damaged);
  }
  Fetch(++id, HeaderOf(10));
  ASSERT_EQ(FindTarget(id, 0, 10), Verdict::kRead);
  EXPECT_EQ(target_.has_non_boolean, nullptr);
}

TEST_F(TcpReceiverTest, NonEmptyDescriptors_AreRefused) {
  for (const absl::string_view body : {"far", "nea", "near "}) {
    absl::Status status;
    receiver_->Fetch(
        1, HeaderOf(10), body, {}, Tensor(),
        [&status](auto tensor, TransportReceiver::FetchInfo) { status = tensor.status(); });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << body;
    EXPECT_EQ(FindTarget(1, 0, 1), Verdict::kWait);
  }
}

}  // namespace
}  // namespace ferry
