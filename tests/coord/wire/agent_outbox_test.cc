// SPDX-License-Identifier: Apache-2.0
// An agent's requests across streams that break, without a stream.
#include "coord/client/agent_outbox.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry::coord {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr size_t kFrameBytes = size_t{64} << 20;

v1::Request Put(std::string value = "v") {
  v1::Request request;
  v1::KeyValue& entry = *request.mutable_put()->add_entries();
  entry.set_key("k");
  entry.set_value(std::move(value));
  return request;
}

// The ids of the requests that are written now.
std::vector<uint64_t> Written(AgentOutbox& outbox, size_t frame_bytes = kFrameBytes) {
  std::vector<uint64_t> ids;
  v1::ClientFrame frame;
  if (!outbox.Next(frame_bytes, frame)) return ids;
  for (const v1::Request& request : frame.requests()) ids.push_back(request.id());
  return ids;
}

constexpr auto kAllAreWanted = [](const v1::Request&) { return true; };

TEST(AgentOutbox, WritesEachRequestOnce) {
  AgentOutbox outbox;
  EXPECT_EQ(outbox.next_id(), 1u);
  EXPECT_EQ(outbox.Add(Put()), 1u);
  EXPECT_EQ(outbox.Add(Put()), 2u);
  EXPECT_THAT(Written(outbox), ElementsAre(1, 2));
  EXPECT_THAT(Written(outbox), IsEmpty());
}

TEST(AgentOutbox, NewStreamWritesAgainWhatHasNotArrived) {
  AgentOutbox outbox;
  for (int i = 0; i < 3; ++i) outbox.Add(Put());
  EXPECT_THAT(Written(outbox), ElementsAre(1, 2, 3));
  outbox.Rewind();
  outbox.Resume(/*received_id=*/1, kAllAreWanted);
  EXPECT_THAT(Written(outbox), ElementsAre(2, 3));
}

TEST(AgentOutbox, NewStreamDropsWhatIsNotWantedAnyMore) {
  AgentOutbox outbox;
  for (int i = 0; i < 3; ++i) outbox.Add(Put());
  EXPECT_THAT(Written(outbox), ElementsAre(1, 2, 3));
  outbox.Resume(/*received_id=*/0, [](const v1::Request& request) { return request.id() != 2; });
  EXPECT_THAT(Written(outbox), ElementsAre(1, 3));
}

// A caller that is told "it was not sent, and will not be" may rely on it.
TEST(AgentOutbox, RequestThatWasWritten_CannotBeTakenBack) {
  AgentOutbox outbox;
  outbox.Add(Put());
  EXPECT_THAT(Written(outbox), ElementsAre(1));
  outbox.Add(Put());
  EXPECT_FALSE(outbox.TakeBack(1));
  EXPECT_TRUE(outbox.TakeBack(2));
  EXPECT_THAT(Written(outbox), IsEmpty());
}

TEST(AgentOutbox, StreamHasEnded_WhatWasWrittenToItCannotBeTakenBackUntilTheNextWelcome) {
  AgentOutbox outbox;
  outbox.Add(Put());
  EXPECT_THAT(Written(outbox), ElementsAre(1));
  outbox.Rewind();
  EXPECT_FALSE(outbox.TakeBack(1));
  outbox.Resume(/*received_id=*/0, kAllAreWanted);
  EXPECT_TRUE(outbox.TakeBack(1));
}

TEST(AgentOutbox, FrameIsBoundedExceptForASingleLargeRequest) {
  AgentOutbox outbox;
  for (int i = 0; i < 3; ++i) outbox.Add(Put(std::string(1000, 'v')));
  EXPECT_THAT(Written(outbox, 2500), ElementsAre(1, 2));
  EXPECT_THAT(Written(outbox, 100), ElementsAre(3));
}

TEST(AgentOutbox, FrameOfTheCoordinator_IsReceivedOnce) {
  AgentOutbox outbox;
  v1::ServerFrame frame;
  frame.set_sequence(1);
  EXPECT_TRUE(outbox.Receive(frame));
  EXPECT_FALSE(outbox.Receive(frame));
  EXPECT_EQ(outbox.received_sequence(), 1u);
}

// A client that only receives would let the coordinator retain everything.
TEST(AgentOutbox, ManyReceivedBytes_AreAcknowledgedWithoutARequest) {
  AgentOutbox outbox;
  v1::ServerFrame frame;
  frame.set_sequence(1);
  frame.set_blob(std::string(size_t{1} << 20, 'b'));
  v1::ClientFrame acknowledgement;
  EXPECT_FALSE(outbox.Next(kFrameBytes, acknowledgement));
  ASSERT_TRUE(outbox.Receive(frame));
  ASSERT_TRUE(outbox.Next(kFrameBytes, acknowledgement));
  EXPECT_EQ(acknowledgement.acked_sequence(), 1u);
  EXPECT_EQ(acknowledgement.requests_size(), 0);
  EXPECT_FALSE(outbox.Next(kFrameBytes, acknowledgement));
}

}  // namespace
}  // namespace ferry::coord
