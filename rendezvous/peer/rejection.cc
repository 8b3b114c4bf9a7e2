// SPDX-License-Identifier: Apache-2.0
// Texts of rejections.
#include "rendezvous/peer/rejection.h"

#include <memory>

#include "absl/strings/str_cat.h"

namespace ferry {

absl::Status BufferMismatch(const TensorHeader& header, const Tensor& destination) {
  return absl::InvalidArgumentError(
      absl::StrCat("what came is ", DataTypeName(header.dtype), ToString(header.shape),
                   ", and the receiver's buffer is for ", ToString(destination)));
}

absl::Status WrongTransport(absl::string_view taken, absl::string_view required,
                            const PeerId& producer, const PeerId& self) {
  return absl::FailedPreconditionError(
      absl::StrCat(Describe(producer), " sends by ", taken, ", and ", required,
                   " is the required transport here, on ", Describe(self)));
}

absl::string_view InlineTransport(const TransportList& transports) {
  for (const std::unique_ptr<Transport>& transport : transports) {
    if (transport->capabilities().moves_over_tcp) return transport->name();
  }
  return "inline messages";
}

}  // namespace ferry
