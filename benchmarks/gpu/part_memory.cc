// SPDX-License-Identifier: Apache-2.0
// Memory exhaustion, by Ferry's own limit and by the device's, and leaks of tensors that are made
// and dropped.
#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "benchmarks/gpu/check_nodes.h"

namespace ferry::check {
namespace {

// Allowance for other programs of the machine, and for the driver itself.
constexpr size_t kNoise = 8 * kMiB;

absl::Status CheckExhausted(const absl::Status& status, absl::string_view must_say) {
  if (absl::IsResourceExhausted(status) && absl::StrContains(status.message(), must_say)) {
    return absl::OkStatus();
  }
  return absl::InternalError(
      absl::StrCat("it was to be RESOURCE_EXHAUSTED, naming ", must_say, ": ", status.ToString()));
}

absl::Status ExceedLimits(CheckNode& self, size_t budget, absl::string_view must_say,
                          const std::string& name) {
  const absl::Status status = self.Empty(budget + kMiB).status();
  self.report().Check(name, CheckExhausted(status, must_say),
                      {{"said", std::string(status.message())}});
  FERRY_ASSIGN_OR_RETURN(const Tensor tensor, self.Pattern(kMiB, 4));
  self.report().Check(absl::StrCat(name, ", and the GPU works on"), self.Verify(tensor, kMiB, 4));
  return absl::OkStatus();
}

int DescriptorCount() {
  std::error_code ignored;
  return static_cast<int>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd", ignored), {}));
}

// One after the other, of changing sizes, as views and as copies; both sides compare their memory
// before and after.
absl::Status ComeAndGo(CheckNode& self, int rounds) {
  const bool is_sender = self.id() == 0;
  for (int round = 0; round < rounds; ++round) {
    const size_t bytes = 1000 + static_cast<size_t>(round % 7) * 700'000;
    const auto seed = static_cast<uint64_t>(round);
    FERRY_ASSIGN_OR_RETURN(const RendezvousKey key, self.Key("again", 0, kGpu, kGpu));
    FERRY_ASSIGN_OR_RETURN(Step step, self.node().OpenStep(round + 1 + (rounds << 16)));
    if (is_sender) {
      FERRY_ASSIGN_OR_RETURN(const Tensor tensor, self.Pattern(bytes, seed));
      FERRY_RETURN_IF_ERROR(step.Send(key, tensor));
    } else {
      RecvArgs args;
      if (round % 2 == 1) {
        FERRY_ASSIGN_OR_RETURN(args.destination, self.Empty(bytes));
      }
      FERRY_ASSIGN_OR_RETURN(const Received received,
                             step.RecvValue(key, kTimeout, std::move(args)));
      FERRY_RETURN_IF_ERROR(self.Verify(received.tensor, bytes, seed));
    }
    FERRY_RETURN_IF_ERROR(step.Close(kTimeout));
  }
  return self.Meet();
}

absl::Status LookForLeaks(CheckNode& self, int rounds) {
  FERRY_ASSIGN_OR_RETURN(CheckGpu* const gpu, self.gpu());
  FERRY_RETURN_IF_ERROR(ComeAndGo(self, 20));
  FERRY_ASSIGN_OR_RETURN(const size_t free_before, gpu->FreeBytes());
  const int descriptors_before = DescriptorCount();
  FERRY_RETURN_IF_ERROR(self.Meet());
  FERRY_RETURN_IF_ERROR(ComeAndGo(self, rounds));
  FERRY_ASSIGN_OR_RETURN(const size_t free_after, gpu->FreeBytes());
  const int descriptors_after = DescriptorCount();
  FERRY_RETURN_IF_ERROR(self.Meet());
  const std::string who = self.id() == 0 ? "the sender" : "the receiver";
  const size_t lost = free_before - std::min(free_before, free_after);
  self.report().Check(absl::StrCat(rounds, " transfers take no more of the GPU, ", who),
                      lost <= kNoise
                          ? absl::OkStatus()
                          : absl::InternalError(absl::StrCat(lost, " bytes were left behind")),
                      {{"free_before", free_before}, {"free_after", free_after}});
  self.report().Check(
      absl::StrCat(rounds, " transfers leave no descriptors open, ", who),
      descriptors_after <= descriptors_before + 4
          ? absl::OkStatus()
          : absl::InternalError(absl::StrCat("there were ", descriptors_before, ", and there are ",
                                             descriptors_after)),
      {{"before", descriptors_before}, {"after", descriptors_after}});
  return absl::OkStatus();
}

}  // namespace

absl::Status RunMemoryFailuresPart(PartContext& context) {
  NodesOptions small;
  small.name = "Ferry's own limit";
  small.transfer = TransferOptionsFor(context.machine);
  small.transfer.gpus.arena.budget_bytes = 64 * kMiB;
  FERRY_RETURN_IF_ERROR(RunNodes(context, small, {[](CheckNode& self) {
                                   return ExceedLimits(self, 64 * kMiB, "budget",
                                                       "more than the arena's budget is refused");
                                 }})
                            .status());
  NodesOptions large;
  large.name = "the device's memory";
  large.transfer = TransferOptionsFor(context.machine);
  const size_t beyond = context.machine.gpu_bytes * 2;
  large.transfer.gpus.arena.budget_bytes = beyond * 2;
  return RunNodes(context, large, {[beyond](CheckNode& self) {
                    return ExceedLimits(self, beyond, "memory",
                                        "more than the device has is refused");
                  }})
      .status();
}

absl::Status RunLeaksPart(PartContext& context) {
  NodesOptions options;
  options.name = "the same again and again";
  options.transfer = TransferOptionsFor(context.machine);
  const int rounds = context.options.is_quick ? 40 : 400;
  const NodeBody body = [rounds](CheckNode& self) { return LookForLeaks(self, rounds); };
  return RunNodes(context, options, {body, body}).status();
}

}  // namespace ferry::check
