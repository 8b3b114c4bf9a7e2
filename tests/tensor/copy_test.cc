// SPDX-License-Identifier: Apache-2.0
// Copies by a pool: of any size, on any number of cores.
#include "tensor/copy.h"

#include <sched.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"

namespace ferry {
namespace {

int CopyThreads() {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "comm");
    std::string name;
    std::getline(file, name);
    if (name == "ferry-copy") ++count;
  }
  return count;
}

std::vector<char> Pattern(size_t bytes) {
  std::vector<char> pattern(bytes);
  for (size_t i = 0; i < bytes; ++i) pattern[i] = static_cast<char>(i * 31 + i / 251);
  return pattern;
}

void CheckCopies(CopyPool& pool) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{100'003}, (size_t{9} << 20) + 5}) {
    const std::vector<char> from = Pattern(bytes);
    std::vector<char> to(bytes);
    pool.Copy(to.data(), from.data(), bytes);
    EXPECT_EQ(to, from);
    std::vector<char> later(bytes);
    absl::Notification done;
    pool.CopyAsync(later.data(), from.data(), bytes, [&done] { done.Notify(); });
    ASSERT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(20)));
    EXPECT_EQ(later, from);
  }
}

TEST(CopyPoolTest, CopiesAllBytes) {
  for (const int threads : {0, 1, 3}) {
    CopyPool pool({.threads = threads});
    CheckCopies(pool);
  }
}

// A thread beside the only core would compete with the thread that it helps.
TEST(CopyPoolTest, HasNoThreadsOnOneCore) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int core = 0; CPU_COUNT(&one) == 0; ++core) {
    if (CPU_ISSET(core, &before)) CPU_SET(core, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  {
    CopyPool pool;
    EXPECT_EQ(CopyThreads(), 0);
    CheckCopies(pool);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

// On which cores the pool's thread may run.
cpu_set_t CoresOfCopyThread() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "comm");
    std::string name;
    std::getline(file, name);
    if (name != "ferry-copy") continue;
    EXPECT_EQ(sched_getaffinity(std::stoi(task.path().filename().string()), sizeof(cores), &cores),
              0);
  }
  return cores;
}

// A helper woken on the core of a caller that copies too would not run until all is done.
TEST(CopyPoolTest, HelpersKeepOffTheCoreOfACallerThatCopies) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  if (CPU_COUNT(&before) < 2) GTEST_SKIP() << "one core only";
  CopyPool pool({.threads = 1});
  const std::vector<char> from = Pattern(size_t{9} << 20);
  std::vector<char> to(from.size());
  for (size_t core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &before)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    pool.Copy(to.data(), from.data(), from.size());
    const cpu_set_t allowed = CoresOfCopyThread();
    EXPECT_FALSE(CPU_ISSET(core, &allowed)) << core;
    EXPECT_EQ(CPU_COUNT(&allowed), CPU_COUNT(&before) - 1);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
  EXPECT_EQ(to, from);
  // The caller of this one does something else.
  absl::Notification done;
  pool.CopyAsync(to.data(), from.data(), from.size(), [&done] { done.Notify(); });
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(20)));
  const cpu_set_t allowed = CoresOfCopyThread();
  EXPECT_TRUE(CPU_EQUAL(&allowed, &before));
}

// In pieces, parts of pieces, and with streamed stores.
TEST(CopyPool, ControlThatChecksBooleans_FindsOneInEveryPart) {
  for (const int threads : {0, 2}) {
    CopyPool pool({.threads = threads});
    for (const size_t bytes :
         {size_t{1}, size_t{40'000}, size_t{3'000'001}, (size_t{5} << 20) + 5}) {
      std::vector<char> from(bytes);
      for (size_t i = 0; i < bytes; ++i) from[i] = i % 3 == 0;
      for (const size_t at : {bytes, size_t{0}, bytes / 2, bytes - 1}) {
        if (at < bytes) from[at] = 2;
        std::vector<char> to(bytes);
        const auto control = std::make_shared<CopyControl>();
        control->CheckBooleans();
        pool.Copy(to.data(), from.data(), bytes, control);
        EXPECT_EQ(to, from);
        EXPECT_EQ(control->AreBooleans(), at == bytes) << at << " of " << bytes;
        const auto later = std::make_shared<CopyControl>();
        later->CheckBooleans();
        std::vector<char> again(bytes);
        absl::Notification done;
        pool.CopyAsync(
            again.data(), from.data(), bytes, [&] { done.Notify(); }, later);
        done.WaitForNotification();
        EXPECT_EQ(again, from);
        EXPECT_EQ(later->AreBooleans(), at == bytes) << at << " of " << bytes;
        if (at < bytes) from[at] = 1;
      }
    }
    const auto unchecked = std::make_shared<CopyControl>();
    std::vector<char> to(5);
    pool.Copy(to.data(), "\1\1\1\1\1", 5, unchecked);
    EXPECT_FALSE(unchecked->AreBooleans());
  }
}

}  // namespace
}  // namespace ferry
