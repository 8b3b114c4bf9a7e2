// SPDX-License-Identifier: Apache-2.0
// execve, a memfd for the state, and a trial run.
#include "cli/successor.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "launch/exit_text.h"

namespace ferry::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kSelf[] = "/proc/self/exe";
// In the environment of the successor: the descriptor of the state.
constexpr char kStateVariable[] = "FERRY_HANDOVER_FD";
constexpr absl::Duration kTrialTimeout = absl::Seconds(5);
constexpr absl::Duration kTrialPollPeriod = absl::Milliseconds(5);
constexpr size_t kMaxTrialOutput = 4096;
constexpr size_t kBytesInWrite = size_t{1} << 20;

// The path by which the program was called, with symbolic links as they are: an upgrade may change
// one of them. Empty if it is not known.
std::string CalledPath(const std::string& called) {
  std::vector<std::string> candidates;
  if (absl::StrContains(called, '/')) {
    candidates.push_back(called);
  } else if (const char* const path = getenv("PATH"); path != nullptr && !called.empty()) {
    for (const absl::string_view folder : absl::StrSplit(path, ':')) {
      candidates.push_back(absl::StrCat(folder.empty() ? "." : folder, "/", called));
    }
  }
  for (const std::string& candidate : candidates) {
    std::error_code error;
    if (fs::equivalent(candidate, kSelf, error)) return fs::absolute(candidate, error).string();
  }
  return "";
}

absl::Status Unavailable(absl::string_view what, int error) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(error)));
}

// Pointers to the strings and, at the end, a null pointer.
std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& each : strings) pointers.push_back(const_cast<char*>(each.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// A started program, whose output is read. It is killed at the end.
class Trial final {
 public:
  Trial() = default;
  ~Trial() {
    if (pid_ < 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  absl::Status Start(const std::string& path, const std::vector<std::string>& arguments) {
    int ends[2] = {-1, -1};
    if (pipe2(ends, O_CLOEXEC) != 0) return Unavailable("pipe", errno);
    output_ = UniqueFd(ends[0]);
    const UniqueFd input(ends[1]);
    fcntl(output_.get(), F_SETFL, O_NONBLOCK);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, input.get(), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, input.get(), STDERR_FILENO);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    const int error = posix_spawn(&pid_, path.c_str(), &actions, &attributes,
                                  Pointers(arguments).data(), environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    if (error == 0) return absl::OkStatus();
    pid_ = -1;
    return Unavailable(absl::StrCat("cannot run ", path), error);
  }

  // Waits for its end. Returns the status of waitpid, or nullopt if it has not ended by then.
  std::optional<int> WaitUntil(absl::Time deadline) {
    while (true) {
      int status = 0;
      const bool has_ended = waitpid(pid_, &status, WNOHANG) == pid_;
      ReadAvailable();
      if (has_ended) {
        pid_ = -1;
        return status;
      }
      const absl::Duration left = deadline - SteadyClock().Now();
      if (left <= absl::ZeroDuration()) return std::nullopt;
      // Neither the end of its output nor that of a child that has inherited it says that it ended.
      absl::SleepFor(std::min(left, kTrialPollPeriod));
    }
  }
  // The beginning of what it has printed.
  const std::string& said() const { return said_; }

 private:
  void ReadAvailable() {
    char bytes[kMaxTrialOutput];
    // A program that prints without end is read once per period.
    const ssize_t got = read(output_.get(), bytes, sizeof(bytes));
    if (got <= 0) return;
    said_.append(bytes, std::min(static_cast<size_t>(got), kMaxTrialOutput - said_.size()));
  }

  pid_t pid_ = -1;
  UniqueFd output_;
  std::string said_;
};

// The number that follows kHandoverFormatLine in a line of its own.
std::optional<uint32_t> FormatIn(const std::string& said) {
  for (absl::string_view line : absl::StrSplit(said, '\n')) {
    uint32_t format = 0;
    if (absl::ConsumePrefix(&line, kHandoverFormatLine) && absl::SimpleAtoi(line, &format)) {
      return format;
    }
  }
  return std::nullopt;
}

absl::Status WriteAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Unavailable("cannot store the state", errno);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> StateFile(const coord::HandoverState& state) {
  UniqueFd file(memfd_create("ferry-handover", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) return Unavailable("memfd_create", errno);
  std::string buffer;
  FERRY_RETURN_IF_ERROR(coord::EncodeHandover(state, [&](absl::string_view part) {
    if (buffer.size() + part.size() > kBytesInWrite) {
      FERRY_RETURN_IF_ERROR(WriteAll(file.get(), buffer));
      buffer.clear();
    }
    if (part.size() > kBytesInWrite) return WriteAll(file.get(), part);
    buffer.append(part.data(), part.size());
    return absl::OkStatus();
  }));
  FERRY_RETURN_IF_ERROR(WriteAll(file.get(), buffer));
  // The seals tell the reader that it is this kind of file.
  if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return Unavailable("cannot seal the state", errno);
  }
  return file;
}

std::vector<int> DescriptorsIn(const coord::HandoverState& state) {
  std::vector<int> descriptors = state.listeners;
  descriptors.insert(descriptors.end(), state.silent.begin(), state.silent.end());
  for (const coord::TcpStoreScopeState& scope : state.scopes) {
    for (const auto& connection : scope.connections) descriptors.push_back(connection.socket);
  }
  return descriptors;
}

//   Errors: UNAVAILABLE if one of them is not open.
absl::Status SetCloseOnExec(const std::vector<int>& descriptors, bool closes) {
  for (const int descriptor : descriptors) {
    if (fcntl(descriptor, F_SETFD, closes ? FD_CLOEXEC : 0) != 0) {
      return Unavailable(absl::StrCat("descriptor ", descriptor), errno);
    }
  }
  return absl::OkStatus();
}

bool IsStateFile(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_WRITE) != 0;
}

absl::StatusOr<coord::HandoverState> ReadState(int fd) {
  struct stat file = {};
  if (!IsStateFile(fd) || fstat(fd, &file) != 0 || file.st_size <= 0) {
    return absl::InvalidArgumentError(absl::StrCat(kStateVariable, " names descriptor ", fd,
                                                   ", which is not a sealed state file"));
  }
  const auto size = static_cast<size_t>(file.st_size);
  void* const mapped = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (mapped == MAP_FAILED) return Unavailable("mmap", errno);
  absl::StatusOr<coord::HandoverState> state =
      coord::DecodeHandover({static_cast<const char*>(mapped), size});
  munmap(mapped, size);
  if (!state.ok()) return state;
  std::vector<int> descriptors = DescriptorsIn(*state);
  for (const int descriptor : descriptors) {
    struct stat socket = {};
    if (descriptor <= STDERR_FILENO || fstat(descriptor, &socket) != 0 ||
        !S_ISSOCK(socket.st_mode)) {
      return absl::DataLossError(absl::StrCat("descriptor ", descriptor, " is not a socket"));
    }
  }
  FERRY_RETURN_IF_ERROR(SetCloseOnExec(descriptors, true));
  std::sort(descriptors.begin(), descriptors.end());
  if (std::adjacent_find(descriptors.begin(), descriptors.end()) != descriptors.end()) {
    return absl::DataLossError("two connections have the same descriptor");
  }
  return state;
}

// Closes all inherited sockets, so that clients do not wait for replies that never come.
void CloseSockets() {
  std::vector<int> sockets;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd", error)) {
    int descriptor = -1;
    struct stat file = {};
    const bool is_number = absl::SimpleAtoi(entry.path().filename().string(), &descriptor);
    if (is_number && descriptor > STDERR_FILENO && fstat(descriptor, &file) == 0 &&
        S_ISSOCK(file.st_mode)) {
      sockets.push_back(descriptor);
    }
  }
  for (const int socket : sockets) close(socket);
}

}  // namespace

Successor::Successor() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string line{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  arguments_ = absl::StrSplit(absl::StripSuffix(line, absl::string_view("\0", 1)), '\0');
  path_ = CalledPath(arguments_[0]);
  std::error_code error;
  if (path_.empty()) path_ = fs::read_symlink(kSelf, error).string();
}

absl::Status Successor::Check() const {
  std::vector<std::string> arguments = arguments_;
  arguments.push_back(absl::StrCat("--", kHandoverFormatFlag));
  Trial trial;
  const absl::Status started = trial.Start(path_, arguments);
  if (!started.ok()) return absl::FailedPreconditionError(started.message());
  const std::optional<int> status = trial.WaitUntil(SteadyClock().Now() + kTrialTimeout);
  if (!status.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(path_, " has not ended within ",
                                                      absl::FormatDuration(kTrialTimeout),
                                                      " when asked for its hand-over format"));
  }
  const std::string& said = trial.said();
  const std::optional<uint32_t> format = FormatIn(said);
  if (*status != 0 || !format.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(
        path_, " ", DescribeExit(*status), " when asked for its hand-over format",
        said.empty() ? "" : absl::StrCat(": ", Quoted(absl::StripSuffix(said, "\n"), 200))));
  }
  if (*format != coord::kHandoverFormat) {
    return absl::FailedPreconditionError(absl::StrCat(path_, " reads the hand-over format ",
                                                      *format, ", and this process writes ",
                                                      coord::kHandoverFormat));
  }
  return absl::OkStatus();
}

absl::Status Successor::Replace(const coord::HandoverState& state) const {
  FERRY_ASSIGN_OR_RETURN(const UniqueFd file, StateFile(state));
  std::vector<std::string> environment;
  for (char** each = environ; *each != nullptr; ++each) {
    if (!absl::StartsWith(*each, absl::StrCat(kStateVariable, "=")))
      environment.emplace_back(*each);
  }
  environment.push_back(absl::StrCat(kStateVariable, "=", file.get()));
  std::vector<int> descriptors = DescriptorsIn(state);
  descriptors.push_back(file.get());
  absl::Status status = SetCloseOnExec(descriptors, false);
  if (status.ok()) {
    execve(path_.c_str(), Pointers(arguments_).data(), Pointers(environment).data());
    status = Unavailable(absl::StrCat("cannot run ", path_), errno);
  }
  SetCloseOnExec(descriptors, true).IgnoreError();
  return status;
}

std::optional<coord::HandoverState> TakeOver() {
  const char* const variable = getenv(kStateVariable);
  if (variable == nullptr) return std::nullopt;
  int fd = -1;
  const bool is_number = absl::SimpleAtoi(variable, &fd);
  unsetenv(kStateVariable);
  if (!is_number) fd = -1;
  absl::StatusOr<coord::HandoverState> state = ReadState(fd);
  // The whole state is in memory as long as the file is open.
  if (IsStateFile(fd)) close(fd);
  if (state.ok()) return *std::move(state);
  std::fprintf(stderr, "ferry coordinator: cannot continue its predecessor: %s\n",
               std::string(state.status().message()).c_str());
  CloseSockets();
  return std::nullopt;
}

}  // namespace ferry::cli
