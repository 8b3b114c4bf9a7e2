// SPDX-License-Identifier: Apache-2.0
// Turns, and how streams are spread over queues.
#include "tests/support/strict_cuda/hardware_queues.h"

#include "tests/support/strict_cuda/config.h"

namespace strict_cuda {

uint64_t HardwareQueue::Submit() {
  const std::lock_guard<std::mutex> lock(mu_);
  return submitted_++;
}

void HardwareQueue::AwaitTurn(uint64_t turn) {
  std::unique_lock<std::mutex> lock(mu_);
  while (begun_ != turn) changed_.wait(lock);
}

void HardwareQueue::Begun() {
  const std::lock_guard<std::mutex> lock(mu_);
  ++begun_;
  changed_.notify_all();
}

StreamQueues HardwareQueues::Next(int priority) {
  const auto count = static_cast<size_t>(GetConfig().connections);
  if (count == 0) return {};
  OfPriority& queues = queues_[priority];
  if (queues.kernels.size() < count) {
    queues.kernels.push_back(std::make_unique<HardwareQueue>());
    queues.copies.push_back(std::make_unique<HardwareQueue>());
  }
  const size_t at = queues.next++ % count;
  return {queues.kernels[at].get(), queues.copies[at].get()};
}

}  // namespace strict_cuda
