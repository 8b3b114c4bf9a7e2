// SPDX-License-Identifier: Apache-2.0
// DLPack structs with arbitrary fields; only the memory is valid.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/status_macros.h"
#include "tensor/dlpack.h"

namespace ferry {
namespace {

// Takes values from the front of the input; zeros at its end.
class Reader final {
 public:
  Reader(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  template <typename T>
  T Take() {
    T value{};
    const size_t count = std::min(sizeof(value), size_);
    if (count > 0) std::memcpy(&value, data_, count);
    data_ += count;
    size_ -= count;
    return value;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

// Mostly small numbers: all-huge extents exercise nothing new. A byte selects.
int64_t TakeExtent(Reader& reader) {
  const auto kind = reader.Take<int8_t>();
  return kind == -128 ? reader.Take<int64_t>() : kind;
}

void CheckImport(dlpack::ManagedTensor& managed, size_t memory_bytes, int& deletions) {
  {
    const absl::StatusOr<Tensor> tensor = dlpack::Import(&managed);
    FERRY_CHECK(deletions == 0);
    if (!tensor.ok()) {
      FERRY_CHECK(absl::IsInvalidArgument(tensor.status()) ||
                  absl::IsUnimplemented(tensor.status()));
      return;
    }
    FERRY_CHECK(tensor->shape().rank() == managed.dl_tensor.ndim);
    // The host may not read device memory.
    if (!tensor->is_on_host()) return;
    // A size beyond the memory is a false claim, which cannot be detected.
    const uint64_t offset = managed.dl_tensor.byte_offset;
    if (offset > memory_bytes || tensor->bytes() > memory_bytes - offset) return;
    const absl::StatusOr<dlpack::ManagedTensor*> exported = dlpack::Export(*tensor);
    FERRY_CHECK(exported.ok());
    const absl::StatusOr<Tensor> again = dlpack::Import(*exported);
    FERRY_CHECK(again.ok());
    FERRY_CHECK(IsEqual(*again, *tensor));
    FERRY_CHECK(again->data() == tensor->data());
  }
  FERRY_CHECK(deletions == 1);
}

void Check(const uint8_t* data, size_t size) {
  static std::vector<char>& memory = *new std::vector<char>(4096);
  Reader reader(data, size);
  int deletions = 0;
  dlpack::ManagedTensor managed = {};
  managed.version.major = reader.Take<uint8_t>() % 4 == 0 ? 2 : 1;
  managed.version.minor = reader.Take<uint8_t>();
  managed.manager_ctx = &deletions;
  managed.deleter = [](dlpack::ManagedTensor* self) { ++*static_cast<int*>(self->manager_ctx); };
  managed.flags = reader.Take<uint8_t>();
  const auto pointers = reader.Take<uint8_t>();
  managed.dl_tensor.data = pointers % 8 == 0 ? nullptr : memory.data();
  managed.dl_tensor.device = {reader.Take<int8_t>(), reader.Take<int8_t>()};
  managed.dl_tensor.dtype = {reader.Take<uint8_t>(), reader.Take<uint8_t>(),
                             reader.Take<uint8_t>()};
  managed.dl_tensor.byte_offset = static_cast<uint64_t>(TakeExtent(reader));
  std::vector<int64_t> shape(300);
  std::vector<int64_t> strides(300);
  managed.dl_tensor.ndim = reader.Take<int16_t>() % 300;
  for (int32_t i = 0; i < managed.dl_tensor.ndim; ++i) {
    shape[static_cast<size_t>(i)] = TakeExtent(reader);
    strides[static_cast<size_t>(i)] = TakeExtent(reader);
  }
  managed.dl_tensor.shape = pointers % 16 == 1 ? nullptr : shape.data();
  managed.dl_tensor.strides = pointers % 2 == 0 ? nullptr : strides.data();
  CheckImport(managed, memory.size(), deletions);
}

}  // namespace
}  // namespace ferry

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ferry::Check(data, size);
  return 0;
}
