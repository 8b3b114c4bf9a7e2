// SPDX-License-Identifier: Apache-2.0
// Named threads.
#include "base/thread.h"

#include <pthread.h>

#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace ferry {
namespace {

std::string NameInside(const std::string& given) {
  char name[64] = {};
  Thread thread(given, [&name] { pthread_getname_np(pthread_self(), name, sizeof(name)); });
  thread.Join();
  return name;
}

TEST(Thread, CarriesItsName) { EXPECT_EQ(NameInside("ferry-beat"), "ferry-beat"); }

TEST(Thread, CutsANameTheKernelWouldRefuse) {
  // pthread_setname_np refuses more than 15 characters: the thread would stay nameless.
  EXPECT_EQ(NameInside("ferry-a-very-long-name"), "ferry-a-very-lo");
}

TEST(Thread, WaitsForItsBodyWhenItGoes) {
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

TEST(Thread, TakesABodyThatCannotBeCopied) {
  int seen = 0;
  auto box = std::make_unique<int>(7);
  Thread thread("ferry-test", [&seen, box = std::move(box)] { seen = *box; });
  thread.Join();
  EXPECT_EQ(seen, 7);
}

}  // namespace
}  // namespace ferry
