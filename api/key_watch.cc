// SPDX-License-Identifier: Apache-2.0
// The public KeyWatch owns an internal watch.
#include <ferry/key_watch.h>

#include <memory>
#include <utility>

#include "api/api_access.h"
#include "api/callback_gate.h"
#include "coord/client/agent.h"

namespace ferry::v0 {

class KeyWatch::Impl final {
 public:
  Impl(std::unique_ptr<coord::AgentWatch> inner, std::shared_ptr<CallbackGate> calls)
      : watch(std::move(inner)), gate(std::move(calls)) {}
  ~Impl() {
    watch.reset();
    // The agent may be calling just now.
    gate->Stop();
  }

  std::unique_ptr<coord::AgentWatch> watch;
  const std::shared_ptr<CallbackGate> gate;
};

KeyWatch::KeyWatch() = default;
KeyWatch::KeyWatch(KeyWatch&& other) noexcept = default;
KeyWatch& KeyWatch::operator=(KeyWatch&& other) noexcept = default;
KeyWatch::~KeyWatch() = default;

KeyWatch ApiAccess::Wrap(std::unique_ptr<coord::AgentWatch> watch,
                         std::shared_ptr<CallbackGate> gate) {
  KeyWatch result;
  result.impl_ = std::make_unique<KeyWatch::Impl>(std::move(watch), std::move(gate));
  return result;
}

}  // namespace ferry::v0
