// SPDX-License-Identifier: Apache-2.0
// Messages between the two endpoints of a cuda_ipc pair: transfer descriptors, announcements and
// replies.
#ifndef FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_MESSAGES_H_
#define FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "gpu/cuda/interprocess_events.h"
#include "gpu/cuda/ipc_descriptor.h"

namespace ferry {

// The producer's GPU and the consumer's, by ordinal in each process.
struct GpuPair {
  uint16_t source = 0;
  uint16_t destination = 0;

  friend bool operator==(const GpuPair&, const GpuPair&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const GpuPair& pair) {
    return H::combine(std::move(state), pair.source, pair.destination);
  }
};

inline constexpr size_t kCudaIpcProbeBytes = 4096;
inline constexpr size_t kMaxCudaIpcEvents = 256;
// A tensor in more pieces of physical memory than this is staged.
inline constexpr size_t kMaxCudaIpcPieces = 8;

inline constexpr absl::string_view kCudaIpcName = "cuda_ipc";
// The path of a tensor that is sent in slices.
inline constexpr absl::string_view kCudaIpcStagedPath = "cuda_ipc, staged";

// The transport's descriptor in HELLO: one byte, the highest version of what a process handles
// besides the messages that all do. 1: pieces that may stay open, kReclaim, kReclaimed, kRefused.
// 2: it holds the lifelines that come with probes (PeerLifeline).
std::string EncodeCudaIpcPeer();
// Whether a process with this descriptor, untrusted, handles version 1; one with none does not.
bool MayKeepForeignMemory(absl::string_view descriptor);
// The same for version 2.
bool HoldsLifelines(absl::string_view descriptor);

// Message type of an announcement or reply; its first byte.
enum class CudaIpcMessage : uint8_t {
  // From the sender.
  kProbe = 1,
  kSegment = 2,
  kSlice = 3,
  // From the receiver.
  kProbed = 4,
  kWanted = 5,
  kTaken = 6,
  // From the sender.
  kFailed = 7,
  kReclaim = 8,
  // From the receiver.
  kReclaimed = 9,
  kRefused = 10,
};

//   Errors: INVALID_ARGUMENT.
absl::StatusOr<CudaIpcMessage> KindOfCudaIpc(absl::string_view body);

// From the sender, before the first transfer descriptor of a pair of devices: memory with known
// bytes for the receiver to open, copy and compare, and the events that will mark when tensors are
// ready. Carries the memory's file descriptor, if it has one, and then that of a lifeline.
struct CudaIpcProbe {
  GpuPair pair;
  // Byte i of the memory is CudaIpcProbeByte(seed, i).
  uint32_t seed = 0;
  cuda::IpcDescriptor memory;
  std::vector<cuda::IpcEventHandle> events;
};

unsigned char CudaIpcProbeByte(uint32_t seed, size_t index);

// From the receiver: the result of the probe.
struct CudaIpcProbed {
  GpuPair pair;
  // The probe's seed: a late reply may belong to an earlier probe.
  uint32_t seed = 0;
  // Empty: success.
  std::string refusal;
  // Not empty: memory can be opened, but events cannot, which need more (CUDA keeps them in
  // /dev/shm): the sender waits for tensors that are not ready.
  std::string events_unavailable_reason = {};
};

struct CudaIpcPiece {
  cuda::IpcDescriptor memory;
  // True if one of the transfer descriptor's file descriptors, in the order of pieces, belongs to
  // it.
  bool has_fd = false;
  // The memory stays in place as long as the control channel: the receiver keeps it open, and is
  // sent its file descriptor only once.
  bool is_kept = false;
  // Not kept, but the receiver may keep it open behind the transfer, until kReclaim; otherwise it
  // closes it before its ACK.
  bool may_stay_open = false;
};

struct CudaIpcDescriptor {
  GpuPair pair;
  // Do not read before this event; sequence 0: ready now.
  cuda::EventTicket ready;
  // Empty: the tensor is sent in slices.
  std::vector<CudaIpcPiece> pieces;
  // Human-readable: why it is sent in slices instead of being mapped.
  std::string why_staged;

  bool is_staged() const { return pieces.empty(); }
};

// From the sender, after the transfer descriptor: the next slice of a staged tensor is in a slot of
// the producer's, which belongs to the consumer until it replies kTaken. In order of offsets,
// without gaps.
struct CudaIpcSlice {
  uint64_t id = 0;  // of the transfer
  GpuPair pair;
  uint64_t offset = 0;  // in the tensor
  cuda::EventTicket ready;
  CudaIpcPiece piece;
};

// From the receiver: it no longer reads the slice.
struct CudaIpcTaken {
  uint64_t id = 0;
  uint64_t offset = 0;
};

// From the sender: the rest of a staged tensor will not be sent.
struct CudaIpcFailed {
  uint64_t id = 0;
  std::string why;
};

// From the receiver: requests a kept segment again, since opening it failed when its descriptor
// came. Answered by kSegment.
struct CudaIpcWanted {
  GpuPair pair;
  uint64_t allocation_id = 0;
};

// From the sender: close this memory, which may have stayed open. No transfer that lets it stay
// open is under way, or begins before the reply. From the receiver: it is closed.
struct CudaIpcReclaim {
  GpuPair pair;
  uint64_t allocation_id = 0;
};

// From the receiver: it cannot open the memory of the transfer, which is not of the sender's arena.
// Its tensor is sent in slices then.
struct CudaIpcRefused {
  uint64_t id = 0;
  std::string why;
};

struct CudaIpcSegment {
  GpuPair pair;
  cuda::IpcDescriptor memory;
};

std::string EncodeCudaIpcProbe(const CudaIpcProbe& probe);
std::string EncodeCudaIpcProbed(const CudaIpcProbed& probed);
std::string EncodeCudaIpcDescriptor(const CudaIpcDescriptor& descriptor);
std::string EncodeCudaIpcSlice(const CudaIpcSlice& slice);
std::string EncodeCudaIpcTaken(const CudaIpcTaken& taken);
std::string EncodeCudaIpcFailed(const CudaIpcFailed& failed);
std::string EncodeCudaIpcWanted(const CudaIpcWanted& wanted);
std::string EncodeCudaIpcSegment(const CudaIpcSegment& segment);
std::string EncodeCudaIpcReclaim(const CudaIpcReclaim& reclaim);
std::string EncodeCudaIpcReclaimed(const CudaIpcReclaim& reclaimed);
std::string EncodeCudaIpcRefused(const CudaIpcRefused& refused);

//   Errors, for all: INVALID_ARGUMENT.
absl::StatusOr<CudaIpcProbe> DecodeCudaIpcProbe(absl::string_view body);
absl::StatusOr<CudaIpcProbed> DecodeCudaIpcProbed(absl::string_view body);
absl::StatusOr<CudaIpcDescriptor> DecodeCudaIpcDescriptor(absl::string_view body);
absl::StatusOr<CudaIpcSlice> DecodeCudaIpcSlice(absl::string_view body);
absl::StatusOr<CudaIpcTaken> DecodeCudaIpcTaken(absl::string_view body);
absl::StatusOr<CudaIpcFailed> DecodeCudaIpcFailed(absl::string_view body);
absl::StatusOr<CudaIpcWanted> DecodeCudaIpcWanted(absl::string_view body);
absl::StatusOr<CudaIpcSegment> DecodeCudaIpcSegment(absl::string_view body);
// Also for kReclaimed.
absl::StatusOr<CudaIpcReclaim> DecodeCudaIpcReclaim(absl::string_view body);
absl::StatusOr<CudaIpcRefused> DecodeCudaIpcRefused(absl::string_view body);

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_MESSAGES_H_
