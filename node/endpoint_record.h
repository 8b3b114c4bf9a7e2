// SPDX-License-Identifier: Apache-2.0
// How a node says in the store where it can be reached.
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

// Where the job's token is if no process was given one.
inline constexpr char kExchangeTokenKey[] = "ferry/exchange-token";

// One "name value" a line, readable with `ferry kv get`; names that are not known are skipped.
std::string EncodeEndpoint(const Endpoint& endpoint);
//   Errors: INVALID_ARGUMENT naming the line.
absl::StatusOr<Endpoint> DecodeEndpoint(absl::string_view text);

// HOST:PORT or [IPV6]:PORT of an address that people write: HOST, HOST:PORT, IPV6, [IPV6] or
// [IPV6]:PORT. `port`: where it has none.
//   Errors: INVALID_ARGUMENT.
absl::StatusOr<std::string> CompleteAddress(absl::string_view address, int port);

}  // namespace ferry

#endif  // FERRY_NODE_ENDPOINT_RECORD_H_
