// SPDX-License-Identifier: Apache-2.0
// Requests of other workers, without the wire.
#include "rendezvous/tensor_source.h"

#include <memory>
#include <optional>
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

// The address is one of a device; encoding it would read it, and crash.
TEST_F(Source, ValueInDeviceMemoryIsRefused) {
  const TensorLocation location = {MemorySpace::kCuda, 1};
  Tensor tensor = *Tensor::Create(
      DataType::kFloat, *Shape::Create({4}),
      WrapForeignBuffer(reinterpret_cast<void*>(0x7f0000000000), 16, nullptr, location));
  ASSERT_TRUE(Begin(1)->Send(*RendezvousKey::Parse(KeyText("a")), std::move(tensor)).ok());
  Recv(KeyText("a"), 0);
  EXPECT_THAT(out_, ElementsAre("FAILED_PRECONDITION: cannot send float[4] in the memory of gpu:1; "
                                "copy it to the host first"));
}

TEST_F(Source, RequestBeforeOrAfterItsValueGetsIt) {
  Recv(KeyText("a"), 1);
  Send("a", "first");
  Send("b", "second");
  Recv(KeyText("b"), 2);
  EXPECT_THAT(out_, ElementsAre("first", "second"));
}

// Closing the step waits until a call has delivered the value.
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

TEST_F(Source, AnotherIncarnationIsARestart) {
  Recv(KeyText("a", "CPU:0", 2), 1);
  EXPECT_THAT(
      out_[0],
      StartsWith("ABORTED: RecvTensor expects a different device incarnation: 2 vs. 1. Your "
                 "worker job (\"/job:worker/replica:0/task:0\") was probably restarted."));
}

TEST_F(Source, KeysMustBeOfALocalDevice) {
  Recv("foo;bar;baz", 1);
  Recv(KeyText("a", "GPU:7"), 2);
  EXPECT_THAT(out_[0], StartsWith("INVALID_ARGUMENT: Invalid  rendezvous key: foo;bar;baz"));
  EXPECT_THAT(out_[1], HasSubstr("INVALID_ARGUMENT: /job:worker/replica:0/task:0/device:GPU:7 "
                                 "unknown device."));
}

TEST_F(Source, IdIsAcceptedOnceAndZeroIsInvalid) {
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

// In TensorFlow a request whose client has disconnected consumes the value.
TEST_F(Source, DisconnectedClientLeavesTheValueAndItsId) {
  CancellationToken gone;
  Recv(KeyText("e"), 5, &gone);
  gone.Cancel();
  Send("e", "v");
  Recv(KeyText("e"), 5);
  EXPECT_THAT(out_, ElementsAre("CANCELLED: [_Derived_]RecvLocalAsync is cancelled.", "v"));
}

TEST_F(Source, RequestForAFinishedStepEndsAtOnce) {
  Begin(1);
  manager_.Cleanup(1);
  for (int i = 0; i < 10'000; ++i) Recv(KeyText("e"), 0);
  EXPECT_EQ(out_.size(), 10'000u);
  EXPECT_EQ(out_.back(), "ABORTED: [_Derived_]step 1 is over");
  EXPECT_EQ(manager_.step_count(), 0u);
}

TEST_F(KeepingSource, RepeatedRequestGetsTheSameValue) {
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

TEST_F(KeepingSource, DisconnectedClientFindsTheValueWhenItComesBack) {
  CancellationToken gone;
  Recv(KeyText("e"), 5, &gone);
  gone.Cancel();
  Send("e", "v");
  Recv(KeyText("e"), 5);
  EXPECT_THAT(out_, ElementsAre("CANCELLED: [_Derived_]RecvTensor is cancelled.", "v"));
}

TEST_F(KeepingSource, StepThatEndsEndsItsRequests) {
  Recv(KeyText("e"), 5);
  Recv(KeyText("e"), 5);
  manager_.Cleanup(1);
  EXPECT_THAT(out_, ElementsAre("ABORTED: [_Derived_]Cleanup 1", "ABORTED: [_Derived_]Cleanup 1"));
  EXPECT_EQ(source_.cache().entry_count(), 0u);
}

// Closing the step is woken by the end of the last transfer, and checks at once for losses.
TEST(SourceOrder, TransferThatFails_IsLostBeforeItsOperationEnds) {
  FakeClock clock;
  NoFetcher fetcher;
  std::shared_ptr<RemoteRendezvous> step;
  std::vector<absl::Status> lost;
  RendezvousManager manager(clock, fetcher, {}, [&] { lost.push_back(step->send_status()); });
  TensorSource source(manager, [](const TaskDevice&) { return std::optional<uint64_t>(1); });
  step = *manager.Find(1);
  ASSERT_TRUE(step->Initialize({"worker", 0, 0}).ok());
  const std::string key = Key("a", 1).text();
  const OutstandingOperations::Waiter waiter(step->operations());
  const TensorSource::TransferPtr transfer = source.BeginTransfer(1, key, {.tensor = Value("v")});
  ASSERT_NE(transfer, nullptr);
  EXPECT_EQ(step->operations().count(), 1u);
  source.EndTransfer(transfer, absl::UnavailableError("the call has broken"));
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].code(), absl::StatusCode::kUnavailable) << lost[0];
  // A second completion has no effect.
  source.EndTransfer(transfer, absl::InternalError("again"));
  EXPECT_EQ(lost.size(), 1u);
}

// The client asks again for a kept value; a value that has arrived cannot be lost any more.
TEST_F(Source, TransferOfAKeptValueFails_NothingIsLost) {
  const auto step = Begin(1);
  const auto kept =
      source_.BeginTransfer(1, KeyText("a"), {.tensor = Value("v"), .require_ack = true});
  source_.EndTransfer(kept, absl::UnavailableError("the call has broken"));
  EXPECT_TRUE(step->send_status().ok()) << step->send_status();
  const auto arrived = source_.BeginTransfer(1, KeyText("b"), {.tensor = Value("v")});
  source_.EndTransfer(arrived, absl::OkStatus());
  source_.EndTransfer(arrived, absl::UnavailableError("late"));
  EXPECT_TRUE(step->send_status().ok()) << step->send_status();
  EXPECT_EQ(step->operations().count(), 0u);
  EXPECT_EQ(source_.BeginTransfer(1, "no key", {}), nullptr);
  source_.EndTransfer(nullptr, absl::OkStatus());
}

// The network may take hours to report that a machine has failed; closing the step does not wait
// for it.
TEST_F(Source, TaskHasDied_ItsTransfersAreLostAndTheOthersContinue) {
  const auto step = Begin(1);
  const RendezvousKey to_two =
      *RendezvousKey::Parse(RendezvousKey::Text("/job:worker/replica:0/task:0/device:CPU:0", 1,
                                                "/job:worker/replica:0/task:2/device:CPU:0", "b"));
  const auto dead = source_.BeginTransfer(1, KeyText("a"), {.tensor = Value("v")});
  const auto alive = source_.BeginTransfer(1, to_two.text(), {.tensor = Value("v")});
  EXPECT_EQ(step->operations().count(), 2u);
  EXPECT_FALSE(source_.FailTask({"worker", 0, 3}, absl::UnavailableError("task 3 has died")));
  EXPECT_TRUE(step->send_status().ok()) << step->send_status();
  EXPECT_TRUE(source_.FailTask({"worker", 0, 1}, absl::UnavailableError("task 1 has died")));
  EXPECT_TRUE(dead->is_step_over.load());
  EXPECT_FALSE(alive->is_step_over.load());
  EXPECT_EQ(step->operations().count(), 1u);
  EXPECT_THAT(std::string(step->send_status().message()), HasSubstr("task 1 has died"));
  // The call ends when no one asks any more.
  source_.EndTransfer(dead, absl::OkStatus());
  EXPECT_EQ(step->operations().count(), 1u);
  EXPECT_FALSE(source_.FailTask({"worker", 0, 1}, absl::UnavailableError("once more")));
  source_.EndTransfer(alive, absl::OkStatus());
  EXPECT_EQ(step->operations().count(), 0u);
}

// An id is given back only where its value has stayed; an error that is an answer counts.
TEST_F(Source, RequestThatWasAnsweredWithAnError_IsNotAnsweredAgain) {
  Begin(1);
  manager_.Cleanup(1);
  Recv(KeyText("e"), 5);
  Recv(KeyText("e"), 5);
  ASSERT_EQ(out_.size(), 2u);
  EXPECT_EQ(out_[0], "ABORTED: [_Derived_]step 1 is over");
  EXPECT_THAT(out_[1], StartsWith("ABORTED: The same RecvTensor (GrpcWorker) request"));
}

}  // namespace
}  // namespace ferry
