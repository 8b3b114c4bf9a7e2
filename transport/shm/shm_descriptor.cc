// SPDX-License-Identifier: Apache-2.0
// Encodings of 16 and 12 bytes.
#include "transport/shm/shm_descriptor.h"

#include "absl/status/status.h"

#include "base/byte_reader.h"

namespace ferry {

std::string EncodeShmDescriptor(const ShmDescriptor& descriptor) {
  char room[16];
  ByteWriter writer(room, sizeof(room));
  writer.Put(descriptor.segment);
  writer.Put(descriptor.generation);
  writer.Put(descriptor.offset);
  return std::string(writer.view());
}

absl::StatusOr<ShmDescriptor> DecodeShmDescriptor(absl::string_view body) {
  ByteReader reader(body);
  ShmDescriptor descriptor;
  descriptor.segment = reader.Get<uint32_t>();
  descriptor.generation = reader.Get<uint32_t>();
  descriptor.offset = reader.Get<uint64_t>();
  if (reader.is_short() || !reader.rest().empty()) {
    return absl::InvalidArgumentError("a hand-over of memory that is not 16 bytes long");
  }
  return descriptor;
}

std::string EncodeShmSegmentNotice(const ShmSegmentNotice& notice) {
  char room[12];
  ByteWriter writer(room, sizeof(room));
  writer.Put(notice.segment);
  writer.Put(notice.bytes);
  return std::string(writer.view());
}

absl::StatusOr<ShmSegmentNotice> DecodeShmSegmentNotice(absl::string_view body) {
  ByteReader reader(body);
  ShmSegmentNotice notice;
  notice.segment = reader.Get<uint32_t>();
  notice.bytes = reader.Get<uint64_t>();
  if (reader.is_short() || !reader.rest().empty()) {
    return absl::InvalidArgumentError("a notice of a segment that is not 12 bytes long");
  }
  return notice;
}

}  // namespace ferry
