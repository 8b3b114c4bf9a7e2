// SPDX-License-Identifier: Apache-2.0
// CommunicatorWarmUp: one NCCL group per set of peers, once it is the device's turn.
#include "gpu/communicator/communicator_warm_up.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "gpu/cuda/stream_retention.h"

namespace ferry {
namespace {

// Number of rank distances per group, with four operations each. NCCL may split a large group
// differently on different ranks.
constexpr int kDistancesPerGroup = 8;
// For how long the kernels of an aborted communicator may stay before that is reported.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(30);

}  // namespace

CommunicatorWarmUp::CommunicatorWarmUp(std::shared_ptr<const nccl::NcclApi> api, Gpus& gpus,
                                       Gpu& gpu, OnDevice on_device, int rank, int size)
    : api_(std::move(api)),
      gpus_(gpus),
      gpu_(gpu),
      on_device_(std::move(on_device)),
      rank_(rank),
      size_(size),
      arbiter_(gpus.nccl_arbiter(gpu.device->ordinal())) {}

absl::StatusOr<std::unique_ptr<CommunicatorWarmUp>> CommunicatorWarmUp::Create(
    std::shared_ptr<const nccl::NcclApi> api, Gpus& gpus, Gpu& gpu, OnDevice on_device, int rank,
    int size) {
  std::unique_ptr<CommunicatorWarmUp> made(
      new CommunicatorWarmUp(std::move(api), gpus, gpu, std::move(on_device), rank, size));
  FERRY_ASSIGN_OR_RETURN(made->bytes_, gpu.arena->Allocate(static_cast<size_t>(2 * size)));
  FERRY_ASSIGN_OR_RETURN(made->stream_, cuda::CudaStream::Create(gpu.device));
  // Reserve also what keyed transfers staged through the host need during this turn.
  gpu.stager->Reserve().IgnoreError();
  return made;
}

uint64_t CommunicatorWarmUp::ProposeSequenceNumber(const CommunicatorKey& key,
                                                   uint32_t generation) {
  place_ = arbiter_->warm_up_sequencer()->Join(
      key.GenerationPrefix(generation), absl::StrCat(key.Describe(), ", generation ", generation));
  return place_->number();
}

void CommunicatorWarmUp::Begin(nccl::Communicator comm, uint64_t number) {
  comm_ = comm;
  place_->Agree(number);
  next_distance_ = 1;
  phase_ = Phase::kQueued;
}

void CommunicatorWarmUp::End() {
  if (std::exchange(is_in_flight_, false)) {
    // The abort may have returned before its kernels have left.
    cuda::RetainUntilPassed(*gpu_.nccl, *gpu_.events, stream_->get(),
                            {.user = "the warm-up of an aborted NCCL communicator",
                             .bytes = bytes_->bytes(),
                             .memory = bytes_},
                            SteadyClock().Now() + kLeaveTimeout,
                            [gate = gpus_.gate()](cuda::StreamEnd end) {
                              if (end != cuda::StreamEnd::kLate) gate->EndWork();
                            });
  }
  if (std::exchange(has_asked_, false)) arbiter_->End();
  place_ = nullptr;
  over_ = nullptr;
  phase_ = Phase::kIdle;
}

std::string CommunicatorWarmUp::Describe() const {
  switch (phase_) {
    case Phase::kQueued:
      return absl::StrCat("the warm-up, whose turn comes after ", place_->DescribeFirst());
    case Phase::kAwaitingTurn:
      return "keyed transfers by NCCL on this GPU to end, which the warm-up must "
             "not run beside";
    default:
      return "the warm-up";
  }
}

std::optional<absl::Status> CommunicatorWarmUp::Poll() {
  const absl::StatusOr<bool> is_over = Advance();
  if (!is_over.ok()) return is_over.status();
  if (!*is_over) return std::nullopt;
  is_in_flight_ = false;
  gpus_.gate()->EndWork();
  End();
  return absl::OkStatus();
}

absl::StatusOr<bool> CommunicatorWarmUp::Advance() {
  if (phase_ == Phase::kQueued) {
    if (!place_->is_first()) return false;
    // The order of this device's keyed transfers may conflict with the warm-up.
    arbiter_->Request();
    has_asked_ = true;
    phase_ = Phase::kAwaitingTurn;
  }
  if (phase_ == Phase::kAwaitingTurn) {
    if (!arbiter_->has_turn()) return false;
    gpus_.gate()->BeginWork();
    is_in_flight_ = true;
    phase_ = Phase::kEnqueueing;
    FERRY_RETURN_IF_ERROR(EnqueueNext());
    return false;
  }
  bool is_over = false;
  FERRY_RETURN_IF_ERROR(on_device_([&]() -> absl::Status {
    if (phase_ == Phase::kFinishing) {
      FERRY_ASSIGN_OR_RETURN(is_over, over_->IsDone());
      // Operations that wait for a lost rank may complete like successful ones: ask NCCL.
      if (!is_over) return absl::OkStatus();
    }
    nccl::Result state = nccl::kSuccess;
    FERRY_RETURN_IF_ERROR(
        api_->Check(api_->table().get_async_error(comm_, &state), "ncclCommGetAsyncError", comm_));
    is_over = state != nccl::kInProgress;
    return api_->Check(state, "the warm-up", comm_);
  }));
  if (!is_over) return false;
  if (phase_ == Phase::kFinishing) return true;
  if (next_distance_ <= size_ / 2) {
    FERRY_RETURN_IF_ERROR(EnqueueNext());
    return false;
  }
  phase_ = Phase::kFinishing;
  FERRY_RETURN_IF_ERROR(on_device_([&]() -> absl::Status {
    FERRY_ASSIGN_OR_RETURN(over_, cuda::ReadyEvent::Record(*gpu_.events, stream_->get()));
    return absl::OkStatus();
  }));
  return false;
}

absl::Status CommunicatorWarmUp::EnqueueNext() {
  const int first = next_distance_;
  const int last = std::min(first + kDistancesPerGroup - 1, size_ / 2);
  next_distance_ = last + 1;
  return on_device_([&, first, last] { return Enqueue(first, last); });
}

// Exchanges with the peers at these distances (at most size / 2) in both directions at once, since
// the connection setup of a pair travels in one message for both directions. The distances ensure
// that both sides have the pair in the same group.
absl::Status CommunicatorWarmUp::Enqueue(int first_distance, int last_distance) {
  const nccl::NcclTable& table = api_->table();
  char* const bytes = static_cast<char*>(bytes_->data());
  FERRY_RETURN_IF_ERROR(api_->Check(table.group_start(), "ncclGroupStart"));
  absl::Status status;
  for (int distance = first_distance; distance <= last_distance && status.ok(); ++distance) {
    std::vector<int> peers = {(rank_ + distance) % size_};
    if (2 * distance != size_) peers.push_back((rank_ - distance + size_) % size_);
    for (const int peer : peers) {
      if (status.ok()) {
        status = api_->Check(table.send(bytes + peer, 1, nccl::kUint8, peer, comm_, stream_->get()),
                             "ncclSend", comm_);
      }
      if (status.ok()) {
        status = api_->Check(
            table.recv(bytes + size_ + peer, 1, nccl::kUint8, peer, comm_, stream_->get()),
            "ncclRecv", comm_);
      }
    }
  }
  const absl::Status ended = api_->Check(table.group_end(), "ncclGroupEnd", comm_);
  return status.ok() ? ended : status;
}

}  // namespace ferry
