// SPDX-License-Identifier: Apache-2.0
// Numbers of two lists that differ.
#include "rendezvous/peer/transport_numbers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/faulty_transport.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

TransportList ListOf(const std::vector<absl::string_view>& names) {
  const auto state = std::make_shared<FaultyTransportState>(1, TransportFaults{});
  TransportList list;
  for (const absl::string_view name : names) {
    list.push_back(MakeFaultyTransport(state, name, true));
  }
  return list;
}

TEST(TransportNumbers, ListsInAnotherOrder_AreTranslatedByName) {
  const TransportList own = ListOf({"shm", "tcp", "toy"});
  const TransportNumbers numbers(own, {{"toy", ""}, {"other", ""}, {"shm", ""}});
  EXPECT_EQ(*numbers.IndexOf(1), 2u);
  EXPECT_EQ(*numbers.IndexOf(3), 0u);
  EXPECT_TRUE(numbers.common().Has(0));
  EXPECT_FALSE(numbers.common().Has(1));
  EXPECT_TRUE(numbers.common().Has(2));
  EXPECT_FALSE(numbers.common().Has(3));
}

TEST(TransportNumbers, UnknownNumber_IsNamed) {
  const TransportList own = ListOf({"shm", "tcp"});
  const TransportNumbers numbers(own, {{"shm", ""}, {"other", ""}});
  for (const uint8_t number : {0, 3, 255}) {
    const absl::Status status = numbers.IndexOf(number).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("transport ", number, " of its sender")));
    EXPECT_THAT(std::string(status.message()), HasSubstr("announced 2"));
  }
  const absl::Status lacking = numbers.IndexOf(2).status();
  EXPECT_EQ(lacking.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(lacking.message()),
              HasSubstr("transport 2 of its sender, which is other"));
}

TEST(TransportNumbers, PeerWithoutTransports_HasNoneInCommon) {
  const TransportList own = ListOf({"shm"});
  const TransportNumbers numbers(own, {});
  EXPECT_FALSE(numbers.common().Has(0));
  EXPECT_FALSE(numbers.IndexOf(1).ok());
}

}  // namespace
}  // namespace ferry
