// SPDX-License-Identifier: Apache-2.0
// Messages of the shared memory transport.
#ifndef FERRY_TRANSPORT_SHM_SHM_DESCRIPTOR_H_
#define FERRY_TRANSPORT_SHM_SHM_DESCRIPTOR_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ferry {

struct ShmDescriptor {
  uint32_t segment = 0;
  uint32_t generation = 0;
  // Offset of the tensor's first element in the segment.
  uint64_t offset = 0;
};

// Sent with the segment's file descriptor, before the first transfer descriptor that refers to it;
// and once more, with no bytes and no file descriptor, when the producer has freed the segment: no
// later transfer descriptor refers to it.
struct ShmSegmentNotice {
  uint32_t segment = 0;
  uint64_t bytes = 0;
};

std::string EncodeShmDescriptor(const ShmDescriptor& descriptor);
std::string EncodeShmSegmentNotice(const ShmSegmentNotice& notice);
//   Errors: INVALID_ARGUMENT, here and below.
absl::StatusOr<ShmSegmentNotice> DecodeShmSegmentNotice(absl::string_view body);
absl::StatusOr<ShmDescriptor> DecodeShmDescriptor(absl::string_view body);

}  // namespace ferry

#endif  // FERRY_TRANSPORT_SHM_SHM_DESCRIPTOR_H_
