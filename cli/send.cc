// SPDX-License-Identifier: Apache-2.0
// ferry send: joins a job, sends one tensor to another node, and leaves once it has been received.
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "cli/as_node.h"
#include "cli/fill.h"
#include "cli/progress.h"
#include "cli/send_recv.h"
#include "cli/send_source.h"
#include "cli/table.h"
#include "cli/verb.h"
#include "launch/printable.h"
#include "tensor/check_values.h"

namespace ferry::cli {
namespace {

struct SendFlags : SendRecvFlags {
  std::string fill = "pattern";
  std::string file;
};

// The tensor to send; determined before joining.
struct Plan {
  // Null: the tensor is filled as a flag says.
  std::unique_ptr<SendSource> source;
  DataType dtype = DataType::kFloat;
  Shape shape;
};

// Interprets the file's bytes as elements; of any number if no shape is given.
absl::StatusOr<Plan> PlanFile(const SendFlags& flags) {
  Plan plan;
  FERRY_ASSIGN_OR_RETURN(plan.dtype, ParseDtypeFlag(flags.dtype.empty() ? "uint8" : flags.dtype));
  SendSourceOptions options = {.timeout = flags.timeout,
                               .most_bytes = flags.node.transfer.arena.budget_bytes};
  if (!flags.shape.empty()) {
    FERRY_ASSIGN_OR_RETURN(plan.shape, ParseShapeFlag(flags.shape));
    FERRY_ASSIGN_OR_RETURN(const size_t bytes, TensorBytes(plan.dtype, plan.shape));
    // Check the size before reading the content.
    FERRY_RETURN_IF_ERROR(CheckBudget(flags, bytes));
    options.expected_bytes = bytes;
  }
  FERRY_ASSIGN_OR_RETURN(plan.source, SendSource::Open(flags.file, options));
  const size_t has = plan.source->bytes();
  if (flags.shape.empty()) {
    const int64_t element_bytes = static_cast<int64_t>(ElementBytes(plan.dtype));
    FERRY_ASSIGN_OR_RETURN(plan.shape, Shape::Create({static_cast<int64_t>(has) / element_bytes}));
  }
  FERRY_ASSIGN_OR_RETURN(const size_t bytes, TensorBytes(plan.dtype, plan.shape));
  if (bytes != has) {
    return absl::FailedPreconditionError(absl::StrCat(
        plan.source->name(), " has ", plan.source->has_more() ? "at least " : "", has,
        " bytes, and ", DataTypeName(plan.dtype), ToString(plan.shape), " has ", bytes));
  }
  return plan;
}

absl::StatusOr<Plan> MakePlan(const SendFlags& flags) {
  if (!flags.file.empty()) return PlanFile(flags);
  Plan plan;
  FERRY_ASSIGN_OR_RETURN(plan.dtype, ParseDtypeFlag(flags.dtype.empty() ? "float" : flags.dtype));
  FERRY_ASSIGN_OR_RETURN(plan.shape, ParseShapeFlag(flags.shape.empty() ? "scalar" : flags.shape));
  FERRY_RETURN_IF_ERROR(CheckFill(plan.dtype, flags.fill));
  return plan;
}

absl::StatusOr<Tensor> MakeTensor(Node& node, const SendFlags& flags, const Plan& plan) {
  FERRY_ASSIGN_OR_RETURN(Tensor tensor, node.Allocate("host:0", plan.dtype, plan.shape));
  if (plan.source == nullptr) {
    FERRY_RETURN_IF_ERROR(Fill(tensor, flags.fill, PatternSeedOf(flags)));
  } else {
    FERRY_RETURN_IF_ERROR(plan.source->Read(static_cast<char*>(tensor.mutable_data())));
    if (const absl::Status values = CheckValues(tensor); !values.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat(Quoted(flags.file), ": ", values.message()));
    }
  }
  return tensor;
}

absl::StatusOr<int> SendOne(JoinedNode& joined, const SendFlags& flags, const Plan& plan) {
  Node& node = joined.node;
  FERRY_ASSIGN_OR_RETURN(Tensor tensor, MakeTensor(node, flags, plan));
  const std::string what = ToString(tensor);
  const size_t bytes = tensor.bytes();
  FERRY_ASSIGN_OR_RETURN(Step step, node.OpenStep(flags.step));
  const absl::Time start = SteadyClock().Now();
  {
    const Progress progress(absl::StrCat("waiting for node ", flags.peer, " to take ",
                                         Quoted(flags.name), " in step ", flags.step));
    // The receiver's errors about a tensor are not usage errors.
    FERRY_RETURN_IF_ERROR(AsTransferFailure(RunInterruptibly(
        joined,
        [&]() -> absl::Status {
          FERRY_ASSIGN_OR_RETURN(const RendezvousKey key,
                                 node.Key(flags.name, node.node_id(), flags.peer));
          FERRY_RETURN_IF_ERROR(step.Send(key, std::move(tensor)));
          return step.Close(flags.timeout);
        },
        [&](const absl::Status& why) { step.Abort(PrefixNode(node, why)); })));
  }
  const absl::Duration taken = SteadyClock().Now() - start;
  EndService(joined);
  std::printf("ferry send: %s to node %d in step %lld: %s, %s; taken after %s\n",
              Quoted(flags.name).c_str(), flags.peer, static_cast<long long>(flags.step),
              what.c_str(), ShortBytes(static_cast<double>(bytes)).c_str(),
              ShortDuration(taken).c_str());
  return kDone;
}

}  // namespace

Verb AddSendVerb(CLI::App& app) {
  auto flags = std::make_shared<SendFlags>();
  CLI::App& verb = *app.add_subcommand("send", "Join a job and send a tensor to another node");
  verb.footer(
      "Try, in two terminals of one machine, with a coordinator for two nodes:\n"
      "  ferry send weights --to=1 --shape=1024x1024 --node-id=0 --coordinator=HOST:PORT\n"
      "  ferry recv weights --from=0 --verify --node-id=1 --coordinator=HOST:PORT");
  AddPeerFlag(verb, "--to", *flags, "the node that receives it");
  CLI::Option* fill =
      verb.add_option("--fill", flags->fill, "contents: pattern, zeros, ones, seq or a number")
          ->type_name("WHAT")
          ->capture_default_str();
  verb.add_option("--file", flags->file, "send the bytes of this file; - for stdin")
      ->type_name("FILE")
      ->excludes(fill);
  AddSendRecvFlags(verb, *flags);
  return [flags]() -> absl::StatusOr<int> {
    // Validate everything before joining.
    Plan plan;
    FERRY_RETURN_IF_ERROR(PrepareAsNode(flags->node, [&flags, &plan]() -> absl::Status {
      FERRY_RETURN_IF_ERROR(CheckSendRecvFlags(*flags, "--to"));
      FERRY_ASSIGN_OR_RETURN(plan, MakePlan(*flags));
      FERRY_ASSIGN_OR_RETURN(const size_t bytes, TensorBytes(plan.dtype, plan.shape));
      return CheckBudget(*flags, bytes);
    }));
    return RunAsPeer(flags->node,
                     [&flags, &plan](JoinedNode& joined) { return SendOne(joined, *flags, plan); });
  };
}

}  // namespace ferry::cli
