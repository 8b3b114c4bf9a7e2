// SPDX-License-Identifier: Apache-2.0
// Descriptors over Unix sockets.
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

// In one message, at most; the kernel's limit is 253.
inline constexpr size_t kMaxDescriptors = 8;

// Sends duplicates of `fds`, with a byte that says how many.
//   Errors: UNAVAILABLE when the socket takes nothing just now, or is closed.
absl::Status SendDescriptors(int socket, absl::Span<const int> fds);

// Takes whatever has come, but stops when `arrived` has `enough`. Those for which this process has
// no room come as descriptors that are not valid. False: the other side has closed the socket.
//   Errors: UNAVAILABLE with the kernel's reason.
absl::StatusOr<bool> ReceiveDescriptors(int socket, std::deque<UniqueFd>& arrived,
                                        size_t enough = SIZE_MAX);

//   Errors: RESOURCE_EXHAUSTED, saying what to do, if one of them was lost.
absl::Status CheckDescriptor(const UniqueFd& fd);
absl::Status CheckDescriptors(absl::Span<const UniqueFd> fds);

//   Errors: RESOURCE_EXHAUSTED.
absl::StatusOr<UniqueFd> DuplicateDescriptor(int fd);

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CONTROL_DESCRIPTORS_H_
