// SPDX-License-Identifier: Apache-2.0
// One lock, held during each call.
#include "api/callback_gate.h"

namespace ferry::v0 {

void CallbackGate::Run(absl::FunctionRef<void()> body) {
  absl::MutexLock lock(&mu_);
  if (is_stopped_.load()) return;
  caller_.store(std::this_thread::get_id());
  body();
  caller_.store(std::thread::id());
}

void CallbackGate::Stop() {
  is_stopped_.store(true);
  if (caller_.load() == std::this_thread::get_id()) return;
  absl::MutexLock lock(&mu_);
}

}  // namespace ferry::v0
