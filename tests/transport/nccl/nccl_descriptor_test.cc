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
