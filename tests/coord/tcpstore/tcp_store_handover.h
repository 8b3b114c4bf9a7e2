// SPDX-License-Identifier: Apache-2.0
// ThroughHandover: the state of a store as its successor reads it.
#ifndef FERRY_TESTS_COORD_TCPSTORE_TCP_STORE_HANDOVER_H_
#define FERRY_TESTS_COORD_TCPSTORE_TCP_STORE_HANDOVER_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "coord/server/handover_proto.h"

namespace ferry::coord {

inline std::string Encoded(const HandoverState& state) {
  std::string bytes;
  const absl::Status status = EncodeHandover(state, [&bytes](absl::string_view part) {
    absl::StrAppend(&bytes, part);
    return absl::OkStatus();
  });
  return status.ok() ? bytes : "";
}

inline absl::StatusOr<HandoverState> ThroughHandover(TcpStoreScopeState scope) {
  HandoverState state;
  state.scopes.push_back(std::move(scope));
  return DecodeHandover(Encoded(state));
}

}  // namespace ferry::coord

#endif  // FERRY_TESTS_COORD_TCPSTORE_TCP_STORE_HANDOVER_H_
