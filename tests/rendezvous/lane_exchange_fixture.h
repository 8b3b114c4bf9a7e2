// SPDX-License-Identifier: Apache-2.0
// LaneExchangeTest: the objects that both ends of a lane in one process share.
#ifndef FERRY_TESTS_RENDEZVOUS_LANE_EXCHANGE_FIXTURE_H_
#define FERRY_TESTS_RENDEZVOUS_LANE_EXCHANGE_FIXTURE_H_

#include <memory>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "rendezvous/rendezvous_manager.h"
#include "tests/rendezvous/lane_world.h"

namespace ferry {

class LaneExchangeTest : public ::testing::Test {
 protected:
  FakeClock clock_;
  NoFetcher fetcher_;
  RendezvousManager manager_{clock_, fetcher_};
  std::shared_ptr<FaultyTransportState> state_ =
      std::make_shared<FaultyTransportState>(1, TransportFaults{});
  TransportList transports_;
};

}  // namespace ferry

#endif  // FERRY_TESTS_RENDEZVOUS_LANE_EXCHANGE_FIXTURE_H_
