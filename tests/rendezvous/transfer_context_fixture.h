// SPDX-License-Identifier: Apache-2.0
// TransferContextTest: the objects that both ends of a control channel in one process share.
#ifndef FERRY_TESTS_RENDEZVOUS_TRANSFER_CONTEXT_FIXTURE_H_
#define FERRY_TESTS_RENDEZVOUS_TRANSFER_CONTEXT_FIXTURE_H_

#include <memory>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "rendezvous/rendezvous_manager.h"
#include "tests/rendezvous/peer_world.h"

namespace ferry {

class TransferContextTest : public ::testing::Test {
 protected:
  FakeClock clock_;
  NoFetcher fetcher_;
  RendezvousManager manager_{clock_, fetcher_};
  std::shared_ptr<FaultyTransportState> state_ =
      std::make_shared<FaultyTransportState>(1, TransportFaults{});
  TransportList transports_;
};

}  // namespace ferry

#endif  // FERRY_TESTS_RENDEZVOUS_TRANSFER_CONTEXT_FIXTURE_H_
