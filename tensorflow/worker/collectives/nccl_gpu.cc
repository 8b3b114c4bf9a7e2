// SPDX-License-Identifier: Apache-2.0
// Launches collectives and handles their completion.
#include "tensorflow/worker/collectives/nccl_gpu.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "gpu/cuda/ready_tensor.h"
#include "rendezvous/value.h"
#include "tensorflow/worker/collectives/collective_communicators.h"
#include "tensorflow/worker/kernels/element_types.h"
#include "tensorflow/worker/kernels/small_floats.h"

namespace ferry::worker {
namespace {

// Timeout for creating a communicator; all ranks are already at the head of their lines.
constexpr absl::Duration kMakeTimeout = absl::Seconds(60);
// Timeout to get a turn between keyed transfers, and for NCCL to enqueue.
constexpr absl::Duration kLaunchTimeout = absl::Seconds(30);
// Returns nullopt for types that cannot be reduced.
std::optional<nccl::DataType> NcclTypeOf(DataType dtype) {
  switch (dtype) {
    case DataType::kHalf:
      return nccl::kFloat16;
    case DataType::kBfloat16:
      return nccl::kBfloat16;
    case DataType::kFloat:
      return nccl::kFloat32;
    case DataType::kDouble:
      return nccl::kFloat64;
    case DataType::kInt64:
      return nccl::kInt64;
    default:
      return std::nullopt;
  }
}

int ReductionOf(MergeOp merge) {
  switch (merge) {
    case MergeOp::kAdd:
      return nccl::kReduceSum;
    case MergeOp::kMul:
      return nccl::kReduceProduct;
    case MergeOp::kMax:
      return nccl::kReduceMax;
    case MergeOp::kMin:
      return nccl::kReduceMin;
  }
  return nccl::kReduceSum;
}

using FloatTypes = TypeSet<Bfloat16, Half, float, double>;

bool IsFloat(DataType dtype) {
  return WithType(FloatTypes(), dtype, [](auto) {});
}

nccl::Result Issue(const NcclCollective& collective, const nccl::NcclTable& nccl,
                   nccl::Communicator comm, cuda::Stream stream) {
  const CollectiveNode& node = *collective.node;
  const Tensor& input = collective.input;
  void* const output = const_cast<void*>(collective.output.data());
  switch (node.kind) {
    case CollectiveKind::kReduce:
      return nccl.all_reduce(input.data(), output,
                             static_cast<size_t>(input.shape().element_count()),
                             *NcclTypeOf(node.dtype), ReductionOf(node.merge), comm, stream);
    case CollectiveKind::kGather:
      return nccl.all_gather(input.data(), output, input.bytes(), nccl::kUint8, comm, stream);
    case CollectiveKind::kBroadcast:
      break;
  }
  // The source's tensor stays in place.
  const void* const from = node.is_source ? input.data() : output;
  void* const to = node.is_source ? const_cast<void*>(from) : output;
  const size_t bytes = node.is_source ? input.bytes() : collective.output.bytes();
  return nccl.broadcast(from, to, bytes, nccl::kUint8, collective.source_rank, comm, stream);
}

// Claims a GPU's collectives for one node of the process: two nodes would launch in two orders.
std::shared_ptr<void> ClaimGpu(int ordinal) {
  static absl::Mutex mu(absl::kConstInit);
  static auto* const claims = new std::map<int, std::weak_ptr<void>>;
  absl::MutexLock lock(&mu);
  std::weak_ptr<void>& claim = (*claims)[ordinal];
  if (claim.lock() != nullptr) return nullptr;
  const std::shared_ptr<void> made = std::make_shared<int>(ordinal);
  claim = made;
  return made;
}

}  // namespace

class NcclGpu final : public CollectiveGpu {
 public:
  NcclGpu(Gpus& gpus, Gpu& gpu, const NcclJob& job, std::shared_ptr<void> claim,
          std::unique_ptr<cuda::CudaStream> stream)
      : gpu_(gpu),
        stream_(std::move(stream)),
        communicators_(gpus, gpu, job, stream_->get()),
        claim_(std::move(claim)),
        launcher_(gpu.device, {.thread_name = absl::StrCat("ferry-coll", ordinal())}) {}

  ~NcclGpu() override { launcher_.Stop(); }

  int ordinal() const { return gpu_.device->ordinal(); }
  AsyncFifoLock& line() override { return line_; }

  void Prepare(const Tensor& input, DataType dtype, const Shape& shape, absl::Time deadline,
               Prepared done) override {
    auto shared = std::make_shared<Prepared>(std::move(done));
    const auto allocate = [this, dtype, shape, shared](const absl::Status& ready) {
      if (!ready.ok()) return std::move(*shared)(ready);
      // May wait for NCCL work to finish, so it must not run on the launching thread.
      const absl::Status posted = gpu_.side->Post([this, dtype, shape, shared] {
        std::move (*shared)(gpu_.compute->Allocate(dtype, shape));
      });
      if (!posted.ok()) std::move (*shared)(posted);
    };
    std::shared_ptr<const cuda::ReadyEvent> event =
        input.is_valid() ? cuda::ReadyOf(input) : nullptr;
    if (event == nullptr) return allocate(absl::OkStatus());
    const absl::Status watched =
        gpu_.executor->Watch({.event = std::move(event),
                              .deadline = deadline,
                              .what = "the input of a collective",
                              .keep = std::make_shared<const Tensor>(input)},
                             [allocate](const absl::Status& ready) { allocate(ready); });
    if (!watched.ok()) std::move (*shared)(watched);
  }

  uint32_t Generation(const CollectiveNode& node, const std::vector<int>& members) override {
    const absl::StatusOr<CommunicatorKey> key = communicators_.KeyOf(node, members);
    const auto communicator = key.ok() ? communicators_.Find(*key) : nullptr;
    return communicator == nullptr ? 0 : communicator->generation();
  }

  std::shared_ptr<NcclRun> Launch(NcclCollective collective, Done begun, Done over) override {
    auto run =
        std::make_shared<Run>(*this, std::move(collective), std::move(begun), std::move(over));
    const absl::Status posted = launcher_.PostAlways([this, run] { Begin(run); });
    if (!posted.ok()) Refuse(*run, posted);
    return run;
  }

  absl::StatusOr<Tensor> Finish(const CollectiveNode& node, int count, Tensor output) override {
    if (!node.divides) return output;
    FERRY_ASSIGN_OR_RETURN(const Tensor divisor, gpu_.compute->Allocate(node.dtype, Shape()));
    cuda::FillCall fill = {};
    fill.out = const_cast<void*>(divisor.data());
    fill.count = 1;
    fill.element_bytes = ElementBytes(node.dtype);
    const bool is_known = WithType(FloatTypes(), node.dtype, [&](auto tag) {
      const auto value = static_cast<typename decltype(tag)::Type>(static_cast<float>(count));
      std::memcpy(fill.element, &value, sizeof(value));
    });
    FERRY_CHECK(is_known);
    cuda::BinaryCall divide = {};
    divide.x = output.data();
    divide.y = divisor.data();
    divide.out = const_cast<void*>(output.data());
    divide.count = static_cast<uint64_t>(output.shape().element_count());
    divide.op = cuda::BinaryOp::kDiv;
    // Both enums use TensorFlow's values.
    divide.type = static_cast<cuda::ElementType>(node.dtype);
    divide.rank = 1;
    divide.extents[0] = divide.count;
    divide.x_strides[0] = 1;
    return gpu_.compute->Run(
        {divisor}, output,
        [&](const cuda::ElementKernels& kernels, cuda::Stream stream) -> absl::Status {
          FERRY_RETURN_IF_ERROR(kernels.Fill(stream, fill));
          return kernels.Binary(stream, divide);
        });
  }

 private:
  using Communicator = CollectiveCommunicators::Entry;

  class Run final : public NcclRun {
   public:
    Run(NcclGpu& gpu, NcclCollective wanted, Done when_begun, Done when_over)
        : collective(std::move(wanted)),
          begun(std::move(when_begun)),
          over(std::move(when_over)),
          gpu_(gpu) {}

    void Abort(const absl::Status& why) override { gpu_.AbortRun(*this, why); }

    const NcclCollective collective;
    Done begun;
    Done over;
    // Guarded by the GPU's mutex.
    absl::Status aborted;
    std::shared_ptr<Communicator> communicator;

   private:
    NcclGpu& gpu_;
  };

  void AbortRun(Run& run, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_) {
    std::shared_ptr<Communicator> communicator;
    {
      absl::MutexLock lock(&mu_);
      if (run.aborted.ok()) run.aborted = why;
      communicator = run.communicator;
    }
    if (communicator != nullptr) communicators_.End(*communicator, why);
  }

  absl::Status StatusOf(const Run& run) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (!run.aborted.ok() || run.communicator == nullptr) return run.aborted;
    return communicators_.StatusOf(*run.communicator);
  }

  static void Refuse(Run& run, const absl::Status& why) {
    std::move(run.begun)(why);
    std::move(run.over)(why);
  }

  // Runs on the launcher's thread.
  void Begin(const std::shared_ptr<Run>& run) ABSL_LOCKS_EXCLUDED(mu_) {
    std::shared_ptr<const cuda::ReadyEvent> event;
    absl::Status status = TryBegin(*run, event);
    if (!status.ok()) {
      absl::MutexLock lock(&mu_);
      if (!run->aborted.ok()) status = run->aborted;
    }
    if (!status.ok()) return Refuse(*run, status);
    const auto keep =
        std::make_shared<std::pair<Tensor, Tensor>>(run->collective.input, run->collective.output);
    std::move(run->begun)(absl::OkStatus());
    const absl::Status watched =
        gpu_.nccl->Watch({.event = std::move(event), .what = run->collective.what, .keep = keep},
                         [this, run](const absl::Status& done) { OnEvent(*run, done); });
    if (!watched.ok()) std::move(run->over)(watched);
  }

  absl::Status TryBegin(Run& run, std::shared_ptr<const cuda::ReadyEvent>& event) {
    FERRY_RETURN_IF_ERROR(StatusOf(run));
    const NcclCollective& collective = run.collective;
    FERRY_ASSIGN_OR_RETURN(const CommunicatorKey key,
                           communicators_.KeyOf(*collective.node, collective.members));
    const auto timeout = [&collective](absl::Duration most) {
      return std::clamp(collective.deadline - SteadyClock().Now(), absl::ZeroDuration(), most);
    };
    std::shared_ptr<Communicator> communicator = communicators_.Find(key);
    if (collective.is_anew) {
      if (communicator != nullptr) {
        communicators_.End(*communicator, absl::AbortedError("another rank has none any more"));
      }
      FERRY_ASSIGN_OR_RETURN(communicator,
                             communicators_.Make(key, collective.rank, timeout(kMakeTimeout),
                                                 [this, &run] { return StatusOf(run); }));
    } else if (communicator == nullptr || communicator->generation() != collective.generation) {
      return MakeDerived(absl::AbortedError(
          absl::StrCat("the communicator of ", key.Describe(), " has ended meanwhile")));
    }
    {
      absl::MutexLock lock(&mu_);
      run.communicator = communicator;
    }
    // From here on, AbortRun ends the communicator.
    FERRY_RETURN_IF_ERROR(StatusOf(run));
    absl::Status status;
    {
      const CollectiveCommunicators::Use use(communicators_, *communicator);
      if (use.get() == nullptr) return StatusOf(run);
      status = use.get()->Run(
          stream_->get(),
          [&](const nccl::NcclTable& nccl, nccl::Communicator comm) {
            return Issue(collective, nccl, comm, stream_->get());
          },
          timeout(kLaunchTimeout));
      if (status.ok()) status = Record(collective, event);
      // Unknown which of the tensors the device still uses: keep both until the abort is complete.
      if (!status.ok()) communicators_.Keep(*communicator, {collective.input, collective.output});
    }
    if (!status.ok()) communicators_.End(*communicator, status);
    return status;
  }

  absl::Status Record(const NcclCollective& collective,
                      std::shared_ptr<const cuda::ReadyEvent>& event) {
    const cuda::ScopedCurrent current(*gpu_.device);
    FERRY_RETURN_IF_ERROR(current.status());
    FERRY_ASSIGN_OR_RETURN(event, cuda::ReadyEvent::Record(*gpu_.events, stream_->get()));
    if (collective.input.is_valid()) cuda::AddUse(collective.input, event);
    cuda::AddUse(collective.output, event);
    return absl::OkStatus();
  }

  // The kernel has completed. Runs on NCCL's thread.
  void OnEvent(Run& run, absl::Status status) {
    if (status.ok()) status = StatusOf(run);
    if (status.ok()) {
      const CollectiveCommunicators::Use use(communicators_, *run.communicator);
      if (use.get() != nullptr) {
        const nccl::NcclApi& api = use.get()->api();
        nccl::Result state = nccl::kSuccess;
        status = api.Check(api.table().get_async_error(use.get()->get(), &state),
                           "ncclCommGetAsyncError", use.get()->get());
        if (status.ok()) status = api.Check(state, run.collective.what, use.get()->get());
      }
      status.Update(StatusOf(run));
    }
    if (!status.ok()) communicators_.End(*run.communicator, status);
    std::move(run.over)(std::move(status));
  }

  Gpu& gpu_;
  const std::unique_ptr<cuda::CudaStream> stream_;
  CollectiveCommunicators communicators_;
  const std::shared_ptr<void> claim_;
  AsyncFifoLock line_;

  absl::Mutex mu_;
  // Declared last: its thread uses the rest.
  cuda::DeviceExecutor launcher_;
};

NcclGpus::NcclGpus(Gpus& gpus, const NcclJob& job) : gpus_(gpus), job_(job) {}
NcclGpus::~NcclGpus() = default;

absl::Status NcclGpus::Open(int ordinal) {
  if (opened_.contains(ordinal)) return absl::OkStatus();
  FERRY_ASSIGN_OR_RETURN(Gpu* const gpu, gpus_.Get(ordinal));
  std::shared_ptr<void> claim = ClaimGpu(ordinal);
  if (claim == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("another node of this process has the collectives of gpu:", ordinal));
  }
  FERRY_ASSIGN_OR_RETURN(std::unique_ptr<cuda::CudaStream> stream,
                         cuda::CudaStream::Create(gpu->device));
  opened_[ordinal] =
      std::make_unique<NcclGpu>(gpus_, *gpu, job_, std::move(claim), std::move(stream));
  return absl::OkStatus();
}

NcclOffer NcclGpus::Offer(const CollectiveNode& node) {
  NcclOffer offer{.why_not = {}, .gpu = {}};
  const int ordinal = node.memory.ordinal;
  if (node.memory.space == MemorySpace::kHost) {
    offer.why_not = "its tensor is in the host's memory";
  } else if (job_.library == nullptr) {
    offer.why_not = job_.library_unavailable_reason;
  } else if (job_.store == nullptr || !job_.device_of) {
    offer.why_not = "its process has joined no job";
  } else if (node.hint == "ring") {
    offer.why_not = "its communication_hint is ring";
  } else if (node.kind == CollectiveKind::kReduce && !NcclTypeOf(node.dtype).has_value()) {
    offer.why_not = absl::StrCat("NCCL reduces no ", DataTypeName(node.dtype));
  } else if (node.divides && !IsFloat(node.dtype)) {
    offer.why_not = "integers are divided by the host";
  } else {
    absl::MutexLock lock(&mu_);
    absl::Status opened = Open(ordinal);
    if (opened.ok() && node.divides) {
      const absl::StatusOr<Gpu*> gpu = gpus_.Get(ordinal);
      opened = gpu.ok() ? (*gpu)->compute->LoadKernels() : gpu.status();
    }
    offer.why_not = std::string(opened.message());
  }
  if (offer.why_not.empty()) offer.gpu = gpus_.uuids()[static_cast<size_t>(ordinal)];
  return offer;
}

CollectiveGpu& NcclGpus::gpu(int ordinal) {
  absl::MutexLock lock(&mu_);
  return *opened_.at(ordinal);
}

}  // namespace ferry::worker
