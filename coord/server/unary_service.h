// SPDX-License-Identifier: Apache-2.0
// Unary services that register only their frequent methods with gRPC.
#ifndef FERRY_COORD_SERVER_UNARY_SERVICE_H_
#define FERRY_COORD_SERVER_UNARY_SERVICE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

#include "coord/server/call.h"
#include "coord/wire/raw_service.h"

namespace ferry::coord {

// Serves one call: answers or defers it. May consume the request's content.
using UnaryHandler = std::function<void(UnaryCall&, grpc::ByteBuffer&)>;

// The methods that are not in the server's own table. gRPC copies its table for every connection,
// 160 bytes per method, so 50 of them cost each rank 8 KiB (gRPC 1.51, ChannelData::InitTransport
// in src/core/lib/surface/server.cc). A method that is looked up here costs a connection nothing,
// and a call one more completion, because its request is the message of a stream. Clients see no
// difference. Thread-safe once the server has started.
class GenericMethodTable final : public grpc::CallbackGenericService {
 public:
  explicit GenericMethodTable(Frontend& frontend) : frontend_(frontend) {}

  // Call before the server starts.
  //   path: "/package.Service/Method".
  void Add(std::string path, UnaryHandler handler) {
    handlers_.emplace(std::move(path), std::move(handler));
  }
  // Returns null if no unary method has the path.
  const UnaryHandler* Find(absl::string_view path) const {
    const auto found = handlers_.find(path);
    return found != handlers_.end() ? &found->second : nullptr;
  }
  // As Add, for methods of other services: `make` returns the reactor of a call.
  using MakeReactor =
      std::function<grpc::ServerGenericBidiReactor*(grpc::GenericCallbackServerContext*)>;
  void AddReactor(std::string path, MakeReactor make) {
    others_.emplace(std::move(path), std::move(make));
  }

 private:
  // Unknown methods are UNIMPLEMENTED, as without this service; the message says where workers'
  // methods are served.
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override;

  Frontend& frontend_;
  absl::flat_hash_map<std::string, UnaryHandler> handlers_;
  absl::flat_hash_map<std::string, MakeReactor> others_;
};

// A service that registers its rare methods with `rare`. At least one method must be frequent, or
// reflection does not list the service.
class UnaryService : public RawService {
 public:
  // `frontend` and `rare` outlive it.
  UnaryService(Frontend& frontend, GenericMethodTable& rare) : frontend_(frontend), rare_(rare) {}

  // Returns the handler of a method, as gRPC looks it up; null if there is no such method. Calls
  // that do not arrive through gRPC can be passed to it.
  const UnaryHandler* Find(absl::string_view path) const;

 protected:
  void AddHandler(std::string path, bool is_frequent, UnaryHandler handler);

 private:
  Frontend& frontend_;
  GenericMethodTable& rare_;
  struct Frequent {
    std::string path;
    UnaryHandler handler;
  };
  // gRPC keeps pointers to the paths of frequent methods.
  std::vector<std::unique_ptr<const Frequent>> frequent_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_UNARY_SERVICE_H_
