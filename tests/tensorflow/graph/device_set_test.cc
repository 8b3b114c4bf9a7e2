// SPDX-License-Identifier: Apache-2.0
// Parts of device names, and sets of devices.
#include "tensorflow/graph/device_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tensorflow/graph/device_spec.h"
#include "tests/tensorflow/graph/graph_fixture.h"

namespace ferry::graph {
namespace {

using ::testing::HasSubstr;

std::string Reread(const std::string& text) {
  const std::optional<DeviceSpec> spec = ParseDeviceSpec(text);
  return spec.has_value() ? ToString(*spec) : "none";
}

// As a server of TensorFlow parses them.
TEST(DeviceSpec, ParsesAllItsForms) {
  EXPECT_EQ(Reread(""), "");
  EXPECT_EQ(Reread("/job:worker/replica:0/task:1/device:GPU:2"),
            "/job:worker/replica:0/task:1/device:GPU:2");
  EXPECT_EQ(Reread("/job:worker/task:01"), "/job:worker/task:1");
  EXPECT_EQ(Reread("/cpu:0"), "/device:CPU:0");
  EXPECT_EQ(Reread("/GPU:1"), "/device:GPU:1");
  EXPECT_EQ(Reread("/job:worker/gpu:*"), "/job:worker/device:GPU:*");
  EXPECT_EQ(Reread("/device:CPU"), "/device:CPU:*");
  EXPECT_EQ(Reread("/device:CPU:*"), "/device:CPU:*");
  EXPECT_EQ(Reread("/job:*/replica:*/task:1/device:*:*"), "/task:1");
  EXPECT_EQ(Reread("/device:XPU:0"), "/device:XPU:0");
  EXPECT_EQ(Reread("/task:1/task:2"), "/task:2");
  // A device that is not there, which soft placement may replace.
  EXPECT_EQ(Reread("/cpu:99999999999"), "/device:CPU:99999999999");
  EXPECT_EQ(Reread("/cpu:18446744073709551615"), "/device:CPU:9223372036854775807");
}

TEST(DeviceSpec, RefusesInvalidNames) {
  for (const char* text : {"gpu", "cpu:0", "job:worker/task:1", "/gpu:x", "//", "/job:worker/",
                           "/job:worker/foo", "/job:", "/task:", "/task:-1", "/task:+1",
                           "/device:", "/device:CPU:0:0", "/tpu:0", "/cpu", "/job:1a", " /cpu:0"}) {
    EXPECT_FALSE(ParseDeviceSpec(text).has_value()) << text;
  }
  for (const char* text : {"/task:18446744073709551616", "/cpu:0x1", "/task: 1"}) {
    EXPECT_FALSE(ParseDeviceSpec(text).has_value()) << text;
  }
}

TEST(DeviceSpec, MergesSpecifiedFields) {
  DeviceSpec spec = *ParseDeviceSpec("/job:worker");
  ASSERT_EQ(Merge(*ParseDeviceSpec("/task:1/gpu:0"), false, spec), absl::OkStatus());
  EXPECT_EQ(ToString(spec), "/job:worker/task:1/device:GPU:0");
  EXPECT_THAT(Merge(*ParseDeviceSpec("/task:2"), true, spec),
              Fails(kInvalid,
                    "Cannot merge devices with incompatible tasks: '/task:2' and "
                    "'/job:worker/task:1/device:GPU:0'"));
  EXPECT_THAT(Merge(*ParseDeviceSpec("/cpu:0"), false, spec),
              Fails(kInvalid, HasSubstr("incompatible types")));
  EXPECT_THAT(Merge(*ParseDeviceSpec("/gpu:1"), false, spec),
              Fails(kInvalid, HasSubstr("incompatible ids")));
  EXPECT_EQ(ToString(spec), "/job:worker/task:1/device:GPU:0");
  ASSERT_EQ(Merge(*ParseDeviceSpec("/gpu:1"), true, spec), absl::OkStatus());
  EXPECT_EQ(ToString(spec), "/job:worker/task:1/device:GPU:*");
  ASSERT_EQ(Merge(*ParseDeviceSpec("/cpu:0"), true, spec), absl::OkStatus());
  EXPECT_EQ(ToString(spec), "/job:worker/task:1");
}

TEST(DeviceSet, OrdersDevicesByPlacementPreference) {
  const DeviceSet devices = *DeviceSet::Create({{"/job:b/task:10/cpu:0", 1},
                                                {"/job:b/task:2/cpu:0", 2},
                                                {"/job:a/task:0/cpu:0", 3},
                                                {"/job:b/task:2/gpu:1", 4},
                                                {"/job:a/task:0/gpu:0", 5}},
                                               "/job:b/task:10/cpu:0");
  std::vector<std::string> names;
  for (int i = 0; i < devices.size(); ++i) names.push_back(devices.device(i).name);
  EXPECT_THAT(names, ::testing::ElementsAre("/job:a/replica:0/task:0/device:GPU:0",
                                            "/job:b/replica:0/task:2/device:GPU:1",
                                            "/job:b/replica:0/task:10/device:CPU:0",
                                            "/job:a/replica:0/task:0/device:CPU:0",
                                            "/job:b/replica:0/task:2/device:CPU:0"));
  EXPECT_EQ(devices.client_device(), 2);
  EXPECT_EQ(devices.device(0).incarnation, 5u);
  EXPECT_EQ(devices.Find("/job:b/replica:0/task:2/device:CPU:0"), 4);
  EXPECT_EQ(devices.Find("/job:b/task:2/cpu:0"), -1);
  EXPECT_THAT(devices.Matching(*ParseDeviceSpec("/job:b/task:2")), ::testing::ElementsAre(1, 4));
}

TEST(DeviceSet, RefusesInvalidDevices) {
  EXPECT_THAT(DeviceSet::Create({{"/job:a/task:0", 1}}, "/job:a/task:0/cpu:0"),
              Fails(kInvalid, HasSubstr("no device's name")));
  EXPECT_THAT(
      DeviceSet::Create({{"/job:a/task:0/cpu:0", 1}, {"/job:a/replica:0/task:0/device:CPU:0", 2}},
                        "/job:a/task:0/cpu:0"),
      Fails(kInvalid, HasSubstr("two devices")));
  EXPECT_THAT(DeviceSet::Create({{"/job:a/task:0/cpu:0", 1}}, "/job:a/task:1/cpu:0"),
              Fails(kInvalid, HasSubstr("is not among")));
  EXPECT_THAT(DeviceSet::Create({{"/job:a/task:0/gpu:0", 1}}, "/job:a/task:0/gpu:0"),
              Fails(kInvalid, HasSubstr("no host's device")));
  std::vector<std::pair<std::string, uint64_t>> types = {{"/job:a/task:0/cpu:0", 1}};
  for (int i = 0; i < 64; ++i)
    types.emplace_back(absl::StrCat("/job:a/task:0/device:T", i, ":0"), 1);
  EXPECT_THAT(DeviceSet::Create(types, "/job:a/task:0/cpu:0"),
              Fails(kInvalid, HasSubstr("65 types")));
}

// gRPC carries no more than about 8 KiB of an error.
TEST(DeviceSet, ListsALargeJobBriefly) {
  const std::string text = Devices(1000).ListText();
  EXPECT_LT(text.size(), 4096u);
  EXPECT_THAT(text, HasSubstr("and 936 more ]"));
}

}  // namespace
}  // namespace ferry::graph
