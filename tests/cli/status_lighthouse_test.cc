// SPDX-License-Identifier: Apache-2.0
// The words of ferry status for torchft's quorums.
#include "cli/status_lighthouse.h"

#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

coord::ReplicaStatus Replica(std::string id, bool is_in_quorum) {
  return {.id = std::move(id), .step = 3, .is_in_quorum = is_in_quorum, .is_healthy = true};
}

TEST(LighthouseText, NoClientHasCalled_IsEmpty) {
  EXPECT_EQ(FormatLighthouseText(std::nullopt, 10), "");
}

TEST(LighthouseText, QuorumAndWhoWaitsForWhom) {
  coord::LighthouseStatus status{.quorum_id = 7,
                                 .quorum_size = 3,
                                 .quorum_age = absl::Seconds(8),
                                 .waits_for = "1 of 2 replicas; not joined: \"a\""};
  status.replicas = {Replica("a", true), Replica("b", true), Replica("c", true),
                     Replica("d", false), Replica("e", true)};
  status.replicas[1].has_joined = true;
  status.replicas[1].joined_for = absl::Seconds(2);
  status.replicas[2].is_healthy = false;
  status.replicas[2].heartbeat_age = absl::Seconds(9);
  status.replicas[4].is_healthy = false;
  status.replicas[4].heartbeat_age = absl::InfiniteDuration();
  status.replica_count = 5;
  EXPECT_EQ(FormatLighthouseText(status, 10),
            "\n  torchft lighthouse: quorum 7 of 3 replicas, formed 8s ago\n"
            "  no next quorum yet: 1 of 2 replicas; not joined: \"a\"\n"
            "  REPLICA  STEP  IN QUORUM  STATE\n"
            "  \"a\"      3     yes        running\n"
            "  \"b\"      3     yes        joined, waiting for 2s\n"
            "  \"c\"      3     yes        silent for 9s\n"
            "  \"d\"      3     no         not joined\n"
            "  \"e\"      3     yes        silent\n");
}

TEST(LighthouseText, NoQuorumSoFar) {
  coord::LighthouseStatus status;
  status.replicas = {Replica("a", false)};
  status.replica_count = 1;
  EXPECT_THAT(FormatLighthouseText(status, 10), HasSubstr("no quorum so far"));
}

TEST(LighthouseText, MoreReplicasThanLines_SilentMembersAreShown) {
  coord::LighthouseStatus status{.quorum_id = 7, .quorum_size = 2};
  status.replicas = {Replica("a", true), Replica("b", true), Replica("z", true)};
  status.replicas[2].is_healthy = false;
  status.replica_count = 40;
  const std::string text = FormatLighthouseText(status, 1);
  EXPECT_THAT(text, HasSubstr("\"z\""));
  EXPECT_THAT(text, Not(HasSubstr("\"a\"")));
  EXPECT_THAT(text, HasSubstr("and 39 more"));
}

}  // namespace
}  // namespace ferry::cli
