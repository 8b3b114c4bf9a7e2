// SPDX-License-Identifier: Apache-2.0
// The reductions of the search lose no outcome: the same results come out without them.
#include "tests/transport/nccl/grant_choices.h"

namespace ferry::grant_test {
namespace {

constexpr Reductions kNone = {false, false, false};

std::vector<std::string> Ends(const SearchResult& result) {
  std::vector<std::string> ends;
  for (const auto& [end, count] : result.ends) ends.push_back(end);
  return ends;
}

// All of them together, and each by itself.
void ExpectTheSameEnds(const std::vector<std::vector<BatchAgreementTransfer>>& choices,
                       WorldOptions options) {
  int64_t whole_states = 0;
  int64_t states = 0;
  for (const std::vector<BatchAgreementTransfer>& choice : choices) {
    options.transfers = choice;
    options.reductions = kNone;
    const SearchResult whole = Search(options, kMaxStates);
    ASSERT_EQ(whole.violation, "") << absl::StrJoin(whole.trace, "\n");
    ASSERT_TRUE(whole.is_complete);
    whole_states += whole.states;
    int64_t least = whole.states;
    for (const Reductions& reductions :
         {Reductions(), Reductions{true, false, false}, Reductions{false, true, false},
          Reductions{false, false, true}}) {
      options.reductions = reductions;
      const SearchResult reduced = Search(options, kMaxStates);
      EXPECT_EQ(reduced.violation, "");
      EXPECT_TRUE(reduced.is_complete);
      EXPECT_LE(reduced.states, whole.states);
      EXPECT_EQ(Ends(reduced), Ends(whole));
      // Independent events alone skip executions, and none of their outcomes.
      if (!reductions.equal_transfers && !reductions.forgets_ends) {
        EXPECT_EQ(reduced.end_states, whole.end_states);
      }
      least = std::min(least, reduced.states);
    }
    states += least;
  }
  EXPECT_LT(states, whole_states);
  std::printf("%zu worlds, %lld states instead of %lld\n", choices.size(),
              static_cast<long long>(states), static_cast<long long>(whole_states));
}

TEST(GrantReductions, NothingFails) { ExpectTheSameEnds(EveryChoice(3), {}); }

TEST(GrantReductions, OneIsCancelled) {
  WorldOptions options;
  options.cancels = 1;
  ExpectTheSameEnds(EveryChoice(2), options);
}

TEST(GrantReductions, OneDeviceDies) {
  for (const bool has_pair_communicators : {false, true}) {
    WorldOptions options;
    options.deaths = 1;
    options.has_pair_communicators = has_pair_communicators;
    ExpectTheSameEnds(EveryChoice(2), options);
  }
}

TEST(GrantReductions, NcclFailsAndTheyRunAgain) {
  for (const bool runs_again : {false, true}) {
    WorldOptions options;
    options.errors = 1;
    options.has_pair_communicators = true;
    options.runs_again = runs_again;
    ExpectTheSameEnds(EveryChoice(2), options);
  }
}

TEST(GrantReductions, ADeviceBecomesQuiet) {
  WorldOptions options;
  options.pauses = 1;
  ExpectTheSameEnds(EveryChoice(2), options);
}

TEST(GrantReductions, ADeviceCannotOpenItsCommunicator) {
  WorldOptions options;
  options.failed_opens = 1;
  options.has_pair_communicators = true;
  options.runs_again = true;
  ExpectTheSameEnds(EveryChoice(1), options);
}

TEST(GrantReductions, FourTransfersInACircle) {
  ExpectTheSameEnds(ACircleAndBack(), {});
  WorldOptions options;
  options.cancels = 1;
  ExpectTheSameEnds(ACircleAndBack(), options);
}

// A circle with one direction of it used twice.
TEST(GrantReductions, FourTransfersTwoTogetherAndOneDeviceDies) {
  const std::vector<std::vector<BatchAgreementTransfer>> choices = {
      {{{DeviceId(0), DeviceId(1), 1}, 100},
       {{DeviceId(0), DeviceId(1), 2}, 101},
       {{DeviceId(1), DeviceId(2), 3}, 102},
       {{DeviceId(2), DeviceId(0), 4}, 103}}};
  WorldOptions options;
  options.deaths = 1;
  options.has_pair_communicators = true;
  ExpectTheSameEnds(choices, options);
}

}  // namespace
}  // namespace ferry::grant_test
