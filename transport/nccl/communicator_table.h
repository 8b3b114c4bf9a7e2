// SPDX-License-Identifier: Apache-2.0
// CommunicatorTable: the life cycle of one device's communicators, and which peers have failed.
#ifndef FERRY_TRANSPORT_NCCL_COMMUNICATOR_TABLE_H_
#define FERRY_TRANSPORT_NCCL_COMMUNICATOR_TABLE_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"

#include "transport/nccl/batch_agreement_action.h"
#include "transport/nccl/batch_agreement_types.h"

namespace ferry {

// The failure half of the agreement protocol. A generation of a communicator is opened, is broken
// on all of its devices by the first one that sees an error, and is freed once nothing runs on any
// broken communicator of this device:
//   1  Break flags it, aborts what runs on it, and sends BREAK to its other devices
//   2  each device whose batches on it are over sends SETTLED: what it has not acknowledged by then
//      it has not received (Settle)
//   3  the last broken communicator to become idle frees them all; the next generation may open
// Calls append actions as those of BatchAgreementEndpoint do. It knows no transfers and no batches:
// the caller ends those of what was broken. Not thread-safe; a value.
class CommunicatorTable final {
 public:
  struct BreakCause {
    // The device that has failed, if any; the device that reported it, if any.
    DeviceId died = kNoDevice;
    DeviceId told_by = kNoDevice;
  };

  explicit CommunicatorTable(DeviceId self) : self_(self) {}

  // Its devices, which include this one, are alive again.
  //   Errors: FAILED_PRECONDITION: the generation has been aborted, or another one is not yet
  //   freed; INVALID_ARGUMENT: its devices.
  absl::Status Open(const CommunicatorName& name, absl::Span<const DeviceId> devices);
  bool IsOpen(const CommunicatorName& name) const;
  // The generation that is open; nothing: none is.
  std::optional<CommunicatorName> OpenGenerationOf(uint64_t id) const;
  // The communicator to use with `peer`; nothing: none is open.
  std::optional<CommunicatorName> UsableWith(DeviceId peer) const;
  // All communicators whose last generation includes the peer, in any state.
  std::vector<CommunicatorName> CommunicatorsOf(DeviceId peer) const;
  bool Includes(uint64_t id, DeviceId peer) const;
  // The latest generation that was opened; 0: none was.
  uint32_t LatestGenerationOf(uint64_t id) const;
  // The generation has ended permanently: it will not open again.
  bool IsOver(const CommunicatorName& name) const;
  // A batch with the peer is about to run on it. Returns true for the first one.
  bool MarkUsed(uint64_t id, DeviceId peer);

  // Breaks those of `names` that are open, and returns them.
  std::vector<CommunicatorName> Break(absl::Span<const CommunicatorName> names,
                                      const absl::Status& why, const BreakCause& cause,
                                      BatchAgreementActions& actions);
  // No generation up to this one will open any more. Returns false if that was so already.
  bool EndGenerationsUpTo(const CommunicatorName& name, const absl::Status& why);
  // The peer has sent SETTLED for the generation; has no effect unless it is broken here too.
  void MarkSettled(const CommunicatorName& name, DeviceId peer);
  // The peer has settled the latest broken generation.
  bool HasSettled(uint64_t id, DeviceId peer) const;
  // Sends SETTLED, and frees communicators, where due.
  //   is_running: a batch of a generation that is not open is left in the communicator `id`.
  void Settle(absl::FunctionRef<bool(uint64_t id)> is_running, BatchAgreementActions& actions);
  // Final status of a transfer with `peer` that was in a batch of `name`. REQUIRES: `name` was
  // open, or has ended before it was.
  absl::Status EndOf(DeviceId peer, const CommunicatorName& name) const;

  // The error with which transfers with a failed device end; null: it is alive.
  const absl::Status* FailureOf(DeviceId peer) const;
  bool HasFailed(DeviceId peer) const { return failed_.contains(peer); }
  void MarkFailed(DeviceId peer, const absl::Status& end) { failed_.emplace(peer, end); }
  void MarkAlive(DeviceId peer) { failed_.erase(peer); }

  template <typename H>
  friend H AbslHashValue(H state, const CommunicatorTable& table) {
    for (const auto& [peer, why] : table.failed_) state = H::combine(std::move(state), peer);
    return H::combine(std::move(state), table.communicators_);
  }

 private:
  enum class State { kAbsent, kOpen, kBroken };
  struct Communicator {
    State state = State::kAbsent;
    // Generation of `state`, unless that is kAbsent.
    uint32_t generation = 0;
    // Earlier generations have ended permanently.
    uint32_t lowest = 0;
    std::vector<DeviceId> devices;
    // Peers with which a batch was run.
    absl::btree_set<DeviceId> used;
    // While broken: peers that have sent SETTLED; whether this side has.
    absl::btree_set<DeviceId> settled;
    bool is_settled = false;
    // Reason for the last break.
    absl::Status why;

    template <typename H>
    friend H AbslHashValue(H state, const Communicator& c) {
      return H::combine(std::move(state), static_cast<int>(c.state), c.generation, c.lowest,
                        c.devices, c.used, c.settled, c.is_settled, c.why.raw_code());
    }
  };

  // Null: nothing is known of it.
  const Communicator* Find(uint64_t id) const;

  // Constant after construction.
  DeviceId self_;

  absl::btree_map<uint64_t, Communicator> communicators_;
  absl::btree_map<DeviceId, absl::Status> failed_;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_COMMUNICATOR_TABLE_H_
