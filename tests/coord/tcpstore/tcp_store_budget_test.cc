// SPDX-License-Identifier: Apache-2.0
// Decides which clients are paused or closed when all of them together hold much memory.
#include "coord/tcpstore/tcp_store_budget.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry::coord {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr size_t kMax = size_t{100} << 20;
constexpr size_t kMib = size_t{1} << 20;

class TcpStoreBudgetTest : public testing::Test {
 protected:
  // The client holds so much, after so many requests; it has moved nothing unless told.
  using Phase = TcpStoreBudget::Phase;
  void Hold(uint64_t client, size_t bytes, uint64_t requests = 0, uint64_t moved = 0,
            Phase phase = Phase::kSending) {
    budget_.Update(TcpStoreClient(client), bytes, moved, requests, phase);
  }
  void HoldWait(uint64_t client, size_t bytes) {
    budget_.Update(TcpStoreClient(client), bytes, /*moved_bytes=*/0, /*requests=*/1,
                   Phase::kWaiting);
  }
  bool MayReceive(uint64_t client) { return budget_.MayReceive(TcpStoreClient(client)); }
  std::vector<uint64_t> Resumed() {
    std::vector<uint64_t> clients;
    for (const TcpStoreClient client : budget_.TakeResumed()) clients.push_back(client.value());
    return clients;
  }
  // As the server: closed clients are removed.
  std::vector<uint64_t> ClosedInPeriod() {
    std::vector<uint64_t> clients;
    for (const TcpStoreBudget::Closed& closed : budget_.EndPeriod()) {
      clients.push_back(closed.client.value());
      budget_.Remove(closed.client);
    }
    return clients;
  }

  TcpStoreBudget budget_{kMax};
};

TEST_F(TcpStoreBudgetTest, LessThanHalf_StopsNobody) {
  for (uint64_t client = 1; client <= 49; ++client) Hold(client, kMib);
  EXPECT_EQ(budget_.held_bytes(), 49 * kMib);
  for (uint64_t client = 1; client <= 49; ++client) EXPECT_TRUE(MayReceive(client));
  EXPECT_THAT(ClosedInPeriod(), IsEmpty());
  EXPECT_THAT(ClosedInPeriod(), IsEmpty());
}

TEST_F(TcpStoreBudgetTest, SmallClients_AreNeitherCountedNorStopped) {
  Hold(1, kMax);
  Hold(2, TcpStoreBudget::kUncountedBytes);
  EXPECT_EQ(budget_.client_count(), 1u);
  EXPECT_TRUE(MayReceive(2));
  EXPECT_TRUE(MayReceive(3)) << "not known";
  ClosedInPeriod();
  EXPECT_THAT(ClosedInPeriod(), ElementsAre(1));
}

TEST_F(TcpStoreBudgetTest, MemoryIsScarce_OneAtATimeReceivesInOrder) {
  for (uint64_t client = 1; client <= 3; ++client) Hold(client, 20 * kMib);
  EXPECT_TRUE(MayReceive(1));
  EXPECT_FALSE(MayReceive(2));
  EXPECT_FALSE(MayReceive(3));
  EXPECT_FALSE(MayReceive(2));
  EXPECT_TRUE(MayReceive(1));
  EXPECT_EQ(budget_.paused_count(), 2u);
  EXPECT_THAT(Resumed(), IsEmpty());
  // Its request ends, and it begins another one at once, which is as large.
  Hold(1, 20 * kMib, /*requests=*/1);
  EXPECT_THAT(Resumed(), ElementsAre(2));
  EXPECT_FALSE(MayReceive(1)) << "it is the others' turn";
  EXPECT_TRUE(MayReceive(2));
  // Memory is no longer scarce.
  Hold(2, 0, /*requests=*/1);
  EXPECT_THAT(Resumed(), ElementsAre(3, 1));
  EXPECT_TRUE(MayReceive(1));
  EXPECT_TRUE(MayReceive(3));
}

// Requests that end and leave replies must not let in one request after another.
TEST_F(TcpStoreBudgetTest, LargestRequestWouldNotFit_NobodyReceives) {
  Hold(1, 75 * kMib, 1, 0, Phase::kReading);
  Hold(2, kMib);
  EXPECT_FALSE(MayReceive(2));
  Hold(1, 74 * kMib - 1, 1, 0, Phase::kReading);
  EXPECT_THAT(Resumed(), ElementsAre(2));
  EXPECT_TRUE(MayReceive(2));
}

TEST_F(TcpStoreBudgetTest, ReceiverDisconnects_TheNextOneReceives) {
  for (uint64_t client = 1; client <= 4; ++client) Hold(client, 15 * kMib);
  EXPECT_TRUE(MayReceive(1));
  EXPECT_FALSE(MayReceive(2));
  EXPECT_FALSE(MayReceive(3));
  budget_.Remove(TcpStoreClient(2));
  budget_.Remove(TcpStoreClient(1));
  Hold(5, 20 * kMib);
  EXPECT_THAT(Resumed(), ElementsAre(3));
}

// Requests half sent, or replies that were not read, by clients that do nothing more.
TEST_F(TcpStoreBudgetTest, StalledClientsInTheWay_AreClosedLargestFirst) {
  Hold(1, 10 * kMib);
  Hold(2, 40 * kMib);
  Hold(3, kMib);
  EXPECT_TRUE(MayReceive(3));
  Hold(4, kMib);
  EXPECT_FALSE(MayReceive(4));
  // They may have come a moment ago.
  EXPECT_THAT(ClosedInPeriod(), IsEmpty());
  EXPECT_THAT(ClosedInPeriod(), ElementsAre(2));
  EXPECT_THAT(Resumed(), ElementsAre(4));
  EXPECT_THAT(ClosedInPeriod(), IsEmpty());
}

TEST_F(TcpStoreBudgetTest, StalledClientsInNobodysWay_StayOpen) {
  Hold(1, 60 * kMib);
  for (int i = 0; i < 5; ++i) EXPECT_THAT(ClosedInPeriod(), IsEmpty());
}

TEST_F(TcpStoreBudgetTest, ClientsThatGoOn_StayOpen) {
  uint64_t moved = 0;
  for (int i = 0; i < 5; ++i) {
    moved += TcpStoreBudget::kMinBytesPerPeriod;
    Hold(1, 60 * kMib, 0, moved);
    EXPECT_TRUE(MayReceive(1));
    Hold(2, kMib);
    EXPECT_FALSE(MayReceive(2));
    EXPECT_THAT(ClosedInPeriod(), IsEmpty());
  }
  moved += TcpStoreBudget::kMinBytesPerPeriod - 1;
  Hold(1, 60 * kMib, 0, moved);
  EXPECT_THAT(ClosedInPeriod(), ElementsAre(1));
}

// Otherwise many large requests that all go well would be closed.
TEST_F(TcpStoreBudgetTest, QueueThatAdvances_ClosesNobody) {
  Hold(9, 50 * kMib);
  for (uint64_t client = 1; client <= 4; ++client) Hold(client, kMib);
  for (uint64_t client = 1; client <= 4; ++client) EXPECT_EQ(MayReceive(client), client == 1);
  for (uint64_t client = 1; client <= 3; ++client) {
    EXPECT_THAT(ClosedInPeriod(), IsEmpty());
    Hold(client, 0, /*requests=*/1);
    EXPECT_THAT(Resumed(), ElementsAre(client + 1));
  }
}

TEST_F(TcpStoreBudgetTest, WaitsForKeys_AreClosedLastAndOnlyWhenAllIsHeld) {
  HoldWait(1, 45 * kMib);
  Hold(2, 10 * kMib);
  EXPECT_TRUE(MayReceive(2));
  Hold(3, kMib);
  EXPECT_FALSE(MayReceive(3));
  ClosedInPeriod();
  EXPECT_THAT(ClosedInPeriod(), ElementsAre(2));
  Hold(4, 55 * kMib);
  ClosedInPeriod();
  EXPECT_THAT(ClosedInPeriod(), ElementsAre(4));
  HoldWait(5, 60 * kMib);
  EXPECT_THAT(ClosedInPeriod(), IsEmpty());
  EXPECT_THAT(ClosedInPeriod(), ElementsAre(5)) << "the largest, until enough is free";
}

TEST_F(TcpStoreBudgetTest, StoppedClients_AreNotToBlame) {
  Hold(1, 40 * kMib);
  Hold(2, 20 * kMib);
  EXPECT_TRUE(MayReceive(1));
  EXPECT_FALSE(MayReceive(2));
  ClosedInPeriod();
  EXPECT_THAT(ClosedInPeriod(), ElementsAre(1));
  EXPECT_THAT(Resumed(), ElementsAre(2));
}

// A client could send more requests in order to be stopped.
TEST_F(TcpStoreBudgetTest, StoppedClientThatDoesNotRead_IsToBlame) {
  Hold(1, 20 * kMib);
  EXPECT_TRUE(MayReceive(1));
  Hold(2, 40 * kMib, 0, 0, Phase::kReading);
  EXPECT_TRUE(MayReceive(1));
  EXPECT_FALSE(MayReceive(2));
  Hold(1, 20 * kMib, 0, TcpStoreBudget::kMinBytesPerPeriod);
  ClosedInPeriod();
  Hold(1, 20 * kMib, 0, 2 * TcpStoreBudget::kMinBytesPerPeriod);
  EXPECT_THAT(ClosedInPeriod(), ElementsAre(2));
}

}  // namespace
}  // namespace ferry::coord
