// SPDX-License-Identifier: Apache-2.0
// Errors of ids, and flushing, closing and aborting a step.
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "job.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class StepTest : public ::testing::Test {
 protected:
  void SetUp() override {
    nodes_ = coordinator_.Join({0, 1});
    for (const auto& node : nodes_) ASSERT_NE(node, nullptr);
    sender_.emplace(nodes_[0]->OpenStep(1).value());
    receiver_.emplace(nodes_[1]->OpenStep(1).value());
  }

  absl::Status SendStatus(const TensorId& id) {
    return sender_->Send(id, Tensor::Allocate(DataType::kFloat, {2}).value()).Wait(kLong).status();
  }
  absl::Status RecvStatus(const TensorId& id) { return receiver_->Recv(id).Wait(kLong).status(); }

  const TensorId x_ = {.name = "x", .source = 0, .destination = 1};
  TestCoordinator coordinator_{2};
  std::vector<std::unique_ptr<Node>> nodes_;
  std::optional<Step> sender_;
  std::optional<Step> receiver_;
};

TEST_F(StepTest, SendAndRecv_InvalidIds_SayWhatIsWrong) {
  const auto is_invalid = [](const absl::Status& status, const char* text) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  is_invalid(SendStatus({.name = "", .source = 0, .destination = 1}), "name");
  is_invalid(SendStatus({.name = "a;b", .source = 0, .destination = 1}), "a;b");
  is_invalid(SendStatus({.name = "x", .source = 0, .destination = 9}), "no node 9");
  is_invalid(SendStatus({.name = "x", .source = 1, .destination = 0}), "this is node 0");
  is_invalid(RecvStatus({.name = "", .source = 0, .destination = 1}), "name");
  is_invalid(RecvStatus({.name = "x", .source = 7, .destination = 1}), "no node 7");
  is_invalid(RecvStatus({.name = "x", .source = 0, .destination = 0}), "this is node 1");
  is_invalid(sender_->Send(x_, Tensor()).Wait(kLong).status(), "no tensor");
  // A stream is for the memory of a GPU; the pointer is not used.
  CUstream_st* const stream = reinterpret_cast<CUstream_st*>(8);
  is_invalid(receiver_->Recv(x_, {.stream = stream}).Wait(kLong).status(), "host memory");
  is_invalid(sender_->Send(x_, Tensor::Allocate(DataType::kFloat, {2}).value(), {.stream = stream})
                 .Wait(kLong)
                 .status(),
             "not in a GPU's memory");
}

// Keys are kept, which must not make an invalid id valid.
TEST_F(StepTest, SendAndRecv_InvalidIdsLikeAValidOne_SayWhatIsWrong) {
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(SendStatus(x_), absl::OkStatus());
    ASSERT_EQ(RecvStatus(x_), absl::OkStatus());
  }
  const auto is_invalid = [](const absl::Status& status, const char* text) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  for (int i = 0; i < 2; ++i) {
    TensorId id = x_;
    id.name = "x;";
    is_invalid(SendStatus(id), "a value cannot be called \"x;\": a name has no ';'");
    is_invalid(RecvStatus(id), "a value cannot be called \"x;\": a name has no ';'");
    id = x_;
    id.destination = 2;
    is_invalid(SendStatus(id), "there is no node 2; the job has 2");
    id = x_;
    id.source_device = Device::Gpu(3);
    is_invalid(SendStatus(id), "node 0 has no device \"gpu:3\"");
    id = x_;
    id.source = 2;
    is_invalid(RecvStatus(id), "there is no node 2; the job has 2");
  }
}

TEST_F(StepTest, ExplainPath_NamesThePathAndTheOthers) {
  // The receiver's node.
  const absl::StatusOr<std::string> path = nodes_[1]->ExplainPath(x_, 1 << 20);
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_THAT(*path, AllOf(HasSubstr("shm"), HasSubstr("tcp")));
  EXPECT_EQ(nodes_[0]->ExplainPath(x_, 8).status().code(), absl::StatusCode::kInvalidArgument);
  TensorId id = x_;
  id.source = 7;
  EXPECT_EQ(nodes_[1]->ExplainPath(id, 8).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(StepTest, Flush_TensorIsNotReceived_NamesIt) {
  ASSERT_EQ(SendStatus(x_), absl::OkStatus());
  const absl::Status status = sender_->Flush(absl::Milliseconds(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("waited 20ms to flush step 1"),
                    HasSubstr("\"x\" from node0/host:0 to node1/host:0"),
                    HasSubstr("node 1 has not asked for it"), Not(HasSubstr("/job:"))));
  // The step is still open on both sides.
  ASSERT_EQ(RecvStatus(x_), absl::OkStatus());
  EXPECT_EQ(sender_->Flush(kLong), absl::OkStatus());
  ASSERT_EQ(SendStatus(x_), absl::OkStatus());
  ASSERT_EQ(RecvStatus(x_), absl::OkStatus());
  EXPECT_EQ(sender_->Flush(kLong), absl::OkStatus());
}

TEST_F(StepTest, Close_LaterOperations_AreAborted) {
  ASSERT_EQ(SendStatus(x_), absl::OkStatus());
  ASSERT_EQ(RecvStatus(x_), absl::OkStatus());
  EXPECT_EQ(sender_->Close(kLong), absl::OkStatus());
  EXPECT_EQ(receiver_->Close(kLong), absl::OkStatus());
  EXPECT_EQ(SendStatus(x_).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(RecvStatus(x_).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(nodes_[0]->OpenStep(1).status().code(), absl::StatusCode::kAborted);
}

TEST_F(StepTest, Close_TensorIsNotReceived_ClosesAndNamesIt) {
  ASSERT_EQ(SendStatus(x_), absl::OkStatus());
  const absl::Status status = sender_->Close(absl::Milliseconds(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("x"));
  EXPECT_EQ(SendStatus(x_).code(), absl::StatusCode::kAborted);
}

TEST_F(StepTest, Abort_PendingAndLaterOperations_FailWithTheReason) {
  Request pending = receiver_->Recv(x_);
  receiver_->Abort(absl::DataLossError("a bad batch"));
  const absl::Status status = pending.Wait(kLong).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("a bad batch"));
  EXPECT_FALSE(RecvStatus(x_).ok());
}

TEST_F(StepTest, MovedFrom_IsACopy) {
  Step moved = std::move(*sender_);  // NOLINT(performance-move-const-arg)
  EXPECT_EQ(sender_->id(), moved.id());
  EXPECT_EQ(SendStatus(x_), absl::OkStatus());
}

TEST_F(StepTest, Send_WithinTheNode_NeedsNoTransport) {
  absl::StatusOr<Step> step = nodes_[0]->OpenStep(2);
  ASSERT_TRUE(step.ok()) << step.status();
  const TensorId id = {.name = "x", .source = 0, .destination = 0};
  Tensor tensor = Tensor::Allocate(DataType::kDouble, {4}).value();
  ASSERT_TRUE(step->Send(id, tensor).Wait(kLong).ok());
  Request request = step->Recv(id);
  const absl::StatusOr<Tensor> received = request.Wait(kLong);
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ(received->data(), tensor.data());
  EXPECT_EQ(request.path(), "local");
}

TEST_F(StepTest, Recv_RequiredTransport_IsTaken) {
  TestCoordinator coordinator(2);
  auto nodes = coordinator.Join({0, 1}, {.required_transport = "tcp"});
  ASSERT_NE(nodes[0], nullptr);
  ASSERT_NE(nodes[1], nullptr);
  Step sender = nodes[0]->OpenStep(1).value();
  Step receiver = nodes[1]->OpenStep(1).value();
  Tensor tensor = nodes[0]->Allocate(Device::Host(), DataType::kInt8, {1 << 20}).value();
  std::fill_n(static_cast<char*>(tensor.mutable_data()), tensor.size_bytes(), 'a');
  ASSERT_TRUE(sender.Send(x_, tensor).Wait(kLong).ok());
  Request request = receiver.Recv(x_);
  const absl::StatusOr<Tensor> received = request.Wait(kLong);
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ(request.path(), "tcp");
  EXPECT_EQ(received->elements<char>().back(), 'a');
}

}  // namespace
}  // namespace ferry
