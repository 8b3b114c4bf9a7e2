// SPDX-License-Identifier: Apache-2.0
// CommunicatorBootstrap: how the ranks of a clique find together through the store and make a
// communicator.
#ifndef FERRY_GPU_CLIQUE_COMMUNICATOR_BOOTSTRAP_H_
#define FERRY_GPU_CLIQUE_COMMUNICATOR_BOOTSTRAP_H_

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
#include "gpu/clique/clique_key.h"

namespace ferry {

// What a plan does with the store. Calls return at once and never call the plan back inside; what
// they bring about is heard through the watch, in the store's order.
class CliqueStore {
 public:
  virtual ~CliqueStore() = default;
  // From now on CommunicatorBootstrap::OnEntry for each entry that is there, then OnWatching, then
  // OnEntry for each that is set.
  virtual void Watch(absl::string_view prefix) = 0;
  virtual void Set(absl::string_view key, std::string value) = 0;
  // Only if it holds `expected` (nullopt: if it is absent).
  virtual void CompareAndSet(absl::string_view key, std::optional<std::string> expected,
                             std::string desired) = 0;
  virtual void DeletePrefix(absl::string_view prefix) = 0;
};

// What a plan has done with NCCL, on the device's executor. As above: never back inside.
class CliqueSteps {
 public:
  virtual ~CliqueSteps() = default;
  // Ids of kNcclUniqueIdBytes each. Each costs a thread and a socket of this process until all of
  // its ranks have come, so it is asked for only once all are there.
  virtual absl::StatusOr<std::vector<std::string>> Mint(int count) = 0;
  // Without blocking; then CommunicatorBootstrap::OnInitialised.
  virtual void Initialise(uint32_t generation, const std::vector<std::string>& ids) = 0;
  // Its device's number for the first exchange (FirstUseSequencer), for the other ranks; nothing:
  // it has none, on no rank.
  virtual std::optional<uint64_t> LineUp(uint32_t generation) = 0;
  // An exchange with each peer, in the order of `number`, which is the largest of all ranks'; then
  // CommunicatorBootstrap::OnWarmedUp.
  virtual void WarmUp(uint32_t generation, uint64_t number) = 0;
  // What that waits for, for messages.
  virtual std::string DescribeWarmUp() const = 0;
  // The plan is Ready, but another rank has given the generation up: what is under way on the
  // communicator may wait for ever. Once; whoever has it is to retire the plan.
  virtual void GivenUp(uint32_t generation, const absl::Status& why) = 0;
  // Aborts and frees what Initialise has begun; nothing of it is reported any more.
  virtual void Discard(uint32_t generation, const absl::Status& why) = 0;
  // The plan is Ready (OK) or Failed. Once for each Start.
  virtual void Ended(const absl::Status& status) = 0;
};

struct CommunicatorBootstrapOptions {
  // As ncclGetVersion says: all ranks must have the same.
  int nccl_version = 0;
  // For all attempts together.
  absl::Duration timeout = absl::Seconds(60);
  // Each under a generation of its own.
  int max_attempts = 4;
  // The same on all ranks.
  int ranks_per_id = kRanksPerUniqueId;
};

enum class CliqueState { kIdle, kWaiting, kInitialising, kLiningUp, kWarmingUp, kReady, kFailed };
absl::string_view CliqueStateName(CliqueState state);

// One rank's part, again and again:
//   1  every rank learns the generation and leaves its presence under it, with its NCCL version
//   2  when all are there, the first rank mints ids and publishes them
//   3  every rank that sees them initialises, and leaves a number for its first exchange
//   4  when all have, every rank warms up, in the order of the largest of their numbers
// A generation whose making has begun and failed is over for all: whoever sees that moves the
// clique to the next one. So an id is used at most once, by each rank, in one attempt. A rank may
// be Ready when another one's attempt fails: it hears of that as of everything that the store says.
// Not thread-safe. The store, the steps and the clock outlive it.
class CommunicatorBootstrap final {
 public:
  // REQUIRES: 0 <= rank < key.size().
  CommunicatorBootstrap(CliqueKey key, int rank, const CommunicatorBootstrapOptions& options,
                        CliqueStore& store, CliqueSteps& steps, const Clock& clock);

  // REQUIRES: Idle or Failed. `lowest_generation`: earlier ones are over, as the owner knows.
  void Start(uint32_t lowest_generation = 1);
  void OnEntry(absl::string_view key, absl::string_view value);
  void OnWatching();
  // The store is out of reach for good.
  void OnStoreFailed(const absl::Status& why);
  void OnInitialised(uint32_t generation, const absl::Status& status);
  void OnWarmedUp(uint32_t generation, const absl::Status& status);
  // The rank's process is gone: this clique can never be made (again).
  void PeerFailed(int rank, const absl::Status& why);
  // The communicator is broken or not wanted any more: Idle, and on to the next generation.
  void Retire(const absl::Status& why);

  absl::Time NextDeadline() const;
  void Expire();

  CliqueState state() const { return state_; }
  // That which is being made or ready.
  uint32_t generation() const { return generation_; }
  const CliqueKey& key() const { return key_; }
  // Why it is Failed.
  const absl::Status& status() const { return status_; }

 private:
  bool IsUnderWay() const {
    return state_ == CliqueState::kWaiting || state_ == CliqueState::kInitialising ||
           state_ == CliqueState::kLiningUp || state_ == CliqueState::kWarmingUp;
  }
  std::string Describe() const;
  void BeginAttempt();
  // Whether the ids can be minted or used, while Waiting.
  void Look();
  // Whether all ranks have left their numbers, while LiningUp.
  void LookForNumbers();
  // "2 of 4: ranks 1,2 (devices 5,7) have not <done>".
  std::string DescribeMissing(absl::string_view done) const;
  absl::Status CheckVersion(int rank, int version) const;
  // If it says that a rank has come to this generation.
  void NotePresence(absl::string_view key, absl::string_view value);
  // Moves the clique on from this generation.
  void LeaveGeneration(const absl::Status& why);
  void FailAttempt(const absl::Status& why);
  void Fail(const absl::Status& why);

  // Constant after construction.
  const CliqueKey key_;
  const int rank_;
  const CommunicatorBootstrapOptions options_;
  CliqueStore& store_;
  CliqueSteps& steps_;
  const Clock& clock_;

  CliqueState state_ = CliqueState::kIdle;
  absl::Status status_;
  bool is_watching_ = false;
  bool has_watched_ = false;
  absl::Time started_;
  absl::Time deadline_ = absl::InfiniteFuture();
  int attempts_ = 0;
  // Under way or ready; 0: the next one is not known yet.
  uint32_t generation_ = 0;
  uint32_t lowest_ = 1;
  bool has_minted_ = false;
  // Ranks that have not come to it; while LiningUp: that have not left their number.
  std::set<int> missing_;
  // Steps have something of this generation.
  bool has_begun_ = false;
  // It is Ready, and over.
  bool is_given_up_ = false;
  // The store's generation: its text, absent if nobody has set it.
  std::optional<std::string> generation_text_;
  uint32_t store_generation_ = 1;
  // Entries of generations that are not over, by key.
  std::map<std::string, std::string, std::less<>> entries_;
};

}  // namespace ferry

#endif  // FERRY_GPU_CLIQUE_COMMUNICATOR_BOOTSTRAP_H_
