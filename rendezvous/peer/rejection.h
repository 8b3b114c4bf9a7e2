// SPDX-License-Identifier: Apache-2.0
// Why a consumer does not accept a value that a producer has sent to it.
#ifndef FERRY_RENDEZVOUS_PEER_REJECTION_H_
#define FERRY_RENDEZVOUS_PEER_REJECTION_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "tensor/tensor.h"
#include "transport/control/control_channel.h"
#include "transport/transport.h"
#include "transport/transports.h"

namespace ferry {

// INVALID_ARGUMENT: the receive has a buffer of another type or size.
absl::Status BufferMismatch(const TensorHeader& header, const Tensor& destination);

// FAILED_PRECONDITION: it came by `taken`, and this process requires another transport.
absl::Status WrongTransport(absl::string_view taken, absl::string_view required,
                            const PeerId& producer, const PeerId& self);

// The name of the transport by which a value inside of a message has come over TCP.
absl::string_view InlineTransport(const TransportList& transports);

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_REJECTION_H_
