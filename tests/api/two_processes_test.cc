// SPDX-License-Identifier: Apache-2.0
// Tensors between this process and another one.
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <memory>
#include <numeric>
#include <string>

#include <gmock/gmock.h>

#include "job.h"

extern char** environ;

namespace ferry {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

const TensorId kRequest = {.name = "request", .source = 0, .destination = 1};
const TensorId kAnswer = {.name = "answer", .source = 1, .destination = 0};

class TwoProcesses : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string program = API_PEER;
    std::string address = coordinator_.address();
    char* arguments[] = {program.data(), address.data(), nullptr};
    ASSERT_EQ(posix_spawn(&peer_, program.c_str(), nullptr, nullptr, arguments, environ), 0);
    node_ = std::move(coordinator_.Join({0})[0]);
    ASSERT_NE(node_, nullptr);
  }
  void TearDown() override {
    if (peer_ <= 0) return;
    kill(peer_, SIGKILL);
    waitpid(peer_, nullptr, 0);
  }

  TestCoordinator coordinator_{2};
  pid_t peer_ = -1;
  std::unique_ptr<Node> node_;
};

TEST_F(TwoProcesses, Exchange_SmallAndLargeTensors_EveryElementArrives) {
  absl::StatusOr<Step> step = node_->OpenStep(1);
  ASSERT_TRUE(step.ok()) << step.status();
  for (const int64_t count : {1, 1000, 1 << 20}) {
    absl::StatusOr<Tensor> tensor = node_->Allocate(Device::Host(), DataType::kInt32, {count});
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    absl::Span<int32_t> elements = tensor->mutable_elements<int32_t>();
    std::iota(elements.begin(), elements.end(), 7);
    absl::StatusOr<Tensor> sent = step->Send(kRequest, *tensor).Wait(kLong);
    ASSERT_TRUE(sent.ok()) << sent.status();

    Request answer = step->Recv(kAnswer);
    absl::StatusOr<Tensor> received = answer.Wait(kLong);
    ASSERT_TRUE(received.ok()) << received.status();
    ASSERT_THAT(received->shape(), ::testing::ElementsAre(count));
    int32_t expected = 8;
    for (const int32_t element : received->elements<int32_t>()) ASSERT_EQ(element, expected++);
    EXPECT_THAT(answer.path(), AnyOf("inline", "eager", "shm"));
  }
  absl::StatusOr<Tensor> end = Tensor::Allocate(DataType::kInt32, {0});
  ASSERT_TRUE(end.ok());
  EXPECT_TRUE(step->Send(kRequest, *end).Wait(kLong).ok());
  EXPECT_EQ(step->Close(kLong), absl::OkStatus());
  EXPECT_EQ(node_->ShutdownCollective(), absl::OkStatus());
  int status = 0;
  ASSERT_EQ(waitpid(peer_, &status, 0), peer_);
  peer_ = -1;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(TwoProcesses, Recv_SenderIsKilled_FailsWithItsName) {
  absl::StatusOr<Step> step = node_->OpenStep(1);
  ASSERT_TRUE(step.ok()) << step.status();
  // It is connected once it has answered.
  absl::StatusOr<Tensor> tensor = Tensor::Allocate(DataType::kInt32, {1});
  ASSERT_TRUE(tensor.ok());
  ASSERT_TRUE(step->Send(kRequest, *tensor).Wait(kLong).ok());
  ASSERT_TRUE(step->Recv(kAnswer).Wait(kLong).ok());

  Request request = step->Recv(kAnswer);
  kill(peer_, SIGKILL);
  const absl::Status status = request.Wait(kLong).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("node 1"));
}

}  // namespace
}  // namespace ferry
