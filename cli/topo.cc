// SPDX-License-Identifier: Apache-2.0
// ferry topo: devices and the paths between them, of this machine, a job, or a file.
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "base/status_macros.h"
#include "base/text.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/tool_agent.h"
#include "cli/topo_paths.h"
#include "cli/verb.h"
#include "gpu/discovery.h"
#include "gpu/nccl/nccl_api.h"
#include "launch/printable.h"
#include "topology/format.h"
#include "topology/nccl_xml.h"

namespace ferry::cli {
namespace {

struct TopoFlags {
  std::string coordinator;
  std::string nccl_xml;
  std::string write_nccl_xml;
  bool json = false;
  bool dot = false;
};

template <typename Topology>
void Print(const TopoFlags& flags, const Topology& topology) {
  const std::string text = flags.json  ? FormatJson(topology)
                           : flags.dot ? PrintableText(FormatDot(topology))
                                       : PrintableText(FormatText(topology));
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (!text.empty() && text.back() != '\n') std::fputc('\n', stdout);
}

void PrintReason(const char* what, const std::string& reason) {
  if (!reason.empty())
    std::fprintf(stderr, "ferry topo: %s: %s\n", what, Printable(reason).c_str());
}

absl::StatusOr<int> ShowMachine(const TopoFlags& flags) {
  LocalDiscovery discovery;
  {
    const Progress progress("asking the GPU driver");
    discovery = DiscoverLocal();
  }
  if (!flags.write_nccl_xml.empty()) {
    FERRY_ASSIGN_OR_RETURN(const NcclTopology nccl, ToNcclTopology(discovery.topology));
    FERRY_RETURN_IF_ERROR(WriteFile(flags.write_nccl_xml, WriteNcclXml(nccl)));
  }
  if (flags.write_nccl_xml != "-") Print(flags, discovery.topology);
  // Keeps the reasons below the table if stdout and stderr are the same.
  FERRY_RETURN_IF_ERROR(FlushOutput());
  PrintReason("cores and NUMA nodes are not known", discovery.host_reason);
  PrintReason("no GPUs", discovery.cuda_reason);
  for (const std::string& failure : discovery.gpu_failures) PrintReason("no use of", failure);
  if (discovery.cuda_reason.empty()) {
    PrintReason("no NVLinks", discovery.nvml_reason);
    // The message itself begins with what is missing.
    const absl::Status nccl = nccl::NcclApi::Load().status();
    PrintReason("no NCCL", std::string(absl::StripPrefix(nccl.message(), "no NCCL: ")));
  }
  return kDone;
}

absl::StatusOr<int> ShowFile(const TopoFlags& flags) {
  // Read by path, so that stdin works too and errors show this name.
  const absl::StatusOr<NcclTopology> nccl =
      ReadNcclXmlFile(flags.nccl_xml == "-" ? "/dev/stdin" : flags.nccl_xml);
  if (!nccl.ok()) return AsFailure(nccl.status());
  const absl::StatusOr<LocalTopology> topology = ToLocalTopology(*nccl);
  if (!topology.ok()) return AsFailure(topology.status());
  if (!flags.write_nccl_xml.empty()) {
    FERRY_RETURN_IF_ERROR(WriteFile(flags.write_nccl_xml, WriteNcclXml(*nccl)));
  }
  if (flags.write_nccl_xml != "-") Print(flags, *topology);
  FERRY_RETURN_IF_ERROR(FlushOutput());
  for (const std::string& ignored : nccl->ignored) PrintReason("ignored, as by NCCL", ignored);
  return kDone;
}

absl::StatusOr<int> ShowJob(const TopoFlags& flags) {
  if (!flags.write_nccl_xml.empty()) {
    return absl::InvalidArgumentError(
        "--write-nccl-xml is for one machine; leave --coordinator out");
  }
  FERRY_ASSIGN_OR_RETURN(const auto agent, ConnectTool(flags.coordinator));
  const absl::StatusOr<GlobalTopology> topology = agent->Topology();
  if (absl::IsNotFound(topology.status())) {
    return absl::NotFoundError(absl::StrCat(
        "the job at ", flags.coordinator,
        " has no topology yet: not every node has told its devices; see ferry status"));
  }
  if (!topology.ok()) return AsFailure(topology.status());
  Print(flags, *topology);
  if (flags.json || flags.dot) return kDone;
  FERRY_ASSIGN_OR_RETURN(const std::string paths, FormatPaths(*agent, *topology));
  std::fputs(paths.c_str(), stdout);
  return kDone;
}

}  // namespace

Verb AddTopoVerb(CLI::App& app) {
  auto flags = std::make_shared<TopoFlags>();
  CLI::App& verb = *app.add_subcommand(
      "topo", "Show devices and the paths between them: of this machine, a job, or a file");
  // Does not read FERRY_COORDINATOR: without flags the verb shows this machine, wherever it runs.
  CLI::Option* coordinator =
      verb.add_option("--coordinator", flags->coordinator, "show the running job there")
          ->type_name("HOST:PORT");
  verb.add_option("--nccl-xml", flags->nccl_xml,
                  "show this file, such as NCCL_TOPO_DUMP_FILE writes; - is stdin")
      ->type_name("FILE")
      ->excludes(coordinator);
  CLI::Option* json = verb.add_flag("--json", flags->json, "for programs");
  verb.add_flag("--dot", flags->dot, "for Graphviz")->excludes(json);
  verb.add_option("--write-nccl-xml", flags->write_nccl_xml,
                  "also write it for NCCL_TOPO_FILE; - for stdout")
      ->type_name("FILE");
  return [flags, coordinator]() -> absl::StatusOr<int> {
    if (flags->write_nccl_xml == "-" && (flags->json || flags->dot)) {
      return absl::InvalidArgumentError(absl::StrCat("--write-nccl-xml: - is stdout, where ",
                                                     flags->json ? "--json" : "--dot",
                                                     " writes; name a file"));
    }
    // An empty value is an error; it does not select this machine.
    if (coordinator->count() > 0) return ShowJob(*flags);
    if (!flags->nccl_xml.empty()) return ShowFile(*flags);
    return ShowMachine(*flags);
  };
}

}  // namespace ferry::cli
