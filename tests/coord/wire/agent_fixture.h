// SPDX-License-Identifier: Apache-2.0
// Agents of one job in one process, for tests.
#ifndef FERRY_TESTS_COORD_WIRE_AGENT_FIXTURE_H_
#define FERRY_TESTS_COORD_WIRE_AGENT_FIXTURE_H_

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "coord/client/agent.h"
#include "test_server.h"

namespace ferry::coord {

// Runs `body` on a thread of its own.
template <typename Body>
auto InBackground(Body body) {
  return std::async(std::launch::async, std::move(body));
}

// The result, within kTimeout; fails the test if there is none.
template <typename T>
T Await(std::future<T>& future) {
  if (future.wait_for(absl::ToChronoSeconds(kTimeout)) != std::future_status::ready) {
    ADD_FAILURE() << "a call of the agent did not end";
    // Waiting for the thread would only hang the whole run.
    std::abort();
  }
  return future.get();
}

template <typename T>
bool IsPending(const std::future<T>& future) {
  return future.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

// The errors passed to on_error. Outlives the agents that write to it.
class ErrorLog {
 public:
  std::function<void(absl::Status)> Writer() {
    return [this](absl::Status error) {
      absl::MutexLock lock(&mu_);
      errors_.push_back(std::move(error));
    };
  }
  std::vector<absl::Status> errors() const {
    absl::MutexLock lock(&mu_);
    return errors_;
  }
  // The first error, within kTimeout.
  absl::Status WaitForFirst() const {
    const auto has_one = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !errors_.empty(); };
    absl::MutexLock lock(&mu_);
    if (!mu_.AwaitWithTimeout(absl::Condition(&has_one), kTimeout)) {
      return absl::UnknownError("on_error was not called");
    }
    return errors_.front();
  }

 private:
  mutable absl::Mutex mu_;
  std::vector<absl::Status> errors_ ABSL_GUARDED_BY(mu_);
};

inline AgentOptions RankOptions(const std::string& address, int node) {
  AgentOptions options;
  options.coordinator = address;
  options.node_id = node;
  options.host_name = absl::StrCat("host", node);
  options.boot_id = absl::StrCat("boot", node);
  options.connect_timeout = kTimeout;
  return options;
}

inline AgentOptions ToolOptions(const std::string& address) {
  AgentOptions options;
  options.coordinator = address;
  options.connect_timeout = kTimeout;
  return options;
}

using Agents = std::vector<std::unique_ptr<Agent>>;

// Connects all at once; nulls, and a failed test, for those that could not.
inline Agents ConnectAll(std::vector<AgentOptions> options) {
  std::vector<std::future<absl::StatusOr<std::unique_ptr<Agent>>>> connects;
  for (AgentOptions& one : options) {
    connects.push_back(InBackground([one] { return Agent::Connect(one); }));
  }
  Agents agents;
  for (auto& connect : connects) {
    absl::StatusOr<std::unique_ptr<Agent>> agent = Await(connect);
    EXPECT_THAT(agent, IsOk());
    agents.push_back(agent.ok() ? *std::move(agent) : nullptr);
  }
  return agents;
}
inline Agents ConnectAll(TestServer& server, int count) {
  std::vector<AgentOptions> options;
  for (int node = 0; node < count; ++node) options.push_back(RankOptions(server.address(), node));
  return ConnectAll(std::move(options));
}

}  // namespace ferry::coord

#endif  // FERRY_TESTS_COORD_WIRE_AGENT_FIXTURE_H_
