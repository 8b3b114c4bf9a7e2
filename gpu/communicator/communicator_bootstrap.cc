// SPDX-License-Identifier: Apache-2.0
// The actions from presence to a communicator, and back when one of them fails.
#include "gpu/communicator/communicator_bootstrap.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "base/status_macros.h"
#include "base/text.h"

namespace ferry {

absl::string_view BootstrapStateName(BootstrapState state) {
  static constexpr absl::string_view kNames[] = {
      "idle", "waiting", "initialising", "agreeing on the order", "warming up", "ready", "failed"};
  return kNames[static_cast<int>(state)];
}

CommunicatorBootstrap::CommunicatorBootstrap(CommunicatorKey key, int rank,
                                             const CommunicatorBootstrapOptions& options,
                                             BootstrapStore& store, BootstrapActions& actions,
                                             const Clock& clock)
    : key_(std::move(key)),
      rank_(rank),
      options_(options),
      store_(store),
      actions_(actions),
      clock_(clock) {
  FERRY_CHECK(rank >= 0 && rank < key_.size());
}

std::string CommunicatorBootstrap::Describe() const {
  return absl::StrCat(key_.Describe(), ", generation ", std::max(generation_, lowest_), ", ",
                      key_.DescribeRank(rank_));
}

void CommunicatorBootstrap::Start(uint32_t lowest_generation) {
  FERRY_CHECK(state_ == BootstrapState::kIdle || state_ == BootstrapState::kFailed);
  state_ = BootstrapState::kWaiting;
  status_ = absl::OkStatus();
  started_ = clock_.Now();
  deadline_ = started_ + options_.timeout;
  attempts_ = 0;
  generation_ = 0;
  lowest_ = std::max(lowest_, lowest_generation);
  if (!std::exchange(has_watched_, true)) {
    store_.Watch(key_.prefix());
  } else {
    BeginAttempt();
  }
}

void CommunicatorBootstrap::OnWatching() {
  is_watching_ = true;
  BeginAttempt();
}

void CommunicatorBootstrap::OnEntry(absl::string_view key, absl::string_view value) {
  if (key != key_.GenerationKey()) {
    entries_.insert_or_assign(std::string(key), std::string(value));
    NotePresence(key, value);
    TryBegin();
    CheckSequenceNumbers();
    return;
  }
  uint32_t generation = 0;
  if (!absl::SimpleAtoi(value, &generation)) return;
  generation_text_ = std::string(value);
  store_generation_ = generation;
  if (generation_ != 0 && generation > generation_ && state_ != BootstrapState::kFailed) {
    const absl::Status why = absl::AbortedError(absl::StrCat(
        Describe(), ": another rank has given it up and moved on to generation ", generation));
    lowest_ = generation;
    if (state_ == BootstrapState::kReady) {
      if (!std::exchange(is_abandoned_, true)) actions_.OnAbandoned(generation_, why);
    } else if (IsUnderWay()) {
      FailAttempt(why);
    }
  } else if (generation_ == 0) {
    BeginAttempt();
  }
}

void CommunicatorBootstrap::BeginAttempt() {
  if (state_ != BootstrapState::kWaiting || !is_watching_ || generation_ != 0) return;
  if (store_generation_ < lowest_) {
    // This rank knows of a newer generation than the store.
    store_.CompareAndSet(key_.GenerationKey(), generation_text_, absl::StrCat(lowest_));
    return;
  }
  generation_ = store_generation_;
  lowest_ = generation_;
  // The one before may have been that of a communicator that has ended since.
  if (oldest_ == 0) oldest_ = std::max(generation_, 2U) - 1;
  has_created_ids_ = false;
  ++attempts_;
  const std::string own = key_.PresenceKey(generation_, rank_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const bool is_over = !absl::StartsWith(entry->first, key_.GenerationPrefix(generation_));
    entry = is_over ? entries_.erase(entry) : std::next(entry);
  }
  if (entries_.contains(own)) {
    // An earlier bootstrap of this process may have used its id.
    FailAttempt(
        absl::AbortedError(absl::StrCat(Describe(), ": this process has taken part in it before")));
    return;
  }
  missing_.clear();
  for (int rank = 0; rank < key_.size(); ++rank) missing_.insert(missing_.end(), rank);
  offers_.assign(static_cast<size_t>(key_.size()), std::nullopt);
  store_.Set(own,
             EncodeRankPresence({options_.nccl_version, key_.member(rank_).incarnation, Offer()}));
  for (const auto& [key, value] : std::map(entries_)) NotePresence(key, value);
  TryBegin();
}

absl::Status CommunicatorBootstrap::CheckVersion(int rank, int version) const {
  if (version == options_.nccl_version) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(key_.Describe(), ": ", key_.DescribeRank(rank_), " has NCCL ",
                   NcclVersionText(options_.nccl_version), ", ", key_.DescribeRank(rank),
                   " has NCCL ", NcclVersionText(version), "; all must have the same"));
}

void CommunicatorBootstrap::NotePresence(absl::string_view key, absl::string_view value) {
  if (state_ != BootstrapState::kWaiting || generation_ == 0) return;
  int rank = -1;
  if (!absl::ConsumePrefix(&key, absl::StrCat(key_.GenerationPrefix(generation_), "rank/")) ||
      !absl::SimpleAtoi(key, &rank) || rank < 0 || rank >= key_.size()) {
    return;
  }
  const absl::StatusOr<RankPresence> presence = DecodeRankPresence(value);
  if (!presence.ok() || presence->incarnation != key_.member(rank).incarnation) return;
  missing_.erase(rank);
  offers_[static_cast<size_t>(rank)] = presence->origin;
  const absl::Status same = CheckVersion(rank, presence->nccl_version);
  if (!same.ok()) Fail(same);
}

absl::Status CommunicatorBootstrap::CheckWay(CommunicatorWay way) const {
  if (way == CommunicatorWay::kCreate) return absl::OkStatus();
  const std::optional<RankOrigin> offer = Offer();
  const CommunicatorWay own =
      offer.has_value() ? WayOf(*offer, key_.size()) : CommunicatorWay::kCreate;
  if (own == way) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      Describe(), ": ", key_.DescribeRank(0), " has published ids to ", CommunicatorWayName(way),
      " a communicator, and this rank has prepared to ", CommunicatorWayName(own), " one"));
}

absl::StatusOr<CommunicatorUniqueIds> CommunicatorBootstrap::ChooseWay() {
  CommunicatorUniqueIds chosen = {options_.nccl_version, key_.member(0).incarnation};
  // The store may say of this rank what is not its own.
  std::vector<std::optional<RankOrigin>> offers = offers_;
  offers[static_cast<size_t>(rank_)] = Offer();
  chosen.way = ChooseCommunicatorWay(options_.nccl_version, offers);
  if (chosen.way == CommunicatorWay::kGrow) {
    FERRY_ASSIGN_OR_RETURN(std::string id, actions_.CreateGrowId());
    chosen.ids.push_back(std::move(id));
  } else if (chosen.way == CommunicatorWay::kCreate) {
    FERRY_ASSIGN_OR_RETURN(
        chosen.ids, actions_.CreateUniqueIds(UniqueIdCount(key_.size(), options_.ranks_per_id)));
  }
  return chosen;
}

void CommunicatorBootstrap::TryBegin() {
  if (state_ != BootstrapState::kWaiting || generation_ == 0) return;
  const auto published = entries_.find(key_.UniqueIdKey(generation_));
  if (published == entries_.end()) {
    if (rank_ != 0 || has_created_ids_ || !missing_.empty()) return;
    has_created_ids_ = true;
    const absl::StatusOr<CommunicatorUniqueIds> chosen = ChooseWay();
    if (!chosen.ok()) return FailAttempt(chosen.status());
    store_.CompareAndSet(key_.UniqueIdKey(generation_), std::nullopt,
                         EncodeCommunicatorUniqueIds(*chosen));
    return;
  }
  const absl::StatusOr<CommunicatorUniqueIds> ids = DecodeCommunicatorUniqueIds(published->second);
  if (!ids.ok()) return FailAttempt(ids.status());
  const absl::Status same = CheckVersion(0, ids->nccl_version);
  if (!same.ok()) return Fail(same);
  if (ids->creator_incarnation != key_.member(0).incarnation || (rank_ == 0 && !has_created_ids_) ||
      (ids->way == CommunicatorWay::kCreate &&
       static_cast<int>(ids->ids.size()) != UniqueIdCount(key_.size(), options_.ranks_per_id))) {
    return FailAttempt(absl::AbortedError(absl::StrCat(
        Describe(), ": the ids in the store are not of this life of ", key_.DescribeRank(0))));
  }
  const absl::Status fits = CheckWay(ids->way);
  if (!fits.ok()) return FailAttempt(fits);
  state_ = BootstrapState::kInitialising;
  has_begun_ = true;
  actions_.Initialise(generation_, ids->way, ids->ids);
}

void CommunicatorBootstrap::OnInitialised(uint32_t generation, const absl::Status& status) {
  if (state_ != BootstrapState::kInitialising || generation != generation_) return;
  if (!status.ok()) return FailAttempt(status);
  const std::optional<uint64_t> number = actions_.ProposeSequenceNumber(generation_);
  if (!number.has_value()) {
    state_ = BootstrapState::kWarmingUp;
    return actions_.WarmUp(generation_, 0);
  }
  state_ = BootstrapState::kAgreeingOnOrder;
  store_.Set(key_.NumberKey(generation_, rank_), absl::StrCat(*number));
  CheckSequenceNumbers();
}

void CommunicatorBootstrap::CheckSequenceNumbers() {
  if (state_ != BootstrapState::kAgreeingOnOrder) return;
  missing_.clear();
  uint64_t largest = 0;
  for (int rank = 0; rank < key_.size(); ++rank) {
    const auto entry = entries_.find(key_.NumberKey(generation_, rank));
    uint64_t number = 0;
    if (entry == entries_.end() || !absl::SimpleAtoi(entry->second, &number)) {
      missing_.insert(rank);
    }
    largest = std::max(largest, number);
  }
  if (!missing_.empty()) return;
  state_ = BootstrapState::kWarmingUp;
  actions_.WarmUp(generation_, largest);
}

void CommunicatorBootstrap::OnWarmedUp(uint32_t generation, const absl::Status& status) {
  if (state_ != BootstrapState::kWarmingUp || generation != generation_) return;
  if (!status.ok()) return FailAttempt(status);
  state_ = BootstrapState::kReady;
  deadline_ = absl::InfiniteFuture();
  // All ranks have read the ids, or this rank could not have initialized.
  if (rank_ == 0) {
    for (uint32_t each = oldest_; each <= generation_; ++each) {
      store_.DeletePrefix(key_.GenerationPrefix(each));
    }
  }
  actions_.OnEnded(absl::OkStatus());
}

void CommunicatorBootstrap::LeaveGeneration(const absl::Status& why) {
  const uint32_t left = std::exchange(generation_, 0);
  if (left == 0) return;
  is_abandoned_ = false;
  lowest_ = std::max(lowest_, left + 1);
  // First of all: NCCL may wait for ranks that have not been told yet.
  if (store_generation_ < lowest_) {
    store_.CompareAndSet(key_.GenerationKey(), generation_text_, absl::StrCat(lowest_));
  }
  if (std::exchange(has_begun_, false)) {
    actions_.Discard(left, why);
  } else if (entries_.contains(key_.UniqueIdKey(left))) {
    // Others may have begun, and wait for this rank before they free what it might use.
    store_.Set(key_.StoppedKey(left, rank_), "1");
  }
}

void CommunicatorBootstrap::FailAttempt(const absl::Status& why) {
  if (attempts_ >= options_.max_attempts) {
    return Fail(absl::Status(
        why.code(), absl::StrCat(why.message(), " (the last of ", attempts_, " attempts)")));
  }
  // No time is left for another attempt, so this is the final error.
  if (absl::IsDeadlineExceeded(why) && clock_.Now() >= deadline_) {
    return Fail(absl::DeadlineExceededError(absl::StrCat(Describe(), ": ", why.message())));
  }
  state_ = BootstrapState::kWaiting;
  LeaveGeneration(why);
  if (store_generation_ >= lowest_) BeginAttempt();
}

void CommunicatorBootstrap::Fail(const absl::Status& why) {
  state_ = BootstrapState::kFailed;
  status_ = why;
  deadline_ = absl::InfiniteFuture();
  LeaveGeneration(why);
  actions_.OnEnded(why);
}

void CommunicatorBootstrap::OnStoreFailed(const absl::Status& why) {
  if (IsUnderWay()) {
    Fail(absl::Status(why.code(), absl::StrCat(Describe(), ": ", why.message())));
  }
}

void CommunicatorBootstrap::Retire(const absl::Status& why) {
  if (IsUnderWay()) return Fail(why);
  if (state_ != BootstrapState::kReady) return;
  state_ = BootstrapState::kIdle;
  LeaveGeneration(why);
}

absl::Time CommunicatorBootstrap::NextDeadline() const { return deadline_; }

std::string CommunicatorBootstrap::DescribeMissing(absl::string_view done) const {
  const std::vector<int> missing(missing_.begin(), missing_.end());
  return absl::StrCat(missing.size(), " of ", key_.size(), ": ", key_.DescribeRanks(missing),
                      missing.size() == 1 ? " has" : " have", " not ", done);
}

void CommunicatorBootstrap::Expire() {
  if (!IsUnderWay() || clock_.Now() < deadline_) return;
  std::string what;
  if (!is_watching_) {
    what = "the store to say what is there";
  } else if (generation_ == 0) {
    what = absl::StrCat("the store to move on to generation ", lowest_);
  } else if (state_ == BootstrapState::kInitialising) {
    what = "NCCL to initialise";
  } else if (state_ == BootstrapState::kWarmingUp) {
    what = actions_.DescribeWarmUp();
  } else if (state_ == BootstrapState::kAgreeingOnOrder) {
    what = DescribeMissing("initialised it");
  } else if (!missing_.empty()) {
    what = DescribeMissing("come");
  } else {
    what = absl::StrCat(key_.DescribeRank(0), " to publish the ids");
  }
  Fail(absl::DeadlineExceededError(absl::StrCat(
      Describe(), ": waited ", ShortDuration(clock_.Now() - started_), " for ", what)));
}

}  // namespace ferry
