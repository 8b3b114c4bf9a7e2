// SPDX-License-Identifier: Apache-2.0
// Allocations of a send and its receive in the table: the entry, and no more. A separate program,
// since it replaces the operators of everything linked into it.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "rendezvous/local_rendezvous.h"

namespace {

thread_local int64_t allocations = 0;

void* Counted(std::size_t bytes) {
  ++allocations;
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

constexpr int64_t kPairs = 10'000;

class Allocations : public ::testing::Test {
 protected:
  Allocations() {
    for (int i = 0; i < 64; ++i) {
      keys_.push_back(*RendezvousKey::Parse(RendezvousKey::Text(
          "/job:worker/replica:0/task:0/device:CPU:0", 1,
          "/job:worker/replica:0/task:0/device:CPU:1", absl::StrCat("a long name of edge ", i))));
    }
  }
  void Send(int64_t i) { EXPECT_TRUE(rendezvous_.Send(KeyOf(i), value_).ok()); }
  void Receive(int64_t i) {
    rendezvous_.RecvAsync(
        KeyOf(i), {}, [this](absl::Status status, Received) { received_ += status.ok() ? 1 : 0; });
  }
  const RendezvousKey& KeyOf(int64_t i) const {
    return keys_[static_cast<size_t>(i) % keys_.size()];
  }
  // For all pairs, once the table has its size.
  template <typename Pair>
  int64_t Count(Pair pair) {
    for (int64_t i = 0; i < kPairs; ++i) pair(i);
    const int64_t before = allocations;
    for (int64_t i = 0; i < kPairs; ++i) pair(i);
    EXPECT_EQ(received_, 2 * kPairs);
    return allocations - before;
  }

  LocalRendezvous rendezvous_{SteadyClock()};
  std::vector<RendezvousKey> keys_;
  const Tensor value_ = *Tensor::Allocate(DataType::kFloat, *Shape::Create({2}));
  int64_t received_ = 0;
};

TEST_F(Allocations, TheCountIsOfThisProgram) {
  const int64_t before = allocations;
  const auto word = std::make_unique<int64_t>(1);
  EXPECT_EQ(*word, 1);
  EXPECT_EQ(allocations - before, 1);
}

TEST_F(Allocations, ValueThatComesFirst_AllocatesAnEntry) {
  EXPECT_LE(Count([this](int64_t i) {
              Send(i);
              Receive(i);
            }),
            kPairs);
}

TEST_F(Allocations, ReceiverThatComesFirst_AllocatesAnEntry) {
  EXPECT_LE(Count([this](int64_t i) {
              Receive(i);
              Send(i);
            }),
            kPairs);
}

}  // namespace
}  // namespace ferry
