// SPDX-License-Identifier: Apache-2.0
// Frames of ferry.v1.Control written and read by hand, so that a client costs next to nothing.
#ifndef FERRY_BENCHMARKS_SUPPORT_CONTROL_FRAMES_H_
#define FERRY_BENCHMARKS_SUPPORT_CONTROL_FRAMES_H_

#include <cstdint>
#include <string>

#include <grpcpp/support/byte_buffer.h>

#include "absl/strings/string_view.h"

#include "proto/ferry_control.pb.h"

namespace ferry::bench {

// Appends to a v1::ClientFrame.
void AppendHello(const v1::Hello& hello, std::string& frame);
void AppendAck(uint64_t sequence, std::string& frame);
//   op: a v1::Request without its id, serialised.
void AppendRequest(uint64_t id, absl::string_view op, std::string& frame);

grpc::ByteBuffer ToBuffer(absl::string_view bytes);

// The fields of a v1::ServerFrame that a simulated client needs.
struct ScannedFrame {
  uint64_t sequence = 0;
  int replies = 0;
  // The first code that is not 0 of any reply, or 13 if the frame is malformed.
  int code = 0;
  bool has_blob = false;
  // The whole frame.
  grpc::ByteBuffer bytes;
};

// The blob of a frame that has one.
std::string BlobOf(const ScannedFrame& frame);

ScannedFrame ScanFrame(const grpc::ByteBuffer& buffer);
// From a contiguous frame, without `bytes`.
ScannedFrame ScanFrame(absl::string_view bytes);

}  // namespace ferry::bench

#endif  // FERRY_BENCHMARKS_SUPPORT_CONTROL_FRAMES_H_
