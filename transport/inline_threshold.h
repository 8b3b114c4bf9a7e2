// SPDX-License-Identifier: Apache-2.0
// The inline threshold: up to which size a tensor's bytes are sent in the control message itself.
#ifndef FERRY_TRANSPORT_INLINE_THRESHOLD_H_
#define FERRY_TRANSPORT_INLINE_THRESHOLD_H_

#include <algorithm>
#include <cstddef>

namespace ferry {

// A small tensor in host memory is sent in a control message: in its RTS ("inline"), or, before it
// is requested, as an eager value (rendezvous/peer/eager_protocol.h). This is one message instead
// of a transfer by a transport and its release. What UCX and MPI call the rendezvous protocol is a
// transfer descriptor here, with which the receiver fetches the tensor. PathSelector decides with
// these constants.

// In shared memory a copy of this size costs as much as the release of a tensor in the arena. A
// tensor elsewhere would be copied into the arena first.
inline constexpr size_t kInlineMaxInArena = 2 * 1024;
inline constexpr size_t kInlineMaxElsewhere = 16 * 1024;
// Over TCP, where data connections have threads of their own: waking one on each side, with another
// round of system calls, costs more than one more copy of this many bytes.
inline constexpr size_t kInlineMaxOverTcp = 128 * 1024;
// Over TCP if another transport is required: a receiver with such a policy rejects larger ones.
inline constexpr size_t kInlineMaxTcpForbidden = 32 * 1024;
// Sent inline even behind a backlog: no larger than an RTS that refers to a transport.
inline constexpr size_t kInlineAlways = 512;
// Queued bytes on the control channel beyond which tensors take a transport, where waiting costs no
// copy.
inline constexpr size_t kInlineBacklog = 256 * 1024;
// The same for eager values. A copy in the queue costs less than
// the requests of a burst that the peer is about to read.
inline constexpr size_t kEagerBacklog = 4 * 1024 * 1024;
// Size of an RTS without its tensor, with a shape of many dimensions.
inline constexpr size_t kReadyToSendOverhead = 4096;

// The inline threshold over a control channel that passes descriptors, within a host.
inline constexpr size_t InlineMaxWithinHost(bool is_in_arena) {
  return is_in_arena ? kInlineMaxInArena : kInlineMaxElsewhere;
}
// The inline threshold over one that passes none, whose frames hold at most `max_body` bytes.
inline constexpr size_t InlineMaxOverTcp(bool forbids_tcp, size_t max_body) {
  return std::min(forbids_tcp ? kInlineMaxTcpForbidden : kInlineMaxOverTcp,
                  max_body - kReadyToSendOverhead);
}

}  // namespace ferry

#endif  // FERRY_TRANSPORT_INLINE_THRESHOLD_H_
