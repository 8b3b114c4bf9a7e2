// SPDX-License-Identifier: Apache-2.0
// PeerLifeline: tells one process that another has closed all its memory, or has died.
#ifndef FERRY_TRANSPORT_CUDA_IPC_PEER_LIFELINE_H_
#define FERRY_TRANSPORT_CUDA_IPC_PEER_LIFELINE_H_

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/unique_fd.h"

namespace ferry {

// The owner of memory makes a pair of sockets, keeps one, and sends the other to the process that
// maps the memory. That one keeps it in ReceivedLifelines, until it has nothing mapped any more: it
// then writes to it and closes it. If it dies before, the kernel closes it. A control channel tells
// less: it may close while both processes live, and one of them still reads. Pids tell less too:
// they are reused, and mean nothing in another container.
//
// Not thread-safe. Movable.
class PeerLifeline final {
 public:
  enum class State {
    kHeld,
    // Closed by the peer, which has nothing mapped any more.
    kClosed,
    // Closed by the kernel: the peer has died, and the driver is closing its memory.
    kDied,
  };

  // A line, and the end that is to be sent to the peer, and then closed here, so that only the peer
  // has it.
  struct Made;
  //   Errors: RESOURCE_EXHAUSTED no descriptors are left.
  static absl::StatusOr<Made> Make();

  // Does not block. If a child of the peer's has inherited its end, its death is noticed only when
  // the child ends too.
  State Look();

 private:
  explicit PeerLifeline(UniqueFd end) : end_(std::move(end)) {}

  UniqueFd end_;
  State state_ = State::kHeld;
};

struct PeerLifeline::Made {
  PeerLifeline line;
  UniqueFd to_send;
};

// The peer's end, while anything of its memory is mapped: shared by what keeps it mapped.
// Thread-safe.
class ReceivedLifelines final {
 public:
  ReceivedLifelines() = default;
  // Tells the owner that everything is closed.
  ~ReceivedLifelines();

  ReceivedLifelines(const ReceivedLifelines&) = delete;
  ReceivedLifelines& operator=(const ReceivedLifelines&) = delete;

  // Keeps the first one, which tells all that the owner needs. The others are closed: a peer that
  // sends one with each probe takes one descriptor.
  void Add(UniqueFd end) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Mutex mu_;
  UniqueFd end_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CUDA_IPC_PEER_LIFELINE_H_
