// SPDX-License-Identifier: Apache-2.0
// Launch: one thread, one poll() loop over the children's pipes and the signal relay.
#include "runtime/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "runtime/child_process.h"
#include "runtime/exit_text.h"
#include "runtime/master_address.h"
#include "runtime/patient_output.h"
#include "runtime/printable.h"
#include "runtime/rank_output.h"
#include "runtime/signal_relay.h"
#include "runtime/strays.h"
#include "runtime/terminal_input.h"

namespace ferry {
namespace {

// How long a process may outlive SIGKILL, stuck in the kernel, before it is left behind.
constexpr absl::Duration kKillPatience = absl::Seconds(5);
// Nothing announces the end of a group's last process when it is not our child: look this often.
constexpr absl::Duration kGroupPollInterval = absl::Milliseconds(20);

// More output is not read before this much has been taken by whoever reads ours: then processes
// wait with theirs. While they are stopped they need not.
constexpr size_t kMaxWaiting = size_t{256} << 10;
constexpr size_t kMaxWaitingAtEnd = size_t{16} << 20;
// For the reader of our output to go on reading, once a signal has told us to stop.
constexpr absl::Duration kReaderPatience = absl::Seconds(1);

std::string Processes(int count) {
  return absl::StrCat(count, count == 1 ? " process" : " processes");
}

std::string KillingIn(absl::Duration grace) {
  if (grace == absl::ZeroDuration()) return "killing what still runs at once";
  return absl::StrCat("killing what still runs in ", ShortDuration(grace));
}

// A reader that went away is told of as by any other tool; the rest is a failure of ours.
int OutputStatus(int error) { return error == EPIPE ? 128 + SIGPIPE : 1; }

// True for those signals of the relay that stop the foreground job.
bool IsJobControl(int signal_number) {
  return signal_number == SIGTSTP || signal_number == SIGTTIN || signal_number == SIGTTOU;
}

bool StopsTheJob(int signal_number) {
  return signal_number == SIGINT || signal_number == SIGTERM || signal_number == SIGHUP ||
         signal_number == SIGQUIT;
}

std::vector<std::string> InheritedEnvironment() {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  return environment;
}

// A started process, and the group it leads.
struct Rank {
  Rank(const LaunchOptions& options, int rank, ChildProcess child, PatientOutput& out,
       PatientOutput& err)
      : rank(rank),
        pid(child.pid),
        output(options, rank, std::move(child.stdout_fd), std::move(child.stderr_fd), out, err) {}

  const int rank;
  const pid_t pid;
  RankOutput output;
  bool running = true;      // the process itself
  bool group_alive = true;  // it, or others in its group
  bool was_killed = false;  // by us
};

struct Exit {
  Rank* rank;
  int wait_status;
};

// The state of one Launch. Used on one thread.
class Launcher final {
 public:
  Launcher(const LaunchOptions& options, std::FILE* out, std::FILE* err, SignalRelay& relay)
      : options_(options), output_(out, err), relay_(relay) {}
  ~Launcher();

  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  absl::Status Start(const std::string& file, const std::vector<std::string>& inherited);

  // Runs until every process is gone; the exit status.
  int Run();

 private:
  void WaitForEvents();
  void NoteOutput(int error);
  // Waits until everything has been taken; no longer than kReaderPatience without any progress when
  // a signal has come.
  void FinishOutput();
  void Say(absl::string_view text);

  void TakeSignals();
  // Stops the processes, then this one; when this one continues, they do too.
  void Suspend();
  // The standard input of the process that is to have ours; fills in input_ for a terminal.
  absl::StatusOr<UniqueFd> OpenInput();
  void ReapExited();
  void ReapGroup(Rank& rank, std::vector<Exit>& exits);
  // For when only processes are left that the ranks started.
  void StopLeftovers();
  // Tells those to stop that were made while their parents were told, too late for them to be seen,
  // or that may not have heard it.
  void StopNewcomers();
  void HandleExit(const Exit& exit);
  void ReportFailure(const Exit& exit);

  void SignalAll(int signal_number);
  // Sends `signal_number` to what is left, and sets the time when SIGKILL follows.
  void Stop(int signal_number);
  void KillRest();
  void CheckTime();

  int CountRunning() const;
  bool IsRunningRank(pid_t pid) const;
  bool IsInLivingGroup(pid_t pid) const;
  bool AnyGroupAlive() const;

  // Constant after construction.
  const LaunchOptions& options_;
  PatientOutputs output_;
  SignalRelay& relay_;
  const absl::Time start_ = SteadyClock().Now();

  const Strays strays_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  int exit_status_ = 0;   // of the first failure
  int output_error_ = 0;  // errno of the first failure to write
  int stop_signal_ = 0;   // the one that was passed on, when that is why we stop
  bool stopping_ = false;
  // Null unless a process reads our terminal.
  std::unique_ptr<TerminalInput> input_;
  std::vector<pid_t> left_behind_;  // what descends from ranks once none of these runs
  bool leftovers_stopped_ = false;
  std::map<pid_t, std::string> told_;  // of those, and which program each was (ProgramOf)
  bool killed_ = false;
  bool gave_up_ = false;                // on what even SIGKILL does not end
  std::optional<absl::Time> deadline_;  // of the grace period, then of the patience after SIGKILL
};

Launcher::~Launcher() {
  // Only when Start failed half-way is anything left here.
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    if (!rank->running) continue;
    kill(-rank->pid, SIGKILL);
    while (waitpid(rank->pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

absl::Status Launcher::Start(const std::string& file, const std::vector<std::string>& inherited) {
  for (int local_rank = 0; local_rank < options_.local_count; ++local_rank) {
    FERRY_ASSIGN_OR_RETURN(const std::vector<std::string> environment,
                           ComposeEnvironment(options_, local_rank, inherited));
    const int rank = GlobalRank(options_, local_rank);
    UniqueFd input;
    if (rank == options_.stdin_rank) {
      FERRY_ASSIGN_OR_RETURN(input, OpenInput());
    }
    FERRY_ASSIGN_OR_RETURN(ChildProcess child,
                           SpawnChild(file, options_.command, environment, input.get()));
    ranks_.push_back(
        std::make_unique<Rank>(options_, rank, std::move(child), output_.out(), output_.err()));
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> Launcher::OpenInput() {
  if (isatty(STDIN_FILENO) != 1) {
    // Above the standard streams, which the child replaces one after the other.
    UniqueFd input(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
    if (!input.valid()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "rank ", *options_.stdin_rank, " cannot have standard input: ", std::strerror(errno)));
    }
    return input;
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("pipe2: ", std::strerror(errno)));
  }
  UniqueFd read_end(ends[0]);
  input_ = std::make_unique<TerminalInput>(STDIN_FILENO, UniqueFd(ends[1]));
  return read_end;
}

int Launcher::Run() {
  // A child that was gone before its handler was there is seen here.
  ReapExited();
  while (AnyGroupAlive() || !left_behind_.empty()) {
    WaitForEvents();
    TakeSignals();
    ReapExited();
    CheckTime();
  }
  for (const std::unique_ptr<Rank>& rank : ranks_) NoteOutput(rank->output.Drain());
  FinishOutput();
  if (output_error_ != 0 && !stopping_) {
    Say(absl::StrCat("cannot write the output: ", std::strerror(output_error_)));
  }
  // A job that was interrupted must not be reported as successful, whatever its processes returned.
  if (exit_status_ == 0 && stop_signal_ != 0) exit_status_ = 128 + stop_signal_;
  if (exit_status_ == 0 && output_error_ != 0) exit_status_ = OutputStatus(output_error_);
  return exit_status_;
}

void Launcher::WaitForEvents() {
  std::vector<pollfd> polled = {{relay_.fd(), POLLIN, 0}};
  output_.AddPolled(polled);
  if (input_ != nullptr) input_->AddPolled(polled);
  const size_t first = polled.size();
  const size_t max_waiting = stopping_ ? kMaxWaitingAtEnd : kMaxWaiting;
  std::vector<std::pair<Rank*, int>> owners;
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    for (int stream = 0; stream < RankOutput::kStreamCount; ++stream) {
      const int fd = rank->output.fd(stream, max_waiting);
      if (fd < 0) continue;
      polled.push_back({fd, POLLIN, 0});
      owners.emplace_back(rank.get(), stream);
    }
  }
  absl::Duration timeout = deadline_ ? *deadline_ - SteadyClock().Now() : absl::InfiniteDuration();
  if (CountRunning() == 0) timeout = std::min(timeout, kGroupPollInterval);
  if (input_ != nullptr) timeout = std::min(timeout, input_->NextLook());
  int timeout_ms = -1;
  if (timeout != absl::InfiniteDuration()) {
    timeout = std::clamp(timeout, absl::ZeroDuration(), absl::Hours(1));
    timeout_ms = static_cast<int>(absl::ToInt64Milliseconds(timeout)) + 1;
  }
  if (poll(polled.data(), polled.size(), timeout_ms) <= 0) return;
  if (input_ != nullptr) input_->Move();
  for (size_t i = 0; i < owners.size(); ++i) {
    if (polled[first + i].revents == 0) continue;
    NoteOutput(owners[i].first->output.Read(owners[i].second));
  }
  NoteOutput(output_.Flush());
}

void Launcher::FinishOutput() {
  NoteOutput(output_.Flush());
  absl::Time until = SteadyClock().Now() + kReaderPatience;
  for (size_t before = output_.waiting(); before > 0;) {
    // A job that has ended by itself waits for its reader as any other tool does.
    int timeout_ms = -1;
    if (stop_signal_ != 0) {
      const absl::Duration left = until - SteadyClock().Now();
      if (left <= absl::ZeroDuration()) return;
      timeout_ms = static_cast<int>(absl::ToInt64Milliseconds(left)) + 1;
    }
    std::vector<pollfd> polled = {{relay_.fd(), POLLIN, 0}};
    output_.AddPolled(polled);
    poll(polled.data(), polled.size(), timeout_ms);
    for (const int signal_number : relay_.Take()) {
      if (IsJobControl(signal_number)) Suspend();
      if (!StopsTheJob(signal_number)) continue;
      if (stop_signal_ != 0) return;
      stop_signal_ = signal_number;
      until = SteadyClock().Now() + kReaderPatience;
    }
    NoteOutput(output_.Flush());
    const size_t after = output_.waiting();
    if (after < before) until = SteadyClock().Now() + kReaderPatience;
    before = after;
  }
}

void Launcher::NoteOutput(int error) {
  if (output_error_ == 0) output_error_ = error;
}

void Launcher::Say(absl::string_view text) {
  // After what the processes wrote before. What cannot be written cannot be told of either.
  (void)output_.Flush();
  (void)output_.err().Write(absl::StrCat("ferry run: ", text, "\n"));
  (void)output_.Flush();
}

void Launcher::TakeSignals() {
  for (const int signal_number : relay_.Take()) {
    if (signal_number == SIGCHLD) continue;
    if (IsJobControl(signal_number)) {
      Suspend();
    } else if (!StopsTheJob(signal_number)) {
      SignalAll(signal_number);
    } else if (stopping_) {
      Say(absl::StrCat(SignalName(signal_number), " while stopping: killing what is left"));
      KillRest();
    } else {
      stop_signal_ = signal_number;
      Say(absl::StrCat("passing ", SignalName(signal_number), " on to ", Processes(CountRunning()),
                       "; ", KillingIn(options_.grace)));
      Stop(signal_number);
    }
  }
}

void Launcher::Suspend() {
  const absl::Time stopped = SteadyClock().Now();
  SignalAll(SIGTSTP);
  // Not SIGTSTP, which the kernel drops where no shell controls the process group: the ranks would
  // stay stopped. raise() directs it to this thread, which thus does not get past this line first.
  raise(SIGSTOP);
  SignalAll(SIGCONT);
  if (deadline_) *deadline_ += SteadyClock().Now() - stopped;
}

void Launcher::ReapExited() {
  std::vector<Exit> exits;
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    if (rank->group_alive) ReapGroup(*rank, exits);
  }
  // When several went at once, a crash explains the others' complaints better than they explain it.
  std::stable_sort(exits.begin(), exits.end(), [](const Exit& a, const Exit& b) {
    return WIFSIGNALED(a.wait_status) > WIFSIGNALED(b.wait_status);
  });
  for (const Exit& exit : exits) HandleExit(exit);
  strays_.Reap([this](pid_t pid) { return IsRunningRank(pid); });
  if (CountRunning() > 0) return;
  left_behind_ = gave_up_ ? std::vector<pid_t>() : strays_.Find();
  if (AnyGroupAlive() || !left_behind_.empty()) StopLeftovers();
}

void Launcher::StopLeftovers() {
  if (killed_) {
    // Each time: what has been told of only now was not there to be killed before.
    SignalAll(SIGKILL);
    return;
  }
  if (leftovers_stopped_) return StopNewcomers();
  leftovers_stopped_ = true;
  // Before they are told.
  for (const pid_t pid : left_behind_) told_.emplace(pid, ProgramOf(pid));
  if (stopping_) {
    std::vector<pid_t> elsewhere;
    for (const pid_t pid : left_behind_) {
      if (!IsInLivingGroup(pid)) elsewhere.push_back(pid);
    }
    // Those of the groups were told to stop as their parents were, and may be about to. But they
    // may have ignored what their parents obeyed: a shell's background jobs do with SIGINT.
    if (!elsewhere.empty()) {
      Say(absl::StrCat("rank processes left behind: ", FormatPids(elsewhere), "; stopping them"));
    }
    SignalAll(SIGTERM);
  } else {
    Say(absl::StrCat("rank processes left behind: ", FormatPids(left_behind_), "; stopping them"));
    Stop(SIGTERM);
  }
}

void Launcher::StopNewcomers() {
  for (const pid_t pid : left_behind_) {
    if (IsInLivingGroup(pid)) continue;
    std::string program = ProgramOf(pid);
    const auto [told, is_new] = told_.try_emplace(pid, program);
    // A fork that was told before it became what it was to be may have lost it: until then it has
    // its parent's handlers, and a shell's put off what they hear.
    if (!is_new && (program.empty() || told->second == program)) continue;
    told->second = std::move(program);
    kill(pid, SIGTERM);
    kill(pid, SIGCONT);
  }
}

void Launcher::ReapGroup(Rank& rank, std::vector<Exit>& exits) {
  int wait_status = 0;
  pid_t pid = 0;
  // Of the group's other members only adopted orphans are our children.
  while ((pid = waitpid(-rank.pid, &wait_status, WNOHANG)) > 0) {
    if (pid != rank.pid) continue;
    rank.running = false;
    exits.push_back({&rank, wait_status});
  }
  // By its own id too, because a process may leave the group it was given.
  if (rank.running && waitpid(rank.pid, &wait_status, WNOHANG) == rank.pid) {
    rank.running = false;
    exits.push_back({&rank, wait_status});
  }
  if (rank.running) return;
  // The group's id cannot pass to others while it has members; once empty it is never used again.
  rank.group_alive = kill(-rank.pid, 0) == 0 || errno == EPERM;
}

void Launcher::HandleExit(const Exit& exit) {
  NoteOutput(exit.rank->output.Drain());
  if (input_ != nullptr && exit.rank->rank == options_.stdin_rank) input_->Close();
  const int status = ExitStatus(exit.wait_status);
  if (status == 0) return;
  // A process's status after it was told to stop is not a failure of the job.
  if (exit_status_ == 0 && stop_signal_ == 0) exit_status_ = status;
  if (!stopping_) {
    ReportFailure(exit);
    const int others = CountRunning();
    if (others > 0) {
      Say(absl::StrCat("stopping the other ", Processes(others), "; ", KillingIn(options_.grace)));
    }
    Stop(SIGTERM);
    return;
  }
  // On the way down, only what is not our own doing is worth a line.
  const int sent = stop_signal_ != 0 ? stop_signal_ : SIGTERM;
  if (exit.rank->was_killed) {
    Say(absl::StrCat("rank ", exit.rank->rank, " did not stop and was killed"));
  } else if (!WIFSIGNALED(exit.wait_status) || WTERMSIG(exit.wait_status) != sent) {
    Say(absl::StrCat("rank ", exit.rank->rank, " ", DescribeExit(exit.wait_status),
                     " while stopping"));
  }
}

void Launcher::ReportFailure(const Exit& exit) {
  std::string where;
  if (options_.machine_count > 1) {
    char host[256] = {};
    gethostname(host, sizeof(host) - 1);
    where = absl::StrCat(" on ", host);
  }
  const std::deque<std::string>& tail = exit.rank->output.tail();
  std::string text = absl::StrCat("rank ", exit.rank->rank, " (pid ", exit.rank->pid, where, ") ",
                                  DescribeExit(exit.wait_status), " after ",
                                  ShortDuration(SteadyClock().Now() - start_));
  if (tail.empty()) {
    absl::StrAppend(&text, options_.tail_line_count > 0 ? "; it wrote nothing" : "");
  } else {
    absl::StrAppend(&text, "; its last ",
                    tail.size() == 1 ? "line:" : absl::StrCat(tail.size(), " lines:"));
    for (const std::string& line : tail) absl::StrAppend(&text, "\n    ", PrintableText(line));
  }
  Say(text);
}

void Launcher::SignalAll(int signal_number) {
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    if (!rank->group_alive) continue;
    if (kill(-rank->pid, signal_number) != 0 && rank->running) kill(rank->pid, signal_number);
  }
  for (const pid_t pid : left_behind_) {
    if (!IsInLivingGroup(pid)) kill(pid, signal_number);
  }
}

void Launcher::Stop(int signal_number) {
  stopping_ = true;
  SignalAll(signal_number);
  // A stopped process would sleep through it.
  SignalAll(SIGCONT);
  deadline_ = SteadyClock().Now() + options_.grace;
}

void Launcher::KillRest() {
  for (const std::unique_ptr<Rank>& rank : ranks_) rank->was_killed |= rank->running;
  SignalAll(SIGKILL);
  stopping_ = true;
  if (killed_) return;
  killed_ = true;
  deadline_ = SteadyClock().Now() + kKillPatience;
}

void Launcher::CheckTime() {
  if (output_error_ != 0 && !stopping_) {
    if (exit_status_ == 0) exit_status_ = OutputStatus(output_error_);
    Say(absl::StrCat("cannot write the output any more: ", std::strerror(output_error_),
                     "; stopping"));
    Stop(SIGTERM);
  }
  if (!deadline_ || SteadyClock().Now() < *deadline_) return;
  if (!killed_) {
    KillRest();
    return;
  }
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    if (!rank->group_alive) continue;
    Say(absl::StrCat("rank ", rank->rank, " (process group ", rank->pid, ") is still there ",
                     ShortDuration(kKillPatience), " after SIGKILL; leaving it behind"));
    if (exit_status_ == 0 && stop_signal_ == 0) exit_status_ = 128 + SIGKILL;
    rank->running = false;
    rank->group_alive = false;
  }
  if (!left_behind_.empty()) {
    Say(absl::StrCat("still there ", ShortDuration(kKillPatience),
                     " after SIGKILL: ", FormatPids(left_behind_)));
    left_behind_.clear();
  }
  gave_up_ = true;
}

bool Launcher::IsRunningRank(pid_t pid) const {
  return std::any_of(ranks_.begin(), ranks_.end(), [pid](const std::unique_ptr<Rank>& rank) {
    return rank->running && rank->pid == pid;
  });
}

bool Launcher::IsInLivingGroup(pid_t pid) const {
  const pid_t group = getpgid(pid);
  return std::any_of(ranks_.begin(), ranks_.end(), [group](const std::unique_ptr<Rank>& rank) {
    return rank->group_alive && rank->pid == group;
  });
}

int Launcher::CountRunning() const {
  return static_cast<int>(
      std::count_if(ranks_.begin(), ranks_.end(),
                    [](const std::unique_ptr<Rank>& rank) { return rank->running; }));
}

bool Launcher::AnyGroupAlive() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const std::unique_ptr<Rank>& rank) { return rank->group_alive; });
}

}  // namespace

absl::StatusOr<int> Launch(const LaunchOptions& given, std::FILE* out, std::FILE* err) {
  FERRY_RETURN_IF_ERROR(CheckLaunchOptions(given));
  LaunchOptions options = given;
  if (options.machine_count == 1 && options.master.empty()) {
    FERRY_ASSIGN_OR_RETURN(const int port, FreePort());
    options.master = JoinHostPort("127.0.0.1", port);
  }
  const std::vector<std::string> inherited = InheritedEnvironment();
  const char* path = std::getenv("PATH");
  FERRY_ASSIGN_OR_RETURN(const std::string file,
                         FindProgram(options.command[0], path != nullptr ? path : "/usr/bin:/bin"));
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<SignalRelay> relay, SignalRelay::Create());
  Launcher launcher(options, out, err, *relay);
  FERRY_RETURN_IF_ERROR(launcher.Start(file, inherited));
  return launcher.Run();
}

}  // namespace ferry
