// SPDX-License-Identifier: Apache-2.0
// What other workers ask for: scenarios 51, 52 and 54 to 59 of the rendezvous reference, without
// the wire.
#include "rendezvous/tensor_source.h"

#include <string>
#include <vector>

#include "rendezvous_fixture.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class NoFetcher final : public RemoteFetcher {
 public:
  std::shared_ptr<RemoteFetch> Fetch(int64_t, const RendezvousKey&, const RecvArgs&,
                                     RecvCallback) override {
    return nullptr;
  }
};

class Source : public ::testing::Test {
 protected:
  // Task 0 has CPU:0, with incarnation 1.
  explicit Source(TensorSourceOptions options = {})
      : source_(
            manager_,
            [](const TaskDevice& device) -> std::optional<uint64_t> {
              if (device.task.task != 0 || device.type != "CPU" || device.index != 0) return {};
              return 1;
            },
            options) {}

  std::shared_ptr<RemoteRendezvous> Begin(int64_t step_id) {
    auto step = *manager_.Find(step_id);
    EXPECT_TRUE(step->Initialize({"worker", 0, 0}).ok());
    return step;
  }
  void Recv(const std::string& key, int64_t request_id, CancellationToken* cancellation = nullptr) {
    source_.Recv({1, key, request_id}, cancellation,
                 [this](absl::Status status, ServedValue value) {
                   out_.push_back(status.ok() ? value.tensor.strings()[0] : status.ToString());
                 });
  }
  std::string KeyText(absl::string_view edge, absl::string_view device = "CPU:0",
                      uint64_t incarnation = 1) {
    return RendezvousKey::Text(absl::StrCat("/job:worker/replica:0/task:0/device:", device),
                               incarnation, "/job:worker/replica:0/task:1/device:CPU:0", edge);
  }
  void Send(absl::string_view edge, absl::string_view value) {
    ASSERT_TRUE(Begin(1)->Send(*RendezvousKey::Parse(KeyText(edge)), Value(value)).ok());
  }

  FakeClock clock_;
  NoFetcher fetcher_;
  RendezvousManager manager_{clock_, fetcher_};
  TensorSource source_;
  std::vector<std::string> out_;
};

class KeepingSource : public Source {
 protected:
  KeepingSource() : Source({.keep_responses = true}) {}
};

// The address is one of a device; whoever encoded it would read it, and crash.
TEST_F(Source, AValueInADevicesMemoryIsRefused) {
  const TensorLocation place = {MemorySpace::kCuda, 1};
  Tensor tensor = *Tensor::Create(
      DataType::kFloat, *Shape::Create({4}),
      WrapForeignBuffer(reinterpret_cast<void*>(0x7f0000000000), 16, nullptr, place));
  ASSERT_TRUE(Begin(1)->Send(*RendezvousKey::Parse(KeyText("a")), std::move(tensor)).ok());
  Recv(KeyText("a"), 0);
  EXPECT_THAT(out_, ElementsAre("FAILED_PRECONDITION: cannot send float[4] in the memory of gpu:1; "
                                "copy it to the host first"));
}

TEST_F(Source, ARequestBeforeOrAfterItsValueGetsIt) {
  Recv(KeyText("a"), 1);
  Send("a", "first");
  Send("b", "second");
  Recv(KeyText("b"), 2);
  EXPECT_THAT(out_, ElementsAre("first", "second"));
}

// Whoever closes the step waits until a call has brought the value there.
TEST_F(Source, TakenValue_IsAnOperationOfItsStepUntilItsTransferEnds) {
  OutstandingOperations& operations = Begin(1)->operations();
  TensorSource::TransferPtr transfer;
  source_.Recv({1, KeyText("a"), 0}, nullptr, [&](const absl::Status& status, ServedValue value) {
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(operations.count(), 1u);
    transfer = source_.BeginTransfer(1, KeyText("a"), value);
  });
  EXPECT_EQ(operations.count(), 0u) << "it was asked for, and not sent";
  Send("a", "value");
  ASSERT_NE(transfer, nullptr);
  EXPECT_EQ(operations.count(), 1u);
  source_.EndTransfer(transfer, absl::OkStatus());
  EXPECT_EQ(operations.count(), 0u);
}

// Scenario 54.
TEST_F(Source, AnotherIncarnationIsARestart) {
  Recv(KeyText("a", "CPU:0", 2), 1);
  EXPECT_THAT(
      out_[0],
      StartsWith("ABORTED: RecvTensor expects a different device incarnation: 2 vs. 1. Your "
                 "worker job (\"/job:worker/replica:0/task:0\") was probably restarted."));
}

// Scenario 55.
TEST_F(Source, KeysMustBeOfADeviceHere) {
  Recv("foo;bar;baz", 1);
  Recv(KeyText("a", "GPU:7"), 2);
  EXPECT_THAT(out_[0], StartsWith("INVALID_ARGUMENT: Invalid  rendezvous key: foo;bar;baz"));
  EXPECT_THAT(out_[1], HasSubstr("INVALID_ARGUMENT: /job:worker/replica:0/task:0/device:GPU:7 "
                                 "unknown device."));
}

// Scenarios 56 and 57.
TEST_F(Source, AnIdIsTakenOnceAndZeroIsNone) {
  for (const char* value : {"a", "b", "c"}) Send("e", value);
  Recv(KeyText("e"), 0);
  Recv(KeyText("e"), 0);
  Recv(KeyText("e"), 5);
  Recv(KeyText("e"), 5);
  ASSERT_EQ(out_.size(), 4u);
  EXPECT_THAT(std::vector<std::string>(out_.begin(), out_.begin() + 3), ElementsAre("a", "b", "c"));
  EXPECT_THAT(out_[3], StartsWith("ABORTED: The same RecvTensor (GrpcWorker) request was received "
                                  "twice."));
}

// In TensorFlow a request whose client has gone takes the value with it.
TEST_F(Source, AClientThatHasGoneLeavesTheValueAndItsId) {
  CancellationToken gone;
  Recv(KeyText("e"), 5, &gone);
  gone.Cancel();
  Send("e", "v");
  Recv(KeyText("e"), 5);
  EXPECT_THAT(out_, ElementsAre("CANCELLED: [_Derived_]RecvLocalAsync is cancelled.", "v"));
}

// Scenario 51.
TEST_F(Source, AFinishedStepIsOverAtOnce) {
  Begin(1);
  manager_.Cleanup(1);
  for (int i = 0; i < 10'000; ++i) Recv(KeyText("e"), 0);
  EXPECT_EQ(out_.size(), 10'000u);
  EXPECT_EQ(out_.back(), "ABORTED: [_Derived_]step 1 is over");
  EXPECT_EQ(manager_.step_count(), 0u);
}

// Scenario 59.
TEST_F(KeepingSource, ARequestThatComesAgainGetsTheSame) {
  Recv(KeyText("e"), 5);
  Recv(KeyText("e"), 5);
  Send("e", "v");
  Send("e", "another");
  Recv(KeyText("e"), 5);
  EXPECT_THAT(out_, ElementsAre("v", "v", "v"));
  source_.MarkRecvFinished(5);
  EXPECT_EQ(source_.cache().entry_count(), 0u);
  Recv(KeyText("e"), 6);
  EXPECT_EQ(out_.back(), "another");
  manager_.Cleanup(1);
  source_.CleanupStep(1);
  EXPECT_EQ(source_.cache().entry_count(), 0u);
}

TEST_F(KeepingSource, AClientThatHasGoneFindsTheValueWhenItComesBack) {
  CancellationToken gone;
  Recv(KeyText("e"), 5, &gone);
  gone.Cancel();
  Send("e", "v");
  Recv(KeyText("e"), 5);
  EXPECT_THAT(out_, ElementsAre("CANCELLED: [_Derived_]RecvTensor is cancelled.", "v"));
}

TEST_F(KeepingSource, AStepThatEndsEndsItsRequests) {
  Recv(KeyText("e"), 5);
  Recv(KeyText("e"), 5);
  manager_.Cleanup(1);
  EXPECT_THAT(out_, ElementsAre("ABORTED: [_Derived_]Cleanup 1", "ABORTED: [_Derived_]Cleanup 1"));
  EXPECT_EQ(source_.cache().entry_count(), 0u);
}

}  // namespace
}  // namespace ferry
