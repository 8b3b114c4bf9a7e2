// SPDX-License-Identifier: Apache-2.0
// Passing file descriptors over Unix sockets.
#ifndef FERRY_TRANSPORT_CONTROL_DESCRIPTORS_H_
#define FERRY_TRANSPORT_CONTROL_DESCRIPTORS_H_

#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "base/unique_fd.h"

namespace ferry {

// Limit for one message; the kernel's is 253.
inline constexpr size_t kMaxDescriptors = 8;

// Sends duplicates of `fds`, with one byte that holds their number.
//   Errors: UNAVAILABLE when the socket is full or closed.
absl::Status SendDescriptors(int socket, absl::Span<const int> fds);

// Receives the descriptors available, but stops when `arrived` has `enough`. Those for which this
// process has no room arrive as invalid descriptors. False: the peer has closed the socket.
//   Errors: UNAVAILABLE with the kernel's reason.
absl::StatusOr<bool> ReceiveDescriptors(int socket, std::deque<UniqueFd>& arrived,
                                        size_t enough = SIZE_MAX);

//   Errors: RESOURCE_EXHAUSTED, saying what to do, if the descriptor was lost.
absl::Status CheckDescriptor(const UniqueFd& fd);
absl::Status CheckDescriptors(absl::Span<const UniqueFd> fds);

//   Errors: RESOURCE_EXHAUSTED.
absl::StatusOr<UniqueFd> DuplicateDescriptor(int fd);

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CONTROL_DESCRIPTORS_H_
