// SPDX-License-Identifier: Apache-2.0
// Copies inputs to the host, runs the collective there, and copies results back.
#include "tensorflow/worker/collectives/staged_backend.h"

#include <functional>
#include <set>
#include <string>

#include "absl/base/const_init.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace ferry::worker {
namespace {

// Returns a permanent copy, as Received::path requires. There are few: one per reason.
absl::string_view Interned(std::string text) {
  constexpr size_t kMaxTexts = 1000;
  static absl::Mutex mu(absl::kConstInit);
  static auto* const texts = new std::set<std::string, std::less<>>;
  absl::MutexLock lock(&mu);
  const auto found = texts->find(text);
  if (found != texts->end()) return *found;
  if (texts->size() >= kMaxTexts) return "staged";
  return *texts->insert(std::move(text)).first;
}

// "ring" -> "ring, staged (not by nccl: ...)".
absl::string_view StagedPath(absl::string_view path, absl::string_view why_not_nccl) {
  return Interned(absl::StrCat(path, ", staged (not by nccl: ", why_not_nccl, ")"));
}

std::string What(absl::string_view which, const CollectiveWork& work) {
  return absl::StrCat(which, " of collective ", work.node->name, " (instance ",
                      work.call.instance_key, " of group ", work.call.group_key, ")");
}

// Wraps `done` to copy the result to where the node keeps its tensors.
RecvCallback BackTo(const CollectiveWork& work, MoveTensor move, RecvCallback done) {
  MoveRequest back;
  back.to = work.node->memory;
  back.deadline = work.deadline;
  back.what = What("the result", work);
  // The source of a broadcast already has the result.
  Tensor own = work.node->kind == CollectiveKind::kBroadcast ? work.call.input : Tensor();
  return [move = std::move(move), back = std::move(back), own = std::move(own),
          why_not = work.why_not_nccl,
          done = std::move(done)](absl::Status status, Received received) mutable {
    if (!status.ok()) return std::move(done)(std::move(status), {});
    received.path = StagedPath(received.path, why_not);
    if (own.is_valid()) {
      received.tensor = std::move(own);
      return std::move(done)(absl::OkStatus(), std::move(received));
    }
    back.tensor = std::move(received.tensor);
    move(std::move(back), [received = std::move(received),
                           done = std::move(done)](absl::StatusOr<Tensor> moved) mutable {
      if (!moved.ok()) return std::move(done)(moved.status(), {});
      received.tensor = *std::move(moved);
      std::move(done)(absl::OkStatus(), std::move(received));
    });
  };
}

}  // namespace

void StagedBackend::Run(CollectiveWork work, RecvCallback done) {
  if (work.node->memory.space == MemorySpace::kHost || work.members.size() == 1) {
    return on_host_->Run(std::move(work), std::move(done));
  }
  // Copied: `done` may run inside these calls and destroy this object.
  const MoveTensor move = move_;
  RecvCallback back = BackTo(work, move, std::move(done));
  if (!work.call.input.is_valid()) return on_host_->Run(std::move(work), std::move(back));
  MoveRequest there;
  there.tensor = std::move(work.call.input);
  there.deadline = work.deadline;
  there.what = What("the input", work);
  move(std::move(there), [this, work = std::move(work),
                          back = std::move(back)](absl::StatusOr<Tensor> moved) mutable {
    if (!moved.ok()) return std::move(back)(moved.status(), {});
    work.call.input = *std::move(moved);
    (*executor_)([this, work = std::move(work), back = std::move(back)]() mutable {
      on_host_->Run(std::move(work), std::move(back));
    });
  });
}

}  // namespace ferry::worker
