// SPDX-License-Identifier: Apache-2.0
// The list of transports, path selection, and its explanation.
#include "transport/transports.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "base/status_macros.h"
#include "base/text.h"
#include "transport/cuda_ipc/cuda_ipc_transport.h"
#include "transport/nccl/nccl_transport.h"
#include "transport/path_cost_estimator.h"
#include "transport/shm/shm_transport.h"

namespace ferry {
namespace {

// Staging copy between GPU and host memory, until measured: PCIe's figures.
constexpr absl::Duration kStageLatency = absl::Microseconds(20);
constexpr double kStageBytesPerSecond = 10e9;

// Adds measurements to what transport `index` estimated, and the cost of staging copies to and from
// host memory.
void CompleteCost(const Transport& transport, size_t index, const PathQuery& query,
                  PathCost& cost) {
  if (query.estimates != nullptr) {
    query.estimates->Apply(
        index,
        transport.capabilities().has_control_channel_latency(query.channel_passes_descriptors),
        query.now, cost);
  }
  if (transport.capabilities().moves_gpu_memory) return;
  const int stages = (query.source_location.space == MemorySpace::kHost ? 0 : 1) +
                     (query.destination_location.space == MemorySpace::kHost ? 0 : 1);
  if (stages == 0) return;
  cost.stages = stages;
  cost.latency += stages * kStageLatency;
  cost.bytes_per_second = 1 / (1 / cost.bytes_per_second + stages / kStageBytesPerSecond);
}

// Hand-over within a process, until measured.
constexpr absl::Duration kLocalLatency = absl::Nanoseconds(75);

// True if the transfer takes no longer than its transfer descriptor. Nothing is cheaper, since
// every transfer has one: the most frequent selection needs no other costs.
bool IsZeroCopyFastPath(const Transport& transport, const PathQuery& query, const PathCost& cost) {
  return query.is_in_arena && cost.bytes_per_second >= kNoCopy &&
         transport.capabilities().has_control_channel_latency(query.channel_passes_descriptors) &&
         query.source_location.space == MemorySpace::kHost &&
         query.destination_location.space == MemorySpace::kHost;
}

bool IsTransportName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxTransportNameBytes &&
         std::all_of(name.begin(), name.end(), [](char each) {
           return absl::ascii_islower(static_cast<unsigned char>(each)) ||
                  absl::ascii_isdigit(static_cast<unsigned char>(each)) || each == '_';
         });
}

// The factory of a transport whose constructor is given the environment and then `arguments`, or
// which has a Create with these parameters if its construction can fail.
template <typename T, typename... Arguments>
TransportFactory Registration(Arguments... arguments) {
  return {.info = T::kInfo,
          .make = [arguments...](const TransportEnvironment& environment)
              -> absl::StatusOr<std::unique_ptr<Transport>> {
            if constexpr (requires { T::Create(environment, arguments...); }) {
              return T::Create(environment, arguments...);
            } else {
              return std::make_unique<T>(environment, arguments...);
            }
          }};
}

// "0.075us": finer than ShortDuration prints.
std::string LatencyText(absl::Duration latency) {
  const double us = absl::ToDoubleMicroseconds(latency);
  return us < 9.95 ? absl::StrFormat("%.2gus", us) : ShortDuration(latency);
}

std::string RateText(double bytes_per_second) {
  return absl::StrFormat("%.*f GB/s", bytes_per_second < 0.95e8 ? 3 : 1, bytes_per_second / 1e9);
}

std::string RangeText(const std::string& low, const std::string& high) {
  return low == high ? low : absl::StrCat(low, " to ", high);
}

// "1us measured 2s ago, no copy"; "50us + 1.0 GB/s, assumed".
std::string CostText(const PathCost& low, const PathCost& high) {
  const std::string latency = RangeText(LatencyText(low.latency), LatencyText(high.latency));
  const std::string latency_basis = DescribeBasis(high.latency_basis, high.latency_age);
  if (low.bytes_per_second >= kNoCopy) {
    return absl::StrCat(latency, " ", latency_basis, ", no copy");
  }
  const std::string rate =
      RangeText(RateText(low.bytes_per_second), RateText(high.bytes_per_second));
  const std::string rate_basis = DescribeBasis(high.bandwidth_basis, high.bandwidth_age);
  if (latency_basis == rate_basis) return absl::StrCat(latency, " + ", rate, ", ", rate_basis);
  return absl::StrCat(latency, " ", latency_basis, " + ", rate, " ", rate_basis);
}

// GPU-only transports are skipped when both ends are host memory: their error would be a string
// built for every transfer.
bool HandlesOnlyGpuMemory(const Transport& transport, const PathQuery& query,
                          const PathPolicy& policy) {
  return transport.capabilities().moves_gpu_memory &&
         query.source_location.space == MemorySpace::kHost &&
         query.destination_location.space == MemorySpace::kHost &&
         transport.name() != policy.require;
}

// Why a transport of this list connects no two processes of which one lacks it.
absl::Status LackError(const PathQuery& query, absl::string_view name) {
  const Endpoint& lacking =
      query.source->FindTransport(name) == nullptr ? *query.source : *query.destination;
  return absl::UnavailableError(
      absl::StrCat(Describe(lacking.peer), " has no transport called ", name));
}

// Adds the transports of the two processes that this one lacks.
void AddUnknown(const TransportList& transports, const PathQuery& query,
                std::vector<PathCandidate>& candidates) {
  const Endpoint& a = *query.source;
  const Endpoint& b = *query.destination;
  std::vector<absl::string_view> names;
  for (const Endpoint* each : {&a, &b}) {
    for (const TransportDescription& transport : each->transports) {
      const absl::string_view name = transport.name;
      const bool is_known = std::any_of(transports.begin(), transports.end(),
                                        [name](const auto& own) { return own->name() == name; }) ||
                            std::find(names.begin(), names.end(), name) != names.end();
      if (!is_known) names.push_back(name);
    }
  }
  for (const absl::string_view name : names) {
    const bool do_both_have = a.FindTransport(name) != nullptr && b.FindTransport(name) != nullptr;
    candidates.push_back(
        {std::string(name),
         do_both_have ? absl::UnavailableError(absl::StrCat("this process has no transport called ",
                                                            name, ", and does not know its cost"))
                      : LackError(query, name),
         kUnknownTransport});
  }
}

// Cost of a hand-over within a process, or the error that the two are different processes.
absl::StatusOr<PathCost> LocalCost(const PathQuery& query) {
  const Endpoint& a = *query.source;
  const Endpoint& b = *query.destination;
  if (!(a.peer == b.peer)) {
    return absl::UnavailableError(
        absl::StrCat("they are two processes, ", Describe(a.peer), " and ", Describe(b.peer)));
  }
  PathCost cost = {kLocalLatency, kNoCopy};
  if (query.local_latency > absl::ZeroDuration()) {
    cost.latency = query.local_latency;
    cost.latency_basis = CostBasis::kAtStart;
  }
  if (!(query.source_location == query.destination_location)) {
    // Gpus::Move copies it, at a bandwidth that is not known here.
    cost.note = "copied from one memory to the other";
  }
  return cost;
}

}  // namespace

std::vector<TransportFactory> BuiltinTransports(const TransportOptions& options,
                                                const NcclJob& nccl) {
  // A line each; the earlier one is taken if two cost the same. Those of GPU memory come last.
  return {
      Registration<ShmTransport>(),
      Registration<TcpTransport>(options.tcp),
      Registration<CudaIpcTransport>(),
      Registration<NcclTransport>(options.nccl, nccl),
  };
}

std::vector<std::string> TransportNames(absl::Span<const TransportFactory> factories) {
  std::vector<std::string> names;
  for (const TransportFactory& each : factories) names.emplace_back(each.info.name);
  return names;
}

const TransportFactory* FindTransport(absl::Span<const TransportFactory> factories,
                                      absl::string_view name) {
  for (const TransportFactory& each : factories) {
    if (each.info.name == name) return &each;
  }
  return nullptr;
}

bool IsReservedTransportName(absl::string_view name) {
  return name == kLocalPath || name == "inline" || name == "eager" || name == "grpc" ||
         name == "auto" || name == "all";
}

absl::Status CheckDescriptions(absl::Span<const TransportDescription> transports) {
  if (transports.size() > kMaxTransports) {
    return absl::InvalidArgumentError(
        absl::StrCat(transports.size(), " transports; a process has at most ", kMaxTransports));
  }
  for (size_t i = 0; i < transports.size(); ++i) {
    const TransportDescription& each = transports[i];
    if (!IsTransportName(each.name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a transport called ", Quoted(absl::string_view(each.name).substr(0, 64)),
          ": a name has 1 to ", kMaxTransportNameBytes, " lower case letters, digits and \"_\""));
    }
    if (IsReservedTransportName(each.name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a transport called ", each.name, ", which has another meaning"));
    }
    if (each.descriptor.size() > kMaxTransportDescriptorBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("the descriptor of transport ", each.name, " has ", each.descriptor.size(),
                       " bytes; the most is ", kMaxTransportDescriptorBytes));
    }
    for (size_t before = 0; before < i; ++before) {
      if (transports[before].name != each.name) continue;
      return absl::InvalidArgumentError(absl::StrCat("two transports are called ", each.name));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<TransportList> MakeTransports(const TransportEnvironment& environment,
                                             absl::Span<const TransportFactory> factories) {
  // Before any of them uses resources.
  std::vector<TransportDescription> names;
  for (const TransportFactory& each : factories) {
    names.push_back({std::string(each.info.name), ""});
  }
  FERRY_RETURN_IF_ERROR(CheckDescriptions(names));
  absl::string_view with_connections;
  for (const TransportFactory& each : factories) {
    if (!each.info.capabilities.uses_data_connections) continue;
    if (!with_connections.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("transports ", with_connections, " and ", each.info.name,
                       " both use data connections, which do not say whose they are"));
    }
    with_connections = each.info.name;
  }
  TransportList list;
  for (const TransportFactory& each : factories) {
    FERRY_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, each.make(environment));
    if (!(transport->info() == each.info)) {
      return absl::InvalidArgumentError(
          absl::StrCat("transport ", each.info.name, " is registered with another TransportInfo"));
    }
    list.push_back(std::move(transport));
  }
  FERRY_RETURN_IF_ERROR(CheckDescriptions(DescribeTransports(list)));
  return list;
}

std::vector<TransportDescription> DescribeTransports(const TransportList& transports) {
  std::vector<TransportDescription> descriptions;
  for (const auto& each : transports) {
    descriptions.push_back({std::string(each->name()), each->local_descriptor()});
  }
  return descriptions;
}

TransportSet CommonTransports(const TransportList& transports, const Endpoint& a,
                              const Endpoint& b) {
  TransportSet common = TransportSet::None();
  for (size_t i = 0; i < transports.size(); ++i) {
    const absl::string_view name = transports[i]->name();
    if (a.FindTransport(name) != nullptr && b.FindTransport(name) != nullptr) common.Add(i);
  }
  return common;
}

absl::StatusOr<PathPolicy> MakePolicy(absl::Span<const TransportFactory> factories,
                                      const std::string& require) {
  if (require.empty() || require == kLocalPath) return PathPolicy{.require = require};
  if (const TransportFactory* const found = FindTransport(factories, require); found != nullptr) {
    return PathPolicy{.require = require, .required = found->info.capabilities};
  }
  std::vector<std::string> names = TransportNames(factories);
  names.emplace_back(kLocalPath);
  return absl::InvalidArgumentError(absl::StrCat("there is no transport called ", require,
                                                 "; there are ", absl::StrJoin(names, ", ")));
}

std::optional<size_t> SelectPath(const TransportList& transports, const PathQuery& query,
                                 const PathPolicy& policy, PathExplanation* explanation) {
  // In-process transfers need no transport, whatever the policy requires.
  const bool is_within = query.source->peer == query.destination->peer;
  std::optional<size_t> best;
  absl::Duration least = absl::InfiniteDuration();
  bool is_settled = false;
  for (size_t i = 0; i < transports.size(); ++i) {
    const Transport& transport = *transports[i];
    const bool is_allowed = !is_within && policy.allows(transport);
    if (!is_allowed && explanation == nullptr) continue;
    if (HandlesOnlyGpuMemory(transport, query, policy)) continue;
    if (!query.common.Has(i)) {
      if (explanation == nullptr) continue;
      explanation->candidates.push_back(
          {std::string(transport.name()), LackError(query, transport.name()), i});
      continue;
    }
    absl::StatusOr<PathCost> cost = transport.Cost(query);
    if (cost.ok()) {
      const bool settles = is_allowed && !is_settled && IsZeroCopyFastPath(transport, query, *cost);
      if (settles && explanation == nullptr) return i;
      CompleteCost(transport, i, query, *cost);
      if (is_allowed && !is_settled && (settles || cost->Of(query.bytes) < least)) {
        best = i;
        least = cost->Of(query.bytes);
        is_settled = settles;
        if (explanation != nullptr) explanation->cost = *cost;
      }
    }
    if (explanation != nullptr) {
      explanation->candidates.push_back({std::string(transport.name()), std::move(cost), i});
    }
  }
  if (explanation == nullptr) return best;
  explanation->transport = best.value_or(transports.size());
  if (!is_within) AddUnknown(transports, query, explanation->candidates);
  // In-process transfers only consider the local path; cross-process transfers never do.
  if (is_within || policy.require == kLocalPath) {
    absl::StatusOr<PathCost> cost = LocalCost(query);
    if (cost.ok()) explanation->cost = *cost;
    explanation->candidates.push_back(
        {std::string(kLocalPath), std::move(cost), transports.size()});
  }
  return best;
}

std::optional<size_t> ZeroCopyPath(const TransportList& transports, const PathQuery& query,
                                   const PathPolicy& policy) {
  const std::optional<size_t> best = SelectPath(transports, query, policy, nullptr);
  if (!best) return std::nullopt;
  const absl::StatusOr<PathCost> cost = transports[*best]->Cost(query);
  if (!cost.ok() || !IsZeroCopyFastPath(*transports[*best], query, *cost)) return std::nullopt;
  return best;
}

absl::Status NoPathError(const PathQuery& query, const PathPolicy& policy,
                         const PathExplanation& explanation) {
  std::vector<std::string> reasons;
  for (const PathCandidate& candidate : explanation.candidates) {
    if (candidate.cost.ok()) continue;
    if (!policy.require.empty() && candidate.name != policy.require) continue;
    reasons.push_back(absl::StrCat(candidate.name, ": ", candidate.cost.status().message()));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      policy.require.empty() ? "no transport connects " : "the required transport cannot connect ",
      Describe(query.source->peer), " and ", Describe(query.destination->peer), ": ",
      absl::StrJoin(reasons, "; ")));
}

absl::StatusOr<PathExplanation> ExplainPath(const TransportList& transports, const PathQuery& query,
                                            const PathPolicy& policy) {
  PathExplanation explanation;
  const std::optional<size_t> selected = SelectPath(transports, query, policy, &explanation);
  const bool is_within = query.source->peer == query.destination->peer;
  if (!selected && !is_within) return NoPathError(query, policy, explanation);
  return explanation;
}

std::string DescribeBasis(CostBasis basis, absl::Duration age) {
  switch (basis) {
    case CostBasis::kAssumed:
      break;
    case CostBasis::kAtStart:
      return "measured at start";
    case CostBasis::kMeasured:
      return absl::StrCat("measured ", ShortDuration(age), " ago");
  }
  return "assumed";
}

std::string ExplanationKey(const PathExplanation& choice) {
  // Names and reasons may come from another process, and contain anything.
  std::string sort;
  for (const PathCandidate& each : choice.candidates) {
    absl::StrAppend(&sort, absl::CEscape(each.name), "\t", each.transport == choice.transport,
                    "\t");
    if (!each.cost.ok()) {
      absl::StrAppend(&sort, "not\t", absl::CEscape(each.cost.status().message()), "\n");
      continue;
    }
    absl::StrAppend(&sort, static_cast<int>(each.cost->latency_basis), "\t",
                    static_cast<int>(each.cost->bandwidth_basis), "\t",
                    each.cost->bytes_per_second >= kNoCopy, "\t", each.cost->stages, "\t",
                    absl::CEscape(each.cost->note), "\n");
  }
  return sort;
}

std::string Explain(const PathExplanation& choice) {
  return Explain(absl::MakeConstSpan(&choice, 1));
}

std::string Explain(absl::Span<const PathExplanation> choices) {
  std::string text;
  for (size_t i = 0; i < choices[0].candidates.size(); ++i) {
    const PathCandidate& first = choices[0].candidates[i];
    if (!text.empty()) text += "; ";
    if (!first.cost.ok()) {
      absl::StrAppend(&text, "not ", first.name, ": ", first.cost.status().message());
      continue;
    }
    PathCost low = *first.cost;
    PathCost high = *first.cost;
    for (const PathExplanation& each : choices) {
      const PathCost& cost = *each.candidates[i].cost;
      low.latency = std::min(low.latency, cost.latency);
      high.latency = std::max(high.latency, cost.latency);
      low.bytes_per_second = std::min(low.bytes_per_second, cost.bytes_per_second);
      high.bytes_per_second = std::max(high.bytes_per_second, cost.bytes_per_second);
      // Report the age of the oldest measurement.
      high.latency_age = std::max(high.latency_age, cost.latency_age);
      high.bandwidth_age = std::max(high.bandwidth_age, cost.bandwidth_age);
    }
    absl::StrAppend(&text, first.transport == choices[0].transport ? "" : "not ", first.name, " (",
                    CostText(low, high), low.stages > 0 ? ", staged through host memory" : "",
                    low.note.empty() ? "" : ": ", low.note, ")");
  }
  return text;
}

}  // namespace ferry
