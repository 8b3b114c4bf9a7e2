// SPDX-License-Identifier: Apache-2.0
// Every execution of a bootstrap with failures: all ranks end with one communicator.
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <set>

#include <gmock/gmock.h>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "gpu/communicator/communicator_bootstrap.h"

namespace ferry {
namespace {

struct WorldOptions {
  int ranks = 2;
  // How often each may happen, at any point: NCCL fails on a rank; a rank that is Ready releases
  // its communicator, and makes the next one.
  int failures = 0;
  int retirements = 0;
  // NCCL never fails on ranks below.
  int lowest_failing = 0;
  // The warm-up waits for the numbers of all ranks.
  bool agrees_on_order = false;
  // Whether a rank that is Ready releases its communicator when another rank has given the
  // generation up.
  bool lets_go = true;
};

struct Event {
  enum class Kind {
    kStore,   // executes a plan's request
    kHear,    // a plan is notified by the store
    kFinish,  // NCCL has initialised, or the warm-up is over
    kFail,    // it has not
    kLetGo,   // a plan is retired, and the rank starts again
  };
  Kind kind = Kind::kStore;
  // The plan's.
  size_t life = 0;
  // It need not happen.
  bool is_optional = false;
};

// A rank's plan, with its own queues to the store and back.
struct Life final : BootstrapStore, BootstrapActions {
  struct Command {
    enum class Kind { kWatch, kSet, kCompareAndSet, kDelete } kind;
    std::string key;
    std::optional<std::string> expected;
    std::string value;
  };

  void Watch(absl::string_view prefix) override {
    commands.push_back({Command::Kind::kWatch, std::string(prefix), {}, ""});
  }
  void Set(absl::string_view key, std::string value) override {
    commands.push_back({Command::Kind::kSet, std::string(key), {}, std::move(value)});
  }
  void CompareAndSet(absl::string_view key, std::optional<std::string> expected,
                     std::string desired) override {
    commands.push_back(
        {Command::Kind::kCompareAndSet, std::string(key), std::move(expected), std::move(desired)});
  }
  void DeletePrefix(absl::string_view prefix) override {
    commands.push_back({Command::Kind::kDelete, std::string(prefix), {}, ""});
  }

  absl::StatusOr<std::vector<std::string>> CreateUniqueIds(int count) override {
    // No two of the world are equal.
    ++id_sets_created;
    return std::vector<std::string>(
        static_cast<size_t>(count),
        std::string(kNcclUniqueIdBytes, static_cast<char>(32 + 8 * index + id_sets_created)));
  }
  absl::StatusOr<std::string> CreateGrowId() override {
    return absl::UnimplementedError("nothing is grown here");
  }
  void Initialise(uint32_t generation, CommunicatorWay,
                  const std::vector<std::string>& ids) override {
    begun = {generation, ids.front()};
    has_begun = true;
  }
  std::optional<uint64_t> ProposeSequenceNumber(uint32_t generation) override {
    return agrees_on_order ? std::optional<uint64_t>(rank + 1) : std::nullopt;
  }
  void WarmUp(uint32_t generation, uint64_t number) override {
    agreed = number;
    has_warmed = true;
  }
  std::string DescribeWarmUp() const override { return "the warm-up"; }
  void OnAbandoned(uint32_t generation, const absl::Status& why) override { ++given_up; }
  void Discard(uint32_t generation, const absl::Status& why) override { discarded = true; }
  void OnEnded(const absl::Status& status) override { ++ended; }

  size_t index = 0;
  int rank = 0;
  bool agrees_on_order = false;
  // The order of the warm-up; 0: none.
  uint64_t agreed = 0;
  std::unique_ptr<CommunicatorBootstrap> bootstrap;
  std::deque<Command> commands;
  bool is_watching = false;
  // Without a key: that is all that was there.
  std::deque<std::pair<std::string, std::string>> news;
  // All notifications of the plan: its state follows from them.
  std::string history;
  bool is_over = false;
  int id_sets_created = 0;
  int given_up = 0;
  int ended = 0;
  // The effects of the last call.
  bool has_begun = false;
  bool has_warmed = false;
  bool discarded = false;
  std::pair<uint32_t, std::string> begun;
};

// Nothing in it moves but by Apply.
class World final {
 public:
  World(const WorldOptions& options, const std::vector<Event>& past) : options_(options) {
    std::vector<CommunicatorMember> members;
    for (int rank = 0; rank < options.ranks; ++rank) members.push_back({10 + rank, 0x1000});
    key_ = *CommunicatorKey::Create(std::move(members));
    for (int rank = 0; rank < options.ranks; ++rank) Begin(rank);
    for (const Event& event : past) Apply(event);
  }

  std::vector<Event> Enabled() const {
    std::vector<Event> events;
    for (const std::unique_ptr<Life>& life : lives_) {
      const size_t i = life->index;
      if (!life->commands.empty()) events.push_back({Event::Kind::kStore, i});
      if (life->is_over) continue;
      if (!life->news.empty()) events.push_back({Event::Kind::kHear, i});
      const BootstrapState state = life->bootstrap->state();
      if (state == BootstrapState::kInitialising || state == BootstrapState::kWarmingUp) {
        const auto left = left_.find(life->begun);
        const bool is_warm_up = options_.agrees_on_order && state == BootstrapState::kWarmingUp;
        const auto& there = is_warm_up ? warming_up_ : came_;
        const auto came = there.find(life->begun);
        const bool all_came = came != there.end() && came->second.size() == Count();
        // NCCL may or may not be through on one side when the other one leaves.
        if (all_came) events.push_back({Event::Kind::kFinish, i, left != left_.end()});
        const bool may_fail = life->rank >= options_.lowest_failing;
        if (may_fail && failures_ < options_.failures)
          events.push_back({Event::Kind::kFail, i, true});
      }
      if (state == BootstrapState::kReady) {
        if (life->given_up > 0 && options_.lets_go) {
          events.push_back({Event::Kind::kLetGo, i});
        } else if (retirements_ < options_.retirements) {
          events.push_back({Event::Kind::kLetGo, i, true});
        }
      }
    }
    return events;
  }

  void Apply(const Event& event) {
    Life& life = *lives_[event.life];
    const std::pair<uint32_t, std::string> before = life.begun;
    switch (event.kind) {
      case Event::Kind::kStore: {
        const Life::Command command = life.commands.front();
        life.commands.pop_front();
        return Do(life, command);
      }
      case Event::Kind::kHear: {
        const auto [key, value] = life.news.front();
        life.news.pop_front();
        absl::StrAppend(&life.history, key, "=", value, ";");
        key.empty() ? life.bootstrap->OnWatching() : life.bootstrap->OnEntry(key, value);
        break;
      }
      case Event::Kind::kFinish:
      case Event::Kind::kFail: {
        const bool is_ok = event.kind == Event::Kind::kFinish;
        if (!is_ok) ++failures_;
        absl::StrAppend(&life.history, is_ok ? "ok;" : "fails;");
        const absl::Status status = is_ok ? absl::OkStatus() : absl::InternalError("no route");
        if (life.bootstrap->state() == BootstrapState::kInitialising) {
          life.bootstrap->OnInitialised(life.bootstrap->generation(), status);
        } else {
          life.bootstrap->OnWarmedUp(life.bootstrap->generation(), status);
        }
        break;
      }
      case Event::Kind::kLetGo:
        if (event.is_optional) ++retirements_;
        life.bootstrap->Retire(absl::CancelledError("not wanted"));
        life.is_over = true;
        break;
    }
    if (std::exchange(life.discarded, false)) left_.insert(before);
    if (std::exchange(life.has_begun, false)) {
      if (!came_[life.begun].insert(life.rank).second) violation_ = "an id is used twice";
      for (const auto& [other, ranks] : came_) {
        if (other.first == life.begun.first && other.second != life.begun.second) {
          violation_ = "two ids of one generation";
        }
      }
    }
    if (std::exchange(life.has_warmed, false)) warming_up_[life.begun].insert(life.rank);
    if (life.agreed != 0 && life.agreed != Count()) violation_ = "not the largest number";
    if (life.given_up > 1) violation_ = "given up twice";
    if (life.ended > 1) violation_ = "ended twice";
    if (life.bootstrap->state() == BootstrapState::kFailed) {
      violation_ = std::string(life.bootstrap->status().message());
    }
    if (life.is_over) Begin(life.rank);
  }

  const std::string& violation() const { return violation_; }

  // REQUIRES: nothing has to happen any more.
  std::string CheckEnd() const {
    std::set<std::pair<uint32_t, std::string>> made;
    std::vector<std::string> wrong;
    for (const std::unique_ptr<Life>& life : lives_) {
      if (life->is_over) continue;
      made.insert(life->begun);
      if (life->bootstrap->state() == BootstrapState::kReady && life->given_up == 0) continue;
      wrong.push_back(absl::StrCat("rank ", life->rank, " is ",
                                   BootstrapStateName(life->bootstrap->state()), " in generation ",
                                   life->bootstrap->generation(),
                                   life->given_up > 0 ? ", which is given up" : ""));
    }
    if (wrong.empty() && made.size() > 1) wrong.push_back("they have different ones");
    return absl::StrJoin(wrong, "; ");
  }

  size_t Hash() const {
    size_t hash = absl::HashOf(store_, failures_, retirements_);
    for (const std::unique_ptr<Life>& life : lives_) {
      hash = absl::HashOf(hash, life->rank, life->is_over, life->is_watching,
                          life->is_over ? "" : life->history, life->commands.size());
      for (const Life::Command& command : life->commands) {
        hash = absl::HashOf(hash, command.kind, command.key, command.expected, command.value);
      }
      if (life->is_over) continue;
      for (const auto& [key, value] : life->news) hash = absl::HashOf(hash, key, value);
    }
    for (const auto& [begun, ranks] : came_) hash = absl::HashOf(hash, begun, ranks);
    for (const auto& [begun, ranks] : warming_up_) hash = absl::HashOf(hash, begun, ranks);
    for (const auto& begun : left_) hash = absl::HashOf(hash, begun);
    return hash;
  }

  std::string Describe(const Event& event) const {
    const Life& life = *lives_[event.life];
    const std::string who = absl::StrCat("rank ", life.rank, " (plan ", event.life, ")");
    switch (event.kind) {
      case Event::Kind::kStore:
        return absl::StrCat("the store does what ", who, " asked for: ", life.commands.front().key,
                            " ", life.commands.front().value.substr(0, 4));
      case Event::Kind::kHear:
        return absl::StrCat(who, " hears ", life.news.front().first, " ",
                            life.news.front().second.substr(0, 4));
      case Event::Kind::kFinish:
        return absl::StrCat(who, " is through, ", BootstrapStateName(life.bootstrap->state()));
      case Event::Kind::kFail:
        return absl::StrCat(who, " fails, ", BootstrapStateName(life.bootstrap->state()));
      case Event::Kind::kLetGo:
        return absl::StrCat(who, " lets go");
    }
    return "";
  }

 private:
  size_t Count() const { return static_cast<size_t>(options_.ranks); }

  void Begin(int rank) {
    auto life = std::make_unique<Life>();
    life->index = lives_.size();
    life->agrees_on_order = options_.agrees_on_order;
    life->rank = rank;
    life->bootstrap = std::make_unique<CommunicatorBootstrap>(
        *key_, rank, CommunicatorBootstrapOptions{.nccl_version = 22809}, *life, *life, clock_);
    life->bootstrap->Start();
    lives_.push_back(std::move(life));
  }

  void Do(Life& life, const Life::Command& command) {
    const auto found = store_.find(command.key);
    switch (command.kind) {
      case Life::Command::Kind::kWatch:
        life.is_watching = true;
        for (const auto& [key, value] : store_) life.news.emplace_back(key, value);
        life.news.emplace_back();
        return;
      case Life::Command::Kind::kSet:
        return Put(command.key, command.value);
      case Life::Command::Kind::kCompareAndSet:
        if (found == store_.end() ? !command.expected.has_value()
                                  : command.expected == found->second) {
          Put(command.key, command.value);
        }
        return;
      case Life::Command::Kind::kDelete:
        std::erase_if(store_, [&command](const auto& entry) {
          return absl::StartsWith(entry.first, command.key);
        });
        return;
    }
  }

  void Put(const std::string& key, const std::string& value) {
    store_[key] = value;
    for (const std::unique_ptr<Life>& life : lives_) {
      if (life->is_watching && !life->is_over) life->news.emplace_back(key, value);
    }
  }

  const WorldOptions options_;
  FakeClock clock_;
  std::optional<CommunicatorKey> key_;
  std::vector<std::unique_ptr<Life>> lives_;
  std::map<std::string, std::string> store_;
  // By generation and id: ranks that have begun with it; those that have begun the warm-up; whether
  // one of them has left since.
  std::map<std::pair<uint32_t, std::string>, std::set<int>> came_;
  std::map<std::pair<uint32_t, std::string>, std::set<int>> warming_up_;
  std::set<std::pair<uint32_t, std::string>> left_;
  int failures_ = 0;
  int retirements_ = 0;
  std::string violation_;
};

// Visits every state that can be reached, nearest first; the first violation with its trace.
std::string Search(const WorldOptions& options) {
  absl::flat_hash_set<size_t> seen;
  std::vector<std::vector<Event>> level = {{}};
  const auto trace = [&options](const std::string& what, const std::vector<Event>& events) {
    World world(options, {});
    std::string text = what;
    for (const Event& event : events) {
      absl::StrAppend(&text, "\n  ", world.Describe(event));
      world.Apply(event);
    }
    return text;
  };
  while (!level.empty()) {
    std::vector<std::vector<Event>> next_level;
    for (const std::vector<Event>& past : level) {
      const World world(options, past);
      bool has_to_go_on = false;
      for (const Event& event : world.Enabled()) {
        has_to_go_on |= !event.is_optional;
        std::vector<Event> longer = past;
        longer.push_back(event);
        const World next(options, longer);
        if (!next.violation().empty()) return trace(next.violation(), longer);
        if (seen.insert(next.Hash()).second) next_level.push_back(std::move(longer));
      }
      if (has_to_go_on) continue;
      if (const std::string wrong = world.CheckEnd(); !wrong.empty()) return trace(wrong, past);
    }
    level = std::move(next_level);
  }
  std::printf("%zu states\n", seen.size());
  return "";
}

TEST(BootstrapSearch, TwoRanksAndNothingFails) { EXPECT_EQ(Search({}), ""); }

TEST(BootstrapSearch, TwoRanksAndNcclFailsOnOneAtAnyMoment) {
  EXPECT_EQ(Search({.failures = 1}), "");
}

TEST(BootstrapSearch, TwoRanksAndOneReleasesAtAnyMoment) {
  EXPECT_EQ(Search({.retirements = 1}), "");
}

TEST(BootstrapSearch, TwoRanksThatAgreeOnANumber) {
  EXPECT_EQ(Search({.agrees_on_order = true}), "");
}

TEST(BootstrapSearch, TwoRanksThatAgreeOnANumberAndNcclFailsOnOneAtAnyMoment) {
  EXPECT_EQ(Search({.failures = 1, .lowest_failing = 1, .agrees_on_order = true}), "");
}

// Shows what the notification is for.
TEST(BootstrapSearch, RankThatIsReadyAndDoesNotReleaseIsWaitedForForever) {
  EXPECT_THAT(Search({.failures = 1, .lets_go = false}),
              testing::AllOf(testing::HasSubstr("is ready in generation 1, which is given up"),
                             testing::HasSubstr("is waiting in generation 2")));
}

}  // namespace
}  // namespace ferry
