// SPDX-License-Identifier: Apache-2.0
// RawTcp: the floor of what goes over TCP: the same bytes between the same two processes, over
// sockets and nothing else.
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

// Both processes call the same in the same order. A call ends when the bench is stopped, or nothing
// has come for 20 seconds. Not thread-safe.
//
// 1. The first one listens on the addresses at which its tensors can be had, on a port that the
//    kernel chooses, and leaves them in the store, with a number that nobody can guess.
// 2. The second one connects all streams to the first address that answers, says that number over
//    each, and hears the next one; it leaves in the store that it has them all, or why not.
//
// So that both have the sockets, or neither has.
class RawTcp final {
 public:
  //   Errors: UNAVAILABLE why there are none, the same at both; those of the store.
  static absl::StatusOr<std::unique_ptr<RawTcp>> Create(const BenchParticipants& party,
                                                        int streams);

  // `rounds` times there and back, halved; large ones over all streams, each with a thread at
  // either end.
  //   buffer: of `bytes`, sent and overwritten. is_polling: whoever receives spins.
  absl::StatusOr<absl::Duration> MeasurePingPong(void* buffer, size_t bytes, int rounds,
                                                 bool is_polling);
  // `rounds` times so many from the first one to the second, until that has answered, by how many.
  absl::StatusOr<absl::Duration> MeasureStream(void* buffer, size_t bytes, int count, int rounds);

  // What it has left in the store; called by the first one, after the others have measured.
  absl::Status CleanUp();

 private:
  explicit RawTcp(const BenchParticipants& party);

  absl::StatusOr<std::string> Await(const std::string& key) const;
  absl::Status Listen(size_t streams);
  absl::Status Connect(size_t streams);
  // False: it is time to give up.
  bool GoesOn(absl::Time deadline) const;
  // Over so many streams at once, each on a thread of its own.
  //   turn: false: the other has gone.
  absl::StatusOr<absl::Duration> Measure(size_t streams, int rounds,
                                         const std::function<bool(size_t stream)>& turn) const;
  bool Send(int fd, const void* from, size_t bytes) const;
  bool Receive(int fd, void* to, size_t bytes, bool is_polling) const;
  size_t StreamsOf(size_t bytes) const;

  // What one of several streams carries of a buffer.
  struct Share {
    int fd;
    char* data;
    size_t bytes;
  };
  Share ShareOf(size_t stream, size_t streams, void* buffer, size_t bytes) const;

  const BenchParticipants& party_;
  const std::string place_;
  std::vector<UniqueFd> streams_;
};

}  // namespace ferry::cli

#endif  // FERRY_BENCH_RAW_TCP_H_
