// SPDX-License-Identifier: Apache-2.0
// Which exited children are reaped, and which are left to those who wait for them.
#include "launch/orphan_reaper.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/unique_fd.h"

namespace ferry {
namespace {

// A pipe whose end tells others that they may exit, or that all who had it have exited.
struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    reader = UniqueFd(ends[0]);
    writer = UniqueFd(ends[1]);
  }
  UniqueFd reader;
  UniqueFd writer;
};

// A child that exits when the writer of `go` is closed here.
pid_t StartChild(Pipe& go) {
  const pid_t child = fork();
  if (child != 0) return child;
  go.writer.Reset();
  char byte = 0;
  const ssize_t end = read(go.reader.get(), &byte, 1);
  _exit(end == 0 ? 7 : 1);
}

// Waits until `child` has exited, and leaves it to be reaped.
void AwaitExit(pid_t child) {
  siginfo_t info = {};
  EXPECT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
}

bool IsReaped(pid_t child) {
  siginfo_t info = {};
  return waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) != 0 &&
         errno == ECHILD;
}

const auto kNoneIsOurs = [](pid_t) { return false; };

TEST(OrphanReaper, ChildFromBefore_IsLeftToTheProgram) {
  Pipe go;
  const pid_t child = StartChild(go);
  const OrphanReaper reaper;
  go.writer.Reset();
  AwaitExit(child);
  reaper.Reap(kNoneIsOurs);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

TEST(OrphanReaper, ChildOfOurs_IsLeftToTheLauncher) {
  const OrphanReaper reaper;
  Pipe go;
  const pid_t child = StartChild(go);
  go.writer.Reset();
  AwaitExit(child);
  reaper.Reap([child](pid_t pid) { return pid == child; });
  EXPECT_FALSE(IsReaped(child));
  reaper.Reap(kNoneIsOurs);
  EXPECT_TRUE(IsReaped(child));
}

// A grandchild whose parent has exited becomes a child of this process.
TEST(OrphanReaper, Orphan_IsReaped) {
  const OrphanReaper reaper;
  Pipe go;
  Pipe told;
  const pid_t parent = fork();
  if (parent == 0) {
    const pid_t orphan = StartChild(go);
    const bool was_written = write(told.writer.get(), &orphan, sizeof(orphan)) == sizeof(orphan);
    _exit(was_written ? 0 : 1);
  }
  pid_t orphan = 0;
  ASSERT_EQ(read(told.reader.get(), &orphan, sizeof(orphan)), static_cast<ssize_t>(sizeof(orphan)));
  ASSERT_EQ(waitpid(parent, nullptr, 0), parent);
  EXPECT_EQ(reaper.Find(), std::vector<pid_t>{orphan});
  reaper.Reap(kNoneIsOurs);
  EXPECT_FALSE(IsReaped(orphan));
  go.writer.Reset();
  AwaitExit(orphan);
  reaper.Reap(kNoneIsOurs);
  EXPECT_TRUE(IsReaped(orphan));
}

TEST(OrphanReaper, AtItsEnd_TheProcessIsWhatItWasBefore) {
  for (const int before : {0, 1}) {
    prctl(PR_SET_CHILD_SUBREAPER, before);
    int now = -1;
    {
      const OrphanReaper reaper;
      prctl(PR_GET_CHILD_SUBREAPER, &now);
      EXPECT_EQ(now, 1);
    }
    prctl(PR_GET_CHILD_SUBREAPER, &now);
    EXPECT_EQ(now, before);
  }
}

}  // namespace
}  // namespace ferry
