// SPDX-License-Identifier: Apache-2.0
// ferry status: which nodes are present or missing, and who waits for what.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/non_blocking_writer.h"
#include "base/status_macros.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "cli/status_pending.h"
#include "cli/status_text.h"
#include "cli/status_watch.h"
#include "cli/tool_agent.h"
#include "cli/verb.h"

namespace ferry::cli {
namespace {

// Longer tables do not fit on a screen.
constexpr size_t kMaxLines = 40;
// Timeout for nodes that hang.
constexpr absl::Duration kAnswerTimeout = absl::Seconds(1);

struct StatusFlags {
  std::string coordinator;
  bool json = false;
  bool watch = false;
  bool all = false;
  bool pending = false;
};

// Limit on the nodes queried about tensors.
size_t MaxAsked(const StatusFlags& flags) {
  return flags.all ? std::numeric_limits<size_t>::max() : kMaxAskedNodes;
}

size_t MaxLines(const StatusFlags& flags) {
  return flags.all ? std::numeric_limits<size_t>::max() : kMaxLines;
}

std::string Format(const JobView& view, const StatusFlags& flags) {
  if (flags.json) return FormatStatusJson(view, flags.coordinator);
  return FormatStatusText(view, flags.coordinator, MaxLines(flags));
}

absl::StatusOr<int> Watch(std::unique_ptr<coord::Agent> agent, const StatusFlags& flags,
                          BlockedSignals& signals) {
  StatusWatch watch(flags.coordinator, std::move(agent), signals, MaxAsked(flags));
  NonBlockingWriter output(stdout, WakingOutput(signals));
  const bool on_terminal = isatty(STDOUT_FILENO) == 1;
  for (bool is_first = true;; is_first = false) {
    FERRY_ASSIGN_OR_RETURN(const JobView view, watch.Next());
    std::string text = Format(view, flags);
    if (on_terminal) {
      // Cursor home and clear, in the same write: the screen never shows half a table.
      text.insert(0, "\033[H\033[2J");
    } else if (!is_first && !flags.json) {
      text.insert(0, "\n");
    }
    // If this one has not been read yet, drop the next.
    output.Append(text);
    FERRY_ASSIGN_OR_RETURN(const bool is_interrupted,
                           DrainOutput(output, signals, absl::InfiniteDuration()));
    if (is_interrupted || signals.WaitFor(absl::Seconds(1))) return kDone;
  }
}

absl::StatusOr<int> ShowStatus(const StatusFlags& flags) {
  std::optional<BlockedSignals> signals;
  if (flags.watch) {
    signals.emplace(std::initializer_list<int>{SIGINT, SIGTERM},
                    EndAfterSignal{.exit_status = kDone});
  }
  FERRY_ASSIGN_OR_RETURN(std::unique_ptr<coord::Agent> agent, ConnectTool(flags.coordinator));
  if (signals) return Watch(std::move(agent), flags, *signals);
  if (flags.pending) {
    FERRY_ASSIGN_OR_RETURN(const PendingAnswers answers, AskPending(*agent));
    const std::string text =
        flags.json ? FormatPendingJson(answers) : FormatPendingText(answers, MaxLines(flags));
    std::fputs(text.c_str(), stdout);
    return kDone;
  }
  JobView view;
  FERRY_ASSIGN_OR_RETURN(view.status, agent->Status());
  view.transfers = AskTransferReports(*agent, kAnswerTimeout, MaxAsked(flags));
  std::fputs(Format(view, flags).c_str(), stdout);
  return kDone;
}

}  // namespace

Verb AddStatusVerb(CLI::App& app) {
  auto flags = std::make_shared<StatusFlags>();
  CLI::App& verb =
      *app.add_subcommand("status", "Show a job's members, missing nodes and pending waits");
  AddCoordinatorFlag(verb, flags->coordinator);
  verb.add_flag("--json", flags->json, "for programs");
  CLI::Option* watch =
      verb.add_flag("--watch", flags->watch, "refresh every second, until interrupted");
  verb.add_flag("--all", flags->all, "a line for each node, however many there are");
  verb.add_flag("--pending", flags->pending,
                "instead: every send and receive that has waited for over a second")
      ->excludes(watch);
  return [flags]() { return ShowStatus(*flags); };
}

}  // namespace ferry::cli
