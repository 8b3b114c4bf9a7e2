// SPDX-License-Identifier: Apache-2.0
// CudaIpcProbeResponder: answers a peer's probes, and keeps the events that they brought.
#ifndef FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_PROBE_RESPONDER_H_
#define FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_PROBE_RESPONDER_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "base/unique_fd.h"
#include "gpu/cuda/interprocess_events.h"
#include "gpu/gpus.h"
#include "transport/cuda_ipc/cuda_ipc_mappings.h"
#include "transport/cuda_ipc/cuda_ipc_messages.h"
#include "transport/transport.h"

namespace ferry {

// The receiver's part of a probe (CudaIpcProber has the sender's): opens the memory and the events
// that it names, copies the memory and compares it, and replies whether this pair of devices works.
// Thread-safe. Owned by the receiver, and by probes under way.
class CudaIpcProbeResponder final : public std::enable_shared_from_this<CudaIpcProbeResponder> {
 public:
  //   gpus: not null if OnProbe is called.
  CudaIpcProbeResponder(Gpus* gpus, std::shared_ptr<CudaIpcMappings> mappings)
      : gpus_(gpus), mappings_(std::move(mappings)) {}

  CudaIpcProbeResponder(const CudaIpcProbeResponder&) = delete;
  CudaIpcProbeResponder& operator=(const CudaIpcProbeResponder&) = delete;

  // Call before the first OnProbe.
  void SetControlChannel(ControlMessageSender channel) { control_channel_ = std::move(channel); }

  //   fd: of the probe's memory, if it has one.
  void OnProbe(CudaIpcProbe probe, UniqueFd fd) ABSL_LOCKS_EXCLUDED(mu_);
  // Replies that the probe cannot be answered for this reason, and may be repeated later.
  void Refuse(const CudaIpcProbe& probe, const absl::Status& why) { Reply(probe, why); }

  // The peer's events that transfer descriptors of the pair refer to.
  //   Errors: INVALID_ARGUMENT: no probe brought any; the status given to Abort.
  absl::StatusOr<std::shared_ptr<cuda::ImportedEvents>> EventsOf(const GpuPair& pair) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Why the pair's memory can be opened, but not its events. Empty: they can, or that is unknown.
  std::string WhyWithoutEvents(const GpuPair& pair) const ABSL_LOCKS_EXCLUDED(mu_);

  // The control channel has ended: drops the events.
  void Abort(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // On the side executor, which may wait for its device.
  void Answer(Gpu& gpu, const CudaIpcProbe& probe, const cuda::ImportedMemory& memory)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Reply(const CudaIpcProbe& probe, const absl::Status& status,
             std::string events_unavailable_reason = "");

  Gpus* const gpus_;
  const std::shared_ptr<CudaIpcMappings> mappings_;
  ControlMessageSender control_channel_;

  mutable absl::Mutex mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<GpuPair, std::shared_ptr<cuda::ImportedEvents>> events_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<GpuPair, std::string> without_events_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_PROBE_RESPONDER_H_
