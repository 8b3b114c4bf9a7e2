// SPDX-License-Identifier: Apache-2.0
// Keyed transfers over NCCL by one-sided puts: whether they work, not how fast.
#include <string>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "benchmarks/gpu/check_nccl.h"
#include "benchmarks/gpu/check_transfers.h"
#include "gpu/nccl/nccl_api.h"
#include "transport/nccl/nccl_transport.h"

namespace ferry::check {
namespace {

constexpr char kPutCheck[] = "keyed, by nccl, put into a pool";
constexpr size_t kPutBytes = kMiB + 24;
// The first tensors go in batches: the window is set up meanwhile.
constexpr int kTensors = 8;
constexpr absl::Duration kPutTimeout = absl::Seconds(20);

// Why gpu:`own` of this node has no window with gpu:`other` of the first one.
absl::StatusOr<absl::Status> WhyNoPut(CheckNode& self, int own, int other) {
  FERRY_ASSIGN_OR_RETURN(const int peer, GlobalIdOf(self.node(), 0, other));
  for (const auto& transport : self.node().transfer_engine().transports()) {
    if (transport->name() != NcclTransport::kInfo.name) continue;
    return static_cast<const NcclTransport&>(*transport).PutRefusal(own, DeviceId(peer));
  }
  return absl::NotFoundError("there is no transport nccl");
}

// Node 0 sends from gpu:0, node 1 receives on gpu:`to`.
absl::Status SendPuts(CheckNode& self, int to) {
  int put_count = 0;
  absl::Status checked;
  for (int i = 0; i < kTensors && checked.ok(); ++i) {
    FERRY_ASSIGN_OR_RETURN(Step step, self.node().OpenStep(i + 1));
    FERRY_ASSIGN_OR_RETURN(const RendezvousKey key,
                           self.Key(absl::StrCat("put", i), 0, "gpu:0", absl::StrCat("gpu:", to)));
    if (self.id() == 0) {
      FERRY_ASSIGN_OR_RETURN(const Tensor tensor, self.Pattern(kPutBytes, i));
      FERRY_RETURN_IF_ERROR(step.Send(key, tensor));
    } else {
      const absl::StatusOr<Received> received = step.RecvValue(key, kPutTimeout);
      checked = received.status();
      if (checked.ok()) checked = self.Verify(received->tensor, kPutBytes, i);
      if (checked.ok() && received->path == "nccl, put") ++put_count;
    }
    FERRY_RETURN_IF_ERROR(self.Meet());
  }
  if (self.id() == 0) return self.Meet();
  if (checked.ok() && put_count == 0) {
    FERRY_ASSIGN_OR_RETURN(checked, WhyNoPut(self, to, 0));
    if (absl::IsFailedPrecondition(checked)) {
      self.report().SkipCheck(kPutCheck, absl::StrCat("not supported here: ", checked.message()));
      return self.Meet();
    }
  }
  self.report().Check(kPutCheck, checked, {{"tensors_put", put_count}, {"tensors", kTensors}});
  return self.Meet();
}

}  // namespace

absl::Status CheckPuts(PartContext& context, int version) {
  const bool is_shared = context.machine.gpu_count < 2;
  const int needed = is_shared ? nccl::kMultiRankGpuVersion : nccl::kPutVersion;
  if (version < needed) {
    context.report.SkipCheck(
        kPutCheck, absl::StrCat("not supported here: NCCL is ", nccl::VersionText(version),
                                is_shared ? ", and between two processes on one GPU " : ", and ",
                                nccl::VersionText(needed), " is needed"));
    return absl::OkStatus();
  }
  NodesOptions options;
  options.name = kPutCheck;
  options.transfer = TransferOptionsFor(context.machine, "nccl");
  options.transfer.transports.nccl.put_bytes = 16 * kMiB;
  if (is_shared) {
    options.environments = {SharedGpuEnvironment(0, version), SharedGpuEnvironment(1, version)};
  }
  const NodeBody body = [to = is_shared ? 0 : 1](CheckNode& self) { return SendPuts(self, to); };
  return RunNodes(context, options, {body, body}).status();
}

}  // namespace ferry::check
