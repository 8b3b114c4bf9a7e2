// SPDX-License-Identifier: Apache-2.0
// A thread that may not come back.
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

absl::StatusOr<std::vector<std::string>> Mint(const NcclApi& api, int count) {
  std::vector<std::string> ids;
  for (int i = 0; i < count; ++i) {
    UniqueId id = {};
    FERRY_RETURN_IF_ERROR(api.Check(api.table().get_unique_id(&id), "ncclGetUniqueId"));
    ids.emplace_back(id.bytes, sizeof(id.bytes));
  }
  return ids;
}

// Of the thread and of whoever waits for it.
struct Minting {
  absl::Mutex mu;
  bool is_over ABSL_GUARDED_BY(mu) = false;
  absl::StatusOr<std::vector<std::string>> ids ABSL_GUARDED_BY(mu) = absl::UnknownError("not yet");
};

}  // namespace

absl::StatusOr<std::vector<std::string>> MintUniqueIds(
    std::shared_ptr<const NcclApi> api, int count, absl::Time deadline,
    absl::FunctionRef<absl::Status()> keep_going) {
  const absl::Time start = SteadyClock().Now();
  auto minting = std::make_shared<Minting>();
  Thread thread("ferry-ncclid", [minting, api = std::move(api), count] {
    auto ids = Mint(*api, count);
    absl::MutexLock lock(&minting->mu);
    minting->ids = std::move(ids);
    minting->is_over = true;
  });
  absl::Status gave_up;
  while (gave_up.ok()) {
    {
      absl::MutexLock lock(&minting->mu);
      if (minting->mu.AwaitWithTimeout(absl::Condition(&minting->is_over), kLook)) {
        return std::move(minting->ids);
      }
    }
    gave_up = keep_going();
    const absl::Time now = SteadyClock().Now();
    if (gave_up.ok() && now >= deadline) {
      gave_up = absl::DeadlineExceededError(absl::StrCat(
          "ncclGetUniqueId has not returned for ", ShortDuration(now - start),
          ": NCCL looks for the network that ranks meet on (NCCL_DEBUG=INFO shows which, "
          "NCCL_SOCKET_IFNAME chooses)"));
    }
  }
  thread.Detach();
  return gave_up;
}

}  // namespace ferry::nccl
