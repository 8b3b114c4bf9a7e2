// SPDX-License-Identifier: Apache-2.0
// NcclDevice: a GPU of this process as keyed transfers over NCCL see it.
#ifndef FERRY_TRANSPORT_NCCL_NCCL_DEVICE_H_
#define FERRY_TRANSPORT_NCCL_NCCL_DEVICE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/thread_group.h"
#include "gpu/clique/clique_cache.h"
#include "gpu/gpus.h"
#include "net/event_loop.h"
#include "transport/nccl/batch_agreement_endpoint.h"
#include "transport/nccl/batch_runner.h"
#include "transport/nccl/nccl_context.h"

namespace ferry {

// A transfer of this GPU's, at either end.
struct NcclTransfer {
  TransferKey key;
  PeerDevice peer;
  // Where it is, or goes; kept until the transfer is over.
  Tensor memory;
  // As FinishTransfer of batch_agreement_action.h. Nothing of NCCL's touches the memory any more.
  absl::AnyInvocable<void(absl::Status) &&> done;
};

// Does what the GPU's grant endpoint wants to be done, in order: sends messages, runs batches, and
// makes, aborts and forgets communicators, one for each GPU that it exchanges something with.
// Thread- safe; never blocks; callbacks run with no lock held.
class NcclDevice final : public std::enable_shared_from_this<NcclDevice>,
                         public NcclArbiter::Keyed {
 public:
  // What several devices of a process share; outlives them.
  struct Common {
    NcclJob job;
    NcclTransportOptions options;
    Gpus* gpus = nullptr;
    EventLoop* loop = nullptr;
    // Making and ending communicators blocks.
    ThreadGroup* threads = nullptr;
    uint64_t incarnation = 0;
    // To message.to, in order.
    std::function<void(const BatchAgreementMessage& message)> send;
    BatchRunner::LearnCallback learn;
  };

  // Of the process's GPU `ordinal`, which need not be open. `common` outlives it.
  //   Errors: as NcclArbiter::SetKeyed.
  static absl::StatusOr<std::shared_ptr<NcclDevice>> Create(const Common& common, int ordinal,
                                                            DeviceId self);

  // At the source, when its bytes are there. `tell` gets the grant that may go along to the
  // destination, and tells it of the transfer, before anything else is said to it.
  void Send(NcclTransfer transfer,
            absl::AnyInvocable<void(std::optional<BatchAgreementMessage> grant) &&> tell)
      ABSL_LOCKS_EXCLUDED(mu_);
  // At the destination, which has been told of it.
  void Receive(NcclTransfer transfer, std::optional<BatchAgreementMessage> grant)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Nobody wants it any more; `done` still says when it is over.
  void Cancel(const TransferKey& key, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  //   Errors: INVALID_ARGUMENT: the peer does not keep to the protocol.
  absl::Status OnMessage(const BatchAgreementMessage& message, const PeerDevice& from)
      ABSL_LOCKS_EXCLUDED(mu_);
  // A communicator with it will be needed.
  void Prepare(const PeerDevice& peer) ABSL_LOCKS_EXCLUDED(mu_);

  void PeerJoined(DeviceId peer) ABSL_LOCKS_EXCLUDED(mu_);
  void PeerFailed(DeviceId peer, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Why nothing can go to or from that peer just now; OK: it can, as far as is known.
  absl::Status Refusal(DeviceId peer) const ABSL_LOCKS_EXCLUDED(mu_);
  // This process is leaving: what is being made is given up, what there is is aborted; when it
  // returns, aborts have begun on common.threads, or `timeout` is over.
  void Stop(const absl::Status& why, absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

  // A program has NCCL work of its own on this GPU, or has no more.
  void OnTurn() override ABSL_LOCKS_EXCLUDED(mu_);

  DeviceId self() const { return self_; }
  // The one that is open with that peer; null: none. For measuring what NCCL itself does on it:
  // whoever uses it sees to it that nothing else is under way on either side.
  std::shared_ptr<NcclCommunicator> CommunicatorWith(DeviceId peer) const ABSL_LOCKS_EXCLUDED(mu_);
  // Transfers that are under way and what they wait for, one line for each.
  std::vector<std::string> Pending() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // What exchanges with one other GPU need.
  struct Pair {
    enum class State { kIdle, kMaking, kOpen, kEnding };
    State state = State::kIdle;
    PeerDevice peer;
    // Transfers that are under way.
    int users = 0;
    // In CliqueCache; empty: none is being made or there.
    std::string clique;
    // Whether it counts as in use there.
    bool is_held = false;
    CommunicatorName name;
    std::shared_ptr<NcclCommunicator> communicator;
    // For its first batch.
    std::shared_ptr<Buffer> warmth;
    // Of the GPU's memory, what NCCL and others had not taken when it was begun.
    uint64_t free_before = 0;
    // Why the one that is being made is not wanted any more.
    std::shared_ptr<std::atomic<bool>> give_up;
    // The last one was over before it could be opened.
    bool was_overtaken = false;
    // What messages of this peer may speak of, of that incarnation.
    uint64_t clique_id = 0;
    uint64_t clique_incarnation = 0;
    // After a failure: what it was, and when to try again.
    absl::Status failed;
    absl::Time retry_at = absl::InfinitePast();
    absl::Duration backoff;
  };
  using Work = absl::AnyInvocable<void() &&>;
  using Todo = std::variant<GrantAction, Work>;

  // Lets `change` speak to the endpoint, then does what that wants to be done; or leaves it to the
  // thread that is doing so already.
  void Run(absl::FunctionRef<void(GrantActions& actions)> change) ABSL_LOCKS_EXCLUDED(mu_);
  void Perform(Todo todo) ABSL_LOCKS_EXCLUDED(mu_);
  void Launch(AgreedBatch batch) ABSL_LOCKS_EXCLUDED(mu_);
  void Finish(const TransferKey& key, absl::Status status) ABSL_LOCKS_EXCLUDED(mu_);
  void Abort(const CommunicatorName& name) ABSL_LOCKS_EXCLUDED(mu_);
  void Free(const CommunicatorName& name) ABSL_LOCKS_EXCLUDED(mu_);
  void ScheduleExpiry() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // nccl_device_pairs.cc
  void AddUser(const PeerDevice& peer, GrantActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropUser(DeviceId peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Begins to make the pair's communicator unless there is one, or it is too early.
  void Need(Pair& pair, GrantActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Reserve(Pair& pair, GrantActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  struct MadeCommunicator {
    absl::StatusOr<std::shared_ptr<NcclCommunicator>> communicator;
    Gpu* gpu = nullptr;
    std::shared_ptr<Buffer> warmth;
    uint64_t free_before = 0;
  };
  void Made(DeviceId peer, const CliqueKey& key, MadeCommunicator made) ABSL_LOCKS_EXCLUDED(mu_);
  // All of its connections are there: what it takes of the GPU's memory counts from now on.
  void Weigh(const CommunicatorName& name) ABSL_LOCKS_EXCLUDED(mu_);
  // Nothing can go to or from it for a while.
  void Fail(Pair& pair, const absl::Status& why, GrantActions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<CliqueKey> CliqueWith(const PeerDevice& peer) const;
  void UpdateHold(Pair& pair) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Pair* PairOf(const CommunicatorName& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // nccl_device_turns.cc
  // While somebody wants the GPUs to be quiet.
  void SetQuietWanted(bool is_wanted) ABSL_LOCKS_EXCLUDED(mu_);
  void UpdatePause(GrantActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The program's turn has lasted: what waits for its end goes another way.
  void EndTurnPatience() ABSL_LOCKS_EXCLUDED(mu_);
  // Why `key` is not to wait for its turn; OK: it may.
  absl::Status TurnRefusal() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Lets go of it if the other side has.
  void CheckPair(DeviceId peer) ABSL_LOCKS_EXCLUDED(mu_);
  void OnBroken(const std::shared_ptr<NcclCommunicator>& communicator, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mu_);

  NcclDevice(const Common& common, int ordinal, DeviceId self);

  // Constant after construction.
  const Common& common_;
  const int ordinal_;
  const DeviceId self_;
  const std::shared_ptr<NcclArbiter> turns_;

  mutable absl::Mutex mu_;
  // Null until the first communicator is made.
  std::shared_ptr<BatchRunner> runner_ ABSL_GUARDED_BY(mu_);
  BatchAgreementEndpoint endpoint_ ABSL_GUARDED_BY(mu_);
  absl::btree_map<TransferKey, NcclTransfer> transfers_ ABSL_GUARDED_BY(mu_);
  absl::btree_map<DeviceId, Pair> pairs_ ABSL_GUARDED_BY(mu_);
  CliqueCache cache_ ABSL_GUARDED_BY(mu_);
  // What the next one is taken for.
  uint64_t communicator_bytes_ ABSL_GUARDED_BY(mu_);
  std::deque<Todo> todo_ ABSL_GUARDED_BY(mu_);
  bool is_performing_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status stopped_ ABSL_GUARDED_BY(mu_);
  absl::Time expiry_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  bool is_quiet_wanted_ ABSL_GUARDED_BY(mu_) = false;
  // Of a program: since when, and whether longer than anything waits for its end.
  bool is_turn_wanted_ ABSL_GUARDED_BY(mu_) = false;
  bool is_turn_long_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time turn_since_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_NCCL_DEVICE_H_
