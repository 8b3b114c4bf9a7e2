// SPDX-License-Identifier: Apache-2.0
// NcclDevice: a GPU of this process, for keyed transfers over NCCL.
#ifndef FERRY_TRANSPORT_NCCL_NCCL_DEVICE_H_
#define FERRY_TRANSPORT_NCCL_NCCL_DEVICE_H_

#include <cstddef>
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
#include "gpu/communicator/communicator.h"
#include "gpu/communicator/communicator_key.h"
#include "gpu/gpus.h"
#include "net/loop.h"
#include "transport/nccl/batch_agreement_endpoint.h"
#include "transport/nccl/batch_runner.h"
#include "transport/nccl/device_puts.h"
#include "transport/nccl/nccl_context.h"
#include "transport/nccl/peer_communicators.h"
#include "transport/nccl/put_host.h"
#include "transport/nccl/transfer_pause.h"

namespace ferry {

// A transfer to or from this GPU.
struct NcclTransfer {
  TransferKey key;
  PeerDevice peer;
  // Source or target memory; kept until the transfer is over.
  Tensor memory;
  // Status as for FinishTransfer in batch_agreement_action.h. NCCL no longer touches the memory.
  absl::AnyInvocable<void(absl::Status) &&> done;
  // If its bytes were put into the pool: called in place of `done`, with their memory.
  absl::AnyInvocable<void(std::shared_ptr<Buffer>) &&> deliver;
  uint64_t put_bytes = 0;
};

// Performs the actions of the GPU's batch agreement endpoint in order: sends messages, runs
// batches, and creates, aborts and frees communicators. PeerCommunicators decides which
// communicators exist, TransferPause when nothing new is agreed on. Thread-safe; never blocks;
// callbacks run with no lock held.
class NcclDevice final : public std::enable_shared_from_this<NcclDevice>,
                         public NcclArbiter::Keyed,
                         private PutHost {
 public:
  // Shared by the devices of a process; outlives them.
  struct Common {
    NcclJob job;
    NcclTransportOptions options;
    Gpus* gpus = nullptr;
    Loop* loop = nullptr;
    // Creating and destroying communicators blocks.
    ThreadGroup* threads = nullptr;
    uint64_t incarnation = 0;
    // Sends to message.to, in order.
    std::function<void(const BatchAgreementMessage& message)> send;
    // The same for messages about one-sided transfers. Null: there are none.
    std::function<void(const PutMessage& message)> send_put;
    BatchRunner::LearnCallback learn;
    // Calls a function once that much time has passed, on any thread; null: the loop does. For
    // tests.
    std::function<void(absl::Duration timeout, absl::AnyInvocable<void() &&> function)> after;
  };

  // For the process's GPU `ordinal`, which need not be open. `common` must outlive it.
  //   Errors: as NcclArbiter::SetKeyed.
  static absl::StatusOr<std::shared_ptr<NcclDevice>> Create(const Common& common, int ordinal,
                                                            DeviceId self);

  using TellCallback = absl::AnyInvocable<void(std::optional<BatchAgreementMessage> grant,
                                               std::optional<CommunicatorName> offer) &&>;
  // At the source, when the bytes are ready. `tell` gets the grant, or the offer of a put, to send
  // along, if any, and announces the transfer to the destination before any other message to it.
  void Send(NcclTransfer transfer, TellCallback tell) ABSL_LOCKS_EXCLUDED(mu_);
  // At the destination, when the transfer was announced; `is_offered`: with an offer, which is
  // thereby refused.
  void Receive(NcclTransfer transfer, std::optional<BatchAgreementMessage> grant,
               bool is_offered = false) ABSL_LOCKS_EXCLUDED(mu_);
  // At the destination, when it was announced with an offer. Returns false if there is no room:
  // `transfer` is then unchanged, and Receive can be called.
  bool ReceivePut(NcclTransfer& transfer, const CommunicatorName& offer) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether ReceivePut would return true, as far as known.
  bool HasRoom(DeviceId peer, const CommunicatorName& offer, uint64_t bytes)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Why there are no one-sided transfers with that peer now; OK: there are.
  //   Errors: FAILED_PRECONDITION: it is off, or something does not support them; UNAVAILABLE: not
  //   yet; otherwise what has failed.
  absl::Status PutRefusal(DeviceId peer) const ABSL_LOCKS_EXCLUDED(mu_);
  //   Errors: as OnMessage.
  absl::Status OnPutMessage(const PutMessage& message, const PeerDevice& from)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Cancels a transfer; `done` still reports when it is over.
  void Cancel(const TransferKey& key, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  //   Errors: INVALID_ARGUMENT: the peer violates the protocol.
  absl::Status OnMessage(const BatchAgreementMessage& message, const PeerDevice& from)
      ABSL_LOCKS_EXCLUDED(mu_);
  // A communicator with the peer will be needed.
  void Prepare(const PeerDevice& peer) ABSL_LOCKS_EXCLUDED(mu_);

  void PeerJoined(const PeerDevice& peer) ABSL_LOCKS_EXCLUDED(mu_);
  void PeerFailed(const PeerDevice& peer, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Why no transfer with that peer is possible now; OK: possible, as far as known.
  absl::Status Refusal(DeviceId peer) const ABSL_LOCKS_EXCLUDED(mu_);
  // This process is leaving: cancels communicators being created and aborts the others. On return,
  // aborts have started on common.threads, or `timeout` has passed.
  void Stop(const absl::Status& why, absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

  // A program starts or ends NCCL work of its own on this GPU.
  void OnTurn() override ABSL_LOCKS_EXCLUDED(mu_);

  DeviceId self() const { return self_; }
  // The open communicator with that peer; null: none. For measuring NCCL itself: the caller ensures
  // that nothing else is outstanding on either side.
  std::shared_ptr<NcclCommunicator> CommunicatorWith(DeviceId peer) const ABSL_LOCKS_EXCLUDED(mu_);
  // Windows of its communicators; for tests.
  size_t window_count() const ABSL_LOCKS_EXCLUDED(mu_);
  // Pending transfers and what they wait for, one line each.
  std::vector<std::string> Pending() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Work = absl::AnyInvocable<void() &&>;
  using Todo = std::variant<GrantAction, Work>;

  // Runs `change` on the endpoint, then performs the resulting actions, or leaves them to the
  // thread that is already doing so.
  void Run(absl::FunctionRef<void(BatchAgreementActions& actions)> change) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void Perform(Todo todo) ABSL_LOCKS_EXCLUDED(mu_);
  // Refuses messages that name another communicator than the one of the two.
  absl::Status CheckCommunicator(const BatchAgreementMessage& message, const PeerDevice& from)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Appends actions to those to be performed. A communicator that ends is flagged at once: nothing
  // else may see it open under the lock.
  void QueueAll(BatchAgreementActions actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // --- PutHost ---
  std::shared_ptr<void> Keep() override { return shared_from_this(); }
  void SendPut(const PutMessage& message) override { common_.send_put(message); }
  void Finish(const TransferKey& key, absl::Status status) override ABSL_LOCKS_EXCLUDED(mu_);
  void Deliver(const TransferKey& key, std::shared_ptr<Buffer> memory) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void Queue(Work work) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    todo_.emplace_back(std::move(work));
  }
  void AddToBatches(const TransferKey& key, BatchAgreementActions& actions) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Break(const CommunicatorName& name, const absl::Status& why,
             BatchAgreementActions& actions) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    endpoint_.Break(name, why, actions);
  }
  std::shared_ptr<NcclCommunicator> OpenCommunicator(DeviceId peer,
                                                     const CommunicatorName& name) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  const Tensor* MemoryOf(const TransferKey& key) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<BatchRunner> runner() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return runner_;
  }

  // Adds the set-up of a window with the peer to the batches, before its communicator is opened.
  void AddWindow(DeviceId peer, const CommunicatorName& name, DevicePuts::Made made,
                 BatchAgreementActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CancelOne(const TransferKey& key, const absl::Status& why, BatchAgreementActions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Launch(AgreedBatch batch) ABSL_LOCKS_EXCLUDED(mu_);
  void Abort(const CommunicatorName& name) ABSL_LOCKS_EXCLUDED(mu_);
  void Free(const CommunicatorName& name) ABSL_LOCKS_EXCLUDED(mu_);
  void ScheduleExpiry() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // A transfer with the peer was added: it needs a communicator.
  void AddUser(const PeerDevice& peer, BatchAgreementActions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Starts creating the peer's communicator unless there is one, or a retry is not due yet.
  void Need(DeviceId peer, BatchAgreementActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  struct MadeCommunicator {
    absl::StatusOr<std::shared_ptr<NcclCommunicator>> communicator;
    Gpu* gpu = nullptr;
    std::shared_ptr<Buffer> warmth;
    uint64_t free_before = 0;
    // For one-sided transfers, or why there are none.
    absl::StatusOr<DevicePuts::Made> puts;
  };
  // Creates a communicator. Blocks.
  MadeCommunicator Make(const CommunicatorKey& key, int rank, const CommunicatorOptions& options,
                        bool peer_has_puts) ABSL_LOCKS_EXCLUDED(mu_);
  void OnCommunicatorMade(DeviceId peer, const CommunicatorKey& key, MadeCommunicator made)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Opens a communicator that was created.
  //   Errors: as BatchAgreementEndpoint::Open.
  absl::Status Open(DeviceId peer, const CommunicatorKey& key, MadeCommunicator& made,
                    BatchAgreementActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StartRunner(Gpu& gpu) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // All of its connections are set up: measures the GPU memory that it uses.
  void Measure(const CommunicatorName& name) ABSL_LOCKS_EXCLUDED(mu_);
  // Cancels the peer's transfers; no others with it until the retry time.
  void Fail(DeviceId peer, const absl::Status& why, BatchAgreementActions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the communicator if the peer has ended it.
  void CheckPeer(DeviceId peer) ABSL_LOCKS_EXCLUDED(mu_);
  void OnBroken(const std::shared_ptr<NcclCommunicator>& communicator, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mu_);

  // True while the GPUs are requested to be quiet.
  void SetQuietWanted(bool is_wanted) ABSL_LOCKS_EXCLUDED(mu_);
  void UpdatePause(BatchAgreementActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The program's turn of that number has lasted too long: transfers that wait for its end take
  // another path.
  void EndTurnPatience(uint64_t turn) ABSL_LOCKS_EXCLUDED(mu_);
  // Why a transfer must not wait for the end of the program's turn; OK: it may.
  absl::Status TurnRefusal() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  NcclDevice(const Common& common, int ordinal, DeviceId self);

  // Constant after construction.
  const Common& common_;
  const int ordinal_;
  const DeviceId self_;
  const std::shared_ptr<NcclArbiter> turns_;

  mutable absl::Mutex mu_;
  // Null until the first communicator is created.
  std::shared_ptr<BatchRunner> runner_ ABSL_GUARDED_BY(mu_);
  BatchAgreementEndpoint endpoint_ ABSL_GUARDED_BY(mu_);
  absl::btree_map<TransferKey, NcclTransfer> transfers_ ABSL_GUARDED_BY(mu_);
  PeerCommunicators communicators_ ABSL_GUARDED_BY(mu_);
  TransferPause pause_ ABSL_GUARDED_BY(mu_);
  std::deque<Todo> todo_ ABSL_GUARDED_BY(mu_);
  bool is_performing_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status stopped_ ABSL_GUARDED_BY(mu_);
  absl::Time expiry_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();

  PutMemoryMaker put_memory_maker_;
  DevicePuts puts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_NCCL_DEVICE_H_
