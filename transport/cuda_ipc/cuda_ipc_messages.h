// SPDX-License-Identifier: Apache-2.0
// What the two halves of a cuda_ipc pair say to each other, in transfer descriptors, announcements
// and replies.
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

// A GPU of the producer and one of the consumer, by their ordinals in each process.
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
// A tensor in more pieces of physical memory than that is copied into one first.
inline constexpr size_t kMaxCudaIpcPieces = 8;

// What an announcement, or a reply, is about; its first byte.
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
};

//   Errors: INVALID_ARGUMENT.
absl::StatusOr<CudaIpcMessage> KindOfCudaIpc(absl::string_view body);

// From the sender, before the first transfer descriptor of a pair of devices: some memory with
// known bytes to be opened, copied and compared, and the events that will mark when tensors are
// there. With the memory's descriptor, if it has one.
struct CudaIpcProbe {
  GpuPair pair;
  // Byte i of the memory is CudaIpcProbeByte(seed, i).
  uint32_t seed = 0;
  cuda::IpcDescriptor memory;
  std::vector<cuda::IpcEventHandle> events;
};

unsigned char CudaIpcProbeByte(uint32_t seed, size_t index);

// From the receiver: what came of the probe.
struct CudaIpcProbed {
  GpuPair pair;
  // Of the probe: an answer that comes late may be to an older one.
  uint32_t seed = 0;
  // Empty: it works.
  std::string refusal;
  // Not empty: memory can be opened, but not the events, which need more (CUDA keeps them in
  // /dev/shm): the sender waits for what is not ready.
  std::string why_no_events = {};
};

struct CudaIpcPiece {
  cuda::IpcDescriptor memory;
  // One of the transfer descriptor's descriptors is its own, in the order of pieces.
  bool has_fd = false;
  // The memory stays where it is as long as the control channel: the receiver keeps it open, and is
  // sent its descriptor once.
  bool is_kept = false;
};

struct CudaIpcDescriptor {
  GpuPair pair;
  // Not to be read before; sequence 0: it may be read now.
  cuda::EventTicket ready;
  // None: it comes in slices.
  std::vector<CudaIpcPiece> pieces;
  // Why it comes in slices, and is not to be looked at where it is; for people.
  std::string why_staged;

  bool is_staged() const { return pieces.empty(); }
};

// From the sender, after the transfer descriptor: some more of a tensor that comes in slices lies
// in a slot of the producer's, which is the consumer's until it says kTaken. In the order of
// offsets, without gaps.
struct CudaIpcSlice {
  uint64_t id = 0;  // of the transfer
  GpuPair pair;
  uint64_t offset = 0;  // in the tensor
  cuda::EventTicket ready;
  CudaIpcPiece piece;
};

// From the receiver: nothing here reads the slice any more.
struct CudaIpcTaken {
  uint64_t id = 0;
  uint64_t offset = 0;
};

// From the sender: the rest of a tensor that comes in slices does not come.
struct CudaIpcFailed {
  uint64_t id = 0;
  std::string why;
};

// From the receiver: a segment that is kept is not open here, since opening it failed when its
// descriptor came; please once more. Its answer is kSegment.
struct CudaIpcWanted {
  GpuPair pair;
  uint64_t buffer_id = 0;
};

struct CudaIpcSegment {
  GpuPair pair;
  cuda::IpcDescriptor memory;
};

std::string EncodeCudaIpcProbe(const CudaIpcProbe& probe);
std::string EncodeCudaIpcProbed(const CudaIpcProbed& probed);
std::string EncodeCudaIpcTicket(const CudaIpcDescriptor& ticket);
std::string EncodeCudaIpcSlice(const CudaIpcSlice& slice);
std::string EncodeCudaIpcTaken(const CudaIpcTaken& taken);
std::string EncodeCudaIpcFailed(const CudaIpcFailed& failed);
std::string EncodeCudaIpcWanted(const CudaIpcWanted& wanted);
std::string EncodeCudaIpcSegment(const CudaIpcSegment& segment);

//   Errors, of all: INVALID_ARGUMENT.
absl::StatusOr<CudaIpcProbe> DecodeCudaIpcProbe(absl::string_view body);
absl::StatusOr<CudaIpcProbed> DecodeCudaIpcProbed(absl::string_view body);
absl::StatusOr<CudaIpcDescriptor> DecodeCudaIpcTicket(absl::string_view body);
absl::StatusOr<CudaIpcSlice> DecodeCudaIpcSlice(absl::string_view body);
absl::StatusOr<CudaIpcTaken> DecodeCudaIpcTaken(absl::string_view body);
absl::StatusOr<CudaIpcFailed> DecodeCudaIpcFailed(absl::string_view body);
absl::StatusOr<CudaIpcWanted> DecodeCudaIpcWanted(absl::string_view body);
absl::StatusOr<CudaIpcSegment> DecodeCudaIpcSegment(absl::string_view body);

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_MESSAGES_H_
