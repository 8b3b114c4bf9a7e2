// SPDX-License-Identifier: Apache-2.0
// Values that arrive for an EagerInbox, on their way into the table of arrivals. Included by its
// source files only.
#ifndef FERRY_RENDEZVOUS_PEER_EAGER_INBOX_BATCH_H_
#define FERRY_RENDEZVOUS_PEER_EAGER_INBOX_BATCH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "rendezvous/local_rendezvous.h"
#include "rendezvous/peer/eager_inbox.h"

namespace ferry {

// A value that was admitted, and the control channel on which it came.
struct EagerInbox::Admitted {
  EagerReceiver::Arrival arrival;
  uint64_t epoch = 0;
};

// The device context of a value that waits in the table of arrivals.
class EagerInbox::ArrivalTag final : public DeviceContext, public EagerInbox::Admitted {
 public:
  explicit ArrivalTag(const Admitted& admitted) : Admitted(admitted) {}
};

// A record of an EAGER frame, until its value is taken or kept.
class EagerInbox::RecordValue final : public LocalRendezvous::IncomingValue {
 public:
  // `admitted`: null: it is admitted by Match or Queue, and then Match also ends it. `violation`
  // says why the control channel cannot be used any more, and then nothing is delivered.
  RecordValue(EagerInbox& inbox, RemoteRendezvous& step, const RendezvousKey& key,
              const EagerRecord& record, const Admitted* admitted, absl::Status& violation)
      : inbox_(inbox),
        step_(step),
        key_(key),
        record_(record),
        admitted_(admitted),
        violation_(violation) {}
  RecordValue(const RecordValue&) = delete;
  RecordValue& operator=(const RecordValue&) = delete;

  absl::Status Match(const RendezvousKey& key, const RecvArgs& args, Tensor& tensor) override;
  absl::Status Queue(Tensor& tensor, SendArgs& args) override;

 private:
  absl::Status Copy(Tensor& tensor);
  // `is_taken`: a receive takes it at once.
  absl::StatusOr<EagerReceiver::Arrival> Admit(bool is_taken)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(inbox_.mu_);

  EagerInbox& inbox_;
  RemoteRendezvous& step_;
  const RendezvousKey& key_;
  const EagerRecord& record_;
  const Admitted* const admitted_;
  absl::Status& violation_;
};

// Values that arrive together. They are admitted before they are delivered, and end in the order of
// their frames afterwards, so that each needs the link's lock only as one of them all.
class EagerInbox::Batch final {
 public:
  bool is_full() const { return count_ == kMost; }
  bool is_empty() const { return count_ == 0; }
  void Clear();
  void Add(const EagerRecord& record) { entries_[count_++].emplace(record); }

  // Delivers them; `step`: null: it is over here.
  //   Errors: INVALID_ARGUMENT: a violation. Those before it have been delivered.
  absl::Status Deliver(EagerInbox& inbox, int64_t step_id, RemoteRendezvous* step);

 private:
  static constexpr size_t kMost = 64;

  struct Entry {
    explicit Entry(const EagerRecord& record) : record(record) {}

    const EagerRecord record;
    std::optional<RendezvousKey> known;
    // A later record of the batch may give the name's number to another one.
    std::optional<RendezvousKey> key;
    Admitted admitted;
    std::optional<RecordValue> value;
  };

  // Adds an item for each value, up to a violation. Returns the epoch.
  uint64_t Admit(EagerInbox& inbox, int64_t step_id, RemoteRendezvous* step,
                 absl::Status& violation);
  // Acknowledges the values that were taken, and refuses those that were dropped.
  void Settle(EagerInbox& inbox, int64_t step_id, RemoteRendezvous& step, uint64_t epoch,
              bool is_intact);

  size_t count_ = 0;
  std::array<std::optional<Entry>, kMost> entries_;
  absl::InlinedVector<LocalRendezvous::ArrivalItem, kMost> items_;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_EAGER_INBOX_BATCH_H_
