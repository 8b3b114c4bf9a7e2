// SPDX-License-Identifier: Apache-2.0
// A message comes from another process: every offset and size in it is checked.
#include "python/src/packed_tree.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ferry::python {
namespace {

constexpr absl::string_view kMagic = "ferrytr1";
constexpr size_t kHeaderBytes = 40;
constexpr size_t kRecordBytes = 16;
constexpr size_t kAlignment = 64;
constexpr size_t kMaxDimensions = 64;

size_t Aligned(size_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

void Write64(char* to, uint64_t value) { std::memcpy(to, &value, sizeof(value)); }

uint64_t Read64(const char* from) {
  uint64_t value = 0;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// Where the parts of a message are.
struct Layout {
  size_t description = 0;
  size_t elements = 0;
};

Layout LayoutOf(absl::string_view description, absl::Span<const TreeLeaf> leaves) {
  size_t offset = kHeaderBytes;
  for (const TreeLeaf& leaf : leaves) offset += kRecordBytes + 8 * leaf.tensor.shape().size();
  return {.description = offset, .elements = Aligned(offset + description.size())};
}

// The bytes of a leaf, or SIZE_MAX if its extents are negative or too large.
size_t BytesOf(DataType type, absl::Span<const int64_t> shape) {
  size_t bytes = ElementBytes(type);
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, static_cast<size_t>(extent), &bytes))
      return SIZE_MAX;
  }
  return bytes;
}

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the message of a tree is malformed: ", what, "; was it sent by send_tree?"));
}

}  // namespace

size_t PackedBytes(absl::string_view description, absl::Span<const TreeLeaf> leaves) {
  size_t offset = LayoutOf(description, leaves).elements;
  for (const TreeLeaf& leaf : leaves) {
    if (leaf.is_packed) offset = Aligned(offset + leaf.tensor.size_bytes());
  }
  return offset;
}

void WritePacked(absl::string_view description, absl::Span<const TreeLeaf> leaves, char* message) {
  const Layout layout = LayoutOf(description, leaves);
  std::memcpy(message, kMagic.data(), kMagic.size());
  Write64(message + 8, leaves.size());
  Write64(message + 16, kHeaderBytes);
  Write64(message + 24, layout.description);
  Write64(message + 32, description.size());
  std::memcpy(message + layout.description, description.data(), description.size());
  char* record = message + kHeaderBytes;
  size_t offset = layout.elements;
  for (const TreeLeaf& leaf : leaves) {
    const absl::Span<const int64_t> shape = leaf.tensor.shape();
    const uint64_t head = static_cast<uint64_t>(leaf.tensor.dtype()) |
                          uint64_t{leaf.is_packed} << 8 | static_cast<uint64_t>(shape.size()) << 16;
    Write64(record, head);
    Write64(record + 8, leaf.is_packed ? offset : 0);
    if (!shape.empty()) std::memcpy(record + kRecordBytes, shape.data(), 8 * shape.size());
    record += kRecordBytes + 8 * shape.size();
    if (!leaf.is_packed) continue;
    if (leaf.tensor.size_bytes() > 0)
      std::memcpy(message + offset, leaf.tensor.data(), leaf.tensor.size_bytes());
    offset = Aligned(offset + leaf.tensor.size_bytes());
  }
}

absl::StatusOr<PackedTree> ReadPacked(const Tensor& message) {
  if (message.device() != Device::Host() || message.dtype() != DataType::kUint8 ||
      message.size_bytes() < kHeaderBytes) {
    return Malformed(absl::StrCat("it is ", ToString(message)));
  }
  const auto* const data = static_cast<const char*>(message.data());
  const size_t size = message.size_bytes();
  if (absl::string_view(data, kMagic.size()) != kMagic)
    return Malformed("it has another first word");
  const uint64_t count = Read64(data + 8);
  uint64_t record = Read64(data + 16);
  const uint64_t description = Read64(data + 24);
  const uint64_t description_bytes = Read64(data + 32);
  if (description > size || description_bytes > size - description)
    return Malformed("the description ends behind it");
  if (count > size / kRecordBytes) return Malformed("it has fewer bytes than leaves");
  PackedTree tree;
  tree.description.assign(data + description, description_bytes);
  tree.leaves.reserve(count);
  std::vector<int64_t> shape;
  for (uint64_t i = 0; i < count; ++i) {
    if (record > size || size - record < kRecordBytes) return Malformed("a record ends behind it");
    const uint64_t head = Read64(data + record);
    const uint64_t offset = Read64(data + record + 8);
    const auto type = static_cast<DataType>(head & 0xff);
    const bool is_packed = (head >> 8 & 0xff) != 0;
    const size_t dimensions = head >> 16 & 0xffff;
    record += kRecordBytes;
    if (dimensions > kMaxDimensions || size - record < 8 * dimensions)
      return Malformed("a record ends behind it");
    shape.resize(dimensions);
    if (dimensions > 0) std::memcpy(shape.data(), data + record, 8 * dimensions);
    record += 8 * dimensions;
    if (!is_packed) {
      tree.leaves.emplace_back();
      continue;
    }
    const size_t bytes = BytesOf(type, shape);
    if (ElementBytes(type) == 0) return Malformed("a leaf has an unknown type");
    if (bytes == SIZE_MAX || offset > size || bytes > size - offset)
      return Malformed("a leaf ends behind it");
    if (type == DataType::kBool) {
      for (size_t each = 0; each < bytes; ++each) {
        if (static_cast<uint8_t>(data[offset + each]) > 1)
          return Malformed("a truth value is neither 0 nor 1");
      }
    }
    absl::StatusOr<Tensor> leaf =
        Tensor::Wrap(type, shape, const_cast<char*>(data) + offset, [message] {});
    if (!leaf.ok()) return Malformed(leaf.status().message());
    tree.leaves.push_back(*std::move(leaf));
  }
  return tree;
}

}  // namespace ferry::python
