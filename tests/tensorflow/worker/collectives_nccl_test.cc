// SPDX-License-Identifier: Apache-2.0
// Collectives by NCCL: who selects it, and several steps at once on the same GPUs, with deaths and
// cancellations. FERRY_SIM_SEED=<n> replays one drawing.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"

#include "tests/tensorflow/worker/nccl_world.h"

namespace ferry::worker {
namespace {

using ::testing::ElementsAre;

struct NcclWanted {
  int step = 0;
  int run = 0;
  std::vector<float> values;
};

class NcclSimulation final {
 public:
  NcclSimulation(uint64_t seed, NcclBackendRules rules, bool may_fail)
      : random_(seed), rules_(rules), may_fail_(may_fail) {}

  // False: a member waits forever, or two different collectives have met.
  bool Run() {
    count_ = 2 + Below(4);
    NcclWorld nccl(count_, /*makes=*/rules_.takes_turns);
    nccl_ = &nccl;
    for (int step = 1 + Below(3); step > 0; --step) AddStep();
    std::shuffle(starts_.begin(), starts_.end(), random_);
    const bool may_fail = may_fail_ && Chance(50);
    while (true) {
      size_t total = starts_.size() + nccl.choices();
      for (const auto& world : worlds_) total += world->choices();
      if (total == 0) break;
      if (may_fail && Chance(3)) {
        Misfortune();
        continue;
      }
      Choose(static_cast<size_t>(Below(static_cast<int>(total))));
    }
    run_count_ = nccl.run_count();
    bool all_done = nccl.mismatch_count() == 0;
    for (const NcclWanted& wanted : wanted_) {
      if (nccl.mismatch_count() > 0) break;
      const auto& outcome = worlds_[static_cast<size_t>(wanted.step)]->outcome(wanted.run);
      if (outcome.done_count == 0) {
        all_done = false;
        continue;
      }
      EXPECT_EQ(outcome.done_count, 1);
      // Steps share communicators, and so their failures.
      if (failed_steps_.empty()) {
        EXPECT_TRUE(outcome.status.ok()) << outcome.status;
      }
      if (outcome.status.ok()) {
        EXPECT_EQ(FloatsOf(outcome.tensor), wanted.values);
        EXPECT_EQ(outcome.path, "nccl");
      }
    }
    if (!all_done) {
      // The rest waits in the GPUs, which are about to be destroyed.
      for (auto& world : worlds_) {
        for (int i = 0; i < count_; ++i) world->Cancel(i);
      }
    }
    while (Pending() > 0) Choose(0);
    worlds_.clear();
    return all_done;
  }
  int run_count() const { return run_count_; }

 private:
  int Below(int count) { return std::uniform_int_distribution<int>(0, count - 1)(random_); }
  bool Chance(int percent) { return Below(100) < percent; }

  size_t Pending() const {
    size_t total = nccl_->choices();
    for (const auto& world : worlds_) total += world->choices();
    return total;
  }
  void Choose(size_t choice) {
    for (const auto& world : worlds_) {
      if (choice < world->choices()) return world->Choose(choice);
      choice -= world->choices();
    }
    if (choice < nccl_->choices()) return nccl_->Choose(choice);
    choice -= nccl_->choices();
    std::function<void()> start = std::move(starts_[choice]);
    starts_.erase(starts_.begin() + static_cast<std::ptrdiff_t>(choice));
    start();
  }

  void Misfortune() {
    const int step = Below(static_cast<int>(worlds_.size()));
    const int victim = Below(count_);
    if (Chance(50)) {
      failed_steps_.insert(step);
      return worlds_[static_cast<size_t>(step)]->Cancel(victim);
    }
    for (size_t i = 0; i < worlds_.size(); ++i) {
      failed_steps_.insert(static_cast<int>(i));
      worlds_[i]->Kill(victim);
    }
  }

  void AddStep() {
    const int step = static_cast<int>(worlds_.size());
    worlds_.push_back(std::make_unique<CollectiveWorld>(
        count_, HostBackendOptions(), std::vector<bool>(static_cast<size_t>(count_), true),
        [this](int worker) -> CollectiveGpus& { return nccl_->gpus(worker); }, rules_));
    CollectiveWorld& world = *worlds_.back();
    world.arrives_inside = [this] { return Chance(30); };
    starts_.push_back([&world] { world.StartLeader(); });
    for (int instance = 1 + Below(3); instance > 0; --instance) AddInstance(step, instance);
  }

  void AddInstance(int step, int instance) {
    CollectiveWorld& world = *worlds_[static_cast<size_t>(step)];
    std::vector<int> members;
    while (members.size() < 2) {
      members.clear();
      for (int i = 0; i < count_; ++i) {
        if (Chance(65)) members.push_back(i);
      }
    }
    const int size = static_cast<int>(members.size());
    const auto kind = static_cast<CollectiveKind>(Below(3));
    const int elements = 1 + Below(5);
    const int source = Below(size);
    std::vector<std::vector<float>> inputs;
    std::vector<float> result;
    for (int i = 0; i < size; ++i) {
      inputs.emplace_back();
      for (int at = 0; at < elements; ++at) inputs.back().push_back(static_cast<float>(Below(50)));
      const std::vector<float>& input = inputs.back();
      if (kind == CollectiveKind::kGather) result.insert(result.end(), input.begin(), input.end());
      if (kind == CollectiveKind::kBroadcast && i == source) result = input;
      if (kind == CollectiveKind::kReduce) {
        result.resize(input.size());
        for (size_t at = 0; at < input.size(); ++at) result[at] += input[at];
      }
    }
    for (int i = 0; i < size; ++i) {
      CollectiveNode node = world.NodeOf(members[static_cast<size_t>(i)], kind);
      // Shared by all of its members, and by no other collective.
      node.name = absl::StrCat("step ", step, " instance ", instance);
      node.group_key = instance;
      node.instance_key = instance;
      node.group_size = size;
      const int length = kind == CollectiveKind::kGather ? elements * size : elements;
      node.shape = *Shape::Create({length});
      node.is_source = kind == CollectiveKind::kBroadcast && i == source;
      std::optional<Tensor> input = FloatRow(inputs[static_cast<size_t>(i)]);
      if (kind == CollectiveKind::kBroadcast && i != source) input.reset();
      starts_.push_back([this, &world, step, node, input, result] {
        if (world.IsDead(node.self)) return;
        wanted_.push_back({step, world.Run(node, input), result});
      });
    }
  }

  std::mt19937_64 random_;
  const NcclBackendRules rules_;
  const bool may_fail_;
  int count_ = 0;
  int run_count_ = 0;
  NcclWorld* nccl_ = nullptr;
  std::vector<std::unique_ptr<CollectiveWorld>> worlds_;
  std::set<int> failed_steps_;
  std::vector<std::function<void()>> starts_;
  std::vector<NcclWanted> wanted_;
};

TEST(CollectivesByNccl, MembersNeverWaitForeverInAnyOrderOfEvents) {
  if (const char* const text = std::getenv("FERRY_SIM_SEED"); text != nullptr) {
    uint64_t seed = 0;
    ASSERT_TRUE(absl::SimpleAtoi(text, &seed));
    EXPECT_TRUE(NcclSimulation(seed, {}, /*may_fail=*/true).Run());
    return;
  }
  const auto first = static_cast<uint64_t>(absl::GetCurrentTimeNanos());
  int64_t runs = 0;
  for (uint64_t i = 0; i < 5'000 && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(absl::StrCat("FERRY_SIM_SEED=", first + i));
    NcclSimulation simulation(first + i, {}, /*may_fail=*/true);
    ASSERT_TRUE(simulation.Run()) << "a member waits for ever";
    runs += simulation.run_count();
  }
  EXPECT_GT(runs, 1000) << "hardly anything has gone by NCCL";
}

// The simulation would see it.
TEST(CollectivesByNccl, WithoutArbitrationMembersWaitForEachOtherOrMeetTheWrongOne) {
  int stuck = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    if (!NcclSimulation(seed, {.takes_turns = false}, /*may_fail=*/false).Run()) ++stuck;
  }
  EXPECT_GT(stuck, 0);
}

// Only if every member can.
TEST(CollectivesByNccl, LeaderDecidesForAll) {
  GroupTable table({"a", "b", "c"});
  const auto join = [](const std::string& why_not, const std::string& gpu, int64_t dim = 3) {
    v1::CollectiveJoin message;
    message.set_group_key(1);
    message.set_instance_key(1);
    message.set_group_size(3);
    message.add_dim(dim);
    message.set_why_not_nccl(why_not);
    message.set_gpu(gpu);
    return message;
  };
  const auto decide = [&](std::vector<v1::CollectiveJoin> joins) {
    static int instance = 0;
    ++instance;
    std::vector<GroupTable::Answer> answers;
    for (int i = 0; i < 3; ++i) {
      joins[static_cast<size_t>(i)].set_instance_key(instance);
      answers = table.Join(i, joins[static_cast<size_t>(i)], absl::UnixEpoch());
    }
    EXPECT_EQ(answers.size(), 3u);
    for (const auto& answer : answers) {
      EXPECT_EQ(answer.by_nccl, answers[0].by_nccl);
      EXPECT_EQ(answer.why_not_nccl, answers[0].why_not_nccl);
      EXPECT_EQ(answer.by_nccl, answer.why_not_nccl.empty());
    }
    return answers[0].why_not_nccl;
  };
  EXPECT_EQ(decide({join("", "G0"), join("", "G1"), join("", "G2")}), "");
  EXPECT_EQ(decide({join("", "G0"), join("no library", ""), join("", "G2")}), "b: no library");
  EXPECT_EQ(decide({join("", "G0"), join("", "G1"), join("", "G0")}),
            "a and c are one GPU, and NCCL takes one rank of each");
  EXPECT_EQ(decide({join("", "G0", 0), join("", "G1", 0), join("", "G2", 0)}),
            "there are no elements");
  // The answer of an older worker.
  EXPECT_EQ(decide({join("", ""), join("", "G1"), join("", "G2")}),
            "a has not said which GPU it is");
}

TEST(AsyncFifoLock, LocksAreGrantedInOrder) {
  AsyncFifoLock line;
  std::vector<int> told;
  const auto enter = [&](int who) { return line.Enter([&told, who] { told.push_back(who); }); };
  const auto first = enter(1);
  const auto second = enter(2);
  const auto third = enter(3);
  const auto fourth = enter(4);
  EXPECT_THAT(told, ElementsAre(1));
  EXPECT_TRUE(line.Leave(second)) << "it has been told";
  EXPECT_FALSE(line.Leave(second));
  EXPECT_FALSE(line.Leave(first));
  EXPECT_THAT(told, ElementsAre(1, 3));
  EXPECT_FALSE(line.Leave(third));
  EXPECT_THAT(told, ElementsAre(1, 3, 4));
  EXPECT_FALSE(line.Leave(fourth));
  EXPECT_EQ(line.size(), 0u);
}

}  // namespace
}  // namespace ferry::worker
