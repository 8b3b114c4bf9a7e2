// SPDX-License-Identifier: Apache-2.0
// Groups of sends and receives, round by round.
#include "bench/raw_nccl.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "bench/times.h"
#include "cli/pattern.h"
#include "gpu/cuda/cuda_event.h"

namespace ferry::cli {
namespace {

// NCCL plans a group as a whole; its own limit is much larger.
constexpr size_t kMostInGroup = 64;
// The second rank's answer to a stream; a multiple of every element size.
constexpr size_t kAnswerBytes = 64;
// The clock and NCCL are polled less often than the device.
constexpr int kLooksBetweenQuestions = 256;
constexpr absl::Duration kTurnLook = absl::Microseconds(50);

std::optional<DeviceId> GpuOf(const GlobalTopology& topology, int node_id, int ordinal) {
  const std::optional<int> node = topology.NodeIndex(node_id);
  if (!node) return std::nullopt;
  const std::vector<Device>& devices = topology.nodes()[static_cast<size_t>(*node)].devices;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].kind == DeviceKind::kGpu && devices[i].ordinal == ordinal) {
      return DeviceId(topology.GlobalId(*node, static_cast<int>(i)));
    }
  }
  return std::nullopt;
}

// Pattern seed of a rank's tensors.
uint64_t RawSeed(int rank, size_t bytes, int index) {
  return PatternSeed(absl::StrCat("raw nccl ", rank), bytes, static_cast<uint64_t>(index));
}

}  // namespace

std::unique_ptr<RawNccl> RawNccl::Find(const BenchParticipants& party, const BenchPlan& plan,
                                       BenchDevice& device) {
  const int other = 1 - party.rank;
  if (!device.is_gpu() || plan.DeviceOf(other) == kHostDevice) return nullptr;
  const std::optional<DeviceId> peer = GpuOf(party.node.topology(), party.NodeOf(other),
                                             LocationOfDevice(plan.DeviceOf(other)).ordinal);
  if (!peer) return nullptr;
  for (const auto& transport : party.node.transfer_engine().transports()) {
    const auto* const nccl = dynamic_cast<const NcclTransport*>(transport.get());
    if (nccl == nullptr) continue;
    auto communicator = nccl->CommunicatorWith(device.location().ordinal, *peer);
    if (communicator == nullptr || communicator->size() != 2) return nullptr;
    return std::unique_ptr<RawNccl>(new RawNccl(party, device, std::move(communicator)));
  }
  return nullptr;
}

absl::Status RawNccl::Await(absl::FunctionRef<absl::StatusOr<bool>()> is_over) const {
  const absl::Time deadline = SteadyClock().Now() + party_.timeout;
  for (int looks = 1;; ++looks) {
    FERRY_ASSIGN_OR_RETURN(const bool is_done, is_over());
    if (is_done) return absl::OkStatus();
    if (looks % kLooksBetweenQuestions != 0) continue;
    if (party_.stop != nullptr && party_.stop->is_cancelled()) return party_.stop->status();
    if (SteadyClock().Now() < deadline) continue;
    return absl::DeadlineExceededError(
        absl::StrCat("waited ", absl::FormatDuration(party_.timeout),
                     " for raw sends and receives by NCCL between nodes ", party_.NodeOf(0),
                     " and ", party_.NodeOf(1), ": look what the other one does"));
  }
}

absl::Status RawNccl::RunRound(const std::vector<Group>& groups, const nccl::NcclTable& nccl,
                               nccl::Communicator comm, cuda::Stream stream) const {
  const nccl::NcclApi& api = communicator_->api();
  const cuda::CudaDevice& gpu = *device_.gpu()->device;
  const int peer = 1 - communicator_->rank();
  // Returns the communicator's state; false if NCCL has not finished enqueuing.
  const auto is_enqueued = [&]() -> absl::StatusOr<bool> {
    nccl::Result state = nccl::kSuccess;
    FERRY_RETURN_IF_ERROR(
        api.Check(nccl.get_async_error(comm, &state), "ncclCommGetAsyncError", comm));
    FERRY_RETURN_IF_ERROR(api.Check(state, "raw sends and receives", comm));
    return state != nccl::kInProgress;
  };
  for (const Group& group : groups) {
    FERRY_RETURN_IF_ERROR(api.Check(nccl.group_start(), "ncclGroupStart"));
    absl::Status status;
    for (const Operation& each : group) {
      void* const data = const_cast<void*>(each.tensor.data());
      const size_t bytes = each.tensor.bytes();
      status.Update(each.is_send
                        ? api.Check(nccl.send(data, bytes, nccl::kUint8, peer, comm, stream),
                                    "ncclSend", comm)
                        : api.Check(nccl.recv(data, bytes, nccl::kUint8, peer, comm, stream),
                                    "ncclRecv", comm));
    }
    status.Update(api.Check(nccl.group_end(), "ncclGroupEnd", comm));
    FERRY_RETURN_IF_ERROR(status);
    FERRY_RETURN_IF_ERROR(Await(is_enqueued));
  }
  int looks = 0;
  return Await([&]() -> absl::StatusOr<bool> {
    const cuda::Result result = gpu.table().stream_query(stream);
    if (result != cuda::kErrorNotReady) {
      FERRY_RETURN_IF_ERROR(gpu.Check(result, "cuStreamQuery"));
      return true;
    }
    // If the peer has gone, NCCL reports it, but the device does not.
    if (++looks % kLooksBetweenQuestions == 0) FERRY_RETURN_IF_ERROR(is_enqueued().status());
    return false;
  });
}

absl::StatusOr<std::vector<absl::Duration>> RawNccl::Measure(const std::vector<Group>& groups,
                                                             int rounds) {
  Gpu& gpu = *device_.gpu();
  FERRY_ASSIGN_OR_RETURN(const auto stream, cuda::CudaStream::Create(gpu.device));
  std::vector<absl::Duration> times;
  absl::Status status;
  const absl::Status ran = communicator_->Run(
      stream->get(),
      [&](const nccl::NcclTable& nccl, nccl::Communicator comm) {
        const cuda::ScopedCurrent current(*gpu.device);
        // The first round warms up.
        for (int round = 0; status.ok() && round <= rounds; ++round) {
          const absl::Time start = SteadyClock().Now();
          status = RunRound(groups, nccl, comm, stream->get());
          if (round > 0) times.push_back(SteadyClock().Now() - start);
        }
        return nccl::kSuccess;
      },
      party_.timeout);
  status.Update(ran);
  if (status.ok()) status = AwaitEndOfTurn();
  if (status.ok()) return times;
  // Failed operations may still write to the memory.
  const auto over = cuda::ReadyEvent::Record(*gpu.events, stream->get());
  if (over.ok()) {
    gpu.nccl
        ->Watch({.event = *over,
                 .what = "raw sends and receives by NCCL",
                 .keep = std::make_shared<std::vector<Group>>(groups)},
                [](absl::Status) {})
        .IgnoreError();
  }
  return status;
}

absl::Status RawNccl::AwaitEndOfTurn() const {
  const auto turns = party_.node.transfer_engine().gpus()->nccl_arbiter(device_.location().ordinal);
  FERRY_RETURN_IF_ERROR(Await([&]() -> absl::StatusOr<bool> {
    if (!turns->is_wanted()) return true;
    absl::SleepFor(kTurnLook);
    return false;
  }));
  // The device's thread ends the turn and notifies keyed transfers; an empty task waits for it.
  return device_.gpu()->nccl->PostAndWait([] { return absl::OkStatus(); }, party_.timeout,
                                          "the end of a turn");
}

absl::Status RawNccl::Verify(const Tensor& tensor, size_t bytes, int index) {
  const int other = 1 - party_.rank;
  FERRY_ASSIGN_OR_RETURN(const size_t errors,
                         device_.CountErrors(tensor, bytes, RawSeed(other, bytes, index)));
  if (errors == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(errors, " of ", bytes,
                                          " bytes received by ncclRecv differ from those of node ",
                                          party_.NodeOf(other)));
}

absl::StatusOr<absl::Duration> RawNccl::MeasurePingPong(size_t bytes, int rounds) {
  FERRY_ASSIGN_OR_RETURN(const Tensor out,
                         device_.MakePattern(bytes, RawSeed(party_.rank, bytes, 0)));
  FERRY_ASSIGN_OR_RETURN(const Tensor in, device_.MakePattern(bytes, 0));
  const Group send = {{true, out}};
  const Group recv = {{false, in}};
  FERRY_ASSIGN_OR_RETURN(
      std::vector<absl::Duration> times,
      Measure(party_.is_first() ? std::vector{send, recv} : std::vector{recv, send}, rounds));
  FERRY_RETURN_IF_ERROR(Verify(in, bytes, 0));
  return SummarizeTimes(std::move(times)).p50 / 2;
}

absl::StatusOr<absl::Duration> RawNccl::MeasureStream(size_t bytes, int count, int rounds) {
  const auto many = static_cast<size_t>(count);
  const bool is_sender = party_.is_first();
  std::vector<Group> groups;
  for (size_t i = 0; i < many; ++i) {
    FERRY_ASSIGN_OR_RETURN(Tensor tensor, device_.Make(bytes));
    if (i % kMostInGroup == 0) groups.emplace_back();
    groups.back().push_back({is_sender, std::move(tensor)});
  }
  FERRY_ASSIGN_OR_RETURN(Tensor answer, device_.Make(kAnswerBytes));
  groups.push_back({{!is_sender, std::move(answer)}});
  FERRY_ASSIGN_OR_RETURN(std::vector<absl::Duration> times, Measure(groups, rounds));
  return SummarizeTimes(std::move(times)).p50 / count;
}

absl::StatusOr<absl::Duration> RawNccl::MeasureExchange(size_t bytes, int count, int rounds) {
  std::vector<Group> groups(1);
  std::vector<Tensor> received;
  for (int i = 0; i < count; ++i) {
    FERRY_ASSIGN_OR_RETURN(Tensor out, device_.MakePattern(bytes, RawSeed(party_.rank, bytes, i)));
    FERRY_ASSIGN_OR_RETURN(Tensor in, device_.MakePattern(bytes, 0));
    received.push_back(in);
    if (groups.back().size() >= kMostInGroup) groups.emplace_back();
    groups.back().push_back({true, std::move(out)});
    groups.back().push_back({false, std::move(in)});
  }
  FERRY_ASSIGN_OR_RETURN(std::vector<absl::Duration> times, Measure(groups, rounds));
  for (int i = 0; i < count; ++i) {
    FERRY_RETURN_IF_ERROR(Verify(received[static_cast<size_t>(i)], bytes, i));
  }
  return SummarizeTimes(std::move(times)).p50;
}

}  // namespace ferry::cli
