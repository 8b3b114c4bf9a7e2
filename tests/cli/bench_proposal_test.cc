// SPDX-License-Identifier: Apache-2.0
// The participants of a bench in a job, their agreement, and their results.
#include <cstdlib>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/lines.h"
#include "bench/offer.h"
#include "tests/support/peer_record_rules.h"

namespace ferry::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

BenchProposal OfferOf(int node, const BenchPlan& plan) {
  return {.node = node,
          .incarnation = 0xfedcba9876543210u + static_cast<uint64_t>(node),
          .version = "1.2",
          .flags = FlagsOfPlan(plan, "auto", {0, 1, 2})};
}

BenchPlan Plan() {
  BenchPlan plan;
  plan.pattern = "ring";
  plan.sizes = {8, 65536};
  plan.modes = {BenchMode::kHandoff, BenchMode::kInto};
  return plan;
}

TEST(BenchProposal, RoundTrips) {
  BenchProposal offer = OfferOf(7, Plan());
  offer.flags.emplace_back("", std::string("a\0\xff", 3));
  const absl::StatusOr<BenchProposal> read = DecodeBenchOffer(EncodeBenchOffer(offer), 7);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, offer);
}

TEST(BenchProposal, FollowsTheRulesOfRecords) {
  ExpectRules(
      {.kind = "bench proposal",
       .key = "ferry-bench/offers/3",
       .bytes = EncodeBenchOffer(OfferOf(3, Plan())),
       .decode = [](absl::string_view bytes) { return DecodeBenchOffer(bytes, 3).status(); }});
}

TEST(BenchProposal, OutsideItsBounds_IsRefused) {
  using Record = peer::v1::BenchProposal;
  const std::pair<void (*)(Record&), const char*> kBad[] = {
      {[](Record& record) { record.clear_node_id(); }, "does not say whose it is"},
      {[](Record& record) { record.clear_incarnation(); }, "does not say whose it is"},
      {[](Record& record) {
         while (record.flags_size() < 257) record.add_flags();
       },
       "257 flags, over the limit of 256"},
  };
  for (const auto& [change, why] : kBad) {
    Record record;
    ASSERT_TRUE(record.ParseFromString(EncodeBenchOffer(OfferOf(3, Plan()))));
    change(record);
    const absl::Status status = DecodeBenchOffer(record.SerializeAsString(), 3).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }
}

TEST(BenchProposal, NamesBothThatDiffer) {
  const BenchProposal one = OfferOf(0, Plan());
  EXPECT_TRUE(CheckSameOffer(one, OfferOf(1, Plan())).ok());
  BenchPlan plan = Plan();
  plan.sizes = {8};
  absl::Status status = CheckSameOffer(one, OfferOf(3, plan));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("node 0 has --sizes=8,65536 and node 3 has --sizes=8:"));
  BenchProposal other = OfferOf(3, Plan());
  other.version = "1.3";
  EXPECT_THAT(std::string(CheckSameOffer(one, other).message()),
              HasSubstr("node 0 is of ferry 1.2 and node 3 of ferry 1.3"));
  other = OfferOf(3, Plan());
  other.flags.emplace_back("--new", "5");
  EXPECT_THAT(std::string(CheckSameOffer(one, other).message()), HasSubstr("--new=5"));
  EXPECT_THAT(std::string(CheckSameOffer(other, one).message()), HasSubstr("--new=5"));
}

// Each flag that changes the measurement is compared.
TEST(BenchProposal, ContainsAllThatIsMeasured) {
  const auto differs = [](void (*change)(BenchPlan&)) {
    BenchPlan plan = Plan();
    change(plan);
    return !CheckSameOffer(OfferOf(0, Plan()), OfferOf(1, plan)).ok();
  };
  EXPECT_TRUE(differs([](BenchPlan& plan) { plan.pattern = "fan-in"; }));
  EXPECT_TRUE(differs([](BenchPlan& plan) { plan.modes.pop_back(); }));
  EXPECT_TRUE(differs([](BenchPlan& plan) { plan.iterations = 5; }));
  EXPECT_TRUE(differs([](BenchPlan& plan) { plan.inflight = 5; }));
  EXPECT_TRUE(differs([](BenchPlan& plan) { plan.keys = 5; }));
  EXPECT_TRUE(differs([](BenchPlan& plan) { plan.threads = 5; }));
  EXPECT_TRUE(differs([](BenchPlan& plan) { plan.batch = 5; }));
  EXPECT_TRUE(differs([](BenchPlan& plan) { plan.is_polling = true; }));
  EXPECT_NE(FlagsOfPlan(Plan(), "tcp", {0, 1}), FlagsOfPlan(Plan(), "shm", {0, 1}));
  EXPECT_NE(FlagsOfPlan(Plan(), "tcp", {0, 1}), FlagsOfPlan(Plan(), "tcp", {0, 2}));
}

TEST(BenchProposal, OfAllNodesOrSome) {
  EXPECT_THAT(*NodesOfBench("ring", "", 3, 1, 0), ElementsAre(0, 1, 2));
  EXPECT_THAT(*NodesOfBench("ring", "0,2-3", 8, 3, 0), ElementsAre(0, 2, 3));
  EXPECT_THAT(*NodesOfBench("bidir", "4,7", 8, 7, 2), ElementsAre(4, 7));
  const auto error = [](const char* among, int job_nodes, int own, int needed) {
    const absl::Status status = NodesOfBench("ring", among, job_nodes, own, needed).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(error("", 4, 0, 2), HasSubstr("of 2 nodes, and not of the 4 of the job"));
  EXPECT_THAT(error("0-2", 4, 0, 2), HasSubstr("not of the 3 of --node-list"));
  EXPECT_THAT(error("", 1, 0, 0), HasSubstr("2 to 64 nodes, and not of 1"));
  EXPECT_THAT(error("", 65, 0, 0), HasSubstr("not of 65"));
  EXPECT_THAT(error("0,4", 4, 0, 0), HasSubstr("a job of 4"));
  EXPECT_THAT(error("one", 4, 0, 0), HasSubstr("--node-list: \"one\""));
  EXPECT_THAT(error("0-2", 4, 3, 0), HasSubstr("node 3 is not one of the nodes 0-2"));
}

TEST(BenchProposal, HasItsOwnSteps) {
  constexpr int64_t kSteps = int64_t{1} << 28;
  for (const uint64_t run : {uint64_t{0}, uint64_t{1}, uint64_t{0xffffffffffffffff}}) {
    EXPECT_GE(FirstStepOfBench(run), int64_t{1} << 62);
    EXPECT_GT(FirstStepOfBench(run) + kSteps - 1, 0);
    EXPECT_GE(std::abs(FirstStepOfBench(run) - FirstStepOfBench(run + 1)), kSteps);
  }
}

TEST(BenchLines, KeepTheirOrder) {
  KeptBenchLines lines({{{{"event", "spin"}, {"n", 1}}, {{"event", "spin"}, {"n", 2}}},
                        {{{"event", "case"}}, Json(Json::value_t::discarded)}});
  const absl::StatusOr<std::vector<Json>> first = lines.Expect("spin");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ((*first)[1]["n"], 2);
  EXPECT_THAT(std::string(lines.Expect("case").status().message()), HasSubstr("process 1 told"));
  EXPECT_THAT(std::string(lines.Expect("case").status().message()),
              HasSubstr("no result received for"));
}

}  // namespace
}  // namespace ferry::cli
