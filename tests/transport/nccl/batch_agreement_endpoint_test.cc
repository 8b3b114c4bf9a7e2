// SPDX-License-Identifier: Apache-2.0
// How grant endpoints agree when nothing fails: each rule by itself.
#include "transport/nccl/batch_agreement_endpoint.h"

#include "tests/transport/nccl/grant_pair.h"

namespace ferry::grant_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// An idle pair: the transfer descriptor carries the grant, the destination launches when it
// arrives.
TEST_F(GrantTest, DestinationLaunchesAfterOneMessageTheSourceAfterTwo) {
  for (const auto& [source, destination] : {std::pair(0, 1), std::pair(1, 0)}) {
    MakeDevices();
    TestDevice& from = devices_[source];
    TestDevice& to = devices_[destination];
    const BatchAgreementTransfer transfer = Transfer(source, destination, 5);
    from.Add(transfer);
    EXPECT_THAT(from.launched, IsEmpty());
    to.AddWithGrant(transfer, from.Take());
    EXPECT_THAT(to.log, ElementsAre("ACKNOWLEDGE", "launch"));
    from.Hear(to.Take());
    ASSERT_THAT(from.launched, SizeIs(1));
    EXPECT_EQ(from.launched[0].operations, to.launched[0].operations);
    EXPECT_TRUE(from.launched[0].is_first);
    from.Complete();
    EXPECT_THAT(from.finished[5], IsEmpty()) << "before the destination has it";
    to.Complete();
    EXPECT_THAT(to.finished[5], ElementsAre(absl::OkStatus()));
    from.Hear(to.Take());
    EXPECT_THAT(from.finished[5], ElementsAre(absl::OkStatus()));
    EXPECT_TRUE(from.endpoint.is_idle());
    EXPECT_TRUE(to.endpoint.is_idle());
  }
}

// Requests that arrive while a grant is pending go with the next one, in their order of arrival.
TEST_F(GrantTest, PendingTransfersGoTogether) {
  BatchAgreementOptions options;
  options.max_batch_operations = 3;
  MakeDevices(options);
  for (uint64_t id = 1; id <= 6; ++id) {
    devices_[0].Add(Transfer(0, 1, id));
    devices_[1].Add(Transfer(0, 1, id));
  }
  Settle();
  ASSERT_THAT(devices_[0].launched, SizeIs(2));
  EXPECT_EQ(devices_[0].endpoint.batch_count(), 3);
  EXPECT_THAT(devices_[0].launched[0].operations, SizeIs(1));
  EXPECT_THAT(devices_[0].launched[1].operations, SizeIs(3));
  EXPECT_EQ(devices_[0].launched[1].operations[0].key.id, 2);
  EXPECT_EQ(devices_[0].launched[1].operations[2].key.id, 4);
  EXPECT_FALSE(devices_[0].launched[1].is_first);
}

TEST_F(GrantTest, BatchBytesAreLimitedButOneTransferAlwaysFits) {
  BatchAgreementOptions options;
  options.max_batch_bytes = 1000;
  MakeDevices(options);
  const uint64_t sizes[] = {1, 600, 400, 1, UINT64_MAX, 7};
  for (uint64_t id = 1; id <= 6; ++id) {
    devices_[0].Add(Transfer(0, 1, id, sizes[id - 1]));
    devices_[1].Add(Transfer(0, 1, id, sizes[id - 1]));
  }
  std::vector<size_t> counts;
  while (!devices_[0].endpoint.is_idle()) {
    Settle();
    ASSERT_FALSE(devices_[0].launched.empty());
    counts.push_back(devices_[0].launched[0].operations.size());
    devices_[0].Complete();
    devices_[1].Complete();
    Settle();
  }
  EXPECT_THAT(counts, ElementsAre(1, 2, 1, 1, 1));
}

// Both propose at once: the larger id is rejected at once, and its transfer is granted by the
// other.
TEST_F(GrantTest, BothPropose_TheSmallerIdGrants) {
  devices_[0].Add(Transfer(0, 1, 1));
  devices_[1].Add(Transfer(1, 0, 2));
  const BatchAgreementMessage from_0 = devices_[0].Take();
  const BatchAgreementMessage from_1 = devices_[1].Take();
  devices_[1].AddWithGrant(Transfer(0, 1, 1), from_0);
  EXPECT_THAT(devices_[1].log, ElementsAre("GRANT")) << "its lock is held";
  devices_[0].AddWithGrant(Transfer(1, 0, 2), from_1);
  EXPECT_THAT(devices_[0].log, ElementsAre("GRANT", "DECLINE"));
  Settle();
  ASSERT_THAT(devices_[0].launched, SizeIs(2));
  ASSERT_THAT(devices_[1].launched, SizeIs(2));
  EXPECT_EQ(devices_[0].launched[0].operations, devices_[1].launched[0].operations);
  EXPECT_EQ(devices_[0].launched[1].operations, devices_[1].launched[1].operations);
}

// A pair with much to do does not keep another one waiting.
TEST_F(GrantTest, PairsAlternate) {
  BatchAgreementOptions options;
  options.max_batch_operations = 1;
  options.max_batches = 1;
  MakeDevices(options);
  for (uint64_t id = 1; id <= 4; ++id) {
    devices_[0].Add(Transfer(0, 1, id));
    devices_[1].Add(Transfer(0, 1, id));
  }
  for (uint64_t id = 11; id <= 14; ++id) {
    devices_[0].Add(Transfer(0, 2, id));
    devices_[2].Add(Transfer(0, 2, id));
  }
  std::vector<uint64_t> order;
  while (!devices_[0].endpoint.is_idle()) {
    Settle();
    ASSERT_FALSE(devices_[0].launched.empty());
    order.push_back(devices_[0].launched[0].operations[0].key.id);
    const int peer = devices_[0].launched[0].peer.value();
    devices_[0].Complete();
    devices_[peer].Complete();
    Settle();
  }
  EXPECT_THAT(order, ElementsAre(1, 2, 11, 3, 12, 4, 13, 14));
}

TEST_F(GrantTest, DifferentSizes_EndBothSidesAndNothingIsLaunched) {
  devices_[1].Add(Transfer(0, 1, 5, 96));
  devices_[0].Add(Transfer(0, 1, 5, 100));
  Settle();
  for (const int side : {0, 1}) {
    ASSERT_THAT(devices_[side].finished[5], SizeIs(1));
    EXPECT_EQ(devices_[side].finished[5][0].code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(devices_[side].finished[5][0].message()), HasSubstr("96"));
    EXPECT_THAT(std::string(devices_[side].finished[5][0].message()), HasSubstr("100"));
    EXPECT_THAT(devices_[side].launched, IsEmpty());
    EXPECT_TRUE(devices_[side].endpoint.is_idle());
  }
}

// One of a batch is not wanted any more: the others run, on both sides the same.
TEST_F(GrantTest, TransferThatThePeerRefuses_IsOmittedOnBothSides) {
  for (uint64_t id = 1; id <= 4; ++id) devices_[1].Add(Transfer(0, 1, id));
  for (uint64_t id = 1; id <= 4; ++id) devices_[0].Add(Transfer(0, 1, id));
  devices_[1].Hear(devices_[0].Take());
  devices_[0].Hear(devices_[1].Take());
  const BatchAgreementMessage grant = devices_[0].Take();
  ASSERT_THAT(grant.operations, SizeIs(3));
  devices_[1].Do([&](BatchAgreementEndpoint& e, BatchAgreementActions& actions) {
    e.Cancel(Transfer(0, 1, 3).key, absl::CancelledError("step 4 was closed"), actions);
  });
  EXPECT_THAT(devices_[1].finished[3], SizeIs(1)) << "cheap: it is in no batch";
  devices_[1].Hear(grant);
  Settle();
  EXPECT_THAT(devices_[0].finished[3],
              ElementsAre(absl::CancelledError("device 1 says: step 4 was closed")));
  for (const int side : {0, 1}) {
    ASSERT_THAT(devices_[side].launched, SizeIs(2));
    ASSERT_THAT(devices_[side].launched[1].operations, SizeIs(2));
    EXPECT_EQ(devices_[side].launched[1].operations[0].key.id, 2);
    EXPECT_EQ(devices_[side].launched[1].operations[1].key.id, 4);
  }
}

TEST_F(GrantTest, UnknownTransfers_AreRefused) {
  devices_[0].Add(Transfer(0, 1, 5));
  Settle();
  ASSERT_THAT(devices_[0].finished[5], SizeIs(1));
  EXPECT_EQ(devices_[0].finished[5][0].code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(devices_[0].launched, IsEmpty());
}

// After the answer it is too late: the memory is NCCL's until the batch is over.
TEST_F(GrantTest, AgreedTransfers_AreNotCancelled) {
  devices_[1].Add(Transfer(0, 1, 5));
  devices_[0].Add(Transfer(0, 1, 5));
  devices_[1].Hear(devices_[0].Take());
  for (const int side : {1, 0}) {
    devices_[side].Do([&](BatchAgreementEndpoint& e, BatchAgreementActions& actions) {
      e.Cancel(Transfer(0, 1, 5).key, absl::CancelledError("late"), actions);
    });
    EXPECT_THAT(devices_[side].finished[5], IsEmpty());
  }
  Settle();
  devices_[0].Complete();
  devices_[1].Complete();
  Settle();
  EXPECT_THAT(devices_[0].finished[5], ElementsAre(absl::OkStatus()));
  EXPECT_THAT(devices_[1].finished[5], ElementsAre(absl::OkStatus()));
}

// The next batch is agreed while this one runs, and not more than the device may hold.
TEST_F(GrantTest, AgreesAheadWithinItsBounds) {
  BatchAgreementOptions options;
  options.max_batch_operations = 1;
  options.max_batches = 3;
  options.max_launched = 2;
  MakeDevices(options);
  for (uint64_t id = 1; id <= 9; ++id) devices_[1].Add(Transfer(0, 1, id));
  for (uint64_t id = 1; id <= 9; ++id) devices_[0].Add(Transfer(0, 1, id));
  Settle();
  EXPECT_EQ(devices_[0].endpoint.batch_count(), 3);
  EXPECT_THAT(devices_[0].launched, SizeIs(2));
  EXPECT_EQ(devices_[1].endpoint.batch_count(), 3);
  EXPECT_THAT(devices_[1].launched, SizeIs(2));
}

TEST_F(GrantTest, TransfersOfOtherDevicesAndRepeatedOnes_AreRefused) {
  BatchAgreementActions actions;
  BatchAgreementEndpoint& endpoint = devices_[0].endpoint;
  EXPECT_FALSE(endpoint.Add(Transfer(1, 2, 1), actions).ok());
  EXPECT_FALSE(endpoint.Add(Transfer(0, 0, 1), actions).ok());
  EXPECT_TRUE(endpoint.Add(Transfer(0, 1, 1), actions).ok());
  EXPECT_FALSE(endpoint.Add(Transfer(0, 1, 1), actions).ok());
  BatchAgreementMessage stray;
  stray.from = DeviceId(1);
  stray.to = DeviceId(2);
  EXPECT_FALSE(endpoint.OnMessage(stray, actions).ok());
  stray.to = DeviceId(0);
  stray.operations = {{Transfer(1, 2, 3).key, 100}};
  EXPECT_FALSE(endpoint.OnMessage(stray, actions).ok());
}

TEST_F(GrantTest, DeadlineBeforeTheGrant_EndsOnlyThatTransfer) {
  devices_[1].Add(Transfer(1, 0, 5));
  devices_[1].Take();
  devices_[1].Add(Transfer(1, 2, 6));
  devices_[1].Add(Transfer(1, 0, 7));
  clock_.Advance(absl::Seconds(31));
  EXPECT_LE(devices_[1].endpoint.NextDeadline(), clock_.Now());
  devices_[1].Do(
      [](BatchAgreementEndpoint& e, BatchAgreementActions& actions) { e.Expire(actions); });
  ASSERT_THAT(devices_[1].finished[7], SizeIs(1));
  EXPECT_EQ(devices_[1].finished[7][0],
            absl::DeadlineExceededError("transfer 7 from device 1 to device 0 (100 bytes): waited "
                                        "31s for device 0 to grant it"));
  EXPECT_THAT(std::string(devices_[1].finished[6][0].message()),
              HasSubstr("its turn on device 1, which waits for device 0 to answer a grant"));
  EXPECT_THAT(devices_[1].finished[5], IsEmpty()) << "its grant may have been acknowledged";
  EXPECT_THAT(devices_[1].log, testing::Not(testing::Contains("flag 7")));
  // The answer shows the outcome.
  BatchAgreementMessage decline;
  decline.kind = BatchAgreementMessageKind::kDecline;
  decline.from = DeviceId(0);
  decline.to = DeviceId(1);
  decline.communicator = kAll;
  decline.serial = 1;
  devices_[1].Hear(decline);
  ASSERT_THAT(devices_[1].finished[5], SizeIs(1));
  EXPECT_EQ(devices_[1].finished[5][0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(devices_[1].endpoint.NextDeadline(), absl::InfiniteFuture());
}

TEST_F(GrantTest, TransfersWaitForACommunicator) {
  TestDevice early(3, {}, clock_);
  TestDevice late(4, {}, clock_);
  early.Add(Transfer(3, 4, 5));
  late.Add(Transfer(3, 4, 5));
  EXPECT_THAT(early.endpoint.Pending(),
              ElementsAre("transfer 5 from device 3 to device 4: 0us, a communicator with device "
                          "4; none is open on device 3"));
  // Ready on one side first: its grant waits on the other.
  early.Open({9, 4}, {DeviceId(3), DeviceId(4)});
  late.Hear(early.Take());
  EXPECT_THAT(late.log, IsEmpty());
  late.Open({9, 4}, {DeviceId(3), DeviceId(4)});
  EXPECT_THAT(late.log, ElementsAre("ACKNOWLEDGE", "launch"));
}

}  // namespace
}  // namespace ferry::grant_test
