// SPDX-License-Identifier: Apache-2.0
// Named threads.
#include "base/thread.h"

#include <pthread.h>

#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry {
namespace {

std::string NameInside(const std::string& given) {
  char name[64] = {};
  Thread thread(given, [&name] { pthread_getname_np(pthread_self(), name, sizeof(name)); });
  thread.Join();
  return name;
}

TEST(Thread, HasItsName) { EXPECT_EQ(NameInside("ferry-beat"), "ferry-beat"); }

TEST(Thread, CutsANameThatTheKernelWouldRefuse) {
  // pthread_setname_np refuses more than 15 characters: the thread would stay nameless.
  EXPECT_EQ(NameInside("ferry-a-very-long-name"), "ferry-a-very-lo");
}

TEST(Thread, DestructorWaitsForItsBody) {
  bool ran = false;
  {
    Thread thread("ferry-test", [&ran] { ran = true; });
  }
  EXPECT_TRUE(ran);
}

TEST(Thread, MayBeJoinedTwice) {
  Thread thread("ferry-test", [] {});
  thread.Join();
  thread.Join();
}

TEST(Thread, AcceptsAMoveOnlyBody) {
  int seen = 0;
  auto box = std::make_unique<int>(7);
  Thread thread("ferry-test", [&seen, box = std::move(box)] { seen = *box; });
  thread.Join();
  EXPECT_EQ(seen, 7);
}

TEST(Thread, FailureToStart_IsNamedWithTheLimits) {
  pthread_attr_t usual;
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  pthread_attr_t huge = usual;
  ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 46), 0);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  std::string why;
  try {
    Thread thread("ferry-large", [] {});
  } catch (const std::system_error& error) {
    why = error.what();
  }
  ASSERT_EQ(pthread_setattr_default_np(&usual), 0);
  pthread_attr_destroy(&usual);
  EXPECT_THAT(why, ::testing::HasSubstr("cannot start the thread \"ferry-large\""));
  EXPECT_THAT(why, ::testing::ContainsRegex("ulimit -u. [0-9u].*ulimit -v. [0-9u]"));
}

}  // namespace
}  // namespace ferry
