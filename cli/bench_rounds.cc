// SPDX-License-Identifier: Apache-2.0
// The barrier in a page, and the loop around what is timed.
#include "cli/bench_rounds.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "cli/bench_processes.h"
#include "cli/pattern.h"

namespace ferry::cli {
namespace {

constexpr size_t kPageBytes = 4096;
// Looks before somebody else may need the core, which may be whom we wait for.
constexpr int kLooksBeforeYield = 1000;
constexpr absl::Duration kSleep = absl::Microseconds(100);

int64_t Nanoseconds(absl::Time time) { return absl::ToInt64Nanoseconds(time - absl::UnixEpoch()); }

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
    // Before the round: whoever sees that may come again at once.
    words_->came.store(0, std::memory_order_relaxed);
    words_->round.store(round + 1, std::memory_order_release);
    return absl::OkStatus();
  }
  const absl::Time deadline = SteadyClock().Now() + kBenchPeerPatience;
  for (int looks = 1; words_->round.load(std::memory_order_acquire) == round; ++looks) {
    if (wait == Wait::kSleeping) absl::SleepFor(kSleep);
    if (wait == Wait::kSpinning && looks % kLooksBeforeYield != 0) continue;
    sched_yield();
    if (SteadyClock().Now() < deadline) continue;
    return absl::DeadlineExceededError(
        absl::StrCat("only ", words_->came.load(std::memory_order_relaxed), " of ", count,
                     " processes of the bench came to the start of a round within ",
                     absl::FormatDuration(kBenchPeerPatience)));
  }
  return absl::OkStatus();
}

BenchPostedPtr PostReceive(Node& node, Step& step, const RendezvousKey& key,
                           const Tensor& destination) {
  auto posted = std::make_shared<BenchPosted>();
  RecvArgs args;
  args.destination = destination;
  LaneLoop& loop = node.exchange().loop();
  step.RecvAsync(key, std::move(args), [posted, &loop](absl::Status status, Received received) {
    posted->status = std::move(status);
    posted->received = std::move(received);
    posted->is_done.store(true, std::memory_order_release);
    loop.Wake();
  });
  return posted;
}

absl::Status AwaitReceive(Node& node, BenchPosted& posted) {
  const bool is_done = node.exchange().loop().WaitUntil(
      [&posted] { return posted.is_done.load(std::memory_order_acquire); },
      SteadyClock().Now() + kBenchPeerPatience);
  if (!is_done) {
    return absl::DeadlineExceededError("another process of the bench does not answer");
  }
  return posted.status;
}

absl::StatusOr<Tensor> MakeBenchTensor(Node& node, size_t bytes) {
  FERRY_ASSIGN_OR_RETURN(const Shape shape, Shape::Create({static_cast<int64_t>(bytes)}));
  return node.Allocate("host:0", DataType::kUint8, shape);
}

size_t CountTensorErrors(const Tensor& tensor, size_t bytes, uint64_t seed) {
  if (tensor.bytes() != bytes) return bytes;
  return CountPatternErrors(tensor.data(), bytes, seed);
}

std::string PathReason(Node& node, int from, size_t bytes, const std::set<std::string>& paths) {
  if (paths.contains("inline")) return "it is small enough to come with the answer";
  const absl::StatusOr<PathChoice> choice = node.PathFrom(from, bytes);
  return choice.ok() ? Explain(*choice) : std::string(choice.status().message());
}

void TellBench(const nlohmann::ordered_json& line) {
  std::printf("%s\n",
              line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
  std::fflush(stdout);
}

nlohmann::ordered_json BenchRounds::ToJson() const {
  return {{"starts_ns", starts_ns},
          {"ends_ns", ends_ns},
          {"cpu_s", cpu_s},
          {"errors", errors},
          {"paths", paths}};
}

absl::StatusOr<BenchRounds> RunRounds(PageBarrier& barrier, const BenchRoundCount& count,
                                      BenchRoundWork& work) {
  BenchRounds rounds;
  for (int round = 0; round < count.warm_ups + count.iterations; ++round) {
    FERRY_RETURN_IF_ERROR(work.Prepare(round));
    // Twice: whoever has come last has perhaps just been woken, and all have by then.
    FERRY_RETURN_IF_ERROR(barrier.Pass(count.members, PageBarrier::Wait::kSpinning));
    FERRY_RETURN_IF_ERROR(barrier.Pass(count.members, PageBarrier::Wait::kSpinning));
    const double cpu_before = OwnCpuSeconds();
    const absl::Time start = SteadyClock().Now();
    FERRY_RETURN_IF_ERROR(work.Run());
    const absl::Time end = SteadyClock().Now();
    // Who has sent is still read from.
    FERRY_RETURN_IF_ERROR(barrier.Pass(count.members, PageBarrier::Wait::kSleeping));
    if (round >= count.warm_ups) {
      rounds.cpu_s += OwnCpuSeconds() - cpu_before;
      rounds.starts_ns.push_back(Nanoseconds(start));
      rounds.ends_ns.push_back(Nanoseconds(end));
    }
    FERRY_RETURN_IF_ERROR(work.Check(round, rounds));
  }
  return rounds;
}

}  // namespace ferry::cli
