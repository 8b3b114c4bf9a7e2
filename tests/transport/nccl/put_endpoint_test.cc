// SPDX-License-Identifier: Apache-2.0
// One-sided transfers: each rule by itself, the pool, and the messages' bytes.
#include "transport/nccl/put_endpoint.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry {
namespace {

using ::testing::HasSubstr;

const DeviceId kSource(1);
const DeviceId kDestination(4);
const CommunicatorName kName = {9, 3};
constexpr uint64_t kPool = 4096;

TransferKey Key(uint64_t id) { return {kSource, kDestination, id}; }

// The only action of that type.
template <typename Action>
Action Only(const PutActions& actions) {
  const Action* found = nullptr;
  for (const PutAction& action : actions) {
    if (const auto* const one = std::get_if<Action>(&action)) {
      EXPECT_EQ(found, nullptr) << "two of them";
      found = one;
    }
  }
  EXPECT_NE(found, nullptr);
  return found == nullptr ? Action{} : *found;
}

class PutEndpointTest : public ::testing::Test {
 protected:
  PutEndpointTest() {
    source_.OpenWindow(kDestination, kName, kPool, 1);
    destination_.OpenWindow(kSource, kName, kPool, 1);
  }

  absl::Time Soon() const { return clock_.Now() + absl::Seconds(60); }
  // Returns the destination's ROOM.
  PutMessage Offer(uint64_t id, uint64_t bytes) {
    uint64_t offset = 0;
    const auto name = source_.Offer(Key(id), bytes, Soon(), offset);
    EXPECT_EQ(name, kName);
    PutActions actions;
    EXPECT_TRUE(destination_.Accept(Key(id), kName, bytes, Soon(), actions));
    return Only<SendPutMessage>(actions).message;
  }
  PutActions Hear(PutEndpoint& endpoint, const PutMessage& message) {
    PutActions actions;
    const absl::Status status = endpoint.OnMessage(message, actions);
    EXPECT_TRUE(status.ok()) << status;
    return actions;
  }
  // The source's stream passes the put. Returns its answer.
  PutMessage Pass(uint64_t id, const absl::Status& status = absl::OkStatus()) {
    PutActions actions;
    source_.PutPassed(Key(id), status, actions);
    EXPECT_EQ(Only<FinishPut>(actions).status, status);
    return Only<SendPutMessage>(actions).message;
  }

  FakeClock clock_;
  PutEndpoint source_{kSource, kPool, clock_};
  PutEndpoint destination_{kDestination, kPool, clock_};
};

TEST_F(PutEndpointTest, BytesGoIntoTheBlockAndAreDeliveredAfterTheSignal) {
  const PutMessage room = Offer(7, 1000);
  EXPECT_EQ(room.kind, PutMessageKind::kRoom);
  const auto put = Only<IssuePut>(Hear(source_, room));
  EXPECT_EQ(put.destination_offset, room.offset);
  EXPECT_EQ(put.bytes, 1000u);
  EXPECT_FALSE(source_.is_quiet());
  const PutActions actions = Hear(destination_, Pass(7));
  // The first wait takes the signal that was sent when the window was opened.
  EXPECT_EQ(Only<IssueWait>(actions).signals, 2);
  PutActions passed;
  destination_.WaitPassed(kSource, kName, absl::OkStatus(), passed);
  const auto finished = Only<FinishPut>(passed);
  EXPECT_TRUE(finished.status.ok());
  EXPECT_EQ(finished.offset, room.offset);
  EXPECT_EQ(destination_.pool().block_count(), 1u) << "the tensor has it";
  destination_.ReturnBlock(*finished.offset);
  for (const PutEndpoint* const each : {&source_, &destination_}) {
    EXPECT_TRUE(each->is_quiet());
    EXPECT_EQ(each->transfer_count(), 0u);
    EXPECT_EQ(each->pool().used_bytes(), 0u);
  }
}

// Those that come while a stream waits share the next wait.
TEST_F(PutEndpointTest, OneWaitAtATimeCountsAllSignals) {
  for (const uint64_t id : {1, 2, 3}) Hear(source_, Offer(id, 512));
  EXPECT_EQ(Only<IssueWait>(Hear(destination_, Pass(1))).signals, 2);
  EXPECT_TRUE(Hear(destination_, Pass(2)).empty());
  EXPECT_TRUE(Hear(destination_, Pass(3)).empty());
  PutActions actions;
  destination_.WaitPassed(kSource, kName, absl::OkStatus(), actions);
  EXPECT_EQ(Only<FinishPut>(actions).key, Key(1));
  EXPECT_EQ(Only<IssueWait>(actions).signals, 2);
}

TEST_F(PutEndpointTest, WithoutRoomItGoesInABatch) {
  uint64_t offset = 0;
  EXPECT_EQ(source_.Offer(Key(1), kPool + 1, Soon(), offset), std::nullopt);
  ASSERT_TRUE(source_.Offer(Key(2), kPool, Soon(), offset).has_value());
  EXPECT_EQ(source_.Offer(Key(3), 1, Soon(), offset), std::nullopt) << "no block for a copy of it";
  PutActions actions;
  ASSERT_TRUE(destination_.Accept(Key(8), kName, 1, Soon(), actions));
  EXPECT_FALSE(destination_.Accept(Key(2), kName, kPool, Soon(), actions));
  actions.clear();
  PutEndpoint::Refuse(Key(2), actions);
  EXPECT_EQ(Only<SendInBatch>(Hear(source_, Only<SendPutMessage>(actions).message)).key, Key(2));
  EXPECT_EQ(source_.pool().used_bytes(), 0u);
}

TEST_F(PutEndpointTest, WithoutAWindowNothingIsOfferedOrAccepted) {
  PutActions actions;
  source_.CommunicatorEnded(kName, absl::InternalError("broken"), kNoDevice, actions);
  uint64_t offset = 0;
  EXPECT_EQ(source_.Offer(Key(1), 512, Soon(), offset), std::nullopt);
  // Another generation than the one that is open here.
  EXPECT_FALSE(destination_.Accept(Key(1), {9, 2}, 512, Soon(), actions));
}

TEST_F(PutEndpointTest, StaleRoomIsWithdrawn) {
  const PutMessage room = Offer(1, 512);
  PutActions actions;
  source_.CommunicatorEnded(kName, absl::InternalError("broken"), kNoDevice, actions);
  source_.OpenWindow(kDestination, {9, 4}, kPool, 1);
  actions = Hear(source_, room);
  EXPECT_EQ(Only<FinishPut>(actions).status.code(), absl::StatusCode::kAborted);
  const PutMessage answer = Only<SendPutMessage>(actions).message;
  EXPECT_EQ(answer.kind, PutMessageKind::kWithdrawn);
  actions = Hear(destination_, answer);
  EXPECT_THAT(Only<FinishPut>(actions).status.message(), HasSubstr("not open on device 1"));
  EXPECT_EQ(destination_.pool().used_bytes(), 0u);
}

// The peer could make this device write anywhere.
TEST_F(PutEndpointTest, RoomBeyondTheWindowIsRefused) {
  for (const uint64_t offset : {kPool - 511, kPool + 1, ~uint64_t{0}}) {
    PutMessage room = Offer(offset, 512);
    room.offset = offset;
    PutActions actions;
    EXPECT_EQ(source_.OnMessage(room, actions).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Only<SendPutMessage>(actions).message.kind, PutMessageKind::kWithdrawn);
    Hear(destination_, Only<SendPutMessage>(actions).message);
  }
}

TEST_F(PutEndpointTest, MessagesThatFitNothingAreRefused) {
  const PutMessage room = Offer(1, 512);
  PutActions actions;
  EXPECT_FALSE(destination_.OnMessage(room, actions).ok()) << "it is for the source";
  PutMessage placed = {.kind = PutMessageKind::kPlaced, .key = Key(2), .communicator = kName};
  EXPECT_FALSE(destination_.OnMessage(placed, actions).ok()) << "it had no room";
  Hear(source_, room);
  EXPECT_FALSE(source_.OnMessage(room, actions).ok()) << "a second time";
  EXPECT_FALSE(source_.OnMessage({.kind = PutMessageKind::kNoRoom, .key = Key(1)}, actions).ok());
}

TEST_F(PutEndpointTest, CancelledReceiveKeepsItsBlockUntilTheAnswer) {
  const PutMessage room = Offer(1, 512);
  PutActions actions;
  destination_.Cancel(Key(1), absl::CancelledError("no"), actions);
  EXPECT_EQ(Only<FinishPut>(actions).status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(destination_.pool().block_count(), 1u);
  Hear(source_, room);
  // Its signal is counted all the same.
  EXPECT_EQ(Only<IssueWait>(Hear(destination_, Pass(1))).signals, 2);
  actions.clear();
  destination_.WaitPassed(kSource, kName, absl::OkStatus(), actions);
  EXPECT_TRUE(actions.empty());
  EXPECT_EQ(destination_.pool().block_count(), 0u);
}

TEST_F(PutEndpointTest, FailedPutIsWithdrawn) {
  Hear(source_, Offer(1, 512));
  const PutMessage answer = Pass(1, absl::AbortedError("its communicator was aborted"));
  EXPECT_EQ(answer.kind, PutMessageKind::kWithdrawn);
  const absl::Status end = Only<FinishPut>(Hear(destination_, answer)).status;
  EXPECT_EQ(end.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(end.message(), HasSubstr("withdrawn by device 1: its communicator was aborted"));
}

TEST_F(PutEndpointTest, BlockPromisedToADeadPeerIsNeverUsedAgain) {
  Offer(1, 512);
  PutActions actions;
  destination_.PeerFailed(kSource, absl::UnavailableError("killed"), actions);
  EXPECT_EQ(Only<FinishPut>(actions).status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(destination_.pool().retired_bytes(), 512u);
  EXPECT_EQ(Only<ReportRetired>(actions).bytes, 512u);
  EXPECT_THAT(Only<ReportRetired>(actions).why.message(), HasSubstr("device 1 has failed: killed"));
  EXPECT_EQ(destination_.pool().used_bytes(), 512u);
  EXPECT_EQ(destination_.transfer_count(), 0u);
}

TEST_F(PutEndpointTest, PausedDeviceIssuesNothingUntilItResumes) {
  const PutMessage room = Offer(1, 512);
  const PutMessage second = Offer(2, 512);
  source_.Pause();
  destination_.Pause();
  uint64_t offset = 0;
  EXPECT_EQ(source_.Offer(Key(3), 512, Soon(), offset), std::nullopt);
  EXPECT_TRUE(Hear(source_, room).empty());
  PutActions actions;
  source_.Cancel(Key(1), absl::AbortedError("it takes too long"), actions);
  EXPECT_EQ(Only<SendPutMessage>(actions).message.kind, PutMessageKind::kWithdrawn);
  EXPECT_TRUE(Hear(source_, second).empty());
  actions.clear();
  source_.Resume(actions);
  EXPECT_EQ(Only<IssuePut>(actions).key, Key(2));
  EXPECT_TRUE(Hear(destination_, Pass(2)).empty());
  EXPECT_TRUE(destination_.is_quiet());
  actions.clear();
  destination_.Resume(actions);
  EXPECT_EQ(Only<IssueWait>(actions).signals, 2);
}

TEST_F(PutEndpointTest, FewPutsAreIssuedAtATime) {
  PutEndpoint source(kSource, 1 << 20, clock_);
  source.OpenWindow(kDestination, kName, 1 << 20, 1);
  PutActions actions;
  for (uint64_t id = 1; id <= PutEndpoint::kMaxIssuedPuts + 1; ++id) {
    uint64_t offset = 0;
    ASSERT_TRUE(source.Offer(Key(id), 512, Soon(), offset).has_value());
    const PutMessage room = {
        .kind = PutMessageKind::kRoom, .key = Key(id), .communicator = kName, .offset = 512 * id};
    ASSERT_TRUE(source.OnMessage(room, actions).ok());
  }
  EXPECT_EQ(actions.size(), PutEndpoint::kMaxIssuedPuts);
  actions.clear();
  source.PutPassed(Key(1), absl::OkStatus(), actions);
  EXPECT_EQ(Only<IssuePut>(actions).key, Key(PutEndpoint::kMaxIssuedPuts + 1));
}

TEST_F(PutEndpointTest, DeadlinesNameWhatWasAwaited) {
  const PutMessage room = Offer(1, 512);
  clock_.Advance(absl::Seconds(61));
  PutActions actions;
  destination_.Expire(actions);
  const absl::Status end = Only<FinishPut>(actions).status;
  EXPECT_EQ(end.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(end.message(), HasSubstr("waited too long for device 1 to put it"));
  EXPECT_EQ(destination_.pool().block_count(), 1u);
  EXPECT_EQ(destination_.NextDeadline(), absl::InfiniteFuture());

  // An issued one ends with its communicator.
  Hear(source_, room);
  actions.clear();
  source_.Expire(actions);
  EXPECT_EQ(Only<BreakForPut>(actions).communicator, kName);
  // There is nothing more to ask for.
  EXPECT_EQ(source_.NextDeadline(), absl::InfiniteFuture());
}

// It may still happen: neither block is used again, and the peer is told nothing. Its own receive
// ends with the communicator.
TEST_F(PutEndpointTest, LostPut_RetiresItsBlock_TellsNobody_AndIsTheLast) {
  Hear(source_, Offer(1, 512));
  PutActions actions;
  source_.CommunicatorEnded(kName, absl::InternalError("broken"), kNoDevice, actions);
  EXPECT_FALSE(source_.is_quiet());
  actions.clear();
  source_.PutLost(Key(1), absl::AbortedError("it stays on its stream"), actions);
  EXPECT_EQ(Only<FinishPut>(actions).status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Only<ReportRetired>(actions).bytes, 512u);
  EXPECT_EQ(Only<ReportRetired>(actions).total_bytes, 512u);
  for (const PutAction& action : actions) {
    EXPECT_FALSE(std::holds_alternative<SendPutMessage>(action));
  }
  EXPECT_TRUE(source_.is_quiet()) << "a lost put is not waited for";
  EXPECT_EQ(source_.transfer_count(), 0u);
  EXPECT_EQ(source_.pool().used_bytes(), 512u);
  // By the next communicator neither.
  source_.OpenWindow(kDestination, {9, 4}, kPool, 1);
  EXPECT_FALSE(source_.HasWindow(kDestination));
  EXPECT_THAT(std::string(source_.lost().message()), HasSubstr("it stays on its stream"));
}

// With another peer it is withdrawn, and what has come is delivered.
TEST_F(PutEndpointTest, LostPut_LeavesNothingOfOtherPeersBehind) {
  const DeviceId other(7);
  const CommunicatorName name = {11, 1};
  PutEndpoint peer(other, kPool, clock_);
  source_.OpenWindow(other, name, kPool, 0);
  peer.OpenWindow(kSource, name, kPool, 0);
  Hear(source_, Offer(1, 512));
  uint64_t offset = 0;
  PutActions actions;
  const TransferKey held = {kSource, other, 2};
  const TransferKey offered = {kSource, other, 3};
  const TransferKey coming = {other, kSource, 4};
  source_.Pause();
  source_.Resume(actions);
  for (const TransferKey& key : {held, offered}) {
    ASSERT_TRUE(source_.Offer(key, 512, Soon(), offset).has_value());
  }
  ASSERT_TRUE(peer.Offer(coming, 512, Soon(), offset).has_value());
  actions.clear();
  ASSERT_TRUE(source_.Accept(coming, name, 512, Soon(), actions));
  source_.Pause();
  PutMessage room = {.kind = PutMessageKind::kRoom, .key = held, .communicator = name};
  EXPECT_TRUE(Hear(source_, room).empty());
  actions.clear();
  source_.PutLost(Key(1), absl::AbortedError("lost"), actions);
  EXPECT_EQ(Only<SendPutMessage>(actions).message.kind, PutMessageKind::kWithdrawn);
  EXPECT_EQ(Only<SendPutMessage>(actions).message.key, held);
  room.key = offered;
  EXPECT_EQ(Only<SendPutMessage>(Hear(source_, room)).message.kind, PutMessageKind::kWithdrawn);
  EXPECT_FALSE(source_.Accept({other, kSource, 5}, name, 512, Soon(), actions));
  EXPECT_EQ(source_.Offer({kSource, other, 6}, 512, Soon(), offset), std::nullopt);
  Hear(source_, {.kind = PutMessageKind::kPlaced, .key = coming, .communicator = name});
  actions.clear();
  source_.Resume(actions);
  EXPECT_EQ(Only<IssueWait>(actions).bytes, 512u);
  actions.clear();
  source_.WaitPassed(other, name, absl::OkStatus(), actions);
  EXPECT_TRUE(Only<FinishPut>(actions).status.ok());
}

TEST_F(PutEndpointTest, LostWait_RetiresWhatItWasFor) {
  Hear(source_, Offer(1, 512));
  Hear(destination_, Pass(1));
  PutActions actions;
  destination_.CommunicatorEnded(kName, absl::InternalError("broken"), kNoDevice, actions);
  EXPECT_TRUE(actions.empty()) << "the wait's end tells";
  destination_.WaitLost(kSource, kName, absl::AbortedError("no signal"), actions);
  EXPECT_EQ(Only<FinishPut>(actions).status.message(), "no signal");
  EXPECT_EQ(Only<ReportRetired>(actions).bytes, 512u);
  EXPECT_TRUE(destination_.is_quiet());
  EXPECT_EQ(destination_.transfer_count(), 0u);
  EXPECT_EQ(destination_.pool().used_bytes(), 512u);
  EXPECT_FALSE(destination_.lost().ok());
}

// Something may still write there: the device cannot say.
TEST_F(PutEndpointTest, BlockThatTheDeviceSaysNothingOf_IsRetired) {
  Hear(source_, Offer(1, 512));
  Hear(destination_, Pass(1));
  PutActions actions;
  destination_.WaitPassed(kSource, kName, absl::OkStatus(), actions);
  const auto finished = Only<FinishPut>(actions);
  actions.clear();
  destination_.RetireBlock(*finished.offset, absl::InternalError("the device has failed"), actions);
  EXPECT_EQ(Only<ReportRetired>(actions).bytes, 512u);
  EXPECT_FALSE(destination_.pool().HasRoom(kPool));
  EXPECT_TRUE(destination_.pool().HasRoom(kPool - 512));
}

TEST(PutPool, NeighboursThatAreFreeBecomeOne) {
  PutPool pool(4096 + 100);
  EXPECT_EQ(pool.bytes(), 4096u);
  const auto a = pool.Take(1);
  const auto b = pool.Take(1000);
  const auto c = pool.Take(2560);
  ASSERT_TRUE(a.has_value() && b.has_value() && c.has_value());
  EXPECT_EQ(pool.used_bytes(), 4096u);
  EXPECT_EQ(pool.Take(1), std::nullopt);
  pool.Give(*a);
  pool.Give(*c);
  EXPECT_TRUE(pool.HasRoom(2560));
  EXPECT_FALSE(pool.HasRoom(2561));
  EXPECT_EQ(pool.Take(2561), std::nullopt);
  pool.Give(*b);
  EXPECT_EQ(pool.Take(4096), 0u);
  EXPECT_EQ(PutPool().Take(1), std::nullopt);
  EXPECT_EQ(PutPool(4096).Take(0), std::nullopt);
}

TEST(PutMessage, IsDecodedAsItWasEncoded) {
  for (const PutMessageKind kind : {PutMessageKind::kRoom, PutMessageKind::kNoRoom,
                                    PutMessageKind::kPlaced, PutMessageKind::kWithdrawn}) {
    PutMessage message = {.kind = kind, .key = Key(77)};
    if (kind != PutMessageKind::kNoRoom) message.communicator = kName;
    if (kind == PutMessageKind::kRoom) message.offset = 1 << 20;
    if (kind == PutMessageKind::kWithdrawn) message.why = absl::AbortedError("broken");
    const std::string bytes = EncodePutMessage(message);
    EXPECT_TRUE(IsPutMessage(bytes));
    const auto decoded = DecodePutMessage(bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, message);
    for (size_t cut = 0; cut < bytes.size(); ++cut) {
      EXPECT_FALSE(DecodePutMessage(absl::string_view(bytes).substr(0, cut)).ok());
    }
    EXPECT_FALSE(DecodePutMessage(bytes + "x").ok());
  }
  EXPECT_FALSE(IsPutMessage(std::string("\x01\x00", 2)));
}

}  // namespace
}  // namespace ferry
