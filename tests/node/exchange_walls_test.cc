// SPDX-License-Identifier: Apache-2.0
// Processes that do not see each other as others do: containers with their own /dev/shm, pids and
// IPC, and without the rights of a debugger.
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/node/exchange_kill.h"

namespace ferry {
namespace {

// More than the /dev/shm of such a container.
constexpr int64_t kMoreThanDevShm = int64_t{80} << 20;

// In a process of its own, prepared by `prepare`. False: the machine does not let it.
bool RunApart(const std::function<bool()>& prepare, const std::function<void()>& body) {
  constexpr int kNotAllowed = 77;
  const pid_t child = fork();
  FERRY_CHECK(child >= 0);
  if (child == 0) {
    if (!prepare()) std::_Exit(kNotAllowed);
    body();
    std::fflush(nullptr);
    std::_Exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotAllowed) return false;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "it ended with status " << status;
  return true;
}

// A mount namespace of its own, in which that is mounted.
bool Mount(const char* where, const char* options, unsigned long flags = 0) {
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  return mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("none", where, "tmpfs", flags, options) == 0;
}

// The rest of this process runs in a namespace of pids of its own, and this one ends as that does.
bool EnterPidNamespace() {
  if (unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWIPC) != 0) return false;
  const pid_t child = fork();
  if (child == 0) return prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getpid() == 1;
  int status = 0;
  waitpid(child, &status, 0);
  std::_Exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
}

// Kills the process at the first system call that reads another one's memory, as containers forbid;
// and processes of the same user may not read it.
bool ForbidDebugging() {
  const auto jump = [](uint32_t call) {
    return sock_filter{BPF_JMP | BPF_JEQ | BPF_K, 0, 1, call};
  };
  const sock_filter end = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS};
  sock_filter filter[] = {
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      jump(SYS_ptrace),
      end,
      jump(SYS_process_vm_readv),
      end,
      jump(SYS_process_vm_writev),
      end,
      jump(SYS_pidfd_open),
      end,
      jump(SYS_pidfd_getfd),
      end,
      jump(SYS_kcmp),
      end,
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  };
  const sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_DUMPABLE, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Why something is not tried.
std::string NotHere(absl::string_view this_machine) {
#if defined(__SANITIZE_THREAD__)
  return "ThreadSanitizer has a thread of its own, and threads keep a process from other "
         "namespaces";
#endif
  return absl::StrCat("this machine ", this_machine);
}

class ExchangeWalls : public ExchangeKill {
 protected:
  void ForkApart(const std::function<bool()>& prepare) {
    peers_.push_back(std::make_unique<PeerProcess>(GetParam(), 100, size_t{1} << 30, prepare));
  }
  void ExpectAllPathsWork() {
    StartHere();
    PeerProcess& peer = Meet(0);
    ExpectWorks(peer, 8);
    ExpectWorks(peer, kMoreThanDevShm);
    // Tensors that have to be copied into the arena.
    EXPECT_EQ(peer.Ask(absl::StrCat("send_heap t ", kMoreThanDevShm)), "OK");
    Receipt receipt = Receive(peer.From("t"));
    const auto received = receipt.Wait();
    ASSERT_TRUE(received.ok()) << received.status();
    EXPECT_EQ(received->path, GetParam());
    EXPECT_TRUE(IsEqual(received->tensor, Pattern(kMoreThanDevShm)));
    peer.Kill();
  }
};

TEST_P(ExchangeWalls, DevShmOf64Megabytes) {
  const bool is_allowed = RunApart([] { return Mount("/dev/shm", "size=64m"); },
                                   [this] {
                                     struct statvfs about;
                                     ASSERT_EQ(statvfs("/dev/shm", &about), 0);
                                     ASSERT_EQ(about.f_blocks * about.f_frsize, 64u << 20);
                                     Fork(1);
                                     ExpectAllPathsWork();
                                   });
  if (!is_allowed) GTEST_SKIP() << NotHere("lets nobody mount");
}

TEST_P(ExchangeWalls, NoDevShm) {
  const bool is_allowed = RunApart([] { return Mount("/dev", "size=4k", MS_RDONLY); },
                                   [this] {
                                     ASSERT_NE(access("/dev/shm", F_OK), 0);
                                     Fork(1);
                                     ExpectAllPathsWork();
                                   });
  if (!is_allowed) GTEST_SKIP() << NotHere("lets nobody mount");
}

TEST_P(ExchangeWalls, ProcessesOfDifferentPidAndIpcNamespaces) {
  const bool is_allowed = RunApart(
      [] {
        const pid_t probe = fork();
        if (probe == 0) std::_Exit(EnterPidNamespace() ? 0 : 1);
        int status = 0;
        waitpid(probe, &status, 0);
        return status == 0;
      },
      [this] {
        ForkApart(EnterPidNamespace);
        ExpectAllPathsWork();
      });
  if (!is_allowed) GTEST_SKIP() << NotHere("makes no pid namespaces for users");
}

TEST_P(ExchangeWalls, WithoutPtraceRights) {
  // The filter works.
  const pid_t child = fork();
  if (child == 0) {
    if (!ForbidDebugging()) std::_Exit(1);
    syscall(SYS_process_vm_readv, getppid(), nullptr, 0, nullptr, 0, 0);
    std::_Exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS) << status;
  EXPECT_TRUE(RunApart(ForbidDebugging, [this] {
    Fork(1);
    ExpectAllPathsWork();
  }));
}

constexpr uid_t kOtherUser = 65534;

bool BecomeOtherUser() {
  // Which forgets that the parent's death ends the process, and hides it from itself.
  return setresuid(kOtherUser, kOtherUser, kOtherUser) == 0 &&
         prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0;
}

// Without the explanation the connecting side only saw that its connection was reset.
TEST_P(ExchangeWalls, TwoUsers_UseTcpOrAnErrorNamesThem) {
  if (geteuid() != 0) GTEST_SKIP() << NotHere("does not let this user become another one");
  const bool needs_shm = std::string(GetParam()) == "shm";
  peers_.push_back(
      std::make_unique<PeerProcess>(needs_shm ? "shm" : "", 100, size_t{1} << 30, BecomeOtherUser));
  here_ = std::make_unique<EngineEnd>(directory_, kHere);
  step_ = here_->Step(kStepId);
  PeerProcess& peer = Meet(0);
  // The one that receives connects.
  ASSERT_TRUE(step_->Send(peer.To("t"), Pattern(300'000)).ok());
  peer.Ask("recv t");
  const std::string answer = peer.Ask("wait");
  if (needs_shm) {
    EXPECT_THAT(answer, testing::HasSubstr(
                            "processes of two users cannot share memory: this one runs as uid "
                            "65534 and the one at the other end of the Unix socket "
                            "as uid 0"));
  } else {
    EXPECT_EQ(answer, "OK");
  }
  EXPECT_TRUE(Becomes([this] { return here_->engine->connection_stats().refused > 0; }));
  EXPECT_THAT(here_->engine->connection_stats().last_refusal,
              testing::HasSubstr("runs as uid 0 and the one at the other end of the Unix socket "
                                 "as uid 65534"));
}

INSTANTIATE_TEST_SUITE_P(Over, ExchangeWalls, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace ferry
