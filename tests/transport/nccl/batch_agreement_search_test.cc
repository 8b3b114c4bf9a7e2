// SPDX-License-Identifier: Apache-2.0
// Every small world ends well, for any order of messages and completions, and any failure.
#include <gmock/gmock.h>

#include "tests/transport/nccl/grant_choices.h"

namespace ferry::grant_test {
namespace {

TEST(GrantSearch, ThreeTransfersInAnyDirections) {
  ExpectEveryScheduleEndsWell(EveryChoice(3), {});
}

TEST(GrantSearch, ThreeTransfersWhereEachDeviceAgreesOnOneBatchAtATime) {
  WorldOptions options;
  options.endpoint.max_batches = 1;
  options.endpoint.max_launched = 1;
  options.endpoint.max_batch_operations = 1;
  ExpectEveryScheduleEndsWell(EveryChoice(3), options);
}

TEST(GrantSearch, ThreeTransfersOverCommunicatorsOfTwo) {
  WorldOptions options;
  options.has_pair_communicators = true;
  options.endpoint.max_batch_bytes = 150;
  ExpectEveryScheduleEndsWell(EveryChoice(3), options);
}

TEST(GrantSearch, TwoTransfersOneCancelledAtAnyMoment) {
  WorldOptions options;
  options.cancels = 1;
  ExpectEveryScheduleEndsWell(EveryChoice(2), options);
}

TEST(GrantSearch, TwoTransfersOneDeviceDiesAtAnyMoment) {
  WorldOptions options;
  options.deaths = 1;
  ExpectEveryScheduleEndsWell(EveryChoice(2), options);
}

TEST(GrantSearch, ThreeTransfersWhileADeviceBecomesQuiet) {
  WorldOptions options;
  options.pauses = 1;
  ExpectEveryScheduleEndsWell(EveryChoice(3), options);
}

TEST(GrantSearch, TwoTransfersWhileADeviceBecomesQuietAndNcclFails) {
  WorldOptions options;
  options.pauses = 1;
  options.errors = 1;
  options.has_pair_communicators = true;
  ExpectEveryScheduleEndsWell(EveryChoice(2), options);
}

// Each has to be quiet before it takes part, and agrees on nothing until all have.
TEST(GrantSearch, TwoTransfersWhileAllDevicesTakePartInACollective) {
  WorldOptions options;
  options.collective = 0b111;
  ExpectEveryScheduleEndsWell(EveryChoice(2), options);
}

TEST(GrantSearch, TwoTransfersWhileTwoDevicesTakePartInACollective) {
  for (const uint32_t collective : {0b011u, 0b101u, 0b110u}) {
    WorldOptions options;
    options.collective = collective;
    options.has_pair_communicators = true;
    options.endpoint.max_batch_operations = 1;
    ExpectEveryScheduleEndsWell(EveryChoice(2), options);
  }
}

TEST(GrantSearch, ATransferAndACollectiveOneDeviceDiesAtAnyMoment) {
  WorldOptions options;
  options.collective = 0b111;
  options.deaths = 1;
  ExpectEveryScheduleEndsWell(EveryChoice(1), options);
}

TEST(GrantSearch, TwoTransfersAndACollectiveOneCancelledAtAnyMoment) {
  WorldOptions options;
  options.collective = 0b111;
  options.cancels = 1;
  ExpectEveryScheduleEndsWell(EveryChoice(2), options);
}

TEST(GrantSearch, ATransferAndACollectiveNcclFailsAndItRunsAgain) {
  WorldOptions options;
  options.collective = 0b111;
  options.errors = 1;
  options.has_pair_communicators = true;
  options.runs_again = true;
  ExpectEveryScheduleEndsWell(EveryChoice(1), options);
}

TEST(GrantSearch, TwoTransfersNcclFailsAtAnyMoment) {
  WorldOptions options;
  options.errors = 1;
  ExpectEveryScheduleEndsWell(EveryChoice(2), options);
}

// One side has its communicator already, or joins later, or has a batch agreed on it.
TEST(GrantSearch, ATransferADeviceCannotOpenACommunicator) {
  WorldOptions options;
  options.failed_opens = 1;
  options.has_pair_communicators = true;
  options.runs_again = true;
  ExpectEveryScheduleEndsWell(EveryChoice(1), options);
}

TEST(GrantSearch, TwoTransfersOfTwoDevicesOneCannotOpenTheCommunicator) {
  WorldOptions options;
  options.device_count = 2;
  options.failed_opens = 1;
  options.has_pair_communicators = true;
  options.runs_again = true;
  const auto between = [](int source, int destination, uint64_t id) {
    return BatchAgreementTransfer{{DeviceId(source), DeviceId(destination), id}, 100 + id};
  };
  ExpectEveryScheduleEndsWell({{between(0, 1, 1), between(0, 1, 2)},
                               {between(0, 1, 1), between(1, 0, 2)},
                               {between(1, 0, 1), between(1, 0, 2)}},
                              options);
}

TEST(GrantSearch, TwoTransfersNcclFailsOnCommunicatorsOfTwoAndTheyRunAgain) {
  WorldOptions options;
  options.errors = 1;
  options.has_pair_communicators = true;
  options.runs_again = true;
  ExpectEveryScheduleEndsWell(EveryChoice(2), options);
}

TEST(GrantSearch, FourTransfersInAnyDirections) {
  ExpectEveryScheduleEndsWell(WhereItIsQuick(EveryChoice(4)), {});
}

TEST(GrantSearch, ThreeTransfersWhileAllDevicesTakePartInACollective) {
  WorldOptions options;
  options.collective = 0b111;
  ExpectEveryScheduleEndsWell(WhereItIsQuick(EveryChoice(3)), options);
}

TEST(GrantSearch, TwoTransfersAndACollectiveOneDeviceDiesAtAnyMoment) {
  WorldOptions options;
  options.collective = 0b111;
  options.deaths = 1;
  ExpectEveryScheduleEndsWell(WhereItIsQuick(EveryChoice(2)), options);
}

TEST(GrantSearch, TwoTransfersAndACollectiveNcclFailsAndTheyRunAgain) {
  WorldOptions options;
  options.collective = 0b111;
  options.errors = 1;
  options.has_pair_communicators = true;
  options.runs_again = true;
  ExpectEveryScheduleEndsWell(WhereItIsQuick(EveryChoice(2)), options);
}

TEST(GrantSearch, TwoTransfersADeviceCannotOpenACommunicator) {
  WorldOptions options;
  options.failed_opens = 1;
  options.has_pair_communicators = true;
  options.runs_again = true;
  ExpectEveryScheduleEndsWell(WhereItIsQuick(EveryChoice(2)), options);
}

TEST(GrantSearch, ThreeTransfersOneCancelledAtAnyMoment) {
  WorldOptions options;
  options.cancels = 1;
  ExpectEveryScheduleEndsWell(WhereItIsQuick(EveryChoice(3)), options);
}

TEST(GrantSearch, ThreeTransfersOneDeviceDiesAtAnyMoment) {
  WorldOptions options;
  options.deaths = 1;
  ExpectEveryScheduleEndsWell(WhereItIsQuick(EveryChoice(3)), options);
}

TEST(GrantSearch, ThreeTransfersNcclFailsOnCommunicatorsOfTwo) {
  WorldOptions options;
  options.errors = 1;
  options.has_pair_communicators = true;
  options.runs_again = true;
  ExpectEveryScheduleEndsWell(WhereItIsQuick(EveryChoice(3)), options);
}

}  // namespace
}  // namespace ferry::grant_test
