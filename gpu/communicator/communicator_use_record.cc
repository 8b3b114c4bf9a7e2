// SPDX-License-Identifier: Apache-2.0
// CommunicatorUseRecord: each side writes its own key before it reads the other's.
#include "gpu/communicator/communicator_use_record.h"

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "base/status_macros.h"
#include "base/text.h"

namespace ferry {

CommunicatorUseRecord::CommunicatorUseRecord(const CommunicatorKey& key, int rank,
                                             UseRecordStore& store, const Clock& clock, Wait wait)
    : key_(key), rank_(rank), store_(store), clock_(clock), wait_(std::move(wait)) {}

// Not below the communicator's own prefix, whose changes every rank receives.
std::string CommunicatorUseRecord::prefix() const {
  return absl::StrCat("nccl-use/", absl::StripPrefix(key_.prefix(), "nccl/"));
}
std::string CommunicatorUseRecord::UseKey() const { return absl::StrCat(prefix(), "rank/", rank_); }
std::string CommunicatorUseRecord::LeavingKey() const { return absl::StrCat(prefix(), "leaving"); }

absl::StatusOr<uint32_t> CommunicatorUseRecord::ReadGeneration(std::optional<std::string>* text) {
  FERRY_ASSIGN_OR_RETURN(const std::optional<std::string> found, store_.Get(key_.GenerationKey()));
  if (text != nullptr) *text = found;
  uint32_t generation = 1;
  if (found.has_value() && !absl::SimpleAtoi(*found, &generation)) {
    return absl::DataLossError(
        absl::StrCat(key_.GenerationKey(), " is no number in the store: ", *found));
  }
  return generation;
}

absl::StatusOr<uint32_t> CommunicatorUseRecord::Begin(absl::Time deadline) {
  const absl::Time began = clock_.Now();
  FERRY_RETURN_IF_ERROR(store_.Put(UseKey(), "used"));
  absl::Cleanup takes_back = [this] { store_.Erase(UseKey()).IgnoreError(); };
  while (true) {
    FERRY_ASSIGN_OR_RETURN(const std::optional<std::string> leaving, store_.Get(LeavingKey()));
    if (!leaving.has_value()) break;
    if (clock_.Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(key_.Describe(), ": waited ", ShortDuration(clock_.Now() - began), " for ",
                       *leaving, " to decide whether it evicts the communicator for its memory"));
    }
    FERRY_RETURN_IF_ERROR(wait_());
  }
  FERRY_ASSIGN_OR_RETURN(const uint32_t generation, Generation());
  std::move(takes_back).Cancel();
  return generation;
}

absl::Status CommunicatorUseRecord::End() { return store_.Erase(UseKey()); }

absl::StatusOr<bool> CommunicatorUseRecord::TryEndForAll(uint32_t generation, absl::Time deadline) {
  while (true) {
    FERRY_ASSIGN_OR_RETURN(const bool is_alone, store_.CompareAndSet(LeavingKey(), std::nullopt,
                                                                     key_.DescribeRank(rank_)));
    if (is_alone) break;
    FERRY_ASSIGN_OR_RETURN(const uint32_t now, Generation());
    if (now > generation) return true;
    if (clock_.Now() >= deadline) return false;
    FERRY_RETURN_IF_ERROR(wait_());
  }
  const absl::Cleanup stays = [this] { store_.Erase(LeavingKey()).IgnoreError(); };
  FERRY_ASSIGN_OR_RETURN(const std::vector<std::string> users,
                         store_.KeysUnder(absl::StrCat(prefix(), "rank/")));
  if (!users.empty()) return false;
  std::optional<std::string> text;
  FERRY_ASSIGN_OR_RETURN(const uint32_t now, ReadGeneration(&text));
  if (now > generation) return true;
  // If another rank advances it meanwhile, the result is the same.
  FERRY_RETURN_IF_ERROR(
      store_.CompareAndSet(key_.GenerationKey(), text, absl::StrCat(generation + 1)).status());
  return true;
}

}  // namespace ferry
