// SPDX-License-Identifier: Apache-2.0
// Copies, raw sockets and raw NCCL, size by size.
#include "bench/sendrecv_floors.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "bench/floors.h"
#include "bench/raw_nccl.h"

namespace ferry::cli {
namespace {

using Json = nlohmann::ordered_json;

// From this size on a stream's baseline has fewer rounds.
constexpr size_t kLargeStreamBytes = size_t{1} << 20;

}  // namespace

// Two machines always use TCP, except for GPUs.
bool SendRecvFloors::GoesOverTcp() const {
  if (plan_.uses_gpus()) return false;
  if (plan_.has_tcp_floor) return true;
  std::set<std::string> machines;
  for (const LocalTopology& node : party_.node.topology().nodes()) {
    const bool takes_part = node.node_id == party_.nodes[0] || node.node_id == party_.nodes[1];
    if (takes_part) machines.insert(node.boot_id);
  }
  return machines.size() > 1;
}

absl::Status SendRecvFloors::MeasureMachine(Json& machine) {
  if (GoesOverTcp()) {
    absl::StatusOr<std::unique_ptr<RawTcp>> raw_tcp = RawTcp::Create(party_, plan_.tcp_streams);
    // A proxy between two machines may let only tensor connections through.
    if (!raw_tcp.ok() && !absl::IsUnavailable(raw_tcp.status())) return raw_tcp.status();
    if (raw_tcp.ok()) {
      raw_tcp_ = *std::move(raw_tcp);
    } else {
      machine["no_raw_tcp"] = raw_tcp.status().message();
    }
  }
  if (meeting_.is_on_one_machine()) {
    FERRY_ASSIGN_OR_RETURN(const absl::Duration spin, MeasureSpin(plan_.floor_file, is_first_));
    machine["spin_s"] = absl::ToDoubleSeconds(spin);
    FERRY_ASSIGN_OR_RETURN(const absl::Duration futex, MeasureFutex(plan_.floor_file, is_first_));
    machine["futex_s"] = absl::ToDoubleSeconds(futex);
  }
  return absl::OkStatus();
}

int SendRecvFloors::RoundsOf(size_t bytes) const {
  return std::clamp(plan_.IterationsOf(bytes), 3, 30);
}

int SendRecvFloors::BatchesOf(size_t bytes, int depth) const {
  const int rounds = RoundsOf(bytes);
  return bytes < kLargeStreamBytes ? rounds : std::max(rounds / depth, 3);
}

// Measured by the process that has a GPU, or else the first; the other waits.
absl::Status SendRecvFloors::MeasureGpus(size_t bytes, Json& floors) {
  floors["uses_gpus"] = true;
  const bool is_mixed = plan_.DeviceOf(0) == kHostDevice || plan_.DeviceOf(1) == kHostDevice;
  if (!device_.is_gpu() || (!is_mixed && !is_first_)) return absl::OkStatus();
  const bool is_between = !is_mixed && plan_.DeviceOf(0) != plan_.DeviceOf(1);
  // A copy within a machine is no baseline for the network.
  if (is_between && !meeting_.is_on_one_machine()) return absl::OkStatus();
  const absl::StatusOr<absl::Duration> copy =
      is_between ? device_.MeasurePeerCopy(bytes, RoundsOf(bytes), plan_.DeviceOf(1))
                 : device_.MeasureCopy(bytes, RoundsOf(bytes), is_mixed);
  if (is_between && absl::IsUnavailable(copy.status())) {
    floors["no_gpu_copy"] = copy.status().message();
    return absl::OkStatus();
  }
  FERRY_RETURN_IF_ERROR(copy.status());
  floors["gpu_copy"] = is_mixed ? "cuMemcpy, pinned" : is_between ? "cuMemcpyPeer" : "cuMemcpyDtoD";
  floors["gpu_copy_s"] = absl::ToDoubleSeconds(*copy);
  return absl::OkStatus();
}

absl::Status SendRecvFloors::MeasureNccl(size_t bytes,
                                         absl::FunctionRef<absl::StatusOr<bool>(bool own)> agree,
                                         Json& floors) {
  const std::unique_ptr<RawNccl> raw = RawNccl::Find(party_, plan_, device_);
  FERRY_ASSIGN_OR_RETURN(const bool is_there, agree(raw != nullptr));
  if (!is_there) return absl::OkStatus();
  FERRY_ASSIGN_OR_RETURN(const absl::Duration ping, raw->MeasurePingPong(bytes, RoundsOf(bytes)));
  floors["raw_nccl_s"] = absl::ToDoubleSeconds(ping);
  const int depth = plan_.DepthsOf(bytes).back();
  if (depth == 1) return absl::OkStatus();
  FERRY_ASSIGN_OR_RETURN(const absl::Duration stream,
                         raw->MeasureStream(bytes, depth, BatchesOf(bytes, depth)));
  floors["raw_nccl_stream_s"] = absl::ToDoubleSeconds(stream);
  return absl::OkStatus();
}

// Host copies are measured by the first process; the other waits.
absl::Status SendRecvFloors::Measure(size_t bytes, Json& floors) {
  const int rounds = RoundsOf(bytes);
  if (plan_.uses_gpus()) return MeasureGpus(bytes, floors);
  if (!is_first_ && raw_tcp_ == nullptr) return absl::OkStatus();
  FERRY_ASSIGN_OR_RETURN(Tensor from, device_.MakePattern(bytes, 1));
  if (is_first_) {
    FERRY_ASSIGN_OR_RETURN(Tensor to, device_.MakePattern(bytes, 2));
    floors["memcpy_s"] =
        absl::ToDoubleSeconds(MeasureMemcpy(to.mutable_data(), from.data(), bytes, rounds));
    floors["read_s"] = absl::ToDoubleSeconds(MeasureRead(from.data(), bytes, rounds));
  }
  if (raw_tcp_ == nullptr) return absl::OkStatus();
  // Takes the faster: polling occupies a core, which large buffers need for the kernel.
  FERRY_ASSIGN_OR_RETURN(const absl::Duration blocking,
                         raw_tcp_->MeasurePingPong(from.mutable_data(), bytes, rounds, false));
  absl::Duration polling = absl::InfiniteDuration();
  if (!plan_.is_sleeping) {
    FERRY_ASSIGN_OR_RETURN(polling,
                           raw_tcp_->MeasurePingPong(from.mutable_data(), bytes, rounds, true));
  }
  floors["raw_tcp_s"] = absl::ToDoubleSeconds(std::min(blocking, polling));
  const int depth = plan_.DepthsOf(bytes).back();
  if (depth == 1) return absl::OkStatus();
  FERRY_ASSIGN_OR_RETURN(
      const absl::Duration stream,
      raw_tcp_->MeasureStream(from.mutable_data(), bytes, depth, BatchesOf(bytes, depth)));
  floors["raw_tcp_stream_s"] = absl::ToDoubleSeconds(stream);
  return absl::OkStatus();
}

absl::Status SendRecvFloors::CleanUp() {
  return raw_tcp_ != nullptr && is_first_ ? raw_tcp_->CleanUp() : absl::OkStatus();
}

}  // namespace ferry::cli
