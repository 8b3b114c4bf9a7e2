// SPDX-License-Identifier: Apache-2.0
// Tells a master how to read the nodes' records.
#include "cli/hosted_master.h"

#include <unistd.h>

#include <string>

#include "base/status_macros.h"
#include "node/endpoint_record.h"
#include "node/identity.h"
#include "node/transfer_engine.h"

namespace ferry::cli {
namespace {

constexpr char kFirstKey[] = "0";

absl::StatusOr<master::WorkerRecord> ReadRecord(int32_t node, absl::string_view bytes) {
  FERRY_ASSIGN_OR_RETURN(const Endpoint endpoint, DecodeEndpoint(bytes, node));
  master::WorkerRecord record;
  record.incarnation = endpoint.peer.incarnation;
  record.address = endpoint.grpc_address;
  record.gpu_count = static_cast<int>(endpoint.gpus.size());
  record.has_gpu_kernels = endpoint.has_gpu_kernels;
  return record;
}

std::string HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) return "this machine";
  return name;
}

}  // namespace

std::unique_ptr<master::MasterHost> AddMaster(master::MasterOptions master,
                                              coord::ServerOptions& options) {
  master::WorkerRecords records;
  // "ferry/exchange/0" without its number.
  records.prefix = EndpointKey(0);
  records.prefix.resize(records.prefix.size() - (sizeof(kFirstKey) - 1));
  records.key = EndpointKey;
  records.read = ReadRecord;
  // The same lookup as the nodes'; they report errors in the file.
  records.token = FindToken({}, ProcessEnv).value_or("");
  records.token_key = kJobTokenKey;
  master.host = HostName();
  auto host = std::make_unique<master::MasterHost>(std::move(master), std::move(records));
  options.more_services = [host = host.get()](coord::CoordinatorExecutor& executor,
                                              coord::GenericMethodTable& rare) {
    return host->Attach(executor, rare);
  };
  return host;
}

}  // namespace ferry::cli
