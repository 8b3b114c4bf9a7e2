// SPDX-License-Identifier: Apache-2.0
// How a request ends, between two nodes of this process.
#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ferry/error_details.h>
#include <gmock/gmock.h>

#include "absl/synchronization/notification.h"

#include "job.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const TensorId kX = {.name = "x", .source = 0, .destination = 1};

class RequestTest : public ::testing::Test {
 protected:
  void SetUp() override {
    nodes_ = coordinator_.Join({0, 1});
    for (const auto& node : nodes_) ASSERT_NE(node, nullptr);
    sender_.emplace(nodes_[0]->OpenStep(3).value());
    receiver_.emplace(nodes_[1]->OpenStep(3).value());
  }

  static Tensor Numbers(std::vector<float> numbers) {
    Tensor tensor =
        Tensor::Allocate(DataType::kFloat, {static_cast<int64_t>(numbers.size())}).value();
    std::copy(numbers.begin(), numbers.end(), tensor.mutable_elements<float>().begin());
    return tensor;
  }
  void Send(std::vector<float> numbers, const TensorId& id = kX) {
    const absl::Status status = sender_->Send(id, Numbers(std::move(numbers))).Wait(kLong).status();
    ASSERT_EQ(status, absl::OkStatus());
  }
  // Returns once small tensors come without a request: the sender learns a moment after the first
  // one that it may send them so.
  void AwaitEager() {
    const absl::Time give_up = absl::Now() + kLong;
    for (std::string path; path != "eager";) {
      ASSERT_LT(absl::Now(), give_up) << "the last came " << path;
      Send({4});
      Request request = receiver_->Recv(kX);
      ASSERT_TRUE(request.Wait(kLong).ok());
      path = request.path();
    }
  }

  TestCoordinator coordinator_{2};
  std::vector<std::unique_ptr<Node>> nodes_;
  std::optional<Step> sender_;
  std::optional<Step> receiver_;
};

TEST_F(RequestTest, Wait_TensorWasSent_ReturnsItAgainAndAgain) {
  Send({1, 2, 3});
  Request request = receiver_->Recv(kX);
  for (int i = 0; i < 2; ++i) {
    const absl::StatusOr<Tensor> tensor = request.Wait(kLong);
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_THAT(tensor->elements<float>(), ElementsAre(1, 2, 3));
  }
  EXPECT_TRUE(request.done());
  // Requested while there was no connection.
  EXPECT_EQ(request.path(), "inline");
  AwaitEager();
}

TEST_F(RequestTest, Wait_TimesOut_NamesTheTensorAndContinues) {
  Request request = receiver_->Recv(kX);
  const absl::Status status = request.Wait(absl::Milliseconds(20)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("waited 20ms in step 3"),
                    HasSubstr("\"x\" from node0/host:0 to node1/host:0")));
  EXPECT_FALSE(request.done());
  EXPECT_EQ(request.path(), "");
  Send({4});
  EXPECT_TRUE(request.Wait(kLong).ok());
}

TEST_F(RequestTest, Recv_DeadlinePasses_EndsTheReceive) {
  AwaitEager();
  Request request = receiver_->Recv(kX, {.timeout = absl::Milliseconds(20)});
  const absl::Status status = request.Wait(kLong).status();
  EXPECT_EQ(TransferPhase(status), "waiting for node 0, from which it has not arrived") << status;
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("/job:")));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("waited 20ms in step 3 for \"x\" from node0/host:0"),
                    HasSubstr("waiting for node 0, from which it has not arrived")));
  EXPECT_TRUE(request.done());
}

TEST_F(RequestTest, Recv_NotRequestedYetInTime_ErrorHasThePhaseAlone) {
  Request request = receiver_->Recv(kX, {.timeout = absl::Milliseconds(200)});
  const absl::Status status = request.Wait(kLong).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(TransferPhase(status), AllOf(HasSubstr("node 0"), Not(HasSubstr("\"x\"")))) << status;
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("/job:")));
  EXPECT_THAT(MissingRanks(status), ::testing::IsEmpty());
}

TEST_F(RequestTest, Poll_HandlesWhatHasArrived) {
  AwaitEager();
  Request request = receiver_->Recv(kX);
  EXPECT_FALSE(request.Poll());
  Send({5});
  const absl::Time give_up = absl::Now() + kLong;
  while (!request.Poll()) ASSERT_LT(absl::Now(), give_up);
  EXPECT_TRUE(request.done());
  EXPECT_TRUE(request.Wait(absl::ZeroDuration()).ok());
  EXPECT_TRUE(Request().Poll());
}

// A thread that leads the node's loop does what the others wait for, which poll meanwhile.
TEST_F(RequestTest, Wait_OfALongPollingNode_EndsAtItsTimeout) {
  TestCoordinator coordinator(2);
  const auto nodes = coordinator.Join({0, 1}, {.polling_time = absl::Hours(1)});
  for (const auto& node : nodes) ASSERT_NE(node, nullptr);
  Step sender = nodes[0]->OpenStep(1).value();
  Step receiver = nodes[1]->OpenStep(1).value();
  Request leading = receiver.Recv(kX);
  auto leader = std::async(std::launch::async, [&leading] { return leading.Wait(kLong).status(); });
  TensorId y = kX;
  y.name = "y";
  Request late = receiver.Recv(y);
  // The other one leads at the latest when it is alone.
  for (int i = 0; i < 3; ++i) {
    auto waiting = std::async(std::launch::async,
                              [&late] { return late.Wait(absl::Milliseconds(50)).status(); });
    ASSERT_EQ(waiting.wait_for(absl::ToChronoSeconds(kLong / 2)), std::future_status::ready);
    EXPECT_EQ(waiting.get().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_FALSE(late.Poll());
  }
  EXPECT_EQ(sender.Send(kX, Numbers({1})).Wait(kLong).status(), absl::OkStatus());
  EXPECT_EQ(leader.get(), absl::OkStatus());
}

TEST_F(RequestTest, Notify_OperationEnds_CallsAndKeepsTheRequest) {
  absl::Notification replaced;
  absl::Notification done;
  Request request = receiver_->Recv(kX);
  request.Notify([&replaced] { replaced.Notify(); });
  request.Notify([&done, &request] {
    EXPECT_TRUE(request.done());
    done.Notify();
  });
  EXPECT_FALSE(done.HasBeenNotified());
  Send({6});
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(kLong));
  EXPECT_FALSE(replaced.HasBeenNotified());
  EXPECT_NE(request.path(), "");
  EXPECT_TRUE(request.Wait(absl::ZeroDuration()).ok());
  // It is done already.
  absl::Notification again;
  request.Notify([&again] { again.Notify(); });
  EXPECT_TRUE(again.HasBeenNotified());
}

TEST_F(RequestTest, Recv_SenderHasNoAddress_NamesIt) {
  TestCoordinator coordinator(2);
  // Node 0 moves no tensors, and says nowhere how to reach it.
  auto joining = std::async(
      std::launch::async, [&] { return std::move(coordinator.Join({0}, {.enabled = false})[0]); });
  const std::unique_ptr<Node> node = std::move(coordinator.Join({1})[0]);
  const std::unique_ptr<Node> silent = joining.get();
  ASSERT_NE(node, nullptr);
  Step step = node->OpenStep(3).value();
  Request request = step.Recv(kX, {.timeout = absl::Milliseconds(300)});
  EXPECT_THAT(std::string(request.Wait(absl::ZeroDuration()).status().message()),
              HasSubstr("the address of the sender is not known yet"));
  const absl::Status status = request.Wait(kLong).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("in step 3 for \"x\" from node0/host:0"),
                    HasSubstr("node 0 has not published: it has joined")));
  // Cancelled and destroyed while the address is awaited.
  Request cancelled = step.Recv(kX);
  cancelled.Cancel();
  EXPECT_TRUE(cancelled.done());
  { const Request destroyed = step.Recv(kX); }
}

TEST_F(RequestTest, Cancel_ReceiveUnderWay_EndsWithTheReason) {
  Request request = receiver_->Recv(kX);
  request.Cancel(absl::AbortedError("no longer needed"));
  EXPECT_TRUE(request.done());
  EXPECT_EQ(request.Wait(kLong).status(), absl::AbortedError("no longer needed"));
  // A request that is done does not change.
  request.Cancel();
  EXPECT_EQ(request.Wait(kLong).status(), absl::AbortedError("no longer needed"));
}

TEST_F(RequestTest, Cancel_Token_EndsAllThatWereGivenIt) {
  CancellationToken cancellation;
  const TensorId y = {.name = "y", .source = 0, .destination = 1};
  Request first = receiver_->Recv(kX, {.cancellation = cancellation});
  Request second = receiver_->Recv(y, {.cancellation = cancellation});
  EXPECT_TRUE(cancellation.Cancel(absl::CancelledError("the job is over")));
  EXPECT_FALSE(cancellation.Cancel());
  Request third = receiver_->Recv(y, {.cancellation = cancellation});
  for (Request* each : {&first, &second, &third}) {
    EXPECT_EQ(each->Wait(kLong).status(), absl::CancelledError("the job is over"));
  }
}

TEST_F(RequestTest, OnComplete_BeforeAndAfterTheEnd_CallsExactlyOnce) {
  std::atomic<int> calls{0};
  absl::Notification called;
  receiver_->Recv(kX).OnComplete([&](absl::StatusOr<Tensor> tensor) {
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    if (++calls == 1) called.Notify();
  });
  Send({1});
  ASSERT_TRUE(called.WaitForNotificationWithTimeout(kLong));

  Send({2});
  Request request = receiver_->Recv(kX);
  ASSERT_TRUE(request.Wait(kLong).ok());
  std::move(request).OnComplete([&](absl::StatusOr<Tensor> tensor) {
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    ++calls;
  });
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(request.done());  // NOLINT: it is empty now
  EXPECT_EQ(request.Wait(kLong).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(RequestTest, OnComplete_StepIsAborted_CallsOnceWithTheReason) {
  std::atomic<int> calls{0};
  absl::Notification called;
  absl::Status status;
  receiver_->Recv(kX).OnComplete([&](absl::StatusOr<Tensor> tensor) {
    status = tensor.status();
    if (++calls == 1) called.Notify();
  });
  receiver_->Abort(absl::DataLossError("a bad batch"));
  ASSERT_TRUE(called.WaitForNotificationWithTimeout(kLong));
  EXPECT_THAT(std::string(status.message()), HasSubstr("a bad batch"));
  nodes_[1].reset();
  EXPECT_EQ(calls, 1);
}

TEST_F(RequestTest, OnComplete_StartsTheNextReceive_WithoutBlocking) {
  absl::Notification done;
  receiver_->Recv(kX).OnComplete([&](absl::StatusOr<Tensor> first) {
    EXPECT_TRUE(first.ok()) << first.status();
    receiver_->Recv(kX).OnComplete([&](absl::StatusOr<Tensor> second) {
      EXPECT_TRUE(second.ok()) << second.status();
      done.Notify();
    });
  });
  Send({1});
  Send({2});
  EXPECT_TRUE(done.WaitForNotificationWithTimeout(kLong));
}

// Receives of values that are there already: each callback would be called within the one before.
TEST_F(RequestTest, OnComplete_ChainOfReceives_IsNestedToALimit) {
  constexpr int kValues = 20'000;
  for (const TensorId& id : {kX, TensorId{.name = "x", .source = 1, .destination = 1}}) {
    SCOPED_TRACE(ToString(id));
    Step& sender = id.source == 0 ? *sender_ : *receiver_;
    // Eager from the second one on.
    ASSERT_EQ(sender.Send(id, Numbers({-1})).Wait(kLong).status(), absl::OkStatus());
    ASSERT_TRUE(receiver_->Recv(id).Wait(kLong).ok());
    for (int i = 0; i < kValues; ++i) {
      ASSERT_EQ(sender.Send(id, Numbers({static_cast<float>(i)})).Wait(kLong).status(),
                absl::OkStatus());
    }
    int depth = 0;
    int deepest = 0;
    int received = 0;
    absl::Notification done;
    std::function<void()> next = [&] {
      receiver_->Recv(id).OnComplete([&](absl::StatusOr<Tensor> tensor) {
        ++depth;
        deepest = std::max(deepest, depth);
        EXPECT_TRUE(tensor.ok()) << tensor.status();
        if (tensor.ok()) {
          EXPECT_EQ(tensor->elements<float>()[0], static_cast<float>(received));
        }
        if (++received == kValues) {
          done.Notify();
        } else {
          next();
        }
        --depth;
      });
    };
    next();
    ASSERT_TRUE(done.WaitForNotificationWithTimeout(kLong));
    EXPECT_LE(deepest, 16);
  }
}

// Nobody waits for them, so that the node's own thread leads the loop, and its timer may expire
// while a receive is being posted.
TEST_F(RequestTest, Recv_ShortTimeoutAndNobodyWaits_Ends) {
  Send({1});
  ASSERT_TRUE(receiver_->Recv(kX).Wait(kLong).ok());
  const TensorId local = {.name = "x", .source = 1, .destination = 1};
  for (const absl::Duration timeout :
       {absl::ZeroDuration(), -absl::Seconds(1), absl::Nanoseconds(1), absl::Microseconds(50),
        absl::Milliseconds(1)}) {
    for (int round = 0; round < 1000; ++round) {
      std::vector<RecvOperation> operations(static_cast<size_t>(round % 3 + 1));
      for (size_t i = 0; i < operations.size(); ++i) {
        operations[i].id = (static_cast<size_t>(round) + i) % 2 == 0 ? kX : local;
        operations[i].options.timeout = timeout;
      }
      std::vector<Request> requests;
      if (operations.size() == 1) {
        requests.push_back(receiver_->Recv(operations[0].id, operations[0].options));
      } else {
        requests = receiver_->RecvMany(operations);
      }
      auto left = std::make_shared<std::atomic<size_t>>(requests.size());
      auto ended = std::make_shared<absl::Notification>();
      for (Request& request : requests) {
        std::move(request).OnComplete([left, ended](absl::StatusOr<Tensor> tensor) {
          EXPECT_EQ(tensor.status().code(), absl::StatusCode::kDeadlineExceeded) << tensor.status();
          if (--*left == 0) ended->Notify();
        });
      }
      ASSERT_TRUE(ended->WaitForNotificationWithTimeout(kLong))
          << *left << " of " << operations.size() << " with a timeout of " << timeout
          << " have not ended in round " << round;
    }
  }
}

TEST_F(RequestTest, Destructor_OperationUnderWay_CancelsIt) {
  // Within a node nothing can be on its way to a receive that is cancelled.
  const TensorId local = {.name = "x", .source = 0, .destination = 0};
  { const Request request = sender_->Recv(local); }
  {
    Request replaced = sender_->Recv(local);
    replaced = Request();
  }
  {
    Request cancelled = sender_->Recv(local);
    cancelled.Cancel();
  }
  // None of them takes the tensor.
  Send({7}, local);
  const absl::StatusOr<Tensor> tensor = sender_->Recv(local).Wait(kLong);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_THAT(tensor->elements<float>(), ElementsAre(7));
}

TEST_F(RequestTest, Destructor_ReceiveFromAnotherNode_DisturbsNoOther) {
  const TensorId y = {.name = "y", .source = 0, .destination = 1};
  // Once while the sender's address is looked up, once while the sender knows of the receive.
  { const Request request = receiver_->Recv(y); }
  Send({1});
  ASSERT_TRUE(receiver_->Recv(kX).Wait(kLong).ok());
  { const Request request = receiver_->Recv(y); }
  Send({2});
  EXPECT_TRUE(receiver_->Recv(kX).Wait(kLong).ok());
}

TEST_F(RequestTest, Destructor_OfTheNode_EndsPendingOperations) {
  Request request = receiver_->Recv(kX);
  Request of_nobody = receiver_->Recv({.name = "y", .source = 0, .destination = 1});
  receiver_.reset();
  nodes_[1].reset();
  EXPECT_TRUE(request.done());
  EXPECT_FALSE(request.Wait(kLong).ok());
  EXPECT_FALSE(of_nobody.Wait(kLong).ok());
}

TEST_F(RequestTest, RecvInto_EqualTensor_FillsIt) {
  Tensor into = Numbers({0, 0, 0});
  Request request = receiver_->Recv(kX, {.into = into});
  Send({1, 2, 3});
  const absl::StatusOr<Tensor> tensor = request.Wait(kLong);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_EQ(tensor->data(), into.data());
  EXPECT_THAT(into.elements<float>(), ElementsAre(1, 2, 3));
}

TEST_F(RequestTest, RecvInto_OtherSize_IsRefused) {
  Send({1, 2});
  Request request = receiver_->Recv(kX, {.into = Numbers({0, 0, 0})});
  const absl::Status status = request.Wait(kLong).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

TEST_F(RequestTest, SendMany_RecvMany_MatchInOrder) {
  std::vector<SendOperation> sends;
  std::vector<RecvOperation> receives;
  for (int i = 0; i < 10; ++i) {
    const TensorId id = {.name = "x" + std::to_string(i % 5), .source = 0, .destination = 1};
    sends.push_back({.id = id, .tensor = Numbers({static_cast<float>(i)})});
    receives.push_back({.id = id});
  }
  // One that fails does not disturb the others.
  sends.push_back({.id = {.name = "z", .source = 1, .destination = 1}, .tensor = Numbers({0})});
  std::vector<Request> received = receiver_->RecvMany(receives);
  std::vector<Request> sent = sender_->SendMany(sends);
  ASSERT_EQ(sent.size(), 11);
  EXPECT_EQ(WaitAll(absl::MakeSpan(sent), kLong).code(), absl::StatusCode::kInvalidArgument);
  sent.pop_back();
  EXPECT_EQ(WaitAll(absl::MakeSpan(sent), kLong), absl::OkStatus());
  ASSERT_EQ(received.size(), 10);
  ASSERT_EQ(WaitAll(absl::MakeSpan(received), kLong), absl::OkStatus());
  for (int i = 0; i < 10; ++i) {
    EXPECT_THAT(received[static_cast<size_t>(i)].Wait(kLong)->elements<float>(),
                ElementsAre(static_cast<float>(i)));
  }
  EXPECT_EQ(sender_->Flush(kLong), absl::OkStatus());
}

TEST_F(RequestTest, OnComplete_Null_LetsTheReceiveContinue) {
  receiver_->Recv(kX).OnComplete(nullptr);
  Send({1});
  Request next = receiver_->Recv(kX);
  Send({2});
  const absl::StatusOr<Tensor> tensor = next.Wait(kLong);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_THAT(tensor->elements<float>(), ElementsAre(2));
  std::move(next).OnComplete(nullptr);
  std::move(next).OnComplete(nullptr);  // NOLINT: it is empty now
}

// Callbacks may start further operations, also those that the node's destructor calls.
TEST_F(RequestTest, Destructor_OfTheNode_CallbackStartsAnotherReceive_EndsThatToo) {
  Send({1});
  ASSERT_TRUE(receiver_->Recv(kX).Wait(kLong).ok());
  constexpr int kMost = 100;
  int calls = 0;
  std::function<void(absl::StatusOr<Tensor>)> again = [&](const absl::StatusOr<Tensor>& tensor) {
    EXPECT_EQ(tensor.status().code(), absl::StatusCode::kCancelled) << tensor.status();
    EXPECT_THAT(std::string(tensor.status().message()), HasSubstr("the node was destroyed"));
    if (++calls < kMost) receiver_->Recv(kX).OnComplete(again);
  };
  receiver_->Recv(kX).OnComplete(again);
  nodes_[1].reset();
  EXPECT_EQ(calls, kMost);
}

// A node of a job in which the others never tell their addresses.
class SilentSendersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto joining = std::async(std::launch::async, [&] {
      return coordinator_.Join({0, 1, 2, 3}, {.enabled = false});
    });
    node_ = std::move(coordinator_.Join({4})[0]);
    silent_ = joining.get();
    ASSERT_NE(node_, nullptr);
    step_.emplace(node_->OpenStep(3).value());
  }

  Request Recv(int source, RecvOptions options = {}) {
    return step_->Recv({.name = "x", .source = source, .destination = 4}, std::move(options));
  }

  TestCoordinator coordinator_{5};
  std::vector<std::unique_ptr<Node>> silent_;
  std::unique_ptr<Node> node_;
  std::optional<Step> step_;
};

TEST_F(SilentSendersTest, Abort_EndsTheReceive) {
  Request request = Recv(0);
  step_->Abort(absl::DataLossError("a bad batch"));
  EXPECT_EQ(request.Wait(kLong).status(), absl::DataLossError("a bad batch"));
  EXPECT_EQ(Recv(0).Wait(kLong).status(), absl::DataLossError("a bad batch"));
}

TEST_F(SilentSendersTest, Close_EndsTheReceive) {
  Request request = Recv(0);
  Step other = node_->OpenStep(4).value();
  Request of_other = other.Recv({.name = "x", .source = 0, .destination = 4});
  EXPECT_EQ(step_->Close(kLong), absl::OkStatus());
  for (const absl::Status& status : {request.Wait(kLong).status(), Recv(1).Wait(kLong).status()}) {
    EXPECT_EQ(status, absl::AbortedError("step 3 was closed on this node"));
  }
  EXPECT_FALSE(of_other.done());
}

TEST_F(SilentSendersTest, DeadlineOfOneAmongOthers_IsKept) {
  std::vector<Request> others;
  for (int source = 0; source < 3; ++source) others.push_back(Recv(source));
  const absl::Status status = Recv(3, {.timeout = absl::Milliseconds(5)}).Wait(kLong).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("in step 3 for \"x\" from node3/host:0"), HasSubstr("node 3")));
  for (const Request& each : others) EXPECT_FALSE(each.done());
}

TEST_F(SilentSendersTest, WaitFlushAndClose_InsideACallback_AreRefused) {
  absl::Notification called;
  ASSERT_TRUE(step_
                  ->Send({.name = "y", .source = 4, .destination = 4},
                         Tensor::Allocate(DataType::kFloat, {1}).value())
                  .Wait(kLong)
                  .ok());
  Recv(0, {.timeout = absl::Milliseconds(1)}).OnComplete([&](const absl::StatusOr<Tensor>&) {
    for (const absl::Status& status :
         {Recv(1).Wait(kLong).status(), step_->Flush(kLong), step_->Close(kLong)}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("callback"));
    }
    called.Notify();
  });
  EXPECT_TRUE(called.WaitForNotificationWithTimeout(kLong));
}

TEST(EmptyRequest, HasNoOperation) {
  Request request;
  EXPECT_TRUE(request.done());
  request.Cancel();
  EXPECT_EQ(request.Wait(kLong).status().code(), absl::StatusCode::kFailedPrecondition);
  int calls = 0;
  std::move(request).OnComplete([&](absl::StatusOr<Tensor> tensor) {
    EXPECT_FALSE(tensor.ok());
    ++calls;
  });
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace ferry
