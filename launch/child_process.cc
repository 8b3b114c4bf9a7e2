// SPDX-License-Identifier: Apache-2.0
// SpawnChild: fork, a handful of async-signal-safe calls, exec.
#include "launch/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "base/file_limit.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/thread_room.h"
#include "launch/signal_relay.h"

namespace ferry {
namespace {

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

// A launcher that was started without standard streams gets their numbers for its pipes, and dup2()
// in the child would overwrite them.
//   what: describes how fd was opened, for errors.
absl::StatusOr<UniqueFd> AboveStandard(UniqueFd fd, const char* what) {
  if (fd.get() > STDERR_FILENO) return fd;
  if (fd.valid()) fd = UniqueFd(fcntl(fd.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (fd.valid()) return fd;
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot start a process: ", what, ": ", ErrorWithFileLimit(errno)));
}

absl::StatusOr<Pipe> OpenPipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start a process: pipe2: ", ErrorWithFileLimit(errno)));
  }
  UniqueFd write_end(ends[1]);
  Pipe pipe;
  FERRY_ASSIGN_OR_RETURN(pipe.read_end, AboveStandard(UniqueFd(ends[0]), "pipe2"));
  FERRY_ASSIGN_OR_RETURN(pipe.write_end, AboveStandard(std::move(write_end), "pipe2"));
  return pipe;
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  // exec's signature is older than const; it does not write.
  for (const std::string& string : strings) pointers.push_back(const_cast<char*>(string.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// The child's arguments, prepared before the fork: after it, only async-signal-safe calls are
// allowed, because another thread may have held the allocator's lock.
struct Prepared {
  const char* file;
  char** arguments;
  char** environment;
  int stdin_fd;
  int stdout_fd;
  int stderr_fd;
  int error_fd;
  pid_t launcher;
};

[[noreturn]] void ExecInChild(const Prepared& prepared) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The launcher may have gone before the line above took effect.
  if (getppid() != prepared.launcher) _exit(1);
  SignalRelay::ResetInChild();
  if (dup2(prepared.stdin_fd, STDIN_FILENO) >= 0 && dup2(prepared.stdout_fd, STDOUT_FILENO) >= 0 &&
      dup2(prepared.stderr_fd, STDERR_FILENO) >= 0) {
    execve(prepared.file, prepared.arguments, prepared.environment);
  }
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(prepared.error_fd, &error, sizeof(error));
  _exit(127);
}

void SetNonBlocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

}  // namespace

absl::StatusOr<std::string> FindProgram(const std::string& program, absl::string_view path) {
  std::vector<std::string> candidates;
  if (program.find('/') != std::string::npos) {
    candidates.push_back(program);
  } else {
    for (absl::string_view folder : absl::StrSplit(path, ':')) {
      candidates.push_back(absl::StrCat(folder.empty() ? "." : folder, "/", program));
    }
  }
  std::string refused;
  for (std::string& candidate : candidates) {
    struct stat info;
    if (stat(candidate.c_str(), &info) != 0) continue;
    const bool is_folder = S_ISDIR(info.st_mode);
    if (!is_folder && access(candidate.c_str(), X_OK) == 0) return std::move(candidate);
    if (!refused.empty()) continue;
    refused = absl::StrCat(Quoted(candidate), is_folder ? " is a directory" : " is not executable");
  }
  if (!refused.empty()) return absl::FailedPreconditionError(absl::StrCat("command ", refused));
  return absl::NotFoundError(absl::StrCat("command ", Quoted(program), " is not there",
                                          candidates.size() > 1 ? " (looked in PATH)" : ""));
}

absl::StatusOr<ChildProcess> SpawnChild(const std::string& file,
                                        const std::vector<std::string>& arguments,
                                        const std::vector<std::string>& environment, int stdin_fd) {
  FERRY_ASSIGN_OR_RETURN(Pipe out, OpenPipe());
  FERRY_ASSIGN_OR_RETURN(Pipe err, OpenPipe());
  FERRY_ASSIGN_OR_RETURN(Pipe exec_error, OpenPipe());
  FERRY_ASSIGN_OR_RETURN(
      const UniqueFd null_fd,
      AboveStandard(UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)), "open /dev/null"));
  std::vector<char*> argument_pointers = Pointers(arguments);
  std::vector<char*> environment_pointers = Pointers(environment);
  const Prepared prepared = {file.c_str(),
                             argument_pointers.data(),
                             environment_pointers.data(),
                             stdin_fd < 0 ? null_fd.get() : stdin_fd,
                             out.write_end.get(),
                             err.write_end.get(),
                             exec_error.write_end.get(),
                             getpid()};

  // No handler of ours may run in the child before the child has reset the handlers.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = fork();
  if (pid == 0) ExecInChild(prepared);
  const int fork_error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start a process: fork: ", std::strerror(fork_error),
                     fork_error == EAGAIN ? absl::StrCat(": ", ThreadLimits()) : ""));
  }
  // Also called here, so that the group exists whichever process runs first. Fails if the child was
  // first.
  setpgid(pid, pid);

  exec_error.write_end.Reset();
  int error = 0;
  ssize_t got = 0;
  do {
    got = read(exec_error.read_end.get(), &error, sizeof(error));
  } while (got < 0 && errno == EINTR);
  if (got == sizeof(error)) {
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    return absl::FailedPreconditionError(
        absl::StrCat("cannot run ", Quoted(file), ": ", std::strerror(error)));
  }
  SetNonBlocking(out.read_end.get());
  SetNonBlocking(err.read_end.get());
  return ChildProcess{pid, std::move(out.read_end), std::move(err.read_end)};
}

}  // namespace ferry
