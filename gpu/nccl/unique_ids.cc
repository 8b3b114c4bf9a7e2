// SPDX-License-Identifier: Apache-2.0
// Unique ids from a thread that may hang, one call at a time.
#include "gpu/nccl/unique_ids.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/thread.h"

namespace ferry::nccl {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(5);
constexpr char kWhatToDo[] =
    ": NCCL looks for the network that ranks meet on (NCCL_DEBUG=INFO shows which, "
    "NCCL_SOCKET_IFNAME chooses)";

// State of the process, since NCCL's network state is per process: if one call hangs, the next
// would too, and each would leak a thread. Never destroyed.
struct Desk {
  absl::Mutex mu;
  bool is_taken ABSL_GUARDED_BY(mu) = false;
  // The caller has given up, and the call has not returned.
  bool is_left_behind ABSL_GUARDED_BY(mu) = false;
  // Start time of the call in progress.
  absl::Time since ABSL_GUARDED_BY(mu) = absl::InfinitePast();

  bool can_tell() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return !is_taken || is_left_behind; }
};

Desk& TheDesk() {
  static Desk& desk = *new Desk;
  return desk;
}

// Shared by a thread and its waiting caller; guarded by the desk's lock.
struct Minting {
  bool is_over = false;
  bool is_given_up = false;
  absl::StatusOr<std::vector<std::string>> ids = absl::UnknownError("not yet");
};

absl::StatusOr<std::vector<std::string>> Mint(const NcclApi& api, int count,
                                              const Minting& minting) {
  Desk& desk = TheDesk();
  std::vector<std::string> ids;
  for (int i = 0; i < count; ++i) {
    {
      absl::MutexLock lock(&desk.mu);
      if (minting.is_given_up) return absl::CancelledError("they are no longer needed");
      desk.since = SteadyClock().Now();
    }
    UniqueId id = {};
    FERRY_RETURN_IF_ERROR(api.Check(api.table().get_unique_id(&id), "ncclGetUniqueId"));
    ids.emplace_back(id.bytes, sizeof(id.bytes));
  }
  return ids;
}

// Blocks until no other call is in progress.
absl::Status TakeDesk(absl::Time deadline, absl::FunctionRef<absl::Status()> keep_going) {
  Desk& desk = TheDesk();
  while (true) {
    absl::Duration taken;
    {
      absl::MutexLock lock(&desk.mu);
      desk.mu.AwaitWithTimeout(absl::Condition(&desk, &Desk::can_tell), kLook);
      const absl::Time now = SteadyClock().Now();
      if (!desk.is_taken) {
        desk.is_taken = true;
        desk.since = now;
        return absl::OkStatus();
      }
      taken = now - desk.since;
      if (desk.is_left_behind) {
        return absl::UnavailableError(absl::StrCat(
            "NCCL does not answer in this process: an earlier ncclGetUniqueId, which has timed "
            "out, "
            "has not returned for ",
            ShortDuration(taken), kWhatToDo, "; if it never does, start the process again"));
      }
    }
    FERRY_RETURN_IF_ERROR(keep_going());
    if (SteadyClock().Now() < deadline) continue;
    return absl::DeadlineExceededError(
        absl::StrCat("waited for another ncclGetUniqueId of this process, which has not returned "
                     "for ",
                     ShortDuration(taken), kWhatToDo));
  }
}

}  // namespace

absl::StatusOr<std::vector<std::string>> CreateUniqueIds(
    std::shared_ptr<const NcclApi> api, int count, absl::Time deadline,
    absl::FunctionRef<absl::Status()> keep_going) {
  Desk& desk = TheDesk();
  FERRY_RETURN_IF_ERROR(TakeDesk(deadline, keep_going));
  auto minting = std::make_shared<Minting>();
  Thread thread("ferry-ncclid", [&desk, minting, api = std::move(api), count] {
    auto ids = Mint(*api, count, *minting);
    absl::MutexLock lock(&desk.mu);
    minting->ids = std::move(ids);
    minting->is_over = true;
    desk.is_taken = false;
    desk.is_left_behind = false;
  });
  while (true) {
    {
      absl::MutexLock lock(&desk.mu);
      if (desk.mu.AwaitWithTimeout(absl::Condition(&minting->is_over), kLook)) {
        return std::move(minting->ids);
      }
    }
    absl::Status gave_up = keep_going();
    const absl::Time now = SteadyClock().Now();
    if (gave_up.ok() && now < deadline) continue;
    absl::MutexLock lock(&desk.mu);
    if (minting->is_over) return std::move(minting->ids);
    minting->is_given_up = true;
    desk.is_left_behind = true;
    thread.Detach();
    if (!gave_up.ok()) return gave_up;
    return absl::DeadlineExceededError(absl::StrCat("ncclGetUniqueId has not returned for ",
                                                    ShortDuration(now - desk.since), kWhatToDo));
  }
}

}  // namespace ferry::nccl
