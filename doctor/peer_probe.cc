// SPDX-License-Identifier: Apache-2.0
// One verified copy per ordered pair of GPUs.
#include "doctor/peer_probe.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "doctor/probe_pattern.h"
#include "gpu/cuda/cuda_device.h"

namespace ferry::doctor {
namespace {

// More than one PCIe TLP, or one page, can hold.
constexpr size_t kBytes = size_t{1} << 16;

struct End {
  std::shared_ptr<cuda::CudaDevice> device;
  std::unique_ptr<cuda::CudaStream> stream;
  cuda::DevicePointer memory = 0;

  End() = default;
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  ~End() {
    if (memory == 0) return;
    const cuda::ScopedCurrent current(*device);
    device->table().memory_free(memory);
  }
};

absl::StatusOr<std::unique_ptr<End>> OpenEnd(const std::shared_ptr<const cuda::CudaApi>& api,
                                             int ordinal) {
  auto end = std::make_unique<End>();
  FERRY_ASSIGN_OR_RETURN(end->device, cuda::CudaDevice::Open(api, ordinal));
  FERRY_ASSIGN_OR_RETURN(end->stream, cuda::CudaStream::Create(end->device));
  const cuda::ScopedCurrent current(*end->device);
  FERRY_RETURN_IF_ERROR(
      end->device->Check(end->device->table().memory_alloc(&end->memory, kBytes), "cuMemAlloc"));
  return end;
}

// Copies `bytes` into the endpoint's memory, or out of it, and waits.
absl::Status Write(const End& end, const std::vector<unsigned char>& bytes) {
  const cuda::ScopedCurrent current(*end.device);
  const cuda::CudaTable& table = end.device->table();
  FERRY_RETURN_IF_ERROR(end.device->Check(
      table.copy_to_device_async(end.memory, bytes.data(), bytes.size(), end.stream->get()),
      "cuMemcpyHtoDAsync"));
  return end.device->Check(table.stream_synchronize(end.stream->get()), "cuStreamSynchronize");
}

absl::Status Read(const End& end, std::vector<unsigned char>& bytes) {
  const cuda::ScopedCurrent current(*end.device);
  const cuda::CudaTable& table = end.device->table();
  FERRY_RETURN_IF_ERROR(end.device->Check(
      table.copy_to_host_async(bytes.data(), end.memory, bytes.size(), end.stream->get()),
      "cuMemcpyDtoHAsync"));
  return end.device->Check(table.stream_synchronize(end.stream->get()), "cuStreamSynchronize");
}

// `from` reads the memory of `to` with its own copy engine.
absl::Status Copy(const End& from, const End& to, uint64_t seed) {
  const std::vector<unsigned char> pattern = ProbePattern(kBytes, seed);
  FERRY_RETURN_IF_ERROR(Write(to, pattern));
  FERRY_RETURN_IF_ERROR(Write(from, std::vector<unsigned char>(kBytes, 0)));
  FERRY_RETURN_IF_ERROR(cuda::EnablePeerAccess(*from.device, *to.device));
  {
    const cuda::ScopedCurrent current(*from.device);
    FERRY_RETURN_IF_ERROR(from.device->Check(
        from.device->table().copy_async(from.memory, to.memory, kBytes, from.stream->get()),
        "cuMemcpyAsync"));
  }
  std::vector<unsigned char> arrived(kBytes);
  FERRY_RETURN_IF_ERROR(Read(from, arrived));
  const size_t wrong = CountDifferences(arrived, pattern);
  if (wrong == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(wrong, " of ", kBytes, " bytes arrived wrong"));
}

}  // namespace

absl::StatusOr<std::vector<PeerOutcome>> ProbePeers(
    const std::shared_ptr<const cuda::CudaApi>& api,
    const std::function<void(absl::string_view phase)>& on_phase) {
  on_phase("asking the driver which GPUs reach each other");
  FERRY_ASSIGN_OR_RETURN(const cuda::PeerMatrix peers, cuda::PeerMatrix::Query(*api));
  const int count = peers.device_count();
  std::vector<PeerOutcome> outcomes;
  if (count < 2) return outcomes;
  std::vector<absl::StatusOr<std::unique_ptr<End>>> ends;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    on_phase(absl::StrCat("opening gpu:", ordinal));
    ends.push_back(OpenEnd(api, ordinal));
  }
  for (int from = 0; from < count; ++from) {
    for (int to = 0; to < count; ++to) {
      if (from == to) continue;
      PeerOutcome outcome = {from, to, peers.CanAccess(from, to), absl::OkStatus()};
      const auto& reader = ends[static_cast<size_t>(from)];
      const auto& owner = ends[static_cast<size_t>(to)];
      outcome.opened = !reader.ok() ? reader.status() : owner.status();
      if (outcome.can_access && outcome.opened.ok()) {
        on_phase(absl::StrCat("a copy by gpu:", from, " out of the memory of gpu:", to));
        // A distinct seed for each process and pair.
        const uint64_t seed =
            (static_cast<uint64_t>(getpid()) << 32) + static_cast<uint64_t>(from * count + to + 1);
        outcome.copied = Copy(**reader, **owner, seed);
      }
      outcomes.push_back(std::move(outcome));
    }
  }
  return outcomes;
}

}  // namespace ferry::doctor
