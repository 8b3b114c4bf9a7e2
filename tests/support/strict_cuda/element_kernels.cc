// SPDX-License-Identifier: Apache-2.0
// Arithmetic on arrays: the loops are those of the real kernels (gpu/kernels/elements.h), over
// copies of the memory that they touch.
#include "gpu/kernels/elements.h"

#include <algorithm>
#include <cstring>

#include "gpu/kernels/cast_elements.h"
#include "tests/support/strict_cuda/kernels.h"

namespace strict_cuda {
namespace {

using ferry::cuda::BinaryCall;
using ferry::cuda::BytesOf;
using ferry::cuda::CastCall;
using ferry::cuda::FillCall;
using ferry::cuda::UnaryCall;

template <typename Call>
Call CallOf(const std::vector<uint64_t>& parameters) {
  Call call;
  std::memcpy(&call, parameters.data(), sizeof(call));
  return call;
}

// Elements of a kernel's memory, aligned as the host's are.
class Array final {
 public:
  Array(Context& context, const void* pointer, uint64_t count, uint64_t element_bytes,
        bool is_output) {
    const uint64_t address = reinterpret_cast<uintptr_t>(pointer);
    if (element_bytes == 0 || !IsAligned(context, address, std::min<uint64_t>(element_bytes, 8))) {
      return;
    }
    use_ = Access(context, address, count * element_bytes, is_output);
    if (use_ == nullptr) return;
    words_.resize(RoundUp(count * element_bytes, 8) / 8);
    if (is_output) return;
    const std::string bytes = Gather(*use_);
    std::memcpy(words_.data(), bytes.data(), bytes.size());
  }

  bool is_there() const { return use_ != nullptr; }
  void* data() { return words_.data(); }
  void WriteBack() {
    size_t bytes = 0;
    for (const Piece& piece : use_->pieces()) bytes += piece.bytes;
    Scatter(std::string(reinterpret_cast<const char*>(words_.data()), bytes), *use_);
  }

 private:
  std::unique_ptr<Use> use_;
  std::vector<uint64_t> words_;
};

// How many elements lie between the first and the last that are touched.
uint64_t Reach(const BinaryCall& call, const uint64_t* strides) {
  uint64_t reach = 1;
  for (uint32_t i = 0; i < call.rank; ++i) reach += (call.extents[i] - 1) * strides[i];
  return reach;
}

}  // namespace

void Binary(Context& context, const std::vector<uint64_t>& parameters) {
  auto call = CallOf<BinaryCall>(parameters);
  uint64_t count = 1;
  for (uint32_t i = 0; i < call.rank; ++i) count *= call.extents[i];
  if (call.rank == 0 || call.rank > ferry::cuda::kMaxBroadcastRank || count != call.count) {
    return FailContext(context, CUDA_ERROR_ILLEGAL_ADDRESS);
  }
  const uint64_t bytes = BytesOf(call.type);
  Array x(context, call.x, Reach(call, call.x_strides), bytes, false);
  Array y(context, call.y, Reach(call, call.y_strides), bytes, false);
  Array out(context, call.out, call.count, bytes, true);
  if (!x.is_there() || !y.is_there() || !out.is_there()) return;
  call.x = x.data();
  call.y = y.data();
  call.out = out.data();
  ferry::cuda::RunBinary(call, 0, 1);
  out.WriteBack();
}

void Unary(Context& context, const std::vector<uint64_t>& parameters) {
  auto call = CallOf<UnaryCall>(parameters);
  Array x(context, call.x, call.count, BytesOf(call.type), false);
  Array out(context, call.out, call.count, BytesOf(call.type), true);
  if (!x.is_there() || !out.is_there()) return;
  call.x = x.data();
  call.out = out.data();
  ferry::cuda::RunUnary(call, 0, 1);
  out.WriteBack();
}

void Cast(Context& context, const std::vector<uint64_t>& parameters) {
  auto call = CallOf<CastCall>(parameters);
  Array x(context, call.x, call.count, BytesOf(call.from), false);
  Array out(context, call.out, call.count, BytesOf(call.to), true);
  if (!x.is_there() || !out.is_there()) return;
  call.x = x.data();
  call.out = out.data();
  ferry::cuda::RunCast(call, 0, 1);
  out.WriteBack();
}

void Fill(Context& context, const std::vector<uint64_t>& parameters) {
  auto call = CallOf<FillCall>(parameters);
  Array out(context, call.out, call.count, call.element_bytes, true);
  if (!out.is_there()) return;
  call.out = out.data();
  if (call.value == nullptr) {
    ferry::cuda::RunFill(call, 0, 1);
  } else {
    Array value(context, call.value, 1, call.element_bytes, false);
    if (!value.is_there()) return;
    call.value = value.data();
    ferry::cuda::RunFill(call, 0, 1);
  }
  out.WriteBack();
}

}  // namespace strict_cuda
