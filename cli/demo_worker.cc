// SPDX-License-Identifier: Apache-2.0
// ferry demo-worker (hidden): one of the demo's workers.
#include "cli/demo_worker.h"

#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "cli/demo_tensors.h"
#include "cli/summary.h"
#include "cli/verb.h"
#include "node/node.h"

namespace ferry::cli {
namespace {

using Json = nlohmann::ordered_json;

void Tell(const char* event, Json fields) {
  Json line = {{"event", event}};
  line.update(fields);
  const std::string text =
      line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

double SecondsSince(absl::Time start) { return absl::ToDoubleSeconds(SteadyClock().Now() - start); }

std::string KeyOf(int node) { return absl::StrCat("demo/keys/", node); }
std::string ValueOf(int node) { return absl::StrCat("from node ", node); }

absl::Status ExchangeKeys(Node& node) {
  const absl::Time start = SteadyClock().Now();
  FERRY_RETURN_IF_ERROR(node.agent().Set(KeyOf(node.node_id()), ValueOf(node.node_id())));
  std::vector<std::string> keys;
  for (int i = 0; i < node.num_nodes(); ++i) keys.push_back(KeyOf(i));
  FERRY_ASSIGN_OR_RETURN(const std::vector<std::string> values,
                         node.agent().GetAll(keys, kDemoTimeout));
  const double seconds = SecondsSince(start);
  for (int i = 0; i < node.num_nodes(); ++i) {
    if (values[i] != ValueOf(i)) {
      return absl::InternalError(absl::StrCat("key ", keys[i], " holds \"", values[i], "\""));
    }
  }
  Tell("keys", {{"seconds", seconds}});
  return absl::OkStatus();
}

absl::Status PassBarrier(Node& node, const char* event, std::vector<int> nodes) {
  const absl::Time start = SteadyClock().Now();
  FERRY_RETURN_IF_ERROR(
      node.agent().Barrier(absl::StrCat("demo/", event), kDemoTimeout, std::move(nodes)));
  Tell(event, {{"seconds", SecondsSince(start)}});
  return absl::OkStatus();
}

absl::Status WaitForTheLate(Node& node) {
  absl::SleepFor(kLateStep * node.node_id());
  const absl::Time start = SteadyClock().Now();
  const absl::Status status = node.agent().Barrier(kLateBarrier, kLateTimeout);
  if (!absl::IsDeadlineExceeded(status)) {
    return absl::InternalError(
        absl::StrCat("barrier ", kLateBarrier, " should have timed out, but: ", status.ToString()));
  }
  Tell("late", {{"seconds", SecondsSince(start)}, {"message", std::string(status.message())}});
  return absl::OkStatus();
}

absl::StatusOr<int> Work(NodeOptions& options) {
  absl::Notification has_failed;
  absl::Status failure;
  options.connect_timeout = options.enumerate_timeout = kDemoTimeout;
  options.on_error = [&has_failed, &failure](absl::Status error) {
    failure = std::move(error);
    has_failed.Notify();
  };
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<Node> node, Node::Join(options));
  Tell("joined", {{"join_s", absl::ToDoubleSeconds(node->join_time())},
                  {"topology", TopologyHash(node->topology())},
                  {"summary", Summarize(node->topology())},
                  {"no_gpu", node->discovery().cuda_reason}});
  // Start together, so that the times below do not include the slowest start.
  FERRY_RETURN_IF_ERROR(node->agent().Barrier("demo/start", kDemoTimeout));
  FERRY_RETURN_IF_ERROR(ExchangeKeys(*node));
  FERRY_RETURN_IF_ERROR(node->agent().Barrier("demo/have-keys", kDemoTimeout));
  FERRY_RETURN_IF_ERROR(PassBarrier(*node, "all", {}));
  if (node->node_id() % 2 == 0) {
    FERRY_RETURN_IF_ERROR(PassBarrier(*node, "even", EvenNodes(node->num_nodes())));
  }
  FERRY_RETURN_IF_ERROR(TransferDemoTensors(*node, [](const DemoTransfer& transfer) {
    Tell("tensor", {{"bytes", transfer.bytes},
                    {"way", transfer.path},
                    {"first_s", absl::ToDoubleSeconds(transfer.first)},
                    {"again_s", absl::ToDoubleSeconds(transfer.again)}});
  }));
  FERRY_RETURN_IF_ERROR(node->agent().Get(kWatchingKey, kDemoTimeout).status());
  if (node->node_id() == node->num_nodes() - 1) {
    Tell("waiting", Json::object());
    has_failed.WaitForNotificationWithTimeout(2 * kDemoTimeout);
    return absl::DeadlineExceededError("the last node was not killed");
  }
  FERRY_RETURN_IF_ERROR(WaitForTheLate(*node));
  if (!has_failed.WaitForNotificationWithTimeout(kDemoTimeout)) {
    return absl::DeadlineExceededError("this node was not notified of the other's death");
  }
  Tell("heard", {{"message", std::string(failure.message())}});
  return kDone;
}

}  // namespace

std::vector<int> EvenNodes(int num_nodes) {
  std::vector<int> nodes;
  for (int node = 0; node < num_nodes; node += 2) nodes.push_back(node);
  return nodes;
}

Verb AddDemoWorkerVerb(CLI::App& app) {
  auto options = std::make_shared<NodeOptions>();
  CLI::App& verb = *app.add_subcommand("demo-worker", "One of the workers of ferry demo");
  verb.group("");  // Hidden.
  verb.add_option("--coordinator", options->coordinator)->required();
  constexpr int kMost = std::numeric_limits<int>::max();
  AddNumber(verb, "--node-id", options->node_id, "", 0, kMost)->required();
  AddNumber(verb, "--num-nodes", options->num_nodes, "", 1, kMost)->required();
  return [options]() { return Work(*options); };
}

}  // namespace ferry::cli
