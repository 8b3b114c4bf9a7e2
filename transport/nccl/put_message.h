// SPDX-License-Identifier: Apache-2.0
// Messages between two devices about one-sided transfers, and their bytes.
#ifndef FERRY_TRANSPORT_NCCL_PUT_MESSAGE_H_
#define FERRY_TRANSPORT_NCCL_PUT_MESSAGE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "transport/nccl/batch_agreement_types.h"

namespace ferry {

// Share a channel with batch agreement messages, and its order; the numbers are different ones.
enum class PutMessageKind : uint16_t {
  // From the destination: there is room for it at `offset` of this device's window.
  kRoom = 0x101,
  // From the destination: send it in a batch.
  kNoRoom = 0x102,
  // From the source, answers kRoom: its stream has passed the put.
  kPlaced = 0x103,
  // From the source, answers kRoom: it will not write there, or not any more.
  kWithdrawn = 0x104,
};

struct PutMessage {
  PutMessageKind kind = PutMessageKind::kRoom;
  TransferKey key;
  // The communicator whose window it is about; kNoRoom: none.
  CommunicatorName communicator;
  // kRoom.
  uint64_t offset = 0;
  // kWithdrawn: the reason.
  absl::Status why;

  DeviceId from() const { return is_from_destination() ? key.destination : key.source; }
  DeviceId to() const { return is_from_destination() ? key.source : key.destination; }

  friend bool operator==(const PutMessage&, const PutMessage&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const PutMessage& m) {
    return H::combine(std::move(state), static_cast<int>(m.kind), m.key, m.communicator, m.offset,
                      m.why.raw_code());
  }

 private:
  bool is_from_destination() const {
    return kind == PutMessageKind::kRoom || kind == PutMessageKind::kNoRoom;
  }
};

std::string EncodePutMessage(const PutMessage& message);
// Whether it is one of these, rather than one of batch agreement.
bool IsPutMessage(absl::string_view bytes);
//   Errors: INVALID_ARGUMENT for anything that EncodePutMessage does not produce.
absl::StatusOr<PutMessage> DecodePutMessage(absl::string_view bytes);
// Human-readable: "ROOM for transfer 7 from device 1 to device 2".
std::string Describe(const PutMessage& message);

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_PUT_MESSAGE_H_
