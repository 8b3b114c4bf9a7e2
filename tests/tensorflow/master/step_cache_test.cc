// SPDX-License-Identifier: Apache-2.0
// Registered steps of a session: how many are kept, and which callers wait for one that is being
// made.
#include "tensorflow/master/step_cache.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry::master {
namespace {

using ::testing::ElementsAre;

class StepCacheTest : public ::testing::Test {
 protected:
  // Something to be kept; the cache never looks inside.
  struct Made {
    std::shared_ptr<int> owner = std::make_shared<int>(0);
    std::shared_ptr<const RegisteredStep> step{
        owner, reinterpret_cast<const RegisteredStep*>(owner.get())};
    std::weak_ptr<int> alive = owner;

    Made() { owner.reset(); }
  };

  bool Await(const std::string& key) {
    return cache_.Await(key, [this, key](StepCache::Result result) {
      heard_.push_back(key + (result.ok() ? "" : " failed"));
      if (result.ok()) last_ = result->get();
    });
  }
  // Requests it, and makes it. Returns whether it still exists then.
  std::weak_ptr<int> Make(const std::string& key) {
    EXPECT_TRUE(Await(key)) << key;
    Made made;
    cache_.Finish(key, std::move(made.step));
    return made.alive;
  }

  StepCache cache_{2};
  std::vector<std::string> heard_;
  const RegisteredStep* last_ = nullptr;
};

TEST_F(StepCacheTest, RequestedBySeveral_IsMadeOnceAndAllAreNotified) {
  EXPECT_TRUE(Await("a"));
  EXPECT_FALSE(Await("a"));
  EXPECT_EQ(cache_.Find("a"), nullptr) << "it is being made";
  EXPECT_TRUE(heard_.empty());
  Made made;
  cache_.Finish("a", made.step);
  EXPECT_THAT(heard_, ElementsAre("a", "a"));
  EXPECT_EQ(last_, made.step.get());
  EXPECT_EQ(cache_.Find("a"), made.step);
  // It exists now: answered at once, without making it.
  EXPECT_FALSE(Await("a"));
  EXPECT_EQ(heard_.size(), 3u);
  EXPECT_EQ(cache_.size(), 1u);
}

TEST_F(StepCacheTest, CannotBeMade_AllAreNotifiedAndTheNextTriesAgain) {
  EXPECT_TRUE(Await("a"));
  EXPECT_FALSE(Await("a"));
  cache_.Finish("a", absl::UnavailableError("a worker is lost"));
  EXPECT_THAT(heard_, ElementsAre("a failed", "a failed"));
  EXPECT_EQ(cache_.size(), 0u);
  EXPECT_TRUE(Await("a"));
}

// As many as the limit are kept; the least recently used one is removed, also at the workers.
TEST_F(StepCacheTest, OneTooMany_TheLeastRecentlyUsedIsRemoved) {
  const std::weak_ptr<int> a = Make("a");
  const std::weak_ptr<int> b = Make("b");
  EXPECT_FALSE(a.expired());
  EXPECT_FALSE(b.expired());
  EXPECT_NE(cache_.Find("a"), nullptr);
  const std::weak_ptr<int> c = Make("c");
  EXPECT_FALSE(a.expired());
  EXPECT_TRUE(b.expired());
  EXPECT_FALSE(c.expired());
  EXPECT_EQ(cache_.size(), 2u);
  const std::weak_ptr<int> again = Make("b");
  EXPECT_TRUE(a.expired());
  EXPECT_FALSE(again.expired());
}

// A step that is being made does not count, and is not dropped.
TEST_F(StepCacheTest, BeingMade_DoesNotCount) {
  EXPECT_TRUE(Await("slow"));
  const std::weak_ptr<int> a = Make("a");
  const std::weak_ptr<int> b = Make("b");
  EXPECT_FALSE(a.expired());
  EXPECT_FALSE(b.expired());
  EXPECT_EQ(cache_.size(), 3u);
  Made made;
  cache_.Finish("slow", made.step);
  EXPECT_TRUE(a.expired());
  EXPECT_FALSE(b.expired());
  EXPECT_EQ(cache_.Find("slow"), made.step);
}

TEST_F(StepCacheTest, Cleared_StepBeingMadeIsRemovedAndWaitersAreNotified) {
  const std::weak_ptr<int> a = Make("a");
  EXPECT_TRUE(Await("slow"));
  cache_.Clear();
  EXPECT_TRUE(a.expired());
  EXPECT_EQ(cache_.Find("a"), nullptr);
  EXPECT_FALSE(Await("slow")) << "it is under way";
  cache_.Finish("slow", absl::CancelledError("the session is closed"));
  EXPECT_THAT(heard_, ElementsAre("a", "slow failed", "slow failed"));
  EXPECT_EQ(cache_.size(), 0u);
  // Its order of use has been cleared too.
  const std::weak_ptr<int> b = Make("b");
  const std::weak_ptr<int> c = Make("c");
  EXPECT_FALSE(b.expired());
  EXPECT_FALSE(c.expired());
}

}  // namespace
}  // namespace ferry::master
