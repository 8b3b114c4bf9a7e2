// SPDX-License-Identifier: Apache-2.0
// A lighthouse on a fake clock, and its callers.
#ifndef FERRY_TESTS_COORD_LIGHTHOUSE_LIGHTHOUSE_WORLD_H_
#define FERRY_TESTS_COORD_LIGHTHOUSE_LIGHTHOUSE_WORLD_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/table_sizes.h"
#include "coord/core/completions.h"
#include "coord/lighthouse/lighthouse.h"

namespace ferry::coord {

inline QuorumMember Member(std::string id, int64_t step = 0) {
  return {.replica_id = id, .address = "http://" + id, .step = step, .encoded = "bytes of " + id};
}
inline QuorumMember ShrinkOnly(std::string id) {
  QuorumMember member = Member(std::move(id));
  member.shrink_only = true;
  return member;
}

// A call of Join. Copies refer to the same call.
class QuorumCall {
 public:
  bool done() const { return state_->result.has_value(); }
  absl::Status status() const { return done() ? state_->result->status() : NotAnswered(); }
  // The ids of the members, joined; "" if there is no quorum.
  std::string members() const {
    std::string ids;
    if (!done() || !state_->result->ok()) return ids;
    for (const QuorumMember& member : (**state_->result)->members) {
      ids += (ids.empty() ? "" : " ") + member.replica_id;
    }
    return ids;
  }
  int64_t id() const { return done() && state_->result->ok() ? (**state_->result)->id : -1; }
  const Quorum& quorum() const { return ***state_->result; }
  WaitId wait() const { return state_->wait; }

 private:
  friend class LighthouseWorld;
  struct State {
    std::optional<absl::StatusOr<QuorumPtr>> result;
    WaitId wait = kNoWait;
  };
  static absl::Status NotAnswered() { return absl::UnknownError("not answered"); }

  std::shared_ptr<State> state_ = std::make_shared<State>();
};

class LighthouseWorld {
 public:
  explicit LighthouseWorld(const LighthouseOptions& options = {})
      : lighthouse(options, clock, completions) {}

  QuorumCall Join(QuorumMember member, absl::Duration timeout = absl::Hours(1)) {
    QuorumCall call;
    call.state_->wait = lighthouse.Join(
        std::move(member), timeout, [state = call.state_](absl::StatusOr<QuorumPtr> result) {
          EXPECT_FALSE(state->result.has_value()) << "a callback was called again";
          state->result = std::move(result);
        });
    EXPECT_FALSE(call.done()) << "a callback ran inside the call that took it";
    Run();
    EXPECT_EQ(call.done(), call.wait() == kNoWait);
    return call;
  }
  QuorumCall Join(const std::string& id) { return Join(Member(id)); }
  absl::Status Beat(const std::string& id) { return lighthouse.Heartbeat(id); }

  // Lets time pass in steps of a tick, while `alive` send heartbeats.
  void Pass(absl::Duration time, const std::vector<std::string>& alive = {}) {
    constexpr absl::Duration kStep = absl::Milliseconds(100);
    for (; time > absl::ZeroDuration(); time -= kStep) {
      clock.Advance(std::min(time, kStep));
      for (const std::string& id : alive) EXPECT_TRUE(Beat(id).ok());
      AdvanceIfDue();
    }
  }
  void AdvanceIfDue() {
    if (lighthouse.NextDeadline() <= clock.Now()) lighthouse.Advance();
    Run();
  }
  void Run() {
    for (Completion& completion : completions.Take()) std::move(completion)();
    const TableSizes sizes = Sizes();
    EXPECT_EQ(sizes.at("lighthouse.calls"), sizes.at("lighthouse.waits"));
    EXPECT_EQ(sizes.at("lighthouse.deadlines"), sizes.at("lighthouse.waits"));
    EXPECT_EQ(sizes.at("lighthouse.pending_bytes") == 0, sizes.at("lighthouse.waits") == 0);
  }
  TableSizes Sizes() const {
    TableSizes sizes;
    lighthouse.AddTableSizes(sizes);
    return sizes;
  }
  // A first quorum of these.
  void Form(const std::vector<std::string>& ids) {
    std::vector<QuorumCall> calls;
    for (const std::string& id : ids) EXPECT_TRUE(Beat(id).ok());
    for (const std::string& id : ids) calls.push_back(Join(id));
    for (const QuorumCall& call : calls) EXPECT_TRUE(call.status().ok()) << call.status();
  }

  FakeClock clock;
  Completions completions;
  Lighthouse lighthouse;
};

}  // namespace ferry::coord

#endif  // FERRY_TESTS_COORD_LIGHTHOUSE_LIGHTHOUSE_WORLD_H_
