// SPDX-License-Identifier: Apache-2.0
// PutEndpoint: one device's end of the protocol for one-sided transfers.
#ifndef FERRY_TRANSPORT_NCCL_PUT_ENDPOINT_H_
#define FERRY_TRANSPORT_NCCL_PUT_ENDPOINT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "transport/nccl/put_action.h"
#include "transport/nccl/put_message.h"
#include "transport/nccl/put_pool.h"

namespace ferry {

// The rules that the protocol depends on. All are in force; a test disables one to show what it
// prevents.
struct PutRules {
  // The source announces a put when its stream has passed it, not when it was enqueued.
  bool announces_after_stream = true;
  // A block that was promised to a peer is used again only after the peer's answer.
  bool keeps_promised_blocks = true;
  // And never again if the peer has died without an answer: nothing says when its GPU has stopped.
  bool retires_blocks_of_the_dead = true;
  // Nor the blocks of a put that may never pass its stream: it may still happen.
  bool retires_lost_blocks = true;
  // A room on another communicator than the open one is not used.
  bool checks_communicator = true;
};

// Each pair's communicator has a window over a pool of each of the two devices (OpenWindow). A
// transfer then needs no order among devices, and no operation of the receiver:
//   1  the source copies the tensor into a block of its pool and offers it, with the transfer's
//      descriptor
//   2  the destination answers with the offset of a block of its pool (ROOM); or that it wants the
//      transfer in a batch (NOROOM): it receives into other memory, or has no room
//   3  the source puts with signal; when its stream has passed the put it sends PLACED
//   4  the destination lets a stream wait for the signal, and delivers the block when that stream
//      has passed the wait
// So a stream waits only for a signal that has been sent. Every ROOM is answered by PLACED or
// WITHDRAWN, and both say that nothing is written there any more; only then is a block used again
// that was not delivered. If a stream does not pass a put or a wait although its communicator has
// ended (PutLost, WaitLost), neither is said, the block is never used again, and this device makes
// no puts any more: what has stopped one stream may stop others.
//
// Calls append the actions to perform to `actions`: the caller performs them, in this order, after
// the call has returned. Not thread-safe; a value. The clock must outlive it.
class PutEndpoint final {
 public:
  // Puts that are issued at a time: NCCL may lose one over a network if 256 of its requests
  // are outstanding (NVIDIA/nccl#2119).
  static constexpr int kMaxIssuedPuts = 32;

  PutEndpoint(DeviceId self, uint64_t pool_bytes, const Clock& clock, const PutRules& rules = {})
      : clock_(&clock), self_(self), rules_(rules), pool_(pool_bytes) {}

  // The communicator has a window with the peer's pool of that size. The peer has sent, or will
  // send, `signals` signals before its first put. Ignored once something is lost.
  void OpenWindow(DeviceId peer, const CommunicatorName& name, uint64_t peer_bytes, int signals);
  // The communicator is ending: nothing more is issued on it. `died`: the failed device, if any.
  void CommunicatorEnded(const CommunicatorName& name, const absl::Status& why, DeviceId died,
                         PutActions& actions);
  // The device's process has failed: it sends nothing more.
  void PeerFailed(DeviceId peer, const absl::Status& why, PutActions& actions);

  // At the source: returns the communicator to name in the offer, and sets `offset` to the block
  // for the tensor; nothing: send it in a batch. It ends with one FinishPut, or SendInBatch.
  std::optional<CommunicatorName> Offer(const TransferKey& key, uint64_t bytes, absl::Time deadline,
                                        uint64_t& offset);
  // At the destination, for an offer on that communicator: returns true if there is room. It then
  // ends with one FinishPut.
  bool Accept(const TransferKey& key, const CommunicatorName& name, uint64_t bytes,
              absl::Time deadline, PutActions& actions);
  // At the destination: answers an offer that is not, or cannot be, accepted.
  static void Refuse(const TransferKey& key, PutActions& actions);
  // On either side. Ends it with `why`, unless its bytes are already being put here.
  void Cancel(const TransferKey& key, const absl::Status& why, PutActions& actions);
  // The caller is through with the block of a delivered tensor.
  void ReturnBlock(uint64_t offset) { pool_.Give(offset); }
  // The same, but something may still use it.
  void RetireBlock(uint64_t offset, const absl::Status& why, PutActions& actions);

  //   Errors: INVALID_ARGUMENT: it is not for this device, or breaks the protocol.
  absl::Status OnMessage(const PutMessage& message, PutActions& actions);
  // The stream has passed the put, or never got it, whatever `status` says. REQUIRES: once for each
  // IssuePut, or PutLost.
  void PutPassed(const TransferKey& key, const absl::Status& status, PutActions& actions);
  // The same for the wait. REQUIRES: once for each IssueWait, or WaitLost.
  void WaitPassed(DeviceId peer, const CommunicatorName& name, const absl::Status& status,
                  PutActions& actions);
  // The communicator has ended, and the stream has not passed the put, and may never do so, or that
  // cannot be known.
  void PutLost(const TransferKey& key, const absl::Status& why, PutActions& actions);
  void WaitLost(DeviceId peer, const CommunicatorName& name, const absl::Status& why,
                PutActions& actions);

  // Issues nothing until Resume. What is issued ends without any other device.
  void Pause() { is_paused_ = true; }
  void Resume(PutActions& actions);
  // True if nothing is issued, but for what is lost.
  bool is_quiet() const { return issued_ == 0; }

  absl::Time NextDeadline() const;
  // Handles transfers whose deadline has passed.
  void Expire(PutActions& actions);

  // Why this device makes no puts any more; OK: nothing was lost.
  const absl::Status& lost() const { return lost_; }
  bool HasWindow(DeviceId peer) const { return lost_.ok() && windows_.contains(peer); }
  bool contains(const TransferKey& key) const {
    return outgoing_.contains(key) || incoming_.contains(key);
  }
  const PutPool& pool() const { return pool_; }
  // Transfers and blocks that wait for something.
  size_t transfer_count() const { return outgoing_.size() + incoming_.size(); }
  // One line each.
  std::vector<std::string> Pending() const;

  template <typename H>
  friend H AbslHashValue(H state, const PutEndpoint& e) {
    return H::combine(std::move(state), e.windows_, e.outgoing_, e.incoming_, e.is_paused_,
                      e.issued_, e.pool_, e.lost_.ok());
  }

 private:
  struct Window {
    CommunicatorName name;
    uint64_t peer_bytes = 0;
    // Signals that have been sent here and that no wait was issued for.
    int signals = 0;
    // Transfers that the next wait, and the one in progress, will complete.
    std::vector<TransferKey> placed;
    std::vector<TransferKey> waiting;
    bool is_waiting = false;

    template <typename H>
    friend H AbslHashValue(H state, const Window& w) {
      return H::combine(std::move(state), w.name, w.signals, w.placed, w.waiting, w.is_waiting);
    }
  };
  enum class OutgoingPhase { kOffered, kHeld, kIssued };
  struct Outgoing {
    OutgoingPhase phase = OutgoingPhase::kOffered;
    uint64_t bytes = 0;
    uint64_t offset = 0;
    // Where to, from kHeld on.
    CommunicatorName name;
    uint64_t peer_offset = 0;
    // Nobody waits for an answer any more.
    bool is_peer_gone = false;
    absl::Time deadline;

    template <typename H>
    friend H AbslHashValue(H state, const Outgoing& t) {
      return H::combine(std::move(state), static_cast<int>(t.phase), t.offset, t.name,
                        t.peer_offset, t.is_peer_gone);
    }
  };
  enum class IncomingPhase { kPromised, kPlaced, kWaiting };
  struct Incoming {
    IncomingPhase phase = IncomingPhase::kPromised;
    uint64_t bytes = 0;
    uint64_t offset = 0;
    CommunicatorName name;
    // Its end was reported; only its block is kept.
    bool is_over = false;
    absl::Time deadline;

    template <typename H>
    friend H AbslHashValue(H state, const Incoming& t) {
      return H::combine(std::move(state), static_cast<int>(t.phase), t.offset, t.name, t.is_over);
    }
  };

  DeviceId PeerOf(const TransferKey& key) const {
    return key.source == self_ ? key.destination : key.source;
  }
  // The window while the communicator is open; null: it is not, or never was.
  Window* WindowOf(DeviceId peer, const CommunicatorName& name);
  void Send(PutMessageKind kind, const TransferKey& key, const CommunicatorName& name,
            uint64_t offset, const absl::Status& why, PutActions& actions) const;
  void EndOutgoing(const TransferKey& key, const absl::Status& status, PutActions& actions);
  // Tells the peer that nothing is written into the block that it has promised.
  void Withdraw(const TransferKey& key, const absl::Status& why, PutActions& actions);
  // Reports the end of an incoming transfer, whose block is kept.
  static void EndIncoming(const TransferKey& key, Incoming& transfer, absl::Status status,
                          PutActions& actions);
  // The same, and frees its block.
  void DropIncoming(const TransferKey& key, const absl::Status& status, PutActions& actions);
  // The same, but its block is never used again.
  void LoseIncoming(const TransferKey& key, const absl::Status& why, PutActions& actions);
  // No puts any more, and nothing is offered or accepted.
  void SwitchOff(const absl::Status& why, PutActions& actions);
  // Takes the window that a wait was issued on out of `ended_`, or returns the open one.
  std::vector<TransferKey> TakeWaiting(DeviceId peer, const CommunicatorName& name);
  // Whether an answer to a room that is not known may come: after the end of its communicator.
  bool IsLate(const PutMessage& message) const;
  absl::Status OnRoom(const PutMessage& message, PutActions& actions);
  absl::Status OnPlaced(const PutMessage& message, PutActions& actions);
  absl::Status OnWithdrawn(const PutMessage& message, PutActions& actions);
  void Issue(const TransferKey& key, Outgoing& transfer, PutActions& actions);
  void IssueHeld(PutActions& actions);
  void IssueWaits(DeviceId peer, Window& window, PutActions& actions);

  const Clock* clock_;
  DeviceId self_;
  PutRules rules_;

  PutPool pool_;
  absl::btree_map<DeviceId, Window> windows_;
  // Windows of ended communicators, on which a wait is still issued.
  std::vector<std::pair<DeviceId, Window>> ended_;
  absl::btree_map<TransferKey, Outgoing> outgoing_;
  absl::btree_map<TransferKey, Incoming> incoming_;
  bool is_paused_ = false;
  // Puts and waits that have neither passed nor been lost.
  int issued_ = 0;
  int issued_puts_ = 0;  // of those
  absl::Status lost_;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_PUT_ENDPOINT_H_
