// SPDX-License-Identifier: Apache-2.0
// CommunicatorBootstrap: the rendezvous of a communicator's ranks through the store, and its
// creation.
#ifndef FERRY_GPU_COMMUNICATOR_COMMUNICATOR_BOOTSTRAP_H_
#define FERRY_GPU_COMMUNICATOR_COMMUNICATOR_BOOTSTRAP_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "gpu/communicator/communicator_key.h"

namespace ferry {

// The bootstrap's interface to the store. Calls return at once and never call the bootstrap back
// inline; their effects are reported through the watch, in the store's order.
class BootstrapStore {
 public:
  virtual ~BootstrapStore() = default;
  // From now on calls CommunicatorBootstrap::OnEntry for each existing entry, then OnWatching, then
  // OnEntry for each entry that is set.
  virtual void Watch(absl::string_view prefix) = 0;
  virtual void Set(absl::string_view key, std::string value) = 0;
  // Sets the key only if it holds `expected` (nullopt: if it is absent).
  virtual void CompareAndSet(absl::string_view key, std::optional<std::string> expected,
                             std::string desired) = 0;
  virtual void DeletePrefix(absl::string_view prefix) = 0;
};

// The bootstrap's interface to NCCL, on the device's executor. As above: never calls back inline.
class BootstrapActions {
 public:
  virtual ~BootstrapActions() = default;
  // Returns ids of kNcclUniqueIdBytes each. Each costs a thread and a socket of this process until
  // all of its ranks have connected, so they are created only once all ranks are present.
  virtual absl::StatusOr<std::vector<std::string>> CreateUniqueIds(int count) = 0;
  // Returns the one id with which new ranks join the communicator that this rank offered as origin.
  virtual absl::StatusOr<std::string> CreateGrowId() = 0;
  // Starts without blocking; completion is reported by CommunicatorBootstrap::OnInitialised.
  virtual void Initialise(uint32_t generation, CommunicatorWay way,
                          const std::vector<std::string>& ids) = 0;
  // Returns this device's sequence number for the warm-up (WarmUpSequencer), to be published to the
  // other ranks; nullopt: no rank has one.
  virtual std::optional<uint64_t> ProposeSequenceNumber(uint32_t generation) = 0;
  // Starts the warm-up with each peer, in the order of `number`, the largest of all ranks';
  // completion is reported by CommunicatorBootstrap::OnWarmedUp.
  virtual void WarmUp(uint32_t generation, uint64_t number) = 0;
  // Describes the operation that the warm-up waits for, for messages.
  virtual std::string DescribeWarmUp() const = 0;
  // The bootstrap is Ready, but another rank has abandoned the generation: operations in flight on
  // the communicator may never complete. Called once; the owner must retire the bootstrap.
  virtual void OnAbandoned(uint32_t generation, const absl::Status& why) = 0;
  // Aborts and frees what Initialise has started; it is not reported any more.
  virtual void Discard(uint32_t generation, const absl::Status& why) = 0;
  // The bootstrap is Ready (OK) or Failed. Called once for each Start.
  virtual void OnEnded(const absl::Status& status) = 0;
};

struct CommunicatorBootstrapOptions {
  // As returned by ncclGetVersion; must be equal on all ranks.
  int nccl_version = 0;
  // Total of all attempts.
  absl::Duration timeout = absl::Seconds(60);
  // Each attempt has its own generation.
  int max_attempts = 4;
  // Must be equal on all ranks.
  int ranks_per_id = kRanksPerUniqueId;
  // Offered in the first attempt. If all ranks offer the same, the communicator is made of that
  // one; each later attempt creates it.
  std::optional<RankOrigin> origin;
};

enum class BootstrapState {
  kIdle,
  kWaiting,
  kInitialising,
  kAgreeingOnOrder,
  kWarmingUp,
  kReady,
  kFailed
};
absl::string_view BootstrapStateName(BootstrapState state);

// One rank's state machine. Each attempt:
//   1  every rank reads the generation and sets its presence under it, with its NCCL version
//   2  when all are present, the first rank chooses the way (ChooseCommunicatorWay), creates the
//      ids for it, and publishes both
//   3  every rank that sees them initializes, and publishes a number for its warm-up
//   4  when all have, every rank warms up, in the order of the largest of their numbers
// A generation whose creation has begun and failed is over for all: any rank that sees the failure
// advances the communicator to the next one. So an id is used at most once, by each rank, in one
// attempt. A rank may be Ready when another one's attempt fails: it is notified like of all store
// events. Not thread-safe. The store, the actions and the clock outlive it.
class CommunicatorBootstrap final {
 public:
  // REQUIRES: 0 <= rank < key.size().
  CommunicatorBootstrap(CommunicatorKey key, int rank, const CommunicatorBootstrapOptions& options,
                        BootstrapStore& store, BootstrapActions& actions, const Clock& clock);

  // REQUIRES: Idle or Failed. `lowest_generation`: earlier ones are known to be over.
  void Start(uint32_t lowest_generation = 1);
  void OnEntry(absl::string_view key, absl::string_view value);
  void OnWatching();
  // The store is permanently unreachable.
  void OnStoreFailed(const absl::Status& why);
  void OnInitialised(uint32_t generation, const absl::Status& status);
  void OnWarmedUp(uint32_t generation, const absl::Status& status);
  // The communicator is broken or no longer needed, and becomes Idle; or it never will be, since
  // another rank's process has died, and its creation ends with `why`. Advances the generation.
  void Retire(const absl::Status& why);

  absl::Time NextDeadline() const;
  void Expire();

  BootstrapState state() const { return state_; }
  // The generation in progress or ready.
  uint32_t generation() const { return generation_; }
  const CommunicatorKey& key() const { return key_; }
  // The error, if Failed.
  const absl::Status& status() const { return status_; }

 private:
  bool IsUnderWay() const {
    return state_ == BootstrapState::kWaiting || state_ == BootstrapState::kInitialising ||
           state_ == BootstrapState::kAgreeingOnOrder || state_ == BootstrapState::kWarmingUp;
  }
  std::string Describe() const;
  void BeginAttempt();
  // While Waiting: checks whether the ids can be created or used.
  void TryBegin();
  // While AgreeingOnOrder: checks whether all ranks have published their numbers.
  void CheckSequenceNumbers();
  // "2 of 4: ranks 1,2 (devices 5,7) have not <done>".
  std::string DescribeMissing(absl::string_view done) const;
  absl::Status CheckVersion(int rank, int version) const;
  // This rank's offer in the attempt in progress.
  std::optional<RankOrigin> Offer() const {
    return attempts_ == 1 ? options_.origin : std::nullopt;
  }
  // Checks that this rank is prepared for the way that the first one has published.
  absl::Status CheckWay(CommunicatorWay way) const;
  // The choice of the first rank, when all are present.
  absl::StatusOr<CommunicatorUniqueIds> ChooseWay();
  // Handles an entry that reports a rank's presence in this generation.
  void NotePresence(absl::string_view key, absl::string_view value);
  // Advances the communicator past this generation.
  void LeaveGeneration(const absl::Status& why);
  void FailAttempt(const absl::Status& why);
  void Fail(const absl::Status& why);

  // Constant after construction.
  const CommunicatorKey key_;
  const int rank_;
  const CommunicatorBootstrapOptions options_;
  BootstrapStore& store_;
  BootstrapActions& actions_;
  const Clock& clock_;

  BootstrapState state_ = BootstrapState::kIdle;
  absl::Status status_;
  bool is_watching_ = false;
  bool has_watched_ = false;
  absl::Time started_;
  absl::Time deadline_ = absl::InfiniteFuture();
  int attempts_ = 0;
  // In progress or ready; 0: the next one is not known yet.
  uint32_t generation_ = 0;
  uint32_t lowest_ = 1;
  // The first whose keys may be left in the store; 0: not known yet.
  uint32_t oldest_ = 0;
  bool has_created_ids_ = false;
  // Ranks that are not present; while AgreeingOnOrder: that have not published their number.
  std::set<int> missing_;
  // Offers of the ranks that are present.
  std::vector<std::optional<RankOrigin>> offers_;
  // The actions hold state of this generation.
  bool has_begun_ = false;
  // It is Ready, but was abandoned.
  bool is_abandoned_ = false;
  // The store's text of the generation; nullopt if it is not set.
  std::optional<std::string> generation_text_;
  uint32_t store_generation_ = 1;
  // Entries of live generations, by key.
  std::map<std::string, std::string, std::less<>> entries_;
};

}  // namespace ferry

#endif  // FERRY_GPU_COMMUNICATOR_COMMUNICATOR_BOOTSTRAP_H_
