// SPDX-License-Identifier: Apache-2.0
// What a client of ferry.v1.Control may ask for.
#ifndef FERRY_COORD_WIRE_CONTROL_LIMITS_H_
#define FERRY_COORD_WIRE_CONTROL_LIMITS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "proto/ferry_control.pb.h"

namespace ferry::coord {

// Requests of one frame; an agent sends 256.
inline constexpr int kMaxRequests = 16384;
// Keys of one request; so that it, and what shares a frame with it, has not too many fields.
inline constexpr int kMaxKeys = 1 << 18;
// Watches of prefixes that one client may have at a time.
inline constexpr size_t kMaxWatches = 4096;
// Calls of one client that wait for the table of tasks: each is answered with all of it.
inline constexpr int kMaxTableWaits = 64;
// Bytes of one answer: a value of the largest size fits.
inline constexpr size_t kMaxReplyBytes = size_t{3} << 29;

// Whether a frame of so many bytes is taken.
//   Errors: RESOURCE_EXHAUSTED naming the option.
absl::Status CheckFrameBytes(size_t bytes, size_t max_frame_bytes);

// Reads a frame. What would take much more memory than it has bytes is refused unread: millions of
// empty fields do not take part in anything.
//   Errors: INVALID_ARGUMENT it is none, or has too many requests or fields; as CheckFrameBytes.
absl::Status ParseFrame(absl::string_view bytes, size_t max_frame_bytes, v1::ClientFrame& frame);

// How long a wait that names so many milliseconds lasts: even one that names none ends.
absl::Duration WaitTime(int64_t milliseconds);

// A client for which more bytes than this wait may not ask for more: of states of the job, which
// take time to tell, and of values. What a frame has asked for before counts as well.
size_t MostBehind(const v1::Request& request);
inline constexpr size_t kMostBehindForValues = size_t{1} << 30;
// What a client is told for which so many bytes wait.
absl::Status TooFarBehind(size_t bytes);

}  // namespace ferry::coord

#endif  // FERRY_COORD_WIRE_CONTROL_LIMITS_H_
