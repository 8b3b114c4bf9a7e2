// SPDX-License-Identifier: Apache-2.0
// The transfer descriptor of the transport `nccl`.
#ifndef FERRY_TRANSPORT_NCCL_NCCL_DESCRIPTOR_H_
#define FERRY_TRANSPORT_NCCL_NCCL_DESCRIPTOR_H_

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
};

std::string EncodeNcclDescriptor(const NcclDescriptor& descriptor);
//   Errors: INVALID_ARGUMENT for anything that EncodeNcclDescriptor does not produce.
absl::StatusOr<NcclDescriptor> DecodeNcclDescriptor(absl::string_view body);

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_NCCL_DESCRIPTOR_H_
