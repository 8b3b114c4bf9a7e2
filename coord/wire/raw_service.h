// SPDX-License-Identifier: Apache-2.0
// A gRPC service whose methods receive and return bytes.
#ifndef FERRY_COORD_WIRE_RAW_SERVICE_H_
#define FERRY_COORD_WIRE_RAW_SERVICE_H_

#include <functional>
#include <string>
#include <utility>

#include <grpcpp/impl/codegen/rpc_service_method.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/codegen/service_type.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

namespace ferry::coord {

// As protoc's "raw callback" services, with the methods as a table instead of nested templates.
class RawService : public grpc::Service {
 public:
  using Handler = std::function<grpc::ServerUnaryReactor*(
      grpc::CallbackServerContext*, const grpc::ByteBuffer*, grpc::ByteBuffer*)>;

  // `path`: "/package.Service/Method"; must outlive the service.
  void AddUnary(const char* path, Handler handler) {
    AddMethod(
        new grpc::internal::RpcServiceMethod(path, grpc::internal::RpcMethod::NORMAL_RPC, nullptr));
    MarkMethodRawCallback(
        method_count_++,
        new grpc::internal::CallbackUnaryHandler<grpc::ByteBuffer, grpc::ByteBuffer>(
            std::move(handler)));
  }

  using StreamHandler = std::function<grpc::ServerWriteReactor<grpc::ByteBuffer>*(
      grpc::CallbackServerContext*, const grpc::ByteBuffer*)>;

  // Adds a method that returns a stream. `path` as above.
  void AddServerStream(const char* path, StreamHandler handler) {
    AddMethod(new grpc::internal::RpcServiceMethod(
        path, grpc::internal::RpcMethod::SERVER_STREAMING, nullptr));
    MarkMethodRawCallback(
        method_count_++,
        new grpc::internal::CallbackServerStreamingHandler<grpc::ByteBuffer, grpc::ByteBuffer>(
            std::move(handler)));
  }

 private:
  int method_count_ = 0;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_WIRE_RAW_SERVICE_H_
