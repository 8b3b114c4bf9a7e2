// SPDX-License-Identifier: Apache-2.0
// Steps that run in several parts.
#include "tensorflow/graph/partial_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tensorflow/graph/graph_fixture.h"

namespace ferry::graph {
namespace {

// x and y are fed; a = -x, b = a + y, c = -b, d waits for y.
class PartialRunTest : public ::testing::Test {
 protected:
  static StepGraph Step() {
    GraphWriter writer;
    writer.Placeholder("x");
    writer.Placeholder("y");
    writer.AddFloat("a", "Neg", {"x"});
    writer.AddFloat("b", "AddV2", {"a", "y"});
    writer.AddFloat("c", "Neg", {"b"});
    writer.AddFloat("d", "Neg", {"x", "^y"});
    writer.Const("unused");
    const Graph graph = *writer.Create();
    const DeviceSet devices = Devices(1);
    return *Prune(graph, *Place(graph, devices, {}), devices,
                  {{"x:0", "y", "unused"}, {"a:0", "b:0", "b", "c:0", "d"}, {}});
  }

  const std::shared_ptr<const StepGraph> step_ = std::make_shared<const StepGraph>(Step());
  PartialRun run_{step_};
};

// Runs of one step, of which there may be many, are small.
TEST_F(PartialRunTest, SharesTheGraph) {
  const PartialRun other(step_);
  EXPECT_EQ(step_.use_count(), 3);
}

TEST_F(PartialRunTest, FeedsAndFetchesInParts) {
  EXPECT_EQ(run_.Take({"x:0"}, {"a:0"}), absl::OkStatus());
  EXPECT_FALSE(run_.is_done());
  EXPECT_EQ(run_.Take({"y"}, {"c:0", "d"}), absl::OkStatus());
  EXPECT_EQ(run_.Take({}, {"b"}), absl::OkStatus());
  EXPECT_FALSE(run_.is_done());
  EXPECT_EQ(run_.Take({"unused"}, {}), absl::OkStatus());
  EXPECT_TRUE(run_.is_done());
}

TEST_F(PartialRunTest, RefusesFetchesThatLackFeeds) {
  EXPECT_THAT(
      run_.Take({"x:0"}, {"a:0", "c:0"}),
      Fails(kInvalid, "Fetch c:0 can't be computed from the feeds that have been fed so far."));
  // Nothing of that piece counts.
  EXPECT_EQ(run_.Take({"x:0"}, {"a:0"}), absl::OkStatus());
  // Waiting is as good as taking.
  EXPECT_THAT(run_.Take({}, {"d"}), Fails(kInvalid, ::testing::HasSubstr("Fetch d:0 can't be")));
  EXPECT_EQ(run_.Take({"y"}, {"c:0"}), absl::OkStatus());
}

// As in TensorFlow. Over the wire such a part is answered, too.
TEST_F(PartialRunTest, APartMayFetchATensorTwice) {
  EXPECT_EQ(run_.Take({"x:0"}, {"a:0", "a:0"}), absl::OkStatus());
  EXPECT_EQ(run_.Take({"y"}, {"b", "b:0", "c:0", "d"}), absl::OkStatus());
  EXPECT_FALSE(run_.is_done());
  EXPECT_EQ(run_.Take({"unused"}, {}), absl::OkStatus());
  EXPECT_TRUE(run_.is_done());
}

TEST_F(PartialRunTest, RefusesUnannouncedNames) {
  EXPECT_THAT(run_.Take({"a:0"}, {}),
              Fails(kInvalid, "The feed a:0 was not specified in partial_run_setup."));
  EXPECT_THAT(run_.Take({}, {"x:0"}),
              Fails(kInvalid, "The fetch x:0 was not specified in partial_run_setup."));
  // Neither was another spelling: its feed would not be found.
  EXPECT_THAT(run_.Take({"x"}, {"a:0"}),
              Fails(kInvalid, "The feed x was not specified in partial_run_setup."));
  EXPECT_THAT(run_.Take({"x:0"}, {"a"}),
              Fails(kInvalid, "The fetch a was not specified in partial_run_setup."));
}

TEST_F(PartialRunTest, RefusesRepeatedFeedsAndFetches) {
  EXPECT_THAT(run_.Take({"x:0", "x:0"}, {}), Fails(kInvalid, "The feed x:0 has already been fed."));
  EXPECT_EQ(run_.Take({"x:0"}, {"a:0"}), absl::OkStatus());
  EXPECT_THAT(run_.Take({"x:0"}, {}), Fails(kInvalid, "The feed x:0 has already been fed."));
  EXPECT_THAT(run_.Take({}, {"a:0"}), Fails(kInvalid, "The fetch a:0 has already been fetched."));
  // Under any of its names.
  EXPECT_EQ(run_.Take({"y"}, {"b:0"}), absl::OkStatus());
  EXPECT_THAT(run_.Take({}, {"b"}), Fails(kInvalid, "The fetch b has already been fetched."));
}

}  // namespace
}  // namespace ferry::graph
