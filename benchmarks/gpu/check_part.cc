// SPDX-License-Identifier: Apache-2.0
// The list of parts, and how they report their results to their parent.
#include "benchmarks/gpu/check_part.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/time/clock.h"

#include "base/status_macros.h"
#include "benchmarks/gpu/check_nodes.h"

namespace ferry::check {
namespace {

// A message of the socket; the writer truncates longer ones.
constexpr size_t kMaxText = 8000;

// The leftovers of the part that hangs end by themselves then.
constexpr unsigned kOrphanSeconds = 300;

std::string Cut(absl::string_view text) {
  if (text.size() <= kMaxText) return std::string(text);
  return std::string(text.substr(0, kMaxText)) + " ...";
}

// Parts that hang, crash and fail, with some results before: for tests of this program.
absl::Status Hang(PartContext& context) {
  const pid_t child = fork();
  if (child > 0) {
    context.report.Fact("child", child);
    context.report.Check("before it hangs", absl::OkStatus());
  } else {
    // In case no process is left to kill it with its part.
    alarm(kOrphanSeconds);
  }
  while (true) absl::SleepFor(absl::Hours(1));
}

absl::Status Crash(PartContext& context) {
  context.report.Check("before it crashes", absl::OkStatus());
  std::fprintf(stderr, "the last words of a part\n");
  std::abort();
}

absl::Status Fail(PartContext& context) {
  context.report.Check("what is wrong", absl::InternalError("on purpose"));
  return absl::OkStatus();
}

// Compares the sent bytes with others.
absl::Status CompareWithAnother(PartContext& context) {
  NodesOptions options;
  options.name = "another pattern";
  options.transfer = TransferOptionsFor(context.machine);
  return RunNodes(context, options, {[](CheckNode& self) -> absl::Status {
                    Figure figure;
                    figure.name = "compared with another pattern";
                    figure.bytes = 1000;
                    figure.ferry.Add(absl::Microseconds(1));
                    FERRY_ASSIGN_OR_RETURN(const Tensor tensor, self.Pattern(figure.bytes, 1));
                    FERRY_ASSIGN_OR_RETURN(figure.wrong_bytes, self.CountWrong(tensor, 2));
                    self.report().Figure(FigureJson(figure));
                    return absl::OkStatus();
                  }})
      .status();
}

}  // namespace

void Reporter::Say(const Json& line) {
  const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (send(fd_, text.data(), text.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(text.size())) {
    std::fprintf(stderr, "cannot report %s\n", text.c_str());
    std::_Exit(2);
  }
}

void Reporter::Check(absl::string_view name, const absl::Status& status, Json details) {
  Json check = {{"name", std::string(name)}, {"status", status.ok() ? "passed" : "failed"}};
  if (!status.ok()) check["reason"] = Cut(status.ToString());
  if (!details.empty()) check["details"] = std::move(details);
  Say({{"check", std::move(check)}});
}

void Reporter::SkipCheck(absl::string_view name, absl::string_view reason) {
  Say({{"check", {{"name", std::string(name)}, {"status", "skipped"}, {"reason", Cut(reason)}}}});
}

void Reporter::SkipPart(absl::string_view reason) { Say({{"skip", Cut(reason)}}); }

void Reporter::Note(absl::string_view text) { Say({{"note", Cut(text)}}); }

void Reporter::Fact(absl::string_view key, Json value) {
  if (value.is_string()) value = Cut(value.get<std::string>());
  Say({{"fact", {{"key", std::string(key)}, {"value", std::move(value)}}}});
}

void Reporter::Figure(Json figure) { Say({{"figure", std::move(figure)}}); }

const std::vector<Part>& AllParts() {
  static const auto* const parts = new std::vector<Part>{
      {"machine", "devices and versions", absl::Seconds(40), false, RunMachinePart},
      // First what is least certain of a real driver and of NCCL, so that a run that ends early has
      // told the most: other processes' memory and events, tensors that are not complete, memory of
      // every kind, dead peers, NCCL between processes.
      {"ipc", "two processes on one GPU by CUDA IPC: view, copy, staged", absl::Seconds(40), true,
       RunIpcPart},
      {"running", "a tensor whose kernel still runs when it is sent", absl::Seconds(30), true,
       RunRunningPart},
      {"foreign", "memory of every kind", absl::Seconds(40), true, RunForeignPart},
      {"failures", "a peer that is killed, a deadline", absl::Seconds(60), true, RunFailuresPart},
      {"nccl_self", "NCCL: one rank sends to itself", absl::Seconds(30), true, RunNcclSelfPart},
      {"nccl_shared_gpu", "NCCL: two processes on one GPU; whether it works, not how fast",
       absl::Seconds(60), true, RunNcclSharedGpuPart},
      {"several_gpus", "two GPUs: copies within a process, CUDA IPC and NCCL", absl::Seconds(60),
       true, RunSeveralGpusPart},
      {"nccl_turns", "NCCL: a program's collectives beside keyed transfers, by turns",
       absl::Seconds(50), true, RunNcclTurnsPart},
      {"memory", "no memory left", absl::Seconds(30), true, RunMemoryFailuresPart},
      {"leaks", "the same again and again: memory and descriptors", absl::Seconds(40), true,
       RunLeaksPart},
      // Figures.
      {"latency", "figures: hand-off by CUDA IPC", absl::Seconds(60), true, RunLatencyPart},
      {"launch", "figures: what a transfer costs its caller", absl::Seconds(30), true,
       RunLaunchPart},
      {"copy", "figures: copy by CUDA IPC into the receiver's memory", absl::Seconds(60), true,
       RunCopyPart},
      {"staged", "figures: through host memory", absl::Seconds(60), true, RunStagedPart},
      {"nccl_keyed", "figures: keyed transfers over NCCL beside raw ncclSend and ncclRecv",
       absl::Seconds(75), true, RunNcclKeyedPart},
      // After the measurements, so that it takes no time from them.
      {"tests", "the test programs that need no fake driver", absl::Seconds(240), true,
       RunTestsPart},
      {"_hang", "hangs", absl::Seconds(2), false, Hang, true},
      {"_crash", "crashes", absl::Seconds(10), false, Crash, true},
      {"_fail", "fails", absl::Seconds(10), false, Fail, true},
      {"_wrong", "finds wrong bytes", absl::Seconds(10), true, CompareWithAnother, true},
  };
  return *parts;
}

}  // namespace ferry::check
