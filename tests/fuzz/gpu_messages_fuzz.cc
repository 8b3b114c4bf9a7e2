// SPDX-License-Identifier: Apache-2.0
// Transfer descriptors, announcements and replies about GPU memory, as any peer may write them. The
// first byte selects the decoder.
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

#include "base/status_macros.h"
#include "transport/cuda_ipc/cuda_ipc_messages.h"
#include "transport/nccl/batch_agreement_message.h"
#include "transport/nccl/nccl_descriptor.h"

namespace ferry {
namespace {

// A decoded message can be encoded, and is the same when it is decoded again.
template <typename Decode, typename Encode>
void CheckBothWays(absl::string_view body, Decode decode, Encode encode) {
  const auto message = decode(body);
  if (!message.ok()) return;
  const std::string written = encode(*message);
  const auto again = decode(written);
  FERRY_CHECK(again.ok());
  FERRY_CHECK(encode(*again) == written);
}

void CheckCudaIpcDescriptor(absl::string_view body) {
  const absl::StatusOr<CudaIpcDescriptor> descriptor = DecodeCudaIpcDescriptor(body);
  if (!descriptor.ok()) return;
  FERRY_CHECK(descriptor->pieces.size() <= kMaxCudaIpcPieces);
  CheckBothWays(body, DecodeCudaIpcDescriptor, EncodeCudaIpcDescriptor);
}

void CheckNcclDescriptor(absl::string_view body) {
  const absl::StatusOr<NcclDescriptor> descriptor = DecodeNcclDescriptor(body);
  if (descriptor.ok()) FERRY_CHECK(EncodeNcclDescriptor(*descriptor) == body);
}

void Check(uint8_t decoder, absl::string_view body) {
  switch (decoder % 12) {
    case 0:
      return CheckCudaIpcDescriptor(body);
    case 1:
      return CheckNcclDescriptor(body);
    case 2:
      return CheckBothWays(body, DecodeGrantMessage, EncodeGrantMessage);
    case 3:
      return CheckBothWays(body, DecodeCudaIpcProbe, EncodeCudaIpcProbe);
    case 4:
      return CheckBothWays(body, DecodeCudaIpcProbed, EncodeCudaIpcProbed);
    case 5:
      return CheckBothWays(body, DecodeCudaIpcSlice, EncodeCudaIpcSlice);
    case 6:
      return CheckBothWays(body, DecodeCudaIpcTaken, EncodeCudaIpcTaken);
    case 7:
      return CheckBothWays(body, DecodeCudaIpcFailed, EncodeCudaIpcFailed);
    case 8:
      return CheckBothWays(body, DecodeCudaIpcWanted, EncodeCudaIpcWanted);
    case 9:
      return CheckBothWays(body, DecodeCudaIpcSegment, EncodeCudaIpcSegment);
    case 10:
      return CheckBothWays(body, DecodeCudaIpcReclaim, EncodeCudaIpcReclaim);
    case 11:
      return CheckBothWays(body, DecodeCudaIpcRefused, EncodeCudaIpcRefused);
  }
}

}  // namespace
}  // namespace ferry

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  ferry::Check(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  return 0;
}
