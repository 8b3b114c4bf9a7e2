// SPDX-License-Identifier: Apache-2.0
// Limits on what a client of ferry.v1.Control may request.
#ifndef FERRY_COORD_WIRE_CONTROL_LIMITS_H_
#define FERRY_COORD_WIRE_CONTROL_LIMITS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "proto/ferry_control.pb.h"

namespace ferry::coord {

// Requests per frame; an agent sends up to 256.
inline constexpr int kMaxRequests = 16384;
// Keys per request; bounds the fields of a request and of the others in its frame.
inline constexpr int kMaxKeys = 1 << 18;
// Concurrent prefix watches per client.
inline constexpr size_t kMaxWatches = 4096;
// Concurrent waits for the task table per client: each is answered with the whole table.
inline constexpr int kMaxTableWaits = 64;
// Bytes of one answer: a value of the maximum size fits.
inline constexpr size_t kMaxReplyBytes = size_t{3} << 29;

// Returns OK if a frame of this size is accepted.
//   Errors: RESOURCE_EXHAUSTED naming the option.
absl::Status CheckFrameBytes(size_t bytes, size_t max_frame_bytes);

// Parses a frame. Frames that would take much more memory than their size, such as millions of
// empty fields, are rejected unparsed.
//   Errors: INVALID_ARGUMENT if malformed, or with too many requests or fields; as
//   CheckFrameBytes.
absl::Status ParseFrame(absl::string_view bytes, size_t max_frame_bytes, v1::ClientFrame& frame);

// Returns the duration of a wait of `milliseconds`; finite even if none is given.
absl::Duration WaitTime(int64_t milliseconds);

// Returns the most bytes that may be queued for a client when it makes this request, for requests
// with large answers: job states, which take time to encode, and values. Earlier requests of the
// same frame count as well.
size_t MaxBacklogBytes(const v1::Request& request);
inline constexpr size_t kMostBehindForValues = size_t{1} << 30;
// The error for a client with so many bytes queued.
absl::Status BacklogTooLargeError(size_t bytes);

}  // namespace ferry::coord

#endif  // FERRY_COORD_WIRE_CONTROL_LIMITS_H_
