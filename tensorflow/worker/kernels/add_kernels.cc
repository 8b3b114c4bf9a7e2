// SPDX-License-Identifier: Apache-2.0
// Add, AddV2, Sub, AddN, and in-place sums.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tensorflow/worker/kernels/add.h"
#include "tensorflow/worker/kernels/binary.h"
#include "tensorflow/worker/kernels/run_writer.h"
#include "tensorflow/worker/kernels/shapes.h"

namespace ferry::worker {
namespace {

absl::Status Concatenate(KernelContext& context) {
  const Tensor& x = context.input(0);
  const Tensor& y = context.input(1);
  FERRY_ASSIGN_OR_RETURN(const Broadcast broadcast, BroadcastOf(x.shape(), y.shape()));
  FERRY_RETURN_IF_ERROR(CheckStrings(context, broadcast.shape));
  std::vector<std::string> strings(static_cast<size_t>(broadcast.shape.element_count()));
  const int64_t x_stride = broadcast.x_strides.back();
  const int64_t y_stride = broadcast.y_strides.back();
  if (!strings.empty()) {
    // Broadcasting a few long strings may multiply their size.
    size_t bytes = 0;
    ForEachRow(broadcast, [&](int64_t x_at, int64_t y_at, int64_t, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        bytes += x.strings()[static_cast<size_t>(x_at + i * x_stride)].size() +
                 y.strings()[static_cast<size_t>(y_at + i * y_stride)].size();
      }
    });
    FERRY_RETURN_IF_ERROR(context.CheckBytes(bytes));
    ForEachRow(broadcast, [&](int64_t x_at, int64_t y_at, int64_t out_at, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        strings[static_cast<size_t>(out_at + i)] =
            absl::StrCat(x.strings()[static_cast<size_t>(x_at + i * x_stride)],
                         y.strings()[static_cast<size_t>(y_at + i * y_stride)]);
      }
    });
  }
  FERRY_ASSIGN_OR_RETURN(Tensor out, Tensor::OfStrings(broadcast.shape, std::move(strings)));
  context.set_output(0, std::move(out));
  return absl::OkStatus();
}

absl::Status AddAll(KernelContext& context, const std::string& name) {
  FERRY_RETURN_IF_ERROR(CheckAddends(context, name));
  const Tensor& first = context.input(0);
  if (context.input_count() == 1) {
    context.set_output(0, first);
    return absl::OkStatus();
  }
  FERRY_ASSIGN_OR_RETURN(Tensor sum, context.Allocate(first.dtype(), first.shape()));
  // Adds all inputs block by block, so that a block of the sum stays in the cache.
  constexpr int64_t kPieceBytes = 16 << 10;
  alignas(kBufferAlignment) char group_sum[kPieceBytes];
  const DataType dtype = first.dtype();
  const int64_t element_bytes = static_cast<int64_t>(ElementBytes(dtype));
  const int64_t count = first.shape().element_count();
  const int64_t piece = kPieceBytes / element_bytes;
  for (int64_t at = 0; at < count; at += piece) {
    const int64_t here = std::min(piece, count - at);
    const auto add_group = [&context, dtype, here, offset = at * element_bytes](int begin, int end,
                                                                                char* to) {
      const void* left = static_cast<const char*>(context.input(begin).data()) + offset;
      for (int i = begin + 1; i < end; ++i) {
        AddArrays(dtype, left, static_cast<const char*>(context.input(i).data()) + offset, to,
                  here);
        left = to;
      }
    };
    char* const out = static_cast<char*>(sum.mutable_data()) + at * element_bytes;
    int added = FirstAddends(context.input_count());
    add_group(0, added, out);
    for (; added < context.input_count(); added += kAddendGroup) {
      add_group(added, added + kAddendGroup, group_sum);
      AddArrays(dtype, out, group_sum, out, here);
    }
  }
  context.set_output(0, std::move(sum));
  return absl::OkStatus();
}

}  // namespace

int FirstAddends(int input_count) {
  const int rest = input_count % kAddendGroup;
  return rest < 2 ? rest + kAddendGroup : rest;
}

absl::Status CheckAddends(const KernelContext& context, const std::string& name) {
  const Tensor& first = context.input(0);
  for (int i = 1; i < context.input_count(); ++i) {
    if (context.input(i).shape() == first.shape()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "Inputs to operation ", name, " of type AddN must have the same size and shape.  Input 0: ",
        ShapeText(first.shape()), " != input ", i, ": ", ShapeText(context.input(i).shape())));
  }
  return absl::OkStatus();
}

void AddArrays(DataType dtype, const void* x, const void* y, void* out, int64_t count) {
  const bool is_known = WithType(NumberTypes(), dtype, [x, y, out, count](auto tag) {
    using T = typename decltype(tag)::Type;
    BinaryRow<AddElements>(static_cast<const T*>(x), 1, static_cast<const T*>(y), 1,
                           static_cast<T*>(out), count);
  });
  FERRY_CHECK(is_known);
}

KernelOr MakeAdd(const NodeAttrs& node) {
  if (node.Type("T") == DataType::kString) return MakeFunctionKernel(Concatenate);
  return MakeBinary<AddElements>(NumberTypes(), node);
}

KernelOr MakeSub(const NodeAttrs& node) { return MakeBinary<SubElements>(NumberTypes(), node); }

KernelOr MakeAddN(const NodeAttrs& node) {
  return MakeFunctionKernel(
      [name = node.name()](KernelContext& context) { return AddAll(context, name); });
}

}  // namespace ferry::worker
