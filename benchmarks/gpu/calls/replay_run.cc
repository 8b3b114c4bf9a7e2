// SPDX-License-Identifier: Apache-2.0
// ReplayRun: order, deadlines, and the deaths of processes.
#include "benchmarks/gpu/calls/replay_run.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

#include "base/bounded_text.h"
#include "base/status_macros.h"
#include "benchmarks/gpu/calls/replay_worker.h"

namespace ferry::calls {

namespace {

constexpr size_t kMaxNamedCalls = 5;

// A process that does not say when it ended has ended by the time that another one saw it. Calls
// are recorded when they return, so it has not ended before: a thread may be in one when another
// thread says the end. Empty: at the end of the replay.
std::optional<int64_t> EndOf(const CallRecord& record, const std::vector<CallRecord>& records) {
  std::optional<int64_t> ended_ns = record.ended_ns;
  for (const CallRecord& other : records) {
    if (record.ended_ns.has_value()) break;
    for (const auto& [seen_ns, name] : other.gone) {
      if (name == record.name) ended_ns = std::min(ended_ns.value_or(seen_ns), seen_ns);
    }
  }
  if (!ended_ns.has_value()) return std::nullopt;
  for (const RecordedCall& call : record.calls) {
    ended_ns = std::max({*ended_ns, call.ended_ns, call.began_ns + 1});
  }
  return ended_ns;
}

}  // namespace

ReplayRun::ReplayRun(const std::vector<CallRecord>& records, const ReplayMachine& machine,
                     Options options, ReplayReport& report)
    : records_(records),
      machine_(machine),
      options_(std::move(options)),
      report_(report),
      processes_(records.size()) {}

ReplayRun::~ReplayRun() {
  for (Process& process : processes_) {
    if (process.state != State::kRuns) continue;
    kill(process.pid, SIGKILL);
    close(process.socket);
    waitpid(process.pid, nullptr, 0);
  }
}

std::vector<ReplayRun::Event> ReplayRun::Events() const {
  std::vector<Event> events;
  for (size_t i = 0; i < records_.size(); ++i) {
    const CallRecord& record = records_[i];
    for (size_t k = 0; k < record.calls.size(); ++k) {
      events.push_back({record.calls[k].began_ns, i, static_cast<int64_t>(k)});
    }
    const std::optional<int64_t> ended_ns = EndOf(record, records_);
    if (ended_ns.has_value() && !record.calls.empty()) {
      events.push_back({*ended_ns, i, kEnd});
    }
  }
  // Ends first: a call that could not open what a process had exported gives its own beginning as
  // the time by which that process had ended.
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.time_ns != b.time_ns ? a.time_ns < b.time_ns : a.call == kEnd && b.call != kEnd;
  });
  return events;
}

absl::Status ReplayRun::Start(size_t process) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("socketpair: ", std::strerror(errno)));
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return absl::ResourceExhaustedError(absl::StrCat("fork: ", std::strerror(errno)));
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    close(sockets[0]);
    for (const Process& other : processes_) {
      if (other.state == State::kRuns) close(other.socket);
    }
    if (!machine_.visible[process].empty()) {
      setenv("CUDA_VISIBLE_DEVICES", machine_.visible[process].c_str(), /*overwrite=*/1);
    }
    RunReplayWorker(records_[process], sockets[1], options_.library, options_.patience);
  }
  close(sockets[1]);
  processes_[process] = {.state = State::kRuns, .pid = pid, .socket = sockets[0]};
  return absl::OkStatus();
}

void ReplayRun::Leave(size_t process) {
  Process& left = processes_[process];
  if (left.state != State::kRuns) return;
  (void)SendMessage(left.socket, {.type = ReplayMessage::kLeave});
  // The kernel ends it where it does not by itself.
  pollfd gone = {.fd = left.socket, .events = POLLIN, .revents = 0};
  poll(&gone, 1, static_cast<int>(absl::ToInt64Milliseconds(options_.patience)));
  kill(left.pid, SIGKILL);
  waitpid(left.pid, nullptr, 0);
  close(left.socket);
  left.state = State::kLeft;
}

void ReplayRun::NoteDeath(size_t process) {
  Process& dead = processes_[process];
  int status = 0;
  kill(dead.pid, SIGKILL);  // it is dead, or has closed its socket
  waitpid(dead.pid, &status, 0);
  close(dead.socket);
  dead.state = State::kDied;
  std::vector<std::string> calls;
  for (auto each = pending_.begin(); each != pending_.end();) {
    if (each->first.first != process) {
      ++each;
      continue;
    }
    const RecordedCall& call = records_[process].calls[static_cast<size_t>(each->first.second)];
    calls.push_back(absl::StrCat(call.description->symbol, " of line ", call.line));
    each = pending_.erase(each);
  }
  report_.Trouble(
      absl::StrCat(records_[process].name, ": the process of the replay died",
                   WIFSIGNALED(status) ? absl::StrCat(" of signal ", WTERMSIG(status))
                                       : absl::StrCat(" with status ", WEXITSTATUS(status)),
                   calls.empty() ? "" : absl::StrCat(" in ", BoundedList(calls, kMaxNamedCalls)),
                   "; its own output says why. The rest of its record is not replayed"));
}

absl::Status ReplayRun::Receive(size_t process) {
  absl::StatusOr<ReplayMessage> message = ReceiveMessage(processes_[process].socket);
  // The process of the replay lives: this one has no room for its descriptor.
  if (absl::IsResourceExhausted(message.status())) return message.status();
  if (!message.ok()) {
    NoteDeath(process);
    return absl::OkStatus();
  }
  if (message->type == ReplayMessage::kFailed) {
    return absl::UnavailableError(absl::StrCat("the library cannot be loaded: ", message->skipped));
  }
  pending_.erase({process, message->index});
  const CallRecord& record = records_[process];
  const RecordedCall& call = record.calls[static_cast<size_t>(message->index)];
  if (message->foreign.has_value()) exports_.Add(process, call, *message->foreign);
  if (!message->skipped.empty()) {
    report_.Skipped(record, call, message->skipped, message->is_error);
    return absl::OkStatus();
  }
  report_.Played();
  for (const absl::string_view line :
       absl::StrSplit(message->differences, '\n', absl::SkipEmpty())) {
    report_.Difference(record, call, line);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> ReplayRun::Await(int64_t time_ns) {
  for (;;) {
    auto first = pending_.end();
    for (auto each = pending_.begin(); each != pending_.end(); ++each) {
      if (each->second.ended_ns > time_ns) continue;
      if (first == pending_.end() || each->second.deadline < first->second.deadline) first = each;
    }
    if (first == pending_.end()) return true;
    const absl::Duration left = first->second.deadline - absl::Now();
    if (left <= absl::ZeroDuration()) {
      const CallRecord& record = records_[first->first.first];
      const RecordedCall& call = record.calls[static_cast<size_t>(first->first.second)];
      report_.Difference(
          record, call,
          absl::StrCat("does not return: recorded ",
                       absl::FormatDuration(absl::Nanoseconds(call.ended_ns - call.began_ns)),
                       ", replayed more than ", absl::FormatDuration(options_.patience),
                       " beyond; the replay ends here (--timeout raises this limit)"));
      return false;
    }
    std::vector<pollfd> sockets;
    std::vector<size_t> owners;
    for (size_t i = 0; i < processes_.size(); ++i) {
      if (processes_[i].state != State::kRuns) continue;
      sockets.push_back({.fd = processes_[i].socket, .events = POLLIN, .revents = 0});
      owners.push_back(i);
    }
    const int64_t milliseconds = std::min<int64_t>(absl::ToInt64Milliseconds(left) + 1, 1000);
    if (poll(sockets.data(), sockets.size(), static_cast<int>(milliseconds)) <= 0) continue;
    for (size_t i = 0; i < sockets.size(); ++i) {
      if (sockets[i].revents != 0) FERRY_RETURN_IF_ERROR(Receive(owners[i]));
    }
  }
}

absl::Status ReplayRun::Begin(const Event& event) {
  Process& process = processes_[event.process];
  if (process.state == State::kNew) FERRY_RETURN_IF_ERROR(Start(event.process));
  if (process.state != State::kRuns) return absl::OkStatus();
  const RecordedCall& call = records_[event.process].calls[static_cast<size_t>(event.call)];
  const absl::Duration recorded = absl::Nanoseconds(call.ended_ns - call.began_ns);
  // A poll that is repeated has its own limit first.
  const absl::Duration limit = options_.patience * (call.description->is_poll ? 2 : 1);
  pending_[{event.process, event.call}] = {.deadline = absl::Now() + recorded + limit,
                                           .ended_ns = call.ended_ns};
  // If it fails, the process is dead, which is seen when it is awaited.
  (void)SendMessage(process.socket, {.type = ReplayMessage::kPlay,
                                     .index = event.call,
                                     .foreign = exports_.Find(event.process, call)});
  return absl::OkStatus();
}

absl::Status ReplayRun::Run() {
  for (const Event& event : Events()) {
    FERRY_ASSIGN_OR_RETURN(const bool goes_on, Await(event.time_ns));
    if (!goes_on) return absl::OkStatus();
    if (event.call == kEnd) {
      Leave(event.process);
    } else {
      FERRY_RETURN_IF_ERROR(Begin(event));
    }
  }
  FERRY_ASSIGN_OR_RETURN(const bool is_over, Await(std::numeric_limits<int64_t>::max()));
  if (!is_over) return absl::OkStatus();
  for (size_t i = 0; i < processes_.size(); ++i) Leave(i);
  return absl::OkStatus();
}

}  // namespace ferry::calls
