// SPDX-License-Identifier: Apache-2.0
// The table of arrivals: its queue of posted receives makes no difference but speed.
#include "rendezvous/arrival_table.h"

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "rendezvous_fixture.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A value that is its text.
class TextValue final : public LocalRendezvous::IncomingValue {
 public:
  explicit TextValue(std::string text) : text_(std::move(text)) {}

  absl::Status Match(const RendezvousKey&, const RecvArgs&, Tensor& tensor) override {
    tensor = Value(text_);
    return absl::OkStatus();
  }
  absl::Status Queue(Tensor& tensor, SendArgs&) override {
    tensor = Value(text_);
    return absl::OkStatus();
  }

 private:
  const std::string text_;
};

class ArrivalTableTest : public ::testing::Test {
 protected:
  struct Wanted {
    std::string edge;
    absl::Time deadline = absl::InfiniteFuture();
    CancellationToken* cancellation = nullptr;
  };

  // Posts receives as a step does. Their results are written to `ended_` as "NUMBER: VALUE", or
  // with the name of the error.
  void Recv(const std::vector<Wanted>& wanted, bool may_wait = true) {
    std::vector<RendezvousKey> keys;
    std::vector<RecvItem> items(wanted.size());
    std::vector<LocalRendezvous::RecvEntry> entries(wanted.size());
    for (const Wanted& each : wanted) keys.push_back(Key(each.edge));
    for (size_t i = 0; i < wanted.size(); ++i) {
      items[i].key = &keys[i];
      items[i].args.deadline = wanted[i].deadline;
      items[i].args.cancellation = wanted[i].cancellation;
      items[i].done = [this, number = next_receive_++](const absl::Status& status,
                                                       const Received& received) {
        ended_.push_back(absl::StrCat(
            number, ": ",
            status.ok() ? received.tensor.strings()[0] : absl::StatusCodeToString(status.code())));
      };
      entries[i].item = &items[i];
    }
    was_posted_ = table_->Post(absl::MakeSpan(entries), [may_wait] { return may_wait; });
    if (was_posted_) return;
    const auto take = [](auto&&...) { return absl::OkStatus(); };
    // One that is diverted is requested, behind the earlier ones of its key.
    std::vector<ArrivalTable::ItemPtr> requested;
    const auto divert = [&](const RendezvousKey& key, LocalRendezvous::TakeEarlier take_earlier) {
      if (!diverted_.contains(std::string(key.edge()))) return false;
      while (ArrivalTable::ItemPtr earlier = take_earlier())
        requested.push_back(std::move(earlier));
      return true;
    };
    if (items.size() == 1) {
      if (!table_->RecvOrDivert(keys[0], items[0].args, items[0].done, take,
                                [&](auto take_earlier) { return divert(keys[0], take_earlier); })) {
        items[0].args.deadline = absl::InfiniteFuture();
        std::move(items[0].done)(absl::UnimplementedError(""), {});
      }
    } else {
      table_->RecvManyOrDivert(
          absl::MakeSpan(entries), take,
          [&](LocalRendezvous::RecvEntry& entry, LocalRendezvous::TakeEarlier take_earlier) {
            const bool is_diverted = divert(*entry.item->key, take_earlier);
            if (is_diverted) entry.status = absl::UnimplementedError("");
            return is_diverted;
          },
          [] {});
    }
    for (ArrivalTable::ItemPtr& each : requested) {
      LocalRendezvous::Complete(std::move(each), absl::UnimplementedError(""), Tensor(), false, "");
    }
  }
  void RecvOne(const std::string& edge) { Recv({{.edge = edge}}); }

  void Arrive(const std::string& edge, const std::string& text) {
    TextValue value(text);
    EXPECT_TRUE(table_->Arrive(Key(edge), /*is_dead=*/false, value).ok());
  }
  void ArriveMany(const std::vector<std::pair<std::string, std::string>>& values) {
    std::vector<RendezvousKey> keys;
    std::deque<TextValue> texts;
    std::vector<ArrivalTable::ArrivalItem> items;
    keys.reserve(values.size());
    for (const auto& [edge, text] : values) {
      keys.push_back(Key(edge));
      items.push_back({.key = &keys.back(), .value = &texts.emplace_back(text)});
    }
    table_->ArriveMany(absl::MakeSpan(items), [] {});
  }
  // The values that the head of the queue waits for, in order. Returns how many were taken.
  size_t TakePosted(const std::vector<std::pair<std::string, std::string>>& values) {
    std::vector<ArrivalTable::ItemPtr> taken(values.size());
    const size_t count = table_->TakePosted(
        values.size(),
        [&](absl::Span<const ArrivalTable::ItemPtr> posted) {
          size_t matched = 0;
          while (matched < posted.size() && posted[matched] != nullptr &&
                 posted[matched]->key == Key(values[matched].first)) {
            ++matched;
          }
          return matched;
        },
        taken.data());
    for (size_t i = 0; i < count; ++i) {
      LocalRendezvous::Complete(std::move(taken[i]), absl::OkStatus(), Value(values[i].second),
                                /*is_dead=*/false, ArrivalTable::kPath);
    }
    return count;
  }

  FakeClock clock_;
  RendezvousLimits limits_;
  // Also when the table is destroyed.
  std::vector<std::string> ended_;
  // Edges whose receives are requested.
  std::set<std::string> diverted_;
  int next_receive_ = 0;
  bool was_posted_ = false;
  std::unique_ptr<ArrivalTable> table_ = std::make_unique<ArrivalTable>(clock_, limits_);
};

TEST_F(ArrivalTableTest, ReceivesPostedInTheOrderOfTheValues_AreTakenFromTheQueue) {
  Recv({{"a"}, {"b"}, {"a"}});
  EXPECT_TRUE(was_posted_);
  EXPECT_EQ(table_->waiting_count(), 3u);
  EXPECT_EQ(TakePosted({{"a", "1"}, {"b", "2"}}), 2u);
  EXPECT_EQ(TakePosted({{"b", "x"}}), 0u);
  EXPECT_EQ(TakePosted({{"a", "3"}, {"a", "x"}}), 1u);
  EXPECT_THAT(ended_, ElementsAre("0: 1", "1: 2", "2: 3"));
  EXPECT_FALSE(table_->has_posted());
}

TEST_F(ArrivalTableTest, AValueOutOfOrder_IsMatchedInTheQueue) {
  Recv({{"a"}, {"b"}, {"c"}, {"b"}});
  Arrive("b", "1");
  EXPECT_EQ(TakePosted({{"a", "2"}, {"c", "x"}}), 1u) << "where one was taken, a run ends";
  EXPECT_EQ(TakePosted({{"c", "3"}, {"b", "4"}}), 2u);
  EXPECT_THAT(ended_, ElementsAre("1: 1", "0: 2", "2: 3", "3: 4"));
}

TEST_F(ArrivalTableTest, AValueThatIsNotWaitedFor_IsQueued_AndReceivesKeepTheirOrder) {
  Recv({{"a"}, {"b"}});
  Arrive("c", "1");
  EXPECT_FALSE(table_->has_posted());
  RecvOne("a");
  EXPECT_FALSE(was_posted_);
  ArriveMany({{"b", "2"}, {"a", "3"}, {"a", "4"}});
  RecvOne("c");
  EXPECT_THAT(ended_, ElementsAre("1: 2", "0: 3", "2: 4", "3: 1"));
}

TEST_F(ArrivalTableTest, TheQueueOpensAgain_BehindReceivesThatWaitInTheTable) {
  RecvOne("a");
  Arrive("x", "1");
  RecvOne("x");
  int posts = 0;
  do {
    RecvOne("b");
    ASSERT_LT(++posts, 2000);
  } while (!was_posted_);
  RecvOne("a");
  EXPECT_TRUE(was_posted_);
  EXPECT_EQ(TakePosted({{"b", "x"}}), 0u) << "those in the table are older";
  Arrive("a", "2");
  for (int i = 1; i < posts; ++i) Arrive("b", "3");
  ended_.clear();
  EXPECT_EQ(TakePosted({{"b", "4"}, {"a", "5"}}), 2u);
  EXPECT_THAT(ended_, ElementsAre(absl::StrCat(posts + 1, ": 4"), absl::StrCat(posts + 2, ": 5")));
}

TEST_F(ArrivalTableTest, WhileAnOperationUsesTheTable_TheQueueStaysClosed) {
  Arrive("a", "1");
  const RendezvousKey key = Key("a");
  RecvArgs args;
  RecvCallback done = [this](const absl::Status&, const Received&) {
    RecvOne("b");
    EXPECT_FALSE(was_posted_);
  };
  table_->RecvOrDivert(
      key, args, done, [](auto&&...) { return absl::OkStatus(); }, [](auto&&...) { return false; });
  Arrive("b", "2");
  EXPECT_THAT(ended_, ElementsAre("0: 2"));
}

TEST_F(ArrivalTableTest, ACallbackMayDestroyTheTable) {
  for (const bool is_posted_first : {false, true}) {
    table_ = std::make_unique<ArrivalTable>(clock_, limits_);
    const RendezvousKey key = Key("a");
    RecvItem item = {.key = &key};
    item.done = [this](const absl::Status&, const Received&) { table_.reset(); };
    LocalRendezvous::RecvEntry entry = {.item = &item};
    if (!is_posted_first) {
      Arrive("a", "1");
      table_->RecvOrDivert(
          key, item.args, item.done, [](auto&&...) { return absl::OkStatus(); },
          [](auto&&...) { return false; });
    } else {
      ASSERT_TRUE(table_->Post(absl::MakeSpan(&entry, 1), [] { return true; }));
      Arrive("a", "1");
    }
    EXPECT_EQ(table_, nullptr);
  }
}

TEST_F(ArrivalTableTest, AQueueThatIsOfNoUse_IsTriedLessAndLessOften) {
  int posted = 0;
  for (int i = 0; i < 10'000; ++i) {
    Arrive("a", "1");
    RecvOne("a");
    RecvOne("b");
    posted += was_posted_ ? 1 : 0;
    Arrive("b", "2");
  }
  EXPECT_LT(posted, 500);
  EXPECT_EQ(ended_.size(), 20'000u);
}

TEST_F(ArrivalTableTest, ValuesInTheOppositeOrder_CloseTheQueue) {
  constexpr int kReceives = 60;
  int posted = 0;
  for (int round = 0; round < 100; ++round) {
    std::vector<Wanted> wanted;
    for (int i = 0; i < kReceives; ++i) wanted.push_back({absl::StrCat(i)});
    Recv(wanted);
    posted += was_posted_ ? 1 : 0;
    for (int i = kReceives - 1; i >= 0; --i) Arrive(absl::StrCat(i), absl::StrCat("v", i));
  }
  EXPECT_LT(posted, 30);
  EXPECT_EQ(ended_.size(), static_cast<size_t>(100 * kReceives));
}

TEST_F(ArrivalTableTest, ReceivesThatMayNotWait_AreLeftToTheTable) {
  RecvOne("a");
  Recv({{"a"}, {"b"}}, /*may_wait=*/false);
  EXPECT_FALSE(was_posted_);
  ArriveMany({{"b", "1"}, {"a", "2"}, {"a", "3"}});
  EXPECT_THAT(ended_, ElementsAre("2: 1", "0: 2", "1: 3"));
}

TEST_F(ArrivalTableTest, AReceiveThatIsRequested_LeavesTheOthersInTheQueue) {
  Recv({{"a"}, {"b"}, {"c"}, {"b"}});
  diverted_ = {"b"};
  Recv({{"c"}, {"b"}, {"a"}}, /*may_wait=*/false);
  EXPECT_THAT(ended_, ::testing::UnorderedElementsAre("5: UNIMPLEMENTED", "1: UNIMPLEMENTED",
                                                      "3: UNIMPLEMENTED"));
  ended_.clear();
  Recv({{"b"}}, /*may_wait=*/false);
  Recv({{"a"}}, /*may_wait=*/false);
  EXPECT_THAT(ended_, ElementsAre("7: UNIMPLEMENTED"));
  ended_.clear();
  EXPECT_EQ(TakePosted({{"a", "1"}, {"c", "x"}}), 1u);
  EXPECT_EQ(TakePosted({{"c", "2"}, {"c", "x"}}), 1u);
  EXPECT_EQ(TakePosted({{"c", "3"}, {"a", "4"}, {"a", "5"}}), 3u);
  EXPECT_THAT(ended_, ElementsAre("0: 1", "2: 2", "4: 3", "6: 4", "8: 5"));
}

TEST_F(ArrivalTableTest, ACancelledReceive_IsLeftOut) {
  CancellationToken token;
  CancellationToken cancelled;
  cancelled.Cancel();
  Recv({{"a"}, {"a", absl::InfiniteFuture(), &token}, {"a", absl::InfiniteFuture(), &cancelled}});
  EXPECT_TRUE(was_posted_);
  EXPECT_THAT(ended_, ElementsAre("2: CANCELLED"));
  token.Cancel();
  EXPECT_THAT(ended_, ElementsAre("2: CANCELLED", "1: CANCELLED"));
  ArriveMany({{"a", "1"}, {"a", "2"}});
  RecvOne("a");
  EXPECT_THAT(ended_, ElementsAre("2: CANCELLED", "1: CANCELLED", "0: 1", "3: 2"));
  EXPECT_EQ(token.registered_count(), 0u);
}

TEST_F(ArrivalTableTest, AReceiveIsDeregisteredWhenItsValueIsTaken) {
  CancellationToken token;
  Recv({{"a", absl::InfiniteFuture(), &token}, {"b", absl::InfiniteFuture(), &token}});
  EXPECT_EQ(TakePosted({{"a", "1"}}), 1u);
  EXPECT_EQ(token.registered_count(), 1u);
  table_.reset();
  EXPECT_THAT(ended_, ElementsAre("0: 1", "1: CANCELLED"));
  EXPECT_EQ(token.registered_count(), 0u);
}

TEST_F(ArrivalTableTest, DeadlinesEndReceivesInTheQueue) {
  const absl::Time now = clock_.Now();
  Recv({{"a"}, {"b", now + absl::Seconds(2)}, {"c", now + absl::Seconds(9)}});
  EXPECT_LE(table_->NextDeadline(), now + absl::Seconds(2));
  clock_.Advance(absl::Seconds(3));
  table_->Expire([](const RendezvousKey& key) { return std::string(key.edge()); });
  EXPECT_THAT(ended_, ElementsAre("1: DEADLINE_EXCEEDED"));
  EXPECT_LE(table_->NextDeadline(), now + absl::Seconds(9));
  EXPECT_GT(table_->NextDeadline(), clock_.Now());
  ArriveMany({{"c", "1"}, {"a", "2"}});
  EXPECT_THAT(ended_, ElementsAre("1: DEADLINE_EXCEEDED", "2: 1", "0: 2"));
}

TEST_F(ArrivalTableTest, AfterAnAbort_NothingIsPosted) {
  Recv({{"a"}, {"b"}});
  table_->StartAbort(absl::AbortedError("over"));
  EXPECT_THAT(ended_, ElementsAre("0: ABORTED", "1: ABORTED"));
  RecvOne("a");
  EXPECT_FALSE(was_posted_);
  EXPECT_THAT(ended_, ElementsAre("0: ABORTED", "1: ABORTED", "2: ABORTED"));
  EXPECT_EQ(table_->waiting_count(), 0u);
}

TEST_F(ArrivalTableTest, TheLimitOfReceives_CountsThoseInTheQueue) {
  limits_.max_pending_ops = 2;
  table_ = std::make_unique<ArrivalTable>(clock_, limits_);
  Recv({{"a"}, {"b"}});
  EXPECT_TRUE(was_posted_);
  RecvOne("c");
  EXPECT_THAT(ended_, ElementsAre("2: RESOURCE_EXHAUSTED"));
  ArriveMany({{"a", "1"}, {"b", "2"}});
  EXPECT_THAT(ended_, ElementsAre("2: RESOURCE_EXHAUSTED", "0: 1", "1: 2"));
}

TEST_F(ArrivalTableTest, TheKeyOfAPostedReceive_IsFoundByItsText) {
  Recv({{"a"}, {"b"}});
  EXPECT_TRUE(table_->FindKey(Key("b").text()).has_value());
  EXPECT_TRUE(table_->FindKey(Key("a").text()).has_value());
  EXPECT_FALSE(table_->FindKey(Key("c").text()).has_value());
  Arrive("c", "1");
  EXPECT_TRUE(table_->FindKey(Key("b").text()).has_value()) << "in the table";
}

// Random operations, whose results are those of a list of values and of receives for each key.
TEST_F(ArrivalTableTest, IsAQueueForEachKey) {
  struct Waiting {
    int number;
    absl::Time deadline;
    std::shared_ptr<CancellationToken> cancellation;
  };
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&random](int count) {
      return static_cast<int>(random() % static_cast<uint32_t>(count));
    };
    table_ = std::make_unique<ArrivalTable>(clock_, limits_);
    // They must outlive their receives.
    std::vector<std::shared_ptr<CancellationToken>> tokens;
    std::map<std::string, std::deque<Waiting>> receives;
    std::map<std::string, std::deque<std::string>> values;
    std::vector<std::string> order;
    std::vector<std::string> expected;
    diverted_.clear();
    ended_.clear();
    next_receive_ = 0;
    const auto arrive = [&](const std::string& edge, const std::string& text) {
      auto& waiting = receives[edge];
      if (waiting.empty()) return values[edge].push_back(text);
      expected.push_back(absl::StrCat(waiting.front().number, ": ", text));
      waiting.pop_front();
    };
    int next_value = 0;
    // Mostly in order, or mostly not.
    const bool is_ordered = seed % 4 != 0;
    for (int i = 0; i < 400; ++i) {
      const std::string edge(1, static_cast<char>('a' + below(5)));
      switch (below(is_ordered ? 60 : 12)) {
        case 0: {
          table_->FailReceives([&](const RendezvousKey& key) {
            return key.edge() == edge ? absl::InternalError("") : absl::OkStatus();
          });
          for (const Waiting& each : receives[edge]) {
            expected.push_back(absl::StrCat(each.number, ": INTERNAL"));
          }
          receives[edge].clear();
          break;
        }
        case 1: {
          std::vector<ArrivalTable::ItemPtr> taken;
          table_->TakeReceives(
              [&](const RendezvousKey& key) { return key.edge() == edge; },
              [&](ArrivalTable::ItemPtr each) { taken.push_back(std::move(each)); });
          for (ArrivalTable::ItemPtr& each : taken) {
            LocalRendezvous::Complete(std::move(each), absl::UnavailableError(""), Tensor(), false,
                                      "");
          }
          for (const Waiting& each : receives[edge]) {
            expected.push_back(absl::StrCat(each.number, ": UNAVAILABLE"));
          }
          receives[edge].clear();
          break;
        }
        case 2:
          table_->DropSends([&](const RendezvousKey& key) { return key.edge() == edge; });
          values[edge].clear();
          break;
        case 3: {
          clock_.Advance(absl::Seconds(1));
          table_->Expire([](const RendezvousKey&) { return std::string(); });
          for (auto& [key, waiting] : receives) {
            std::erase_if(waiting, [&](const Waiting& each) {
              if (each.deadline > clock_.Now()) return false;
              expected.push_back(absl::StrCat(each.number, ": DEADLINE_EXCEEDED"));
              return true;
            });
          }
          break;
        }
        case 4: {
          auto& waiting = receives[edge];
          if (waiting.empty()) break;
          const auto at = waiting.begin() + below(static_cast<int>(waiting.size()));
          if (at->cancellation == nullptr) break;
          expected.push_back(absl::StrCat(at->number, ": CANCELLED"));
          const std::shared_ptr<CancellationToken> cancellation = at->cancellation;
          waiting.erase(at);
          cancellation->Cancel();
          EXPECT_EQ(cancellation->registered_count(), 0u);
          break;
        }
        case 5:
          table_->ForEachPending(absl::ZeroDuration(), [](const PendingOp&) {});
          break;
        default: {
          if (below(2) == 0) {
            std::vector<Wanted> wanted;
            std::vector<std::pair<std::string, Waiting>> added;
            for (int count = 1 + below(6); count > 0; --count) {
              const std::string key(1, static_cast<char>('a' + below(5)));
              Waiting each = {next_receive_ + static_cast<int>(wanted.size()),
                              below(4) == 0 ? clock_.Now() + absl::Seconds(1 + below(3))
                                            : absl::InfiniteFuture(),
                              below(4) == 0 ? std::make_shared<CancellationToken>() : nullptr};
              tokens.push_back(each.cancellation);
              wanted.push_back({key, each.deadline, each.cancellation.get()});
              added.emplace_back(key, each);
              order.push_back(key);
            }
            const bool may_wait = below(8) != 0;
            if (!may_wait && below(2) == 0) diverted_ = {edge};
            for (auto& [key, each] : added) {
              auto& ready = values[key];
              if (!ready.empty()) {
                expected.push_back(absl::StrCat(each.number, ": ", ready.front()));
                ready.pop_front();
                continue;
              }
              receives[key].push_back(each);
              if (may_wait || !diverted_.contains(key)) continue;
              for (const Waiting& ended : receives[key]) {
                expected.push_back(absl::StrCat(ended.number, ": UNIMPLEMENTED"));
              }
              receives[key].clear();
            }
            Recv(wanted, may_wait);
            if (!may_wait) diverted_.clear();
            break;
          }
          std::vector<std::pair<std::string, std::string>> arrived;
          for (int count = 1 + below(6); count > 0; --count) {
            std::string key(1, static_cast<char>('a' + below(5)));
            if (is_ordered && !order.empty() && below(20) != 0) {
              key = order.front();
              order.erase(order.begin());
            }
            arrived.emplace_back(key, absl::StrCat("v", next_value++));
          }
          for (const auto& [key, text] : arrived) arrive(key, text);
          const size_t taken = below(4) == 0 ? 0 : TakePosted(arrived);
          arrived.erase(arrived.begin(), arrived.begin() + static_cast<std::ptrdiff_t>(taken));
          if (arrived.size() == 1) {
            Arrive(arrived[0].first, arrived[0].second);
          } else if (!arrived.empty()) {
            ArriveMany(arrived);
          }
        }
      }
      // Which of the receives of a call ends first depends on the shards of their keys.
      std::sort(ended_.begin(), ended_.end());
      std::sort(expected.begin(), expected.end());
      ASSERT_EQ(ended_, expected) << "after operation " << i;
      ended_.clear();
      expected.clear();
      size_t waiting = 0;
      absl::Time next = absl::InfiniteFuture();
      for (const auto& [key, each] : receives) {
        waiting += each.size();
        for (const Waiting& receive : each) next = std::min(next, receive.deadline);
      }
      for (const auto& [key, each] : values) waiting += each.size();
      ASSERT_EQ(table_->waiting_count(), waiting);
      ASSERT_LE(table_->NextDeadline(), next);
    }
    for (const auto& [key, waiting] : receives) {
      for (const Waiting& each : waiting) {
        expected.push_back(absl::StrCat(each.number, ": ABORTED"));
      }
    }
    table_->StartAbort(absl::AbortedError(""));
    EXPECT_THAT(ended_, ::testing::UnorderedElementsAreArray(expected));
    EXPECT_EQ(table_->waiting_count(), 0u);
  }
}

// Threads that post, that deliver and that look: the receives of a key get its values in order.
TEST(ArrivalTableThreads, TheReceivesOfAKeyGetItsValuesInOrder) {
  constexpr int kPairs = 2;
  constexpr int kValues = 20'000;
  FakeClock clock;
  ArrivalTable table(clock, {});
  std::atomic<int> wrong{0};
  std::atomic<int> received{0};
  std::atomic<bool> is_over{false};
  const auto post = [&](int pair) {
    std::mt19937 random(static_cast<uint32_t>(pair) + 1);
    const RendezvousKey key = Key(absl::StrCat("pair", pair));
    for (int i = 0; i < kValues;) {
      std::vector<RecvItem> items(1 + random() % 4);
      std::vector<LocalRendezvous::RecvEntry> entries(items.size());
      for (size_t k = 0; k < items.size(); ++k, ++i) {
        items[k].key = &key;
        items[k].done = [&, i](const absl::Status& status, const Received& got) {
          // The last receives may have no values.
          if (i >= kValues) return;
          if (!status.ok() || got.tensor.strings()[0] != absl::StrCat(i)) ++wrong;
          ++received;
        };
        entries[k].item = &items[k];
      }
      if (table.Post(absl::MakeSpan(entries), [] { return true; })) continue;
      table.RecvManyOrDivert(
          absl::MakeSpan(entries), [](auto&&...) { return absl::OkStatus(); },
          [](auto&&...) { return false; }, [] {});
    }
  };
  const auto deliver = [&](int pair) {
    const RendezvousKey key = Key(absl::StrCat("pair", pair));
    for (int i = 0; i < kValues; ++i) {
      // Mostly behind the receives.
      while (i % 64 != 0 && received < kPairs * kValues - 8 && !table.has_posted() &&
             table.waiting_count() == 0) {
        std::this_thread::yield();
      }
      ArrivalTable::ItemPtr taken;
      const size_t count = table.TakePosted(
          1,
          [&](absl::Span<const ArrivalTable::ItemPtr> posted) -> size_t {
            return posted[0]->key == key ? 1 : 0;
          },
          &taken);
      TextValue value(absl::StrCat(i));
      if (count == 1) {
        LocalRendezvous::Complete(std::move(taken), absl::OkStatus(), Value(absl::StrCat(i)), false,
                                  ArrivalTable::kPath);
      } else if (!table.Arrive(key, /*is_dead=*/false, value).ok()) {
        ++wrong;
      }
    }
  };
  std::vector<std::thread> threads;
  for (int pair = 0; pair < kPairs; ++pair) {
    threads.emplace_back(post, pair);
    threads.emplace_back(deliver, pair);
  }
  std::thread looks([&] {
    while (!is_over) {
      table.ForEachPending(absl::ZeroDuration(), [](const PendingOp&) {});
      table.Expire([](const RendezvousKey&) { return std::string(); });
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  for (std::thread& thread : threads) thread.join();
  is_over = true;
  looks.join();
  EXPECT_EQ(received.load(), kPairs * kValues);
  EXPECT_EQ(wrong.load(), 0);
  table.StartAbort(absl::AbortedError(""));
}

}  // namespace
}  // namespace ferry
