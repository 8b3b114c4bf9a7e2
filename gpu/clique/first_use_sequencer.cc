// SPDX-License-Identifier: Apache-2.0
// FirstUseSequencer: a map ordered by number and clique.
#include "gpu/clique/first_use_sequencer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace ferry {

std::unique_ptr<FirstUseSequencer::Place> FirstUseSequencer::Join(std::string name,
                                                                  std::string what) {
  absl::MutexLock lock(&mu_);
  Place::Order order(++largest_, std::move(name), ++count_);
  line_[order] = {.what = std::move(what)};
  return std::unique_ptr<Place>(new Place(shared_from_this(), std::move(order)));
}

FirstUseSequencer::Place::~Place() {
  absl::MutexLock lock(&line_->mu_);
  line_->line_.erase(order_);
}

void FirstUseSequencer::Place::Agree(uint64_t agreed) {
  absl::MutexLock lock(&line_->mu_);
  if (!line_->rules_.agrees) agreed = number_;
  Waiting waiting = std::move(line_->line_[order_]);
  line_->line_.erase(order_);
  waiting.is_agreed = true;
  std::get<0>(order_) = std::max(agreed, number_);
  if (line_->rules_.remembers_agreed) line_->largest_ = std::max(line_->largest_, agreed);
  line_->line_[order_] = std::move(waiting);
}

bool FirstUseSequencer::Place::is_first() const {
  absl::MutexLock lock(&line_->mu_);
  const auto& [order, waiting] = *line_->line_.begin();
  return order == order_ && waiting.is_agreed;
}

std::string FirstUseSequencer::Place::WhatIsFirst() const {
  absl::MutexLock lock(&line_->mu_);
  const auto& [order, waiting] = *line_->line_.begin();
  if (order == order_) return "nothing";
  return absl::StrCat("the first exchange of ", waiting.what, ", which is ",
                      waiting.is_agreed ? "under way" : "initialised, but not by all of its ranks");
}

}  // namespace ferry
