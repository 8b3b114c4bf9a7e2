// SPDX-License-Identifier: Apache-2.0
// Launch: one thread, one poll() loop over the children's pipes and the signal relay.
#include "launch/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/file_limit.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "launch/launcher_impl.h"
#include "launch/master_address.h"

namespace ferry {
namespace launcher_internal {
namespace {

// The end of a group's last process is not signalled if it is not our child: poll at this interval.
constexpr absl::Duration kGroupPollInterval = absl::Milliseconds(20);

// Limit on buffered output: above it no more is read until our reader has consumed some, so that
// processes block on their pipes. While they are being stopped, kMaxWaitingAtEnd applies.
constexpr size_t kMaxWaiting = size_t{256} << 10;
constexpr size_t kMaxWaitingAtEnd = size_t{16} << 20;
// Maximum time without progress of our output's reader, once a signal has told us to stop.
constexpr absl::Duration kReaderTimeout = absl::Seconds(1);

}  // namespace

Launcher::~Launcher() {
  // Ranks are left here only if Start failed halfway.
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
    FERRY_LOG_INFO(kLaunch, "process started: rank={} child={} program={}", rank,
                   ranks_.back()->pid, Quoted(file));
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> Launcher::OpenInput() {
  // stdin is closed, or replaced by the tool's placeholder: the rank reads /dev/null, as without
  // --stdin.
  const int flags = fcntl(STDIN_FILENO, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) == O_WRONLY) return UniqueFd();
  if (isatty(STDIN_FILENO) != 1) {
    // Numbered above the standard streams, which the child replaces one after the other.
    UniqueFd input(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
    if (!input.valid()) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", *options_.stdin_rank,
                       " cannot have standard input: ", ErrorWithFileLimit(errno)));
    }
    return input;
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("pipe2: ", ErrorWithFileLimit(errno)));
  }
  UniqueFd read_end(ends[0]);
  input_ = std::make_unique<TerminalInput>(STDIN_FILENO, UniqueFd(ends[1]));
  return read_end;
}

int Launcher::Run() {
  // Reaps a child that exited before its handler was installed.
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
  absl::Time until = SteadyClock().Now() + kReaderTimeout;
  for (size_t before = output_.waiting(); before > 0;) {
    // A job that ended by itself waits for its reader indefinitely, as any other tool does.
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
      until = SteadyClock().Now() + kReaderTimeout;
    }
    NoteOutput(output_.Flush());
    const size_t after = output_.waiting();
    if (after < before) until = SteadyClock().Now() + kReaderTimeout;
    before = after;
  }
}

void Launcher::NoteOutput(int error) {
  if (output_error_ == 0) output_error_ = error;
}

void Launcher::Say(absl::string_view text) {
  // Follows what the processes wrote before. A write error cannot be reported here either.
  (void)output_.Flush();
  (void)output_.err().Write(absl::StrCat("ferry run: ", text, "\n"));
  (void)output_.Flush();
}

}  // namespace launcher_internal

namespace {

std::vector<std::string> InheritedEnvironment() {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  return environment;
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
  launcher_internal::Launcher launcher(options, out, err, *relay);
  FERRY_RETURN_IF_ERROR(launcher.Start(file, inherited));
  return launcher.Run();
}

}  // namespace ferry
