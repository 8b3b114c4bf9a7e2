// SPDX-License-Identifier: Apache-2.0
// A node without GPUs reports why when a communicator of GPUs is requested.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "node/node.h"
#include "tests/coord/wire/agent_fixture.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The environment is read once, and the driver is used, in a process of its own.
void InAProcess(const std::map<std::string, std::string>& environment,
                const std::function<void()>& body) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    body();
    std::fflush(nullptr);
    std::_Exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "it ended with status " << status;
}

// The error of the only node of a job.
std::string WhyNoCommunicator(bool use_gpus = true) {
  coord::TestServer server(1);
  NodeOptions options;
  options.coordinator = server.address();
  options.node_id = 0;
  options.num_nodes = 1;
  options.transfer.use_gpus = use_gpus;
  const absl::StatusOr<std::unique_ptr<Node>> node = Node::Join(options);
  if (!node.ok()) return node.status().ToString();
  const absl::Status status = (*node)->Communicator({0}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  return std::string(status.message());
}

TEST(NodeGpus, MissingDriver_IsNamed) {
  InAProcess({{"FERRY_CUDA_LIBRARY", "/nowhere/libcuda.so.1"}}, [] {
    EXPECT_THAT(WhyNoCommunicator(),
                AllOf(HasSubstr("this process uses no GPUs: "), HasSubstr("/nowhere/libcuda.so.1"),
                      HasSubstr("FERRY_CUDA_LIBRARY")));
  });
}

TEST(NodeGpus, EmptyListOfVisibleDevices_IsNamed) {
  InAProcess({{"FERRY_CUDA_LIBRARY", STRICT_CUDA_LIBRARY}, {"CUDA_VISIBLE_DEVICES", ""}}, [] {
    EXPECT_THAT(WhyNoCommunicator(),
                AllOf(HasSubstr("this process uses no GPUs: cuInit failed with code 100"),
                      HasSubstr("CUDA_VISIBLE_DEVICES is set and empty, which hides every GPU")));
  });
}

TEST(NodeGpus, ListWithoutAValidDevice_IsNamed) {
  InAProcess({{"FERRY_CUDA_LIBRARY", STRICT_CUDA_LIBRARY}, {"CUDA_VISIBLE_DEVICES", "7"}}, [] {
    EXPECT_THAT(WhyNoCommunicator(), HasSubstr(": CUDA_VISIBLE_DEVICES is \"7\""));
  });
}

TEST(NodeGpus, Option_IsNamed) {
  InAProcess({{"FERRY_CUDA_LIBRARY", STRICT_CUDA_LIBRARY}},
             [] { EXPECT_THAT(WhyNoCommunicator(/*use_gpus=*/false), HasSubstr("--no-gpus")); });
}

// The job does not know it, though this process could use it.
TEST(NodeGpus, UnidentifiedGpu_IsNotPartOfTheJob) {
  InAProcess({{"FERRY_CUDA_LIBRARY", STRICT_CUDA_LIBRARY},
              {"STRICT_CUDA_DEVICES", "1"},
              {"STRICT_CUDA_FAIL", "cuDeviceGetName:999"}},
             [] {
               EXPECT_THAT(WhyNoCommunicator(),
                           HasSubstr("this node has no GPU in the job: gpu:0: cuDeviceGetName "
                                     "failed with code 999"));
             });
}

}  // namespace
}  // namespace ferry
