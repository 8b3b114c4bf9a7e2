// SPDX-License-Identifier: Apache-2.0
// WarmUpSequencer: a map ordered by number and communicator.
#include "gpu/communicator/warm_up_sequencer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace ferry {

std::unique_ptr<WarmUpSequencer::Place> WarmUpSequencer::Join(std::string name, std::string what) {
  absl::MutexLock lock(&mu_);
  Place::Order order(++largest_, std::move(name), ++count_);
  queue_[order] = {.what = std::move(what)};
  return std::unique_ptr<Place>(new Place(shared_from_this(), std::move(order)));
}

WarmUpSequencer::Place::~Place() {
  absl::MutexLock lock(&queue_->mu_);
  queue_->queue_.erase(order_);
}

void WarmUpSequencer::Place::Agree(uint64_t agreed) {
  absl::MutexLock lock(&queue_->mu_);
  if (!queue_->rules_.agrees) agreed = number_;
  Waiting waiting = std::move(queue_->queue_[order_]);
  queue_->queue_.erase(order_);
  waiting.is_agreed = true;
  std::get<0>(order_) = std::max(agreed, number_);
  if (queue_->rules_.remembers_agreed) queue_->largest_ = std::max(queue_->largest_, agreed);
  queue_->queue_[order_] = std::move(waiting);
}

bool WarmUpSequencer::Place::is_first() const {
  absl::MutexLock lock(&queue_->mu_);
  const auto& [order, waiting] = *queue_->queue_.begin();
  return order == order_ && waiting.is_agreed;
}

std::string WarmUpSequencer::Place::DescribeFirst() const {
  absl::MutexLock lock(&queue_->mu_);
  const auto& [order, waiting] = *queue_->queue_.begin();
  if (order == order_) return "nothing";
  return absl::StrCat("the warm-up of ", waiting.what, ", which is ",
                      waiting.is_agreed ? "under way" : "initialised, but not by all of its ranks");
}

}  // namespace ferry
