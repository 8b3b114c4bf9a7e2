// SPDX-License-Identifier: Apache-2.0
// Messages between the batch agreement endpoints of two devices, and their encoding.
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

// Messages between two devices arrive in order and once, or not at all after a failure.
enum class BatchAgreementMessageKind : uint16_t {
  // Proposes a batch to run next. From the device with the smaller id, the peer answers when it
  // can; from the other one, at once.
  kGrant = 1,
  // Answers kGrant: the accepted operations will run.
  kAcknowledge = 2,
  // Answers kGrant: not now. From the device with the larger id: it will grant them itself; from
  // the other one: it is paused, and will send kResumed.
  kDecline = 3,
  // This batch's data has been received.
  kDone = 4,
  // These operations will not run. They are in no batch that the sender has agreed to.
  kCancel = 5,
  // The sender has flagged this communicator, for this reason; flag it too.
  kBreak = 6,
  // Nothing runs on it on the sender's side any more; what it has not acknowledged it has not
  // received.
  kSettled = 7,
  // The sender agrees on batches again; propose again what it declined.
  kResumed = 8,
};

// Why an operation of a grant is rejected.
struct BatchAgreementRefusal {
  // NOT_FOUND: no (longer any) request for it here. INVALID_ARGUMENT: the sizes differ.
  absl::StatusCode code = absl::StatusCode::kNotFound;
  // The size that the rejecting side expects, in bytes.
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
  // kGrant; kCancel, whose operations carry no size. All between `from` and `to`.
  std::vector<BatchAgreementOperation> operations;
  // kAcknowledge: one bit for each operation of the grant.
  uint32_t accepted = 0;
  // kAcknowledge: DigestOf the accepted operations.
  uint64_t digest = 0;
  // kAcknowledge: one for each bit of the grant that is not set, in order.
  std::vector<BatchAgreementRefusal> refusals;
  // kDone: the device whose count `serial` is.
  DeviceId granter = kNoDevice;
  // kBreak: the device that has failed, if any.
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

// A message of that kind whose other fields are not set yet. `communicator`: ignored by kCancel and
// kResumed, which name none.
BatchAgreementMessage NewAgreementMessage(BatchAgreementMessageKind kind, DeviceId from,
                                          DeviceId to, const CommunicatorName& communicator);

// Order-dependent digest: both sides compare it before they launch.
uint64_t DigestOf(absl::Span<const BatchAgreementOperation> operations);

// REQUIRES: at most kMaxBatchOperations operations; at least one if the kind has operations.
std::string EncodeGrantMessage(const BatchAgreementMessage& message);
//   Errors: INVALID_ARGUMENT for anything that EncodeGrantMessage does not produce.
absl::StatusOr<BatchAgreementMessage> DecodeGrantMessage(absl::string_view bytes);

// Human-readable: "GRANT 3 from 0 to 2 [0>2:7 2>0:1]".
std::string Describe(const BatchAgreementMessage& message);

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_BATCH_AGREEMENT_MESSAGE_H_
