// SPDX-License-Identifier: Apache-2.0
// FakeConnector: attempts that a test completes, or does not; and a clock that the test advances.
#ifndef FERRY_TESTS_RENDEZVOUS_FAKE_CONNECTOR_H_
#define FERRY_TESTS_RENDEZVOUS_FAKE_CONNECTOR_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "transport/control/connector.h"

namespace ferry {

// One per process. Not thread-safe. Functions for the loop run in Step.
class FakeConnector final : public Connector {
 public:
  struct Attempt {
    PeerId peer;
    bool use_unix = false;
    std::shared_ptr<ControlHandler> handler;
  };

  AttemptId Connect(const PeerId& peer, const PeerAddresses&, bool use_unix,
                    std::shared_ptr<ControlHandler> handler) override {
    const AttemptId id = ++last_id_;
    attempts.emplace(id, Attempt{peer, use_unix, std::move(handler)});
    if (during_connect) std::exchange(during_connect, nullptr)();
    return id;
  }
  void CancelConnect(AttemptId attempt, const absl::Status& why) override {
    if (!attempts.contains(attempt)) return;
    RunAfter(absl::ZeroDuration(), [this, attempt, why] { Fail(attempt, why); });
  }
  void RunAfter(absl::Duration delay, absl::AnyInvocable<void() &&> function) override {
    timers_.emplace(now_ + delay, std::move(function));
  }

  absl::Time Now() const override { return now_; }

  // It is done with; the caller has its handler now.
  std::shared_ptr<ControlHandler> Take(AttemptId attempt) {
    auto node = attempts.extract(attempt);
    return node.empty() ? nullptr : std::move(node.mapped().handler);
  }
  void Fail(AttemptId attempt, const absl::Status& why) {
    if (const auto handler = Take(attempt)) handler->OnClosed(why);
  }
  // Runs one function that is due. Returns false if none is.
  bool Step() {
    if (timers_.empty() || timers_.begin()->first > now_) return false;
    auto function = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    std::move(function)();
    return true;
  }
  void Advance(absl::Duration by) { now_ += by; }
  bool has_timers() const { return !timers_.empty(); }
  size_t timers() const { return timers_.size(); }

  std::map<AttemptId, Attempt> attempts;
  // Called once, by the next Connect: another thread that runs at that moment.
  std::function<void()> during_connect;

 private:
  AttemptId last_id_ = 0;
  absl::Time now_ = absl::UnixEpoch();
  std::multimap<absl::Time, absl::AnyInvocable<void() &&>> timers_;
};

}  // namespace ferry

#endif  // FERRY_TESTS_RENDEZVOUS_FAKE_CONNECTOR_H_
