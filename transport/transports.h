// SPDX-License-Identifier: Apache-2.0
// The list of transports, and the selection of one for each transfer.
#ifndef FERRY_TRANSPORT_TRANSPORTS_H_
#define FERRY_TRANSPORT_TRANSPORTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "transport/nccl/nccl_context.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/transport.h"

namespace ferry {

// Messages number a process's transports by their order here, from 1; 0 is a tensor inline in the
// message.
using TransportList = std::vector<std::unique_ptr<Transport>>;

// Registers a transport.
struct TransportFactory {
  TransportInfo info;
  //   Errors: a wrong option; RESOURCE_EXHAUSTED. That it cannot be used here is no error: its Cost
  //   gives the reason then.
  std::function<absl::StatusOr<std::unique_ptr<Transport>>(const TransportEnvironment&)> make;
};

// Options of the transports that have some.
struct TransportOptions {
  TcpTransportOptions tcp;
  NcclTransportOptions nccl;
};

// Those that Ferry has: a line each.
//   nccl: the job's NCCL state.
std::vector<TransportFactory> BuiltinTransports(const TransportOptions& options,
                                                const NcclJob& nccl = {});

// In the order of the registrations.
std::vector<std::string> TransportNames(absl::Span<const TransportFactory> factories);
// Null: there is no such transport.
const TransportFactory* FindTransport(absl::Span<const TransportFactory> factories,
                                      absl::string_view name);

//   Errors: those of the factories; INVALID_ARGUMENT for over kMaxTransports transports, a name
//   that is malformed, reserved (IsReservedTransportName) or used twice, two transports that use
//   data connections, a transport with another TransportInfo than its factory, or a
//   local_descriptor that is too long.
absl::StatusOr<TransportList> MakeTransports(const TransportEnvironment& environment,
                                             absl::Span<const TransportFactory> factories);

// For peers.
std::vector<TransportDescription> DescribeTransports(const TransportList& transports);
//   Errors: INVALID_ARGUMENT, for a list from a peer: as MakeTransports.
absl::Status CheckDescriptions(absl::Span<const TransportDescription> transports);
// For PathQuery::common.
TransportSet CommonTransports(const TransportList& transports, const Endpoint& a,
                              const Endpoint& b);

// True for the names of paths that are no transports, and for what flags accept in the place of
// one.
bool IsReservedTransportName(absl::string_view name);

// The path of what a process sends to itself: its rendezvous hands the tensor over without a
// transport. It is explained as one more transport, after the last one in the list.
inline constexpr absl::string_view kLocalPath = "local";

// Restricts which paths may be selected. See MakePolicy.
struct PathPolicy {
  // Name of the only transport allowed, or kLocalPath, which connects no two processes; empty: the
  // cheapest.
  std::string require;
  // Those of the required transport.
  TransportCapabilities required;

  bool allows(const Transport& transport) const {
    return require.empty() || transport.name() == require;
  }
  // True if a tensor inline in a message over TCP has not come by the required transport.
  bool forbids_tcp() const { return !require.empty() && !required.moves_over_tcp; }
};

//   require: as PathPolicy::require.
//   Errors: INVALID_ARGUMENT, listing the known transports.
absl::StatusOr<PathPolicy> MakePolicy(absl::Span<const TransportFactory> factories,
                                      const std::string& require);

// One transport's cost, or why it cannot be used.
struct PathCandidate {
  std::string name;
  absl::StatusOr<PathCost> cost;
  // Index in the list; its size for kLocalPath; kUnknownTransport for one that only a peer has.
  size_t transport = 0;
};
inline constexpr size_t kUnknownTransport = SIZE_MAX;

// The selected transport, and the cost or error of each candidate.
struct PathExplanation {
  // Index in the list; its size for kLocalPath, and if nothing was selected.
  size_t transport = 0;
  PathCost cost;
  std::vector<PathCandidate> candidates;
};

// Returns the index of the cheapest transport for query.bytes, or nothing if none allowed by the
// policy connects the two, or if they are the same process. With an `explanation`, which must be
// empty, every transport that applies to such a tensor is evaluated. Without one, as for every
// transfer, nothing is allocated if all can, and evaluation stops at the first that costs no more
// than a message.
std::optional<size_t> SelectPath(const TransportList& transports, const PathQuery& query,
                                 const PathPolicy& policy, PathExplanation* explanation);
// The transport by which every tensor in the source's arena goes from host memory to host memory
// without a copy, whatever its size and time; nothing if there is none. `query`: of such a tensor.
std::optional<size_t> ZeroCopyPath(const TransportList& transports, const PathQuery& query,
                                   const PathPolicy& policy);
// The error when SelectPath finds nothing: FAILED_PRECONDITION with the reason of each transport
// that cannot, or of the required one. `explanation`: from that call.
absl::Status NoPathError(const PathQuery& query, const PathPolicy& policy,
                         const PathExplanation& explanation);
// SelectPath with an explanation, for reports.
//   Errors: as NoPathError.
absl::StatusOr<PathExplanation> ExplainPath(const TransportList& transports, const PathQuery& query,
                                            const PathPolicy& policy);

// "measured at start", "measured 3s ago", "assumed".
std::string DescribeBasis(CostBasis basis, absl::Duration age);

// "shm (0.4us measured 2s ago, no copy); not tcp: ...": human-readable.
std::string Explain(const PathExplanation& choice);
// The same for several choices that differ only in numbers: "shm (0.4us to 0.7us measured ...".
// REQUIRES: at least one choice, and all have the same ExplanationKey.
std::string Explain(absl::Span<const PathExplanation> choices);
// Grouping key: choices with equal keys can be explained together.
std::string ExplanationKey(const PathExplanation& choice);

}  // namespace ferry

#endif  // FERRY_TRANSPORT_TRANSPORTS_H_
