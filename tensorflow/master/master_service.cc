// SPDX-License-Identifier: Apache-2.0
// Converts between wire bytes and the master's methods.
#include "tensorflow/master/master_service.h"

#include <functional>
#include <limits>
#include <string>
#include <utility>

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/impl/codegen/proto_buffer_reader.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "absl/strings/str_cat.h"

#include "coord/wire/bytes.h"
#include "coord/wire/errors.h"
#include "coord/wire/raw_service.h"
#include "proto/tf_master.pb.h"
#include "tensorflow/graph/request_size.h"

namespace ferry::master {
namespace {

// Above this size, copying takes longer than handing over to another thread.
constexpr size_t kLargeBytes = size_t{1} << 20;

// One gRPC call, independent of the reactor type. Answered exactly once, and not used afterwards.
class MasterCall {
 public:
  MasterCall() : gone_(std::make_shared<CancellationToken>()) {}

  virtual void Answer(grpc::Status status, grpc::ByteBuffer response) = 0;
  // Cancelled when the client disconnects.
  const std::shared_ptr<CancellationToken>& gone() const { return gone_; }

 protected:
  ~MasterCall() = default;

 private:
  const std::shared_ptr<CancellationToken> gone_;
};

using CallHandler = std::function<void(MasterCall&, grpc::ByteBuffer)>;

// A call of a method registered with gRPC. Deletes itself in OnDone.
class TableCall final : public grpc::ServerUnaryReactor, public MasterCall {
 public:
  explicit TableCall(grpc::ByteBuffer* response) : response_(response) {}

  void Answer(grpc::Status status, grpc::ByteBuffer response) override {
    response_->Swap(&response);
    ServerUnaryReactor::Finish(std::move(status));
  }

 private:
  void OnCancel() override {
    // Cancelling may answer the call and so delete this object: keep the token.
    const std::shared_ptr<CancellationToken> gone = this->gone();
    gone->Cancel();
  }
  void OnDone() override { delete this; }

  grpc::ByteBuffer* const response_;
};

using Stream = grpc::ServerGenericBidiReactor;

// A call of any other method: a generic stream with one message each way.
class GenericCall final : public Stream, public MasterCall {
 public:
  explicit GenericCall(const CallHandler& handler) : handler_(handler) { StartRead(&request_); }

  void Answer(grpc::Status status, grpc::ByteBuffer response) override {
    if (!status.ok()) return Stream::Finish(std::move(status));
    response_.Swap(&response);
    StartWriteAndFinish(&response_, grpc::WriteOptions(), std::move(status));
  }

 private:
  // A missing request is passed on as an empty one, which cannot be parsed.
  void OnReadDone(bool ok) override {
    grpc::ByteBuffer request;
    if (ok) request.Swap(&request_);
    handler_(*this, request);
  }
  void OnCancel() override {
    const std::shared_ptr<CancellationToken> gone = this->gone();
    gone->Cancel();
  }
  void OnDone() override { delete this; }

  const CallHandler& handler_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
};

template <typename Response>
void AnswerCall(MasterCall& call, const absl::StatusOr<Response>& result) {
  if (!result.ok()) return call.Answer(coord::ToGrpcStatus(result.status()), {});
  const size_t bytes = result->ByteSizeLong();
  if (bytes > std::numeric_limits<int>::max()) {
    return call.Answer(
        grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                     absl::StrCat("The answer has ", bytes,
                                  " bytes, and gRPC and protocol buffers carry less than 2 GiB: "
                                  "fetch less at once")),
        {});
  }
  call.Answer(grpc::Status::OK, coord::SerializeMessage(*result));
}

template <typename Request, typename Response>
using Method = void (Master::*)(std::shared_ptr<Request>, std::shared_ptr<CancellationToken>,
                                Master::Done<Response>);

absl::Status CheckSize(const MasterOptions& options, const google::protobuf::Descriptor& type,
                       grpc::ByteBuffer& bytes) {
  grpc::ProtoBufferReader reader(&bytes);
  graph::RequestLimits limits{options.max_request_bytes, options.max_graph_nodes};
  limits.max_bytes_name = "--max-request-bytes";
  limits.max_nodes_name = "--max-graph-nodes";
  return graph::CheckRequestSize(type, reader, bytes.Length(), limits);
}

// Returns the handler for calls of `method`.
template <typename Request, typename Response>
CallHandler Serve(Master& master, Method<Request, Response> method) {
  return [&master, method](MasterCall& call, grpc::ByteBuffer bytes) {
    auto serve = [&master, method, &call](grpc::ByteBuffer bytes) {
      auto request = std::make_shared<Request>();
      if (bytes.Valid()) {
        absl::Status status = CheckSize(master.options(), *request->GetDescriptor(), bytes);
        if (!status.ok()) return call.Answer(coord::ToGrpcStatus(status), {});
      }
      if (!bytes.Valid() || !coord::ParseMessage(bytes, *request)) {
        return call.Answer(grpc::Status(grpc::StatusCode::INTERNAL, "The request cannot be parsed"),
                           {});
      }
      bytes.Clear();
      (master.*method)(
          std::move(request), call.gone(), [&call, &master](absl::StatusOr<Response> result) {
            if (!result.ok() || result->ByteSizeLong() <= kLargeBytes) {
              return AnswerCall(call, result);
            }
            master.work().GoOn([&call, result = std::move(result)] { AnswerCall(call, result); });
          });
    };
    const size_t length = bytes.Length();
    if (length <= kLargeBytes) return serve(bytes);
    master.work().Add(length,
                      [serve = std::move(serve), bytes, &call](absl::Status status) mutable {
                        if (!status.ok()) return call.Answer(coord::ToGrpcStatus(status), {});
                        serve(bytes);
                      });
  };
}

class MasterService final : public coord::RawService {
 public:
  MasterService(absl::string_view name, Master& master, coord::GenericMethodTable& rare,
                std::shared_ptr<const void> guard)
      : prefix_(absl::StrCat("/", name, "/")), rare_(rare), guard_(std::move(guard)) {
    // Each registered method costs 160 bytes per connection, and there may be many connections.
    AddFrequent("RunStep", Serve(master, &Master::RunStep));
    AddFrequent("RunCallable", Serve(master, &Master::RunCallable));
    AddRare("CreateSession", Serve(master, &Master::CreateSession));
    AddRare("ExtendSession", Serve(master, &Master::ExtendSession));
    AddRare("PartialRunSetup", Serve(master, &Master::PartialRunSetup));
    AddRare("CloseSession", Serve(master, &Master::CloseSession));
    AddRare("ListDevices", Serve(master, &Master::ListDevices));
    AddRare("Reset", Serve(master, &Master::Reset));
    AddRare("MakeCallable", Serve(master, &Master::MakeCallable));
    AddRare("ReleaseCallable", Serve(master, &Master::ReleaseCallable));
  }

 private:
  void AddFrequent(absl::string_view method, CallHandler handler) {
    // gRPC keeps a pointer to the path.
    paths_.push_back(std::make_unique<std::string>(absl::StrCat(prefix_, method)));
    AddUnary(paths_.back()->c_str(), [handler = std::move(handler)](grpc::CallbackServerContext*,
                                                                    const grpc::ByteBuffer* request,
                                                                    grpc::ByteBuffer* response) {
      auto* call = new TableCall(response);
      handler(*call, *request);
      return static_cast<grpc::ServerUnaryReactor*>(call);
    });
  }
  void AddRare(absl::string_view method, CallHandler handler) {
    rare_.AddReactor(absl::StrCat(prefix_, method),
                     [handler = std::move(handler)](grpc::GenericCallbackServerContext*) {
                       return static_cast<Stream*>(new GenericCall(handler));
                     });
  }

  const std::string prefix_;
  coord::GenericMethodTable& rare_;
  const std::shared_ptr<const void> guard_;
  std::vector<std::unique_ptr<std::string>> paths_;
};

}  // namespace

std::vector<std::unique_ptr<grpc::Service>> MakeMasterServices(Master& master,
                                                               coord::GenericMethodTable& rare,
                                                               std::shared_ptr<const void> guard) {
  std::vector<std::unique_ptr<grpc::Service>> services;
  // The first is the name TensorFlow's clients use; the second that of stubs generated from the
  // .proto.
  for (const absl::string_view name :
       {"tensorflow.MasterService", "tensorflow.grpc.MasterService"}) {
    services.push_back(std::make_unique<MasterService>(name, master, rare, guard));
  }
  rare.AddReactor("/ferry.v1.Trace/GetSteps", [handler = Serve(master, &Master::GetSteps)](
                                                  grpc::GenericCallbackServerContext*) {
    return static_cast<Stream*>(new GenericCall(handler));
  });
  return services;
}

}  // namespace ferry::master
