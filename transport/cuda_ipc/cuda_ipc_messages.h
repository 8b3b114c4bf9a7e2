// SPDX-License-Identifier: Apache-2.0
// What the two halves of a cuda_ipc pair say to each other, in tickets, announcements and replies.
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

// From the outlet, before the first ticket of a pair of devices: some memory with known bytes to be
// opened, copied and compared, and the events that will mark when tensors are there. With the
// memory's descriptor, if it has one.
struct CudaIpcProbe {
  GpuPair pair;
  // Byte i of the memory is CudaIpcProbeByte(seed, i).
  uint32_t seed = 0;
  cuda::IpcDescriptor memory;
  std::vector<cuda::IpcEventHandle> events;
};

unsigned char CudaIpcProbeByte(uint32_t seed, size_t index);

// From the inlet: what came of the probe.
struct CudaIpcProbed {
  GpuPair pair;
  // Empty: it works.
  std::string refusal;
};

struct CudaIpcPiece {
  cuda::IpcDescriptor memory;
  // One of the ticket's descriptors is its own, in the order of pieces.
  bool has_fd = false;
  // The memory stays where it is as long as the lane: the receiver keeps it open, and is sent its
  // descriptor once.
  bool is_kept = false;
};

struct CudaIpcTicket {
  GpuPair pair;
  // Not to be read before; sequence 0: it may be read now.
  cuda::EventTicket ready;
  std::vector<CudaIpcPiece> pieces;
};

std::string EncodeCudaIpcProbe(const CudaIpcProbe& probe);
std::string EncodeCudaIpcProbed(const CudaIpcProbed& probed);
std::string EncodeCudaIpcTicket(const CudaIpcTicket& ticket);

//   Errors, of all: INVALID_ARGUMENT.
absl::StatusOr<CudaIpcProbe> DecodeCudaIpcProbe(absl::string_view body);
absl::StatusOr<CudaIpcProbed> DecodeCudaIpcProbed(absl::string_view body);
absl::StatusOr<CudaIpcTicket> DecodeCudaIpcTicket(absl::string_view body);

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_MESSAGES_H_
