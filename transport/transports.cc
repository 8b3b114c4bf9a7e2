// SPDX-License-Identifier: Apache-2.0
// The explicit list, and the cheapest of it.
#include "transport/transports.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "base/status_macros.h"
#include "base/text.h"
#include "transport/cuda_ipc/cuda_ipc_transport.h"
#include "transport/local/local_transport.h"
#include "transport/nccl/nccl_transport.h"
#include "transport/shm/shm_transport.h"

namespace ferry {
namespace {

// Bytes per second that no copy reaches.
constexpr double kNoCopy = 1e12;
// Of a copy between a GPU's memory and the host's, until something is known: PCIe's.
constexpr absl::Duration kStageLatency = absl::Microseconds(20);
constexpr double kStageBytesPerSecond = 10e9;

// As the transport says, with the copies to and from the host's memory that it takes.
absl::StatusOr<PathCost> CostOf(const Transport& transport, const PathQuery& query) {
  absl::StatusOr<PathCost> cost = transport.Cost(query);
  if (!cost.ok() || transport.moves_gpu_memory()) return cost;
  const int stages = (query.source_place.space == MemorySpace::kHost ? 0 : 1) +
                     (query.destination_place.space == MemorySpace::kHost ? 0 : 1);
  if (stages == 0) return cost;
  cost->stages = stages;
  cost->latency += stages * kStageLatency;
  cost->bytes_per_second = 1 / (1 / cost->bytes_per_second + stages / kStageBytesPerSecond);
  return cost;
}

// Transports of GPU memory have nothing to say of tensors that are in none. They are last in the
// list.
bool IsBeside(const Transport& transport, const PathQuery& query, const PathPolicy& policy) {
  return transport.moves_gpu_memory() && query.source_place.space == MemorySpace::kHost &&
         query.destination_place.space == MemorySpace::kHost && transport.name() != policy.require;
}

}  // namespace

absl::StatusOr<TransportList> MakeTransports(const TransportEnvironment& environment,
                                             const TransportOptions& options) {
  TransportList list;
  list.push_back(std::make_unique<ShmTransport>(environment));
  FERRY_ASSIGN_OR_RETURN(auto tcp, TcpTransport::Create(environment, options.tcp));
  list.push_back(std::move(tcp));
  list.push_back(std::make_unique<CudaIpcTransport>(environment));
  list.push_back(std::make_unique<NcclTransport>(environment, options.nccl));
  // Its number is on no wire.
  list.push_back(std::make_unique<LocalTransport>());
  return list;
}

absl::Status CheckPolicy(const TransportList& transports, const PathPolicy& policy) {
  if (policy.require.empty()) return absl::OkStatus();
  std::vector<absl::string_view> names;
  for (const auto& transport : transports) {
    if (transport->name() == policy.require) return absl::OkStatus();
    names.push_back(transport->name());
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no transport called ", policy.require,
                                                 "; there are ", absl::StrJoin(names, ", ")));
}

absl::StatusOr<PathChoice> ChoosePath(const TransportList& transports, const PathQuery& query,
                                      const PathPolicy& policy) {
  PathChoice choice;
  absl::Duration least = absl::InfiniteDuration();
  const bool is_within = query.source->peer == query.destination->peer;
  for (size_t i = 0; i < transports.size(); ++i) {
    const Transport& transport = *transports[i];
    const bool is_local = !transport.leaves_process();
    // Nobody asks who moves tensors between processes, nor whether two processes are one.
    if (is_local ? !is_within && transport.name() != policy.require
                 : IsBeside(transport, query, policy)) {
      continue;
    }
    absl::StatusOr<PathCost> cost = CostOf(transport, query);
    // What never leaves the process falls back on nothing, whatever is required.
    const bool is_allowed =
        is_within ? is_local : policy.require.empty() || transport.name() == policy.require;
    if (cost.ok() && is_allowed && cost->Of(query.bytes) < least) {
      least = cost->Of(query.bytes);
      choice.transport = i;
      choice.cost = *cost;
    }
    choice.candidates.push_back({std::string(transport.name()), std::move(cost), i});
  }
  if (least < absl::InfiniteDuration()) return choice;
  std::vector<std::string> reasons;
  for (const PathCandidate& candidate : choice.candidates) {
    if (candidate.cost.ok()) continue;
    if (!policy.require.empty() && candidate.name != policy.require) continue;
    reasons.push_back(absl::StrCat(candidate.name, ": ", candidate.cost.status().message()));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      policy.require.empty() ? "no transport connects " : "the required transport cannot connect ",
      Describe(query.source->peer), " and ", Describe(query.destination->peer), ": ",
      absl::StrJoin(reasons, "; ")));
}

int PickPath(const TransportList& transports, const PathQuery& query, const PathPolicy& policy) {
  int best = -1;
  absl::Duration least = absl::InfiniteDuration();
  for (size_t i = 0; i < transports.size(); ++i) {
    const Transport& transport = *transports[i];
    if (!policy.require.empty() && transport.name() != policy.require) continue;
    // Its refusal would be a string for every transfer.
    if (IsBeside(transport, query, policy)) continue;
    const absl::StatusOr<PathCost> cost = CostOf(transport, query);
    if (!cost.ok() || cost->Of(query.bytes) >= least) continue;
    least = cost->Of(query.bytes);
    best = static_cast<int>(i);
  }
  return best;
}

std::string Explain(const PathChoice& choice) {
  std::string text;
  for (const PathCandidate& each : choice.candidates) {
    if (!text.empty()) text += "; ";
    if (!each.cost.ok()) {
      absl::StrAppend(&text, "not ", each.name, ": ", each.cost.status().message());
      continue;
    }
    const double rate = each.cost->bytes_per_second;
    absl::StrAppend(&text, each.transport == choice.transport ? "" : "not ", each.name, " (",
                    ShortDuration(each.cost->latency),
                    rate >= kNoCopy ? ", no copy" : absl::StrFormat(" + %.1f GB/s", rate / 1e9),
                    each.cost->stages > 0 ? ", staged through host memory" : "",
                    each.cost->note.empty() ? "" : ": ", each.cost->note, ")");
  }
  return text;
}

}  // namespace ferry
