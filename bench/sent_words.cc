// SPDX-License-Identifier: Apache-2.0
// Counters in a page of their own, polled between short waits for the loop.
#include "bench/sent_words.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/unique_fd.h"
#include "bench/processes.h"

namespace ferry::cli {
namespace {

constexpr size_t kPageBytes = 4096;
// Page index in the file that all processes map; those before are of the floors and of ShmSync.
constexpr int kSentPage = 3;
static_assert((kSentPage + 1) * kPageBytes <= kBenchPagesBytes);
// A loop that sleeps is not woken by the word.
constexpr absl::Duration kLook = absl::Microseconds(10);

}  // namespace

struct SentWords::Words {
  struct alignas(128) Word {
    std::atomic<int64_t> count;
  };
  Word of_rank[2];
};

absl::StatusOr<std::unique_ptr<SentWords>> SentWords::Map(const std::string& file,
                                                          const BenchParticipants& party) {
  const UniqueFd fd(open(file.c_str(), O_RDWR | O_CLOEXEC));
  void* map = MAP_FAILED;
  if (fd.get() >= 0) {
    map = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(),
               static_cast<off_t>(kPageBytes) * kSentPage);
  }
  if (map == MAP_FAILED) {
    return absl::UnavailableError(absl::StrCat("cannot map ", file, ": ", std::strerror(errno)));
  }
  return std::unique_ptr<SentWords>(new SentWords(party, static_cast<Words*>(map)));
}

SentWords::~SentWords() { munmap(words_, kPageBytes); }

void SentWords::Tell() {
  words_->of_rank[party_.rank].count.fetch_add(1, std::memory_order_release);
}

absl::Status SentWords::Await() {
  ++awaited_;
  const std::atomic<int64_t>& word = words_->of_rank[1 - party_.rank].count;
  const auto is_sent = [this, &word] { return word.load(std::memory_order_acquire) >= awaited_; };
  EventLoop& loop = party_.node.transfer_engine().loop();
  const absl::Time deadline = SteadyClock().Now() + party_.timeout;
  while (!is_sent()) {
    const absl::Time now = SteadyClock().Now();
    if (now > deadline) {
      return absl::DeadlineExceededError("the other process of the bench has sent nothing");
    }
    loop.WaitUntil(is_sent, now + kLook);
  }
  return absl::OkStatus();
}

}  // namespace ferry::cli
