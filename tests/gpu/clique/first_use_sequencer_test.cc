// SPDX-License-Identifier: Apache-2.0
// Every order in which devices can reach the first exchanges of communicators that share them.
#include "gpu/clique/first_use_sequencer.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include <gmock/gmock.h>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"

namespace ferry {
namespace {

using testing::HasSubstr;

struct LineWorldOptions {
  // The devices of each clique.
  std::vector<std::vector<int>> cliques;
  FirstUseSequencer::Rules rules;
  // Whether the first clique may be given up, at any moment after it has been initialised.
  bool first_may_fail = false;
};

enum class Happening {
  kJoin,   // the device has initialised the communicator, and sends its number to the others
  kHear,   // it receives the number of another one
  kBegin,  // it is first, and its kernel is launched
  kOver,   // all have launched, and it has seen the end
  kDrop,   // it is given up, or another rank has given it up
};

struct LineEvent {
  Happening happening = Happening::kJoin;
  size_t clique = 0;
  // The communicator's.
  size_t rank = 0;
  size_t from = 0;
  // It need not happen.
  bool is_optional = false;
};

// One device's part in one clique.
struct Part {
  std::unique_ptr<FirstUseSequencer::Place> place;
  std::map<size_t, uint64_t> heard;
  bool is_agreed = false;
  bool has_begun = false;
  bool is_over = false;
  uint64_t number = 0;
};

// Nothing in it moves but by Apply.
class LineWorld final {
 public:
  LineWorld(const LineWorldOptions& options, const std::vector<LineEvent>& past)
      : options_(options) {
    for (const std::vector<int>& devices : options.cliques) {
      parts_.emplace_back(devices.size());
      for (const int device : devices) {
        if (!lines_.contains(device))
          lines_[device] = std::make_shared<FirstUseSequencer>(options.rules);
      }
    }
    is_dropped_.resize(parts_.size());
    for (const LineEvent& event : past) Apply(event);
  }

  std::vector<LineEvent> Enabled() const {
    std::vector<LineEvent> events;
    for (size_t clique = 0; clique < parts_.size(); ++clique) {
      const std::vector<Part>& parts = parts_[clique];
      bool is_moving = true;
      for (size_t rank = 0; rank < parts.size(); ++rank) is_moving &= Runs(clique, rank);
      for (size_t rank = 0; rank < parts.size(); ++rank) {
        const Part& part = parts[rank];
        if (part.is_over) continue;
        if (part.number == 0) {
          events.push_back({Happening::kJoin, clique, rank});
          continue;
        }
        for (size_t from = 0; from < parts.size(); ++from) {
          if (from != rank && parts[from].number != 0 && !part.heard.contains(from)) {
            events.push_back({Happening::kHear, clique, rank, from});
          }
        }
        const bool may_begin = part.is_agreed || !options_.rules.agrees;
        if (may_begin && !part.has_begun && part.place->is_first()) {
          events.push_back({Happening::kBegin, clique, rank});
        }
        if (is_moving) events.push_back({Happening::kOver, clique, rank});
        if (is_dropped_[clique]) {
          events.push_back({Happening::kDrop, clique, rank});
        } else if (options_.first_may_fail && clique == 0) {
          events.push_back({Happening::kDrop, clique, rank, 0, true});
        }
      }
    }
    return events;
  }

  void Apply(const LineEvent& event) {
    std::vector<Part>& parts = parts_[event.clique];
    Part& part = parts[event.rank];
    const int device = options_.cliques[event.clique][event.rank];
    switch (event.happening) {
      case Happening::kJoin:
        part.place = lines_[device]->Join(absl::StrCat("clique ", event.clique),
                                          absl::StrCat("clique ", event.clique));
        part.number = part.place->number();
        part.heard[event.rank] = part.number;
        break;
      case Happening::kHear:
        part.heard[event.from] = parts[event.from].number;
        break;
      case Happening::kBegin:
        part.has_begun = true;
        queues_[device].push_back(event.clique);
        return;
      case Happening::kDrop:
        is_dropped_[event.clique] = true;
        [[fallthrough]];
      case Happening::kOver:
        part.place = nullptr;
        part.is_over = true;
        std::erase(queues_[device], event.clique);
        return;
    }
    const bool is_alone = !options_.rules.agrees;
    if (part.is_agreed || (part.heard.size() < parts.size() && !is_alone)) return;
    part.is_agreed = true;
    uint64_t largest = 0;
    for (const auto& [rank, number] : part.heard) largest = std::max(largest, number);
    part.place->Agree(largest);
  }

  // REQUIRES: nothing has to happen any more.
  std::string CheckEnd() const {
    std::string waiting;
    for (size_t clique = 0; clique < parts_.size(); ++clique) {
      for (size_t rank = 0; rank < parts_[clique].size(); ++rank) {
        const Part& part = parts_[clique][rank];
        if (part.is_over) continue;
        absl::StrAppend(&waiting, "clique ", clique, " waits on device ",
                        options_.cliques[clique][rank], part.has_begun ? ", begun; " : "; ");
      }
    }
    return waiting;
  }

  size_t Hash() const {
    size_t hash = absl::HashOf(is_dropped_, queues_);
    for (const std::vector<Part>& parts : parts_) {
      for (const Part& part : parts) {
        hash = absl::HashOf(hash, part.number, part.heard, part.is_agreed, part.has_begun,
                            part.is_over);
      }
    }
    return hash;
  }

 private:
  // Whether its kernel is the one that the device runs, or has run: they run in the order of their
  // launch.
  bool Runs(size_t clique, size_t rank) const {
    const Part& part = parts_[clique][rank];
    if (part.is_over || !part.has_begun) return part.has_begun;
    return queues_.at(options_.cliques[clique][rank]).front() == clique;
  }

  const LineWorldOptions options_;
  std::map<int, std::shared_ptr<FirstUseSequencer>> lines_;
  // Launched on each device and not over.
  std::map<int, std::deque<size_t>> queues_;
  // By clique and rank.
  std::vector<std::vector<Part>> parts_;
  std::vector<bool> is_dropped_;
};

std::string DescribeEvent(const LineWorldOptions& options, const LineEvent& event) {
  const char* const names[] = {"joins", "hears another one's number", "begins", "is through",
                               "drops it"};
  return absl::StrCat("clique ", event.clique, ": device ",
                      options.cliques[event.clique][event.rank], " ",
                      names[static_cast<int>(event.happening)]);
}

// Visits every state that can be reached, nearest first; the first that is stuck, with its trace.
std::string SearchLines(const LineWorldOptions& options) {
  absl::flat_hash_set<size_t> seen;
  std::deque<std::vector<LineEvent>> open = {{}};
  while (!open.empty()) {
    const std::vector<LineEvent> past = std::move(open.front());
    open.pop_front();
    const LineWorld world(options, past);
    bool has_to_go_on = false;
    for (const LineEvent& event : world.Enabled()) {
      has_to_go_on |= !event.is_optional;
      std::vector<LineEvent> longer = past;
      longer.push_back(event);
      if (seen.insert(LineWorld(options, longer).Hash()).second) open.push_back(std::move(longer));
    }
    if (has_to_go_on) continue;
    if (std::string stuck = world.CheckEnd(); !stuck.empty()) {
      for (const LineEvent& event : past)
        absl::StrAppend(&stuck, "\n  ", DescribeEvent(options, event));
      return stuck;
    }
  }
  std::printf("%zu states\n", seen.size());
  return "";
}

const std::vector<std::vector<int>> kTwins = {{0, 1}, {1, 0}};
const std::vector<std::vector<int>> kTriplets = {{0, 1}, {0, 1}, {1, 0}};
const std::vector<std::vector<int>> kCircle = {{0, 1}, {1, 2}, {2, 0}};
const std::vector<std::vector<int>> kAllAndSome = {{0, 1, 2}, {0, 1}, {2}};

TEST(FirstUseSequencer, CommunicatorsOfTheSameDevicesAllEnd) {
  EXPECT_EQ(SearchLines({.cliques = kTwins}), "");
  EXPECT_EQ(SearchLines({.cliques = kTriplets}), "");
}

TEST(FirstUseSequencer, OverlappingCommunicatorsAllEnd) {
  EXPECT_EQ(SearchLines({.cliques = kCircle}), "");
  EXPECT_EQ(SearchLines({.cliques = kAllAndSome}), "");
}

TEST(FirstUseSequencer, CommunicatorsEndAlthoughOneIsGivenUpAtAnyMoment) {
  EXPECT_EQ(SearchLines({.cliques = kTwins, .first_may_fail = true}), "");
  EXPECT_EQ(SearchLines({.cliques = kCircle, .first_may_fail = true}), "");
}

TEST(FirstUseSequencer, WithoutAgreementTheyWaitForEachOther) {
  const std::string stuck = SearchLines({.cliques = kTwins, .rules = {.agrees = false}});
  EXPECT_THAT(stuck, HasSubstr("clique 0 waits on device 0, begun"));
  EXPECT_THAT(stuck, HasSubstr("clique 1 waits on device 1, begun"));
}

// The exchanges of three devices in a circle: one that is second on one device would be first on
// the others.
TEST(FirstUseSequencer, WithoutMemoryThreeWaitForEachOther) {
  std::string stuck;
  std::vector<std::vector<int>> cliques = kCircle;
  std::sort(cliques.begin(), cliques.end());
  do {
    stuck = SearchLines({.cliques = cliques, .rules = {.remembers_agreed = false}});
  } while (stuck.empty() && std::next_permutation(cliques.begin(), cliques.end()));
  EXPECT_THAT(stuck, HasSubstr("begun"));
}

TEST(FirstUseSequencer, ReportsTheFirst) {
  const auto line = std::make_shared<FirstUseSequencer>();
  auto first = line->Join("a", "the clique of devices 0,1");
  const auto second = line->Join("b", "the clique of devices 0,2");
  second->Agree(7);
  EXPECT_FALSE(second->is_first());
  EXPECT_EQ(second->WhatIsFirst(),
            "the first exchange of the clique of devices 0,1, which is initialised, but not by all "
            "of its ranks");
  first->Agree(3);
  EXPECT_TRUE(first->is_first());
  EXPECT_EQ(first->WhatIsFirst(), "nothing");
  EXPECT_EQ(second->WhatIsFirst(),
            "the first exchange of the clique of devices 0,1, which is under way");
  first = nullptr;
  EXPECT_TRUE(second->is_first());
  EXPECT_EQ(line->Join("c", "another")->number(), 8u) << "after all that it has heard of";
}

}  // namespace
}  // namespace ferry
