// SPDX-License-Identifier: Apache-2.0
// The list of transports, and the selection of one for each transfer.
#ifndef FERRY_TRANSPORT_TRANSPORTS_H_
#define FERRY_TRANSPORT_TRANSPORTS_H_

#include <cstddef>
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

// Ordered by transport number on the wire, starting at 1. 0 is a tensor inline in the transfer
// descriptor.
using TransportList = std::vector<std::unique_ptr<Transport>>;

struct TransportOptions {
  TcpTransportOptions tcp;
  NcclTransportOptions nccl;
};

// Creates all transports. To add one: its folder, and a line here.
absl::StatusOr<TransportList> MakeTransports(const TransportEnvironment& environment,
                                             const TransportOptions& options);

// The path of what a process sends to itself: its rendezvous hands the tensor over without a
// transport. It is explained as one more transport, after the last one in the list.
inline constexpr absl::string_view kLocalPath = "local";

// Restricts which paths may be selected.
struct PathPolicy {
  // Name of the only transport allowed, or kLocalPath, which connects no two processes; empty: the
  // cheapest.
  std::string require;

  bool forbids_tcp() const { return !require.empty() && require != "tcp"; }
};

//   Errors: INVALID_ARGUMENT, listing the known transports.
absl::Status CheckPolicy(const TransportList& transports, const PathPolicy& policy);

// One transport's cost, or why it cannot be used.
struct PathCandidate {
  std::string name;
  absl::StatusOr<PathCost> cost;
  // Index in the list; its size for kLocalPath.
  size_t transport = 0;
};

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
// REQUIRES: at least one choice, and all have the same SortOf.
std::string Explain(absl::Span<const PathExplanation> choices);
// Grouping key: choices with equal keys can be explained together.
std::string SortOf(const PathExplanation& choice);

}  // namespace ferry

#endif  // FERRY_TRANSPORT_TRANSPORTS_H_
