// SPDX-License-Identifier: Apache-2.0
// What a ticket of the transport `nccl` holds.
#ifndef FERRY_TRANSPORT_NCCL_NCCL_TICKET_H_
#define FERRY_TRANSPORT_NCCL_NCCL_TICKET_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "transport/nccl/grant_message.h"

namespace ferry {

struct NcclTicket {
  TransferKey key;
  // From the source, for this transfer among others.
  std::optional<GrantMessage> grant;
};

std::string EncodeNcclTicket(const NcclTicket& ticket);
//   Errors: INVALID_ARGUMENT for anything that EncodeNcclTicket does not write.
absl::StatusOr<NcclTicket> DecodeNcclTicket(absl::string_view body);

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_NCCL_TICKET_H_
