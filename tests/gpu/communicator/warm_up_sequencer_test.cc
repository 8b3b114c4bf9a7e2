// SPDX-License-Identifier: Apache-2.0
// Every order in which devices can reach the warm-up of communicators that share them.
#include "gpu/communicator/warm_up_sequencer.h"

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
  // The devices of each communicator.
  std::vector<std::vector<int>> communicators;
  WarmUpSequencer::Rules rules;
  // Whether the first communicator may be given up, at any moment after it has been initialised.
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
  size_t communicator = 0;
  // The communicator's.
  size_t rank = 0;
  size_t from = 0;
  // It need not happen.
  bool is_optional = false;
};

// One device's part in one communicator.
struct Part {
  std::unique_ptr<WarmUpSequencer::Place> place;
  std::map<size_t, uint64_t> on_event;
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
    for (const std::vector<int>& devices : options.communicators) {
      parts_.emplace_back(devices.size());
      for (const int device : devices) {
        if (!lines_.contains(device))
          lines_[device] = std::make_shared<WarmUpSequencer>(options.rules);
      }
    }
    is_dropped_.resize(parts_.size());
    for (const LineEvent& event : past) Apply(event);
  }

  std::vector<LineEvent> Enabled() const {
    std::vector<LineEvent> events;
    for (size_t communicator = 0; communicator < parts_.size(); ++communicator) {
      const std::vector<Part>& parts = parts_[communicator];
      bool is_moving = true;
      for (size_t rank = 0; rank < parts.size(); ++rank) is_moving &= Runs(communicator, rank);
      for (size_t rank = 0; rank < parts.size(); ++rank) {
        const Part& part = parts[rank];
        if (part.is_over) continue;
        if (part.number == 0) {
          events.push_back({Happening::kJoin, communicator, rank});
          continue;
        }
        for (size_t from = 0; from < parts.size(); ++from) {
          if (from != rank && parts[from].number != 0 && !part.on_event.contains(from)) {
            events.push_back({Happening::kHear, communicator, rank, from});
          }
        }
        const bool may_begin = part.is_agreed || !options_.rules.agrees;
        if (may_begin && !part.has_begun && part.place->is_first()) {
          events.push_back({Happening::kBegin, communicator, rank});
        }
        if (is_moving) events.push_back({Happening::kOver, communicator, rank});
        if (is_dropped_[communicator]) {
          events.push_back({Happening::kDrop, communicator, rank});
        } else if (options_.first_may_fail && communicator == 0) {
          events.push_back({Happening::kDrop, communicator, rank, 0, true});
        }
      }
    }
    return events;
  }

  void Apply(const LineEvent& event) {
    std::vector<Part>& parts = parts_[event.communicator];
    Part& part = parts[event.rank];
    const int device = options_.communicators[event.communicator][event.rank];
    switch (event.happening) {
      case Happening::kJoin:
        part.place = lines_[device]->Join(absl::StrCat("communicator ", event.communicator),
                                          absl::StrCat("communicator ", event.communicator));
        part.number = part.place->number();
        part.on_event[event.rank] = part.number;
        break;
      case Happening::kHear:
        part.on_event[event.from] = parts[event.from].number;
        break;
      case Happening::kBegin:
        part.has_begun = true;
        queues_[device].push_back(event.communicator);
        return;
      case Happening::kDrop:
        is_dropped_[event.communicator] = true;
        [[fallthrough]];
      case Happening::kOver:
        part.place = nullptr;
        part.is_over = true;
        std::erase(queues_[device], event.communicator);
        return;
    }
    const bool is_alone = !options_.rules.agrees;
    if (part.is_agreed || (part.on_event.size() < parts.size() && !is_alone)) return;
    part.is_agreed = true;
    uint64_t largest = 0;
    for (const auto& [rank, number] : part.on_event) largest = std::max(largest, number);
    part.place->Agree(largest);
  }

  // REQUIRES: nothing has to happen any more.
  std::string CheckEnd() const {
    std::string waiting;
    for (size_t communicator = 0; communicator < parts_.size(); ++communicator) {
      for (size_t rank = 0; rank < parts_[communicator].size(); ++rank) {
        const Part& part = parts_[communicator][rank];
        if (part.is_over) continue;
        absl::StrAppend(&waiting, "communicator ", communicator, " waits on device ",
                        options_.communicators[communicator][rank],
                        part.has_begun ? ", begun; " : "; ");
      }
    }
    return waiting;
  }

  size_t Hash() const {
    size_t hash = absl::HashOf(is_dropped_, queues_);
    for (const std::vector<Part>& parts : parts_) {
      for (const Part& part : parts) {
        hash = absl::HashOf(hash, part.number, part.on_event, part.is_agreed, part.has_begun,
                            part.is_over);
      }
    }
    return hash;
  }

 private:
  // Whether its kernel is the one that the device runs, or has run: they run in the order of their
  // launch.
  bool Runs(size_t communicator, size_t rank) const {
    const Part& part = parts_[communicator][rank];
    if (part.is_over || !part.has_begun) return part.has_begun;
    return queues_.at(options_.communicators[communicator][rank]).front() == communicator;
  }

  const LineWorldOptions options_;
  std::map<int, std::shared_ptr<WarmUpSequencer>> lines_;
  // Launched on each device and not over.
  std::map<int, std::deque<size_t>> queues_;
  // By communicator and rank.
  std::vector<std::vector<Part>> parts_;
  std::vector<bool> is_dropped_;
};

std::string DescribeEvent(const LineWorldOptions& options, const LineEvent& event) {
  const char* const names[] = {"joins", "hears another one's number", "begins", "is through",
                               "drops it"};
  return absl::StrCat("communicator ", event.communicator, ": device ",
                      options.communicators[event.communicator][event.rank], " ",
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

TEST(WarmUpSequencer, CommunicatorsOfTheSameDevicesAllEnd) {
  EXPECT_EQ(SearchLines({.communicators = kTwins}), "");
  EXPECT_EQ(SearchLines({.communicators = kTriplets}), "");
}

TEST(WarmUpSequencer, OverlappingCommunicatorsAllEnd) {
  EXPECT_EQ(SearchLines({.communicators = kCircle}), "");
  EXPECT_EQ(SearchLines({.communicators = kAllAndSome}), "");
}

TEST(WarmUpSequencer, CommunicatorsEndAlthoughOneIsGivenUpAtAnyMoment) {
  EXPECT_EQ(SearchLines({.communicators = kTwins, .first_may_fail = true}), "");
  EXPECT_EQ(SearchLines({.communicators = kCircle, .first_may_fail = true}), "");
}

TEST(WarmUpSequencer, WithoutAgreementTheyWaitForEachOther) {
  const std::string stuck = SearchLines({.communicators = kTwins, .rules = {.agrees = false}});
  EXPECT_THAT(stuck, HasSubstr("communicator 0 waits on device 0, begun"));
  EXPECT_THAT(stuck, HasSubstr("communicator 1 waits on device 1, begun"));
}

// The warm-ups of three devices in a circle: one that is second on one device would be first on the
// others.
TEST(WarmUpSequencer, WithoutMemoryThreeWaitForEachOther) {
  std::string stuck;
  std::vector<std::vector<int>> communicators = kCircle;
  std::sort(communicators.begin(), communicators.end());
  do {
    stuck = SearchLines({.communicators = communicators, .rules = {.remembers_agreed = false}});
  } while (stuck.empty() && std::next_permutation(communicators.begin(), communicators.end()));
  EXPECT_THAT(stuck, HasSubstr("begun"));
}

TEST(WarmUpSequencer, ReportsTheFirst) {
  const auto line = std::make_shared<WarmUpSequencer>();
  auto first = line->Join("a", "the communicator of devices 0,1");
  const auto second = line->Join("b", "the communicator of devices 0,2");
  second->Agree(7);
  EXPECT_FALSE(second->is_first());
  EXPECT_EQ(second->DescribeFirst(),
            "the warm-up of the communicator of devices 0,1, which is initialised, but not by all "
            "of its ranks");
  first->Agree(3);
  EXPECT_TRUE(first->is_first());
  EXPECT_EQ(first->DescribeFirst(), "nothing");
  EXPECT_EQ(second->DescribeFirst(),
            "the warm-up of the communicator of devices 0,1, which is under way");
  first = nullptr;
  EXPECT_TRUE(second->is_first());
  EXPECT_EQ(line->Join("c", "another")->number(), 8u) << "after all that it has heard of";
}

}  // namespace
}  // namespace ferry
