// SPDX-License-Identifier: Apache-2.0
// DevicePuts: the one-sided transfers of a GPU of this process.
#include "transport/nccl/device_puts.h"

#include <algorithm>
#include <utility>

namespace ferry {
namespace {

// A pair whose window could not be set up so often has no one-sided transfers.
constexpr int kMaxWindowFailures = 2;

}  // namespace

void DevicePuts::CollectBlocks(PutActions& actions) {
  if (memory_ == nullptr) return;
  for (const PutMemory::FreedBlock& each : memory_->TakeFreed()) {
    if (each.status.ok()) {
      endpoint_.ReturnBlock(each.offset);
    } else {
      endpoint_.RetireBlock(each.offset, each.status, actions);
    }
  }
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

std::shared_ptr<PutWindow> DevicePuts::AddWindow(const CommunicatorName& name,
                                                 std::shared_ptr<PutMemory> memory,
                                                 std::shared_ptr<cuda::CudaStream> stream) {
  memory_ = std::move(memory);
  auto window = std::make_shared<PutWindow>();
  window->memory = memory_;
  window->stream = std::move(stream);
  windows_[name] = window;
  return window;
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

std::optional<RunnableBatch> DevicePuts::MakePut(const IssuePut& put,
                                                 std::shared_ptr<NcclCommunicator> communicator,
                                                 const Tensor& source) const {
  std::shared_ptr<PutWindow> window = FindWindow(put.communicator);
  if (window == nullptr) return std::nullopt;
  RunnableBatch batch = PutBatch(std::move(communicator), std::move(window), source, put);
  batch.patience = options_.grants.abort_grace;
  return batch;
}

std::optional<RunnableBatch> DevicePuts::MakeWait(
    const IssueWait& wait, std::shared_ptr<NcclCommunicator> communicator) const {
  std::shared_ptr<PutWindow> window = FindWindow(wait.communicator);
  if (window == nullptr) return std::nullopt;
  RunnableBatch batch = WaitBatch(std::move(communicator), std::move(window), wait);
  batch.patience = options_.grants.abort_grace;
  return batch;
}

}  // namespace ferry
