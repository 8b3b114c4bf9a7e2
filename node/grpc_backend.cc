// SPDX-License-Identifier: Apache-2.0
// GrpcBackend: the server and the fetcher.
#include "node/grpc_backend.h"

#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <utility>

#include <grpcpp/grpcpp.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/address_family.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "coord/wire/callback_threads.h"
#include "net/sockets.h"
#include "node/misdirected_calls.h"
#include "rendezvous/recv_tensor/recv_tensor_service.h"
#include "rendezvous/recv_tensor/tensor_channel.h"
#include "rendezvous/recv_tensor/tensor_fetcher.h"
#include "rendezvous/tensor_source.h"

namespace ferry {
namespace {

// For the remainder once all tensors have been sent: calls that have been told to end, and
// unauthenticated connections, which may stay open indefinitely.
constexpr auto kShortGrace = std::chrono::seconds(1);
// Polling interval for tensors in flight.
constexpr absl::Duration kTransferLook = absl::Milliseconds(1);

// Without IPv6, gRPC silently binds IPv4 alone for "[::]", which is right for a default but not for
// an address that was requested explicitly.
absl::StatusOr<std::string> GrpcListenAddress(const std::string& listen) {
  if (absl::StartsWith(listen, ":")) return absl::StrCat("[::]", listen);
  int port = 0;
  const size_t colon = listen.rfind(':');
  if (absl::StartsWith(listen, "[") && !HasAddressFamily(AF_INET6) &&
      absl::SimpleAtoi(listen.substr(colon + 1), &port)) {
    return absl::UnavailableError(
        absl::StrCat("cannot serve gRPC on ", listen, ": ", NoIpv6Hint(port)));
  }
  return listen;
}

// gRPC does not report why it failed to bind; binding a socket of our own gives the same error.
std::string WhyNoListener(const std::string& listen) {
  const absl::Status status = ListenTcp(listen).status();
  if (status.ok()) return "gRPC does not say why; GRPC_VERBOSITY=info tells more";
  return std::string(status.message());
}

}  // namespace

class GrpcBackend::Impl {
 public:
  Impl(KnownEndpoint endpoints, std::shared_ptr<HostArena> arena, GrpcBackendOptions options)
      : options(std::move(options)),
        fetcher(
            SteadyClock(),
            [endpoints =
                 std::move(endpoints)](const TaskName& task) -> absl::StatusOr<std::string> {
              if (task.task < 0 || task.task > INT32_MAX) {
                return absl::NotFoundError("no such task");
              }
              const absl::StatusOr<Endpoint> endpoint = endpoints(static_cast<int32_t>(task.task));
              if (!endpoint.ok()) return endpoint.status();
              if (endpoint->grpc_address.empty()) {
                return absl::FailedPreconditionError(
                    absl::StrCat(Describe(endpoint->peer),
                                 " does not serve gRPC: was it started with another --protocol?"));
              }
              return endpoint->grpc_address;
            },
            FetcherOptions(std::move(arena), this->options)) {}

  static GrpcTensorFetcherOptions FetcherOptions(std::shared_ptr<HostArena> arena,
                                                 const GrpcBackendOptions& backend) {
    GrpcTensorFetcherOptions options;
    options.checksum = backend.checksum;
    options.token = backend.auth.token;
    // Reuses warm arena memory: page faults on fresh pages would take half of the transfer time.
    options.allocator = [arena = std::move(arena)](DataType dtype,
                                                   const Shape& shape) -> absl::StatusOr<Tensor> {
      const absl::StatusOr<size_t> bytes = TensorBytes(dtype, shape);
      if (!bytes.ok()) return bytes.status();
      absl::StatusOr<std::shared_ptr<Buffer>> buffer = arena->Allocate(*bytes);
      if (!buffer.ok()) return Tensor::Allocate(dtype, shape);
      return Tensor::Create(dtype, shape, *std::move(buffer));
    };
    return options;
  }

  const GrpcBackendOptions options;
  std::atomic<int64_t> refused{0};
  GrpcTensorFetcher fetcher;
  std::unique_ptr<TensorSource> source;
  std::unique_ptr<grpc::Service> service;
  std::unique_ptr<MisdirectedCalls> misdirected_calls;
  std::unique_ptr<grpc::Server> server;
  int port = 0;
  std::atomic<bool> has_given_up{false};
};

GrpcBackend::GrpcBackend(KnownEndpoint endpoints, std::shared_ptr<HostArena> arena,
                         GrpcBackendOptions options)
    : impl_(std::make_unique<Impl>(std::move(endpoints), std::move(arena), std::move(options))) {}

GrpcBackend::~GrpcBackend() { Stop(); }

RemoteFetcher& GrpcBackend::fetcher() { return impl_->fetcher; }

absl::Status GrpcBackend::Serve(RendezvousManager& manager, const PeerId& self,
                                const std::string& listen, Gpus* gpus,
                                const std::vector<grpc::Service*>& services) {
  FERRY_RETURN_IF_ERROR(coord::CheckServerRoom());
  impl_->source = std::make_unique<TensorSource>(
      manager,
      [self](const TaskDevice& device) -> std::optional<uint64_t> {
        if (device.task.task != self.node_id || device.task.replica != 0) return std::nullopt;
        return self.incarnation;
      },
      TensorSourceOptions{.gpus = gpus});
  impl_->service = MakeRecvTensorService(*impl_->source, {.checksum = impl_->options.checksum,
                                                          .auth = impl_->options.auth,
                                                          .refused = &impl_->refused});
  FERRY_ASSIGN_OR_RETURN(const std::string address, GrpcListenAddress(listen));
  impl_->misdirected_calls =
      std::make_unique<MisdirectedCalls>(self.node_id, impl_->options.coordinator);
  grpc::ServerBuilder builder;
  PrepareTensorServer(builder);
  builder.RegisterCallbackGenericService(impl_->misdirected_calls.get());
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &impl_->port);
  builder.RegisterService(impl_->service.get());
  for (grpc::Service* const service : services) builder.RegisterService(service);
  impl_->server = builder.BuildAndStart();
  if (impl_->server != nullptr && impl_->port != 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot serve gRPC on ", listen, ": ",
                                             WhyNoListener(listen), " (--graph-listen)"));
}

int GrpcBackend::port() const { return impl_->port; }

int64_t GrpcBackend::refused_calls() const {
  return impl_->refused.load(std::memory_order_relaxed);
}

void GrpcBackend::CleanupStep(int64_t step_id) {
  if (impl_->source != nullptr) impl_->source->CleanupStep(step_id);
}

void GrpcBackend::ForEachTransfer(absl::Duration min_age, PendingVisitor visit) const {
  if (impl_->source != nullptr) impl_->source->transfers().ForEach(min_age, visit);
}

void GrpcBackend::Forget(int32_t node_id) {
  impl_->fetcher.Forget({.job = "worker", .replica = 0, .task = node_id});
}

void GrpcBackend::FailTransfers(int32_t node_id, const absl::Status& why) {
  if (impl_->source == nullptr) return;
  if (impl_->source->FailTask({.job = "worker", .replica = 0, .task = node_id}, why)) {
    impl_->has_given_up = true;
  }
}

void GrpcBackend::Stop() {
  if (impl_->server == nullptr) return;
  // Tensors that were fetched may still be being written.
  const absl::Time end = SteadyClock().Now() + impl_->options.grace;
  while (!impl_->has_given_up && SteadyClock().Now() < end) {
    bool is_under_way = false;
    ForEachTransfer(absl::ZeroDuration(),
                    [&is_under_way](const PendingStepOp&) { is_under_way = true; });
    if (!is_under_way) break;
    absl::SleepFor(kTransferLook);
  }
  impl_->server->Shutdown(std::chrono::system_clock::now() + kShortGrace);
  impl_->server->Wait();
  impl_->server = nullptr;
}

}  // namespace ferry
