// SPDX-License-Identifier: Apache-2.0
// The eager threshold: up to which size a tensor's bytes are sent in the RTS itself.
#ifndef FERRY_TRANSPORT_EAGER_THRESHOLD_H_
#define FERRY_TRANSPORT_EAGER_THRESHOLD_H_

#include <algorithm>
#include <cstddef>

namespace ferry {

// A tensor in host memory is sent eagerly ("inline" in reports) if it is small: one message instead
// of a transfer by a transport and its release. The term is that of UCX and MPI; what they call the
// rendezvous protocol is a transfer descriptor here, with which the receiver fetches the tensor.
// PathSelector decides with these constants.

// In shared memory a copy of this size costs as much as the release of a tensor in the arena. A
// tensor elsewhere would be copied into the arena first.
inline constexpr size_t kEagerMaxInArena = 2 * 1024;
inline constexpr size_t kEagerMaxElsewhere = 16 * 1024;
// Over TCP, where data connections have threads of their own: waking one on each side, with another
// round of system calls, costs more than one more copy of this many bytes.
inline constexpr size_t kEagerMaxOverTcp = 128 * 1024;
// Over TCP if another transport is required: a receiver with such a policy rejects larger ones.
inline constexpr size_t kEagerMaxTcpForbidden = 32 * 1024;
// Sent eagerly even behind a backlog: no larger than an RTS that refers to a transport.
inline constexpr size_t kEagerAlways = 512;
// Queued bytes on the control channel beyond which tensors take a transport, where waiting costs no
// copy.
inline constexpr size_t kEagerBacklog = 256 * 1024;
// The same for values that are sent before they are requested. A copy in the queue costs less than
// the requests of a burst that the peer is about to read.
inline constexpr size_t kUnrequestedBacklog = 4 * 1024 * 1024;
// Size of an RTS without its tensor, with a shape of many dimensions.
inline constexpr size_t kReadyToSendOverhead = 4096;

// The eager threshold over a control channel that passes descriptors, within a host.
inline constexpr size_t EagerMaxWithinHost(bool is_in_arena) {
  return is_in_arena ? kEagerMaxInArena : kEagerMaxElsewhere;
}
// The eager threshold over one that passes none, whose frames hold at most `max_body` bytes.
inline constexpr size_t EagerMaxOverTcp(bool forbids_tcp, size_t max_body) {
  return std::min(forbids_tcp ? kEagerMaxTcpForbidden : kEagerMaxOverTcp,
                  max_body - kReadyToSendOverhead);
}

}  // namespace ferry

#endif  // FERRY_TRANSPORT_EAGER_THRESHOLD_H_
