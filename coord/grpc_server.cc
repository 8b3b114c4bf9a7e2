// SPDX-License-Identifier: Apache-2.0
// Setting up the gRPC server.
#include "coord/grpc_server.h"

#include <chrono>
#include <random>
#include <utility>

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include "absl/base/call_once.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "coord/grpc_callback_threads.h"
#include "coord/grpc_channel.h"
#include "coord/grpc_coordination_service.h"
#include "coord/grpc_error_report.h"
#include "coord/grpc_runtime_service.h"

namespace ferry::coord {
namespace {

uint64_t RandomIncarnation() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) | 1;
}

// These plugins apply to every server of the process, and may be asked for once.
void EnableHealthAndReflection() {
  static absl::once_flag once;
  absl::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Create(
    ServerOptions options) {
  const size_t colon = options.listen.rfind(':');
  // gRPC would take a port beyond the range modulo 65536 and listen somewhere else.
  int port = -1;
  const bool is_address = colon != std::string::npos && colon > 0 &&
                          absl::SimpleAtoi(options.listen.substr(colon + 1), &port) && port >= 0 &&
                          port <= 65535;
  if (!is_address) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", options.listen, "\" is not HOST:PORT with a port up to 65535 (0 takes a free one)"));
  }
  FERRY_ASSIGN_OR_RETURN(
      std::unique_ptr<Coordinator> coordinator,
      Coordinator::Create(std::move(options.coordinator), SteadyClock(), RandomIncarnation()));
  KeepCallbackThreads();
  EnableHealthAndReflection();
  auto self = std::unique_ptr<CoordinatorServer>(
      new CoordinatorServer(std::move(coordinator), options.stop_grace));

  grpc::ServerBuilder builder;
  builder.AddListeningPort(options.listen, grpc::InsecureServerCredentials(), &self->port_);
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  // A second server on a port is an error, not a half of the job each.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(options.keepalive_time));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             Milliseconds(options.keepalive_timeout));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Clients may probe as often as they like; the default answer to that is to hang up.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  DisableBandwidthProbes(builder);
  self->services_.push_back(MakeRuntimeService(self->edge_));
  self->services_.push_back(
      MakeCoordinationService(CoordinationPath::kTensorflow, self->edge_, self->devices_));
  self->services_.push_back(
      MakeCoordinationService(CoordinationPath::kXla, self->edge_, self->devices_));
  self->services_.push_back(MakeControlService(self->sessions_));
  for (const auto& service : self->services_) builder.RegisterService(service.get());
  self->server_ = builder.BuildAndStart();
  if (self->server_ == nullptr || self->port_ == 0) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen on ", options.listen,
        ": the port is in use (`ss -ltnp` says by whom), or the address is not one of this host"));
  }
  self->address_ = absl::StrCat(options.listen.substr(0, colon), ":", self->port_);
  self->strand_.Run([](Coordinator& c) { c.SetErrorReport(ReportErrorToTask); });
  return self;
}

CoordinatorServer::CoordinatorServer(std::unique_ptr<Coordinator> coordinator,
                                     absl::Duration stop_grace)
    : stop_grace_(stop_grace), strand_(std::move(coordinator)), edge_(strand_), sessions_(edge_) {}

CoordinatorServer::~CoordinatorServer() { Stop(); }

void CoordinatorServer::Stop() {
  if (server_ == nullptr) return;
  strand_.Run([](Coordinator& coordinator) { coordinator.Stop(); });
  sessions_.CloseAll(absl::UnavailableError("the coordinator is stopping"));
  server_->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(stop_grace_));
  server_->Wait();
  server_ = nullptr;
}

}  // namespace ferry::coord
