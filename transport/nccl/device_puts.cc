// SPDX-License-Identifier: Apache-2.0
// DevicePuts: the one-sided transfers of a GPU of this process.
#include "transport/nccl/device_puts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/logging.h"
#include "base/status_macros.h"

namespace ferry {
namespace {

// A pair whose window could not be set up so often has no one-sided transfers.
constexpr int kMaxWindowFailures = 2;

}  // namespace

void DevicePuts::Change(absl::FunctionRef<void(PutEndpoint&, PutActions&)> change,
                        BatchAgreementActions& batches) {
  PutActions actions;
  change(endpoint_, actions);
  for (PutAction& action : actions) {
    if (auto* const batch = std::get_if<SendInBatch>(&action)) {
      host_.AddToBatches(batch->key, batches);
    } else if (auto* const end = std::get_if<BreakForPut>(&action)) {
      host_.Break(end->communicator, end->why, batches);
    } else {
      host_.Queue([this, action = std::move(action)]() mutable { Perform(std::move(action)); });
    }
  }
}

void DevicePuts::CollectBlocks(BatchAgreementActions& batches) {
  if (memory_ == nullptr) return;
  Change(
      [this](PutEndpoint& endpoint, PutActions& actions) {
        for (const PutMemory::FreedBlock& each : memory_->TakeFreed()) {
          if (each.status.ok()) {
            endpoint.ReturnBlock(each.offset);
          } else {
            endpoint.RetireBlock(each.offset, each.status, actions);
          }
        }
      },
      batches);
}

void DevicePuts::Perform(PutAction action) {
  if (auto* const send = std::get_if<SendPutMessage>(&action)) {
    host_.SendPut(send->message);
  } else if (auto* const put = std::get_if<IssuePut>(&action)) {
    LaunchPut(*put);
  } else if (auto* const wait = std::get_if<IssueWait>(&action)) {
    LaunchWait(*wait);
  } else if (auto* const finish = std::get_if<FinishPut>(&action)) {
    if (!finish->offset.has_value()) return host_.Finish(finish->key, std::move(finish->status));
    std::shared_ptr<PutMemory> memory;
    host_.Run([&](BatchAgreementActions&) { memory = memory_; });
    // If it is not consumed, that returns its block.
    host_.Deliver(finish->key, memory->BufferAt(*finish->offset, finish->bytes));
  } else if (auto* const retired = std::get_if<ReportRetired>(&action)) {
    FERRY_LOG_WARN(kGpu,
                   "gpu:{}: {} bytes of the pool for one-sided transfers are not used again ({} of "
                   "{} by now): {}",
                   ordinal_, retired->bytes, retired->total_bytes, options_.put_bytes,
                   retired->why);
  }
}

void DevicePuts::Launch(DeviceId peer, const CommunicatorName& name, MakeBatch make, End end) {
  absl::StatusOr<RunnableBatch> batch =
      absl::AbortedError(absl::StrCat(Describe(name), " is not open any more"));
  std::shared_ptr<BatchRunner> runner;
  host_.Run([&](BatchAgreementActions&) {
    std::shared_ptr<NcclCommunicator> communicator = host_.OpenCommunicator(peer, name);
    std::shared_ptr<PutWindow> window = FindWindow(name);
    if (communicator == nullptr || window == nullptr) return;
    batch = make(std::move(communicator), std::move(window));
    runner = host_.runner();
  });
  const auto report = [this, keep = host_.Keep(), end = std::move(end)](bool is_lost) {
    return [this, keep, end, is_lost](const absl::Status& status) {
      host_.Run([&](BatchAgreementActions& batches) {
        Change([&](PutEndpoint& endpoint,
                   PutActions& actions) { end(endpoint, is_lost, status, actions); },
               batches);
      });
    };
  };
  if (!batch.ok()) return report(false)(batch.status());
  batch->patience = options_.grants.abort_grace;
  batch->done = report(false);
  batch->lost = report(true);
  runner->Launch(*std::move(batch));
}

void DevicePuts::LaunchPut(const IssuePut& put) {
  Launch(
      put.key.destination, put.communicator,
      [&](std::shared_ptr<NcclCommunicator> communicator,
          std::shared_ptr<PutWindow> window) -> absl::StatusOr<RunnableBatch> {
        // The host keeps it until the put is over.
        const Tensor* const source = host_.MemoryOf(put.key);
        if (source == nullptr) return absl::AbortedError("its tensor is not sent any more");
        return PutBatch(std::move(communicator), std::move(window), *source, put);
      },
      [key = put.key](PutEndpoint& endpoint, bool is_lost, const absl::Status& status,
                      PutActions& actions) {
        is_lost ? endpoint.PutLost(key, status, actions) : endpoint.PutPassed(key, status, actions);
      });
}

void DevicePuts::LaunchWait(const IssueWait& wait) {
  Launch(
      wait.peer, wait.communicator,
      [&](std::shared_ptr<NcclCommunicator> communicator, std::shared_ptr<PutWindow> window) {
        return WaitBatch(std::move(communicator), std::move(window), wait);
      },
      [peer = wait.peer, name = wait.communicator](
          PutEndpoint& endpoint, bool is_lost, const absl::Status& status, PutActions& actions) {
        is_lost ? endpoint.WaitLost(peer, name, status, actions)
                : endpoint.WaitPassed(peer, name, status, actions);
      });
}

absl::StatusOr<DevicePuts::Made> DevicePuts::Make(Gpu& gpu, const nccl::NcclApi& api,
                                                  const NcclTransportOptions& options,
                                                  bool peer_has_puts, PutMemoryMaker& maker) {
  if (options.put_bytes == 0) {
    return absl::FailedPreconditionError("they are switched off (--nccl-put-bytes=0)");
  }
  if (!nccl::HasPut(api)) {
    return absl::FailedPreconditionError(
        absl::StrCat("NCCL ", nccl::VersionText(api.version()), " has none, or cannot say so; ",
                     nccl::VersionText(nccl::kPutVersion), " is the first that does"));
  }
  if (!peer_has_puts) return absl::FailedPreconditionError("the peer has no pool for them");
  Made made;
  FERRY_ASSIGN_OR_RETURN(made.memory,
                         maker.Get([&] { return PutMemory::Create(gpu, options.put_bytes); }));
  FERRY_ASSIGN_OR_RETURN(made.stream, cuda::CudaStream::Create(gpu.device));
  return made;
}

TransferKey DevicePuts::WindowKey(DeviceId peer, const CommunicatorName& name) const {
  // The same on both; ids of two communicators of a pair differ.
  const uint64_t id =
      kWindowTransferBit | ((name.id * 31 + name.generation) & (kWindowTransferBit - 1));
  return {std::min(self_, peer), std::max(self_, peer), id};
}

absl::Status DevicePuts::WindowRefusal(DeviceId peer) const {
  if (!endpoint_.lost().ok()) return endpoint_.lost();
  const auto failures = failures_.find(peer);
  if (failures == failures_.end() || failures->second < kMaxWindowFailures) {
    return absl::OkStatus();
  }
  const auto why = refusals_.find(peer);
  return why != refusals_.end() ? why->second : absl::AbortedError("a window could not be set up");
}

void DevicePuts::AddWindow(const CommunicatorName& name, Made made) {
  memory_ = made.memory;
  auto window = std::make_shared<PutWindow>();
  window->memory = std::move(made.memory);
  window->stream = std::move(made.stream);
  windows_[name] = std::move(window);
}

void DevicePuts::OnWindow(DeviceId peer, const CommunicatorName& name, const absl::Status& status,
                          uint64_t peer_bytes, bool is_open) {
  if (absl::IsAborted(status)) ++failures_[peer];
  if (!status.ok()) {
    refusals_[peer] = status;
    return DropWindow(name);
  }
  const std::shared_ptr<PutWindow> window = FindWindow(name);
  if (window == nullptr) return;
  if (window->window == nullptr) {
    refusals_[peer] = absl::FailedPreconditionError(
        "NCCL does not support them for this communicator (hostRmaSupport), or symmetric memory");
    return;
  }
  if (is_open) endpoint_.OpenWindow(peer, name, peer_bytes, /*signals=*/1);
}

std::shared_ptr<PutWindow> DevicePuts::FindWindow(const CommunicatorName& name) const {
  const auto found = windows_.find(name);
  return found == windows_.end() ? nullptr : found->second;
}

absl::Status DevicePuts::Refusal(DeviceId peer) const {
  if (endpoint_.HasWindow(peer)) return absl::OkStatus();
  if (!endpoint_.lost().ok()) return endpoint_.lost();
  const auto why = refusals_.find(peer);
  return why != refusals_.end() ? why->second : absl::UnavailableError("no window is set up yet");
}

}  // namespace ferry
