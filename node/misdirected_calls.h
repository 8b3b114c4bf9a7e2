// SPDX-License-Identifier: Apache-2.0
// MisdirectedCalls: rejects calls that a worker's port does not serve, naming the server that does.
#ifndef FERRY_NODE_MISDIRECTED_CALLS_H_
#define FERRY_NODE_MISDIRECTED_CALLS_H_

#include <cstdint>
#include <string>

#include <grpcpp/generic/async_generic_service.h>

#include "absl/strings/string_view.h"

namespace ferry {

// The error text for a call of `method`, "/package.Service/Method", at the port of node `node_id`.
//   coordinator: HOST:PORT; empty if it is not known.
std::string MisdirectedCallText(absl::string_view method, int32_t node_id,
                                absl::string_view coordinator);

// For grpc::ServerBuilder::RegisterCallbackGenericService. Every call of a method that no other
// service of the server has fails UNIMPLEMENTED with MisdirectedCallText. Thread-safe.
class MisdirectedCalls final : public grpc::CallbackGenericService {
 public:
  MisdirectedCalls(int32_t node_id, std::string coordinator);

 private:
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override;

  const int32_t node_id_;
  const std::string coordinator_;
};

}  // namespace ferry

#endif  // FERRY_NODE_MISDIRECTED_CALLS_H_
