// SPDX-License-Identifier: Apache-2.0
// LocalRendezvous: the table of one step, in which sends and receives of one process meet.
#ifndef FERRY_RENDEZVOUS_LOCAL_RENDEZVOUS_H_
#define FERRY_RENDEZVOUS_LOCAL_RENDEZVOUS_H_

#include <cstddef>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/table_sizes.h"
#include "base/usable_resources.h"
#include "rendezvous/key.h"
#include "rendezvous/outstanding_operations.h"
#include "rendezvous/value.h"
#include "tensor/tensor.h"

namespace ferry {

struct RendezvousLimits {
  // Of tensors that were sent and wait for a receiver, per step.
  size_t max_queued_bytes = ShareOfMemory(size_t{64} << 30, 1);
  // Of sends and receives that wait, per step; and, apart from those, of receives that wait for
  // other workers or for the step to begin.
  size_t max_waiting = size_t{1} << 20;
};

// A send or a receive that waits for its other side.
struct PendingOp {
  RendezvousKey key;
  bool is_send = false;
  // Of a send.
  size_t bytes = 0;
  absl::Duration age;
};

// Values with one key pass in the order in which they were sent, to receives in the order in which
// they were asked for. A send never blocks. Thread-safe. Callbacks run on the thread of whoever
// completes them, with no lock held: a receive's on the sender's thread, or inside RecvAsync if the
// value is there already, as TensorFlow's users expect. A callback may send and receive, as deep as
// it likes. Time comes from `clock`, and deadlines are kept by whoever calls Expire.
// Source: tensorflow/core/framework/rendezvous.cc, LocalRendezvousImpl; departures:
// docs/rendezvous.md.
class LocalRendezvous final {
 public:
  // `operations` counts the values that are taken by receives with RecvArgs::operation, and those
  // that wait from CountSends on; outlives it. May be null.
  explicit LocalRendezvous(const Clock& clock, RendezvousLimits limits = {},
                           OutstandingOperations* operations = nullptr);
  // Whoever still waits gets CANCELLED.
  ~LocalRendezvous();

  LocalRendezvous(const LocalRendezvous&) = delete;
  LocalRendezvous& operator=(const LocalRendezvous&) = delete;

  // Gives the value to the first receive that waits, else keeps it. `tensor` is not valid if
  // `is_dead`.
  //   Errors: the abort's status; RESOURCE_EXHAUSTED naming the limit.
  absl::Status Send(const RendezvousKey& key, Tensor tensor, bool is_dead = false,
                    SendArgs args = {});

  //   Errors, through `done`: the abort's status; CANCELLED (derived) by args.cancellation, unless
  //   the value is there; DEADLINE_EXCEEDED by Expire; RESOURCE_EXHAUSTED naming the limit.
  void RecvAsync(const RendezvousKey& key, RecvArgs args, RecvCallback done);

  // Blocks, which a callback must not: what it waits for may be kept until that callback returns.
  // Errors as RecvAsync; DEADLINE_EXCEEDED after `timeout` of real time, and then a later
  // send stays for another receive.
  absl::StatusOr<Received> Recv(const RendezvousKey& key, absl::Duration timeout,
                                RecvArgs args = {});

  // Everything that waits ends with `why`, and everything that comes gets it. The first one stays.
  // REQUIRES: not OK.
  void StartAbort(const absl::Status& why);
  // OK unless aborted.
  absl::Status abort_status() const;

  // Receives for whose key `verdict` is not OK end with it, and such sends are dropped; the step
  // goes on. Returns how many those were. `verdict` must not use the rendezvous.
  size_t Fail(absl::FunctionRef<absl::Status(const RendezvousKey&)> verdict);

  // Ends the receives whose deadline has come.
  void Expire();
  // The earliest deadline of a receive that waits, or some time before it.
  absl::Time NextDeadline() const;

  // What has waited for at least `min_age`.
  void ForEachPending(absl::Duration min_age,
                      absl::FunctionRef<void(const PendingOp&)> visit) const;
  // From now on the operations' count is not 0 while a send waits for its receive.
  void CountSends();
  size_t waiting_count() const;
  size_t queued_bytes() const;
  // The size of every internal table, summed over the shards; for tests and debugging.
  TableSizes InnerTableSizes() const;

 private:
  class Core;

  // Shared with cancellations, which may come when this is gone.
  const std::shared_ptr<Core> core_;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_LOCAL_RENDEZVOUS_H_
