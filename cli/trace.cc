// SPDX-License-Identifier: Apache-2.0
// ferry trace: the last steps of a job as a trace for a browser.
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/status_macros.h"
#include "base/text.h"
#include "cli/chrome_trace_proto.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "cli/trace_session.h"
#include "cli/verb.h"
#include "launch/printable.h"

namespace ferry::cli {
namespace {

struct TraceFlags {
  std::string coordinator;
  std::string output;
  int last = 1;
};

// Summarises the trace, and what is missing from it.
std::string Summary(const ferry::v1::GetStepsResponse& steps, const std::string& output) {
  int nodes = 0;
  int workers = 0;
  std::string notes;
  for (int i = 1; i < steps.processes_size(); ++i) {
    const ferry::v1::TraceProcess& process = steps.processes(i);
    const std::string name = Printable(process.name());
    if (!process.missing().empty()) {
      absl::StrAppend(&notes, "  ", name, ": ", Printable(process.missing()), "\n");
      continue;
    }
    ++workers;
    if (process.kept() == 0) {
      absl::StrAppend(&notes, "  ", name, " keeps no steps (--trace-steps=0)\n");
    }
    for (const auto& step : process.steps()) nodes += step.events_size();
    if (process.error_ns() > 0) {
      absl::StrAppend(&notes, "  ", name, ": its clock is ", process.offset_ns() / -1000,
                      "us ahead, known to ", process.error_ns() / 1000 + 1, "us\n");
    }
  }
  return absl::StrCat("ferry trace: ", Count(steps.processes(0).steps_size(), "step"), ", ",
                      Count(nodes, "node"), " at ", Count(workers, "worker"), ", in ",
                      Printable(output), "; ui.perfetto.dev or chrome://tracing shows it\n", notes);
}

absl::StatusOr<int> Trace(const TraceFlags& flags) {
  const Progress progress(absl::StrCat("waiting for the last steps of ", flags.coordinator));
  FERRY_ASSIGN_OR_RETURN(const ferry::v1::GetStepsResponse steps,
                         FetchSteps(flags.coordinator, flags.last));
  if (steps.processes_size() == 0) return absl::InternalError("the answer has no master in it");
  const ferry::v1::TraceProcess& master = steps.processes(0);
  if (master.kept() == 0) {
    return absl::FailedPreconditionError(
        "the coordinator keeps no steps: start it without --trace-steps=0");
  }
  if (master.steps_size() == 0) {
    return absl::NotFoundError("no step has been run yet by this coordinator's sessions");
  }
  FERRY_RETURN_IF_ERROR(WriteFile(flags.output, ChromeTrace(steps)));
  if (flags.output != "-") std::fputs(Summary(steps, flags.output).c_str(), stdout);
  return kDone;
}

}  // namespace

Verb AddTraceVerb(CLI::App& app) {
  auto flags = std::make_shared<TraceFlags>();
  CLI::App& verb = *app.add_subcommand(
      "trace", "Export the last steps of TensorFlow clients as a trace for a browser");
  verb.footer(
      "  ferry trace --last=3 --coordinator=HOST:9470 -o steps.json\n"
      "Nodes, sends and receives of each worker by device and thread, with bytes, transports and\n"
      "waits, and arrows from sends to receives; times are the coordinator's. It shows in\n"
      "ui.perfetto.dev and chrome://tracing.");
  AddNumber(verb, "--last", flags->last, "how many steps", 1, 100'000)
      ->type_name("K")
      ->expected(0, 1);
  verb.add_option("-o,--output", flags->output, "where to; - is stdout")
      ->type_name("FILE")
      ->required();
  AddCoordinatorFlag(verb, flags->coordinator);
  return [flags]() -> absl::StatusOr<int> {
    if (flags->coordinator.empty()) {
      return absl::InvalidArgumentError(
          "which coordinator? Say --coordinator=HOST:PORT or set FERRY_COORDINATOR");
    }
    FERRY_RETURN_IF_ERROR(CheckAddress("--coordinator", flags->coordinator));
    absl::StatusOr<int> status = Trace(*flags);
    if (status.ok()) return status;
    return absl::Status(AsFailure(status.status()).code(),
                        absl::StrCat("trace: ", status.status().message()));
  };
}

}  // namespace ferry::cli
