// SPDX-License-Identifier: Apache-2.0
// A barrier in a shared page, and ShmSync on two of them.
#include "bench/shm_sync.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "bench/processes.h"

namespace ferry::cli {
namespace {

constexpr size_t kPageBytes = 4096;
// Polls before yielding the core, which a process being waited for may need.
constexpr int kLooksBeforeYield = 1000;
constexpr absl::Duration kSleep = absl::Microseconds(100);
// Page index in the file that all processes map.
constexpr int kRoundsPage = 1;
constexpr int kCasesPage = 2;

}  // namespace

struct PageBarrier::Words {
  alignas(128) std::atomic<int> came;
  alignas(128) std::atomic<int> round;
};

absl::StatusOr<std::unique_ptr<PageBarrier>> PageBarrier::Map(const std::string& file, int page) {
  const UniqueFd fd(open(file.c_str(), O_RDWR | O_CLOEXEC));
  void* map = MAP_FAILED;
  if (fd.get() >= 0) {
    map = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(),
               static_cast<off_t>(kPageBytes) * page);
  }
  if (map == MAP_FAILED) {
    return absl::UnavailableError(absl::StrCat("cannot map ", file, ": ", std::strerror(errno)));
  }
  return std::unique_ptr<PageBarrier>(new PageBarrier(static_cast<Words*>(map)));
}

PageBarrier::~PageBarrier() { munmap(words_, kPageBytes); }

absl::Status PageBarrier::Pass(int count, Wait wait) {
  const int round = words_->round.load(std::memory_order_acquire);
  if (words_->came.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
    // Reset before releasing the round: released processes may re-enter at once.
    words_->came.store(0, std::memory_order_relaxed);
    words_->round.store(round + 1, std::memory_order_release);
    return absl::OkStatus();
  }
  const absl::Time deadline = SteadyClock().Now() + kBenchPeerTimeout;
  for (int looks = 1; words_->round.load(std::memory_order_acquire) == round; ++looks) {
    if (wait == Wait::kSleeping) absl::SleepFor(kSleep);
    if (wait == Wait::kSpinning && looks % kLooksBeforeYield != 0) continue;
    sched_yield();
    if (SteadyClock().Now() < deadline) continue;
    return absl::DeadlineExceededError(
        absl::StrCat("only ", words_->came.load(std::memory_order_relaxed), " of ", count,
                     " processes of the bench came to the start of a round within ",
                     absl::FormatDuration(kBenchPeerTimeout)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ShmSync>> ShmSync::Map(int size, const std::string& file) {
  FERRY_ASSIGN_OR_RETURN(auto rounds, PageBarrier::Map(file, kRoundsPage));
  FERRY_ASSIGN_OR_RETURN(auto all, PageBarrier::Map(file, kCasesPage));
  return std::unique_ptr<ShmSync>(new ShmSync(size, std::move(rounds), std::move(all)));
}

absl::StatusOr<BenchStart> ShmSync::Begin(const BenchRoundMembers& members) {
  const int count = static_cast<int>(members.ranks.size());
  // Twice: the last to arrive may have just been woken; after the second pass all are running.
  FERRY_RETURN_IF_ERROR(rounds_->Pass(count, PageBarrier::Wait::kSpinning));
  FERRY_RETURN_IF_ERROR(rounds_->Pass(count, PageBarrier::Wait::kSpinning));
  const double cpu_s = OwnCpuSeconds();
  return BenchStart{cpu_s, SteadyClock().Now()};
}

absl::StatusOr<absl::Time> ShmSync::End(const BenchRoundMembers& members) {
  const absl::Time end = SteadyClock().Now();
  const int count = static_cast<int>(members.ranks.size());
  FERRY_RETURN_IF_ERROR(rounds_->Pass(count, PageBarrier::Wait::kSleeping));
  return end;
}

absl::Status ShmSync::AwaitAll() { return all_->Pass(size_, PageBarrier::Wait::kSleeping); }

absl::Status ShmSync::Tell(const nlohmann::ordered_json& line) {
  std::printf("%s\n",
              line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
  std::fflush(stdout);
  return absl::OkStatus();
}

}  // namespace ferry::cli
