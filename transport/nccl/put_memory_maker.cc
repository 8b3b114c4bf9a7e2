// SPDX-License-Identifier: Apache-2.0
// PutMemoryMaker: makes a GPU's pool for one-sided transfers, once.
#include "transport/nccl/put_memory_maker.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/text.h"

namespace ferry {

absl::StatusOr<std::shared_ptr<PutMemory>> PutMemoryMaker::Get(Make make) {
  absl::MutexLock lock(&mu_);
  if (made_ != nullptr) return made_;
  const absl::Time now = clock_.Now();
  if (!retry_.IsDue(now)) {
    return absl::Status(failed_.code(), absl::StrCat(failed_.message(), " (tried again in ",
                                                     ShortDuration(retry_.Left(now)), ")"));
  }
  absl::StatusOr<std::shared_ptr<PutMemory>> made = make();
  if (made.ok()) {
    made_ = *made;
  } else {
    failed_ = made.status();
    // It may have taken seconds.
    retry_.Failed(clock_.Now());
  }
  return made;
}

}  // namespace ferry
