// SPDX-License-Identifier: Apache-2.0
// What the grant endpoints of two devices say to each other, and how it looks in bytes.
#ifndef FERRY_TRANSPORT_NCCL_BATCH_AGREEMENT_MESSAGE_H_
#define FERRY_TRANSPORT_NCCL_BATCH_AGREEMENT_MESSAGE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "transport/nccl/batch_agreement_types.h"

namespace ferry {

// Messages between two devices arrive in order, once, or not at all any more.
enum class BatchAgreementMessageKind : uint16_t {
  // "Let us run these next." From the device with the smaller id: the peer answers when it can.
  // From the other one: the peer answers at once.
  kGrant = 1,
  // "I will run those of them that I accept." Answers kGrant.
  kAcknowledge = 2,
  // "Not now." Answers kGrant: of the device with the larger id, "I shall grant them"; of the other
  // one, "I agree on nothing new, and shall tell you when I do again".
  kDecline = 3,
  // "I have what this batch brought me."
  kDone = 4,
  // "These will not be run." They are in no batch that the sender has agreed to.
  kCancel = 5,
  // "I have flagged this communicator, for this reason; flag it too."
  kBreak = 6,
  // "Nothing runs on it any more on my side; what I have not said to have, I have not."
  kSettled = 7,
  // "I agree on batches again; ask for what I have declined."
  kResumed = 8,
};

// Why an operation of a grant is not accepted.
struct BatchAgreementRefusal {
  // NOT_FOUND: nobody wants it here (any more). INVALID_ARGUMENT: the sizes differ.
  absl::StatusCode code = absl::StatusCode::kNotFound;
  // How large the refusing side believes it to be.
  uint64_t bytes = 0;

  friend bool operator==(const BatchAgreementRefusal&, const BatchAgreementRefusal&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const BatchAgreementRefusal& refusal) {
    return H::combine(std::move(state), static_cast<int>(refusal.code), refusal.bytes);
  }
};

struct BatchAgreementMessage {
  BatchAgreementMessageKind kind = BatchAgreementMessageKind::kGrant;
  DeviceId from = kNoDevice;
  DeviceId to = kNoDevice;
  // All but kCancel and kResumed.
  CommunicatorName communicator;
  // kGrant, kAcknowledge, kDecline, kDone.
  uint64_t serial = 0;
  // kGrant; kCancel, whose operations have no size. All between `from` and `to`.
  std::vector<BatchAgreementOperation> operations;
  // kAcknowledge: one bit for each operation of the grant.
  uint32_t accepted = 0;
  // kAcknowledge: DigestOf the accepted operations.
  uint64_t digest = 0;
  // kAcknowledge: one for each bit of the grant that is not set, in order.
  std::vector<BatchAgreementRefusal> refusals;
  // kDone: of whose count `serial` is.
  DeviceId granter = kNoDevice;
  // kBreak: the device that has failed, if one has.
  DeviceId died = kNoDevice;
  // kCancel, kBreak: the reason.
  absl::Status why;

  friend bool operator==(const BatchAgreementMessage&, const BatchAgreementMessage&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const BatchAgreementMessage& m) {
    return H::combine(std::move(state), static_cast<int>(m.kind), m.from, m.to, m.communicator,
                      m.serial, m.operations, m.accepted, m.digest, m.refusals, m.granter, m.died,
                      m.why.raw_code());
  }
};

// Of operations in their order: both sides compare it before they launch.
uint64_t DigestOf(absl::Span<const BatchAgreementOperation> operations);

// REQUIRES: at most kMaxBatchOperations operations, at least one if the kind has some.
std::string EncodeGrantMessage(const BatchAgreementMessage& message);
//   Errors: INVALID_ARGUMENT for anything that EncodeGrantMessage does not write.
absl::StatusOr<BatchAgreementMessage> DecodeGrantMessage(absl::string_view bytes);

// "GRANT 3 from 0 to 2 [0>2:7 2>0:1]": for people.
std::string Describe(const BatchAgreementMessage& message);

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_BATCH_AGREEMENT_MESSAGE_H_
