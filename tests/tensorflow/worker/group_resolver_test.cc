// SPDX-License-Identifier: Apache-2.0
// Answers of a group's leader to TensorFlow's workers.
#include "tensorflow/worker/collectives/group_resolver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace ferry::worker {
namespace {

using tensorflow::CompleteGroupResponse;
using tensorflow::CompleteInstanceResponse;
using ::testing::HasSubstr;

std::string DeviceName(int task) {
  return absl::StrCat("/job:worker/replica:0/task:", task, "/device:CPU:0");
}

class GroupResolverTest : public ::testing::Test {
 protected:
  template <typename Response>
  struct Heard {
    int count = 0;
    absl::StatusOr<Response> response = absl::UnknownError("nothing yet");
  };
  using Group = std::shared_ptr<Heard<CompleteGroupResponse>>;
  using Instance = std::shared_ptr<Heard<CompleteInstanceResponse>>;

  Group AskGroup(int task, int size, uint64_t incarnation = 5) {
    tensorflow::CompleteGroupRequest request;
    request.set_group_key(1);
    request.set_group_size(size);
    request.set_device_type("CPU");
    request.mutable_device_attributes()->set_name(DeviceName(task));
    request.mutable_device_attributes()->set_incarnation(incarnation);
    auto heard = std::make_shared<Heard<CompleteGroupResponse>>();
    ticket_ = resolver_.CompleteGroup(request, [heard](auto response) {
      ++heard->count;
      heard->response = std::move(response);
    });
    return heard;
  }
  Instance AskInstance(int task, int instance, int type, bool is_source = false, int64_t dim = 2) {
    tensorflow::CompleteInstanceRequest request;
    request.set_group_key(1);
    request.set_group_size(2);
    request.set_instance_key(instance);
    request.set_type(type);
    request.set_data_type(tensorflow::DT_FLOAT);
    request.mutable_shape()->add_dim()->set_size(dim);
    request.set_device(DeviceName(task));
    request.set_is_source(is_source);
    auto heard = std::make_shared<Heard<CompleteInstanceResponse>>();
    ticket_ = resolver_.CompleteInstance(request, [heard](auto response) {
      ++heard->count;
      heard->response = std::move(response);
    });
    return heard;
  }

  GroupResolver resolver_;
  GroupResolver::Ticket ticket_ = 0;
};

TEST_F(GroupResolverTest, GroupIsAnsweredWhenAllHaveAsked) {
  const Group one = AskGroup(1, 2);
  EXPECT_EQ(one->count, 0);
  const Group zero = AskGroup(0, 2);
  for (const Group& each : {one, zero}) {
    ASSERT_EQ(each->count, 1);
    ASSERT_TRUE(each->response.ok()) << each->response.status();
    EXPECT_EQ(each->response->num_tasks(), 2);
    ASSERT_EQ(each->response->device_attributes_size(), 2);
    EXPECT_EQ(each->response->device_attributes(0).name(), DeviceName(0));
    EXPECT_EQ(each->response->device_attributes(1).incarnation(), 5u);
  }
  // It stays, and a member that asks again is answered at once.
  EXPECT_TRUE(AskGroup(1, 2)->response.ok());
}

TEST_F(GroupResolverTest, TasksAreInTheOrderOfTheirNumbers) {
  AskGroup(10, 2);
  const Group two = AskGroup(2, 2);
  ASSERT_TRUE(two->response.ok()) << two->response.status();
  EXPECT_EQ(two->response->device_attributes(0).name(), DeviceName(2));
  AskInstance(2, 4, 1);
  EXPECT_EQ(AskInstance(10, 4, 1, /*is_source=*/true)->response->source_rank(), 1);
}

TEST_F(GroupResolverTest, ErrorsPersist) {
  const Group first = AskGroup(0, 2);
  EXPECT_THAT(std::string(AskGroup(1, 3)->response.status().message()),
              HasSubstr("is joining a group with size3, but that group has size 2 (group_key=1)"));
  EXPECT_EQ(first->response.status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(AskGroup(1, 2)->response.status().code(), absl::StatusCode::kInternal);
}

TEST_F(GroupResolverTest, AnotherIncarnationIsNoMember) {
  AskGroup(0, 2);
  AskGroup(1, 2);
  EXPECT_EQ(AskGroup(1, 2, 6)->response.status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(GroupResolverTest, FullGroupAcceptsNoOther) {
  AskGroup(0, 1);
  EXPECT_THAT(std::string(AskGroup(1, 1)->response.status().message()),
              HasSubstr("is joining a group that is already full"));
}

TEST_F(GroupResolverTest, InstancesNeedAGroup) {
  EXPECT_THAT(std::string(AskInstance(0, 1, 0)->response.status().message()),
              HasSubstr("group 1 not found"));
  AskGroup(0, 2);
  EXPECT_THAT(std::string(AskInstance(0, 1, 0)->response.status().message()),
              HasSubstr("group 1 failed to resolve"));
}

TEST_F(GroupResolverTest, BroadcastWaitsForItsSource) {
  AskGroup(0, 2);
  AskGroup(1, 2);
  const Instance recv = AskInstance(0, 4, 1);
  EXPECT_EQ(recv->count, 0);
  const Instance send = AskInstance(1, 4, 1, /*is_source=*/true);
  ASSERT_TRUE(recv->response.ok()) << recv->response.status();
  EXPECT_EQ(recv->response->source_rank(), 1);
  EXPECT_EQ(send->response->source_rank(), 1);
  // Others have no source to wait for.
  EXPECT_EQ(AskInstance(0, 5, 0)->response->source_rank(), -1);
  EXPECT_EQ(AskInstance(1, 5, 0, false, 3)->response.status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(GroupResolverTest, WorkerThatHasLeftIsForgotten) {
  const Group zero = AskGroup(0, 2);
  resolver_.Cancel(ticket_);
  EXPECT_EQ(zero->count, 1);
  EXPECT_EQ(zero->response.status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(AskGroup(1, 2)->response.ok());
  EXPECT_EQ(zero->count, 1);
}

}  // namespace
}  // namespace ferry::worker
