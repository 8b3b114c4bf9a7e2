// SPDX-License-Identifier: Apache-2.0
// Many keys at a time, from many threads, in independent orders.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/thread.h"
#include "bench/works.h"
#include "cli/pattern.h"

namespace ferry::cli {
namespace {

// Polls before yielding the core.
constexpr int kLooksForGo = 1000;

// Threads that are started before a round, and released together. The caller's thread runs the
// first share.
class WaitingThreads final {
 public:
  WaitingThreads(int count, std::function<absl::Status(int)> body)
      : body_(std::move(body)), results_(static_cast<size_t>(count)) {
    for (int i = 1; i < count; ++i) {
      threads_.push_back(std::make_unique<Thread>("ferry-keyed", [this, i] {
        for (int looks = 1; state_.load(std::memory_order_acquire) == kWait; ++looks) {
          if (looks % kLooksForGo == 0) sched_yield();
        }
        if (state_.load(std::memory_order_acquire) == kGo) {
          results_[static_cast<size_t>(i)] = body_(i);
        }
      }));
    }
  }
  // Threads still waiting end without running.
  ~WaitingThreads() {
    int expected = kWait;
    state_.compare_exchange_strong(expected, kStop, std::memory_order_release);
    threads_.clear();
  }

  absl::Status Run() {
    state_.store(kGo, std::memory_order_release);
    results_[0] = body_(0);
    threads_.clear();
    for (const absl::Status& result : results_) FERRY_RETURN_IF_ERROR(result);
    return absl::OkStatus();
  }

 private:
  enum : int { kWait, kGo, kStop };

  const std::function<absl::Status(int)> body_;
  std::vector<absl::Status> results_;
  std::atomic<int> state_ = kWait;
  std::vector<std::unique_ptr<Thread>> threads_;
};

class KeyedWork final : public BenchRoundWork {
 public:
  KeyedWork(const BenchSide& side, Step& step, std::vector<RendezvousKey> keys,
            const BenchWorkCase& at)
      : side_(side),
        step_(step),
        keys_(std::move(keys)),
        thread_count_(side.plan.threads),
        batch_(static_cast<size_t>(at.batch)),
        at_(at) {}

 private:
  bool is_sender() const { return side_.party.is_first(); }
  uint64_t SeedOf(size_t key, int round) const {
    return PatternSeed(absl::StrCat("key ", key, BenchModeName(at_.mode)), at_.bytes,
                       static_cast<uint64_t>(round));
  }

  absl::Status Prepare(int round) override {
    // A different order in each round and at each node, but reproducible between runs.
    std::mt19937_64 random(static_cast<uint64_t>(round) * 2 + static_cast<uint64_t>(is_sender()));
    order_.resize(keys_.size());
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::shuffle(order_.begin(), order_.end(), random);
    if (is_sender()) {
      for (size_t key = 0; key < keys_.size(); ++key) {
        FERRY_ASSIGN_OR_RETURN(Tensor tensor,
                               side_.device.MakePattern(at_.bytes, SeedOf(key, round)));
        tensors_.push_back(std::move(tensor));
      }
    } else {
      posted_.resize(keys_.size());
      while (at_.mode == BenchMode::kInto && into_.size() < keys_.size()) {
        FERRY_ASSIGN_OR_RETURN(Tensor into, side_.device.MakePattern(at_.bytes, 0));
        into_.push_back(std::move(into));
      }
    }
    threads_ = std::make_unique<WaitingThreads>(
        thread_count_, [this](int thread) { return is_sender() ? Send(thread) : Recv(thread); });
    return absl::OkStatus();
  }

  // Returns that thread's range of keys, in this round's order.
  std::pair<size_t, size_t> ShareOf(int thread) const {
    const auto index = static_cast<size_t>(thread);
    const auto count = static_cast<size_t>(thread_count_);
    return {keys_.size() * index / count, keys_.size() * (index + 1) / count};
  }

  absl::Status Send(int thread) {
    const auto [begin, end] = ShareOf(thread);
    for (size_t i = begin; i < end; i += batch_) {
      FERRY_RETURN_IF_ERROR(SendBatch(i, std::min(i + batch_, end)));
    }
    return absl::OkStatus();
  }

  absl::Status SendBatch(size_t begin, size_t end) {
    if (end - begin > 1) {
      std::vector<SendItem> items;
      items.reserve(end - begin);
      for (size_t i = begin; i < end; ++i) {
        const size_t key = order_[i];
        items.push_back({.key = &keys_[key], .tensor = std::move(tensors_[key])});
      }
      step_.SendMany(absl::MakeSpan(items));
      for (const SendItem& item : items) FERRY_RETURN_IF_ERROR(item.status);
      return absl::OkStatus();
    }
    for (size_t i = begin; i < end; ++i) {
      const size_t key = order_[i];
      FERRY_RETURN_IF_ERROR(step_.Send(keys_[key], std::move(tensors_[key])));
    }
    return absl::OkStatus();
  }

  void PostBatch(size_t begin, size_t end) {
    std::vector<RecvItem> items;
    items.reserve(end - begin);
    for (size_t i = begin; i < end; ++i) {
      const size_t key = order_[i];
      items.push_back(BeginReceive(side_.party.node, keys_[key],
                                   into_.empty() ? Tensor() : into_[key], posted_[key]));
    }
    step_.RecvManyAsync(absl::MakeSpan(items));
  }

  absl::Status Recv(int thread) {
    const auto [begin, end] = ShareOf(thread);
    for (size_t i = begin; i < end; i += batch_) PostBatch(i, std::min(i + batch_, end));
    for (size_t i = begin; i < end; ++i) {
      FERRY_RETURN_IF_ERROR(side_.Take(at_.mode, 0, *posted_[order_[i]]));
    }
    return absl::OkStatus();
  }

  absl::Status Run() override { return threads_->Run(); }

  absl::Status Check(int round, BenchRounds& rounds) override {
    threads_ = nullptr;
    tensors_.clear();
    for (size_t key = 0; key < posted_.size(); ++key) {
      const Received& received = posted_[key]->received;
      rounds.paths.insert(std::string(received.path));
      FERRY_ASSIGN_OR_RETURN(
          const size_t errors,
          side_.device.CountErrors(received.tensor, at_.bytes, SeedOf(key, round)));
      rounds.errors += errors;
    }
    posted_.clear();
    return absl::OkStatus();
  }

  const BenchSide& side_;
  Step& step_;
  const std::vector<RendezvousKey> keys_;
  const int thread_count_;
  const size_t batch_;
  const BenchWorkCase at_;
  std::vector<size_t> order_;
  std::vector<Tensor> tensors_;
  std::vector<Tensor> into_;
  std::vector<BenchPostedPtr> posted_;
  // Declared last: its threads use the rest.
  std::unique_ptr<WaitingThreads> threads_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BenchRoundWork>> MakeKeyedWork(const BenchSide& side, Step& step,
                                                              const BenchWorkCase& at) {
  std::vector<RendezvousKey> all;
  for (int i = 0; i < side.plan.keys; ++i) {
    FERRY_ASSIGN_OR_RETURN(RendezvousKey key, side.Key(absl::StrCat("bench-", i), 0, 1));
    all.push_back(std::move(key));
  }
  return std::make_unique<KeyedWork>(side, step, std::move(all), at);
}

}  // namespace ferry::cli
