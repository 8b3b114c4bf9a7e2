// SPDX-License-Identifier: Apache-2.0
// ferry send: joins a job, gives one tensor to another node, and leaves when it has been taken.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include <sys/stat.h>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "cli/as_node.h"
#include "cli/fill.h"
#include "cli/progress.h"
#include "cli/send_recv.h"
#include "cli/table.h"
#include "cli/verb.h"
#include "runtime/printable.h"

namespace ferry::cli {
namespace {

struct SendFlags : SendRecvFlags {
  std::string fill = "pattern";
  std::string file;
};

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

absl::Status FileError(const std::string& path) {
  return absl::UnavailableError(
      absl::StrCat("cannot read ", Quoted(path), ": ", std::strerror(errno)));
}

// The file's bytes as elements; of any number of bytes if no shape is asked for.
absl::StatusOr<Tensor> ReadTensor(Node& node, const SendFlags& flags) {
  const File file(std::fopen(flags.file.c_str(), "re"));
  struct stat about {};
  if (file == nullptr || fstat(fileno(file.get()), &about) != 0) return FileError(flags.file);
  FERRY_ASSIGN_OR_RETURN(const DataType dtype,
                         ParseDtypeFlag(flags.dtype.empty() ? "uint8" : flags.dtype));
  const int64_t element_bytes = static_cast<int64_t>(ElementBytes(dtype));
  Shape shape;
  if (flags.shape.empty()) {
    FERRY_ASSIGN_OR_RETURN(shape, Shape::Create({about.st_size / element_bytes}));
  } else {
    FERRY_ASSIGN_OR_RETURN(shape, ParseShapeFlag(flags.shape));
  }
  FERRY_ASSIGN_OR_RETURN(Tensor tensor, node.Allocate("host:0", dtype, shape));
  if (static_cast<int64_t>(tensor.bytes()) != about.st_size) {
    return absl::FailedPreconditionError(absl::StrCat(Quoted(flags.file), " has ", about.st_size,
                                                      " bytes, and ", ToString(tensor), " has ",
                                                      tensor.bytes()));
  }
  if (std::fread(tensor.mutable_data(), 1, tensor.bytes(), file.get()) != tensor.bytes()) {
    return FileError(flags.file);
  }
  return tensor;
}

absl::StatusOr<Tensor> MakeTensor(Node& node, const SendFlags& flags) {
  if (!flags.file.empty()) return ReadTensor(node, flags);
  FERRY_ASSIGN_OR_RETURN(const DataType dtype,
                         ParseDtypeFlag(flags.dtype.empty() ? "float" : flags.dtype));
  FERRY_ASSIGN_OR_RETURN(const Shape shape,
                         ParseShapeFlag(flags.shape.empty() ? "scalar" : flags.shape));
  FERRY_ASSIGN_OR_RETURN(Tensor tensor, node.Allocate("host:0", dtype, shape));
  FERRY_RETURN_IF_ERROR(Fill(tensor, flags.fill, PatternSeedOf(flags)));
  return tensor;
}

absl::StatusOr<int> SendOne(JoinedNode& joined, const SendFlags& flags) {
  Node& node = joined.node;
  FERRY_ASSIGN_OR_RETURN(Tensor tensor, MakeTensor(node, flags));
  const std::string what = ToString(tensor);
  const size_t bytes = tensor.bytes();
  FERRY_ASSIGN_OR_RETURN(Step step, node.OpenStep(flags.step));
  const absl::Time start = SteadyClock().Now();
  {
    const Progress progress(absl::StrCat("waiting for node ", flags.peer, " to take ",
                                         Quoted(flags.name), " in step ", flags.step));
    // What the receiver says of a tensor is no mistake in the flags.
    FERRY_RETURN_IF_ERROR(AsFailure(RunStoppably(
        joined,
        [&]() -> absl::Status {
          FERRY_ASSIGN_OR_RETURN(const RendezvousKey key,
                                 node.Key(flags.name, node.node_id(), flags.peer));
          FERRY_RETURN_IF_ERROR(step.Send(key, std::move(tensor)));
          return step.Close(flags.timeout);
        },
        [&step](const absl::Status& why) { step.Abort(why); })));
  }
  std::printf("ferry send: %s to node %d in step %lld: %s, %s; taken after %s\n",
              Quoted(flags.name).c_str(), flags.peer, static_cast<long long>(flags.step),
              what.c_str(), ShortBytes(static_cast<double>(bytes)).c_str(),
              ShortDuration(SteadyClock().Now() - start).c_str());
  FERRY_RETURN_IF_ERROR(node.Leave());
  return kDone;
}

}  // namespace

Verb AddSendVerb(CLI::App& app) {
  auto flags = std::make_shared<SendFlags>();
  CLI::App& verb = *app.add_subcommand("send", "Join a job and give a tensor to another node");
  verb.footer(
      "Try, in two terminals of one machine, with a coordinator for two nodes:\n"
      "  ferry send weights --to=1 --shape=1024x1024 --node-id=0 --coordinator=HOST:PORT\n"
      "  ferry recv weights --from=0 --verify --node-id=1 --coordinator=HOST:PORT");
  verb.add_option("--to", flags->peer, "the node that receives it")->type_name("NODE")->required();
  CLI::Option* fill =
      verb.add_option("--fill", flags->fill, "what is in it: pattern, zeros, ones, seq or a number")
          ->type_name("WHAT")
          ->capture_default_str();
  verb.add_option("--file", flags->file, "the bytes of this file are in it")
      ->type_name("FILE")
      ->excludes(fill);
  AddSendRecvFlags(verb, *flags);
  return [flags]() -> absl::StatusOr<int> {
    // Before anything is joined.
    if (!flags->dtype.empty()) FERRY_RETURN_IF_ERROR(ParseDtypeFlag(flags->dtype).status());
    if (!flags->shape.empty()) FERRY_RETURN_IF_ERROR(ParseShapeFlag(flags->shape).status());
    return RunAsNode(flags->node, [&flags](JoinedNode& joined) { return SendOne(joined, *flags); });
  };
}

}  // namespace ferry::cli
