// SPDX-License-Identifier: Apache-2.0
// ferry step: runs a step of a TensorFlow graph repeatedly, and reports timings.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/thread.h"
#include "cli/progress.h"
#include "cli/signals.h"
#include "cli/step_graph_proto.h"
#include "cli/step_report.h"
#include "cli/step_session.h"
#include "cli/temporary_job.h"
#include "cli/tensor_literal.h"
#include "cli/verb.h"

namespace ferry::cli {
namespace {

// Steps and empty calls alternate in batches of this size.
constexpr int kTurn = 50;
constexpr absl::Duration kLeastTimeout = absl::Milliseconds(1);

struct StepFlags {
  std::string coordinator;
  std::string graph;
  std::vector<std::string> feeds;
  std::vector<std::string> fetches;
  std::vector<std::string> targets;
  int count = 100;
  int warm_ups = 10;
  int concurrency = 1;
  int workers = 2;
  bool soft_placement = false;
  absl::Duration timeout = absl::Minutes(1);
  bool json = false;
};

// Parses "x=[1, 2]" or "x=@file".
absl::StatusOr<std::pair<std::string, Tensor>> ReadFeed(const StepGraph& graph,
                                                        const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--feed: ", Quoted(text), " is not NAME=VALUE or NAME=@FILE"));
  }
  const std::string name = text.substr(0, equals);
  absl::string_view value = absl::string_view(text).substr(equals + 1);
  const auto about = [&name](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat("--feed=", name, ": ", status.message()));
  };
  const absl::StatusOr<WantedTensor> wanted = graph.Output(name);
  if (!wanted.ok()) return about(wanted.status());
  absl::StatusOr<Tensor> tensor = absl::ConsumePrefix(&value, "@")
                                      ? ReadTensorFile(std::string(value), *wanted)
                                      : ParseTensor(value, *wanted);
  if (!tensor.ok()) return about(tensor.status());
  return std::make_pair(name, *std::move(tensor));
}

absl::StatusOr<StepRequest> ReadRequest(const StepFlags& flags, const StepGraph& graph) {
  if (flags.fetches.empty() && flags.targets.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "say what to run, --fetch=NAME or --target=NAME; the graph has ", graph.SomeNodes()));
  }
  StepRequest request;
  request.timeout = flags.timeout;
  request.fetches = flags.fetches;
  request.targets = flags.targets;
  for (const std::string& text : flags.feeds) {
    FERRY_ASSIGN_OR_RETURN(auto feed, ReadFeed(graph, text));
    request.feeds.push_back(std::move(feed));
  }
  for (const std::string& name : flags.fetches) {
    if (const auto output = graph.Output(name); !output.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--fetch: ", output.status().message()));
    }
  }
  for (const std::string& name : flags.targets) {
    if (const absl::Status status = graph.CheckNode(name); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--target: ", status.message()));
    }
  }
  return request;
}

// Times of steps, added by several threads. Thread-safe.
class Samples final {
 public:
  void Add(const std::vector<absl::Duration>& samples, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    samples_.insert(samples_.end(), samples.begin(), samples.end());
    if (status_.ok()) status_ = status;
  }
  absl::StatusOr<std::vector<absl::Duration>> Take() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (!status_.ok()) return status_;
    return std::move(samples_);
  }

 private:
  absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  std::vector<absl::Duration> samples_ ABSL_GUARDED_BY(mu_);
};

// Returns the durations of `count` calls.
template <typename Call>
absl::Status Time(int count, Call call, std::vector<absl::Duration>& samples) {
  for (int i = 0; i < count; ++i) {
    const absl::Time start = SteadyClock().Now();
    FERRY_RETURN_IF_ERROR(call());
    samples.push_back(SteadyClock().Now() - start);
  }
  return absl::OkStatus();
}

// One at a time, alternating with empty calls if the server supports them: TensorFlow's do not.
absl::Status MeasureInTurns(StepSession& session, bool has_pings, StepReport& report) {
  std::vector<absl::Duration> steps;
  std::vector<absl::Duration> pings;
  absl::Duration taken;
  for (int done = 0; done < report.count;) {
    const int turn = std::min(kTurn, report.count - done);
    const absl::Time start = SteadyClock().Now();
    FERRY_RETURN_IF_ERROR(Time(
        turn, [&session] { return session.Run(); }, steps));
    taken += SteadyClock().Now() - start;
    if (has_pings) {
      FERRY_RETURN_IF_ERROR(Time(
          turn, [&session] { return session.Ping(); }, pings));
    }
    done += turn;
  }
  report.step = SummarizeStepTimes(std::move(steps));
  if (has_pings) report.ping = SummarizeStepTimes(std::move(pings));
  report.steps_per_s = report.count / absl::ToDoubleSeconds(taken);
  return absl::OkStatus();
}

absl::Status MeasureAtOnce(StepSession& session, StepReport& report) {
  std::atomic<int> left = report.count;
  Samples all;
  const absl::Time start = SteadyClock().Now();
  {
    std::vector<std::unique_ptr<Thread>> threads;
    for (int i = 0; i < report.concurrency; ++i) {
      threads.push_back(std::make_unique<Thread>(absl::StrCat("ferry-step-", i), [&] {
        std::vector<absl::Duration> samples;
        absl::Status status;
        while (status.ok() && left.fetch_sub(1) > 0) {
          status = Time(
              1, [&session] { return session.Run(); }, samples);
        }
        // Stop the other threads too.
        if (!status.ok()) left = 0;
        all.Add(samples, status);
      }));
    }
  }
  const absl::Duration taken = SteadyClock().Now() - start;
  FERRY_ASSIGN_OR_RETURN(std::vector<absl::Duration> samples, all.Take());
  report.step = SummarizeStepTimes(std::move(samples));
  report.steps_per_s = report.count / absl::ToDoubleSeconds(taken);
  return absl::OkStatus();
}

absl::Status Measure(StepSession& session, int warm_ups, StepReport& report) {
  FERRY_ASSIGN_OR_RETURN(report.first, session.RunTraced());
  const absl::Status ping = session.Ping();
  const bool has_pings = !absl::IsUnimplemented(ping);
  if (has_pings) FERRY_RETURN_IF_ERROR(ping);
  for (int i = 0; i < warm_ups; ++i) {
    FERRY_RETURN_IF_ERROR(session.Run());
    if (has_pings) FERRY_RETURN_IF_ERROR(session.Ping());
  }
  return report.concurrency == 1 ? MeasureInTurns(session, has_pings, report)
                                 : MeasureAtOnce(session, report);
}

// Runs on a thread of its own so that signals can be handled. Opening the session cannot be
// cancelled: a signal then ends the process, see EndAfterSignal.
absl::Status MeasureStoppably(
    const std::function<absl::StatusOr<std::unique_ptr<StepSession>>()>& open,
    BlockedSignals& signals, int warm_ups, StepReport& report) {
  std::atomic<bool> is_over = false;
  // Created and owned by the thread; this one can cancel it.
  absl::Mutex mu;
  std::unique_ptr<StepSession> session;
  absl::Status result;
  std::optional<int> stopped_by;
  {
    Thread thread("ferry-work", [&] {
      absl::StatusOr<std::unique_ptr<StepSession>> opened = open();
      result = opened.status();
      if (opened.ok()) {
        {
          absl::MutexLock lock(&mu);
          session = *std::move(opened);
        }
        result = Measure(*session, warm_ups, report);
      }
      is_over = true;
      signals.Wake();
    });
    while (!is_over) {
      const std::optional<int> signal = signals.WaitFor(absl::InfiniteDuration());
      if (!signal.has_value()) continue;
      stopped_by = signal;
      absl::MutexLock lock(&mu);
      if (session != nullptr) session->Cancel();
    }
  }
  if (stopped_by.has_value() && !result.ok()) {
    return absl::CancelledError(absl::StrCat("stopped by ", SignalName(*stopped_by)));
  }
  return result;
}

absl::StatusOr<int> RunSteps(StepFlags& flags) {
  int readers = flags.graph == "-" ? 1 : 0;
  for (const std::string& feed : flags.feeds) readers += absl::EndsWith(feed, "=@-") ? 1 : 0;
  if (readers > 1) {
    return absl::InvalidArgumentError("--graph, --feed: - is stdin, which can be only one of them");
  }
  absl::StatusOr<StepGraph> graph = StepGraph::Read(flags.graph);
  if (!graph.ok()) return AsFailure(graph.status());
  FERRY_ASSIGN_OR_RETURN(StepRequest request, ReadRequest(flags, *graph));
  std::unique_ptr<TemporaryJob> job;
  // A signal in the meantime ends this process and its children.
  if (flags.coordinator.empty()) {
    FERRY_ASSIGN_OR_RETURN(job, TemporaryJob::Start(flags.workers));
    flags.coordinator = job->coordinator();
  }
  BlockedSignals signals({SIGINT, SIGTERM, SIGHUP}, EndAfterSignal());
  StepReport report;
  report.coordinator = job == nullptr ? flags.coordinator : "";
  report.nodes_in_graph = graph->node_count();
  report.count = flags.count;
  report.concurrency = flags.concurrency;
  {
    const Progress progress(absl::StrCat("waiting for steps at ", flags.coordinator));
    FERRY_RETURN_IF_ERROR(AsFailure(MeasureStoppably(
        [&] {
          return StepSession::Open(flags.coordinator, *graph, std::move(request),
                                   flags.soft_placement, flags.timeout);
        },
        signals, flags.warm_ups, report)));
  }
  const std::string text = flags.json ? FormatStepJson(report) : FormatStepText(report);
  std::fputs(text.c_str(), stdout);
  return kDone;
}

}  // namespace

Verb AddStepVerb(CLI::App& app) {
  auto flags = std::make_shared<StepFlags>();
  CLI::App& verb = *app.add_subcommand(
      "step", "Run a step of a TensorFlow graph on a job's workers, and measure it");
  verb.footer(
      "  ferry step --graph=examples/crossing.pbtxt --feed='x=[1, 2]' --fetch=z\n"
      "Without --coordinator it starts a coordinator and workers of its own. A value is a number,\n"
      "a list of lists, true, false or a text; @FILE is one of NumPy's (.npy), or holds the\n"
      "elements as they are in memory. Nodes are pinned as /job:worker/task:N/device:CPU:0.\n"
      "Fetched outputs are printed for the first step, which is not timed.");
  verb.add_option("--graph", flags->graph, "a GraphDef, as text or bytes; - is stdin")
      ->type_name("FILE")
      ->required();
  verb.add_option("--feed", flags->feeds, "value of a node's output; may be repeated")
      ->type_name("NAME=VALUE|NAME=@FILE")
      ->allow_extra_args(false);
  verb.add_option("--fetch", flags->fetches, "an output to fetch: node or node:1")
      ->type_name("NAME")
      ->allow_extra_args(false);
  verb.add_option("--target", flags->targets, "a node to run without fetching its output")
      ->type_name("NAME")
      ->allow_extra_args(false);
  AddNumber(verb, "--count", flags->count, "number of timed steps", 1, 100'000'000);
  AddNumber(verb, "--warmup", flags->warm_ups, "steps before them, after the first", 0, 1'000'000);
  AddNumber(verb, "--concurrency", flags->concurrency, "concurrent steps", 1, 1024)->type_name("K");
  CLI::Option* const coordinator =
      AddCoordinatorFlag(verb, flags->coordinator)
          ->description("where the coordinator listens; starts a job of its own if there is none");
  AddNumber(verb, "--workers", flags->workers, "of a job of its own", 1, 64)
      ->excludes("--coordinator");
  verb.add_flag("--soft-placement", flags->soft_placement,
                "nodes run elsewhere if they cannot where they are pinned");
  AddDuration(verb, "--timeout", flags->timeout, "limit on one step, and on waiting for workers",
              kLeastTimeout);
  verb.add_flag("--json", flags->json, "for programs");
  return [flags, coordinator]() -> absl::StatusOr<int> {
    if (coordinator->count() > 0) {
      FERRY_RETURN_IF_ERROR(CheckAddress("--coordinator", flags->coordinator));
    }
    absl::StatusOr<int> status = RunSteps(*flags);
    if (status.ok()) return status;
    return absl::Status(status.status().code(), absl::StrCat("step: ", status.status().message()));
  };
}

}  // namespace ferry::cli
