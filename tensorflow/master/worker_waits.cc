// SPDX-License-Identifier: Apache-2.0
// A set that is scanned at every change of the cluster.
#include "tensorflow/master/worker_waits.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/text.h"

namespace ferry::master {

void WorkerWaits::Await(WorkerWaitLimits limits, ClusterSource& source, Done done) {
  auto wait = std::make_shared<Wait>();
  wait->limits = std::move(limits);
  wait->done = std::move(done);
  {
    absl::MutexLock lock(&mu_);
    waits_.insert(wait);
  }
  const std::weak_ptr<Wait> weak = wait;
  const Timers::Id timer = timers_.Add(wait->limits.deadline, [this, weak] {
    const Ref late = weak.lock();
    if (late == nullptr) return;
    std::string who;
    {
      absl::MutexLock lock(&mu_);
      who = late->missing;
    }
    End(late, absl::DeadlineExceededError(
                  absl::StrCat(late->limits.what, " waited ", ShortDuration(late->limits.timeout),
                               " for these workers: ", who,
                               ". Start them, or leave them out by ConfigProto.device_filters.")));
  });
  CancellationToken::CallbackId token = CancellationToken::kNoCallback;
  const std::shared_ptr<CancellationToken> gone = wait->limits.gone;
  if (gone != nullptr) {
    token = gone->Register([this, weak] {
      if (const Ref left = weak.lock()) End(left, absl::CancelledError("The client has gone."));
    });
  }
  bool is_over = false;
  {
    absl::MutexLock lock(&mu_);
    wait->timer = timer;
    wait->gone_token = token;
    is_over = !waits_.contains(wait);
  }
  // It ended before the timer and token were recorded.
  if (is_over) {
    timers_.Remove(timer);
    if (gone != nullptr) gone->Deregister(token);
    return;
  }
  if (gone != nullptr && token == CancellationToken::kNoCallback) {
    return End(wait, absl::CancelledError("The client has gone."));
  }
  // Look only after the wait is in the set, so that no later change is missed.
  Look(source.Now());
}

void WorkerWaits::Look(const Cluster& cluster) {
  std::vector<Ref> ready;
  {
    absl::MutexLock lock(&mu_);
    for (const Ref& wait : waits_) {
      wait->missing = MissingText(cluster, wait->limits.filters);
      if (wait->missing.empty()) ready.push_back(wait);
    }
  }
  for (const Ref& wait : ready) End(wait, cluster);
}

void WorkerWaits::Fail(const absl::Status& why) {
  std::vector<Ref> all;
  {
    absl::MutexLock lock(&mu_);
    all.assign(waits_.begin(), waits_.end());
  }
  for (const Ref& wait : all) End(wait, why);
}

bool WorkerWaits::empty() const {
  absl::MutexLock lock(&mu_);
  return waits_.empty();
}

void WorkerWaits::End(const Ref& wait, absl::StatusOr<Cluster> result) {
  Done done;
  Timers::Id timer = Timers::kNone;
  CancellationToken::CallbackId token = CancellationToken::kNoCallback;
  {
    absl::MutexLock lock(&mu_);
    if (waits_.erase(wait) == 0) return;
    done = std::move(wait->done);
    timer = wait->timer;
    token = wait->gone_token;
  }
  if (timer != Timers::kNone) timers_.Remove(timer);
  if (wait->limits.gone != nullptr) wait->limits.gone->Deregister(token);
  std::move(done)(std::move(result));
}

}  // namespace ferry::master
