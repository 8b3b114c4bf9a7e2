// SPDX-License-Identifier: Apache-2.0
// RawTcp: the baseline of TCP transfers: the same bytes between the same two processes over plain
// sockets.
#ifndef FERRY_BENCH_RAW_TCP_H_
#define FERRY_BENCH_RAW_TCP_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/unique_fd.h"
#include "bench/meeting.h"

namespace ferry::cli {

// Both processes make the same calls in the same order. A call ends if the bench is stopped, or
// nothing arrives for 20 seconds. Not thread-safe.
//
// 1. The first process listens on the addresses advertised for tensors, on a port chosen by the
//    kernel, and publishes them in the store with a random secret number.
// 2. The second connects all streams to the first address that responds, sends the number over
// each,
//    and expects its successor; it reports success or the error in the store.
//
// So either both have the sockets, or neither has.
class RawTcp final {
 public:
  //   Errors: UNAVAILABLE with the reason, the same on both sides; those of the store.
  static absl::StatusOr<std::unique_ptr<RawTcp>> Create(const BenchParticipants& party,
                                                        int streams);

  // Returns the P50 of `rounds` round trips, halved; large buffers are split over all streams, each
  // with a thread at both ends.
  //   buffer: `bytes` long, sent and overwritten. is_polling: the receiver spins.
  absl::StatusOr<absl::Duration> MeasurePingPong(void* buffer, size_t bytes, int rounds,
                                                 bool is_polling);
  // Sends `count` buffers from the first process to the second, until the second answers. Returns
  // the P50 over `rounds`, divided by `count`.
  absl::StatusOr<absl::Duration> MeasureStream(void* buffer, size_t bytes, int count, int rounds);

  // Removes its keys from the store; called by the first process, after the others have measured.
  absl::Status CleanUp();

 private:
  explicit RawTcp(const BenchParticipants& party);

  absl::StatusOr<std::string> Await(const std::string& key) const;
  absl::Status Listen(size_t streams);
  absl::Status Connect(size_t streams);
  // Returns false if the bench was stopped or the deadline has passed.
  bool GoesOn(absl::Time deadline) const;
  // Runs over this many streams at once, each on a thread of its own.
  //   turn: returns false if the other process has gone.
  absl::StatusOr<absl::Duration> Measure(size_t streams, int rounds,
                                         const std::function<bool(size_t stream)>& turn) const;
  bool Send(int fd, const void* from, size_t bytes) const;
  bool Receive(int fd, void* to, size_t bytes, bool is_polling) const;
  size_t StreamsOf(size_t bytes) const;

  // The part of a buffer that one of several streams carries.
  struct Share {
    int fd;
    char* data;
    size_t bytes;
  };
  Share ShareOf(size_t stream, size_t streams, void* buffer, size_t bytes) const;

  const BenchParticipants& party_;
  const std::string key_prefix_;
  std::vector<UniqueFd> streams_;
};

}  // namespace ferry::cli

#endif  // FERRY_BENCH_RAW_TCP_H_
