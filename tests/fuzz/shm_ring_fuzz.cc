// SPDX-License-Identifier: Apache-2.0
// A ring with content from a faulty peer. The input is words, each with a position, that are
// written to an empty ring, some of them while it is being read.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "base/status_macros.h"
#include "transport/control/shm_ring.h"

namespace ferry {
namespace {

constexpr size_t kCapacity = 4096;
constexpr size_t kFrames = 64;

struct Patch {
  uint16_t place;
  uint16_t type;
  uint32_t word;
};

// A separate allocation of exactly that size: a sanitizer detects accesses beyond it.
struct alignas(64) Memory {
  char bytes[kRingControlBytes + kCapacity];
};

class Patches final {
 public:
  Patches(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  void Apply(Memory& memory, size_t most) {
    for (; most > 0 && size_ >= sizeof(Patch); --most) {
      Patch patch;
      std::memcpy(&patch, data_, sizeof(patch));
      data_ += sizeof(patch);
      size_ -= sizeof(patch);
      // Mostly lengths that could be.
      if ((patch.place & 0x8000) == 0) patch.word %= kCapacity / 2;
      const size_t words = (sizeof(memory.bytes) - 8) / 8;
      char* const to = memory.bytes + patch.place % words * 8;
      std::memcpy(to, &patch.word, sizeof(patch.word));
      std::memcpy(to + sizeof(patch.word), &patch.type, sizeof(patch.type));
      // Padding, mostly of less than a line.
      if ((patch.place & 0x4000) != 0) to[7] = static_cast<char>(patch.place >> 8 & 7);
    }
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

void Check(const uint8_t* data, size_t size) {
  const auto memory = std::make_unique<Memory>();
  std::memset(memory->bytes, 0, sizeof(memory->bytes));
  Patches patches(data, size);
  patches.Apply(*memory, size / sizeof(Patch) / 2);
  RingReader reader(memory->bytes, kCapacity);
  const char* const begin = memory->bytes + kRingControlBytes;
  const char* const end = begin + kCapacity;
  unsigned sum = 0;
  // Every released frame leaves zeros behind, so that a ring without a writer is empty after one
  // round.
  for (size_t i = 0; i < kFrames; ++i) {
    if (!reader.HasFrame()) {
      reader.Release();
      if (!reader.HasFrame()) break;
    }
    patches.Apply(*memory, 1);
    const absl::StatusOr<RingFrame> frame = reader.Read();
    if (!frame.ok()) {
      FERRY_CHECK(absl::IsInvalidArgument(frame.status()));
      break;
    }
    FERRY_CHECK(frame->body.data() >= begin);
    FERRY_CHECK(frame->body.data() + frame->body.size() <= end);
    FERRY_CHECK(frame->body.size() <= RingWriter(memory->bytes, kCapacity).max_body());
    for (const char each : frame->body) sum += static_cast<unsigned char>(each);
    patches.Apply(*memory, 1);
    if (sum % 4 != 0) reader.Release();
    if (sum % 3 == 0) reader.Publish();
  }
  reader.Release();
  reader.Publish();
  // A reader that reports invalid positions: the writer stays within the ring.
  RingWriter writer(memory->bytes, kCapacity);
  patches.Apply(*memory, kFrames);
  for (size_t i = 0; i < kFrames; ++i) {
    const char body[100] = {};
    if (!writer.Write(1, 0, {{body, i}})) writer.RequestRoom();
  }
}

}  // namespace
}  // namespace ferry

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ferry::Check(data, size);
  return 0;
}
