// SPDX-License-Identifier: Apache-2.0
// Queries the transports' cost functions on behalf of remote nodes.
#include "cli/topo_paths.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "base/bounded_text.h"
#include "base/status_macros.h"
#include "cli/status_transfers.h"
#include "cli/table.h"
#include "launch/printable.h"
#include "node/endpoint_record.h"
#include "node/transfer_engine.h"
#include "node/transfer_report.h"

namespace ferry::cli {
namespace {

constexpr size_t kMaxNodes = 16;
// Per node.
constexpr size_t kMaxGpus = 16;
// Limit on the pairs listed per kind of path.
constexpr size_t kMaxPairs = 6;
// Large enough that bandwidth decides.
constexpr size_t kBytes = size_t{1} << 20;

// Names of pairs, by their path.
using PairsByPath = std::map<std::string, std::vector<std::string>>;
// Timeout for nodes that hang.
constexpr absl::Duration kAnswerTimeout = absl::Seconds(1);

// Pairs with the same kind of path, whose costs differ only in numbers.
struct AlikePairs {
  std::vector<PathExplanation> choices;
  std::vector<std::string> names;
};

// Starts an engine without connections, for its list of transports.
absl::StatusOr<std::unique_ptr<TransferEngine>> StartUnreachable() {
  TransferEngineOptions options;
  options.listen = "";
  options.unix_socket = false;
  options.token = "none";
  // The job's GPUs matter, not this machine's.
  options.use_gpus = false;
  Endpoint nobody;
  nobody.peer.node_id = -1;
  return TransferEngine::Start(std::move(options), nobody, [](int32_t node, ResolveCallback done) {
    std::move(done)(absl::NotFoundError("nobody is asked"));
  });
}

absl::StatusOr<PathExplanation> ChooseBetween(const TransferEngine& engine, const Endpoint& source,
                                              const Endpoint& destination, bool is_in_arena,
                                              const TensorLocation& from,
                                              const TensorLocation& to) {
  PathQuery query;
  query.source = &source;
  query.destination = &destination;
  query.channel_passes_descriptors = !source.channels.unix_name.empty();
  query.descriptors_unavailable_reason = "the sender has no Unix socket";
  query.bytes = kBytes;
  query.is_in_arena = is_in_arena;
  query.source_location = from;
  query.destination_location = to;
  query.common = CommonTransports(engine.transports(), source, destination);
  return ExplainPath(engine.transports(), query, {});
}

std::string PathBetween(const TransferEngine& engine, const Endpoint& source,
                        const Endpoint& destination, const TensorLocation& from,
                        const TensorLocation& to) {
  // Staged tensors are in an arena when they are sent.
  const absl::StatusOr<PathExplanation> choice =
      ChooseBetween(engine, source, destination, /*is_in_arena=*/true, from, to);
  return choice.ok() ? Explain(*choice) : absl::StrCat("none: ", choice.status().message());
}

size_t GpuCount(const Endpoint& node) { return std::min(node.gpus.size(), kMaxGpus); }

std::string GpuName(const Endpoint& node, size_t gpu) {
  return absl::StrCat(node.peer.node_id, "/gpu:", gpu);
}

TensorLocation Gpu(size_t ordinal) { return {MemorySpace::kCuda, static_cast<int>(ordinal)}; }

// Path between two GPUs of one process, which involves no transport.
std::string PathWithin(const GlobalTopology& topology, int32_t node_id, size_t from, size_t to) {
  std::string path = "local, by their copy engines if they have peer access, else through the host";
  const std::optional<int> node = topology.NodeIndex(node_id);
  if (!node) return path;
  const std::vector<Device>& devices = topology.nodes()[static_cast<size_t>(*node)].devices;
  int ends[2] = {-1, -1};
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].kind != DeviceKind::kGpu) continue;
    if (devices[i].ordinal == static_cast<int>(from)) ends[0] = static_cast<int>(i);
    if (devices[i].ordinal == static_cast<int>(to)) ends[1] = static_cast<int>(i);
  }
  if (ends[0] < 0 || ends[1] < 0) return path;
  const Link link =
      topology.LinkBetween(topology.GlobalId(*node, ends[0]), topology.GlobalId(*node, ends[1]));
  return absl::StrCat(path, " (", LinkTypeName(link.type), ")");
}

// Returns the sender's report on its path to `destination`; null if it has no control channel to
// it, or has not answered.
const PathReport* Reported(const TransferAnswers& answers, const Endpoint& source,
                           const Endpoint& destination, bool is_in_arena) {
  const auto report = answers.reports.find(source.peer.node_id);
  if (report == answers.reports.end()) return nullptr;
  for (const PathReport& path : report->second.paths) {
    if (path.peer == destination.peer.node_id && path.is_in_arena == is_in_arena) return &path;
  }
  return nullptr;
}

PairsByPath NodePairs(const TransferEngine& engine, const std::vector<Endpoint>& nodes,
                      const TransferAnswers& answers, bool is_in_arena) {
  PairsByPath pairs;
  std::map<std::string, AlikePairs> alike;
  for (const Endpoint& source : nodes) {
    for (const Endpoint& destination : nodes) {
      const bool is_one_node = source.peer.node_id == destination.peer.node_id;
      const PathReport* const reported = Reported(answers, source, destination, is_in_arena);
      // Paths within a node are known only to the node.
      if (is_one_node && reported == nullptr) continue;
      const std::string name = absl::StrCat(source.peer.node_id, ">", destination.peer.node_id);
      const absl::StatusOr<PathExplanation> choice =
          reported != nullptr ? reported->choice
                              : ChooseBetween(engine, source, destination, is_in_arena, {}, {});
      if (!choice.ok()) {
        pairs[absl::StrCat("none: ", choice.status().message())].push_back(name);
        continue;
      }
      AlikePairs& same = alike[ExplanationKey(*choice)];
      same.choices.push_back(*choice);
      same.names.push_back(name);
    }
  }
  for (const auto& [sort, same] : alike) {
    std::vector<std::string>& names = pairs[Explain(absl::MakeConstSpan(same.choices))];
    names.insert(names.end(), same.names.begin(), same.names.end());
  }
  return pairs;
}

PairsByPath GpuPairs(const TransferEngine& engine, const std::vector<Endpoint>& nodes,
                     const GlobalTopology& topology) {
  PairsByPath pairs;
  for (const Endpoint& source : nodes) {
    for (const Endpoint& destination : nodes) {
      const bool is_one_node = source.peer.node_id == destination.peer.node_id;
      for (size_t from = 0; from < GpuCount(source); ++from) {
        for (size_t to = 0; to < GpuCount(destination); ++to) {
          if (is_one_node && from == to) continue;
          const std::string path =
              is_one_node ? PathWithin(topology, source.peer.node_id, from, to)
                          : PathBetween(engine, source, destination, Gpu(from), Gpu(to));
          pairs[path].push_back(absl::StrCat(GpuName(source, from), ">", GpuName(destination, to)));
        }
      }
    }
  }
  return pairs;
}

std::string FormatPairs(PairsByPath pairs, const char* title, const char* what) {
  std::vector<std::vector<std::string>> rows = {{title, what}};
  for (const auto& [path, names] : pairs) {
    rows.push_back({BoundedList(names, kMaxPairs, " "), Printable(path)});
  }
  return FormatTable(rows, "  ");
}

}  // namespace

absl::StatusOr<std::string> FormatPaths(coord::Agent& agent, const GlobalTopology& topology) {
  std::string prefix = EndpointKey(0);
  prefix.pop_back();
  FERRY_ASSIGN_OR_RETURN(const std::vector<coord::KeyValue> entries, agent.List(prefix));
  std::vector<Endpoint> nodes;
  for (const coord::KeyValue& entry : entries) {
    int node = 0;
    if (!absl::SimpleAtoi(absl::StripPrefix(entry.key, prefix), &node)) continue;
    // The store's values are untrusted: any client can write them.
    absl::StatusOr<Endpoint> endpoint = DecodeEndpoint(entry.value, node);
    if (endpoint.ok()) nodes.push_back(*std::move(endpoint));
  }
  std::sort(nodes.begin(), nodes.end(),
            [](const Endpoint& a, const Endpoint& b) { return a.peer.node_id < b.peer.node_id; });
  const size_t count = nodes.size();
  nodes.resize(std::min(nodes.size(), kMaxNodes));
  FERRY_ASSIGN_OR_RETURN(const auto engine, StartUnreachable());
  const TransferAnswers answers = AskTransferReports(agent, kAnswerTimeout, kMaxAskedNodes);
  const PairsByPath of_nodes = NodePairs(*engine, nodes, answers, /*is_in_arena=*/true);
  const PairsByPath of_others = NodePairs(*engine, nodes, answers, /*is_in_arena=*/false);
  const PairsByPath of_gpus = GpuPairs(*engine, nodes, topology);
  if (of_nodes.empty() && of_gpus.empty()) return std::string();
  std::string text =
      absl::StrCat("\npaths of tensors",
                   count > nodes.size()
                       ? absl::StrCat(" between the first ", nodes.size(), " of ", count, " nodes")
                       : "",
                   ":\n");
  if (!of_nodes.empty()) text += FormatPairs(of_nodes, "PAIRS", "TENSORS OF 1 MiB IN THE ARENA");
  if (!of_others.empty()) {
    absl::StrAppend(&text, "\n", FormatPairs(of_others, "PAIRS", "TENSORS OF 1 MiB ELSEWHERE"));
  }
  if (!of_gpus.empty()) {
    absl::StrAppend(&text, "\n", FormatPairs(of_gpus, "GPU PAIRS", "TENSORS OF 1 MiB"));
  }
  return text;
}

}  // namespace ferry::cli
