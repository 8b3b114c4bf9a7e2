// SPDX-License-Identifier: Apache-2.0
// Messages between devices survive encoding, and garbage is not accepted as one.
#include "transport/nccl/batch_agreement_message.h"

#include <random>

#include <gmock/gmock.h>

namespace ferry {
namespace {

std::vector<BatchAgreementMessage> OneOfEach() {
  BatchAgreementMessage message;
  message.from = DeviceId(2);
  message.to = DeviceId(70000);
  message.communicator = {0xfedcba9876543210, 3};
  std::vector<BatchAgreementMessage> messages;
  for (int kind = 1; kind <= 8; ++kind) {
    BatchAgreementMessage one = message;
    one.kind = static_cast<BatchAgreementMessageKind>(kind);
    switch (one.kind) {
      case BatchAgreementMessageKind::kGrant:
        one.serial = 9;
        for (uint64_t id = 1; id <= kMaxBatchOperations; ++id) {
          const bool is_send = id % 3 != 0;
          one.operations.push_back(
              {{is_send ? one.from : one.to, is_send ? one.to : one.from, id}, id << 33});
        }
        break;
      case BatchAgreementMessageKind::kAcknowledge:
        one.serial = 9;
        one.accepted = 0x80000001;
        one.digest = 0x1122334455667788;
        one.refusals = {{absl::StatusCode::kNotFound, 0}, {absl::StatusCode::kInvalidArgument, 77}};
        break;
      case BatchAgreementMessageKind::kDecline:
        one.serial = 9;
        break;
      case BatchAgreementMessageKind::kDone:
        one.serial = 9;
        one.granter = one.to;
        break;
      case BatchAgreementMessageKind::kCancel:
        one.communicator = {};
        one.operations = {{{one.to, one.from, 5}, 0}};
        one.why = absl::CancelledError("not wanted");
        break;
      case BatchAgreementMessageKind::kBreak:
        one.died = DeviceId(5);
        one.why = absl::UnavailableError("device 5 has failed");
        break;
      case BatchAgreementMessageKind::kSettled:
        break;
      case BatchAgreementMessageKind::kResumed:
        one.communicator = {};
        break;
    }
    messages.push_back(one);
  }
  return messages;
}

TEST(BatchAgreementMessage, RoundTrips) {
  for (const BatchAgreementMessage& message : OneOfEach()) {
    const absl::StatusOr<BatchAgreementMessage> again =
        DecodeGrantMessage(EncodeGrantMessage(message));
    ASSERT_TRUE(again.ok()) << again.status() << Describe(message);
    EXPECT_TRUE(*again == message) << Describe(*again) << Describe(message);
  }
}

// All operations of the largest batch are refused, or all but some.
TEST(BatchAgreementMessage, AnswersEachOperationOnce) {
  for (const size_t accepted : {size_t{0}, size_t{1}, kMaxBatchOperations}) {
    BatchAgreementMessage message = OneOfEach()[1];
    ASSERT_EQ(message.kind, BatchAgreementMessageKind::kAcknowledge);
    message.accepted = static_cast<uint32_t>((uint64_t{1} << accepted) - 1);
    message.refusals.assign(kMaxBatchOperations - accepted,
                            {absl::StatusCode::kInvalidArgument, 77});
    const absl::StatusOr<BatchAgreementMessage> again =
        DecodeGrantMessage(EncodeGrantMessage(message));
    ASSERT_TRUE(again.ok()) << again.status() << Describe(message);
    EXPECT_TRUE(*again == message);
    // One operation more is accepted than there are.
    if (accepted == kMaxBatchOperations) continue;
    message.accepted |= 0x80000000;
    EXPECT_FALSE(DecodeGrantMessage(EncodeGrantMessage(message)).ok());
  }
}

// Written by hand: the bytes that other versions of this library expect.
TEST(BatchAgreementMessage, HasFixedBytes) {
  BatchAgreementMessage message = OneOfEach()[0];
  message.operations = {{{message.to, message.from, 0x0102}, 0x0304}};
  const std::string bytes = EncodeGrantMessage(message);
  EXPECT_EQ(bytes, std::string("\x01\x00"                           // GRANT
                               "\x02\x00\x00\x00"                   // from 2
                               "\x70\x11\x01\x00"                   // to 70000
                               "\x10\x32\x54\x76\x98\xba\xdc\xfe"   // communicator
                               "\x03\x00\x00\x00"                   // generation
                               "\x09\x00\x00\x00\x00\x00\x00\x00"   // serial
                               "\x01\x00\x00\x00"                   // one operation
                               "\x00\x00\x00\x00"                   // not sent by 2
                               "\x02\x01\x00\x00\x00\x00\x00\x00"   // id
                               "\x04\x03\x00\x00\x00\x00\x00\x00",  // bytes
                               54));
}

TEST(BatchAgreementMessage, IsRefusedWhenItIsTooShortOrTooLong) {
  for (const BatchAgreementMessage& message : OneOfEach()) {
    const std::string bytes = EncodeGrantMessage(message);
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(DecodeGrantMessage(bytes.substr(0, size)).ok()) << size << Describe(message);
    }
    EXPECT_FALSE(DecodeGrantMessage(bytes + '\0').ok()) << Describe(message);
  }
}

TEST(BatchAgreementMessage, IsRefusedWithoutAValidDeviceOrOperation) {
  const std::string grant = EncodeGrantMessage(OneOfEach()[0]);
  const auto with = [&grant](size_t at, std::string bytes) {
    return std::string(grant).replace(at, bytes.size(), bytes);
  };
  EXPECT_TRUE(DecodeGrantMessage(grant).ok());
  EXPECT_FALSE(DecodeGrantMessage(with(0, std::string(1, '\x00'))).ok());
  EXPECT_FALSE(DecodeGrantMessage(with(0, "\x09")).ok());
  // From a device to itself; from a negative one.
  EXPECT_FALSE(DecodeGrantMessage(with(6, std::string("\x02\x00\x00\x00", 4))).ok());
  EXPECT_FALSE(DecodeGrantMessage(with(2, "\xff\xff\xff\xff")).ok());
  EXPECT_FALSE(DecodeGrantMessage(with(30, std::string(1, '\x00'))).ok());
  EXPECT_FALSE(DecodeGrantMessage(with(30, "\x21")).ok());
}

// For any bytes, the decoder neither reads beyond them nor accepts what it would not encode.
TEST(BatchAgreementMessage, DecodesOnlyWhatItWouldEncode) {
  std::mt19937_64 dice(20261121);
  int decoded = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = EncodeGrantMessage(OneOfEach()[dice() % 8]);
    for (uint64_t changes = dice() % 4; changes > 0; --changes) {
      bytes[dice() % bytes.size()] = static_cast<char>(dice());
    }
    const absl::StatusOr<BatchAgreementMessage> message = DecodeGrantMessage(bytes);
    if (!message.ok()) continue;
    ++decoded;
    EXPECT_EQ(EncodeGrantMessage(*message), bytes);
  }
  EXPECT_GT(decoded, 1000);
}

TEST(BatchAgreementMessage, DigestsDifferWithEachFieldAndTheOrder) {
  const BatchAgreementOperation a{{DeviceId(0), DeviceId(1), 1}, 100};
  const BatchAgreementOperation b{{DeviceId(0), DeviceId(1), 2}, 100};
  EXPECT_NE(DigestOf({a, b}), DigestOf({b, a}));
  EXPECT_NE(DigestOf({a}), DigestOf({a, b}));
  for (const BatchAgreementOperation& other :
       {BatchAgreementOperation{{DeviceId(1), DeviceId(0), 1}, 100},
        BatchAgreementOperation{{DeviceId(0), DeviceId(2), 1}, 100},
        BatchAgreementOperation{a.key, 101}, b}) {
    EXPECT_NE(DigestOf({a}), DigestOf({other}));
  }
}

}  // namespace
}  // namespace ferry
