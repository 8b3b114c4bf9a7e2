// SPDX-License-Identifier: Apache-2.0
// The steps export, open, wait, copy, compare and close, with one message for each.
#include "doctor/ipc_probe.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "doctor/probe_pattern.h"
#include "gpu/cuda/device_buffer.h"
#include "gpu/cuda/gpu_arena.h"
#include "gpu/cuda/interprocess_events.h"
#include "gpu/cuda/ipc_export.h"
#include "gpu/cuda/ipc_mapping.h"
#include "transport/control/descriptors.h"

namespace ferry::doctor {
namespace {

using cuda::ExportBy;

// Small enough for any GPU, and a segment of its own.
constexpr size_t kBytes = size_t{1} << 20;
// Writes to the memory before the pattern is written.
constexpr int kWritesBefore = 64;
constexpr ExportBy kWays[] = {ExportBy::kPosixFd, ExportBy::kLegacyHandle};
constexpr size_t kMaxReason = 512;

// The exporter's message for one export method. Sent as raw memory: both sides are the same
// program.
struct Offer {
  // Why there is nothing to open; empty: there is.
  char reason[kMaxReason];
  uint64_t seed;
  cuda::IpcEventHandle event;
  cuda::EventTicket ticket;
  char descriptor[cuda::kIpcDescriptorBytes];
};

constexpr char kWantsDescriptor = 'd';
constexpr char kDone = 'k';

const char* WayName(ExportBy way) {
  return way == ExportBy::kPosixFd ? "by descriptor" : "by handle";
}

// Blocks until there is data to read or the peer has closed the socket.
absl::Status WaitReadable(const UniqueFd& socket, absl::Time deadline) {
  while (true) {
    const absl::Duration left = deadline - SteadyClock().Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError("the other process of the probe does not answer");
    }
    pollfd polled = {socket.get(), POLLIN, 0};
    const int milliseconds =
        static_cast<int>(absl::ToInt64Milliseconds(std::min(left, absl::Minutes(1)))) + 1;
    if (poll(&polled, 1, milliseconds) > 0) return absl::OkStatus();
  }
}

// Receives one packet of exactly `bytes`.
absl::Status ReceivePacket(const UniqueFd& socket, void* to, size_t bytes, absl::Time deadline) {
  FERRY_RETURN_IF_ERROR(WaitReadable(socket, deadline));
  const ssize_t got = recv(socket.get(), to, bytes, MSG_DONTWAIT);
  if (got == static_cast<ssize_t>(bytes)) return absl::OkStatus();
  if (got == 0) return absl::UnavailableError("the other process of the probe has ended");
  return absl::UnavailableError(absl::StrCat(
      "recv(): ", got < 0 ? std::strerror(errno) : "a packet of another size than expected"));
}

absl::Status SendPacket(const UniqueFd& socket, const void* from, size_t bytes) {
  const ssize_t sent = send(socket.get(), from, bytes, MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(bytes)) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("the other process of the probe has ended: ", std::strerror(errno)));
}

// The exporter's memory, and the objects that own it.
class ProbeMemory final {
 public:
  explicit ProbeMemory(const cuda::CudaDevice& device) : device_(device) {}
  ~ProbeMemory() {
    if (plain_ == 0) return;
    const cuda::ScopedCurrent current(device_);
    device_.table().memory_free(plain_);
  }
  ProbeMemory(const ProbeMemory&) = delete;
  ProbeMemory& operator=(const ProbeMemory&) = delete;

  // Allocates memory that can be opened by `way`.
  absl::Status Make(const std::shared_ptr<cuda::CudaDevice>& device, ExportBy way);
  // Allocates by cuMemAlloc memory that is not exported. REQUIRES: the device is current.
  absl::Status MakePlain() {
    return device_.Check(device_.table().memory_alloc(&plain_, kBytes), "cuMemAlloc");
  }

  cuda::DevicePointer pointer() const { return buffer_ == nullptr ? plain_ : buffer_->pointer(); }
  const cuda::IpcDescriptor& descriptor() const { return descriptor_; }
  const UniqueFd& fd() const { return fd_; }

 private:
  const cuda::CudaDevice& device_;
  std::shared_ptr<cuda::GpuArena> arena_;
  std::shared_ptr<cuda::DeviceBuffer> buffer_;
  cuda::DevicePointer plain_ = 0;
  cuda::IpcDescriptor descriptor_;
  UniqueFd fd_;
};

absl::Status ProbeMemory::Make(const std::shared_ptr<cuda::CudaDevice>& device, ExportBy way) {
  const cuda::ScopedCurrent current(*device);
  if (way == ExportBy::kPosixFd) {
    FERRY_ASSIGN_OR_RETURN(
        arena_, cuda::GpuArena::Create(device, /*gate=*/nullptr, cuda::GpuArenaOptions()));
    if (arena_->export_by() != way) {
      return absl::FailedPreconditionError(arena_->fallback_reason());
    }
    FERRY_ASSIGN_OR_RETURN(buffer_, arena_->Allocate(kBytes));
    descriptor_ = arena_->Describe(*buffer_);
    FERRY_ASSIGN_OR_RETURN(fd_, arena_->ExportSegment(*buffer_));
    return absl::OkStatus();
  }
  FERRY_RETURN_IF_ERROR(device->api().Has(cuda::CudaGroup::kIpc));
  FERRY_RETURN_IF_ERROR(MakePlain());
  FERRY_ASSIGN_OR_RETURN(std::vector<cuda::ExportedPiece> pieces,
                         cuda::ExportMemory(*device, cuda::AsHostPointer(plain_), kBytes));
  if (pieces.size() != 1) return absl::InternalError("one allocation is in several pieces");
  descriptor_ = pieces.front().descriptor;
  return absl::OkStatus();
}

// Kept alive from the offer until the importer has finished with it.
struct Exported {
  explicit Exported(const cuda::CudaDevice& device) : source(device), memory(device) {}
  // The device memory from which the pattern is copied, so that enqueueing the copy does not block.
  ProbeMemory source;
  ProbeMemory memory;
  std::unique_ptr<cuda::InterprocessEventPool> events;
  std::unique_ptr<cuda::CudaStream> stream;
};

// The pattern is the last of many writes: a reader that does not wait for the event reads something
// else.
absl::Status EnqueuePattern(const cuda::CudaDevice& device, uint64_t seed, Exported& exported) {
  const cuda::CudaTable& table = device.table();
  const cuda::Stream stream = exported.stream->get();
  FERRY_RETURN_IF_ERROR(exported.source.MakePlain());
  const std::vector<unsigned char> pattern = ProbePattern(kBytes, seed);
  FERRY_RETURN_IF_ERROR(device.Check(
      table.copy_to_device_async(exported.source.pointer(), pattern.data(), kBytes, stream),
      "cuMemcpyHtoDAsync"));
  FERRY_RETURN_IF_ERROR(device.Check(table.stream_synchronize(stream), "cuStreamSynchronize"));
  for (int i = 0; i < kWritesBefore; ++i) {
    FERRY_RETURN_IF_ERROR(device.Check(
        table.set_bytes_async(exported.memory.pointer(), 0, kBytes, stream), "cuMemsetD8Async"));
  }
  return device.Check(
      table.copy_async(exported.memory.pointer(), exported.source.pointer(), kBytes, stream),
      "cuMemcpyAsync");
}

absl::Status Prepare(const IpcProbeOptions& options, ExportBy way, Exported& exported,
                     Offer& offer) {
  const std::shared_ptr<cuda::CudaDevice>& device = options.device;
  const auto phase = [&](const char* what) {
    options.on_phase(absl::StrCat(what, " ", device->name(), " ", WayName(way)));
  };
  phase("exporting memory of");
  FERRY_RETURN_IF_ERROR(exported.memory.Make(device, way));
  FERRY_ASSIGN_OR_RETURN(exported.events, cuda::InterprocessEventPool::Create(device, 1));
  FERRY_ASSIGN_OR_RETURN(exported.stream, cuda::CudaStream::Create(device));
  if (getrandom(&offer.seed, sizeof(offer.seed), 0) != sizeof(offer.seed)) {
    return absl::InternalError("getrandom gave nothing");
  }
  phase("writing to memory of");
  const cuda::ScopedCurrent current(*device);
  FERRY_RETURN_IF_ERROR(EnqueuePattern(*device, offer.seed, exported));
  FERRY_ASSIGN_OR_RETURN(offer.ticket, exported.events->Record(exported.stream->get()));
  offer.event = exported.events->handles().front();
  const std::string text = cuda::EncodeIpcDescriptor(exported.memory.descriptor());
  std::memcpy(offer.descriptor, text.data(), sizeof(offer.descriptor));
  return absl::OkStatus();
}

// Opens the memory of `offer`, and compares its contents with the pattern.
absl::Status OpenAndCompare(const IpcProbeOptions& options, ExportBy way, const Offer& offer,
                            UniqueFd fd) {
  const std::shared_ptr<cuda::CudaDevice>& device = options.device;
  const auto phase = [&](const char* what) {
    options.on_phase(absl::StrCat(what, " ", device->name(), " ", WayName(way)));
  };
  const cuda::ScopedCurrent current(*device);
  const cuda::CudaTable& table = device->table();
  FERRY_ASSIGN_OR_RETURN(const cuda::IpcDescriptor descriptor,
                         cuda::DecodeIpcDescriptor({offer.descriptor, sizeof(offer.descriptor)}));
  phase("opening the other process's memory of");
  FERRY_ASSIGN_OR_RETURN(const auto mapping,
                         cuda::IpcMapping::Open(device, descriptor, std::move(fd)));
  phase("opening the other process's event of");
  FERRY_ASSIGN_OR_RETURN(const auto events,
                         cuda::ImportedEvents::Open(device, absl::MakeSpan(&offer.event, 1)));
  FERRY_ASSIGN_OR_RETURN(const auto stream, cuda::CudaStream::Create(device));
  cuda::DevicePointer own = 0;
  FERRY_RETURN_IF_ERROR(device->Check(table.memory_alloc(&own, kBytes), "cuMemAlloc"));
  std::vector<unsigned char> arrived(kBytes);
  phase("waiting for the other process's event, and copying its memory of");
  const auto copy = [&]() -> absl::Status {
    FERRY_RETURN_IF_ERROR(events->EnqueueWait(offer.ticket, stream->get()));
    FERRY_RETURN_IF_ERROR(device->Check(
        table.copy_async(own, mapping->base() + descriptor.offset, kBytes, stream->get()),
        "cuMemcpyAsync"));
    FERRY_RETURN_IF_ERROR(device->Check(
        table.copy_to_host_async(arrived.data(), own, kBytes, stream->get()), "cuMemcpyDtoHAsync"));
    return absl::OkStatus();
  };
  absl::Status copied = copy();
  // In every case the copy must end before the memory below is released.
  copied.Update(device->Check(table.stream_synchronize(stream->get()), "cuStreamSynchronize"));
  table.memory_free(own);
  FERRY_RETURN_IF_ERROR(copied);
  const size_t wrong = CountDifferences(arrived, ProbePattern(kBytes, offer.seed));
  if (wrong == 0) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("it opened, but ", wrong, " of ", kBytes, " bytes are wrong"));
}

absl::StatusOr<UniqueFd> AskForDescriptor(const UniqueFd& socket, absl::Time deadline) {
  FERRY_RETURN_IF_ERROR(SendPacket(socket, &kWantsDescriptor, 1));
  FERRY_RETURN_IF_ERROR(WaitReadable(socket, deadline));
  std::deque<UniqueFd> arrived;
  FERRY_RETURN_IF_ERROR(ReceiveDescriptors(socket.get(), arrived).status());
  for (const UniqueFd& each : arrived) FERRY_RETURN_IF_ERROR(CheckDescriptor(each));
  if (arrived.size() == 1) return std::move(arrived.front());
  return absl::UnavailableError(
      absl::StrCat(arrived.size(), " descriptors came over the Unix socket instead of one"));
}

// Serves the importer until it has finished with the offer.
absl::Status ServeOne(const IpcProbeOptions& options, const UniqueFd& socket,
                      const Exported& exported) {
  char answer = 0;
  while (answer != kDone) {
    FERRY_RETURN_IF_ERROR(ReceivePacket(socket, &answer, 1, options.deadline));
    if (answer != kWantsDescriptor) continue;
    FERRY_RETURN_IF_ERROR(SendDescriptors(socket.get(), {exported.memory.fd().get()}));
  }
  const cuda::ScopedCurrent current(*options.device);
  return options.device->Check(options.device->table().stream_synchronize(exported.stream->get()),
                               "cuStreamSynchronize");
}

}  // namespace

absl::Status ExportForProbe(const IpcProbeOptions& options, const UniqueFd& socket) {
  for (const ExportBy way : kWays) {
    auto exported = std::make_unique<Exported>(*options.device);
    Offer offer = {};
    const absl::Status prepared = Prepare(options, way, *exported, offer);
    if (!prepared.ok()) {
      const std::string reason(prepared.message().substr(0, kMaxReason - 1));
      std::memcpy(offer.reason, reason.data(), reason.size());
    }
    FERRY_RETURN_IF_ERROR(SendPacket(socket, &offer, sizeof(offer)));
    if (!prepared.ok()) continue;
    options.on_phase("waiting for the other process");
    const absl::Status served = ServeOne(options, socket, *exported);
    if (!served.ok()) {
      // The other process may still have it open. Leaked until this process exits.
      (void)exported.release();
      return served;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<IpcProbeReport> ImportForProbe(const IpcProbeOptions& options,
                                              const UniqueFd& socket) {
  IpcProbeReport report;
  for (const ExportBy way : kWays) {
    options.on_phase(absl::StrCat("waiting for the other process's memory ", WayName(way)));
    Offer offer;
    FERRY_RETURN_IF_ERROR(ReceivePacket(socket, &offer, sizeof(offer), options.deadline));
    IpcOutcome& outcome = way == ExportBy::kPosixFd ? report.descriptor : report.handle;
    offer.reason[kMaxReason - 1] = '\0';
    if (offer.reason[0] != '\0') {
      outcome.status = absl::FailedPreconditionError(offer.reason);
      continue;
    }
    const absl::Time start = SteadyClock().Now();
    UniqueFd fd;
    if (way == ExportBy::kPosixFd) {
      FERRY_ASSIGN_OR_RETURN(fd, AskForDescriptor(socket, options.deadline));
    }
    outcome.status = OpenAndCompare(options, way, offer, std::move(fd));
    outcome.taken = SteadyClock().Now() - start;
    FERRY_RETURN_IF_ERROR(SendPacket(socket, &kDone, 1));
  }
  return report;
}

}  // namespace ferry::doctor
