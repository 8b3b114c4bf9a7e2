// SPDX-License-Identifier: Apache-2.0
// Raw gRPC calls with minimal overhead on both sides.
#include "bench/floor.h"

#include <atomic>
#include <utility>
#include <vector>

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/server_callback.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "base/clock.h"
#include "bench/loop.h"
#include "coord/wire/raw_service.h"

namespace ferry::cli {
namespace {

using FloorStub = grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer>;

constexpr char kAnswerMethod[] = "/ferry.bench.Floor/Answer";
constexpr char kHoldMethod[] = "/ferry.bench.Floor/Hold";
// A request begins with a number of this many digits.
constexpr size_t kDigits = 10;
constexpr size_t kMostBack = size_t{64} << 20;
constexpr absl::Duration kStopGrace = absl::Seconds(1);

grpc::ByteBuffer BytesOf(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

grpc::ByteBuffer RequestOf(size_t number, size_t bytes) {
  std::string text = absl::StrCat(number);
  text.insert(0, kDigits - text.size(), '0');
  text.resize(std::max(bytes, kDigits), '.');
  return BytesOf(text);
}

size_t NumberOf(const grpc::ByteBuffer& request) {
  grpc::Slice slice;
  size_t number = 0;
  if (!request.DumpToSingleSlice(&slice).ok() || slice.size() < kDigits ||
      !absl::SimpleAtoi(absl::string_view(reinterpret_cast<const char*>(slice.begin()), kDigits),
                        &number)) {
    return 0;
  }
  return std::min(number, kMostBack);
}

}  // namespace

// Outside the anonymous namespace: members of a class with external linkage.

// Pending calls; each says how many must be pending, and the last one answers all. Thread-safe.
class HeldUnaryCalls final {
 public:
  grpc::ServerUnaryReactor* Hold(size_t count) {
    auto* const call = new Call(*this);
    absl::flat_hash_set<Call*> released;
    {
      absl::MutexLock lock(&mu_);
      calls_.insert(call);
      if (calls_.size() >= count) released = std::exchange(calls_, {});
    }
    for (Call* const each : released) each->Finish(grpc::Status::OK);
    return call;
  }

 private:
  class Call final : public grpc::ServerUnaryReactor {
   public:
    explicit Call(HeldUnaryCalls& held) : held_(held) {}

   private:
    void OnCancel() override {
      {
        absl::MutexLock lock(&held_.mu_);
        if (held_.calls_.erase(this) == 0) return;
      }
      Finish(grpc::Status::CANCELLED);
    }
    void OnDone() override { delete this; }

    HeldUnaryCalls& held_;
  };

  absl::Mutex mu_;
  absl::flat_hash_set<Call*> calls_ ABSL_GUARDED_BY(mu_);
};

class UnaryFloorService final : public coord::RawService {
 public:
  UnaryFloorService() {
    AddUnary(kAnswerMethod, [](grpc::CallbackServerContext* context, const grpc::ByteBuffer* in,
                               grpc::ByteBuffer* out) {
      *out = BytesOf(std::string(NumberOf(*in), '.'));
      grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
      reactor->Finish(grpc::Status::OK);
      return reactor;
    });
    AddUnary(kHoldMethod, [this](grpc::CallbackServerContext*, const grpc::ByteBuffer* in,
                                 grpc::ByteBuffer* out) {
      *out = BytesOf("");
      return held_.Hold(NumberOf(*in));
    });
  }

 private:
  HeldUnaryCalls held_;
};

// Lives until answered.
struct UnaryFloorCall {
  grpc::ClientContext context;
  grpc::ByteBuffer request;
  grpc::ByteBuffer answer;
};

class UnaryFloorServer::Impl final {
 public:
  UnaryFloorService service;
  std::unique_ptr<grpc::Server> server;
  std::string address;
};

absl::StatusOr<std::unique_ptr<UnaryFloorServer>> UnaryFloorServer::Create() {
  auto impl = std::make_unique<Impl>();
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(-1);
  builder.RegisterService(&impl->service);
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr || port == 0) {
    return absl::UnavailableError("gRPC cannot listen on 127.0.0.1");
  }
  impl->address = absl::StrCat("127.0.0.1:", port);
  return std::unique_ptr<UnaryFloorServer>(new UnaryFloorServer(std::move(impl)));
}

UnaryFloorServer::UnaryFloorServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

UnaryFloorServer::~UnaryFloorServer() {
  impl_->server->Shutdown(absl::ToChronoTime(absl::Now() + kStopGrace));
}

const std::string& UnaryFloorServer::address() const { return impl_->address; }

class UnaryFloor::Impl final {
 public:
  Impl(const std::string& address, int clients) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    // Retries would add overhead to the baseline.
    arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
    // Otherwise all clients would share one connection.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    for (int i = 0; i < clients; ++i) {
      stubs_.push_back(std::make_unique<FloorStub>(
          grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments)));
    }
  }

  ~Impl() {
    absl::MutexLock lock(&mu_);
    is_over_ = true;
    for (UnaryFloorCall* const call : calls_) call->context.TryCancel();
    const auto is_empty = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return calls_.empty() && ending_ == 0;
    };
    // Terminates: every call has a deadline and was cancelled.
    mu_.Await(absl::Condition(&is_empty));
  }

  void CallAsync(int client, const char* method, grpc::ByteBuffer request,
                 absl::AnyInvocable<void(absl::Status) &&> done, absl::Duration timeout) {
    auto* const call = new UnaryFloorCall;
    call->request = request;
    call->context.set_wait_for_ready(true);
    call->context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    {
      absl::MutexLock lock(&mu_);
      calls_.insert(call);
      if (is_over_) call->context.TryCancel();
    }
    stubs_[static_cast<size_t>(client)]->UnaryCall(
        &call->context, method, {}, &call->request, &call->answer,
        [this, call,
         done = std::make_shared<absl::AnyInvocable<void(absl::Status) &&>>(std::move(done))](
            const grpc::Status& status) {
          {
            absl::MutexLock lock(&mu_);
            calls_.erase(call);
            ++ending_;
          }
          std::move (*done)(status.ok()
                                ? absl::OkStatus()
                                : absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                                               absl::StrCat("raw gRPC: ", status.error_message())));
          // The call's context holds the channel, which must not be destroyed on this thread,
          // inside a callback of its own queue: delete it before the destructor may continue.
          delete call;
          absl::MutexLock lock(&mu_);
          --ending_;
        });
  }

  int clients() const { return static_cast<int>(stubs_.size()); }

 private:
  std::vector<std::unique_ptr<FloorStub>> stubs_;
  absl::Mutex mu_;
  bool is_over_ ABSL_GUARDED_BY(mu_) = false;
  // Pending calls.
  absl::flat_hash_set<UnaryFloorCall*> calls_ ABSL_GUARDED_BY(mu_);
  // Calls that were answered but not yet deleted.
  int ending_ ABSL_GUARDED_BY(mu_) = 0;
};

UnaryFloor::UnaryFloor(const std::string& address, int clients)
    : impl_(std::make_unique<Impl>(address, clients)) {}

UnaryFloor::~UnaryFloor() = default;

void UnaryFloor::CallAsync(int client, size_t there, size_t back,
                           absl::AnyInvocable<void(absl::Status) &&> done, absl::Duration timeout) {
  impl_->CallAsync(client, kAnswerMethod, RequestOf(back, there), std::move(done), timeout);
}

absl::StatusOr<absl::Duration> UnaryFloor::CallAll(bool is_held, absl::Duration timeout) {
  const int clients = impl_->clients();
  const char* const method = is_held ? kHoldMethod : kAnswerMethod;
  const grpc::ByteBuffer request = RequestOf(is_held ? static_cast<size_t>(clients) : 0, 0);
  absl::StatusOr<BenchLoad> load = RunBenchLoop(
      clients, clients,
      [this, method, request, timeout](int index, absl::AnyInvocable<void(absl::Status) &&> done) {
        impl_->CallAsync(index, method, request, std::move(done), timeout);
      },
      [] { return 0; }, timeout);
  if (!load.ok()) return load.status();
  return load->whole;
}

}  // namespace ferry::cli
