// SPDX-License-Identifier: Apache-2.0
// Services as plain as gRPC allows.
#include "benchmarks/support/floor_services.h"

#include <string>
#include <utility>

#include <grpcpp/impl/codegen/rpc_service_method.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"

#include "benchmarks/support/gates.h"
#include "coord/wire/raw_service.h"
#include "proto/tsl_coordination.grpc.pb.h"

namespace ferry::bench {
namespace {

// Pending calls; the last of `tasks` answers all. Thread-safe.
class DeferredCalls final {
 public:
  explicit DeferredCalls(int tasks) : tasks_(static_cast<size_t>(tasks)) {}

  grpc::ServerUnaryReactor* Park() {
    auto* call = new Call(*this);
    absl::flat_hash_set<Call*> released;
    {
      absl::MutexLock lock(&mu_);
      calls_.insert(call);
      if (calls_.size() == tasks_) released = std::exchange(calls_, {});
    }
    for (Call* each : released) each->Finish(grpc::Status::OK);
    return call;
  }

 private:
  class Call final : public grpc::ServerUnaryReactor {
   public:
    explicit Call(DeferredCalls& lot) : lot_(lot) {}

   private:
    void OnCancel() override {
      {
        absl::MutexLock lock(&lot_.mu_);
        if (lot_.calls_.erase(this) == 0) return;
      }
      Finish(grpc::Status::CANCELLED);
    }
    void OnDone() override { delete this; }

    DeferredCalls& lot_;
  };

  const size_t tasks_;
  absl::Mutex mu_;
  absl::flat_hash_set<Call*> calls_ ABSL_GUARDED_BY(mu_);
};

// Answers message by message, in the order of its reads. Owned by gRPC.
class EchoStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  EchoStream() { StartRead(&in_); }

 private:
  void OnReadDone(bool ok) override {
    absl::MutexLock lock(&mu_);
    if (!ok) {
      is_over_ = true;
      if (!is_writing_) Finish(grpc::Status::OK);
      return;
    }
    if (!has_answer_) {
      answer_ = in_;
      has_answer_ = true;
    } else {
      ++owed_;
      WriteLocked();
    }
    in_.Clear();
    StartRead(&in_);
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mu_);
    is_writing_ = false;
    if (!ok) owed_ = 0;
    if (is_over_) {
      Finish(grpc::Status::OK);
      return;
    }
    WriteLocked();
  }

  void OnDone() override { delete this; }

  void WriteLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (is_writing_ || owed_ == 0) return;
    --owed_;
    is_writing_ = true;
    out_ = answer_;
    StartWrite(&out_);
  }

  grpc::ByteBuffer in_;
  grpc::ByteBuffer out_;
  absl::Mutex mu_;
  grpc::ByteBuffer answer_ ABSL_GUARDED_BY(mu_);
  bool has_answer_ ABSL_GUARDED_BY(mu_) = false;
  bool is_writing_ ABSL_GUARDED_BY(mu_) = false;
  bool is_over_ ABSL_GUARDED_BY(mu_) = false;
  int owed_ ABSL_GUARDED_BY(mu_) = 0;
};

class FloorService final : public coord::RawService {
 public:
  explicit FloorService(int tasks) : lot_(tasks) {
    AddUnary(kEmptyMethod, [](grpc::CallbackServerContext* context, const grpc::ByteBuffer*,
                              grpc::ByteBuffer* response) {
      *response = EmptyBytes();
      grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
      reactor->Finish(grpc::Status::OK);
      return reactor;
    });
    AddUnary(kParkMethod, [this](grpc::CallbackServerContext*, const grpc::ByteBuffer*,
                                 grpc::ByteBuffer* response) {
      *response = EmptyBytes();
      return lot_.Park();
    });
  }

 private:
  // A buffer without slices is no message for gRPC, not an empty one.
  static grpc::ByteBuffer EmptyBytes() {
    grpc::Slice slice;
    return grpc::ByteBuffer(&slice, 1);
  }

  DeferredCalls lot_;
};

class EchoService final : public grpc::Service {
 public:
  EchoService() {
    AddMethod(new grpc::internal::RpcServiceMethod(
        kEchoMethod, grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
    MarkMethodRawCallback(
        0, new grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>(
               [](grpc::CallbackServerContext*)
                   -> grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* {
                 return new EchoStream();
               }));
  }
};

using TypedMethods = tensorflow::CoordinationService::WithCallbackMethod_InsertKeyValue<
    tensorflow::CoordinationService::WithCallbackMethod_GetKeyValue<
        tensorflow::CoordinationService::Service>>;

class TypedService final : public TypedMethods {
  grpc::ServerUnaryReactor* InsertKeyValue(grpc::CallbackServerContext* context,
                                           const tensorflow::InsertKeyValueRequest*,
                                           tensorflow::InsertKeyValueResponse*) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerUnaryReactor* GetKeyValue(grpc::CallbackServerContext* context,
                                        const tensorflow::GetKeyValueRequest* request,
                                        tensorflow::GetKeyValueResponse* response) override {
    response->mutable_kv()->set_key(request->key());
    response->mutable_kv()->set_value(std::string(kValueBytes, 'v'));
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

}  // namespace

std::vector<std::unique_ptr<grpc::Service>> MakeFloorServices(int tasks) {
  std::vector<std::unique_ptr<grpc::Service>> services;
  services.push_back(std::make_unique<FloorService>(tasks));
  services.push_back(std::make_unique<EchoService>());
  services.push_back(std::make_unique<TypedService>());
  return services;
}

}  // namespace ferry::bench
