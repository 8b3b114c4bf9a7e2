// SPDX-License-Identifier: Apache-2.0
// The page and the eventfd.
#include "net/doorbell.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/file_limit.h"
#include "base/status_macros.h"

namespace ferry {
namespace {

constexpr size_t kPageBytes = 4096;
static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace

absl::StatusOr<Doorbell> Doorbell::Create() {
  Doorbell bell;
  FERRY_ASSIGN_OR_RETURN(bell.page_, MemorySegment::Create(kPageBytes, {.huge_pages = false,
                                                                        .peers_may_write = true,
                                                                        .may_be_private = true}));
  bell.event_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell.event_.valid()) {
    return absl::ResourceExhaustedError(absl::StrCat("eventfd: ", ErrorWithFileLimit(errno)));
  }
  return bell;
}

absl::StatusOr<Doorbell> Doorbell::OfPeer(UniqueFd page, UniqueFd event) {
  Doorbell bell;
  FERRY_ASSIGN_OR_RETURN(bell.page_, MemorySegment::MapPeer(std::move(page), kPageBytes, true));
  if (!event.valid()) return absl::InvalidArgumentError("the peer has sent no eventfd");
  bell.event_ = std::move(event);
  return bell;
}

void Doorbell::RingAnyway() {
  const uint64_t one = 1;
  // A full counter means that enough rings are pending already.
  while (write(event_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

}  // namespace ferry
