// SPDX-License-Identifier: Apache-2.0
// EagerInbox: the values that one peer sends to this process before they are requested.
#ifndef FERRY_RENDEZVOUS_PEER_EAGER_INBOX_H_
#define FERRY_RENDEZVOUS_PEER_EAGER_INBOX_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "base/spin_lock.h"
#include "base/table_sizes.h"
#include "rendezvous/eager_link.h"
#include "rendezvous/peer/eager_receiver.h"
#include "rendezvous/peer/transfer_context.h"
#include "rendezvous/remote_rendezvous.h"
#include "transport/control/control_channel.h"

namespace ferry {

// EagerReceiver with a lock, the control channel and the tables of arrivals of the open steps. For
// one incarnation of a producer; it stays when the control channel ends. Thread-safe. Messages are
// passed with the control channel on which they came, and ignored if it is no longer the current
// one. Lock order: eager_link.h.
class EagerInbox final : public EagerRecvLink {
 public:
  // Calls the function on the loop's thread after that time.
  using RunAfter = std::function<void(absl::Duration, absl::AnyInvocable<void()>)>;

  // Acknowledgements and watches wait for this long at most for others to join them.
  static constexpr absl::Duration kMaxAckDelay = absl::Milliseconds(2);

  // `context` and `run_after` must outlive it.
  EagerInbox(const TransferContext& context, const EagerLimits& limits, const PeerId& producer,
             const RunAfter& run_after);
  ~EagerInbox() override;

  const PeerId& producer() const { return producer_; }

  // There is a control channel, on which earlier requests have been sent, and the producer knows
  // the protocol.
  void OnOpen(std::shared_ptr<ControlChannel> channel) ABSL_LOCKS_EXCLUDED(mu_);
  // It is being closed: later receives are requested, on the next one.
  void OnClosing(const ControlChannel& channel) ABSL_LOCKS_EXCLUDED(mu_);
  // It has ended: receives that wait end with `why`. Values that have arrived stay.
  void OnClosed(const ControlChannel& channel, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // It is about to be closed by this side: acknowledges what was received.
  void BeforeClose() ABSL_LOCKS_EXCLUDED(mu_);

  // Requests that are being passed on outside of the calls below hold back PUSH.
  void HoldRequests() ABSL_LOCKS_EXCLUDED(mu_);
  void ReleaseRequests() ABSL_LOCKS_EXCLUDED(mu_) { OnRequested(); }
  // For a request that is about to be sent: the number of its name, 0: send the text.
  uint32_t NumberForRequest(const ControlChannel& channel, const RendezvousKey& key) const
      ABSL_LOCKS_EXCLUDED(mu_);

  Route OnReceive(RemoteRendezvous& step, const RendezvousKey& key, absl::Status& why) override
      ABSL_LOCKS_EXCLUDED(mu_);
  bool MayWait(RemoteRendezvous& step, size_t key_bytes) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnConverted(const RendezvousKey& key) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnRequested() override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnTaken(Tensor& tensor, SendArgs& args, const RecvArgs& recv_args) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void AfterReceive() override {
    if (needs_timer_.load(std::memory_order_relaxed)) StartTimer();
  }
  void OnStepEnd(int64_t step_id, bool may_begin_again) override ABSL_LOCKS_EXCLUDED(mu_);
  std::string Phase() const override;

  // On the loop's thread. OnEager: EAGER frames in the order of their arrival, whose types are not
  // looked at. Neighbours of one step are handled as if they were one.
  //   acknowledge: called with what a frame acknowledges in the other direction.
  //   Errors, for all: INVALID_ARGUMENT: a violation of the protocol. The first two also
  //   RESOURCE_EXHAUSTED: too many steps are open here.
  absl::Status OnEager(const ControlChannel& channel, absl::Span<const ControlFrame> frames,
                       absl::FunctionRef<absl::Status(const EagerRange&)> acknowledge)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnPull(const ControlChannel& channel, absl::string_view body)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnAckNow(const ControlChannel& channel, absl::string_view body)
      ABSL_LOCKS_EXCLUDED(mu_);
  // An ERROR with kWatchBit in its id.
  absl::Status OnWatchEnded(const ControlChannel& channel, uint64_t id, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Ids of WATCH have this bit, others have not.
  static constexpr uint64_t kWatchBit = uint64_t{1} << 62;

  // The size of every internal table; for tests and debugging.
  TableSizes InnerTableSizes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class RecordValue;
  class Batch;
  struct Burst;
  struct Admitted;
  class ArrivalTag;

  bool IsCurrent(const ControlChannel& channel) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return &channel == channel_.get();
  }
  bool IsFromProducer(const RendezvousKey& key) const;
  // Also for this node: a key that the producer may name.
  bool IsExpected(const RendezvousKey& key) const;
  // Handles the first of the frames, and those behind it that EagerFrameReader can add to it.
  // Returns how many are done with: all, if the channel is not the current one.
  absl::StatusOr<size_t> OnEagerBurst(
      const ControlChannel& channel, absl::Span<const ControlFrame> frames,
      absl::FunctionRef<absl::Status(const EagerRange&)> acknowledge) ABSL_LOCKS_EXCLUDED(mu_);
  // Reads the records of the frames that are left. `step`: null: it is over here.
  absl::Status ReadRecords(const ControlChannel& channel, EagerFrameReader& reader,
                           RemoteRendezvous* step) ABSL_LOCKS_EXCLUDED(mu_);
  // Matches the value of a record alone.
  absl::Status DeliverOne(const ControlChannel& channel, const EagerRecord& record, int64_t step_id,
                          RemoteRendezvous* step) ABSL_LOCKS_EXCLUDED(mu_);
  // Passes the next records of the frames to the receives that have been posted for them in that
  // order, if they are: what is left takes the general way.
  void TakePosted(const ControlChannel& channel, EagerFrameReader& reader, RemoteRendezvous& step)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The part of TakePosted with the lock of the queue of receives held. Returns how many are taken;
  // sets their tensors.
  size_t MatchPosted(const ControlChannel& channel, absl::Span<const EagerPlainRecord> records,
                     absl::Span<const ArrivalTable::ItemPtr> posted, int64_t step_id,
                     absl::Span<Tensor> tensors) ABSL_LOCKS_EXCLUDED(mu_);
  // Sets `tensor` to the value for that receive. False: it cannot be taken as it is.
  bool CopyPlain(const EagerPlainRecord& record, const RecvArgs& args, Tensor& tensor) const;
  // OK if that receive may take an eager value.
  absl::Status Check(const TensorHeader& header, bool is_dead, const RecvArgs& args) const;
  // A value of that step was admitted. False: the step is over here.
  bool NoteArrival(RemoteRendezvous& step, const EagerReceiver::Arrival& arrival)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The key of the next record.
  //   Errors: INVALID_ARGUMENT: a violation.
  //   known: as for EagerReceiver::OnRecord.
  absl::StatusOr<RendezvousKey> ReadKey(int64_t step_id, const EagerRecord& record,
                                        std::optional<RendezvousKey> known)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The key of a record with a text; none: it has no text, or a wrong one. `step` may be null.
  static std::optional<RendezvousKey> DefinedKey(const RemoteRendezvous* step,
                                                 const EagerRecord& record);
  // A receive has taken the value, with that status. SendOutput sends what is due then.
  void Finish(const EagerReceiver::Arrival& arrival, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sets `step` unless it is over here.
  //   Errors: RESOURCE_EXHAUSTED: too many are open.
  absl::Status FindStep(int64_t step_id, std::shared_ptr<RemoteRendezvous>& step) const;
  // The step of the last record is over here.
  void Drop(int64_t step_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The step is over here.
  void EndStep(int64_t step_id, bool may_begin_again = false) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends what is due, or every acknowledgement.
  void SendOutput(bool all = false) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A frame could not be sent: the control channel cannot be used any more.
  void CloseOnError(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The timer is needed if something waits for it.
  void RequestTimer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StartTimer() ABSL_LOCKS_EXCLUDED(mu_);
  void OnTimer() ABSL_LOCKS_EXCLUDED(mu_);
  void QueueWatch(int64_t step_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Forgets the control channel.
  void Reset() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Batch* EmptyBatch();
  // After the end of the control channel.
  void EndWaiting(const absl::Status& why);
  // The producer sends nothing more in a step that the program has not opened, and perhaps never
  // will: drops what has arrived.
  void DropUnopened(std::shared_ptr<RemoteRendezvous> step);

  const TransferContext& context_;
  const EagerLimits limits_;
  const PeerId producer_;
  const RunAfter& run_after_;
  std::atomic<bool> needs_timer_{false};
  // Loop thread only; null until it is needed.
  std::unique_ptr<Batch> batch_;
  std::unique_ptr<Burst> burst_;

  mutable SpinLock mu_;
  // Null: everything is requested.
  std::shared_ptr<ControlChannel> channel_ ABSL_GUARDED_BY(mu_);
  bool is_closing_ ABSL_GUARDED_BY(mu_) = false;
  EagerReceiver receiver_ ABSL_GUARDED_BY(mu_);
  // Counts control channels: what arrived on an earlier one is not acknowledged.
  uint64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;
  bool is_timer_running_ ABSL_GUARDED_BY(mu_) = false;
  // Steps whose WATCH has not been sent.
  std::vector<int64_t> unsent_watches_ ABSL_GUARDED_BY(mu_);
  // Steps of the WATCHes that have been sent and not answered, by id; none: it was cancelled.
  absl::flat_hash_map<uint64_t, std::optional<int64_t>> watches_ ABSL_GUARDED_BY(mu_);
  uint64_t last_watch_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_EAGER_INBOX_H_
