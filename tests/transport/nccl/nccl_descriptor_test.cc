// SPDX-License-Identifier: Apache-2.0
// Transfer descriptors survive encoding, and nothing else is accepted as one.
#include "transport/nccl/nccl_descriptor.h"

#include <string>

#include <gtest/gtest.h>

namespace ferry {
namespace {

constexpr size_t kKeyBytes = 16;

TransferKey SomeKey() { return {DeviceId(2), DeviceId(70000), 0x1122334455667788}; }

BatchAgreementMessage SomeGrant() {
  BatchAgreementMessage grant;
  grant.kind = BatchAgreementMessageKind::kGrant;
  grant.from = SomeKey().source;
  grant.to = SomeKey().destination;
  grant.communicator = {0xfedcba9876543210, 3};
  grant.serial = 9;
  grant.operations = {{SomeKey(), 1ull << 33}};
  return grant;
}

void ExpectRefused(const std::string& body) {
  EXPECT_EQ(DecodeNcclDescriptor(body).status().code(), absl::StatusCode::kInvalidArgument)
      << body.size() << " bytes";
}

TEST(NcclDescriptorTest, RoundTrips) {
  const auto alone = DecodeNcclDescriptor(EncodeNcclDescriptor({SomeKey(), std::nullopt}));
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(alone->key, SomeKey());
  EXPECT_FALSE(alone->grant.has_value());
  const auto granted = DecodeNcclDescriptor(EncodeNcclDescriptor({SomeKey(), SomeGrant()}));
  ASSERT_TRUE(granted.ok()) << granted.status();
  EXPECT_EQ(granted->key, SomeKey());
  ASSERT_TRUE(granted->grant.has_value());
  EXPECT_TRUE(*granted->grant == SomeGrant());
}

TEST(NcclDescriptorTest, OfferRoundTrips) {
  const CommunicatorName name = {0xfedcba9876543210, 3};
  const std::string body = EncodeNcclDescriptor({SomeKey(), std::nullopt, name});
  const auto offered = DecodeNcclDescriptor(body);
  ASSERT_TRUE(offered.ok()) << offered.status();
  EXPECT_EQ(offered->key, SomeKey());
  EXPECT_EQ(offered->offer, name);
  EXPECT_FALSE(offered->grant.has_value());
  for (size_t bytes = kKeyBytes + 1; bytes < body.size(); ++bytes) {
    ExpectRefused(body.substr(0, bytes));
  }
  ExpectRefused(body + '\0');
}

// It would be taken for the set-up of a window.
TEST(NcclDescriptorTest, IdOfAWindow_IsRefused) {
  TransferKey key = SomeKey();
  key.id |= kWindowTransferBit;
  ExpectRefused(EncodeNcclDescriptor({key, std::nullopt}));
}

TEST(NcclPeerDescriptor, RoundTripsWithAndWithoutAPool) {
  for (const uint64_t put_bytes : {uint64_t{0}, uint64_t{1} << 33}) {
    const std::string bytes = EncodeNcclPeer({.version = 23007, .put_bytes = put_bytes});
    // Without a pool the bytes are those of earlier versions.
    EXPECT_EQ(bytes.size(), put_bytes == 0 ? 4u : 12u);
    const auto peer = DecodeNcclPeer(bytes + "later");
    ASSERT_TRUE(peer.ok()) << peer.status();
    EXPECT_EQ(peer->version, 23007);
    EXPECT_EQ(peer->put_bytes, put_bytes);
  }
}

// Missing numbers would read as zeros, which are devices too.
TEST(NcclDescriptorTest, PartOfOne_IsRefused) {
  const std::string body = EncodeNcclDescriptor({SomeKey(), SomeGrant()});
  for (size_t bytes = 0; bytes < body.size(); ++bytes) {
    if (bytes != kKeyBytes) ExpectRefused(body.substr(0, bytes));
  }
  ExpectRefused(body + '\0');
}

TEST(NcclDescriptorTest, MessageThatIsNotItsGrant_IsRefused) {
  BatchAgreementMessage other_kind = SomeGrant();
  other_kind.kind = BatchAgreementMessageKind::kDecline;
  other_kind.operations.clear();
  ASSERT_TRUE(DecodeGrantMessage(EncodeGrantMessage(other_kind)).ok());
  ExpectRefused(EncodeNcclDescriptor({SomeKey(), other_kind}));
  TransferKey key = SomeKey();
  key.source = DeviceId(3);
  ExpectRefused(EncodeNcclDescriptor({key, SomeGrant()}));
  key = SomeKey();
  key.destination = DeviceId(3);
  ExpectRefused(EncodeNcclDescriptor({key, SomeGrant()}));
}

}  // namespace
}  // namespace ferry
