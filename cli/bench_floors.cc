// SPDX-License-Identifier: Apache-2.0
// As few system calls as there can be.
#include "cli/bench_floors.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/unique_fd.h"
#include "cli/bench_times.h"
#include "cli/pattern.h"

namespace ferry::cli {
namespace {

constexpr absl::Duration kFloorPatience = absl::Seconds(20);
constexpr int kSpinRounds = 20'000;
// Spins before the other core may be the very one that this thread is on.
constexpr int kSpinsBeforeYield = 20'000;

absl::Status Failed(absl::string_view call) {
  return absl::UnavailableError(absl::StrCat("floors: ", call, ": ", std::strerror(errno)));
}

// Two words that do not share a cache line, nor the line that is fetched with it.
struct SpinPage {
  alignas(128) std::atomic<int> there;
  alignas(128) std::atomic<int> back;
};
static_assert(std::atomic<int>::is_always_lock_free);

bool SpinUntil(const std::atomic<int>& word, int value, absl::Time deadline) {
  for (int spins = 1; word.load(std::memory_order_acquire) != value; ++spins) {
    if (spins % kSpinsBeforeYield != 0) continue;
    sched_yield();
    if (SteadyClock().Now() > deadline) return false;
  }
  return true;
}

// The median of what `pass` over so many bytes takes.
template <typename Pass>
absl::Duration MeasureBatches(size_t bytes, int rounds, const Pass& pass) {
  std::vector<absl::Duration> samples;
  // The clock takes tens of nanoseconds: small ones are timed by the batch.
  const int batch = static_cast<int>(std::clamp<size_t>(4096 / (bytes + 1), 1, 256));
  for (int i = 0; i <= rounds; ++i) {
    const absl::Time start = SteadyClock().Now();
    for (int j = 0; j < batch; ++j) pass();
    // The first one is to warm up.
    if (i > 0) samples.push_back((SteadyClock().Now() - start) / batch);
  }
  return SummarizeTimes(std::move(samples)).p50;
}

}  // namespace

absl::Duration MeasureMemcpy(void* to, const void* from, size_t bytes, int rounds) {
  return MeasureBatches(bytes, rounds, [to, from, bytes] {
    std::memcpy(to, from, bytes);
    // The copy is seen by whoever looks next.
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
  const UniqueFd fd(open(file.c_str(), O_RDWR | O_CLOEXEC));
  if (fd.get() < 0) return Failed(absl::StrCat("open ", file));
  void* const map =
      mmap(nullptr, sizeof(SpinPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (map == MAP_FAILED) return Failed("mmap");
  auto* const page = static_cast<SpinPage*>(map);
  const absl::Time deadline = SteadyClock().Now() + kFloorPatience;
  std::vector<absl::Duration> samples;
  bool is_answered = true;
  absl::Time start = SteadyClock().Now();
  for (int i = 1; i <= kSpinRounds && is_answered; ++i) {
    if (is_first) {
      page->there.store(i, std::memory_order_release);
      is_answered = SpinUntil(page->back, i, deadline);
      // The clock takes tens of nanoseconds.
      if (i % 100 != 0) continue;
      const absl::Time now = SteadyClock().Now();
      samples.push_back((now - start) / 200);
      start = now;
    } else {
      is_answered = SpinUntil(page->there, i, deadline);
      page->back.store(i, std::memory_order_release);
    }
  }
  munmap(map, sizeof(SpinPage));
  if (!is_answered) return absl::DeadlineExceededError("floors: the other process does not answer");
  return SummarizeTimes(std::move(samples)).p50;
}

}  // namespace ferry::cli
