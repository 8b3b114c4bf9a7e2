// SPDX-License-Identifier: Apache-2.0
// A store and its clients go on in a successor, from the encoded state alone.
#include "tests/coord/tcpstore/tcp_store_handover.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "coord/core/completions.h"
#include "coord/tcpstore/tcp_store_scopes.h"
#include "coord/tcpstore/tcp_store_session.h"
#include "tests/coord/tcpstore/tcp_store_bytes.h"
#include "tests/coord/tcpstore/tcp_store_replay.h"

namespace ferry::coord {
namespace {

using testing::HasSubstr;

const std::string kStopWaiting(1, '\0');
const std::string kWaitCanceled(1, '\1');

// Plays a recording and compares the replies. `before_byte` is called before each byte of a client,
// and before each byte of a reply, with the number of such calls so far.
template <typename BeforeByte>
void Play(const std::vector<RecordedPiece>& pieces, bool is_byte_by_byte, TcpStoreReplay& replay,
          BeforeByte before_byte) {
  size_t place = 0;
  for (const RecordedPiece& piece : pieces) {
    SCOPED_TRACE(absl::StrCat("line ", piece.line));
    if (piece.is_end) {
      if (piece.is_from_client) replay.Disconnect(piece.connection);
      continue;
    }
    // Until then, the rest is sent or received as a whole.
    size_t done = 0;
    std::string received;
    const auto transfer = [&](size_t end) {
      const absl::string_view part = absl::string_view(piece.bytes).substr(done, end - done);
      if (piece.is_from_client) {
        replay.Send(piece.connection, part);
      } else {
        received += replay.Receive(piece.connection, part.size());
      }
      done = end;
    };
    for (size_t i = 0; i < piece.bytes.size(); ++i, ++place) {
      if (is_byte_by_byte && i > 0) transfer(i);
      before_byte(place, [&] {
        if (i > done) transfer(i);
      });
    }
    transfer(piece.bytes.size());
    if (piece.is_from_client) continue;
    ASSERT_EQ(absl::BytesToHexString(received), absl::BytesToHexString(piece.bytes));
  }
  EXPECT_EQ(replay.wait_count(), 0);
  EXPECT_EQ(replay.Left(), "");
}

class RecordedHandover : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Torch, RecordedHandover, testing::ValuesIn(kRecordings),
                         [](const auto& info) { return RecordingTestName(info.param); });

TEST_P(RecordedHandover, AfterEveryByte_RepliesAreTheSame) {
  const std::vector<RecordedPiece> pieces = ReadRecording(GetParam());
  TcpStoreReplay replay;
  size_t places = 0;
  Play(pieces, /*is_byte_by_byte=*/true, replay, [&](size_t, const auto&) {
    ++places;
    replay.HandOver();
  });
  EXPECT_GT(places, 1000);
}

TEST_P(RecordedHandover, OnceAtAnyByte_RepliesAreTheSame) {
  const std::vector<RecordedPiece> pieces = ReadRecording(GetParam());
  std::string all;
  for (const RecordedPiece& piece : pieces) all += piece.bytes;
  for (size_t cut = 0; cut < all.size() && !HasFatalFailure(); ++cut) {
    // The middle of a large value.
    constexpr size_t kAround = 8;
    const bool is_value =
        cut >= kAround && absl::string_view(all).substr(cut - kAround, 2 * kAround) ==
                              std::string(2 * kAround, all[cut]);
    if (is_value && all[cut] != 0) continue;
    SCOPED_TRACE(absl::StrCat("at byte ", cut));
    TcpStoreReplay replay;
    Play(pieces, /*is_byte_by_byte=*/false, replay, [&](size_t place, const auto& transfer) {
      if (place != cut) return;
      transfer();
      replay.HandOver();
    });
  }
}

// A store whose clients are byte strings in and out, and which can be handed over.
class HandoverWorld final {
 public:
  struct Client {
    std::shared_ptr<TcpStoreSession> session;
    std::string unread;
    absl::Status status;
  };

  // Returns the number of the client.
  size_t Connect() {
    clients_.push_back({NewSession(), "", absl::OkStatus()});
    return clients_.size() - 1;
  }
  TcpStoreSession& session(size_t client) { return *clients_[client].session; }
  // Returns the replies that are complete then.
  std::string Send(size_t client, absl::string_view bytes) {
    SendOnly(client, bytes);
    return Receive(client);
  }
  void SendOnly(size_t number, absl::string_view bytes) {
    Client& client = clients_[number];
    client.unread.append(bytes.data(), bytes.size());
    absl::string_view rest = client.unread;
    client.status = client.session->Consume(rest);
    client.unread = std::string(rest);
    RunCompletions();
  }
  // Reads at most so many bytes of the replies, those that are produced meanwhile included.
  std::string Receive(size_t number, size_t most = std::numeric_limits<size_t>::max()) {
    Client& client = clients_[number];
    std::string received;
    if (client.session == nullptr) return received;
    while (received.size() < most) {
      TcpStoreOutput& output = client.session->output();
      if (output.empty()) {
        if (!client.session->has_more_parts()) break;
        SendOnly(number, "");
        continue;
      }
      iovec piece = {};
      EXPECT_EQ(output.Pieces(&piece, 1), 1);
      const size_t part = std::min(piece.iov_len, most - received.size());
      received.append(static_cast<const char*>(piece.iov_base), part);
      output.Consume(part);
    }
    return received;
  }
  void Disconnect(size_t client) {
    clients_[client].session = nullptr;
    RunCompletions();
  }
  void RunCompletions() {
    for (Completion& completion : completions.Take()) std::move(completion)();
  }

  TcpStoreScopeState Export() const {
    TcpStoreScopeState scope;
    scope.store = store->Export();
    for (size_t i = 0; i < clients_.size(); ++i) {
      const Client& client = clients_[i];
      if (client.session == nullptr) continue;
      scope.connections.push_back({static_cast<int>(i), client.unread, client.session->Export()});
    }
    return scope;
  }
  absl::Status Restore(const TcpStoreScopeState& scope) {
    for (Client& client : clients_) client.session = nullptr;
    store = std::make_unique<TcpStore>(options, clock, completions);
    FERRY_RETURN_IF_ERROR(store->Restore(scope.store));
    TcpStoreSession::Sessions sessions;
    for (const TcpStoreConnectionState& each : scope.connections) {
      const auto number = static_cast<size_t>(each.socket);
      if (number >= clients_.size()) return absl::InvalidArgumentError("no such client");
      clients_[number].session = NewSession();
      clients_[number].unread = each.unread;
      FERRY_RETURN_IF_ERROR(clients_[number].session->Restore(each.session));
      sessions[each.session.client] = clients_[number].session;
    }
    FERRY_RETURN_IF_ERROR(TcpStoreSession::RestoreWaits(scope.store, sessions));
    RunCompletions();
    return absl::OkStatus();
  }
  void HandOver() {
    const absl::StatusOr<HandoverState> state = ThroughHandover(Export());
    ASSERT_TRUE(state.ok()) << state.status();
    ASSERT_EQ(Restore(state->scopes.at(0)), absl::OkStatus());
  }

  CoordinatorOptions options;
  TcpStoreLimits limits;
  FakeClock clock;
  Completions completions;
  std::unique_ptr<TcpStore> store = std::make_unique<TcpStore>(options, clock, completions);

 private:
  std::shared_ptr<TcpStoreSession> NewSession() {
    // The numbers of clients need not be those of the predecessor.
    return std::make_shared<TcpStoreSession>(
        *store, TcpStoreClient(last_client_ += 7), limits,
        [](auto& session, uint64_t wait) { session.EndWait(wait); });
  }

  std::vector<Client> clients_;
  uint64_t last_client_ = 0;
};

class Handover : public testing::Test {
 protected:
  HandoverWorld world_;
  const TcpStoreBytes bytes_{TcpStoreDialect::kTorch22};
};

class EveryDialectHandover : public testing::TestWithParam<TcpStoreDialect> {};

INSTANTIATE_TEST_SUITE_P(Torch, EveryDialectHandover,
                         testing::Values(TcpStoreDialect::kTorch1, TcpStoreDialect::kTorch21,
                                         TcpStoreDialect::kTorch22),
                         [](const auto& info) {
                           return info.param == TcpStoreDialect::kTorch1    ? "1_13_to_2_0"
                                  : info.param == TcpStoreDialect::kTorch21 ? "2_1"
                                                                            : "since_2_2";
                         });

// The requests of a dialect, as many kinds as it has.
std::vector<std::string> RequestsOf(TcpStoreDialect dialect) {
  const TcpStoreBytes bytes(dialect);
  std::vector<std::string> requests = {bytes.Set("key", "value"),
                                       bytes.Set("", ""),
                                       bytes.CompareSet("key", "expected", "desired"),
                                       bytes.CompareSet("key", "", ""),
                                       bytes.Get("key"),
                                       bytes.Add("n", -7),
                                       bytes.Check({"a", "", "bcd"}),
                                       bytes.Check({}),
                                       bytes.GetNumKeys(),
                                       bytes.DeleteKey("key")};
  if (dialect == TcpStoreDialect::kTorch1) return requests;
  requests.insert(requests.end(),
                  {bytes.Append("key", "more"), bytes.MultiGet({"a", "bc"}),
                   bytes.MultiSet({{"a", "1"}, {"", ""}, {"b", "22"}}), bytes.CancelWait()});
  if (dialect == TcpStoreDialect::kTorch21) return requests;
  requests.insert(requests.end(),
                  {bytes.Hello(), bytes.Ping(7), bytes.QueuePush("q", "e"), bytes.QueuePop("q"),
                   bytes.QueueLength("q"), bytes.ListKeys(), bytes.Barrier("b", 1)});
  return requests;
}

TEST_P(EveryDialectHandover, IncompleteRequest_IsExportedAsItsBytes) {
  std::vector<std::string> requests = RequestsOf(GetParam());
  // The dialects without a greeting are known by the operations.
  const std::string greeting = GetParam() == TcpStoreDialect::kTorch22
                                   ? TcpStoreBytes(GetParam()).Hello()
                                   : TcpStoreBytes(GetParam()).DeleteKey("k");
  for (const std::string& request : requests) {
    for (size_t cut = 0; cut < request.size(); ++cut) {
      HandoverWorld world;
      const size_t client = world.Connect();
      world.SendOnly(client, greeting);
      if (world.session(client).is_ambiguous()) {
        ASSERT_TRUE(world.session(client).ResolveAmbiguity().ok());
      }
      world.SendOnly(client, absl::string_view(request).substr(0, cut));
      EXPECT_EQ(absl::BytesToHexString(world.session(client).Export().parser.incomplete),
                absl::BytesToHexString(request.substr(0, cut)));
      EXPECT_EQ(world.session(client).dialect(), GetParam());
    }
  }
}

TEST_P(EveryDialectHandover, RequestCutAnywhere_IsAnsweredAsOneThatIsNot) {
  const std::vector<std::string> requests = RequestsOf(GetParam());
  for (const std::string& request : requests) {
    for (size_t cut = 0; cut <= request.size(); ++cut) {
      SCOPED_TRACE(absl::StrCat(absl::BytesToHexString(request), " cut at ", cut));
      std::string replies[2];
      for (const bool is_handed_over : {false, true}) {
        HandoverWorld world;
        const size_t client = world.Connect();
        std::string& received = replies[is_handed_over ? 1 : 0];
        received = world.Send(client, TcpStoreBytes(GetParam()).Hello());
        received += world.Send(client, absl::string_view(request).substr(0, cut));
        if (is_handed_over) world.HandOver();
        received += world.Send(client, absl::string_view(request).substr(cut));
        // The number of keys shows what it did.
        if (world.session(client).is_ambiguous()) {
          ASSERT_TRUE(world.session(client).ResolveAmbiguity().ok());
        }
        received += world.Send(client, TcpStoreBytes(GetParam()).GetNumKeys());
      }
      EXPECT_EQ(absl::BytesToHexString(replies[1]), absl::BytesToHexString(replies[0]));
    }
  }
}

TEST(DialectHandover, AmbiguousRequest_IsStillAmbiguous) {
  const TcpStoreBytes torch1(TcpStoreDialect::kTorch1);
  const TcpStoreBytes torch21(TcpStoreDialect::kTorch21);
  HandoverWorld world;
  const size_t deletes = world.Connect();
  const size_t appends = world.Connect();
  world.SendOnly(deletes, torch1.Set("k", "v"));
  world.SendOnly(deletes, torch1.DeleteKey("k").substr(0, 1));
  world.SendOnly(deletes, torch1.DeleteKey("k").substr(1));
  const std::string append = torch21.Append("k", "w");
  world.SendOnly(appends, absl::string_view(append).substr(0, append.size() - 9));
  EXPECT_TRUE(world.session(deletes).sends_field_by_field());
  EXPECT_FALSE(world.session(appends).sends_field_by_field());
  world.HandOver();
  EXPECT_TRUE(world.session(deletes).is_ambiguous());
  EXPECT_TRUE(world.session(deletes).sends_field_by_field());
  EXPECT_TRUE(world.session(appends).is_ambiguous());
  EXPECT_FALSE(world.session(appends).sends_field_by_field());
  world.SendOnly(appends, absl::string_view(append).substr(append.size() - 9));
  EXPECT_EQ(world.Send(appends, torch21.Get("k")), Vec("vw"));
  ASSERT_TRUE(world.session(deletes).ResolveAmbiguity().ok());
  EXPECT_EQ(world.Receive(deletes), AsBytes<int64_t>(1));
  EXPECT_EQ(world.session(deletes).dialect(), TcpStoreDialect::kTorch1);
}

TEST_F(Handover, ClientsInWaits_AreAnsweredByTheSuccessor) {
  const size_t setter = world_.Connect();
  const size_t one = world_.Connect();
  const size_t two = world_.Connect();
  const size_t barrier = world_.Connect();
  for (const size_t client : {setter, one, two, barrier}) world_.Send(client, bytes_.Hello());
  world_.Send(one, bytes_.Wait({"k"}));
  world_.Send(two, bytes_.Wait({"k", "l", "m"}));
  world_.Send(barrier, bytes_.Barrier("b", 2));
  // A key that was set and deleted has arrived.
  world_.Send(setter, absl::StrCat(bytes_.Set("l", ""), bytes_.DeleteKey("l")));
  world_.clock.Advance(absl::Seconds(3));
  const absl::Time since = world_.store->Waits(0, 1, 1).at(0).since;
  world_.HandOver();
  EXPECT_EQ(world_.store->wait_count(), 3);
  EXPECT_EQ(world_.store->Waits(0, 1, 1).at(0).since, since);
  EXPECT_TRUE(world_.session(one).is_waiting());
  EXPECT_GT(world_.session(one).held_bytes(), 0);
  EXPECT_EQ(world_.Receive(one), "");
  world_.Send(setter, bytes_.Set("k", ""));
  EXPECT_EQ(world_.Receive(one), kStopWaiting);
  EXPECT_EQ(world_.Receive(two), "");
  world_.Send(setter, bytes_.Set("m", ""));
  EXPECT_EQ(world_.Receive(two), kStopWaiting);
  // The barrier has been counted once.
  EXPECT_EQ(world_.Receive(barrier), "");
  EXPECT_EQ(world_.Send(setter, bytes_.Get("b")), Vec("1"));
  EXPECT_EQ(world_.Send(setter, bytes_.Barrier("b", 2)), kStopWaiting);
  EXPECT_EQ(world_.Receive(barrier), kStopWaiting);
}

TEST_F(Handover, ClientInAWait_CanCancelItAndDie) {
  const size_t setter = world_.Connect();
  const size_t cancels = world_.Connect();
  const size_t dies = world_.Connect();
  for (const size_t client : {setter, cancels, dies}) {
    world_.Send(client, bytes_.Hello());
    if (client != setter) world_.Send(client, bytes_.Wait({"k"}));
  }
  world_.HandOver();
  EXPECT_EQ(world_.Send(cancels, bytes_.CancelWait()), kWaitCanceled);
  world_.Disconnect(dies);
  EXPECT_EQ(world_.store->wait_count(), 0);
  world_.Send(setter, bytes_.Set("k", ""));
  EXPECT_EQ(world_.Receive(cancels), "");
}

TEST_F(Handover, RequestsBehindAWait_AreExecutedWhenItEnds) {
  const size_t setter = world_.Connect();
  const size_t client = world_.Connect();
  for (const size_t each : {setter, client}) world_.Send(each, bytes_.Hello());
  EXPECT_EQ(
      world_.Send(client, absl::StrCat(bytes_.Wait({"k"}), bytes_.Get("k"), bytes_.Set("x", ""))),
      "");
  world_.HandOver();
  world_.Send(setter, bytes_.Set("k", "v"));
  EXPECT_EQ(world_.Send(client, ""), absl::StrCat(kStopWaiting, Vec("v")));
  EXPECT_TRUE(world_.store->Contains("x"));
}

TEST_F(Handover, WaitersOfAQueue_AreServedInTheOrderInWhichTheyCame) {
  const size_t pushes = world_.Connect();
  std::vector<size_t> waiters;
  for (int i = 0; i < 20; ++i) waiters.push_back(world_.Connect());
  world_.Send(pushes, bytes_.Hello());
  // Not the order of the connections.
  std::swap(waiters[3], waiters[17]);
  for (const size_t waiter : waiters) {
    world_.Send(waiter, bytes_.Hello());
    world_.Send(waiter, bytes_.Wait({"q"}));
  }
  for (const size_t waiter : waiters) {
    world_.HandOver();
    world_.Send(pushes, bytes_.QueuePush("q", absl::StrCat("for ", waiter)));
    EXPECT_EQ(world_.Receive(waiter), kStopWaiting);
    // The element is reserved for it.
    EXPECT_EQ(world_.Send(pushes, bytes_.QueuePop("q")), AsBytes<int64_t>(0));
    world_.HandOver();
    EXPECT_EQ(world_.Send(pushes, bytes_.QueuePop("q")), AsBytes<int64_t>(0));
    EXPECT_EQ(world_.Send(waiter, bytes_.QueuePop("q")),
              absl::StrCat(AsBytes<int64_t>(1), Vec(absl::StrCat("for ", waiter))));
  }
}

TEST_F(Handover, Reservation_EndsAtItsTime) {
  const size_t pushes = world_.Connect();
  const size_t waiter = world_.Connect();
  for (const size_t each : {pushes, waiter}) world_.Send(each, bytes_.Hello());
  world_.Send(waiter, bytes_.Wait({"q"}));
  world_.Send(pushes, bytes_.QueuePush("q", "e"));
  const absl::Time until = world_.store->NextDeadline();
  world_.clock.Advance(TcpStore::kReservation - absl::Seconds(1));
  world_.HandOver();
  EXPECT_EQ(world_.store->NextDeadline(), until);
  world_.clock.Advance(absl::Seconds(1));
  world_.store->Advance();
  EXPECT_EQ(world_.Send(pushes, bytes_.QueuePop("q")), absl::StrCat(AsBytes<int64_t>(1), Vec("e")));
}

// PyTorch's clients pop only after a wait for the queue alone.
TEST_F(Handover, WaitOfWhichOnlyAQueueIsAbsent_ReservesNothingIfItBeganWithMoreKeys) {
  const size_t pushes = world_.Connect();
  const size_t waiter = world_.Connect();
  for (const size_t each : {pushes, waiter}) world_.Send(each, bytes_.Hello());
  world_.Send(waiter, bytes_.Wait({"k", "q"}));
  world_.Send(pushes, bytes_.Set("k", ""));
  world_.HandOver();
  world_.Send(pushes, bytes_.QueuePush("q", "e"));
  EXPECT_EQ(world_.Receive(waiter), kStopWaiting);
  EXPECT_EQ(world_.Send(pushes, bytes_.QueuePop("q")), absl::StrCat(AsBytes<int64_t>(1), Vec("e")));
}

TEST_F(Handover, QueuesAndKeys_AreWhatTheyWere) {
  const size_t client = world_.Connect();
  world_.Send(client, absl::StrCat(bytes_.Hello(), bytes_.Set("", "empty"), bytes_.Set("k", ""),
                                   bytes_.Set(std::string("\0\xff", 2), std::string(3, '\0')),
                                   bytes_.QueuePush("q", "1"), bytes_.QueuePush("r", "2"),
                                   bytes_.QueuePush("q", "3")));
  const size_t stored = world_.store->stored_bytes();
  world_.HandOver();
  EXPECT_EQ(world_.store->stored_bytes(), stored);
  EXPECT_EQ(world_.Send(client, bytes_.Get("")), Vec("empty"));
  EXPECT_EQ(world_.Send(client, bytes_.Get(std::string("\0\xff", 2))), Vec(std::string(3, '\0')));
  EXPECT_EQ(world_.Send(client, bytes_.GetNumKeys()), AsBytes<int64_t>(3));
  EXPECT_EQ(world_.Send(client, bytes_.QueuePop("q")), absl::StrCat(AsBytes<int64_t>(2), Vec("1")));
  EXPECT_EQ(world_.Send(client, bytes_.QueuePop("q")), absl::StrCat(AsBytes<int64_t>(1), Vec("3")));
  EXPECT_EQ(world_.Send(client, bytes_.QueueLength("r")), AsBytes<int64_t>(1));
  world_.SendOnly(client, bytes_.Append("k", "more"));
  EXPECT_EQ(world_.Send(client, bytes_.Get("k")), Vec("more"));
}

TEST_F(Handover, StoreWithoutClients_StillDetectsANewJob) {
  for (const bool is_idle : {false, true}) {
    HandoverWorld world;
    const size_t first = world.Connect();
    world.Send(first, absl::StrCat(bytes_.Hello(), bytes_.Add("init/", 1), bytes_.Set("k", "")));
    world.Disconnect(first);
    if (is_idle) world.store->MarkIdle();
    world.HandOver();
    const size_t second = world.Connect();
    EXPECT_EQ(world.Send(second, absl::StrCat(bytes_.Hello(), bytes_.Add("init/", 1))),
              AsBytes<int64_t>(is_idle ? 1 : 2));
    EXPECT_EQ(world.store->Contains("k"), !is_idle);
  }
}

TEST_F(Handover, RepliesThatWerePartlyRead_ContinueWhereTheyWere) {
  const std::string large(10'000, 'x');
  const std::string small(100, 'y');
  const size_t client = world_.Connect();
  world_.Send(client, absl::StrCat(bytes_.Hello(), bytes_.Set("l", large), bytes_.Set("s", small)));
  const std::string requests = absl::StrCat(bytes_.Get("s"), bytes_.Get("l"), bytes_.Get("s"));
  const std::string expected = absl::StrCat(Vec(small), Vec(large), Vec(small));
  for (size_t read = 0; read <= expected.size(); read += read < 200 ? 1 : 97) {
    SCOPED_TRACE(absl::StrCat(read, " bytes were read"));
    world_.SendOnly(client, requests);
    std::string received = world_.Receive(client, read);
    world_.HandOver();
    EXPECT_EQ(world_.session(client).output().bytes(), expected.size() - read);
    // A value that is replaced is in the reply still.
    received += world_.Receive(client);
    EXPECT_TRUE(received == expected);
  }
}

TEST_F(Handover, ReplacedValueOfAReply_IsSentAsItWas) {
  const std::string old(10'000, 'x');
  const size_t client = world_.Connect();
  world_.SendOnly(client, absl::StrCat(bytes_.Hello(), bytes_.Set("k", old), bytes_.Get("k"),
                                       bytes_.Set("k", "new"), bytes_.Get("k")));
  world_.HandOver();
  EXPECT_TRUE(world_.Receive(client) == absl::StrCat(Vec(old), Vec("new")));
}

TEST_F(Handover, ValueThatManyRepliesShare_IsEncodedAndKeptOnce) {
  constexpr size_t kValue = size_t{1} << 20;
  const size_t first = world_.Connect();
  world_.Send(first, absl::StrCat(bytes_.Hello(), bytes_.Set("k", std::string(kValue, 'x'))));
  for (int i = 0; i < 50; ++i) {
    world_.SendOnly(world_.Connect(), absl::StrCat(bytes_.Hello(), bytes_.Get("k")));
  }
  HandoverState state;
  state.scopes.push_back(world_.Export());
  EXPECT_LT(Encoded(state).size(), kValue + kValue / 4);
  state = {};
  world_.HandOver();
  // The store's own reference, and those of the replies.
  EXPECT_EQ(world_.store->Get("k").use_count(), 52);
  // Append must not change what the replies contain.
  world_.SendOnly(first, bytes_.Append("k", "y"));
  EXPECT_EQ(world_.Receive(1).size(), sizeof(uint64_t) + kValue);
}

TEST_F(Handover, MultiGetInProgress_GoesOnWithTheNextKey) {
  constexpr size_t kKeys = 3 * TcpStoreSession::kKeysInPart;
  std::vector<std::string> keys;
  std::string expected;
  const size_t client = world_.Connect();
  world_.Send(client, bytes_.Hello());
  for (size_t i = 0; i < kKeys; ++i) {
    keys.push_back(absl::StrCat("k", i));
    const std::string value(1000 + i % 500, static_cast<char>('a' + i % 26));
    world_.Send(client, bytes_.Set(keys.back(), value));
    expected += Vec(value);
  }
  world_.SendOnly(client, absl::StrCat(bytes_.MultiGet(keys), bytes_.Ping(7)));
  std::string received;
  int handovers = 0;
  while (received.size() < expected.size()) {
    world_.HandOver();
    ++handovers;
    const std::string part = world_.Receive(client, 500'000);
    ASSERT_FALSE(part.empty());
    received += part;
  }
  world_.SendOnly(client, "");
  received += world_.Receive(client);
  EXPECT_TRUE(received == absl::StrCat(expected, AsBytes<uint32_t>(7)));
  EXPECT_GT(handovers, 5);
}

TEST_F(Handover, ListInProgress_HasEachKeyOnce) {
  constexpr size_t kKeys = 3 * TcpStoreSession::kKeysInPart;
  const size_t client = world_.Connect();
  world_.Send(client, bytes_.Hello());
  for (size_t i = 0; i < kKeys; ++i) world_.Send(client, bytes_.Set(absl::StrCat("k", i), ""));
  const std::string whole = world_.Send(client, bytes_.ListKeys());
  world_.SendOnly(client, bytes_.ListKeys());
  EXPECT_TRUE(world_.session(client).has_more_parts());
  world_.HandOver();
  EXPECT_TRUE(world_.session(client).has_more_parts());
  EXPECT_TRUE(world_.Receive(client) == whole);
}

TEST_F(Handover, StateThatIsOverALimit_IsAnError) {
  const size_t client = world_.Connect();
  world_.Send(client, absl::StrCat(bytes_.Hello(), bytes_.Set("k", "value")));
  const TcpStoreScopeState scope = world_.Export();
  world_.options.max_store_bytes = 5;
  EXPECT_THAT(world_.Restore(scope).message(), HasSubstr("--max-store-bytes"));
}

// A state with something of each kind.
std::string Sample() {
  HandoverWorld world;
  const TcpStoreBytes bytes(TcpStoreDialect::kTorch22);
  const size_t client = world.Connect();
  const size_t waiter = world.Connect();
  const size_t popper = world.Connect();
  for (const size_t each : {client, waiter, popper}) world.Send(each, bytes.Hello());
  world.Send(waiter, bytes.Wait({"absent", "other"}));
  world.Send(popper, bytes.Wait({"q"}));
  world.SendOnly(client, absl::StrCat(bytes.Set("k", std::string(600, 'x')), bytes.Get("k"),
                                      bytes.QueuePush("q", "e"), bytes.Ping(1),
                                      bytes.Set("half", "sent").substr(0, 9)));
  HandoverState state{.address = "127.0.0.1:9470", .listeners = {3, 4}, .silent = {9}};
  state.scopes.push_back(world.Export());
  return Encoded(state);
}

TEST(HandoverEncoding, State_IsReadAsItWasWritten) {
  const absl::StatusOr<HandoverState> state = DecodeHandover(Sample());
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->address, "127.0.0.1:9470");
  EXPECT_THAT(state->listeners, testing::ElementsAre(3, 4));
  EXPECT_THAT(state->silent, testing::ElementsAre(9));
  ASSERT_EQ(state->scopes.size(), 1);
  EXPECT_EQ(state->scopes[0].connections.size(), 3);
  EXPECT_EQ(state->scopes[0].store.waits.size(), 1);
  EXPECT_EQ(state->scopes[0].store.reservations.size(), 1);
}

TEST(HandoverEncoding, TruncatedState_IsAnError) {
  const std::string sample = Sample();
  ASSERT_GT(sample.size(), 700);
  for (size_t size = 0; size < sample.size(); ++size) {
    const absl::StatusOr<HandoverState> state =
        DecodeHandover(absl::string_view(sample).substr(0, size));
    ASSERT_EQ(state.status().code(), absl::StatusCode::kDataLoss) << size;
  }
  EXPECT_FALSE(DecodeHandover(absl::StrCat(sample, sample)).ok());
}

TEST(HandoverEncoding, StateWithAnyWrongByte_DoesNoHarm) {
  const std::string sample = Sample();
  size_t restored = 0;
  for (size_t at = 0; at < sample.size(); ++at) {
    for (const int change : {1, 0x80, 0xff}) {
      std::string changed = sample;
      changed[at] = static_cast<char>(changed[at] ^ change);
      const absl::StatusOr<HandoverState> state = DecodeHandover(changed);
      if (!state.ok()) continue;
      for (const TcpStoreScopeState& scope : state->scopes) {
        HandoverWorld world;
        for (int i = 0; i < 3; ++i) world.Connect();
        if (!world.Restore(scope).ok()) continue;
        ++restored;
        for (size_t client = 0; client < 3; ++client) {
          world.Receive(client);
          world.Disconnect(client);
        }
        EXPECT_EQ(world.store->wait_count(), 0);
      }
    }
  }
  // A wrong byte of a value is as good as the right one.
  EXPECT_GT(restored, 600);
}

TEST(HandoverEncoding, OtherVersion_IsAnErrorThatNamesBoth) {
  std::string sample = Sample();
  // The version is the first field of the first message.
  const std::string version = {0x08, 1};
  const size_t at = sample.find(version);
  ASSERT_LT(at, 12);
  sample[at + 1] = 9;
  const absl::StatusOr<HandoverState> state = DecodeHandover(sample);
  EXPECT_EQ(state.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(state.status().message(), HasSubstr("9"));
  EXPECT_THAT(state.status().message(), HasSubstr("reads 1"));
}

TEST(HandoverOfScopes, ScopeOfThePort_KeepsItsTime) {
  CoordinatorOptions options;
  FakeClock clock;
  Completions completions;
  TcpStoreScopes scopes(options, clock, completions, absl::Seconds(10));
  const auto scope = scopes.Restore("", clock.Now() - absl::Seconds(4));
  ASSERT_TRUE(scope.ok());
  EXPECT_EQ(scopes.NextDeadline(), clock.Now() + absl::Seconds(6));
  EXPECT_EQ(scopes.Shared(), *scope);
  EXPECT_FALSE(scopes.Restore("", clock.Now()).ok());
  EXPECT_FALSE(scopes.Restore("a\nb", clock.Now()).ok());
  ASSERT_TRUE(scopes.Restore("run/1", clock.Now()).ok());
  EXPECT_EQ(scopes.All().size(), 2);
}

}  // namespace
}  // namespace ferry::coord
