// SPDX-License-Identifier: Apache-2.0
// The list of transports, and which of them a tensor takes.
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

// In the order of their numbers on the wire, from 1 on. 0 is a tensor in the transfer descriptor
// itself.
using TransportList = std::vector<std::unique_ptr<Transport>>;

struct TransportOptions {
  TcpTransportOptions tcp;
  NcclTransportOptions nccl;
};

// All there are. To add one: its folder, and a line here.
absl::StatusOr<TransportList> MakeTransports(const TransportEnvironment& environment,
                                             const TransportOptions& options);

// The path of what a process sends itself: its rendezvous hands the tensor over before any
// transport is asked. It is explained as one more transport, behind the last of the list.
inline constexpr absl::string_view kLocalPath = "local";

// What may be taken.
struct PathPolicy {
  // The name of the only transport that will do, or kLocalPath, with which no two processes are
  // connected; empty: the cheapest.
  std::string require;

  bool forbids_tcp() const { return !require.empty() && require != "tcp"; }
};

//   Errors: INVALID_ARGUMENT, naming those that there are.
absl::Status CheckPolicy(const TransportList& transports, const PathPolicy& policy);

// One transport's answer to a query.
struct PathCandidate {
  std::string name;
  absl::StatusOr<PathCost> cost;
  // Index in the list; its size for kLocalPath.
  size_t transport = 0;
};

// What was selected, and what each transport has said.
struct PathExplanation {
  // Index in the list; its size for kLocalPath, and where nothing was selected.
  size_t transport = 0;
  PathCost cost;
  std::vector<PathCandidate> candidates;
};

// The index of the transport that costs least for query.bytes, or nothing: none connects the two
// that the policy allows, or they are one process. With an `explanation`, which must be empty, all
// that have something to say of such a tensor are asked. Without, as for every transfer, nothing is
// allocated where all can, and none is asked beyond the first that costs no more than a message.
std::optional<size_t> SelectPath(const TransportList& transports, const PathQuery& query,
                                 const PathPolicy& policy, PathExplanation* explanation);
// Why SelectPath has found nothing: FAILED_PRECONDITION with the reason of each that cannot, or of
// the one that is required. `explanation`: its.
absl::Status NoPathError(const PathQuery& query, const PathPolicy& policy,
                         const PathExplanation& explanation);
// What SelectPath says, for people.
//   Errors: as NoPathError.
absl::StatusOr<PathExplanation> ExplainPath(const TransportList& transports, const PathQuery& query,
                                            const PathPolicy& policy);

// "measured at start", "measured 3s ago", "assumed".
std::string DescribeBasis(CostBasis basis, absl::Duration age);

// "shm (0.4us measured 2s ago, no copy); not tcp: ...": for people.
std::string Explain(const PathExplanation& choice);
// The same of several at once that differ in numbers only: "shm (0.4us to 0.7us measured ...".
// REQUIRES: at least one, and SortOf is the same.
std::string Explain(absl::Span<const PathExplanation> choices);
// What is alike of choices that Explain can tell of at once.
std::string SortOf(const PathExplanation& choice);

}  // namespace ferry

#endif  // FERRY_TRANSPORT_TRANSPORTS_H_
