// SPDX-License-Identifier: Apache-2.0
// libferry_cuda_recorder.so: forwards the CUDA driver functions that Ferry uses, and records each
// call with its arguments, outputs and result. It is loaded in place of the driver:
//   FERRY_CUDA_LIBRARY=libferry_cuda_recorder.so FERRY_CUDA_RECORD=FOLDER PROGRAM
// It forwards to FERRY_CUDA_RECORD_LIBRARY (default libcuda.so.1) and writes FOLDER/PID.calls
// (docs/testing_gpu.md, "The record"). A poll (cuEventQuery, cuStreamQuery) that repeats the
// previous line of its thread is counted. After kMaxLines a process records nothing more. Calls
// that NCCL and other libraries make are not seen.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "benchmarks/gpu/calls/call_writer.h"
#include "benchmarks/gpu/calls/driver_calls.h"

namespace ferry::calls {
namespace {

using cuda::Result;
using Clock = std::chrono::steady_clock;

constexpr int kMaxLines = 200'000;

std::atomic<int> line_count{0};

void* Driver() {
  static void* const driver = [] {
    const char* const named = std::getenv("FERRY_CUDA_RECORD_LIBRARY");
    void* const handle = dlopen(named != nullptr ? named : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) std::fprintf(stderr, "libferry_cuda_recorder.so: %s\n", dlerror());
    return handle;
  }();
  return driver;
}

int64_t Nanoseconds(Clock::duration time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

// The last line of this process's record was cut (a full disk).
std::atomic<bool> is_cut{false};

// One write for each line: a process that is killed leaves whole lines, and those of several
// threads do not mix. Behind a line that was cut nothing more is written: the run matters more.
void WriteLine(int file, const std::string& line) {
  if (is_cut.load(std::memory_order_relaxed)) return;
  const ssize_t written = write(file, line.data(), line.size());
  if (written >= 0 && static_cast<size_t>(written) < line.size()) is_cut = true;
}

// The lock tells other processes that this one lives. It is of this process alone, not of children
// that inherit the file, and ends when the process ends, or closes any descriptor of the file.
void LockRecord(int file) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  fcntl(file, F_SETLK, &lock);
}

// Returns true if no other process holds the lock.
bool IsUnlocked(int file) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return fcntl(file, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

// The name of this process's own record; a forked child has another.
std::atomic<const std::string*> own_name{nullptr};

// Two processes of different pid namespaces can have one number.
int OpenRecord(const std::string& folder, pid_t pid) {
  constexpr int kMaxSameNumber = 1000;
  for (int i = 0; i < kMaxSameNumber; ++i) {
    std::string name = std::to_string(pid);
    if (i > 0) name += "-" + std::to_string(i);
    name += ".calls";
    const std::string path = folder + "/" + name;
    const int opened = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
    if (opened >= 0) {
      LockRecord(opened);
      own_name.store(new std::string(std::move(name)));
      return opened;
    }
    if (errno != EEXIST) return -1;
  }
  return -1;
}

// Appends a line for each record of the folder whose process has ended since the last call of this
// function: most end without a word.
//   time_ns: they had ended by then.
void AppendGone(std::string& text, const std::string& folder, int64_t time_ns) {
  static std::mutex mutex;
  static auto* const known = new std::set<std::string, std::less<>>;
  const std::lock_guard<std::mutex> lock(mutex);
  DIR* const listing = opendir(folder.c_str());
  if (listing == nullptr) return;
  while (const dirent* const entry = readdir(listing)) {
    const std::string_view name = entry->d_name;
    const std::string* const own = own_name.load();
    if (!name.ends_with(".calls") || known->contains(name) || (own != nullptr && name == *own)) {
      continue;
    }
    const int file = open((folder + "/" + entry->d_name).c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;
    struct stat status = {};
    // Empty: one that begins at this moment.
    if (fstat(file, &status) == 0 && status.st_size > 0 && IsUnlocked(file)) {
      text += "gone " + std::to_string(time_ns) + " ";
      CallWriter::AppendQuoted(text, name);
      text += '\n';
      known->emplace(name);
    }
    close(file);
  }
  closedir(listing);
}

int64_t Now() { return Nanoseconds(Clock::now().time_since_epoch()); }

std::atomic<int> open_file{-1};
std::atomic<pid_t> owner{0};

// Returns -1 if nothing is to be recorded. A forked child opens a file of its own.
int Log() {
  const pid_t pid = getpid();
  if (owner.load(std::memory_order_acquire) == pid)
    return open_file.load(std::memory_order_relaxed);
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  if (owner.load(std::memory_order_relaxed) == pid)
    return open_file.load(std::memory_order_relaxed);
  const char* const folder = std::getenv("FERRY_CUDA_RECORD");
  if (folder == nullptr) return -1;
  const int opened = OpenRecord(folder, pid);
  if (opened >= 0) {
    is_cut = false;
    std::string text;
    CallWriter::AppendHeader(text, pid, getppid(), program_invocation_short_name);
    AppendGone(text, folder, Now());
    WriteLine(opened, text);
  }
  line_count.store(0, std::memory_order_relaxed);
  open_file.store(opened, std::memory_order_relaxed);
  owner.store(pid, std::memory_order_release);
  return opened;
}

// Before a call that ends something that another process may have open: whether that process lives
// decides on what the call may do.
void NoteGone() {
  constexpr int64_t kBetweenLooks = 1'000'000;
  static std::atomic<int64_t> last_look{0};
  const int64_t now = Now();
  int64_t last = last_look.load(std::memory_order_relaxed);
  if (now - last < kBetweenLooks || !last_look.compare_exchange_strong(last, now)) return;
  const int log = Log();
  if (log < 0) return;
  std::string text;
  AppendGone(text, std::getenv("FERRY_CUDA_RECORD"), Now());
  if (!text.empty()) WriteLine(log, text);
}

// After a call that could not open what another process has exported: that process may have died
// before, and the call's error is the first sign of it. The kernel may take a moment more to end
// the lock of a process that the driver knows to be dead.
void NoteGoneBefore(int64_t began_ns) {
  constexpr int kLooks = 5;
  constexpr auto kBetweenLooks = std::chrono::milliseconds(2);
  const int log = Log();
  if (log < 0) return;
  std::string text;
  for (int i = 0; i < kLooks && text.empty(); ++i) {
    if (i > 0) std::this_thread::sleep_for(kBetweenLooks);
    AppendGone(text, std::getenv("FERRY_CUDA_RECORD"), began_ns);
  }
  if (!text.empty()) WriteLine(log, text);
}

CallWriter& Writer() {
  static auto* const writer = new CallWriter;
  return *writer;
}

// The calling thread's last call.
struct LastPoll {
  const DriverCall* call = nullptr;  // null: the last call was no poll
  uint64_t argument = 0;
  Result result = 0;
  int64_t repeats = 0;
};
thread_local LastPoll last_poll;

void Record(int log, const DoneCall& call) {
  thread_local std::string line;
  line.clear();
  if (last_poll.repeats > 0) {
    line += "again " + std::to_string(call.thread) + " " + std::to_string(last_poll.repeats) + "\n";
  }
  last_poll = {};
  if (call.description->count == 1 && call.description->is_poll) {
    last_poll = {.call = call.description, .argument = call.words[0], .result = call.result};
  }
  const int number = line_count.fetch_add(1, std::memory_order_relaxed);
  if (number < kMaxLines) {
    Writer().Append(line, call);
  } else if (number == kMaxLines) {
    line += "limit " + std::to_string(kMaxLines) + "\n";
  } else {
    return;
  }
  WriteLine(log, line);
}

bool IsRepeated(const DriverCall& call, uint64_t argument, Result result) {
  if (last_poll.call != &call || last_poll.argument != argument || last_poll.result != result) {
    return false;
  }
  ++last_poll.repeats;
  return true;
}

// A process that is killed leaves no such line.
__attribute__((destructor)) void WriteEnd() {
  if (owner.load(std::memory_order_acquire) != getpid()) return;
  WriteLine(open_file.load(std::memory_order_relaxed), "end " + std::to_string(Now()) + "\n");
}

template <typename Function>
struct Signature;

template <typename... Arguments>
struct Signature<Result (*)(Arguments...)> {
  // One instance per symbol.
  template <int kCall>
  static Result Call(Arguments... arguments) {
    constexpr const DriverCall& kDescription = kDriverCalls[kCall];
    static_assert(kDescription.count == sizeof...(Arguments));
    static const auto function = reinterpret_cast<Result (*)(Arguments...)>(
        Driver() == nullptr ? nullptr : dlsym(Driver(), kDescription.symbol));
    if (function == nullptr) return cuda::kErrorNotFound;
    if constexpr (EndsSomething(kDescription)) NoteGone();
    const auto began = Clock::now();
    const Result result = function(arguments...);
    const auto taken = Clock::now() - began;
    if constexpr (OpensSomething(kDescription)) {
      if (result != cuda::kSuccess) NoteGoneBefore(Nanoseconds(began.time_since_epoch()));
    }
    const int log = Log();
    if (log < 0 || line_count.load(std::memory_order_relaxed) > kMaxLines) return result;
    if constexpr (kDescription.is_poll && sizeof...(Arguments) == 1) {
      if (IsRepeated(kDescription, (WordOf(arguments), ...), result)) return result;
    }
    const uint64_t words[] = {WordOf(arguments)...};
    Record(log, {.description = &kDescription,
                 .words = words,
                 .result = result,
                 .began_ns = Nanoseconds(began.time_since_epoch()),
                 .duration_ns = Nanoseconds(taken),
                 .thread = syscall(SYS_gettid)});
    return result;
  }
};

}  // namespace
}  // namespace ferry::calls

// Exports `symbol`: the loader binds it to an instance of Call when it loads this library.
#define FERRY_FORWARD_TYPE(symbol, type, ...)                                         \
  extern "C" {                                                                        \
  __attribute__((used)) static auto symbol##_resolve() -> void (*)() {                \
    return reinterpret_cast<void (*)()>(                                              \
        &ferry::calls::Signature<type>::Call<ferry::calls::FindDriverCall(#symbol)>); \
  }                                                                                   \
  __attribute__((visibility("default"), ifunc(#symbol "_resolve"))) void symbol();    \
  }
#define FERRY_FORWARD(symbol, member, ...) \
  FERRY_FORWARD_TYPE(symbol, decltype(ferry::cuda::CudaTable::member), )

using ferry::calls::AllocManaged;
FERRY_DRIVER_CALLS(FERRY_FORWARD, FERRY_FORWARD_TYPE)
