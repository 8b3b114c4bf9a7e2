// SPDX-License-Identifier: Apache-2.0
// The descriptors of the transport `nccl`: of a transfer, and of a process.
#ifndef FERRY_TRANSPORT_NCCL_NCCL_DESCRIPTOR_H_
#define FERRY_TRANSPORT_NCCL_NCCL_DESCRIPTOR_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "transport/nccl/batch_agreement_message.h"

namespace ferry {

struct NcclDescriptor {
  TransferKey key;
  // The source's grant, which includes this transfer.
  std::optional<BatchAgreementMessage> grant;
  // The source offers to put it, on this communicator; then there is no grant.
  std::optional<CommunicatorName> offer;
};

std::string EncodeNcclDescriptor(const NcclDescriptor& descriptor);
//   Errors: INVALID_ARGUMENT for anything that EncodeNcclDescriptor does not produce.
absl::StatusOr<NcclDescriptor> DecodeNcclDescriptor(absl::string_view body);

// Transport::local_descriptor of a process that uses NCCL.
struct NcclPeerDescriptor {
  // The value of ncclGetVersion.
  int32_t version = 0;
  // Size of each GPU's pool for one-sided transfers; 0: none.
  uint64_t put_bytes = 0;
};

std::string EncodeNcclPeer(const NcclPeerDescriptor& peer);
// Ignores further fields, which a later version may have.
//   Errors: INVALID_ARGUMENT: too short, or no version.
absl::StatusOr<NcclPeerDescriptor> DecodeNcclPeer(absl::string_view descriptor);

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_NCCL_DESCRIPTOR_H_
