// SPDX-License-Identifier: Apache-2.0
// EagerLinks: what a step needs of the protocol that sends small values before they are requested.
#ifndef FERRY_RENDEZVOUS_EAGER_LINK_H_
#define FERRY_RENDEZVOUS_EAGER_LINK_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "rendezvous/device_name.h"
#include "rendezvous/key.h"
#include "rendezvous/value.h"
#include "tensor/tensor.h"

namespace ferry {

class RemoteRendezvous;

// Lock order, for both links: the queue's of an ArrivalTable, a shard's of a table, a link's, a
// step's (RemoteRendezvous), the control channel's.

// The producer's side for one consumer. Thread-safe.
class EagerSendLink {
 public:
  struct Offer {
    RemoteRendezvous& step;
    const RendezvousKey& key;
    const Tensor& tensor;
    const SendArgs& args;
    bool is_dead = false;
    // Earlier values of that key are queued.
    bool is_behind_another = false;
    // It was queued itself.
    bool is_drained = false;
    // The step's deferred receives have been started.
    bool is_step_serving = true;
    // It may wait for further values, to share a frame with them, until AfterSend; the tensor must
    // stay until then.
    bool more_follow = false;
  };

  virtual ~EagerSendLink() = default;
  // Sends the value if the consumer need not request it. Called with the lock of the key's shard
  // held, while no receive waits for the key, so it must not run callbacks. False: queue it.
  virtual bool TrySend(const Offer& offer) = 0;
  // How often the consumer has allowed to send what it had to request until then. Before each time
  // the receives that it has requested wait in the step's table.
  virtual uint64_t push_count() const = 0;
  // Sends a prefix of `items`, up to the first one that cannot be sent eagerly: the consumer would
  // have to request it, or no number is free for its name. Returns its length. Called with the lock
  // of a shard of the step's table held, for which an abort waits, so it must not run callbacks.
  // REQUIRES: none is dead; the step is not over, and its deferred receives have been started; no
  // receive waited for their keys, and no value of them was queued, when that was looked for.
  //   push_count: as it was before that. If it has changed since, a receive may wait by now, and
  //   nothing is sent.
  //   more_follow: as Offer::more_follow.
  virtual size_t TrySendMany(RemoteRendezvous& step, absl::Span<SendItem* const> items,
                             uint64_t push_count, bool more_follow) = 0;
  // To be called after TrySend, or several of them, with no lock held.
  virtual void AfterSend() = 0;

  // The step's deferred receives have been started.
  virtual void OnStepServing(int64_t step_id) = 0;
  // The step's acknowledgements are waited for: asks for them, and after each further value until
  // EndFlush.
  virtual void StartFlush(int64_t step_id) = 0;
  virtual void EndFlush(int64_t step_id) = 0;
  // The step is over here, and sends nothing more. Values that were not received are recorded as
  // lost, with that status.
  virtual void OnStepEnd(RemoteRendezvous& step, const absl::Status& why) = 0;
};

// The consumer's side for one incarnation of a producer. Thread-safe.
class EagerRecvLink {
 public:
  enum class Route {
    // It is posted in the step's ArrivalTable, and waits there for an eager value.
    kWait,
    // It is to be requested, and then OnRequested called.
    kRequest,
    // The step is over at the producer.
    kFail,
  };

  virtual ~EagerRecvLink() = default;
  // Decides about a receive for which no value has arrived. Called with the lock of the step's
  // ArrivalTable held that a value of that key would need: the queue's while it is open, else that
  // of the key's shard. `why` is set for kFail.
  virtual Route OnReceive(RemoteRendezvous& step, const RendezvousKey& key, absl::Status& why) = 0;
  // True if OnReceive would return kWait for each key of at most that many bytes, which then counts
  // as called. False: perhaps not, ask it. Called with the queue's lock held.
  virtual bool MayWait(RemoteRendezvous& step, size_t key_bytes) = 0;
  // A receive that waits is taken out of the ArrivalTable, to be requested. Called with the same
  // lock held.
  virtual void OnConverted(const RendezvousKey& key) = 0;
  // A request was passed on, or has failed.
  virtual void OnRequested() = 0;
  // A value that has arrived is taken by that receive: returns the receive's status. Called with
  // the same lock held.
  virtual absl::Status OnTaken(Tensor& tensor, SendArgs& args, const RecvArgs& recv_args) = 0;
  // To be called after OnReceive and OnTaken, with no lock held.
  virtual void AfterReceive() = 0;
  // The step is over here; its receives have ended, and what has arrived was dropped.
  //   may_begin_again: the program has never opened it; its state is discarded, and later values
  //   open it again.
  virtual void OnStepEnd(int64_t step_id, bool may_begin_again) = 0;
  // The progress of a receive that waits. Human-readable.
  virtual std::string Phase() const = 0;
};

// The links of a process. Thread-safe. They live as long as this does, whether connected or not.
class EagerLinks {
 public:
  virtual ~EagerLinks() = default;
  // Null: nothing is sent to the key's destination before it is requested. May be called with a
  // lock held.
  virtual EagerSendLink* SendLinkFor(const RendezvousKey& key) = 0;
  // Null: everything is requested.
  virtual EagerRecvLink* RecvLinkFor(const RendezvousKey& key) = 0;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_EAGER_LINK_H_
