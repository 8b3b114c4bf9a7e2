// SPDX-License-Identifier: Apache-2.0
// Launch: one thread, one poll() loop over the children's pipes and the signal relay.
#include "runtime/launcher.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
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
#include "runtime/line_tagger.h"
#include "runtime/signal_relay.h"

namespace ferry {
namespace {

// How long a process may outlive SIGKILL, stuck in the kernel, before it is left behind.
constexpr absl::Duration kKillPatience = absl::Seconds(5);
// Nothing announces the end of a group's last process when it is not our child: look this often.
constexpr absl::Duration kGroupPollInterval = absl::Milliseconds(20);
constexpr size_t kReadBytes = 64 << 10;
// A process in a failed one's group may write for ever: no more than this is read before the
// report.
constexpr size_t kMaxDrainBytes = 1 << 20;
constexpr size_t kMaxTailLineBytes = 1000;

std::string SignalName(int signal_number) {
  const char* name = sigabbrev_np(signal_number);
  return name != nullptr ? absl::StrCat("SIG", name) : absl::StrCat("signal ", signal_number);
}

int ExitStatus(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

std::string DescribeExit(int wait_status) {
  if (!WIFSIGNALED(wait_status)) {
    return absl::StrCat("exited with status ", WEXITSTATUS(wait_status));
  }
  return absl::StrCat("was killed by ", SignalName(WTERMSIG(wait_status)),
                      WCOREDUMP(wait_status) ? " (core dumped)" : "",
                      WTERMSIG(wait_status) == SIGKILL ? " (often the out-of-memory killer)" : "");
}

std::string Processes(int count) {
  return absl::StrCat(count, count == 1 ? " process" : " processes");
}

std::vector<std::string> InheritedEnvironment() {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  return environment;
}

// A port that was free a moment ago. Rank 0 binds it itself, so it cannot be held for it.
absl::StatusOr<int> FreePort() {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof(address);
  if (!fd.valid() || bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return absl::InternalError(absl::StrCat("no free TCP port: ", std::strerror(errno)));
  }
  return ntohs(address.sin_port);
}

// Orphans of our processes become ours while this lives, so that waiting for a group sees all of
// it, even where this process is the init of its container and nobody else would.
class Subreaper final {
 public:
  Subreaper() {
    prctl(PR_GET_CHILD_SUBREAPER, &before_);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~Subreaper() { prctl(PR_SET_CHILD_SUBREAPER, before_); }

  Subreaper(const Subreaper&) = delete;
  Subreaper& operator=(const Subreaper&) = delete;

 private:
  int before_ = 0;
};

// A started process, and the group it leads.
struct Rank {
  // One of its two output streams.
  struct Stream {
    UniqueFd fd;
    LineTagger tagger;
    std::FILE* file;
  };

  Rank(int rank, pid_t pid, Stream out, Stream err)
      : rank(rank), pid(pid), streams{std::move(out), std::move(err)} {}

  const int rank;
  const pid_t pid;
  Stream streams[2];
  std::deque<std::string> tail;  // last lines of both streams
  bool running = true;           // the process itself
  bool group_alive = true;       // it, or others in its group
  bool was_killed = false;       // by us
};

struct Exit {
  Rank* rank;
  int wait_status;
};

// The state of one Launch. Used on one thread.
class Launcher final {
 public:
  Launcher(const LaunchOptions& options, std::FILE* out, std::FILE* err, SignalRelay& relay)
      : options_(options), out_(out), err_(err), relay_(relay), read_buffer_(kReadBytes, '\0') {}
  ~Launcher();

  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  absl::Status Start(const std::string& file, const std::vector<std::string>& inherited);

  // Runs until every process is gone; the exit status.
  int Run();

 private:
  void WaitForEvents();
  void ReadStream(Rank& rank, Rank::Stream& stream, size_t max_bytes);
  void FlushRank(Rank& rank);
  void WriteLine(Rank& rank, Rank::Stream& stream, absl::string_view line);
  void Say(absl::string_view text);

  void TakeSignals();
  void ReapExited();
  void ReapGroup(Rank& rank, std::vector<Exit>& exits);
  // For when only processes are left that the ranks started.
  void StopLeftovers();
  void HandleExit(const Exit& exit);
  void ReportFailure(const Exit& exit);

  void SignalAll(int signal_number);
  // Sends `signal_number` to what is left, and sets the time when SIGKILL follows.
  void Stop(int signal_number);
  void KillRest();
  void CheckTime();

  int CountRunning() const;
  bool AnyGroupAlive() const;

  // Constant after construction.
  const LaunchOptions& options_;
  std::FILE* const out_;
  std::FILE* const err_;
  SignalRelay& relay_;
  const absl::Time start_ = SteadyClock().Now();

  std::string read_buffer_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  int exit_status_ = 0;  // of the first failure
  bool output_failed_ = false;
  int stop_signal_ = 0;  // the one that was passed on, when that is why we stop
  bool stopping_ = false;
  bool leftovers_stopped_ = false;
  bool killed_ = false;
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
    FERRY_ASSIGN_OR_RETURN(ChildProcess child, SpawnChild(file, options_.command, environment));
    const int rank = GlobalRank(options_, local_rank);
    const std::string tag = options_.prefix_output ? absl::StrCat("[", rank, "] ") : "";
    ranks_.push_back(std::make_unique<Rank>(
        rank, child.pid,
        Rank::Stream{std::move(child.stdout_fd), LineTagger(tag, options_.max_line_bytes), out_},
        Rank::Stream{std::move(child.stderr_fd), LineTagger(tag, options_.max_line_bytes), err_}));
  }
  return absl::OkStatus();
}

int Launcher::Run() {
  // A child that was gone before its handler was there is seen here.
  ReapExited();
  while (AnyGroupAlive()) {
    WaitForEvents();
    TakeSignals();
    ReapExited();
    CheckTime();
  }
  for (const std::unique_ptr<Rank>& rank : ranks_) FlushRank(*rank);
  if (std::fflush(out_) != 0) output_failed_ = true;
  std::fflush(err_);
  if (output_failed_ && exit_status_ == 0) exit_status_ = 128 + SIGPIPE;
  return exit_status_;
}

void Launcher::WaitForEvents() {
  std::vector<pollfd> polled = {{relay_.fd(), POLLIN, 0}};
  std::vector<std::pair<Rank*, Rank::Stream*>> owners;
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    for (Rank::Stream& stream : rank->streams) {
      if (!stream.fd.valid()) continue;
      polled.push_back({stream.fd.get(), POLLIN, 0});
      owners.emplace_back(rank.get(), &stream);
    }
  }
  absl::Duration timeout = deadline_ ? *deadline_ - SteadyClock().Now() : absl::InfiniteDuration();
  if (CountRunning() == 0) timeout = std::min(timeout, kGroupPollInterval);
  int timeout_ms = -1;
  if (timeout != absl::InfiniteDuration()) {
    timeout = std::clamp(timeout, absl::ZeroDuration(), absl::Hours(1));
    timeout_ms = static_cast<int>(absl::ToInt64Milliseconds(timeout)) + 1;
  }
  if (poll(polled.data(), polled.size(), timeout_ms) <= 0) return;
  for (size_t i = 0; i < owners.size(); ++i) {
    if (polled[i + 1].revents != 0) ReadStream(*owners[i].first, *owners[i].second, kReadBytes);
  }
  if (std::fflush(out_) != 0 || std::fflush(err_) != 0) output_failed_ = true;
}

void Launcher::ReadStream(Rank& rank, Rank::Stream& stream, size_t max_bytes) {
  const auto write_line = [this, &rank, &stream](absl::string_view line) {
    WriteLine(rank, stream, line);
  };
  for (size_t total = 0; stream.fd.valid() && total < max_bytes;) {
    const ssize_t count = read(stream.fd.get(), read_buffer_.data(), read_buffer_.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) {
      stream.tagger.Flush(write_line);
      stream.fd.Reset();
      return;
    }
    total += count;
    stream.tagger.Append(absl::string_view(read_buffer_.data(), count), write_line);
  }
}

// Reads what is there, and lets the last, unfinished lines go.
void Launcher::FlushRank(Rank& rank) {
  for (Rank::Stream& stream : rank.streams) {
    ReadStream(rank, stream, kMaxDrainBytes);
    stream.tagger.Flush(
        [this, &rank, &stream](absl::string_view line) { WriteLine(rank, stream, line); });
  }
}

void Launcher::WriteLine(Rank& rank, Rank::Stream& stream, absl::string_view line) {
  if (options_.tail_line_count > 0) {
    if (rank.tail.size() == static_cast<size_t>(options_.tail_line_count)) rank.tail.pop_front();
    rank.tail.emplace_back(stream.tagger.Untagged(line).substr(0, kMaxTailLineBytes));
  }
  if (std::fwrite(line.data(), 1, line.size(), stream.file) != line.size()) output_failed_ = true;
}

void Launcher::Say(absl::string_view text) {
  // After what the processes wrote before.
  std::fflush(out_);
  const std::string line = absl::StrCat("ferry run: ", text, "\n");
  std::fwrite(line.data(), 1, line.size(), err_);
  std::fflush(err_);
}

void Launcher::TakeSignals() {
  for (const int signal_number : relay_.Take()) {
    if (signal_number == SIGCHLD) continue;
    if (signal_number == SIGUSR1 || signal_number == SIGUSR2) {
      SignalAll(signal_number);
    } else if (stopping_) {
      Say(absl::StrCat(SignalName(signal_number), " while stopping: killing what is left"));
      KillRest();
    } else {
      stop_signal_ = signal_number;
      Say(absl::StrCat("passing ", SignalName(signal_number), " on to ", Processes(CountRunning()),
                       "; killing what still runs in ", ShortDuration(options_.grace)));
      Stop(signal_number);
    }
  }
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
  if (CountRunning() == 0 && AnyGroupAlive()) StopLeftovers();
}

void Launcher::StopLeftovers() {
  if (leftovers_stopped_) return;
  leftovers_stopped_ = true;
  if (stopping_) {
    // They may have ignored what their parents obeyed: a shell's background jobs do with SIGINT.
    SignalAll(SIGTERM);
    return;
  }
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    if (rank->group_alive) {
      Say(absl::StrCat("rank ", rank->rank, " left processes behind; stopping them"));
    }
  }
  Stop(SIGTERM);
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
  FlushRank(*exit.rank);
  const int status = ExitStatus(exit.wait_status);
  if (status == 0) return;
  const bool is_first = exit_status_ == 0;
  if (is_first) exit_status_ = status;
  if (!stopping_) {
    ReportFailure(exit);
    const int others = CountRunning();
    if (others > 0) {
      Say(absl::StrCat("stopping the other ", Processes(others), "; killing what still runs in ",
                       ShortDuration(options_.grace)));
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
  const std::deque<std::string>& tail = exit.rank->tail;
  std::string text = absl::StrCat("rank ", exit.rank->rank, " (pid ", exit.rank->pid, where, ") ",
                                  DescribeExit(exit.wait_status), " after ",
                                  ShortDuration(SteadyClock().Now() - start_));
  if (tail.empty()) {
    absl::StrAppend(&text, options_.tail_line_count > 0 ? "; it wrote nothing" : "");
  } else {
    absl::StrAppend(&text, "; its last ",
                    tail.size() == 1 ? "line:" : absl::StrCat(tail.size(), " lines:"));
    for (const std::string& line : tail) absl::StrAppend(&text, "\n    ", line);
  }
  Say(text);
}

void Launcher::SignalAll(int signal_number) {
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    if (!rank->group_alive) continue;
    if (kill(-rank->pid, signal_number) != 0 && rank->running) kill(rank->pid, signal_number);
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
  if (output_failed_ && !stopping_) {
    if (exit_status_ == 0) exit_status_ = 128 + SIGPIPE;
    Say("cannot write the output any more; stopping");
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
    if (exit_status_ == 0) exit_status_ = 128 + SIGKILL;
    rank->running = false;
    rank->group_alive = false;
  }
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
    options.master = absl::StrCat("127.0.0.1:", port);
  }
  const std::vector<std::string> inherited = InheritedEnvironment();
  const char* path = std::getenv("PATH");
  FERRY_ASSIGN_OR_RETURN(const std::string file,
                         FindProgram(options.command[0], path != nullptr ? path : "/usr/bin:/bin"));
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<SignalRelay> relay, SignalRelay::Create());
  const Subreaper subreaper;
  Launcher launcher(options, out, err, *relay);
  FERRY_RETURN_IF_ERROR(launcher.Start(file, inherited));
  return launcher.Run();
}

}  // namespace ferry
