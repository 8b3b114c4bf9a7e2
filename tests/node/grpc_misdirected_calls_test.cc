// SPDX-License-Identifier: Apache-2.0
// Errors for clients that call a worker's port instead of the coordinator's.
#include "node/misdirected_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(MisdirectedCallText, ServiceOfTheCoordinator_NamesItsAddress) {
  for (const char* method :
       {"/tensorflow.MasterService/CreateSession", "/tensorflow.grpc.MasterService/RunStep",
        "/tensorflow.CoordinationService/RegisterTask",
        "/xla.coordination.CoordinationService/Heartbeat", "/xla.DistributedRuntimeService/Connect",
        "/ferry.v1.Control/Attach"}) {
    EXPECT_THAT(MisdirectedCallText(method, 1, "head:9470"),
                AllOf(HasSubstr("this is node 1's worker port"),
                      HasSubstr("at the coordinator, head:9470"), HasSubstr(method)))
        << method;
  }
  EXPECT_THAT(MisdirectedCallText("/tensorflow.MasterService/CreateSession", 1, "head:9470"),
              HasSubstr("sessions are opened at the coordinator, head:9470"));
  EXPECT_THAT(MisdirectedCallText("/tensorflow.MasterService/CreateSession", 1, ""),
              HasSubstr("sessions are opened at the coordinator ("));
}

TEST(MisdirectedCallText, AnotherMethod_IsNamed) {
  EXPECT_THAT(MisdirectedCallText("/tensorflow.eager.EagerService/CreateContext", 3, "head:9470"),
              AllOf(HasSubstr("node 3's worker port"), HasSubstr("no method"),
                    HasSubstr("EagerService"), Not(HasSubstr("head:9470"))));
}

}  // namespace
}  // namespace ferry
