// SPDX-License-Identifier: Apache-2.0
// The ferry tool: dispatches to one file per verb.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"

#include "base/logging.h"
#include "cli/output.h"
#include "cli/quiet.h"
#include "cli/verb.h"
#include "cli/version.h"
#include "launch/printable.h"

namespace ferry::cli {
namespace {

constexpr char kFooter[] =
    "\nTry:\n"
    "  ferry demo                                     see it all on this machine\n"
    "  ferry coordinator --nodes=2\n"
    "  ferry worker --coordinator=HOST:9470 --node-id=0 --num-nodes=2\n"
    "  ferry doctor                                   what this machine lacks for GPU jobs\n"
    "  ferry status --coordinator=HOST:9470           who is there, who waits for what\n"
    "  ferry run --nproc=4 -- python train.py         the processes of a job\n"
    "Exit status: 0 done; 1 failed, with one line on stderr; 2 wrong usage.";

// Returns "ferry kv get", as far as the command line was parsed.
std::string Path(const CLI::App& app) {
  std::string path = "ferry";
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    path += " " + at->get_name();
  }
  return path;
}

// Describes the error in the command line.
std::string What(const CLI::App& app, const CLI::ParseError& error) {
  std::string what = error.what();
  if (what != "A subcommand is required" && !app.get_subcommands().empty()) return what;
  const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
  if (unknown.empty()) return "say what to do";
  return "there is no verb or flag " + unknown.front();
}

// Returns an error about the first `--flag=value` that CLI11 would misread, or an empty string.
// CLI11 takes the next argument as the value of --coordinator=$UNSET, and --json=- as a disabled
// flag.
std::string FindMisreadFlag(const CLI::App& app, int argc, char** argv) {
  const CLI::App* verb = &app;
  std::string path = "ferry";
  const auto see = [&path] { return "; see " + path + " --help"; };
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--") break;
    if (absl::StartsWith(argument, "-")) {
      const size_t equals = argument.find('=');
      if (equals == argument.npos) continue;
      if (equals == argument.size() - 1) return argument + " has no value" + see();
      const std::string flag = argument.substr(0, equals);
      const CLI::Option* const option = verb->get_option_no_throw(flag);
      if (option == nullptr || option->get_items_expected_max() > 0) continue;
      if (flag != "--json" && flag != "--csv") return flag + " takes no value" + see();
      return flag + " takes no value: it prints, so say " + flag + " >FILE" + see();
    }
    const std::vector<const CLI::App*> verbs = verb->get_subcommands(
        [&argument](const CLI::App* candidate) { return candidate->get_name() == argument; });
    if (!verbs.empty()) {
      verb = verbs.front();
      path += " " + argument;
      continue;
    }
    if (verb->get_name() != "run") continue;
    // This is the user's command, which may have such flags, unless it is the value of the flag
    // before.
    const CLI::Option* const before = verb->get_option_no_throw(argv[i - 1]);
    if (before == nullptr || before->get_items_expected_max() == 0) break;
  }
  return "";
}

// ferry help [VERB]
Verb AddHelpVerb(CLI::App& app) {
  auto name = std::make_shared<std::string>();
  CLI::App& verb = *app.add_subcommand("help", "Say what a verb does and which flags it has");
  verb.add_option("verb", *name, "which one; all of them in short if none")->type_name("VERB");
  return [name, &app]() -> absl::StatusOr<int> {
    const CLI::App* found = &app;
    if (!name->empty()) {
      // get_subcommand(name) would throw if there is none.
      const std::vector<CLI::App*> matches = app.get_subcommands(
          [&name](const CLI::App* candidate) { return candidate->get_name() == *name; });
      if (matches.empty()) return absl::InvalidArgumentError("there is no verb " + *name);
      found = matches.front();
    }
    // help() would describe the verb on the command line, which is this one.
    const std::string called = name->empty() ? "ferry" : "ferry " + *name;
    std::fputs(found->get_formatter()->make_help(found, called, CLI::AppFormatMode::Normal).c_str(),
               stdout);
    return kDone;
  };
}

// Allocation may fail on any thread; abort would leave a core file and no reason.
[[noreturn]] void EndOutOfMemory() {
  constexpr char kLine[] = "ferry: out of memory\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kLine, sizeof(kLine) - 1);
  _exit(kFailed);
}

// Reports an uncaught exception, such as a failure to create a thread, in one line and without a
// core file.
[[noreturn]] void EndWithReason() {
  char line[512] = "ferry: ended by an uncaught error\n";
  if (const std::exception_ptr thrown = std::current_exception()) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& error) {
      std::snprintf(line, sizeof(line), "ferry: %s\n", error.what());
    } catch (...) {
    }
  }
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line, std::strlen(line));
  _exit(kFailed);
}

// Verbs that other processes rely on must survive the loss of their output's reader. All others end
// silently by SIGPIPE, as do the programs started by ferry run.
bool OutlivesItsReader(const std::string& name) {
  return name == "coordinator" || name == "worker" || name == "demo-worker";
}

// Splits the command line of `ferry run` at its first "--" and returns the rest: it belongs to the
// command, and CLI11 would parse flags in it.
std::vector<std::string> TakeAfterDashes(int& argc, char** argv) {
  if (argc < 2 || std::string(argv[1]) != "run") return {};
  char** const dashes = std::find(argv, argv + argc, std::string("--"));
  std::vector<std::string> rest(dashes, argv + argc);
  argc -= static_cast<int>(rest.size());
  return rest;
}

// A full disk is detected here at the latest.
int EndOutput() {
  const absl::Status written = FlushOutput();
  if (written.ok()) return kDone;
  PrintError(std::string(written.message()));
  return kFailed;
}

int Main(int argc, char** argv) {
  std::set_new_handler(EndOutOfMemory);
  std::set_terminate(EndWithReason);
  SilenceGrpcLog();
  CLI::App app{"Bootstraps GPU jobs over many machines and moves tensors between their devices.",
               "ferry"};
  app.set_version_flag("--version", std::string("ferry ") + kVersion);
  app.require_subcommand(1);
  std::map<std::string, Verb> verbs;
  verbs["coordinator"] = AddCoordinatorVerb(app);
  verbs["worker"] = AddWorkerVerb(app);
  verbs["run"] = AddRunVerb(app, TakeAfterDashes(argc, argv));
  verbs["status"] = AddStatusVerb(app);
  verbs["reset"] = AddResetVerb(app);
  verbs["kv"] = AddKvVerb(app);
  verbs["topo"] = AddTopoVerb(app);
  verbs["doctor"] = AddDoctorVerb(app);
  verbs["send"] = AddSendVerb(app);
  verbs["recv"] = AddRecvVerb(app);
  verbs["bench"] = AddBenchVerb(app);
  verbs["step"] = AddStepVerb(app);
  verbs["trace"] = AddTraceVerb(app);
  verbs["demo"] = AddDemoVerb(app);
  verbs["help"] = AddHelpVerb(app);
  verbs["demo-worker"] = AddDemoWorkerVerb(app);
  verbs["bench-worker"] = AddBenchWorkerVerb(app);
  verbs["bench-floor"] = AddBenchFloorVerb(app);
  verbs["doctor-helper"] = AddDoctorHelperVerb(app);
  // Set last, because verbs inherit it.
  app.footer(kFooter);
  if (const std::string misread = FindMisreadFlag(app, argc, argv); !misread.empty()) {
    PrintError(misread);
    return kUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      // --help and --version. Not to std::cout directly, which does not report why it failed.
      std::ostringstream text;
      app.exit(error, text, text);
      std::fputs(text.str().c_str(), stdout);
      return EndOutput();
    }
    PrintError(What(app, error) + "; see " + Path(app) + " --help");
    return kUsage;
  }
  const std::string name = app.get_subcommands().front()->get_name();
  if (OutlivesItsReader(name)) std::signal(SIGPIPE, SIG_IGN);
  // Turns exceeding the file size limit (ulimit -f) into a write error. Not for `ferry run`, whose
  // processes would inherit it.
  if (name != "run") std::signal(SIGXFSZ, SIG_IGN);
  FERRY_LOG_DEBUG(kCli, "ferry {} {} begins", kVersion, name);
  const absl::StatusOr<int> status = verbs[name]();
  FERRY_LOG_DEBUG(kCli, "ferry {} ends: {}", name, status.status());
  if (!status.ok()) {
    if (!IsErrorPrinted(status.status())) PrintError(Printable(status.status().message()));
    return absl::IsInvalidArgument(status.status()) ? kUsage : kFailed;
  }
  if (*status != kDone || OutlivesItsReader(name)) return *status;
  return EndOutput();
}

}  // namespace
}  // namespace ferry::cli

int main(int argc, char** argv) {
  // Ferry reports what hwloc cannot find, with its consequences (topology/host_discovery); hwloc's
  // own warnings, for example in containers without /sys, would only add noise.
  setenv("HWLOC_HIDE_ERRORS", "2", /*overwrite=*/0);
  // Debian builds Abseil with deadlock detection enabled: every lock in the process, including
  // gRPC's, then takes a global lock, which makes two threads ten times slower than one.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return ferry::cli::Main(argc, argv);
}
