// SPDX-License-Identifier: Apache-2.0
// ferry recv: joins a job, receives one tensor from another node, and prints the path it took.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include <unistd.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "cli/as_node.h"
#include "cli/fill.h"
#include "cli/output.h"
#include "cli/pattern.h"
#include "cli/progress.h"
#include "cli/send_recv.h"
#include "cli/table.h"
#include "cli/verb.h"
#include "launch/printable.h"

namespace ferry::cli {
namespace {

struct RecvFlags : SendRecvFlags {
  bool verify = false;
  bool into = false;
  std::string output;
};

absl::Status CheckType(const RecvFlags& flags, const Tensor& tensor) {
  if (!flags.dtype.empty()) {
    FERRY_ASSIGN_OR_RETURN(const DataType dtype, ParseDtypeFlag(flags.dtype));
    if (tensor.dtype() != dtype) {
      return absl::FailedPreconditionError(absl::StrCat(
          Quoted(flags.name), " is ", ToString(tensor), ", and --dtype=", flags.dtype));
    }
  }
  if (!flags.shape.empty()) {
    FERRY_ASSIGN_OR_RETURN(const Shape shape, ParseShapeFlag(flags.shape));
    if (!(tensor.shape() == shape)) {
      return absl::FailedPreconditionError(absl::StrCat(
          Quoted(flags.name), " is ", ToString(tensor), ", and --shape=", flags.shape));
    }
  }
  return absl::OkStatus();
}

absl::Status Verify(const RecvFlags& flags, const Tensor& tensor) {
  size_t first = 0;
  const size_t errors = CountPatternErrors(tensor.data(), tensor.bytes(), PatternSeedOf(flags),
                                           &first, PatternMask(tensor.dtype()));
  if (errors == 0) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(Quoted(flags.name), " is not the pattern of this name and step: ", errors,
                   " of ", tensor.bytes(), " bytes are wrong, the first at ", first));
}

absl::Status WriteElements(const std::string& path, const Tensor& tensor) {
  if (!IsFixedSize(tensor.dtype())) {
    return absl::FailedPreconditionError("--output: strings are no bytes in a row");
  }
  return WriteFile(path,
                   absl::string_view(static_cast<const char*>(tensor.data()), tensor.bytes()));
}

// Checks that a file can be written there, as far as possible without creating one.
absl::Status CheckOutput(const std::string& path) {
  if (path == "-") return absl::OkStatus();
  std::error_code ignored;
  const std::filesystem::path file(path);
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  const bool is_there = access(path.c_str(), F_OK) == 0;
  const char* const why =
      std::filesystem::is_directory(file, ignored) ? std::strerror(EISDIR)
      : access(is_there ? path.c_str() : folder.c_str(), is_there ? W_OK : W_OK | X_OK) == 0
          ? nullptr
          : std::strerror(errno);
  if (why == nullptr) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("--output: cannot write ", Quoted(path), ": ", why));
}

// Provides a buffer if the tensor is to be received into existing memory.
absl::StatusOr<RecvArgs> ArgsFor(Node& node, const RecvFlags& flags) {
  RecvArgs args;
  if (!flags.into) return args;
  FERRY_ASSIGN_OR_RETURN(const DataType dtype, ParseDtypeFlag(flags.dtype));
  FERRY_ASSIGN_OR_RETURN(const Shape shape, ParseShapeFlag(flags.shape));
  FERRY_ASSIGN_OR_RETURN(args.destination, node.Allocate("host:0", dtype, shape));
  return args;
}

absl::StatusOr<int> RecvOne(JoinedNode& joined, const RecvFlags& flags) {
  Node& node = joined.node;
  FERRY_ASSIGN_OR_RETURN(RecvArgs args, ArgsFor(node, flags));
  FERRY_ASSIGN_OR_RETURN(Step step, node.OpenStep(flags.step));
  Received received;
  const absl::Time start = SteadyClock().Now();
  absl::Duration taken;
  CancellationToken stopped;
  {
    const Progress progress(absl::StrCat("waiting for ", Quoted(flags.name), " from node ",
                                         flags.peer, " in step ", flags.step));
    FERRY_RETURN_IF_ERROR(AsTransferFailure(RunInterruptibly(
        joined,
        [&]() -> absl::Status {
          FERRY_ASSIGN_OR_RETURN(
              const RendezvousKey key,
              node.Key(flags.name, flags.peer, node.node_id(), "host:0", "host:0",
                       {.timeout = flags.timeout, .cancellation = &stopped}));
          // Time spent waiting for the address counts against the timeout.
          const absl::Duration left =
              std::max(flags.timeout - (SteadyClock().Now() - start), absl::ZeroDuration());
          FERRY_ASSIGN_OR_RETURN(received, step.RecvValue(key, left, std::move(args)));
          taken = SteadyClock().Now() - start;
          return absl::OkStatus();
        },
        [&](const absl::Status& why) {
          stopped.Cancel();
          step.Abort(PrefixNode(node, why));
        })));
  }
  // The sender has finished: errors in the tensor are reported only here.
  const std::string path = Printable(DescribePath(node, flags.peer, received));
  FERRY_RETURN_IF_ERROR(step.Close(flags.timeout));
  EndService(joined);
  const std::string from = absl::StrCat(" from node ", flags.peer, " in step ", flags.step);
  if (received.is_dead) {
    return absl::FailedPreconditionError(
        absl::StrCat(Quoted(flags.name), from, " was sent dead: there is no tensor"));
  }
  const Tensor& tensor = received.tensor;
  FERRY_RETURN_IF_ERROR(CheckType(flags, tensor));
  if (flags.verify) FERRY_RETURN_IF_ERROR(Verify(flags, tensor));
  if (!flags.output.empty()) FERRY_RETURN_IF_ERROR(WriteElements(flags.output, tensor));
  // If the bytes go to stdout, print the report elsewhere.
  std::FILE* const told = flags.output == "-" ? stderr : stdout;
  std::fprintf(told, "ferry recv: %s%s: %s, %s%s, after %s, %s\n", Quoted(flags.name).c_str(),
               from.c_str(), ToString(tensor).c_str(),
               ShortBytes(static_cast<double>(tensor.bytes())).c_str(),
               flags.verify ? ", verified" : "", ShortDuration(taken).c_str(), path.c_str());
  FERRY_RETURN_IF_ERROR(FlushOutput());
  return kDone;
}

}  // namespace

Verb AddRecvVerb(CLI::App& app) {
  auto flags = std::make_shared<RecvFlags>();
  CLI::App& verb = *app.add_subcommand(
      "recv", "Join a job, receive a tensor from another node, and print its path");
  AddPeerFlag(verb, "--from", *flags, "the node that sends it");
  verb.add_flag("--verify", flags->verify,
                "fail unless it holds the pattern that ferry send fills it with");
  verb.add_option("--output", flags->output, "write its bytes there; - for stdout")
      ->type_name("FILE");
  verb.add_flag("--into", flags->into,
                "receive into a preallocated buffer; needs --dtype and --shape");
  AddSendRecvFlags(verb, *flags);
  return [flags]() -> absl::StatusOr<int> {
    if (flags->into && (flags->dtype.empty() || flags->shape.empty())) {
      return absl::InvalidArgumentError("--into needs --dtype and --shape");
    }
    FERRY_RETURN_IF_ERROR(PrepareAsNode(flags->node, [&flags]() -> absl::Status {
      FERRY_RETURN_IF_ERROR(CheckSendRecvFlags(*flags, "--from"));
      if (flags->into) {
        FERRY_ASSIGN_OR_RETURN(const DataType dtype, ParseDtypeFlag(flags->dtype));
        FERRY_ASSIGN_OR_RETURN(const Shape shape, ParseShapeFlag(flags->shape));
        FERRY_ASSIGN_OR_RETURN(const size_t bytes, TensorBytes(dtype, shape));
        FERRY_RETURN_IF_ERROR(CheckBudget(*flags, bytes));
      }
      return flags->output.empty() ? absl::OkStatus() : CheckOutput(flags->output);
    }));
    return RunAsPeer(flags->node, [&flags](JoinedNode& joined) { return RecvOne(joined, *flags); });
  };
}

}  // namespace ferry::cli
