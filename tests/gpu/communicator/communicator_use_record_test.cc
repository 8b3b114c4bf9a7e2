// SPDX-License-Identifier: Apache-2.0
// Every order in which ranks can begin to use a communicator, and evict it.
#include "gpu/communicator/communicator_use_record.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>

#include "absl/strings/match.h"

namespace ferry {
namespace {

using testing::HasSubstr;

// A store, and the order in which ranks access it: each call waits until it is scheduled. A plan
// selects at each step one of the ranks that can continue.
class Stage final {
 public:
  using Body = std::function<void(int rank)>;

  // Runs all bodies, each on a thread, in the order of `plan`, and then always the first that can
  // continue; on return `plan` is the order that was executed. Returns how many could have
  // continued at each step.
  std::vector<int> Play(const std::vector<Body>& bodies, std::vector<int>& bootstrap) {
    std::vector<int> widths;
    actors_.assign(bodies.size(), {});
    std::vector<std::thread> threads;
    for (size_t i = 0; i < bodies.size(); ++i) {
      threads.emplace_back([this, i, &bodies] {
        bodies[i](static_cast<int>(i));
        const std::lock_guard<std::mutex> lock(mu_);
        actors_[i].state = Actor::kOver;
        changed_.notify_all();
      });
    }
    for (size_t step = 0;; ++step) {
      std::unique_lock<std::mutex> lock(mu_);
      changed_.wait(lock, [this] {
        for (const Actor& actor : actors_) {
          if (actor.state == Actor::kRunning) return false;
        }
        return true;
      });
      std::vector<size_t> ready;
      for (size_t i = 0; i < actors_.size(); ++i) {
        if (actors_[i].state == Actor::kAtDoor && actors_[i].waits_for <= changes_) {
          ready.push_back(i);
        }
      }
      if (ready.empty()) break;
      if (step >= bootstrap.size()) bootstrap.push_back(0);
      widths.push_back(static_cast<int>(ready.size()));
      actors_[ready[static_cast<size_t>(bootstrap[step])]].state = Actor::kRunning;
      changed_.notify_all();
    }
    const bool is_stuck = std::any_of(actors_.begin(), actors_.end(), [](const Actor& actor) {
      return actor.state != Actor::kOver;
    });
    EXPECT_FALSE(is_stuck) << "somebody waits for ever";
    if (is_stuck) std::abort();
    for (std::thread& thread : threads) thread.join();
    return widths;
  }

  // A moment of `rank`'s. `waits`: not before the store has changed.
  void Turn(int rank, bool waits = false) {
    std::unique_lock<std::mutex> lock(mu_);
    Actor& actor = actors_[static_cast<size_t>(rank)];
    actor.state = Actor::kAtDoor;
    actor.waits_for = waits ? changes_ + 1 : 0;
    changed_.notify_all();
    changed_.wait(lock, [&actor] { return actor.state == Actor::kRunning; });
  }

  // For the rank that is scheduled.
  std::map<std::string, std::string> store;
  void Changed() { ++changes_; }

 private:
  struct Actor {
    enum State { kRunning, kAtDoor, kOver };
    State state = kRunning;
    int waits_for = 0;
  };

  std::mutex mu_;
  std::condition_variable changed_;
  std::vector<Actor> actors_;
  int changes_ = 0;
};

class StageUseRecordStore final : public UseRecordStore {
 public:
  StageUseRecordStore(Stage& stage, int rank) : stage_(stage), rank_(rank) {}

  absl::Status Put(const std::string& key, absl::string_view value) override {
    stage_.Turn(rank_);
    stage_.store[key] = std::string(value);
    stage_.Changed();
    return absl::OkStatus();
  }
  absl::Status Erase(const std::string& key) override {
    stage_.Turn(rank_);
    stage_.store.erase(key);
    stage_.Changed();
    return absl::OkStatus();
  }
  absl::StatusOr<std::optional<std::string>> Get(const std::string& key) override {
    stage_.Turn(rank_);
    const auto found = stage_.store.find(key);
    if (found == stage_.store.end()) return std::nullopt;
    return found->second;
  }
  absl::StatusOr<std::vector<std::string>> KeysUnder(const std::string& prefix) override {
    stage_.Turn(rank_);
    std::vector<std::string> keys;
    for (const auto& [key, value] : stage_.store) {
      if (absl::StartsWith(key, prefix)) keys.push_back(key);
    }
    return keys;
  }
  absl::StatusOr<bool> CompareAndSet(const std::string& key,
                                     const std::optional<std::string>& expected,
                                     absl::string_view desired) override {
    stage_.Turn(rank_);
    const auto found = stage_.store.find(key);
    const bool exists = found != stage_.store.end();
    if (exists != expected.has_value() || (exists && found->second != *expected)) return false;
    stage_.store[key] = std::string(desired);
    stage_.Changed();
    return true;
  }

 private:
  Stage& stage_;
  const int rank_;
};

CommunicatorKey Key(int size) {
  std::vector<CommunicatorMember> members;
  for (int i = 0; i < size; ++i) members.push_back({i, 100});
  return *CommunicatorKey::Create(std::move(members));
}

// Plays `bodies` in every order. Returns how many there were.
int PlayAll(const std::function<std::vector<Stage::Body>(Stage&)>& make) {
  std::vector<int> bootstrap;
  for (int count = 1;; ++count) {
    Stage stage;
    const std::vector<Stage::Body> bodies = make(stage);
    const std::vector<int> widths = stage.Play(bodies, bootstrap);
    if (testing::Test::HasFailure()) return count;
    bootstrap.resize(widths.size());
    while (!bootstrap.empty() && bootstrap.back() + 1 >= widths[bootstrap.size() - 1])
      bootstrap.pop_back();
    if (bootstrap.empty()) return count;
    ++bootstrap.back();
  }
}

// A granted use stays valid as long as it lasts, whichever rank ends the communicator meanwhile.
Stage::Body Uses(Stage& stage, const CommunicatorKey& key, bool* was_over = nullptr) {
  return [&stage, &key, was_over](int rank) {
    StageUseRecordStore store(stage, rank);
    CommunicatorUseRecord use_record(key, rank, store, SteadyClock(), [&] {
      stage.Turn(rank, true);
      return absl::OkStatus();
    });
    const absl::StatusOr<uint32_t> generation = use_record.Begin(absl::InfiniteFuture());
    ASSERT_TRUE(generation.ok()) << generation.status();
    if (was_over != nullptr) *was_over = *generation > 1;
    for (int moment = 0; moment < 2; ++moment) {
      stage.Turn(rank);
      const auto text = stage.store.find(key.GenerationKey());
      const std::string now = text == stage.store.end() ? "1" : text->second;
      EXPECT_EQ(now, std::to_string(*generation)) << "it was ended under its user";
    }
    EXPECT_TRUE(use_record.End().ok());
  };
}

Stage::Body Ends(Stage& stage, const CommunicatorKey& key, bool* is_over) {
  return [&stage, &key, is_over](int rank) {
    StageUseRecordStore store(stage, rank);
    CommunicatorUseRecord use_record(key, rank, store, SteadyClock(), [&] {
      stage.Turn(rank, true);
      return absl::OkStatus();
    });
    const absl::StatusOr<bool> ended = use_record.TryEndForAll(1, absl::InfiniteFuture());
    ASSERT_TRUE(ended.ok()) << ended.status();
    *is_over = *ended;
  };
}

TEST(CommunicatorUseRecord, CommunicatorInUseIsNotEnded) {
  const CommunicatorKey key = Key(2);
  int over = 0;
  int kept = 0;
  const int count = PlayAll([&](Stage& stage) {
    auto is_over = std::make_shared<bool>(false);
    auto was_over = std::make_shared<bool>(false);
    const Stage::Body uses = Uses(stage, key, was_over.get());
    const Stage::Body ends = Ends(stage, key, is_over.get());
    return std::vector<Stage::Body>{[&, uses, was_over](int rank) {
                                      uses(rank);
                                      ++(*was_over ? over : kept);
                                    },
                                    [&stage, ends, is_over](int rank) {
                                      ends(rank);
                                      stage.Turn(rank);
                                    }};
  });
  // Both come about.
  EXPECT_GT(over, 0);
  EXPECT_GT(kept, 0);
  EXPECT_EQ(over + kept, count);
}

// It is reported to be over only if it is, whichever rank has ended it, and nothing is left behind.
TEST(CommunicatorUseRecord, TwoThatEndItAndOneThatUsesIt) {
  const CommunicatorKey key = Key(3);
  std::vector<std::unique_ptr<bool>> ended;
  PlayAll([&](Stage& stage) {
    ended.push_back(std::make_unique<bool>(false));
    bool* const first = ended.back().get();
    ended.push_back(std::make_unique<bool>(false));
    bool* const second = ended.back().get();
    const auto looks = [&stage, &key](const Stage::Body& ends, const bool* is_over) {
      return [&stage, &key, ends, is_over](int rank) {
        ends(rank);
        if (*is_over) {
          EXPECT_EQ(stage.store[key.GenerationKey()], "2");
        }
      };
    };
    return std::vector<Stage::Body>{looks(Ends(stage, key, first), first),
                                    looks(Ends(stage, key, second), second)};
  });
  EXPECT_TRUE(std::any_of(ended.begin(), ended.end(), [](const auto& each) { return *each; }));
}

TEST(CommunicatorUseRecord, OneThatUsesItAgainAndOneThatEndsItTwice) {
  const CommunicatorKey key = Key(2);
  const int count = PlayAll([&](Stage& stage) {
    auto is_over = std::make_shared<bool>(false);
    const Stage::Body uses = Uses(stage, key);
    const Stage::Body ends = Ends(stage, key, is_over.get());
    return std::vector<Stage::Body>{uses, [ends, is_over](int rank) {
                                      ends(rank);
                                      if (!*is_over) ends(rank);
                                    }};
  });
  EXPECT_GT(count, 100);
}

// A rank that has announced its use, and reports nothing more, is named.
TEST(CommunicatorUseRecord, RankThatNeverReportsIsNamed) {
  const CommunicatorKey key = Key(2);
  std::vector<int> bootstrap;
  Stage stage;
  stage.Play({[&](int rank) {
               StageUseRecordStore store(stage, rank);
               CommunicatorUseRecord use_record(key, rank, store, SteadyClock(),
                                                [] { return absl::OkStatus(); });
               ASSERT_TRUE(store.Put(use_record.LeavingKey(), "rank 1 (device 1)").ok());
               const absl::Status late = use_record.Begin(SteadyClock().Now()).status();
               EXPECT_TRUE(absl::IsDeadlineExceeded(late));
               EXPECT_THAT(std::string(late.message()), HasSubstr("rank 1 (device 1) to decide"));
               EXPECT_FALSE(stage.store.contains(use_record.UseKey()));
             }},
             bootstrap);
}

// Its process has ended, for example.
TEST(CommunicatorUseRecord, WaitsAreLimited) {
  const CommunicatorKey key = Key(2);
  std::vector<int> bootstrap;
  Stage stage;
  stage.Play({[&](int rank) {
               StageUseRecordStore store(stage, rank);
               int waits = 0;
               CommunicatorUseRecord use_record(key, rank, store, SteadyClock(), [&waits] {
                 return ++waits < 3 ? absl::OkStatus() : absl::UnavailableError("gone");
               });
               ASSERT_TRUE(store.Put(use_record.LeavingKey(), "rank 1 (device 1)").ok());
               const absl::Status begun = use_record.Begin(absl::InfiniteFuture()).status();
               EXPECT_TRUE(absl::IsUnavailable(begun)) << begun;
               EXPECT_FALSE(stage.store.contains(use_record.UseKey()));
             }},
             bootstrap);
}

}  // namespace
}  // namespace ferry
