// SPDX-License-Identifier: Apache-2.0
// The transports' own answers, asked for nodes that are elsewhere.
#include "cli/topo_paths.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/status_macros.h"
#include "cli/table.h"
#include "runtime/endpoint_record.h"
#include "runtime/exchange.h"
#include "runtime/printable.h"

namespace ferry::cli {
namespace {

constexpr size_t kMaxNodes = 16;
// Pairs that are named for one sort of path.
constexpr size_t kMaxPairs = 6;
// Large enough that bandwidth decides.
constexpr size_t kBytes = size_t{1} << 20;

// An exchange that nobody can reach, for its list of transports.
absl::StatusOr<std::unique_ptr<Exchange>> StartUnreachable() {
  ExchangeOptions options;
  options.listen = "";
  options.unix_socket = false;
  options.token = "none";
  return Exchange::Start(std::move(options), Endpoint(), [](int32_t node, ResolveCallback done) {
    std::move(done)(absl::NotFoundError("nobody is asked"));
  });
}

std::string PathBetween(const Exchange& exchange, const Endpoint& source,
                        const Endpoint& destination) {
  PathQuery query;
  query.source = &source;
  query.destination = &destination;
  query.lane_passes_descriptors = !source.lanes.unix_name.empty();
  query.why_no_descriptors = "the sender has no Unix socket";
  query.bytes = kBytes;
  query.is_in_arena = true;
  const absl::StatusOr<PathChoice> choice = ChoosePath(exchange.transports(), query, {});
  return choice.ok() ? Explain(*choice) : absl::StrCat("none: ", choice.status().message());
}

}  // namespace

absl::StatusOr<std::string> FormatPaths(coord::Agent& agent) {
  std::string prefix = EndpointKey(0);
  prefix.pop_back();
  FERRY_ASSIGN_OR_RETURN(const std::vector<coord::KeyValue> entries, agent.List(prefix));
  std::vector<Endpoint> nodes;
  for (const coord::KeyValue& entry : entries) {
    // Anybody can write to the store.
    absl::StatusOr<Endpoint> endpoint = DecodeEndpoint(entry.value);
    if (endpoint.ok()) nodes.push_back(*std::move(endpoint));
  }
  if (nodes.size() < 2) return std::string();
  std::sort(nodes.begin(), nodes.end(),
            [](const Endpoint& a, const Endpoint& b) { return a.peer.node_id < b.peer.node_id; });
  const size_t count = nodes.size();
  nodes.resize(std::min(nodes.size(), kMaxNodes));
  FERRY_ASSIGN_OR_RETURN(const auto exchange, StartUnreachable());
  std::map<std::string, std::vector<std::string>> pairs;
  for (const Endpoint& source : nodes) {
    for (const Endpoint& destination : nodes) {
      if (source.peer.node_id == destination.peer.node_id) continue;
      pairs[PathBetween(*exchange, source, destination)].push_back(
          absl::StrCat(source.peer.node_id, ">", destination.peer.node_id));
    }
  }
  std::vector<std::vector<std::string>> rows = {{"PAIRS", "TENSORS OF 1 MiB"}};
  for (auto& [path, names] : pairs) {
    const size_t more = names.size() > kMaxPairs ? names.size() - kMaxPairs : 0;
    names.resize(names.size() - more);
    rows.push_back({absl::StrCat(absl::StrJoin(names, " "),
                                 more > 0 ? absl::StrCat(" and ", more, " more") : ""),
                    Printable(path)});
  }
  return absl::StrCat("\npaths of tensors",
                      count > nodes.size() ? absl::StrCat(" between the first ", nodes.size(),
                                                          " of ", count, " nodes")
                                           : "",
                      ":\n", FormatTable(rows, "  "));
}

}  // namespace ferry::cli
