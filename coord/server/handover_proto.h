// SPDX-License-Identifier: Apache-2.0
// HandoverState: what a coordinator leaves to the process image that replaces it, and its
// encoding.
#ifndef FERRY_COORD_SERVER_HANDOVER_PROTO_H_
#define FERRY_COORD_SERVER_HANDOVER_PROTO_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "coord/tcpstore/tcp_store.h"
#include "coord/tcpstore/tcp_store_state.h"

namespace ferry::coord {

// The version of the encoding (proto/ferry_handover.proto), the only one that is read.
inline constexpr uint32_t kHandoverFormat = 1;

struct TcpStoreConnectionState {
  // The descriptor, which the successor inherits.
  int socket = -1;
  // Received bytes that the session has not consumed.
  std::string unread;
  TcpStoreSessionState session;
};

struct TcpStoreScopeState {
  // Empty for the scope of the coordinator's port.
  std::string name;
  absl::Time since;
  TcpStoreState store;
  std::vector<TcpStoreConnectionState> connections;
};

// The state that survives: the listening sockets, and PyTorch's stores with the connections of
// their clients. Jobs, the key-value store and torchft's quorum do not. Values are shared with the
// stores, and with each other where they were.
struct HandoverState {
  // HOST:PORT of the coordinator's port, and its listening sockets.
  std::string address;
  std::vector<int> listeners;
  // Connections that have sent nothing.
  std::vector<int> silent;
  std::vector<TcpStoreScopeState> scopes;
};

// Passes the encoding to `write`, one record at a time.
//   Errors: RESOURCE_EXHAUSTED if a record is too large; those of `write`.
absl::Status EncodeHandover(const HandoverState& state,
                            absl::FunctionRef<absl::Status(absl::string_view)> write);

// Checks the form of `bytes`; whether the state makes sense is for those who restore it.
//   Errors: UNIMPLEMENTED for another version; DATA_LOSS for bytes that are not a whole encoding.
absl::StatusOr<HandoverState> DecodeHandover(absl::string_view bytes);

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_HANDOVER_PROTO_H_
