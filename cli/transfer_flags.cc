// SPDX-License-Identifier: Apache-2.0
// A table of the limits, used to parse and to print flags.
#include "cli/transfer_flags.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"

#include "cli/verb.h"

namespace ferry::cli {
namespace {

struct Limit {
  const char* flag;
  size_t& value;
  const char* description;
  // 0 where 0 disables the feature.
  uint64_t least = 1;
  // The flag's former name, if it had one.
  const char* deprecated = nullptr;
};

std::vector<Limit> Limits(TransferEngineOptions& options) {
  RendezvousManagerOptions& rendezvous = options.rendezvous;
  return {
      {"--arena-budget-bytes", options.arena.budget_bytes,
       "memory for tensors that are shared without a copy"},
      {"--gpu-arena-budget-bytes", options.gpus.arena.budget_bytes,
       "memory of each GPU for tensors that other processes map"},
      {"--gpu-reserve-bytes", options.gpus.arena.reserve_bytes,
       "memory of --gpu-arena-budget-bytes that is allocated when a GPU is opened, and kept", 0},
      {"--gpu-reserve-segment-bytes", options.gpus.arena.reserve_segment_bytes,
       "unit of --gpu-reserve-bytes; larger tensors are not placed there"},
      {"--gpu-staging-budget-bytes", options.gpus.staging.budget_bytes,
       "memory of each GPU for tensors in memory that other processes cannot map; 0: none", 0},
      {"--gpu-ipc-min-bytes", options.gpus.ipc_min_bytes,
       "size below which foreign GPU memory is staged instead of mapped", 0,
       "--gpu-stage-below-bytes"},
      {"--gpu-ipc-cache-bytes", options.gpus.ipc_cache_bytes,
       "memory of other processes that each GPU keeps mapped; 0: none", 0,
       "--gpu-import-cap-bytes"},
      {"--pinned-budget-bytes", options.gpus.pinned.budget_bytes,
       "pinned host memory for copies to and from GPUs"},
      {"--pinned-reserve-bytes", options.gpus.pinned.reserve_bytes,
       "memory of --pinned-budget-bytes that is pinned when the first GPU is opened, and kept", 0},
      {"--nccl-memory-bytes", options.transports.nccl.memory_bytes,
       "memory of each GPU for NCCL's communicators of keyed transfers; 0: none", 0},
      {"--nccl-put-bytes", options.transports.nccl.put_bytes,
       "memory of each GPU into which peers put tensors one-sidedly by NCCL; 0: none", 0},
      {"--max-queued-bytes", rendezvous.limits.max_queued_bytes,
       "bytes sent in a step that wait for a receiver"},
      {"--max-pending-ops", rendezvous.limits.max_pending_ops,
       "pending sends and receives of a step", 1, "--max-waiting"},
      {"--max-steps", rendezvous.max_steps, "open steps"},
      {"--peer-queue-bytes", options.peer_queue_bytes, "bytes of messages queued for a slow peer",
       1, "--lane-queue-bytes"},
  };
}

}  // namespace

void AddTransferFlags(CLI::App& app, TransferEngineOptions& options) {
  constexpr char kGroup[] = "Moving tensors";
  std::vector<std::string> names = TransportNames(AllTransports(options));
  names.insert(names.begin(), std::string(kLocalPath));
  const auto add_transport = [&](const char* flag) {
    return app
        .add_option(flag, options.require_transport,
                    "the only transport that may be used; transfers that it cannot carry fail")
        ->type_name(absl::StrJoin(names, "|"))
        ->check(CLI::IsMember(names).description(""));
  };
  constexpr char kFormerTransport[] = "--require";
  if (app.get_option_no_throw("--transport") == nullptr) {
    AddDeprecatedName(app, add_transport("--transport")->group(kGroup), kFormerTransport);
  } else {
    // A bench, whose --transport says what to measure; this flag had precedence over it.
    add_transport(kFormerTransport)->group("");
  }
  app.add_flag_callback(
         "--no-gpus", [&options] { options.use_gpus = false; },
         "do not use this machine's GPUs; tensors in their memory cannot be transferred")
      ->group(kGroup);
  app.add_flag(
         "--gpu-wait-on-device", options.gpus.waits_on_device,
         "let streams wait on the GPU for tensors that are not complete, in place of the host: "
         "faster, but a stream waits for ever if the sender dies before, and delays others "
         "that share its hardware queue")
      ->group(kGroup);
  app.add_flag("--gpu-reserve-staging", options.gpus.staging.is_reserved,
               "allocate --gpu-staging-budget-bytes when a GPU is opened")
      ->group(kGroup);
  AddDuration(app, "--gpu-ipc-idle-timeout", options.gpus.ipc_idle_timeout,
              "how long foreign GPU memory of other processes stays mapped without being used, if "
              "its owner allows it; 0: not at all")
      ->group(kGroup);
  app.add_flag("--checksum", options.checksum,
               "verify checksums of all tensors and control messages")
      ->group(kGroup);
  app.add_flag_callback(
         "--no-eager", [&options] { options.eager = false; },
         "request every tensor; without this flag small ones are sent before they are requested, "
         "except with --checksum or --protocol=grpc")
      ->group(kGroup);
  const auto set_protocol = [&options](const std::string& protocol) {
    options.protocol = protocol == "grpc" ? WireProtocol::kGrpc : WireProtocol::kNative;
  };
  app.add_option_function<std::string>(
         "--protocol", set_protocol,
         "protocol for requests and tensors; grpc works with TensorFlow's workers")
      ->type_name("native|grpc")
      ->check(CLI::IsMember({"native", "grpc"}).description(""))
      ->default_str("native")
      ->group(kGroup);
  AddDeprecatedName(
      app,
      app.add_flag("--require-auth", options.require_auth,
                   "reject grpc calls that are not authenticated with the job's token, such as "
                   "TensorFlow's")
          ->group(kGroup),
      "--require-proof");
  AddDeprecatedName(app,
                    app.add_option("--tensor-listen", options.listen,
                                   "listen address for nodes of other machines; port 0: any free "
                                   "port; without HOST all addresses")
                        ->type_name("[HOST]:PORT")
                        ->default_str(options.listen)
                        ->group(kGroup),
                    "--exchange-listen");
  app.add_option("--advertise", options.advertise,
                 "address published to peers (default: all addresses)")
      ->type_name("HOST[:PORT]")
      ->group(kGroup);
  AddDuration(app, "--spin", options.spin, "how long to poll before sleeping")->group(kGroup);
  AddNumber(app, "--tcp-connections", options.transports.tcp.connections,
            "connections per pair of nodes and direction, and one more for single tensors", 1, 64)
      ->group(kGroup);
  for (const Limit& limit : Limits(options)) {
    CLI::Option* const option =
        AddLimit(app, limit.flag, limit.value, limit.description, limit.least)->group(kGroup);
    if (limit.deprecated != nullptr) AddDeprecatedName(app, option, limit.deprecated);
  }
  // The former name of --protocol, and of its value native. An empty group hides it.
  app.add_option_function<std::string>("--carrier", set_protocol, "")
      ->check(CLI::IsMember({"lane", "grpc"}).description(""))
      ->group("");
}

std::vector<std::string> TransferArguments(const TransferEngineOptions& options) {
  std::vector<std::string> arguments = {
      absl::StrCat("--protocol=", options.protocol == WireProtocol::kGrpc ? "grpc" : "native"),
      absl::StrCat("--tensor-listen=", options.listen),
      absl::StrCat("--tcp-connections=", options.transports.tcp.connections)};
  // The flag cannot give an infinite value: polling is requested differently, as by bench's plan.
  if (options.spin != absl::InfiniteDuration()) {
    arguments.push_back(absl::StrCat("--spin=", absl::FormatDuration(options.spin)));
  }
  if (!options.require_transport.empty()) {
    arguments.push_back(absl::StrCat("--transport=", options.require_transport));
  }
  if (!options.advertise.empty()) {
    arguments.push_back(absl::StrCat("--advertise=", options.advertise));
  }
  if (!options.use_gpus) arguments.push_back("--no-gpus");
  if (options.gpus.waits_on_device) arguments.push_back("--gpu-wait-on-device");
  if (options.gpus.staging.is_reserved) arguments.push_back("--gpu-reserve-staging");
  if (options.gpus.ipc_idle_timeout != absl::InfiniteDuration()) {
    arguments.push_back(absl::StrCat("--gpu-ipc-idle-timeout=",
                                     absl::FormatDuration(options.gpus.ipc_idle_timeout)));
  }
  if (options.checksum) arguments.push_back("--checksum");
  if (!options.eager) arguments.push_back("--no-eager");
  if (options.require_auth) arguments.push_back("--require-auth");
  TransferEngineOptions copy = options;
  for (const Limit& limit : Limits(copy)) {
    arguments.push_back(absl::StrCat(limit.flag, "=", limit.value));
  }
  return arguments;
}

}  // namespace ferry::cli
