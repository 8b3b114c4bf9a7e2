// SPDX-License-Identifier: Apache-2.0
// Allocations of small tensors, between two nodes over shared memory and within one, by side: a
// steady stream makes none beyond the limits below. A separate program, since it replaces the
// operators of everything linked into it.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/recycled.h"
#include "base/thread.h"
#include "node/step.h"
#include "tests/node/engine_pair.h"

namespace {

// Whose work a thread does. The event loops' own threads sleep while those of the test lead.
enum Side : int { kOther, kSender, kReceiver, kSides };
thread_local Side side = kOther;
std::atomic<int64_t> allocations[kSides];

void* Counted(std::size_t bytes) {
  allocations[side].fetch_add(1, std::memory_order_relaxed);
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return Counted(bytes); }
void* operator new[](std::size_t bytes) { return Counted(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace ferry {
namespace {

// Upper limits per tensor. For each side of a stream under recurring names:
constexpr double kAllocationsPerSend = 0;
constexpr double kAllocationsPerReceive = 0;
// Tables of names grow.
constexpr double kAllocationsPerNewName = 1.0 / 16;
// Within a node, a send and its receive.
constexpr double kAllocationsPerLocalPair = 0;

// Values until the receiver lets the sender go on; fewer than a thread recycles blocks.
constexpr int64_t kWindow = 64;
constexpr int64_t kWindows = 4;
constexpr int64_t kValues = kWindow * kWindows;
// The least of many short rounds counts: where a thread is preempted, the event loop's own thread
// does its work, and blocks move from the recycled ones of one to those of the other.
constexpr int kRounds = 200;
constexpr int64_t kNames = 8;

// The least of the rounds, of all their values.
struct Counts {
  int64_t sender = std::numeric_limits<int64_t>::max();
  int64_t receiver = std::numeric_limits<int64_t>::max();
};

int64_t AllocationsOf(Side of) { return allocations[of].load(std::memory_order_relaxed); }

TransferEngineOptions Polling() {
  TransferEngineOptions options;
  options.require_transport = "shm";
  options.spin = absl::InfiniteDuration();
  return options;
}

class ExchangeAllocations : public ::testing::Test {
 protected:
  // A receive that is posted again and again.
  struct Slot {
    Tensor buffer;
    Tensor tensor;
    std::atomic<bool> is_done{false};
    bool is_ok = false;
  };

  void SetUp() override {
    if (!recycled_internal::kRecycles) {
      GTEST_SKIP() << "builds with sanitizers take every block from the heap";
    }
    a_ = std::make_unique<EngineEnd>(directory_, 1, Polling());
    b_ = std::make_unique<EngineEnd>(directory_, 2, Polling());
    value_ = a_->Allocate(DataType::kFloat, *Shape::Create({2}));
    FillPattern(value_, 1);
  }

  // Streams from the first node to the second, with receives posted first, two windows ahead.
  Counts Stream(bool into, bool has_new_names) {
    // A round to warm up, and one in which the last receives are posted.
    const int64_t all = kValues * (kRounds + 2);
    std::vector<RendezvousKey> keys;
    for (int64_t i = 0; i < (has_new_names ? all : kNames); ++i) {
      keys.push_back(KeyBetween(*a_, *b_, absl::StrCat("edge ", i)));
    }
    const auto key_of = [&keys](int64_t i) -> const RendezvousKey& {
      return keys[static_cast<size_t>(i) % keys.size()];
    };
    Step from = *a_->engine->OpenStep(1);
    Step to = *b_->engine->OpenStep(1);
    std::vector<Slot> slots(2 * kWindow);
    for (Slot& slot : slots) {
      if (into) slot.buffer = b_->Allocate(DataType::kFloat, *Shape::Create({2}));
    }
    EventLoop& loop_of_a = a_->engine->loop();
    EventLoop& loop_of_b = b_->engine->loop();
    std::atomic<int64_t> received{0};
    int64_t wrong = 0;
    Counts counts;
    std::vector<int64_t> of_receiver;
    of_receiver.reserve(kRounds + 2);
    const auto post = [&](int64_t i) {
      Slot& slot = slots[static_cast<size_t>(i) % slots.size()];
      slot.is_done.store(false, std::memory_order_relaxed);
      RecvArgs args;
      args.destination = slot.buffer;
      to.RecvAsync(key_of(i), std::move(args), [&slot](absl::Status status, Received got) {
        slot.is_ok = status.ok();
        slot.tensor = std::move(got.tensor);
        slot.is_done.store(true, std::memory_order_release);
      });
    };
    const absl::Time deadline = SteadyClock().Now() + absl::Seconds(60);
    for (int64_t i = 0; i < 2 * kWindow; ++i) post(i);
    {
      Thread receiver("receiver", [&] {
        side = kReceiver;
        for (int64_t i = 0; i < all; ++i) {
          if (i % kValues == 0) of_receiver.push_back(AllocationsOf(kReceiver));
          Slot& slot = slots[static_cast<size_t>(i) % slots.size()];
          const auto is_done = [&slot] { return slot.is_done.load(std::memory_order_acquire); };
          if (!is_done() && !loop_of_b.WaitUntil(is_done, deadline)) break;
          const bool is_right = slot.is_ok && slot.tensor.bytes() == value_.bytes() &&
                                std::memcmp(slot.tensor.data(), value_.data(), value_.bytes()) == 0;
          if (!is_right) ++wrong;
          slot.tensor = Tensor();
          if (i + 2 * kWindow < all) post(i + 2 * kWindow);
          received.store(i + 1, std::memory_order_release);
        }
      });
      side = kSender;
      int64_t before = AllocationsOf(kSender);
      std::vector<int64_t> of_sender;
      of_sender.reserve(kRounds + 1);
      for (int64_t i = 0; i < all; i += kWindow) {
        for (int64_t j = i; j < i + kWindow; ++j) EXPECT_TRUE(from.Send(key_of(j), value_).ok());
        // All but the window that was just sent.
        const auto may_go_on = [&] { return received.load(std::memory_order_acquire) >= i; };
        if (!may_go_on() && !loop_of_a.WaitUntil(may_go_on, deadline)) break;
        if ((i + kWindow) % kValues != 0) continue;
        of_sender.push_back(AllocationsOf(kSender) - before);
        before = AllocationsOf(kSender);
      }
      loop_of_a.WaitUntil([&] { return received.load(std::memory_order_acquire) == all; },
                          deadline);
      side = kOther;
      for (size_t i = 1; i + 1 < of_sender.size(); ++i) {
        counts.sender = std::min(counts.sender, of_sender[i]);
      }
    }
    for (size_t i = 1; i + 1 < of_receiver.size(); ++i) {
      counts.receiver = std::min(counts.receiver, of_receiver[i + 1] - of_receiver[i]);
    }
    EXPECT_EQ(received.load(), all);
    EXPECT_EQ(wrong, 0);
    from.Abort(absl::CancelledError("over"));
    to.Abort(absl::CancelledError("over"));
    return counts;
  }

  Directory directory_;
  std::unique_ptr<EngineEnd> a_;
  std::unique_ptr<EngineEnd> b_;
  Tensor value_;
};

TEST_F(ExchangeAllocations, TheCountIsOfThisProgram) {
  side = kSender;
  const int64_t before = AllocationsOf(kSender);
  const auto word = std::make_unique<int64_t>(1);
  EXPECT_EQ(*word, 1);
  EXPECT_EQ(AllocationsOf(kSender) - before, 1);
  side = kOther;
}

TEST_F(ExchangeAllocations, StreamInSharedMemory) {
  const Counts counts = Stream(/*into=*/false, /*has_new_names=*/false);
  EXPECT_LE(counts.sender, kAllocationsPerSend * kValues);
  EXPECT_LE(counts.receiver, kAllocationsPerReceive * kValues);
}

TEST_F(ExchangeAllocations, StreamIntoBuffers) {
  const Counts counts = Stream(/*into=*/true, /*has_new_names=*/false);
  EXPECT_LE(counts.sender, kAllocationsPerSend * kValues);
  EXPECT_LE(counts.receiver, kAllocationsPerReceive * kValues);
}

TEST_F(ExchangeAllocations, StreamOfNewNames) {
  const Counts counts = Stream(/*into=*/false, /*has_new_names=*/true);
  EXPECT_LE(counts.sender, kAllocationsPerNewName * kValues);
  EXPECT_LE(counts.receiver, kAllocationsPerNewName * kValues);
}

TEST_F(ExchangeAllocations, WithinANode) {
  std::vector<RendezvousKey> keys;
  for (int64_t i = 0; i < kNames; ++i) {
    keys.push_back(KeyBetween(*a_, *a_, absl::StrCat("edge ", i)));
  }
  Step step = *a_->engine->OpenStep(1);
  int64_t received = 0;
  const auto receive = [&](const RendezvousKey& key) {
    step.RecvAsync(key, {},
                   [&received](absl::Status status, Received) { received += status.ok() ? 1 : 0; });
  };
  const auto pairs = [&](bool is_posted_first) {
    for (int64_t i = 0; i < kValues; ++i) {
      const RendezvousKey& key = keys[static_cast<size_t>(i) % keys.size()];
      if (is_posted_first) receive(key);
      EXPECT_TRUE(step.Send(key, value_).ok());
      if (!is_posted_first) receive(key);
    }
  };
  side = kSender;
  for (const bool is_posted_first : {false, true}) {
    pairs(is_posted_first);
    const int64_t before = AllocationsOf(kSender);
    pairs(is_posted_first);
    EXPECT_LE(AllocationsOf(kSender) - before, kAllocationsPerLocalPair * kValues);
  }
  side = kOther;
  EXPECT_EQ(received, 4 * kValues);
}

}  // namespace
}  // namespace ferry
