// SPDX-License-Identifier: Apache-2.0
// Launch with real processes: /bin/sh scripts that fail, ignore, linger and signal.
#include "launch/launcher.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

#include "base/unique_fd.h"
#include "launch/signal_relay.h"

namespace ferry {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Until a signal, with a process of its own as launched programs have.
constexpr char kMaxAckDelay[] = "sleep 1000 & wait; wait";
// The same for scripts with a trap. A shell that has just forked still has its trap in the child,
// and a signal that arrives there before the exec is lost: so no fork here.
constexpr char kSpin[] = "while :; do :; done";

LaunchOptions Shell(const std::string& script, int local_count = 1) {
  LaunchOptions options;
  options.command = {"/bin/sh", "-c", script};
  options.local_count = local_count;
  options.coordinator = "localhost:8476";
  // A test that waits for it would be seen to.
  options.grace = absl::Minutes(5);
  return options;
}

struct Result {
  absl::StatusOr<int> status;
  std::string out;
  std::string err;
};

Result RunLaunch(const LaunchOptions& options) {
  Result result{absl::UnknownError(""), "", ""};
  char* text[2] = {};
  size_t size[2] = {};
  std::FILE* out = open_memstream(&text[0], &size[0]);
  std::FILE* err = open_memstream(&text[1], &size[1]);
  result.status = Launch(options, out, err);
  std::fclose(out);
  std::fclose(err);
  result.out.assign(text[0], size[0]);
  result.err.assign(text[1], size[1]);
  free(text[0]);
  free(text[1]);
  return result;
}

// A named pipe for scripts that must wait for each other.
class Fifo final {
 public:
  Fifo() {
    char name[] = "/tmp/ferry-fifo-XXXXXX";
    folder_ = mkdtemp(name);
    EXPECT_EQ(mkfifo(path().c_str(), 0600), 0);
  }
  ~Fifo() { std::filesystem::remove_all(folder_); }

  std::string path() const { return folder_ + "/fifo"; }
  std::string Open() const { return "echo go > " + path() + ";"; }
  std::string Pass() const { return "read go < " + path() + ";"; }

 private:
  std::string folder_;
};

// Two scripts, for rank 0 and for rank 1.
std::string Either(const std::string& rank0, const std::string& rank1) {
  return absl::StrCat("if [ $RANK = 0 ]; then ", rank0, "\nelse ", rank1, "\nfi");
}

int CountOpenFds(bool inheritable_only) {
  int count = 0;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  while (const dirent* entry = readdir(folder.get())) {
    int fd = -1;
    if (!absl::SimpleAtoi(entry->d_name, &fd)) continue;
    if (!inheritable_only || (fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0) ++count;
  }
  return count;
}

TEST(Launch, PutsTheRankBeforeEachLineOfBothStreams) {
  const Result result = RunLaunch(Shell("echo one; echo two; echo three >&2"));
  EXPECT_EQ(*result.status, 0);
  EXPECT_EQ(result.out, "[0] one\n[0] two\n");
  EXPECT_EQ(result.err, "[0] three\n");
}

TEST(Launch, UsesTheRankOfTheWholeJob) {
  LaunchOptions options = Shell("echo $FERRY_NODE_ID of $WORLD_SIZE at $FERRY_COORDINATOR", 2);
  options.machine_count = 2;
  options.machine_index = 1;
  const Result result = RunLaunch(options);
  EXPECT_THAT(result.out, HasSubstr("[2] 2 of 4 at localhost:8476\n"));
  EXPECT_THAT(result.out, HasSubstr("[3] 3 of 4 at localhost:8476\n"));
}

TEST(Launch, GivesOneMachineAFreeMasterPort) {
  const Result result = RunLaunch(Shell("echo $MASTER_ADDR $MASTER_PORT"));
  int port = 0;
  const std::pair<std::string, std::string> words =
      absl::StrSplit(result.out, absl::MaxSplits("[0] 127.0.0.1 ", 1));
  EXPECT_TRUE(absl::SimpleAtoi(words.second, &port)) << result.out;
  EXPECT_NE(port, 8476);
}

TEST(Launch, KeepsAnUnfinishedLastLine) {
  EXPECT_EQ(RunLaunch(Shell("printf unfinished")).out, "[0] unfinished\n");
}

TEST(Launch, BreaksAnEndlessLine) {
  LaunchOptions options = Shell("printf '%025d' 0");
  options.max_line_bytes = 10;
  EXPECT_EQ(RunLaunch(options).out, "[0] 0000000000\n[0] 0000000000\n[0] 00000\n");
}

TEST(Launch, LosesNoLineOfManyWriters) {
  const Result result =
      RunLaunch(Shell("i=0; while [ $i -lt 1000 ]; do echo line $i; i=$((i+1)); done", 16));
  EXPECT_EQ(*result.status, 0);
  int line_count = 0;
  for (absl::string_view line : absl::StrSplit(result.out, '\n', absl::SkipEmpty())) {
    EXPECT_TRUE(absl::StrContains(line, "] line ")) << line;
    ++line_count;
  }
  EXPECT_EQ(line_count, 16 * 1000);
}

TEST(Launch, ReadsNothingFromTheTerminal) {
  // In any order.
  EXPECT_THAT(RunLaunch(Shell("read line || echo nothing", 2)).out,
              AnyOf("[0] nothing\n[1] nothing\n", "[1] nothing\n[0] nothing\n"));
}

TEST(Launch, ReturnsTheStatusOfTheProcessThatFailedAndNamesIt) {
  const Result result =
      RunLaunch(Shell(Either(kMaxAckDelay, "echo out; echo boom >&2; printf last; exit 7"), 2));
  EXPECT_EQ(*result.status, 7);
  EXPECT_THAT(result.err, HasSubstr("ferry run: rank 1 (pid "));
  EXPECT_THAT(result.err, HasSubstr("exited with status 7 after "));
  EXPECT_THAT(result.err, HasSubstr("    boom\n"));
  EXPECT_THAT(result.err, HasSubstr("    last\n"));
  EXPECT_THAT(result.err, HasSubstr("stopping the other 1 process;"));
}

TEST(Launch, RepeatsNoMoreLinesThanAsked) {
  LaunchOptions options = Shell("echo first; echo second; echo third; exit 1");
  options.tail_line_count = 2;
  const Result result = RunLaunch(options);
  EXPECT_THAT(result.err, HasSubstr("its last 2 lines:\n    second\n    third\n"));
  EXPECT_THAT(result.err, Not(HasSubstr("first")));
}

TEST(Launch, ReportsThatAFailedProcessWroteNothing) {
  EXPECT_THAT(RunLaunch(Shell("exit 1")).err, HasSubstr("it wrote nothing"));
}

TEST(Launch, NamesTheSignalThatKilledAProcess) {
  const Result result = RunLaunch(Shell("ulimit -c 0; kill -SEGV $$"));
  EXPECT_EQ(*result.status, 128 + SIGSEGV);
  EXPECT_THAT(result.err, HasSubstr("was killed by SIGSEGV"));
}

TEST(Launch, KillsProcessesThatIgnoreTheRequestToStop) {
  const Fifo fifo;
  LaunchOptions options =
      Shell(Either("trap '' TERM; " + fifo.Open() + kMaxAckDelay, fifo.Pass() + "exit 3"), 2);
  options.grace = absl::Milliseconds(100);
  const Result result = RunLaunch(options);
  EXPECT_EQ(*result.status, 3);
  EXPECT_THAT(result.err, HasSubstr("rank 0 did not stop and was killed"));
}

TEST(Launch, StopsASuspendedProcess) {
  const Fifo fifo;
  const std::string rank0 = absl::StrCat("echo $$ > ", fifo.path(), "; ", kMaxAckDelay);
  const std::string rank1 = absl::StrCat("read pid < ", fifo.path(), "; kill -STOP $pid; exit 3");
  EXPECT_EQ(*RunLaunch(Shell(Either(rank0, rank1), 2)).status, 3);
}

TEST(Launch, StopsGrandchildrenOfAFailedProcess) {
  const Result result = RunLaunch(Shell("sleep 1000 & echo $!; exit 1"));
  EXPECT_EQ(*result.status, 1);
  int grandchild = 0;
  const std::pair<std::string, std::string> words = absl::StrSplit(result.out, "[0] ");
  ASSERT_TRUE(absl::SimpleAtoi(words.second, &grandchild)) << result.out;
  EXPECT_EQ(kill(grandchild, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST(Launch, StopsDescendantsOfASuccessfulProcess) {
  const Result result = RunLaunch(Shell("sleep 1000 & exit 0"));
  EXPECT_EQ(*result.status, 0);
  EXPECT_THAT(result.err, HasSubstr("rank processes left behind: pid "));
}

TEST(Launch, StopsADaemonInASessionOfItsOwn) {
  // It has left the group, and its parent has ended before it.
  const Fifo fifo;
  const Result result = RunLaunch(Shell(absl::StrCat("setsid sh -c 'echo $$; ", fifo.Open(),
                                                     kMaxAckDelay, "' & ", fifo.Pass(), "exit 0")));
  EXPECT_EQ(*result.status, 0);
  int daemon = 0;
  const std::pair<std::string, std::string> words = absl::StrSplit(result.out, "[0] ");
  ASSERT_TRUE(absl::SimpleAtoi(words.second, &daemon)) << result.out;
  EXPECT_THAT(result.err, HasSubstr("rank processes left behind: pid"));
  EXPECT_THAT(result.err, HasSubstr(absl::StrCat(daemon)));
  EXPECT_EQ(kill(daemon, 0), -1);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
}

// Its child is started after the request to stop has been sent to all existing processes.
TEST(Launch, StopsChildrenThatADaemonStartsDuringTheStop) {
  const Fifo fifo;
  const Result result =
      RunLaunch(Shell(absl::StrCat("setsid sh -c \"trap 'sleep 1000 & exit' TERM; ", fifo.Open(),
                                   "while :; do sleep 1; done\" & ", fifo.Pass(), "exit 0")));
  EXPECT_EQ(*result.status, 0);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
}

TEST(Launch, KillsADaemonThatIgnoresTheRequestToStop) {
  const Fifo fifo;
  LaunchOptions options =
      Shell(absl::StrCat("setsid sh -c \"trap '' TERM; ", fifo.Open(),
                         "while :; do sleep 1; done\" & ", fifo.Pass(), "exit 0"));
  options.grace = absl::Milliseconds(100);
  EXPECT_EQ(*RunLaunch(options).status, 0);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
}

TEST(Launch, LeavesTheCallersOtherChildrenAlone) {
  const pid_t other = fork();
  ASSERT_GE(other, 0);
  if (other == 0) {
    pause();
    _exit(0);
  }
  EXPECT_EQ(*RunLaunch(Shell("exit 0")).status, 0);
  EXPECT_EQ(waitpid(other, nullptr, WNOHANG), 0);
  kill(other, SIGKILL);
  EXPECT_EQ(waitpid(other, nullptr, 0), other);
}

struct SignalCase {
  const char* name;
  int status;  // of the launcher when every process ends with 0
};

class LaunchSignal : public ::testing::TestWithParam<SignalCase> {
 protected:
  // A signal that is ignored at the start stays ignored, as SIGINT is in a shell's background jobs,
  // which this program may be.
  static void SetUpTestSuite() {
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
      std::signal(number, SIG_DFL);
    }
  }
};

TEST_P(LaunchSignal, IsPassedOnAndInTheStatusWhenItStopsTheJob) {
  const Fifo fifo;
  const std::string trap = absl::StrCat("trap 'echo got it; exit 0' ", GetParam().name, "; ");
  const std::string send = absl::StrCat("kill -", GetParam().name, " $PPID; ");
  const Result result =
      RunLaunch(Shell(Either(trap + fifo.Open() + kSpin, trap + fifo.Pass() + send + kSpin), 2));
  EXPECT_EQ(*result.status, GetParam().status) << result.err;
  EXPECT_THAT(result.out, HasSubstr("[0] got it\n"));
  EXPECT_THAT(result.out, HasSubstr("[1] got it\n"));
}

INSTANTIATE_TEST_SUITE_P(
    Each, LaunchSignal,
    ::testing::Values(SignalCase{"INT", 128 + SIGINT}, SignalCase{"TERM", 128 + SIGTERM},
                      SignalCase{"HUP", 128 + SIGHUP}, SignalCase{"QUIT", 128 + SIGQUIT},
                      SignalCase{"USR1", 0}, SignalCase{"USR2", 0}),
    [](const ::testing::TestParamInfo<SignalCase>& info) { return std::string(info.param.name); });

TEST(Launch, ReturnsTheSignalWhenProcessesDieOfIt) {
  const Result result = RunLaunch(Shell(absl::StrCat("kill -TERM $PPID; ", kMaxAckDelay)));
  EXPECT_EQ(*result.status, 128 + SIGTERM);
  EXPECT_THAT(result.err, HasSubstr("passing SIGTERM on to 1 process"));
  // No process failed.
  EXPECT_THAT(result.err, Not(HasSubstr("rank 0")));
}

TEST(Launch, KillsAtOnceOnTheSecondSignal) {
  const Fifo fifo;
  // Rank 1 answers the first with a second one, as an impatient person would.
  const std::string rank0 = absl::StrCat("trap '' TERM; ", fifo.Open(), kMaxAckDelay);
  const std::string rank1 =
      absl::StrCat("trap 'kill -TERM $PPID' TERM; ", fifo.Pass(), "kill -TERM $PPID; ", kSpin);
  const Result result = RunLaunch(Shell(Either(rank0, rank1), 2));
  EXPECT_EQ(*result.status, 128 + SIGTERM);
  EXPECT_THAT(result.err, HasSubstr("SIGTERM while stopping: killing what is left"));
}

TEST(Launch, LeavesASignalIgnoredThatWasIgnored) {
  // Under nohup.
  struct sigaction ignore = {};
  struct sigaction before;
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGHUP, &ignore, &before);
  const Result result = RunLaunch(Shell("kill -HUP $PPID; kill -HUP $$; echo alive"));
  struct sigaction after;
  sigaction(SIGHUP, &before, &after);
  EXPECT_EQ(result.out, "[0] alive\n");
  EXPECT_EQ(after.sa_handler, SIG_IGN);
}

TEST(Launch, StartsProcessesWithDefaultSignals) {
  // The caller may block or ignore signals that its children must not.
  sigset_t term;
  sigset_t before;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &term, &before);
  const Result result = RunLaunch(Shell("kill -TERM $$; echo survived"));
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, &before, &after);
  EXPECT_EQ(*result.status, 128 + SIGTERM);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(sigismember(&after, SIGTERM), 1);
}

TEST(Launch, RefusesAMissingCommand) {
  LaunchOptions options = Shell("");
  options.command = {"no-such-command-of-ferry"};
  const Result result = RunLaunch(options);
  EXPECT_EQ(result.status.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(result.status.status().message()),
              HasSubstr("\"no-such-command-of-ferry\""));
}

TEST(Launch, RefusesAFileThatIsNotExecutable) {
  LaunchOptions options = Shell("");
  options.command = {"/etc/passwd"};
  EXPECT_EQ(RunLaunch(options).status.status().code(), absl::StatusCode::kFailedPrecondition);
  options.command = {"/tmp"};
  EXPECT_THAT(std::string(RunLaunch(options).status.status().message()),
              HasSubstr("\"/tmp\" is a directory"));
}

TEST(Launch, ReportsTheKernelsRefusalToRun) {
  const Fifo folder;
  const std::string file = folder.path() + ".bin";
  const UniqueFd fd(open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0700));
  ASSERT_EQ(write(fd.get(), "garbage", 7), 7);
  LaunchOptions options = Shell("");
  options.command = {file};
  const Result result = RunLaunch(options);
  EXPECT_EQ(result.status.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(result.status.status().message()), HasSubstr("cannot run"));
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
}

TEST(Launch, RefusesBadOptionsBeforeItStartsAnything) {
  LaunchOptions options = Shell("echo started");
  options.coordinator = "";
  const Result result = RunLaunch(options);
  EXPECT_EQ(result.status.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(result.out, IsEmpty());
}

TEST(Launch, RefusesToRunTwiceAtATime) {
  const absl::StatusOr<std::unique_ptr<SignalRelay>> relay = SignalRelay::Create();
  ASSERT_TRUE(relay.ok());
  EXPECT_EQ(RunLaunch(Shell("true")).status.status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Launch, LeavesNoZombieAndNoDescriptor) {
  const int before = CountOpenFds(/*inheritable_only=*/false);
  EXPECT_EQ(*RunLaunch(Shell("(sleep 0 & sleep 0 &); exit 4", 4)).status, 4);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
  EXPECT_EQ(CountOpenFds(/*inheritable_only=*/false), before);
  int subreaper = -1;
  prctl(PR_GET_CHILD_SUBREAPER, &subreaper);
  EXPECT_EQ(subreaper, 0);
}

TEST(Launch, PassesItsDescriptorsToNoProcess) {
  // A sibling's pipe in the wrong hands is never closed: the end of the output would not be seen.
  const int inheritable = CountOpenFds(/*inheritable_only=*/true);
  const Result result = RunLaunch(Shell("ls /proc/self/fd | wc -l", 2));
  // One more is the folder that ls reads.
  const std::string expected = absl::StrCat(inheritable + 1, "\n");
  EXPECT_EQ(*result.status, 0);
  EXPECT_THAT(result.out, HasSubstr("[0] " + expected));
  EXPECT_THAT(result.out, HasSubstr("[1] " + expected));
}

TEST(Launch, StopsWhenItsOutputIsClosed) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  close(ends[0]);
  std::FILE* out = fdopen(ends[1], "w");
  const absl::StatusOr<int> status = Launch(Shell("while echo line; do :; done", 2), out, stderr);
  std::fclose(out);
  EXPECT_EQ(*status, 128 + SIGPIPE);
}

// `ferry run` in a process of its own, whose output is read from a pipe, or not read.
class ApartLaunch final {
 public:
  explicit ApartLaunch(const LaunchOptions& options) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    output_ = UniqueFd(ends[0]);
    pid_ = fork();
    if (pid_ == 0) {
      output_.Reset();
      std::FILE* const out = fdopen(ends[1], "w");
      const absl::StatusOr<int> status = Launch(options, out, out);
      _exit(status.ok() ? *status : 99);
    }
    close(ends[1]);
  }
  ~ApartLaunch() {
    if (pid_ < 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  pid_t pid() const { return pid_; }
  // Until the pipe has had room for nothing more for a while.
  void WaitUntilFull() const {
    int before = -1;
    for (int have = 0; have == 0 || have != before;) {
      before = have;
      absl::SleepFor(absl::Milliseconds(200));
      ASSERT_EQ(ioctl(output_.get(), FIONREAD, &have), 0);
    }
  }
  std::string ReadAll() const {
    std::string all;
    char buffer[4096];
    for (ssize_t got; (got = read(output_.get(), buffer, sizeof(buffer))) > 0;) {
      all.append(buffer, static_cast<size_t>(got));
    }
    return all;
  }
  // The exit status; -1 if it does not end.
  int Wait() {
    int status = 0;
    for (int i = 0; i < 200; ++i) {
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      }
      absl::SleepFor(absl::Milliseconds(50));
    }
    return -1;
  }

 private:
  UniqueFd output_;
  pid_t pid_ = -1;
};

// A pager that shows its first page, or a terminal after Ctrl-S.
TEST(Launch, StoppedReader_DelaysNoSignal) {
  ApartLaunch launch(Shell("while echo line; do :; done", 2));
  launch.WaitUntilFull();
  kill(launch.pid(), SIGTERM);
  EXPECT_EQ(launch.Wait(), 128 + SIGTERM);
}

// A failure does not wait for the reader either; the written output is passed on, to the last line.
TEST(Launch, StoppedReader_DelaysNoFailure) {
  const Fifo fifo;
  const std::string pid_file = fifo.path() + ".pid";
  const std::string writes = absl::StrCat("echo $$ > ", pid_file, "; while echo line; do :; done");
  ApartLaunch launch(Shell(Either(absl::StrCat(fifo.Pass(), "echo the end; exit 7"), writes), 2));
  launch.WaitUntilFull();
  int pid = 0;
  std::ifstream(pid_file) >> pid;
  ASSERT_GT(pid, 0);
  EXPECT_EQ(kill(pid, 0), 0);
  EXPECT_EQ(system(fifo.Open().c_str()), 0);
  for (int i = 0; i < 200 && kill(pid, 0) == 0; ++i) absl::SleepFor(absl::Milliseconds(50));
  EXPECT_NE(kill(pid, 0), 0) << "the other rank was not stopped";
  const std::string all = launch.ReadAll();
  EXPECT_EQ(launch.Wait(), 7);
  EXPECT_THAT(all, HasSubstr("[0] the end\n"));
  EXPECT_THAT(all, HasSubstr("ferry run: rank 0"));
}

TEST(Launch, FailsWhenTheDiskIsFull) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* out = std::fopen("/dev/full", "we");
  std::FILE* err = open_memstream(&text, &size);
  const absl::StatusOr<int> status = Launch(Shell("while echo line; do :; done", 2), out, err);
  std::fclose(out);
  std::fclose(err);
  EXPECT_EQ(*status, 1);
  EXPECT_THAT(text, HasSubstr("cannot write the output any more: No space left on device"));
  free(text);
}

TEST(Launch, PassesBytesUnchangedWithoutPrefix) {
  LaunchOptions options = Shell("printf 'a\\r\\nb\\rc\\n\\n\\000\\377end'");
  options.prefix_output = false;
  options.max_line_bytes = 2;
  using std::string_literals::operator""s;
  EXPECT_EQ(RunLaunch(options).out, "a\r\nb\rc\n\n\0\377end"s);
}

TEST(Launch, ItsProcessesDieWhenItIsKilled) {
  int ends[2];
  // Not close-on-exec: the launched process holds the write end until it dies.
  ASSERT_EQ(pipe(ends), 0);
  const pid_t launcher = fork();
  ASSERT_GE(launcher, 0);
  if (launcher == 0) {
    close(ends[0]);
    const std::string script = absl::StrCat("echo up >&", ends[1], "; exec sleep 1000");
    _exit(Launch(Shell(script), stdout, stderr).ok() ? 0 : 1);
  }
  close(ends[1]);
  char text[16];
  EXPECT_EQ(read(ends[0], text, sizeof(text)), 3);
  kill(launcher, SIGKILL);
  EXPECT_EQ(waitpid(launcher, nullptr, 0), launcher);
  EXPECT_EQ(read(ends[0], text, sizeof(text)), 0);
  close(ends[0]);
}

}  // namespace
}  // namespace ferry
