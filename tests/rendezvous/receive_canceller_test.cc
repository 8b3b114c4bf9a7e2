// SPDX-License-Identifier: Apache-2.0
// Cancellations of receives, and tables that are destroyed meanwhile.
#include "rendezvous/receive_canceller.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/spin_lock.h"

namespace ferry {
namespace {

const RendezvousKey& TableKey() {
  static const RendezvousKey key = *RendezvousKey::Parse(
      RendezvousKey::Text("/job:worker/replica:0/task:1/device:CPU:0", 1,
                          "/job:worker/replica:0/task:2/device:CPU:0", "edge"));
  return key;
}

// A table of one receive.
class OneReceiveTable final {
 public:
  OneReceiveTable()
      : canceller(std::make_shared<ReceiveCanceller>([this](const RendezvousKey& key, uint64_t id) {
          SpinLockHolder lock(&mu_);
          EXPECT_EQ(key, TableKey());
          return waiting_ != nullptr && waiting_->id == id ? std::move(waiting_) : nullptr;
        })) {}
  ~OneReceiveTable() { canceller->Detach(); }

  // False: it was cancelled before.
  bool Receive(CancellationToken& token, uint64_t id, RecvCallback done) {
    SpinLockHolder lock(&mu_);
    RecvArgs args;
    args.cancellation = &token;
    const auto registered = canceller->Register(token, TableKey(), id);
    if (registered == CancellationToken::kNoCallback) return false;
    waiting_ = std::make_unique<RendezvousItem>(TableKey(), 0, id, std::move(args), std::move(done),
                                                registered);
    return true;
  }
  std::unique_ptr<RendezvousItem> Take() {
    SpinLockHolder lock(&mu_);
    return std::move(waiting_);
  }

  const std::shared_ptr<ReceiveCanceller> canceller;

 private:
  SpinLock mu_;
  std::unique_ptr<RendezvousItem> waiting_;
};

TEST(ReceiveCanceller, ACancellation_EndsTheReceive) {
  OneReceiveTable table;
  CancellationToken token;
  absl::Status ended;
  ASSERT_TRUE(table.Receive(
      token, 1, [&ended](absl::Status status, const Received&) { ended = std::move(status); }));
  token.Cancel();
  EXPECT_EQ(ended.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(table.Take(), nullptr);
  // Before it.
  EXPECT_FALSE(table.Receive(token, 2, [](const absl::Status&, const Received&) { FAIL(); }));
}

TEST(ReceiveCanceller, ACancellationOfAReceiveThatIsOver_FindsNothing) {
  OneReceiveTable table;
  CancellationToken token;
  ASSERT_TRUE(table.Receive(token, 1, [](const absl::Status&, const Received&) { FAIL(); }));
  table.Take();
  CancellationToken other;
  ASSERT_TRUE(table.Receive(other, 2, [](const absl::Status&, const Received&) { FAIL(); }));
  token.Cancel();
  EXPECT_NE(table.Take(), nullptr);
}

TEST(ReceiveCanceller, ACancellationAfterTheTable_FindsNothing) {
  CancellationToken token;
  std::shared_ptr<ReceiveCanceller> canceller;
  {
    OneReceiveTable table;
    canceller = table.canceller;
    ASSERT_TRUE(table.Receive(token, 1, [](const absl::Status&, const Received&) { FAIL(); }));
  }
  token.Cancel();
  EXPECT_EQ(canceller.use_count(), 1);
}

// Each receive is cancelled, or destroyed with its table.
TEST(ReceiveCanceller, CancellationsWhileTablesAreDestroyed) {
  constexpr int kTables = 2000;
  std::vector<std::unique_ptr<CancellationToken>> tokens;
  for (int i = 0; i < kTables; ++i) tokens.push_back(std::make_unique<CancellationToken>());
  std::atomic<int> begun{0};
  std::thread canceller([&] {
    for (int i = 0; i < kTables; ++i) {
      while (begun.load() <= i) std::this_thread::yield();
      tokens[static_cast<size_t>(i)]->Cancel();
    }
  });
  std::atomic<int> cancelled{0};
  for (int i = 0; i < kTables; ++i) {
    OneReceiveTable table;
    EXPECT_TRUE(table.Receive(*tokens[static_cast<size_t>(i)], 1,
                              [&cancelled](const absl::Status& status, const Received&) {
                                EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
                                ++cancelled;
                              }));
    begun.store(i + 1);
    // Few: on a busy machine each may take a time slice of every other thread.
    for (int spin = 0; spin < i % 8; ++spin) std::this_thread::yield();
  }
  canceller.join();
  EXPECT_LE(cancelled.load(), kTables);
}

}  // namespace
}  // namespace ferry
