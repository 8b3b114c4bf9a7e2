// SPDX-License-Identifier: Apache-2.0
// Baselines made of events: the minimum that two processes that share a GPU need.
#ifndef FERRY_BENCHMARKS_GPU_CHECK_EVENTS_H_
#define FERRY_BENCHMARKS_GPU_CHECK_EVENTS_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "benchmarks/gpu/check_nodes.h"
#include "benchmarks/gpu/check_transfers.h"

namespace ferry::check {

// An event of each process, imported by the other, and a word in the page that both map.
class EventWire final {
 public:
  // Both nodes call it.
  //   Errors: the driver's error for interprocess events; then both have none.
  static absl::StatusOr<std::unique_ptr<EventWire>> Create(CheckNode& self, CheckGpu& gpu);

  // A round trip, halved, in both nodes: record, word; the other waits for the word, has its stream
  // wait for the event, and does the same. Node 0's result counts.
  //   waits: whether the host waits for the stream, each time.
  absl::StatusOr<absl::Duration> Hop(bool waits);

  // The minimum of copies out of another process's memory, in both nodes: node 0 records an event;
  // the stream of node 1 waits for it and copies. Without MPS the GPU switches from the context of
  // one process to the other's for that. Node 1's result counts, until its host knows that all
  // bytes are there.
  absl::StatusOr<absl::Duration> Copy(const FloorBuffers& buffers);

  // Both nodes call it, before the node leaves.
  absl::Status Close();

 private:
  EventWire(CheckNode& self, CheckGpu& gpu) : self_(self), gpu_(gpu) {}
  absl::Status Give();
  absl::Status Take(bool waits);

  CheckNode& self_;
  CheckGpu& gpu_;
  cuda::Event own_ = nullptr;
  cuda::Event other_ = nullptr;
  uint64_t turn_ = 0;
};

// The duration of recording an event.
class EventTimer final {
 public:
  static absl::StatusOr<std::unique_ptr<EventTimer>> Create(CheckGpu& gpu);
  ~EventTimer();

  EventTimer(const EventTimer&) = delete;
  EventTimer& operator=(const EventTimer&) = delete;

  absl::StatusOr<absl::Duration> Record(cuda::Stream stream);

 private:
  explicit EventTimer(CheckGpu& gpu) : gpu_(gpu) {}
  CheckGpu& gpu_;
  cuda::Event event_ = nullptr;
};

}  // namespace ferry::check

#endif  // FERRY_BENCHMARKS_GPU_CHECK_EVENTS_H_
