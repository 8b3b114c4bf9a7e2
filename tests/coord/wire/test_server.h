// SPDX-License-Identifier: Apache-2.0
// A coordinator on a free port of the loopback, and access to its internals.
#ifndef FERRY_TESTS_COORD_WIRE_TEST_SERVER_H_
#define FERRY_TESTS_COORD_WIRE_TEST_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coord/core/coordinator.h"
#include "coord/server/server.h"
#include "wire_client.h"

namespace ferry::coord {

// No register barrier, no shutdown barrier, nothing that times out within a test.
inline ServerOptions TestOptions(int tasks) {
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.stop_grace = absl::Milliseconds(500);
  options.coordinator.jobs = {{"jax_worker", tasks}};
  options.coordinator.register_barrier = false;
  options.coordinator.register_timeout = absl::Minutes(1);
  options.coordinator.heartbeat_timeout = absl::Minutes(1);
  options.coordinator.shutdown_timeout = absl::ZeroDuration();
  return options;
}

// As JAX runs it: connecting and shutting down are barriers.
inline ServerOptions BarrierOptions(int tasks) {
  ServerOptions options = TestOptions(tasks);
  options.coordinator.register_barrier = true;
  options.coordinator.shutdown_timeout = absl::Minutes(1);
  options.coordinator.reuse = false;
  return options;
}

class TestServer {
 public:
  explicit TestServer(ServerOptions options) {
    auto server = CoordinatorServer::Create(std::move(options));
    if (!server.ok()) {
      ADD_FAILURE() << server.status();
      std::abort();  // nothing of the test makes sense
    }
    server_ = *std::move(server);
  }
  explicit TestServer(int tasks) : TestServer(TestOptions(tasks)) {}

  CoordinatorServer& operator*() { return *server_; }
  CoordinatorServer* operator->() { return server_.get(); }
  const std::string& address() const { return server_->address(); }
  std::shared_ptr<grpc::Channel> Channel() const { return NewChannel(address()); }

  uint64_t incarnation() {
    return server_->executor().Run(
        [](Coordinator& coordinator) { return coordinator.incarnation().value(); });
  }
  size_t parked() {
    return server_->executor().Run(
        [](Coordinator& coordinator) { return coordinator.wait_count(); });
  }
  // Everything that was sent has arrived and waits: there are so many waits.
  [[nodiscard]] bool WaitUntilParked(size_t count) {
    return Eventually([this, count] { return parked() == count; });
  }

  // Waits until a call waits for `what`: "key \"a\"", "barrier \"b\"".
  [[nodiscard]] bool WaitUntilAwaited(const std::string& what) {
    return Eventually([this, &what] {
      return server_->executor().Run([&what](Coordinator& coordinator) {
        for (const WaitInfo& wait : coordinator.Waits()) {
          if (wait.what.find(what) != std::string::npos) return true;
        }
        return false;
      });
    });
  }

  // A task's client on a connection of its own.
  TaskClient Task(Dialect dialect, int task) {
    return TaskClient(dialect, Channel(), task, incarnation());
  }
  // Clients of tasks 0..n-1, registered with incarnations 100, 101, ...
  std::vector<TaskClient> Registered(Dialect dialect, int count) {
    std::vector<TaskClient> tasks;
    std::vector<PendingCall> calls;
    for (int i = 0; i < count; ++i) {
      tasks.push_back(Task(dialect, i));
      calls.push_back(tasks.back().Register(100 + static_cast<uint64_t>(i)));
    }
    for (const PendingCall& call : calls) EXPECT_THAT(call.Wait(), IsOk());
    return tasks;
  }

 private:
  std::unique_ptr<CoordinatorServer> server_;
};

// Every test of a suite in every dialect.
class WireTest : public ::testing::TestWithParam<Dialect> {};

#define FERRY_IN_EVERY_DIALECT(Suite)                                                       \
  INSTANTIATE_TEST_SUITE_P(, Suite, ::testing::ValuesIn(::ferry::coord::kDialects),         \
                           [](const ::testing::TestParamInfo<::ferry::coord::Dialect>& i) { \
                             return ::ferry::coord::DialectName(i.param);                   \
                           })

}  // namespace ferry::coord

#endif  // FERRY_TESTS_COORD_WIRE_TEST_SERVER_H_
