// SPDX-License-Identifier: Apache-2.0
// Joins all members concurrently.
#include "bench/members.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"

#include "base/clock.h"
#include "base/file_limit.h"
#include "base/status_macros.h"
#include "base/thread.h"

namespace ferry::cli {
namespace {

constexpr absl::Duration kJoinTimeout = absl::Minutes(1);
// File descriptors for everything else in this process.
constexpr int kOtherFiles = 100;

std::string EndpointOf(int node) {
  return absl::StrFormat("10.%d.%d.%d:50%03d", node >> 16 & 255, node >> 8 & 255, node & 255,
                         node % 1000);
}

LocalTopology TopologyOf(int node) {
  LocalTopology topology;
  topology.node_id = node;
  topology.host_name = absl::StrFormat("bench-node-%05d", node);
  topology.boot_id = absl::StrFormat("%08x-0000-4000-8000-%012x", node, node);
  topology.endpoint = EndpointOf(node);
  Device host;
  host.name = "simulated";
  host.core_count = 1;
  topology.devices.push_back(host);
  return topology;
}

// Runs `body` for each node on a thread of its own; calls `started` once all threads exist.
absl::Status OnThreads(int count, const std::function<absl::Status(int)>& body,
                       const std::function<void()>& started) {
  std::vector<absl::Status> results(static_cast<size_t>(count));
  absl::BlockingCounter are_there(count);
  absl::Notification go;
  {
    std::vector<std::unique_ptr<Thread>> threads;
    for (int node = 0; node < count; ++node) {
      threads.push_back(std::make_unique<Thread>("ferry-member", [&, node] {
        are_there.DecrementCount();
        go.WaitForNotification();
        results[static_cast<size_t>(node)] = body(node);
      }));
    }
    are_there.Wait();
    started();
    go.Notify();
  }
  for (const absl::Status& result : results) FERRY_RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

}  // namespace

BenchMembers::BenchMembers(int count)
    : agents_(static_cast<size_t>(count)),
      topologies_(static_cast<size_t>(count), absl::UnknownError("not joined")) {}

BenchMembers::~BenchMembers() = default;

absl::StatusOr<std::unique_ptr<BenchMembers>> BenchMembers::Join(const std::string& coordinator,
                                                                 int count) {
  std::unique_ptr<BenchMembers> members(new BenchMembers(count));
  absl::Time start;
  std::vector<absl::Time> ends(static_cast<size_t>(count));
  FERRY_RETURN_IF_ERROR(OnThreads(
      count,
      [&members, &ends, &coordinator, count](int node) -> absl::Status {
        const auto index = static_cast<size_t>(node);
        coord::AgentOptions options;
        options.coordinator = coordinator;
        options.node_id = node;
        options.num_nodes = count;
        options.devices = TopologyOf(node);
        options.host_name = options.devices->host_name;
        options.boot_id = options.devices->boot_id;
        options.connect_timeout = kJoinTimeout;
        options.enumerate_timeout = kJoinTimeout;
        FERRY_ASSIGN_OR_RETURN(members->agents_[index], coord::Agent::Connect(std::move(options)));
        members->topologies_[index] = members->agents_[index]->Topology();
        ends[index] = SteadyClock().Now();
        return members->topologies_[index].status();
      },
      [&start] { start = SteadyClock().Now(); }));
  members->join_time_ = *std::max_element(ends.begin(), ends.end()) - start;
  return members;
}

size_t BenchMembers::CountWrongEndpoints() const {
  size_t wrong = 0;
  for (const absl::StatusOr<GlobalTopology>& topology : topologies_) {
    const bool is_whole = topology.ok() && topology->nodes().size() == topologies_.size();
    for (size_t node = 0; node < topologies_.size(); ++node) {
      if (!is_whole || topology->nodes()[node].endpoint != EndpointOf(static_cast<int>(node))) {
        ++wrong;
      }
    }
  }
  return wrong;
}

absl::Status BenchMembers::Leave() {
  return OnThreads(
      count(), [this](int node) { return agent(node).Leave(); }, [] {});
}

absl::Status CheckFileLimit(int connections) {
  const int64_t limit = RaiseFileLimit();
  if (connections + kOtherFiles <= limit) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("--nodes: ", connections, " connections need more files than the ", limit,
                   " that this process may open; raise the limit (ulimit -Hn) or ask for fewer"));
}

}  // namespace ferry::cli
