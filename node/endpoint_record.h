// SPDX-License-Identifier: Apache-2.0
// Encoding of a node's endpoint, as published in the store.
#ifndef FERRY_NODE_ENDPOINT_RECORD_H_
#define FERRY_NODE_ENDPOINT_RECORD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "transport/transport.h"

namespace ferry {

// "ferry/exchange/3".
std::string EndpointKey(int32_t node_id);

// Store key of the job's token if no process was given one.
inline constexpr char kJobTokenKey[] = "ferry/exchange-token";

// Maximum number of TCP addresses, and of GPUs, of a process.
inline constexpr int kMaxEndpointItems = 1024;

// A ferry.peer.v1.EndpointRecord.
std::string EncodeEndpoint(const Endpoint& endpoint);
//   node: the node that published it, for errors.
//   key: where in the store, for errors; empty: EndpointKey(node).
//   Errors: INVALID_ARGUMENT naming both; FAILED_PRECONDITION it is of another major version.
absl::StatusOr<Endpoint> DecodeEndpoint(absl::string_view bytes, int64_t node,
                                        absl::string_view key = {});

// Returns HOST:PORT or [IPV6]:PORT for an address written by hand: HOST, HOST:PORT, IPV6, [IPV6] or
// [IPV6]:PORT. `port`: used if the address has none.
//   Errors: INVALID_ARGUMENT.
absl::StatusOr<std::string> CompleteAddress(absl::string_view address, int port);

}  // namespace ferry

#endif  // FERRY_NODE_ENDPOINT_RECORD_H_
