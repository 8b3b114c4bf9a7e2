// SPDX-License-Identifier: Apache-2.0
// Baselines with as few system calls as possible.
#include "bench/floors.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "bench/times.h"
#include "cli/pattern.h"

namespace ferry::cli {
namespace {

constexpr absl::Duration kFloorTimeout = absl::Seconds(20);
constexpr int kSpinRounds = 20'000;
// Yield after this many spins: the other process may need this thread's core.
constexpr int kSpinsBeforeYield = 20'000;

absl::Status Failed(absl::string_view call) {
  return absl::UnavailableError(absl::StrCat("floors: ", call, ": ", std::strerror(errno)));
}

constexpr int kFutexRounds = 1000;
// Longest single futex wait; the deadline is checked after each.
constexpr timespec kFutexLook = {.tv_sec = 0, .tv_nsec = 250'000'000};

// Words on different cache lines, including adjacent-line prefetch.
struct WordsPage {
  alignas(128) std::atomic<int> there;
  alignas(128) std::atomic<int> back;
  alignas(128) std::atomic<int> futex_there;
  alignas(128) std::atomic<int> futex_back;
};
static_assert(std::atomic<int>::is_always_lock_free && sizeof(std::atomic<int>) == sizeof(int));

// The mapped page of `file`.
class Words final {
 public:
  static absl::StatusOr<std::unique_ptr<Words>> Map(const std::string& file) {
    const UniqueFd fd(open(file.c_str(), O_RDWR | O_CLOEXEC));
    if (fd.get() < 0) return Failed(absl::StrCat("open ", file));
    void* const map =
        mmap(nullptr, sizeof(WordsPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (map == MAP_FAILED) return Failed("mmap");
    return std::unique_ptr<Words>(new Words(map));
  }
  ~Words() { munmap(page_, sizeof(WordsPage)); }
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;

  WordsPage& page() { return *static_cast<WordsPage*>(page_); }

 private:
  explicit Words(void* page) : page_(page) {}
  void* const page_;
};

absl::Status NoAnswer() {
  return absl::DeadlineExceededError("floors: the other process does not answer");
}

// Not FUTEX_PRIVATE: other processes map the word too.
long Futex(std::atomic<int>& word, int operation, int value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<int*>(&word), operation, value, timeout, nullptr, 0);
}

bool SleepUntil(std::atomic<int>& word, int value, absl::Time deadline) {
  for (int now = word.load(std::memory_order_acquire); now != value;
       now = word.load(std::memory_order_acquire)) {
    if (Futex(word, FUTEX_WAIT, now, &kFutexLook) == 0 || errno != ETIMEDOUT) continue;
    if (SteadyClock().Now() > deadline) return false;
  }
  return true;
}

void SetAndWake(std::atomic<int>& word, int value) {
  word.store(value, std::memory_order_release);
  Futex(word, FUTEX_WAKE, 1, nullptr);
}

bool SpinUntil(const std::atomic<int>& word, int value, absl::Time deadline) {
  for (int spins = 1; word.load(std::memory_order_acquire) != value; ++spins) {
    if (spins % kSpinsBeforeYield != 0) continue;
    sched_yield();
    if (SteadyClock().Now() > deadline) return false;
  }
  return true;
}

// Returns the median duration of `pass` over this many bytes.
template <typename Pass>
absl::Duration MeasureBatches(size_t bytes, int rounds, const Pass& pass) {
  std::vector<absl::Duration> samples;
  // Reading the clock takes tens of nanoseconds, so small passes are timed in batches.
  const int batch = static_cast<int>(std::clamp<size_t>(4096 / (bytes + 1), 1, 256));
  for (int i = 0; i <= rounds; ++i) {
    const absl::Time start = SteadyClock().Now();
    for (int j = 0; j < batch; ++j) pass();
    // The first round warms up.
    if (i > 0) samples.push_back((SteadyClock().Now() - start) / batch);
  }
  return SummarizeTimes(std::move(samples)).p50;
}

}  // namespace

absl::Duration MeasureMemcpy(void* to, const void* from, size_t bytes, int rounds) {
  return MeasureBatches(bytes, rounds, [to, from, bytes] {
    std::memcpy(to, from, bytes);
    // Keeps the compiler from removing the copy.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    asm volatile("" : : "r"(to) : "memory");
  });
}

absl::Duration MeasureRead(const void* from, size_t bytes, int rounds) {
  return MeasureBatches(bytes, rounds, [from, bytes] {
    asm volatile("" : : "r"(ReadEveryByte(from, bytes)) : "memory");
  });
}

absl::StatusOr<absl::Duration> MeasureSpin(const std::string& file, bool is_first) {
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<Words> words, Words::Map(file));
  WordsPage& page = words->page();
  const absl::Time deadline = SteadyClock().Now() + kFloorTimeout;
  std::vector<absl::Duration> samples;
  absl::Time start = SteadyClock().Now();
  for (int i = 1; i <= kSpinRounds; ++i) {
    if (is_first) {
      page.there.store(i, std::memory_order_release);
      if (!SpinUntil(page.back, i, deadline)) return NoAnswer();
      // Reading the clock takes tens of nanoseconds.
      if (i % 100 != 0) continue;
      const absl::Time now = SteadyClock().Now();
      samples.push_back((now - start) / 200);
      start = now;
    } else {
      if (!SpinUntil(page.there, i, deadline)) return NoAnswer();
      page.back.store(i, std::memory_order_release);
    }
  }
  return SummarizeTimes(std::move(samples)).p50;
}

absl::StatusOr<absl::Duration> MeasureFutex(const std::string& file, bool is_first) {
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<Words> words, Words::Map(file));
  WordsPage& page = words->page();
  const absl::Time deadline = SteadyClock().Now() + kFloorTimeout;
  std::vector<absl::Duration> samples;
  for (int i = 1; i <= kFutexRounds; ++i) {
    const absl::Time start = SteadyClock().Now();
    if (is_first) {
      SetAndWake(page.futex_there, i);
      if (!SleepUntil(page.futex_back, i, deadline)) return NoAnswer();
      samples.push_back((SteadyClock().Now() - start) / 2);
    } else {
      if (!SleepUntil(page.futex_there, i, deadline)) return NoAnswer();
      SetAndWake(page.futex_back, i);
    }
  }
  return SummarizeTimes(std::move(samples)).p50;
}

}  // namespace ferry::cli
