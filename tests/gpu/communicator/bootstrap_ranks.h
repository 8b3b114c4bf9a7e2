// SPDX-License-Identifier: Apache-2.0
// Ranks of a communicator with one store between them, whose NCCL the test controls.
#ifndef FERRY_TESTS_GPU_COMMUNICATOR_BOOTSTRAP_RANKS_H_
#define FERRY_TESTS_GPU_COMMUNICATOR_BOOTSTRAP_RANKS_H_

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "absl/strings/match.h"

#include "gpu/communicator/communicator_bootstrap.h"

namespace ferry {

// One store for all ranks; the test decides when each is notified.
class FakeStore final {
 public:
  class View final : public BootstrapStore {
   public:
    explicit View(FakeStore& store) : store_(store) {}
    void Watch(absl::string_view prefix) override {
      prefix_ = std::string(prefix);
      for (const auto& [key, value] : store_.entries) Tell(key, value);
      news.emplace_back();
    }
    void Set(absl::string_view key, std::string value) override { store_.Put(key, value); }
    void CompareAndSet(absl::string_view key, std::optional<std::string> expected,
                       std::string desired) override {
      const auto found = store_.entries.find(std::string(key));
      const bool holds =
          found == store_.entries.end() ? !expected.has_value() : expected == found->second;
      if (holds) store_.Put(key, desired);
    }
    void DeletePrefix(absl::string_view prefix) override {
      std::erase_if(store_.entries,
                    [&](const auto& entry) { return absl::StartsWith(entry.first, prefix); });
    }
    void Tell(const std::string& key, const std::string& value) {
      if (!prefix_.empty() && absl::StartsWith(key, prefix_)) news.push_back({key, value});
    }

    // Without a key: that is all that was there.
    std::deque<std::pair<std::string, std::string>> news;

   private:
    FakeStore& store_;
    std::string prefix_;
  };

  void Put(absl::string_view key, const std::string& value) {
    entries[std::string(key)] = value;
    for (View* view : views) view->Tell(std::string(key), value);
  }

  std::map<std::string, std::string> entries;
  std::vector<View*> views;
};

class FakeSteps final : public BootstrapActions {
 public:
  absl::StatusOr<std::vector<std::string>> CreateUniqueIds(int count) override {
    if (!create_ids_error.ok()) return std::exchange(create_ids_error, absl::OkStatus());
    std::vector<std::string> ids;
    for (int i = 0; i < count; ++i) {
      ids.emplace_back(kNcclUniqueIdBytes, static_cast<char>('a' + id_sets_created++));
    }
    return ids;
  }
  absl::StatusOr<std::string> CreateGrowId() override {
    if (!create_ids_error.ok()) return std::exchange(create_ids_error, absl::OkStatus());
    return std::string(kNcclUniqueIdBytes, 'g');
  }
  void Initialise(uint32_t generation, CommunicatorWay way,
                  const std::vector<std::string>& ids) override {
    initialised.emplace_back(generation, ids);
    ways.push_back(way);
  }
  std::optional<uint64_t> ProposeSequenceNumber(uint32_t generation) override { return number; }
  void WarmUp(uint32_t generation, uint64_t agreed) override {
    warmed.push_back(generation);
    agreed_on.push_back(agreed);
  }
  std::string DescribeWarmUp() const override { return "the warm-up"; }
  void OnAbandoned(uint32_t generation, const absl::Status& why) override {
    given_up.push_back(generation);
  }
  void Discard(uint32_t generation, const absl::Status& why) override {
    discarded.push_back(generation);
  }
  void OnEnded(const absl::Status& status) override { ended.push_back(status); }

  absl::Status create_ids_error;
  int id_sets_created = 0;
  std::vector<std::pair<uint32_t, std::vector<std::string>>> initialised;
  std::vector<CommunicatorWay> ways;
  // For its warm-up; empty: it is not in a queue.
  std::optional<uint64_t> number;
  std::vector<uint64_t> agreed_on;
  std::vector<uint32_t> warmed;
  std::vector<uint32_t> given_up;
  std::vector<uint32_t> discarded;
  std::vector<absl::Status> ended;
};

struct Rank {
  std::unique_ptr<FakeStore::View> view;
  FakeSteps actions;
  std::unique_ptr<CommunicatorBootstrap> bootstrap;

  void Hear() {
    while (!view->news.empty()) {
      const auto [key, value] = view->news.front();
      view->news.pop_front();
      key.empty() ? bootstrap->OnWatching() : bootstrap->OnEntry(key, value);
    }
  }
};

class CommunicatorBootstrapTest : public testing::Test {
 protected:
  CommunicatorBootstrapTest() { Make(3); }

  void Make(int count, std::map<int, int> versions = {}, std::map<int, RankOrigin> origins = {}) {
    std::vector<CommunicatorMember> members;
    for (int rank = 0; rank < count; ++rank) {
      members.push_back({10 + rank, 0x1000 + static_cast<uint64_t>(rank)});
    }
    key_ = *CommunicatorKey::Create(members);
    ranks_.clear();
    store_.views.clear();
    for (int rank = 0; rank < count; ++rank) {
      CommunicatorBootstrapOptions options;
      options.nccl_version = versions.contains(rank) ? versions[rank] : 22809;
      if (origins.contains(rank)) options.origin = origins[rank];
      options.max_attempts = max_attempts_;
      auto made = std::make_unique<Rank>();
      made->view = std::make_unique<FakeStore::View>(store_);
      made->bootstrap = std::make_unique<CommunicatorBootstrap>(*key_, rank, options, *made->view,
                                                                made->actions, clock_);
      store_.views.push_back(made->view.get());
      ranks_.push_back(std::move(made));
    }
  }
  void Start(const std::vector<int>& which) {
    for (const int rank : which) ranks_[rank]->bootstrap->Start();
    Hear();
  }
  void Hear() {
    for (bool is_any = true; is_any;) {
      is_any = false;
      for (auto& rank : ranks_) {
        is_any |= !rank->view->news.empty();
        rank->Hear();
      }
    }
  }
  void FinishAll(uint32_t generation) {
    for (auto& rank : ranks_) {
      rank->bootstrap->OnInitialised(generation, absl::OkStatus());
      EXPECT_EQ(rank->bootstrap->state(), BootstrapState::kWarmingUp);
      rank->bootstrap->OnWarmedUp(generation, absl::OkStatus());
      EXPECT_EQ(rank->bootstrap->state(), BootstrapState::kReady);
    }
    Hear();
  }

  FakeClock clock_;
  FakeStore store_;
  int max_attempts_ = 4;
  std::optional<CommunicatorKey> key_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace ferry

#endif  // FERRY_TESTS_GPU_COMMUNICATOR_BOOTSTRAP_RANKS_H_
