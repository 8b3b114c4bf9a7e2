// SPDX-License-Identifier: Apache-2.0
// The public NcclCommunicator shares an internal one, and has a stream of its own.
#include <ferry/nccl_communicator.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "api/api_access.h"
#include "base/status_macros.h"
#include "gpu/communicator/communicator.h"
#include "gpu/gpus.h"

namespace ferry::v0 {
namespace {

std::optional<nccl::DataType> NcclType(DataType type) {
  switch (type) {
    case DataType::kInt8:
      return nccl::kInt8;
    case DataType::kUint8:
      return nccl::kUint8;
    case DataType::kInt32:
      return nccl::kInt32;
    case DataType::kUint32:
      return nccl::kUint32;
    case DataType::kInt64:
      return nccl::kInt64;
    case DataType::kUint64:
      return nccl::kUint64;
    case DataType::kHalf:
      return nccl::kFloat16;
    case DataType::kFloat:
      return nccl::kFloat32;
    case DataType::kDouble:
      return nccl::kFloat64;
    case DataType::kBfloat16:
      return nccl::kBfloat16;
    default:
      return std::nullopt;
  }
}

absl::Status CheckTensor(const Tensor& tensor, const Device& device) {
  if (tensor.is_valid() && tensor.device() == device) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(ToString(tensor), " is not in the memory of ", ToString(device)));
}

}  // namespace

class NcclCommunicator::Impl final {
 public:
  Device device() const { return Device::Gpu(inner->ordinal()); }
  absl::Status CheckNotAborted() const {
    if (!is_aborted) return absl::OkStatus();
    return absl::AbortedError("the communicator was aborted by this rank");
  }
  // Checks two tensors, of which the second has `factor` times the elements of the first.
  absl::StatusOr<nccl::DataType> Check(const Tensor& input, const Tensor& output,
                                       int64_t factor) const {
    FERRY_RETURN_IF_ERROR(CheckNotAborted());
    FERRY_RETURN_IF_ERROR(CheckTensor(input, device()));
    FERRY_RETURN_IF_ERROR(CheckTensor(output, device()));
    if (input.dtype() != output.dtype() ||
        output.element_count() != input.element_count() * factor) {
      return absl::InvalidArgumentError(
          absl::StrCat("the output is ", ToString(output), ", for an input of ", ToString(input)));
    }
    const std::optional<nccl::DataType> type = NcclType(input.dtype());
    if (type.has_value()) return *type;
    return absl::InvalidArgumentError(absl::StrCat("NCCL has no type ", ToString(input.dtype())));
  }

  std::shared_ptr<ferry::NcclCommunicator> inner;
  std::unique_ptr<cuda::CudaStream> stream;
  std::atomic<bool> is_aborted{false};
};

NcclCommunicator::NcclCommunicator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NcclCommunicator::~NcclCommunicator() = default;

int NcclCommunicator::rank() const { return impl_->inner->rank(); }
int NcclCommunicator::size() const { return impl_->inner->size(); }
Device NcclCommunicator::device() const { return impl_->device(); }
CUstream_st* NcclCommunicator::stream() const { return impl_->stream->get(); }

absl::Status NcclCommunicator::AllReduce(const Tensor& input, Tensor& output, ReduceOp op,
                                         CUstream_st* stream) {
  FERRY_ASSIGN_OR_RETURN(const nccl::DataType type, impl_->Check(input, output, 1));
  return impl_->inner->Run(stream, [&](const nccl::NcclTable& nccl, nccl::Communicator comm) {
    return nccl.all_reduce(input.data(), output.mutable_data(),
                           static_cast<size_t>(input.element_count()), type, static_cast<int>(op),
                           comm, stream);
  });
}

absl::Status NcclCommunicator::Broadcast(Tensor& tensor, int root, CUstream_st* stream) {
  FERRY_ASSIGN_OR_RETURN(const nccl::DataType type, impl_->Check(tensor, tensor, 1));
  if (root < 0 || root >= size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no rank ", root, "; the communicator has ", size()));
  }
  return impl_->inner->Run(stream, [&](const nccl::NcclTable& nccl, nccl::Communicator comm) {
    return nccl.broadcast(tensor.data(), tensor.mutable_data(),
                          static_cast<size_t>(tensor.element_count()), type, root, comm, stream);
  });
}

absl::Status NcclCommunicator::AllGather(const Tensor& input, Tensor& output, CUstream_st* stream) {
  FERRY_ASSIGN_OR_RETURN(const nccl::DataType type, impl_->Check(input, output, size()));
  return impl_->inner->Run(stream, [&](const nccl::NcclTable& nccl, nccl::Communicator comm) {
    return nccl.all_gather(input.data(), output.mutable_data(),
                           static_cast<size_t>(input.element_count()), type, comm, stream);
  });
}

absl::Status NcclCommunicator::Run(CUstream_st* stream, absl::FunctionRef<int(ncclComm*)> calls,
                                   absl::Duration timeout) {
  FERRY_RETURN_IF_ERROR(impl_->CheckNotAborted());
  return impl_->inner->Run(
      stream, [&](const nccl::NcclTable&, nccl::Communicator comm) { return calls(comm); },
      timeout);
}

absl::Status NcclCommunicator::Check() {
  FERRY_RETURN_IF_ERROR(impl_->CheckNotAborted());
  return impl_->inner->Check();
}

void NcclCommunicator::Abort(const absl::Status& reason) {
  if (impl_->is_aborted.exchange(true)) return;
  impl_->inner->Abort(reason.ok() ? absl::CancelledError("aborted by the caller") : reason);
}

static_assert(static_cast<int>(ReduceOp::kSum) == nccl::kReduceSum);
static_assert(static_cast<int>(ReduceOp::kProduct) == nccl::kReduceProduct);
static_assert(static_cast<int>(ReduceOp::kMax) == nccl::kReduceMax);
static_assert(static_cast<int>(ReduceOp::kMin) == nccl::kReduceMin);

absl::StatusOr<std::unique_ptr<NcclCommunicator>> ApiAccess::Wrap(
    std::shared_ptr<ferry::NcclCommunicator> communicator, Gpus& gpus) {
  auto impl = std::make_unique<NcclCommunicator::Impl>();
  FERRY_ASSIGN_OR_RETURN(Gpu* const gpu, gpus.Get(communicator->ordinal()));
  FERRY_ASSIGN_OR_RETURN(impl->stream, cuda::CudaStream::Create(gpu->device));
  impl->inner = std::move(communicator);
  return std::unique_ptr<NcclCommunicator>(new NcclCommunicator(std::move(impl)));
}

}  // namespace ferry::v0
