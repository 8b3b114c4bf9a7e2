// SPDX-License-Identifier: Apache-2.0
// Two nodes that send each other small and large values of the same keys from several threads, over
// shared memory and over TCP, with little credit; every value is accounted for.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

#include "base/cancellation_token.h"
#include "base/table_sizes.h"
#include "base/thread.h"
#include "rendezvous/peer/eager_peers.h"
#include "tests/node/engine_pair.h"

namespace ferry {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kRounds = 6;
#else
constexpr int kRounds = 30;
#endif
constexpr int kValues = 300;
// For each direction; each has one thread at either side.
constexpr int kKeys = 3;

enum class Mischief { kNone, kCancels, kEnds };

// The receives of one key, in the order of their calls.
class Account {
 public:
  void Add(const absl::StatusOr<int64_t>& result) {
    absl::MutexLock lock(&mu_);
    ++ended_;
    if (!result.ok()) {
      ++failed_;
      return;
    }
    // Receives of one key end in any order of threads, but each value once.
    if (*result >= kValues || seen_[static_cast<size_t>(*result)]) ++wrong_;
    if (*result < kValues) seen_[static_cast<size_t>(*result)] = true;
    ++received_;
  }
  void AwaitEnded(int count) {
    absl::MutexLock lock(&mu_);
    const auto is_there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ended_ >= count; };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&is_there), absl::Seconds(60)))
        << ended_ << " of " << count << " receives have ended, " << failed_ << " with errors";
  }
  int received() const {
    absl::MutexLock lock(&mu_);
    return received_;
  }
  int failed() const {
    absl::MutexLock lock(&mu_);
    return failed_;
  }
  int wrong() const {
    absl::MutexLock lock(&mu_);
    return wrong_;
  }

 private:
  mutable absl::Mutex mu_;
  int ended_ = 0;
  int received_ = 0;
  int failed_ = 0;
  int wrong_ = 0;
  std::vector<bool> seen_ = std::vector<bool>(kValues);
};

struct Case {
  const char* transport;
  bool has_little_credit;
};

class EagerStress : public ::testing::TestWithParam<Case> {
 protected:
  static TransferEngineOptions Options() {
    TransferEngineOptions options;
    options.require_transport = GetParam().transport;
    options.eager = true;
    if (GetParam().has_little_credit) {
      options.eager_limits = {.step_values = 4,
                              .step_bytes = 600,
                              .peer_values = 6,
                              .peer_bytes = 1000,
                              .names = 4,
                              .name_bytes = 2000};
    }
    return options;
  }

  // Sends, for every other key several at a time.
  void SendAll(EngineEnd& from, EngineEnd& to, Step step, int key_number, uint64_t seed) {
    std::mt19937_64 random(seed);
    const RendezvousKey key = KeyBetween(from, to, absl::StrCat("key", key_number));
    std::vector<SendItem> batch;
    for (int64_t i = 0; i < kValues; ++i) {
      // A name with large values is requested most of the time.
      const bool is_large = key_number == 0 && random() % 16 == 0;
      const int64_t bytes = is_large ? 20'000 : 8 + static_cast<int64_t>(random() % 100);
      Tensor tensor = random() % 2 == 0
                          ? from.Allocate(DataType::kUint8, *Shape::Create({bytes}))
                          : *Tensor::Allocate(DataType::kUint8, *Shape::Create({bytes}));
      std::memset(tensor.mutable_data(), static_cast<int>(i & 0xff), tensor.bytes());
      std::memcpy(tensor.mutable_data(), &i, sizeof(i));
      if (key_number % 2 == 0) {
        if (!step.Send(key, std::move(tensor)).ok()) return;
      } else {
        batch.push_back({.key = &key, .tensor = std::move(tensor)});
        if (random() % 4 != 0 && i + 1 != kValues) continue;
        step.SendMany(absl::MakeSpan(batch));
        if (!batch.back().status.ok()) return;
        batch.clear();
      }
      if (random() % 64 == 0) absl::SleepFor(absl::Microseconds(random() % 300));
    }
  }

  // Posts receives, several at a time; with kNone in order, else as many as there are values.
  void ReceiveAll(EngineEnd& from, EngineEnd& to, Step step, int key_number, uint64_t seed,
                  Mischief mischief, const std::shared_ptr<Account>& account) {
    std::mt19937_64 random(seed);
    const RendezvousKey key = KeyBetween(from, to, absl::StrCat("key", key_number));
    std::deque<std::shared_ptr<CancellationToken>> tokens;
    std::vector<RecvItem> batch;
    for (int64_t i = 0; i < kValues; ++i) {
      const auto token = std::make_shared<CancellationToken>();
      RecvArgs args;
      if (mischief == Mischief::kCancels) args.cancellation = token.get();
      const auto done = [this, i, mischief, account, token](const absl::Status& status,
                                                            const Received& received) {
        if (!status.ok()) return account->Add(status);
        int64_t number = kValues;
        if (received.tensor.bytes() >= sizeof(number)) {
          std::memcpy(&number, received.tensor.data(), sizeof(number));
        }
        if (mischief == Mischief::kNone && number != i) ++out_of_order_;
        if (received.path == "eager") ++pushed_;
        if (received.path != "eager") ++pulled_;
        account->Add(number);
      };
      batch.push_back({.key = &key, .args = std::move(args), .done = done});
      if (key_number % 2 == 0 || random() % 4 == 0 || i + 1 == kValues) {
        step.RecvManyAsync(absl::MakeSpan(batch));
        batch.clear();
      }
      tokens.push_back(token);
      if (mischief == Mischief::kCancels && random() % 8 == 0) {
        tokens[random() % tokens.size()]->Cancel();
      }
      if (tokens.size() > 20) tokens.pop_front();
      if (random() % 64 == 0) absl::SleepFor(absl::Microseconds(random() % 300));
    }
  }

  void Round(EngineEnd& a, EngineEnd& b, int64_t step_id, Mischief mischief) {
    SCOPED_TRACE(absl::StrCat("step ", step_id));
    EngineEnd* const ends[] = {&a, &b};
    std::vector<Step> steps;
    for (EngineEnd* const end : ends) steps.push_back(*end->engine->OpenStep(step_id));
    std::vector<std::shared_ptr<Account>> accounts;
    std::mt19937_64 random(static_cast<uint64_t>(step_id));
    {
      std::vector<std::unique_ptr<Thread>> threads;
      for (const int source : {0, 1}) {
        for (int key = 0; key < kKeys; ++key) {
          EngineEnd& from = *ends[source];
          EngineEnd& to = *ends[1 - source];
          const auto account = accounts.emplace_back(std::make_shared<Account>());
          const uint64_t seed = random();
          threads.push_back(std::make_unique<Thread>(
              "sender", [=, this, &from, &to] { SendAll(from, to, steps[source], key, seed); }));
          threads.push_back(std::make_unique<Thread>("receiver", [=, this, &from, &to] {
            ReceiveAll(from, to, steps[1 - source], key, seed + 1, mischief, account);
          }));
        }
      }
      if (mischief == Mischief::kEnds) {
        absl::SleepFor(absl::Microseconds(random() % 20'000));
        // Abort's counterpart without a report of what was lost.
        const size_t which = random() % 2;
        if (random() % 2 == 0) steps[which].Abort(absl::InternalError("aborted by the test"));
        ends[which]->engine->Cleanup(step_id);
      }
      // They end here.
    }
    if (mischief == Mischief::kCancels) {
      // Receives that wait for values which others, that were cancelled, took with them.
      for (Step& step : steps) step.Flush(absl::Milliseconds(100)).IgnoreError();
    }
    if (mischief == Mischief::kNone) {
      for (const auto& account : accounts) account->AwaitEnded(kValues);
      for (Step& step : steps) {
        const absl::Status closed = step.Close(absl::Seconds(30));
        EXPECT_TRUE(closed.ok()) << closed;
      }
      for (const auto& account : accounts) EXPECT_EQ(account->received(), kValues);
    } else {
      for (EngineEnd* const end : ends) end->engine->Cleanup(step_id);
      for (const auto& account : accounts) account->AwaitEnded(kValues);
    }
    for (const auto& account : accounts) {
      EXPECT_EQ(account->wrong(), 0);
      EXPECT_EQ(account->received() + account->failed(), kValues);
    }
  }

  // Entries that links keep when all steps are over, but for names.
  static std::string Left(EngineEnd& end) {
    const auto* const eager = dynamic_cast<EagerPeers*>(end.engine->fetcher().eager_links());
    return eager == nullptr ? ""
                            : NonEmptyTables(eager->InnerTableSizes(),
                                             {"eager_sender.names", "eager_receiver.names"});
  }

  std::atomic<int> out_of_order_{0};
  std::atomic<int64_t> pushed_{0};
  std::atomic<int64_t> pulled_{0};
};

TEST_P(EagerStress, EveryValueIsAccountedFor) {
  Directory directory;
  EngineEnd a(directory, 0, Options());
  EngineEnd b(directory, 1, Options());
  for (int round = 0; round < kRounds; ++round) {
    constexpr Mischief kMischief[] = {Mischief::kNone, Mischief::kCancels, Mischief::kEnds};
    Round(a, b, 1 + round, kMischief[round % 3]);
    if (HasFailure()) break;
  }
  EXPECT_EQ(out_of_order_, 0);
  EXPECT_GT(pushed_, 0);
  EXPECT_GT(pulled_, 0);
  std::cout << pushed_ << " values were sent before their requests, " << pulled_ << " requested\n";
  const absl::Time give_up = absl::Now() + absl::Seconds(10);
  while ((Left(a) != "" || Left(b) != "") && absl::Now() < give_up) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(Left(a), "");
  EXPECT_EQ(Left(b), "");
  EXPECT_TRUE(a.engine->Stop().ok());
  EXPECT_TRUE(b.engine->Stop().ok());
}

INSTANTIATE_TEST_SUITE_P(Transports, EagerStress,
                         ::testing::Values(Case{"", true}, Case{"tcp", true}, Case{"", false},
                                           Case{"tcp", false}),
                         [](const auto& info) {
                           return absl::StrCat(
                               info.param.transport[0] == '\0' ? "all" : info.param.transport,
                               info.param.has_little_credit ? "_little_credit" : "");
                         });

}  // namespace
}  // namespace ferry
