// SPDX-License-Identifier: Apache-2.0
// Groups of any size, on hosts and GPUs, whose messages, threads, copies, deaths and cancellations
// come in random order. FERRY_SIM_SEED=<n> replays one of them.
#include <algorithm>
#include <cstdlib>
#include <random>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"

#include "collective_world.h"

namespace ferry::worker {
namespace {

// The expected result of a node without failures.
struct Wanted {
  int run = 0;
  std::vector<float> values;
};

class Simulation final {
 public:
  explicit Simulation(uint64_t seed) : random_(seed) {}

  void Run() {
    count_ = 1 + Below(6);
    HostBackendOptions options;
    if (Chance(60)) options.max_direct_bytes = 0;
    if (Chance(50)) options.max_inline_bytes = 0;
    options.max_fan_out = 1 + Below(4);
    std::vector<bool> on_gpus;
    for (int i = 0; i < count_; ++i) on_gpus.push_back(Chance(30));
    CollectiveWorld world(count_, options, std::move(on_gpus));
    world.arrives_inside = [this] { return Chance(30); };
    for (int instance = 1 + Below(3); instance > 0; --instance) AddInstance(world, instance);
    starts_.push_back([&world] { world.StartLeader(); });
    std::shuffle(starts_.begin(), starts_.end(), random_);
    const bool may_fail = Chance(40);
    bool has_failed = false;
    while (!starts_.empty() || world.choices() > 0) {
      if (may_fail && !has_failed && Chance(5)) {
        has_failed = true;
        const int victim = Below(count_);
        if (Chance(50)) {
          world.Kill(victim);
        } else {
          world.Cancel(victim);
        }
        continue;
      }
      const size_t choices = world.choices();
      const size_t choice = static_cast<size_t>(Below(static_cast<int>(choices + starts_.size())));
      if (choice < choices) {
        world.Choose(choice);
      } else {
        std::function<void()> start = std::move(starts_[choice - choices]);
        starts_.erase(starts_.begin() + static_cast<std::ptrdiff_t>(choice - choices));
        start();
      }
    }
    for (const Wanted& wanted : wanted_) {
      const CollectiveWorld::Outcome& outcome = world.outcome(wanted.run);
      ASSERT_EQ(outcome.done_count, 1) << "a member waits for ever";
      if (!has_failed) {
        ASSERT_TRUE(outcome.status.ok()) << outcome.status;
      }
      if (outcome.status.ok()) {
        EXPECT_EQ(FloatsOf(outcome.tensor), wanted.values);
      }
    }
  }

 private:
  int Below(int count) { return std::uniform_int_distribution<int>(0, count - 1)(random_); }
  bool Chance(int percent) { return Below(100) < percent; }

  // Some of the workers, or all, run the same collective.
  void AddInstance(CollectiveWorld& world, int instance) {
    std::vector<int> members;
    for (int i = 0; i < count_; ++i) {
      // The leader is one of them: its run, like that of any graph, has something to do.
      if (members.empty() || Chance(75)) members.push_back(i);
    }
    const int size = static_cast<int>(members.size());
    const auto kind = static_cast<CollectiveKind>(Below(3));
    const int elements = Below(4) * Below(40);
    const int source = Below(size);
    std::vector<std::vector<float>> inputs;
    for (int i = 0; i < size; ++i) {
      inputs.emplace_back();
      for (int at = 0; at < elements; ++at) inputs.back().push_back(static_cast<float>(Below(50)));
    }
    std::vector<float> result;
    for (int i = 0; i < size; ++i) {
      const std::vector<float>& input = inputs[static_cast<size_t>(i)];
      if (kind == CollectiveKind::kGather) result.insert(result.end(), input.begin(), input.end());
      if (kind == CollectiveKind::kBroadcast && i == source) result = input;
      if (kind == CollectiveKind::kReduce) {
        result.resize(input.size());
        for (size_t at = 0; at < input.size(); ++at) result[at] += input[at];
      }
    }
    for (int i = 0; i < size; ++i) {
      CollectiveNode node = world.NodeOf(members[static_cast<size_t>(i)], kind);
      node.group_key = instance;
      node.instance_key = 10 - instance;
      node.group_size = size;
      node.shape = *Shape::Create({elements});
      node.is_source = kind == CollectiveKind::kBroadcast && i == source;
      std::optional<Tensor> input = FloatRow(inputs[static_cast<size_t>(i)]);
      if (kind == CollectiveKind::kBroadcast && i != source) input.reset();
      starts_.push_back([this, &world, node, input, result] {
        if (world.IsDead(node.self)) return;
        wanted_.push_back({world.Run(node, input), result});
      });
    }
  }

  std::mt19937_64 random_;
  int count_ = 0;
  std::vector<std::function<void()>> starts_;
  std::vector<Wanted> wanted_;
};

TEST(CollectivesSimulation, EachMemberEndsOnce) {
  if (const char* const text = std::getenv("FERRY_SIM_SEED"); text != nullptr) {
    uint64_t seed = 0;
    ASSERT_TRUE(absl::SimpleAtoi(text, &seed));
    return Simulation(seed).Run();
  }
  const auto first = static_cast<uint64_t>(absl::GetCurrentTimeNanos());
  for (uint64_t i = 0; i < 10'000 && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(absl::StrCat("FERRY_SIM_SEED=", first + i));
    Simulation(first + i).Run();
  }
}

}  // namespace
}  // namespace ferry::worker
