// SPDX-License-Identifier: Apache-2.0
// TcpStoreSession and what is below it: the bytes of clients, and the bytes of the replies.
#include "coord/tcpstore/tcp_store_session.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/clock.h"
#include "coord/core/completions.h"
#include "coord/tcpstore/tcp_store_scopes.h"
#include "tests/coord/tcpstore/tcp_store_bytes.h"

namespace ferry::coord {
namespace {

const std::string kStop(1, '\0');
const std::string kReady(1, '\0');
const std::string kNotReady(1, '\1');
const std::string kCanceled(1, '\1');

// A store, with clients that are byte strings in and out.
class World {
 public:
  class Client {
   public:
    Client(World& world, TcpStoreDialect dialect)
        : bytes(dialect), world_(world), session_(world.NewSession()) {
      EXPECT_EQ(Send(bytes.Hello()), "");
    }

    // Returns the replies that are complete then.
    std::string Send(absl::string_view sent) {
      unread_.append(sent.data(), sent.size());
      std::string received;
      do {
        absl::string_view rest = unread_;
        status_ = session_->Consume(rest);
        unread_ = std::string(rest);
        world_.Run();
        received += Received();
      } while (status_.ok() && session_->has_more_parts());
      return received;
    }
    // Returns the replies that have come since.
    std::string Received() {
      std::string received;
      while (!session_->output().empty()) {
        iovec pieces[3];
        const size_t count = session_->output().Pieces(pieces, 3);
        size_t bytes = 0;
        for (size_t i = 0; i < count; ++i) {
          received.append(static_cast<const char*>(pieces[i].iov_base), pieces[i].iov_len);
          bytes += pieces[i].iov_len;
        }
        // In two steps, as a kernel with little room.
        session_->output().Consume(bytes / 2);
        session_->output().Consume(bytes - bytes / 2);
      }
      return received;
    }
    void Disconnect() {
      session_ = nullptr;
      world_.Run();
    }
    TcpStoreSession& session() { return *session_; }
    const absl::Status& status() const { return status_; }
    size_t unread() const { return unread_.size(); }

    const TcpStoreBytes bytes;

   private:
    World& world_;
    std::shared_ptr<TcpStoreSession> session_;
    std::string unread_;
    absl::Status status_;
  };

  std::unique_ptr<Client> Connect(TcpStoreDialect dialect = TcpStoreDialect::kTorch22) {
    return std::make_unique<Client>(*this, dialect);
  }
  void Run() {
    for (Completion& completion : completions.Take()) std::move(completion)();
  }
  std::shared_ptr<TcpStoreSession> NewSession() {
    return std::make_shared<TcpStoreSession>(
        store, TcpStoreClient(++last_client), limits,
        [](auto& session, uint64_t wait) { session.EndWait(wait); });
  }

  CoordinatorOptions options;
  TcpStoreLimits limits;
  FakeClock clock;
  Completions completions;
  TcpStore store{options, clock, completions};
  uint64_t last_client = 0;
};

class TcpStoreSessionTest : public testing::Test {
 protected:
  World world_;
};

class EveryDialect : public testing::TestWithParam<TcpStoreDialect> {
 protected:
  World world_;
};

INSTANTIATE_TEST_SUITE_P(Torch, EveryDialect,
                         testing::Values(TcpStoreDialect::kTorch1, TcpStoreDialect::kTorch21,
                                         TcpStoreDialect::kTorch22),
                         [](const auto& info) {
                           return info.param == TcpStoreDialect::kTorch1    ? "1_13_to_2_0"
                                  : info.param == TcpStoreDialect::kTorch21 ? "2_1"
                                                                            : "since_2_2";
                         });

TEST_P(EveryDialect, CommonOperations_InOneSegment_AreAnsweredInOrder) {
  const auto client = world_.Connect(GetParam());
  const TcpStoreBytes& bytes = client->bytes;
  EXPECT_EQ(client->Send(absl::StrCat(bytes.Set("k", "v"), bytes.Wait({"k"}), bytes.Get("k"),
                                      bytes.Add("n", 3), bytes.Get("n"), bytes.GetNumKeys(),
                                      bytes.Check({"k", "n"}), bytes.Check({"k", "absent"}),
                                      bytes.CompareSet("c", "", "x"))),
            absl::StrCat(kStop, Vec("v"), AsBytes<int64_t>(3), Vec("3"), AsBytes<int64_t>(2),
                         kReady, kNotReady, Vec("x")));
  EXPECT_EQ(client->Send(bytes.DeleteKey("k")),
            GetParam() == TcpStoreDialect::kTorch1 ? "" : AsBytes<int64_t>(1));
}

TEST_P(EveryDialect, Request_ArrivingByteByByte_IsExecutedOnce) {
  const auto client = world_.Connect(GetParam());
  const std::string sent = absl::StrCat(client->bytes.Add("n", 5), client->bytes.Set("k", "value"),
                                        client->bytes.Get("k"));
  std::string received;
  for (const char byte : sent) received += client->Send({&byte, 1});
  EXPECT_EQ(received, absl::StrCat(AsBytes<int64_t>(5), Vec("value")));
}

TEST_P(EveryDialect, Wait_KeysSetByOthersInAnyOrder_IsAnsweredOnceAfterTheLast) {
  const auto waiter = world_.Connect(GetParam());
  const auto setter = world_.Connect(GetParam());
  EXPECT_EQ(waiter->Send(waiter->bytes.Wait({"a", "b", "c", "b"})), "");
  setter->Send(setter->bytes.Set("c", ""));
  setter->Send(setter->bytes.Set("a", ""));
  setter->Send(setter->bytes.Set("a", "again"));
  EXPECT_EQ(waiter->Received(), "");
  setter->Send(setter->bytes.Add("b", 1));
  EXPECT_EQ(waiter->Received(), kStop);
  setter->Send(setter->bytes.Set("b", ""));
  EXPECT_EQ(waiter->Received(), "");
}

TEST_P(EveryDialect, Disconnect_DuringAWait_LeavesNothing) {
  auto waiter = world_.Connect(GetParam());
  waiter->Send(waiter->bytes.Wait({"a", "b"}));
  EXPECT_EQ(world_.store.wait_count(), 1);
  waiter->Disconnect();
  EXPECT_EQ(world_.store.wait_count(), 0);
  TableSizes sizes;
  world_.store.AddTableSizes(sizes);
  EXPECT_EQ(sizes["tcpstore.waiters"], 0);
}

TEST_P(EveryDialect, Lengths_OverTheLimits_AreRefusedBeforeTheirBytes) {
  for (const uint64_t length : {uint64_t{1} << 63, uint64_t{1} << 40, ~uint64_t{0}}) {
    for (const int op : {2, 3, 4, 5}) {
      const auto client = world_.Connect(GetParam());
      const int shift = GetParam() == TcpStoreDialect::kTorch22 ? 1 : 0;
      client->Send(absl::StrCat(std::string(1, static_cast<char>(op + shift)), AsBytes(length)));
      EXPECT_EQ(client->status().code(), absl::StatusCode::kInvalidArgument) << op << ' ' << length;
    }
  }
}

TEST_F(TcpStoreSessionTest, Hello_WithPing_AnswersTheNonce) {
  const auto client = world_.Connect();
  EXPECT_EQ(client->Send(std::string("\x0D\x01\0\0\0", 5)), AsBytes<uint32_t>(1));
}

TEST_F(TcpStoreSessionTest, Hello_WithAWrongMagicNumber_Fails) {
  World::Client client(world_, TcpStoreDialect::kTorch1);
  client.Send(std::string("\0\xDE\xAD\xBE\xEF", 5));
  EXPECT_EQ(client.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(world_.store.key_count(), 0);
}

TEST_F(TcpStoreSessionTest, FirstSet_OfAnOldClient_IsNotTakenForAHello) {
  for (const std::string& key : {std::string("k"), std::string(), std::string(300, 'k')}) {
    World::Client client(world_, TcpStoreDialect::kTorch1);
    EXPECT_EQ(client.Send(absl::StrCat(client.bytes.Set(key, "v"), client.bytes.Get(key))),
              Vec("v"));
  }
}

TEST_F(TcpStoreSessionTest, UnknownOperations_Fail) {
  for (int op = 19; op < 256; ++op) {
    const auto client = world_.Connect();
    client->Send(std::string(1, static_cast<char>(op)));
    EXPECT_EQ(client->status().code(), absl::StatusCode::kInvalidArgument) << op;
  }
}

TEST_F(TcpStoreSessionTest, UnknownOperation_NamesTheReleasesItWasReadAs) {
  const auto message = [this](TcpStoreDialect dialect, const std::string& before, char op) {
    const auto client = world_.Connect(dialect);
    client->Send(before);
    client->Send(std::string(1, op));
    return std::string(client->status().message());
  };
  EXPECT_EQ(message(TcpStoreDialect::kTorch22, "", 19),
            "unknown operation 19 in the protocol of PyTorch 2.2 or later");
  EXPECT_EQ(message(TcpStoreDialect::kTorch1, "", 12),
            "unknown operation 12 in the protocol of PyTorch 1.13 to 2.1");
  EXPECT_EQ(
      message(TcpStoreDialect::kTorch21, TcpStoreBytes(TcpStoreDialect::kTorch21).CancelWait(), 12),
      "unknown operation 12 in the protocol of PyTorch 2.1");
}

TEST_F(TcpStoreSessionTest, EmptyAndBinaryKeysAndValues_AreKept) {
  const auto client = world_.Connect();
  const std::string binary("\0\xFF\xFE/\n", 5);
  EXPECT_EQ(client->Send(absl::StrCat(client->bytes.Set("", ""), client->bytes.Get(""),
                                      client->bytes.Set(binary, binary), client->bytes.Get(binary),
                                      client->bytes.Check({"", binary}))),
            absl::StrCat(Vec(""), Vec(binary), kReady));
}

TEST_F(TcpStoreSessionTest, CompareSet_EachCase_RepliesAsUpstream) {
  const auto client = world_.Connect();
  const auto send = [&](absl::string_view expected, absl::string_view desired) {
    return client->Send(client->bytes.CompareSet("k", expected, desired));
  };
  // Absent, and another value expected: nothing is stored.
  EXPECT_EQ(send("old", "new"), Vec("old"));
  EXPECT_EQ(world_.store.Get("k"), nullptr);
  EXPECT_EQ(send("", "first"), Vec("first"));
  EXPECT_EQ(send("first", "second"), Vec("second"));
  EXPECT_EQ(send("first", "third"), Vec("second"));
  EXPECT_EQ(send("", "third"), Vec("second"));
  EXPECT_EQ(*world_.store.Get("k"), "second");
}

TEST_F(TcpStoreSessionTest, Add_AbsentNegativeTextAndOverflow) {
  const auto client = world_.Connect();
  const auto add = [&](int64_t increment) {
    return client->Send(client->bytes.Add("n", increment));
  };
  EXPECT_EQ(add(-2), AsBytes<int64_t>(-2));
  client->Send(client->bytes.Set("n", "7"));
  EXPECT_EQ(add(1), AsBytes<int64_t>(8));
  client->Send(client->bytes.Set("n", absl::StrCat(std::numeric_limits<int64_t>::max())));
  EXPECT_EQ(add(1), AsBytes(std::numeric_limits<int64_t>::min()));
  client->Send(client->bytes.Set("n", "x"));
  EXPECT_EQ(add(1), "");
  EXPECT_EQ(client->status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(client->status().message(), testing::HasSubstr("ADD"));
}

TEST_F(TcpStoreSessionTest, Check_OfNoKeys_IsReady) {
  const auto client = world_.Connect();
  EXPECT_EQ(client->Send(client->bytes.Check({})), kReady);
  EXPECT_EQ(client->Send(client->bytes.Wait({})), kStop);
}

TEST_F(TcpStoreSessionTest, Wait_KeySetAndDeletedBeforeTheOther_CountsAsArrived) {
  const auto waiter = world_.Connect();
  const auto setter = world_.Connect();
  waiter->Send(waiter->bytes.Wait({"a", "b"}));
  setter->Send(absl::StrCat(setter->bytes.Set("a", ""), setter->bytes.DeleteKey("a")));
  EXPECT_EQ(waiter->Received(), "");
  setter->Send(setter->bytes.Set("b", ""));
  EXPECT_EQ(waiter->Received(), kStop);
}

TEST_F(TcpStoreSessionTest, CancelWait_IsAnsweredAlone_AndTheKeyWakesNobody) {
  const auto waiter = world_.Connect();
  const auto setter = world_.Connect();
  waiter->Send(waiter->bytes.Wait({"k"}));
  EXPECT_EQ(waiter->Send(waiter->bytes.CancelWait()), kCanceled);
  setter->Send(setter->bytes.Set("k", ""));
  EXPECT_EQ(waiter->Send(waiter->bytes.Ping(7)), AsBytes<uint32_t>(7));
  EXPECT_EQ(waiter->Send(waiter->bytes.CancelWait()), kCanceled) << "without a wait";
}

TEST_F(TcpStoreSessionTest, CancelWait_AfterTheKey_FollowsTheAnswer) {
  const auto waiter = world_.Connect();
  const auto setter = world_.Connect();
  waiter->Send(waiter->bytes.Wait({"k"}));
  setter->Send(setter->bytes.Set("k", ""));
  EXPECT_EQ(waiter->Send(waiter->bytes.CancelWait()), absl::StrCat(kStop, kCanceled));
}

TEST_F(TcpStoreSessionTest, Requests_BehindAPendingWait_WaitForItsAnswer) {
  const auto waiter = world_.Connect();
  const auto setter = world_.Connect();
  EXPECT_EQ(waiter->Send(absl::StrCat(waiter->bytes.Wait({"k"}), waiter->bytes.Get("k"))), "");
  EXPECT_GT(waiter->unread(), 0);
  setter->Send(setter->bytes.Set("k", "v"));
  EXPECT_EQ(waiter->Send(""), absl::StrCat(kStop, Vec("v")));
  EXPECT_EQ(waiter->unread(), 0);
}

TEST_F(TcpStoreSessionTest, GivenUpWait_OfAnOldClient_EndsWithTheNextRequest) {
  const auto waiter = world_.Connect(TcpStoreDialect::kTorch1);
  const auto setter = world_.Connect();
  EXPECT_EQ(waiter->Send(waiter->bytes.Wait({"k"})), "");
  EXPECT_EQ(waiter->Send(waiter->bytes.Get("other")), Vec(""));
  setter->Send(setter->bytes.Set("k", ""));
  EXPECT_EQ(waiter->Received(), "");
  EXPECT_EQ(world_.store.wait_count(), 0);
}

TEST_F(TcpStoreSessionTest, Delete_OfAnOldClient_IsResolvedAfterSilence) {
  const auto client = world_.Connect(TcpStoreDialect::kTorch1);
  client->Send(client->bytes.Set("k", "v"));
  EXPECT_EQ(client->Send(client->bytes.DeleteKey("k")), "");
  ASSERT_TRUE(client->session().is_ambiguous());
  EXPECT_TRUE(client->session().ResolveAmbiguity().ok());
  EXPECT_EQ(client->Received(), AsBytes<int64_t>(1));
  // Known from now on.
  EXPECT_EQ(client->Send(client->bytes.DeleteKey("k")), AsBytes<int64_t>(0));
  EXPECT_FALSE(client->session().is_ambiguous());
}

TEST_F(TcpStoreSessionTest, Append_Of21_WithItsValueLater_IsNotADelete) {
  const auto client = world_.Connect(TcpStoreDialect::kTorch21);
  const std::string append = client->bytes.Append("k", "v");
  client->Send(append.substr(0, 10));
  EXPECT_TRUE(client->session().is_ambiguous());
  client->Send(append.substr(10));
  EXPECT_FALSE(client->session().is_ambiguous());
  EXPECT_EQ(client->session().dialect(), TcpStoreDialect::kTorch21);
  EXPECT_EQ(client->Send(client->bytes.Get("k")), Vec("v"));
}

// Releases before 2.1 send an operation's number and its fields one by one.
TEST_F(TcpStoreSessionTest, FieldsThatComeOneByOne_TellOldClients) {
  const auto old = world_.Connect(TcpStoreDialect::kTorch1);
  EXPECT_FALSE(old->session().sends_field_by_field());
  const std::string get = old->bytes.Get("key");
  old->Send(get.substr(0, 1));
  EXPECT_TRUE(old->session().sends_field_by_field());

  const auto after_length = world_.Connect(TcpStoreDialect::kTorch1);
  after_length->Send(get.substr(0, 9));
  EXPECT_TRUE(after_length->session().sends_field_by_field());
}

TEST_F(TcpStoreSessionTest, RequestsInAnyOtherPieces_DoNotTellOldClients) {
  const auto client = world_.Connect(TcpStoreDialect::kTorch21);
  const std::string large(1500, 'x');
  const std::string set = client->bytes.Set("key", large);
  // In the middle of a length, of the key, and behind what 2.1 sends at once.
  for (const size_t at : {size_t{3}, size_t{11}, size_t{500}}) {
    client->Send(set.substr(0, at));
    client->Send(set.substr(at));
  }
  const std::string many = client->bytes.Check({large, "other"});
  client->Send(many.substr(0, 1 + 8 + 8 + large.size()));
  client->Send(many.substr(1 + 8 + 8 + large.size()));
  client->Send(client->bytes.Append("key", "v").substr(0, 12));
  EXPECT_TRUE(client->session().is_ambiguous());
  EXPECT_FALSE(client->session().sends_field_by_field());
}

TEST_F(TcpStoreSessionTest, Append_CreatesExtendsAndWakes) {
  const auto waiter = world_.Connect();
  const auto client = world_.Connect();
  waiter->Send(waiter->bytes.Wait({"k"}));
  const std::string large(5000, 'x');
  client->Send(client->bytes.Append("k", large));
  EXPECT_EQ(waiter->Received(), kStop);
  // A reply that is not written yet keeps the value of its time.
  absl::string_view get = "";
  const std::string bytes = waiter->bytes.Get("k");
  get = bytes;
  ASSERT_TRUE(waiter->session().Consume(get).ok());
  client->Send(client->bytes.Append("k", "y"));
  EXPECT_EQ(waiter->Received(), Vec(large));
  EXPECT_EQ(client->Send(client->bytes.Get("k")), Vec(large + "y"));
  EXPECT_EQ(world_.store.stored_bytes(), large.size() + 2);
}

TEST_F(TcpStoreSessionTest, MultiSet_ThenMultiGet_KeepsTheOrderAndWakesOnce) {
  const auto waiter = world_.Connect();
  const auto client = world_.Connect();
  waiter->Send(waiter->bytes.Wait({"b", "a"}));
  EXPECT_EQ(client->Send(absl::StrCat(client->bytes.MultiSet({{"a", "1"}, {"b", "2"}}),
                                      client->bytes.MultiGet({"b", "absent", "a", "b"}))),
            absl::StrCat(Vec("2"), Vec(""), Vec("1"), Vec("2")));
  EXPECT_EQ(waiter->Received(), kStop);
  EXPECT_EQ(client->Send(client->bytes.MultiGet({})), "");
  EXPECT_EQ(client->Send(client->bytes.MultiSet({})), "");
}

TEST_F(TcpStoreSessionTest, ListKeys_OfMany_HasThemAll) {
  const auto client = world_.Connect();
  EXPECT_EQ(client->Send(client->bytes.ListKeys()), AsBytes<int64_t>(0));
  std::string expected = AsBytes<int64_t>(10000);
  for (int i = 0; i < 10000; ++i) {
    const std::string key = absl::StrFormat("key%05d", i);
    client->Send(client->bytes.Set(key, ""));
    absl::StrAppend(&expected, Vec(key));
  }
  EXPECT_EQ(client->Send(client->bytes.ListKeys()), expected);
  EXPECT_EQ(client->Send(client->bytes.GetNumKeys()), AsBytes<int64_t>(10000));
}

// Copying all keys at once would delay the other clients.
TEST_F(TcpStoreSessionTest, ListKeys_OfMany_IsExecutedInParts) {
  constexpr size_t kKeys = 3 * TcpStoreSession::kKeysInPart;
  for (size_t i = 0; i < kKeys; ++i) {
    ASSERT_TRUE(world_.store.Set(absl::StrFormat("key%05d", i), "").ok());
  }
  const auto client = world_.Connect();
  const std::string request = client->bytes.ListKeys() + client->bytes.GetNumKeys();
  absl::string_view rest = request;
  EXPECT_TRUE(client->session().Consume(rest).ok());
  EXPECT_TRUE(client->session().has_more_parts());
  EXPECT_EQ(client->Received(), "");
  EXPECT_EQ(rest.size(), 1u) << "the next request waits";
  // Another client may change the store meanwhile: the number is right all the same.
  ASSERT_TRUE(world_.store.Set("a key that comes too late", "").ok());
  EXPECT_EQ(world_.store.Delete("key03000"), 1);
  std::string received;
  while (client->session().has_more_parts() || !rest.empty()) {
    ASSERT_TRUE(client->session().Consume(rest).ok());
    received += client->Received();
  }
  EXPECT_EQ(received.substr(0, 8), AsBytes<int64_t>(kKeys - 1));
  EXPECT_EQ(received.size(), 8 + (kKeys - 1) * (8 + 8) + 8);
}

TEST_F(TcpStoreSessionTest, MultiGet_OfMany_ProducesItsReplyAsItIsRead) {
  ASSERT_TRUE(world_.store.Set("k", std::string(TcpStoreOutput::kMinShared - 1, 'x')).ok());
  const auto client = world_.Connect();
  constexpr size_t kCount = 50000;
  const std::string request =
      client->bytes.MultiGet(std::vector<std::string>(kCount, "k")) + client->bytes.Get("k");
  absl::string_view rest = request;
  size_t most = 0;
  size_t received = 0;
  for (size_t calls = 0; !rest.empty() || client->session().has_more_parts(); ++calls) {
    ASSERT_LT(calls, size_t{1000});
    ASSERT_TRUE(client->session().Consume(rest).ok());
    most = std::max(most, client->session().held_bytes());
    // As a client that reads only when it must.
    if (!client->session().has_more_parts()) received += client->Received().size();
  }
  EXPECT_EQ(received, (kCount + 1) * (8 + TcpStoreOutput::kMinShared - 1));
  EXPECT_LT(most, 2 * TcpStoreSession::kMaxOutput + kCount * 64);
}

TEST_F(TcpStoreSessionTest, HeldBytes_CountsWhatIsNotFinished) {
  const auto client = world_.Connect();
  const auto other = world_.Connect();
  EXPECT_LT(client->session().held_bytes(), size_t{1000});
  const std::string set = client->bytes.Set("k", std::string(100'000, 'x'));
  client->Send(set.substr(0, 60'000));
  EXPECT_GE(client->session().held_bytes(), size_t{59'000});
  client->Send(set.substr(60'000));
  EXPECT_LT(client->session().held_bytes(), size_t{1000});

  // Empty strings take memory too.
  const std::string many =
      client->bytes.MultiSet(std::vector<std::pair<std::string, std::string>>(10'000, {"", ""}));
  client->Send(many.substr(0, many.size() - 1));
  EXPECT_GE(client->session().held_bytes(), 10'000 * 2 * sizeof(std::string) - 1000);
  client->Send(many.substr(many.size() - 1));

  // A pending wait, and a reply that was not read.
  std::vector<std::string> keys;
  for (int i = 0; i < 1000; ++i) keys.push_back(absl::StrCat("absent", i));
  client->Send(client->bytes.Wait(keys));
  EXPECT_GE(client->session().held_bytes(), size_t{1000 * 40});
  client->Send(client->bytes.CancelWait());
  EXPECT_LT(client->session().held_bytes(), size_t{1000});
  for (const std::string& key : keys) other->Send(other->bytes.Set(key, std::string(100, 'x')));
  const std::string get = client->bytes.MultiGet(keys);
  absl::string_view rest = get;
  EXPECT_TRUE(client->session().Consume(rest).ok());
  EXPECT_GE(client->session().held_bytes(), size_t{1000 * 108});
  client->Received();
  EXPECT_LT(client->session().held_bytes(), size_t{1000});
}

// Thousands of clients may wait for thousands of keys each.
TEST_F(TcpStoreSessionTest, Waits_ForTheSameKeys_ShareThem) {
  const std::vector<std::string> keys = {std::string(10'000, 'a'), std::string(10'000, 'b')};
  const auto first = world_.Connect();
  const auto second = world_.Connect();
  first->Send(first->bytes.Wait(keys));
  second->Send(second->bytes.Wait(keys));
  EXPECT_GE(first->session().held_bytes(), size_t{20'000});
  EXPECT_LT(second->session().held_bytes(), size_t{2000});
  first->Disconnect();
  second->Send(second->bytes.Set("other", ""));
  EXPECT_EQ(second->unread(), second->bytes.Set("other", "").size());
  const auto other = world_.Connect();
  for (const std::string& key : keys) other->Send(other->bytes.Set(key, ""));
  EXPECT_EQ(second->Received(), kStop);
}

TEST_F(TcpStoreSessionTest, Waits_AreListedInPartsOldestFirst) {
  std::vector<std::unique_ptr<World::Client>> clients;
  for (int i = 0; i < 5; ++i) {
    clients.push_back(world_.Connect());
    clients.back()->Send(clients.back()->bytes.Wait({"c", "b", "a", absl::StrCat("d", i)}));
    world_.clock.Advance(absl::Seconds(1));
  }
  const std::vector<TcpStoreWaitInfo> part = world_.store.Waits(/*after=*/0, 2, /*max_keys=*/3);
  ASSERT_EQ(part.size(), 2u);
  EXPECT_EQ(part[0].client, clients[0]->session().client());
  EXPECT_EQ(part[1].client, clients[1]->session().client());
  EXPECT_THAT(part[1].keys, testing::ElementsAre("c", "b", "a"));
  EXPECT_EQ(part[1].key_count, 4u);
  const std::vector<TcpStoreWaitInfo> rest = world_.store.Waits(part[1].number, 10, 10);
  ASSERT_EQ(rest.size(), 3u);
  EXPECT_EQ(rest[0].client, clients[2]->session().client());
  EXPECT_THAT(rest[0].keys, testing::ElementsAre("c", "b", "a", "d2"));
}

TEST_F(TcpStoreSessionTest, Waits_KeysThatHaveArrived_AreNotListed) {
  const auto client = world_.Connect();
  const auto setter = world_.Connect();
  client->Send(client->bytes.Wait({"d", "c", "b", "a"}));
  const auto absent = [this] { return world_.store.Waits(/*after=*/0, 1, 10).at(0).keys; };
  setter->Send(setter->bytes.Set("b", ""));
  EXPECT_THAT(absent(), testing::ElementsAre("d", "c", "a"));
  setter->Send(setter->bytes.Set("d", ""));
  EXPECT_THAT(absent(), testing::ElementsAre("c", "a"));
  // It has been set once.
  setter->Send(setter->bytes.DeleteKey("d") + setter->bytes.Set("c", ""));
  EXPECT_THAT(absent(), testing::ElementsAre("a"));
  EXPECT_EQ(world_.store.Waits(/*after=*/0, 1, /*max_keys=*/0).at(0).key_count, 1u);
  setter->Send(setter->bytes.Set("a", ""));
  EXPECT_EQ(client->Received(), kStop);
}

TEST_F(TcpStoreSessionTest, Waits_OfManyClientsForTheSameKeys_EndOrAreCancelledIndependently) {
  std::vector<std::unique_ptr<World::Client>> clients;
  for (int i = 0; i < 6; ++i) {
    clients.push_back(world_.Connect());
    clients.back()->Send(clients.back()->bytes.Wait({"a", "b", "a", "c", "b"}));
  }
  const auto setter = world_.Connect();
  setter->Send(setter->bytes.Set("b", ""));
  // The first, one in the middle, and the last of the list.
  for (const int i : {0, 2, 5}) {
    EXPECT_EQ(clients[i]->Send(clients[i]->bytes.CancelWait()), kCanceled);
  }
  clients[3]->Disconnect();
  setter->Send(setter->bytes.Set("c", ""));
  EXPECT_EQ(clients[1]->Received(), "");
  setter->Send(setter->bytes.Set("a", ""));
  for (const int i : {1, 4}) EXPECT_EQ(clients[i]->Received(), kStop);
  for (const int i : {0, 2, 5}) EXPECT_EQ(clients[i]->Received(), "");
  TableSizes sizes;
  world_.store.AddTableSizes(sizes);
  EXPECT_EQ(sizes["tcpstore.waits"], 0u);
  EXPECT_EQ(sizes["tcpstore.waiters"], 0u);
}

TEST_F(TcpStoreSessionTest, Wait_EndedButNotDelivered_IsAnsweredBeforeTheNextRequest) {
  const auto client = world_.Connect();
  const auto setter = world_.Connect();
  client->Send(client->bytes.Wait({"a"}));
  const std::string set = setter->bytes.Set("a", "");
  absl::string_view rest = set;
  // Without the completions.
  ASSERT_TRUE(setter->session().Consume(rest).ok());
  EXPECT_EQ(client->Send(client->bytes.CancelWait()), kStop + kCanceled);
  client->Send(client->bytes.Wait({"b"}));
  EXPECT_EQ(client->Received(), "");
}

TEST_F(TcpStoreSessionTest, Wait_EndedButNotDeliveredAndAbandoned_IsNotAnswered) {
  const auto client = world_.Connect(TcpStoreDialect::kTorch1);
  const auto setter = world_.Connect();
  client->Send(client->bytes.Wait({"a"}));
  const std::string set = setter->bytes.Set("a", "");
  absl::string_view rest = set;
  ASSERT_TRUE(setter->session().Consume(rest).ok());
  EXPECT_EQ(client->Send(client->bytes.Get("a")), Vec(""));
  EXPECT_EQ(client->Received(), "");
}

TEST_F(TcpStoreSessionTest, Wait_QueueNamedTwice_IsEndedByOneElement) {
  const auto client = world_.Connect();
  const auto pusher = world_.Connect();
  client->Send(client->bytes.Wait({"q", "q"}));
  pusher->Send(pusher->bytes.QueuePush("q", "1"));
  EXPECT_EQ(client->Received(), kStop);
}

TEST_F(TcpStoreSessionTest, Barrier_AnyOrder_IsAnsweredWhenAllHaveArrived) {
  std::vector<std::unique_ptr<World::Client>> clients;
  for (int i = 0; i < 4; ++i) clients.push_back(world_.Connect());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(clients[i]->Send(clients[i]->bytes.Barrier("b", 4)), "");
  }
  const std::vector<TcpStoreWaitInfo> waits = world_.store.Waits(/*after=*/0, 100, 100);
  ASSERT_EQ(waits.size(), 3);
  EXPECT_EQ(waits[0].world_size, 4);
  EXPECT_EQ(waits[0].arrived, 3);
  EXPECT_EQ(clients[3]->Send(clients[3]->bytes.Barrier("b", 4)), kStop);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(clients[i]->Received(), kStop);
  // The count stays, so that a second use passes.
  EXPECT_EQ(clients[0]->Send(clients[0]->bytes.Barrier("b", 4)), kStop);
  EXPECT_EQ(clients[0]->Send(clients[0]->bytes.Get("b")), Vec("5"));
}

TEST_F(TcpStoreSessionTest, Barrier_Cancelled_KeepsItsArrival) {
  const auto first = world_.Connect();
  const auto second = world_.Connect();
  first->Send(first->bytes.Barrier("b", 2));
  EXPECT_EQ(first->Send(first->bytes.CancelWait()), kCanceled);
  EXPECT_EQ(second->Send(second->bytes.Barrier("b", 2)), kStop);
  EXPECT_EQ(first->Received(), "");
}

TEST_F(TcpStoreSessionTest, Queue_PushPop_IsFirstInFirstOut) {
  const auto client = world_.Connect();
  const TcpStoreBytes& bytes = client->bytes;
  client->Send(
      absl::StrCat(bytes.QueuePush("q", "1"), bytes.QueuePush("q", "2"), bytes.QueuePush("q", "")));
  EXPECT_EQ(client->Send(bytes.QueueLength("q")), AsBytes<int64_t>(3));
  EXPECT_EQ(client->Send(bytes.GetNumKeys()), AsBytes<int64_t>(0));
  EXPECT_EQ(client->Send(bytes.Check({"q"})), kReady);
  EXPECT_EQ(client->Send(bytes.QueuePop("q")), absl::StrCat(AsBytes<int64_t>(3), Vec("1")));
  EXPECT_EQ(client->Send(bytes.QueuePop("q")), absl::StrCat(AsBytes<int64_t>(2), Vec("2")));
  EXPECT_EQ(client->Send(bytes.QueuePop("q")), absl::StrCat(AsBytes<int64_t>(1), Vec("")));
  EXPECT_EQ(client->Send(bytes.QueuePop("q")), AsBytes<int64_t>(0));
  EXPECT_EQ(client->Send(bytes.Check({"q"})), kNotReady);
  EXPECT_EQ(world_.store.stored_bytes(), 0);
}

TEST_F(TcpStoreSessionTest, Queue_TwoWaiters_EachElementWakesOne) {
  const auto first = world_.Connect();
  const auto second = world_.Connect();
  const auto pusher = world_.Connect();
  first->Send(first->bytes.Wait({"q"}));
  second->Send(second->bytes.Wait({"q"}));
  pusher->Send(pusher->bytes.QueuePush("q", "a"));
  EXPECT_EQ(first->Received(), kStop);
  EXPECT_EQ(second->Received(), "");
  pusher->Send(pusher->bytes.QueuePush("q", "b"));
  EXPECT_EQ(second->Received(), kStop);
}

TEST_F(TcpStoreSessionTest, Queue_ElementOfAWokenWaiter_IsNotTakenByAnother) {
  const auto waiter = world_.Connect();
  const auto thief = world_.Connect();
  const auto pusher = world_.Connect();
  waiter->Send(waiter->bytes.Wait({"q"}));
  pusher->Send(pusher->bytes.QueuePush("q", "a"));
  EXPECT_EQ(waiter->Received(), kStop);
  EXPECT_EQ(thief->Send(thief->bytes.QueuePop("q")), AsBytes<int64_t>(0));
  EXPECT_EQ(thief->Send(thief->bytes.Wait({"q"})), "");
  EXPECT_EQ(waiter->Send(waiter->bytes.QueuePop("q")), absl::StrCat(AsBytes<int64_t>(1), Vec("a")));
  EXPECT_EQ(thief->Received(), "");
}

TEST_F(TcpStoreSessionTest, Queue_WokenWaiterThatDoesNotPop_PassesTheElementOn) {
  auto gone = world_.Connect();
  auto other_request = world_.Connect();
  auto idle = world_.Connect();
  auto next = world_.Connect();
  const auto pusher = world_.Connect();
  for (auto* client : {gone.get(), other_request.get(), idle.get(), next.get()}) {
    EXPECT_EQ(client->Send(client->bytes.Wait({"q"})), "");
  }
  pusher->Send(pusher->bytes.QueuePush("q", "a"));
  EXPECT_EQ(gone->Received(), kStop);
  gone->Disconnect();
  EXPECT_EQ(other_request->Received(), kStop);
  EXPECT_EQ(other_request->Send(other_request->bytes.QueueLength("q")), AsBytes<int64_t>(1));
  EXPECT_EQ(idle->Received(), kStop);
  world_.clock.Advance(TcpStore::kReservation);
  EXPECT_LE(world_.store.NextDeadline(), world_.clock.Now());
  world_.store.Advance();
  world_.Run();
  EXPECT_EQ(next->Received(), kStop);
  EXPECT_EQ(next->Send(next->bytes.QueuePop("q")), absl::StrCat(AsBytes<int64_t>(1), Vec("a")));
  EXPECT_EQ(world_.store.NextDeadline(), absl::InfiniteFuture());
}

TEST_F(TcpStoreSessionTest, Queue_WithAnEmptyName_PassesAnElementOnAsWell) {
  auto gone = world_.Connect();
  const auto next = world_.Connect();
  const auto pusher = world_.Connect();
  gone->Send(gone->bytes.Wait({""}));
  next->Send(next->bytes.Wait({""}));
  pusher->Send(pusher->bytes.QueuePush("", "a"));
  EXPECT_EQ(gone->Received(), kStop);
  gone->Disconnect();
  EXPECT_EQ(next->Received(), kStop);
}

TEST_F(TcpStoreSessionTest, Queues_CountForTheLimitOfTheStore) {
  world_.options.max_store_bytes = 4096;
  const auto client = world_.Connect();
  int pushed = 0;
  while (client->status().ok() && pushed < 1000) {
    client->Send(client->bytes.QueuePush("q", ""));
    ++pushed;
  }
  EXPECT_EQ(client->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_LT(pushed, 70);
  const auto other = world_.Connect();
  other->Send(other->bytes.Set("k", std::string(1000, 'x')));
  EXPECT_EQ(other->status().code(), absl::StatusCode::kResourceExhausted);
  // Names count too.
  const auto named = world_.Connect();
  named->Send(named->bytes.QueuePush(std::string(3000, 'n'), ""));
  EXPECT_EQ(named->status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(TcpStoreSessionTest, Barrier_OfNoRanksBelowAnyCount_IsNotAWaitForTheKey) {
  const auto waiter = world_.Connect();
  const auto other = world_.Connect();
  other->Send(other->bytes.Set("b", "-10"));
  EXPECT_EQ(waiter->Send(waiter->bytes.Barrier("b", -5)), "");
  other->Send(absl::StrCat(other->bytes.Add("b", 0), other->bytes.QueuePush("b", "")));
  EXPECT_EQ(waiter->Received(), "");
  other->Send(other->bytes.Add("b", 4));
  EXPECT_EQ(waiter->Received(), kStop);
}

TEST_F(TcpStoreSessionTest, Wait_ForAKeyAndAQueue_IsAnsweredOnce) {
  const auto waiter = world_.Connect();
  const auto other = world_.Connect();
  waiter->Send(waiter->bytes.Wait({"k", "q"}));
  other->Send(other->bytes.QueuePush("q", "a"));
  EXPECT_EQ(waiter->Received(), "");
  other->Send(other->bytes.Set("k", ""));
  EXPECT_EQ(waiter->Received(), kStop);
  EXPECT_EQ(other->Send(other->bytes.QueuePop("q")), absl::StrCat(AsBytes<int64_t>(1), Vec("a")))
      << "a wait for several keys reserves nothing";
}

TEST_F(TcpStoreSessionTest, Output_OverTheLimit_StopsReading) {
  const auto client = world_.Connect();
  client->Send(client->bytes.Set("k", std::string(TcpStoreSession::kMaxOutput + 1, 'x')));
  const std::string two = absl::StrCat(client->bytes.Get("k"), client->bytes.Get("k"));
  absl::string_view rest = two;
  EXPECT_TRUE(client->session().Consume(rest).ok());
  EXPECT_EQ(rest.size(), two.size() / 2);
  EXPECT_LT(client->session().output().bytes(), 2 * TcpStoreSession::kMaxOutput);
}

TEST_F(TcpStoreSessionTest, RandomBytes_NeverCrash) {
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    const auto client =
        world_.Connect(round % 2 == 0 ? TcpStoreDialect::kTorch22 : TcpStoreDialect::kTorch1);
    std::string bytes;
    for (int i = 0; i < 6; ++i) {
      bytes += static_cast<char>(random() % 20);
      bytes += AsBytes<uint64_t>(random() % 4);
      for (size_t more = random() % 20; more > 0; --more) bytes += static_cast<char>(random() % 3);
    }
    client->Send(bytes);
    if (client->session().is_ambiguous()) client->session().ResolveAmbiguity().IgnoreError();
    client->Disconnect();
  }
  TableSizes sizes;
  world_.store.AddTableSizes(sizes);
  EXPECT_EQ(sizes["tcpstore.waits"], 0);
  EXPECT_EQ(sizes["tcpstore.waiters"], 0);
  EXPECT_EQ(sizes["tcpstore.reservations"], 0);
}

class TcpStoreScopesTest : public testing::Test {
 protected:
  CoordinatorOptions options_;
  FakeClock clock_;
  Completions completions_;
  TcpStoreScopes scopes_{options_, clock_, completions_, absl::Seconds(1)};
};

TEST_F(TcpStoreScopesTest, Shared_AfterTheLastClientAndTheTimeout_BeginsAnew) {
  const auto first = scopes_.Shared();
  scopes_.Attach(first);
  ASSERT_TRUE(first->store.Set("k", "v").ok());
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(scopes_.Shared(), first) << "it has a client";
  scopes_.Detach(first);
  clock_.Advance(absl::Milliseconds(999));
  EXPECT_EQ(scopes_.Shared(), first);
  clock_.Advance(absl::Milliseconds(1));
  const auto second = scopes_.Shared();
  EXPECT_NE(second, first);
  EXPECT_EQ(second->store.key_count(), 0);
}

TEST_F(TcpStoreScopesTest, Advance_AfterTheTimeout_FreesTheSharedScope) {
  const auto scope = scopes_.Shared();
  scopes_.Attach(scope);
  EXPECT_EQ(scopes_.NextDeadline(), absl::InfiniteFuture());
  scopes_.Detach(scope);
  EXPECT_EQ(scopes_.NextDeadline(), clock_.Now() + absl::Seconds(1));
  clock_.Advance(absl::Seconds(1));
  scopes_.Advance();
  EXPECT_EQ(scopes_.Find(""), nullptr);
}

// Jobs that follow each other within the timeout, told by the first request that concerns keys.
class NextJob : public TcpStoreScopesTest {
 protected:
  NextJob() {
    Begin(scope_);
    Send(bytes_.Add("init/", 1));
    Send(bytes_.CompareSet("/torch.rendezvous.1", "", "state"));
    Send(bytes_.Set("/address/0", "of the first job"));
    End();
  }
  void Begin(std::shared_ptr<TcpStoreScope> scope) {
    scope_ = std::move(scope);
    scopes_.Attach(scope_);
    session_ = std::make_shared<TcpStoreSession>(
        scope_->store, TcpStoreClient(++last_client_), limits_,
        [](auto& session, uint64_t wait) { session.EndWait(wait); });
    Send(bytes_.Hello() + bytes_.Ping(1));
  }
  void Send(const std::string& bytes) {
    absl::string_view rest = bytes;
    EXPECT_TRUE(session_->Consume(rest).ok());
  }
  void End() {
    session_ = nullptr;
    scopes_.Detach(scope_);
  }
  bool IsEmptied(const std::string& first_request) {
    Begin(scopes_.Shared());
    Send(first_request);
    return scope_->store.Get("/address/0") == nullptr;
  }

  const TcpStoreBytes bytes_{TcpStoreDialect::kTorch22};
  TcpStoreLimits limits_;
  uint64_t last_client_ = 0;
  std::shared_ptr<TcpStoreScope> scope_ = scopes_.Shared();
  std::shared_ptr<TcpStoreSession> session_;
};

TEST_F(NextJob, FirstRequestCountsAClient_EmptiesTheStore) {
  EXPECT_TRUE(IsEmptied(bytes_.Add("init/", 1)));
  EXPECT_EQ(*scope_->store.Get("init/"), "1");
  // The second client of that job.
  Send(bytes_.Set("/address/0", "of the second job"));
  Send(bytes_.Add("init/", 1));
  EXPECT_EQ(*scope_->store.Get("init/"), "2");
  EXPECT_EQ(*scope_->store.Get("/address/0"), "of the second job");
}

TEST_F(NextJob, SecondClientHasConnectedFirst_EmptiesTheStoreToo) {
  const auto shared = scopes_.Shared();
  scopes_.Attach(shared);
  EXPECT_TRUE(IsEmptied(bytes_.Add("init/", 1)));
}

TEST_F(NextJob, AgentClaimsTheRendezvous_EmptiesTheStore) {
  EXPECT_TRUE(IsEmptied(bytes_.CompareSet("/torch.rendezvous.1", "", "state")));
}

TEST_F(NextJob, AnyOtherFirstRequest_KeepsTheKeys) {
  for (const std::string& request :
       {bytes_.Get("/address/0"), bytes_.Check({"/address/0"}), bytes_.Set("/address/1", "x"),
        bytes_.Add("init/", 0), bytes_.Add("/init/", 1), bytes_.Wait({"/address/0"}),
        bytes_.CompareSet("/torch.rendezvous.2", "", "state"),
        bytes_.CompareSet("/torch.rendezvous.1", "state", "next"), bytes_.GetNumKeys()}) {
    EXPECT_FALSE(IsEmptied(request));
    // The decision is made.
    Send(bytes_.Add("init/", 1));
    EXPECT_NE(scope_->store.Get("/address/0"), nullptr);
    End();
  }
}

TEST_F(NextJob, FirstClientOfAnEmptyStore_BeginsNothing) {
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(IsEmptied(bytes_.Set("/address/1", "x")));
  Send(bytes_.Add("init/", 1));
  EXPECT_NE(scope_->store.Get("/address/1"), nullptr);
}

TEST_F(NextJob, InANamedScope_KeepsTheKeys) {
  const auto named = *scopes_.Open("job/1");
  Begin(named);
  Send(bytes_.Add("init/", 1));
  Send(bytes_.Set("/address/0", "x"));
  End();
  Begin(named);
  Send(bytes_.Add("init/", 1));
  EXPECT_NE(named->store.Get("/address/0"), nullptr);
}

TEST_F(TcpStoreScopesTest, NamesThatToolsCannotTell_AreInvalid) {
  for (const std::string& name :
       {std::string(), std::string("shared"), std::string(257, 'x'), std::string("a\nb"),
        std::string("a\0b", 3), std::string("a\x7f")}) {
    EXPECT_EQ(scopes_.Open(name).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
  for (const std::string& name : {std::string("run/1"), std::string(256, 'x'), std::string("a b"),
                                  std::string("Shared"), std::string("\xc3\xa9")}) {
    EXPECT_TRUE(scopes_.Open(name).ok()) << name;
  }
}

TEST_F(TcpStoreScopesTest, Named_LivesWhileItIsHeldOrHasClients) {
  const auto scope = *scopes_.Open("job/1");
  EXPECT_EQ(*scopes_.Open("job/1"), scope);
  scopes_.Attach(scope);
  scopes_.Close(scope);
  scopes_.Close(scope);
  EXPECT_EQ(scopes_.Find("job/1"), scope) << "it has a client";
  scopes_.Detach(scope);
  EXPECT_EQ(scopes_.Find("job/1"), nullptr);
  EXPECT_FALSE(scopes_.Open("").ok());
}

TEST_F(TcpStoreScopesTest, Detach_FromAScopeThatHasEnded_KeepsItsSuccessor) {
  const auto former = *scopes_.Open("job/1");
  scopes_.Close(former);
  const auto present = *scopes_.Open("job/1");
  ASSERT_NE(present, former);
  // A connection that was accepted meanwhile.
  scopes_.Attach(former);
  scopes_.Detach(former);
  EXPECT_EQ(scopes_.Find("job/1"), present);
}

TEST_F(TcpStoreScopesTest, Scopes_OverTheLimit_AreRefused) {
  for (size_t i = 0; i < TcpStoreScopes::kMaxScopes; ++i) {
    ASSERT_TRUE(scopes_.Open(absl::StrCat(i)).ok());
  }
  EXPECT_EQ(scopes_.Open("more").status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(scopes_.Open("0").ok());
}

}  // namespace
}  // namespace ferry::coord
