// SPDX-License-Identifier: Apache-2.0
// ferry kv: the key-value store of a running job, from the command line.
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "base/non_blocking_writer.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/record_text_proto.h"
#include "cli/signals.h"
#include "cli/table.h"
#include "cli/tool_agent.h"
#include "cli/verb.h"
#include "coord/core/options.h"
#include "launch/printable.h"

namespace ferry::cli {
namespace {

// Longest value shown on a line of `kv watch` and `kv ls --long`.
constexpr size_t kMaxShownBytes = 120;
// How long the reader of a finished watch may pause.
constexpr absl::Duration kReaderTimeout = absl::Seconds(1);

struct KvFlags {
  std::string coordinator;
  std::string key;
  std::string value;
  std::string prefix;
  // A PyTorch store; none: the coordinator's own store.
  std::optional<std::string> scope;
  absl::Duration timeout = absl::Seconds(10);
  bool is_not_waiting = false;
  bool is_text = false;
  bool overwrite = false;
  bool recursive = false;
  bool is_long = false;
};

// The name of --scope for the store of the coordinator's own port.
constexpr char kSharedScope[] = "shared";

absl::StatusOr<std::vector<coord::KeyValue>> ListScope(coord::Agent& agent, const KvFlags& flags,
                                                       const std::string& prefix, bool keys_only,
                                                       int64_t limit = 0) {
  auto entries =
      agent.ListStore(*flags.scope == kSharedScope ? "" : *flags.scope, prefix, keys_only, limit);
  if (!absl::IsUnimplemented(entries.status())) return entries;
  return absl::UnimplementedError(absl::StrCat("the coordinator at ", flags.coordinator,
                                               " is of a version without PyTorch stores"));
}

absl::StatusOr<std::string> GetFromScope(coord::Agent& agent, const KvFlags& flags) {
  // Keys that begin with it come behind it.
  FERRY_ASSIGN_OR_RETURN(const std::vector<coord::KeyValue> entries,
                         ListScope(agent, flags, flags.key, /*keys_only=*/false, /*limit=*/1));
  if (entries.empty() || entries[0].key != flags.key) {
    return absl::NotFoundError(absl::StrCat("key ", Quoted(flags.key), " is not there"));
  }
  return entries[0].value;
}

absl::StatusOr<int> Get(const KvFlags& flags) {
  FERRY_ASSIGN_OR_RETURN(const auto agent, ConnectTool(flags.coordinator));
  absl::StatusOr<std::string> value;
  if (flags.scope.has_value()) {
    value = GetFromScope(*agent, flags);
  } else if (flags.is_not_waiting) {
    value = agent->TryGet(flags.key);
  } else {
    const Progress progress(absl::StrCat("waiting for key ", Quoted(flags.key)));
    value = agent->Get(flags.key, flags.timeout);
  }
  if (flags.is_not_waiting && !flags.scope.has_value() && absl::IsNotFound(value.status())) {
    return absl::NotFoundError(absl::StrCat("key ", Quoted(flags.key), " is not there"));
  }
  if (!value.ok()) return AsFailure(value.status());
  // A value may be binary, and have sequences that control a terminal.
  if (flags.is_text || isatty(STDOUT_FILENO) == 1) {
    *value = ValueText(flags.key, *value);
    if (value->empty() || value->back() != '\n') value->push_back('\n');
  }
  std::fwrite(value->data(), 1, value->size(), stdout);
  return kDone;
}

// Limited to the coordinator's default maximum: stdin may be endless.
absl::StatusOr<std::string> ReadStdin() {
  const size_t max_bytes = coord::CoordinatorOptions().max_value_bytes;
  std::string bytes;
  char buffer[1 << 16];
  ssize_t count = 0;
  while ((count = read(STDIN_FILENO, buffer, sizeof(buffer))) != 0) {
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return absl::UnavailableError(absl::StrCat("cannot read stdin: ", std::strerror(errno)));
    }
    if (bytes.size() + count > max_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("stdin holds more than the largest value, ", max_bytes, " bytes"));
    }
    bytes.append(buffer, count);
  }
  return bytes;
}

absl::StatusOr<int> Set(KvFlags& flags) {
  if (flags.value == "-") {
    FERRY_ASSIGN_OR_RETURN(flags.value, ReadStdin());
  }
  FERRY_ASSIGN_OR_RETURN(const auto agent, ConnectTool(flags.coordinator));
  const absl::Status status = agent->Set(flags.key, flags.value, flags.overwrite);
  if (absl::IsAlreadyExists(status)) {
    return absl::AlreadyExistsError(
        absl::StrCat("key ", Quoted(flags.key), " is there already; --overwrite replaces it"));
  }
  if (!status.ok()) return AsFailure(status);
  return kDone;
}

absl::StatusOr<int> List(const KvFlags& flags) {
  FERRY_ASSIGN_OR_RETURN(const auto agent, ConnectTool(flags.coordinator));
  absl::StatusOr<std::vector<coord::KeyValue>> listed =
      flags.scope.has_value() ? ListScope(*agent, flags, flags.prefix, !flags.is_long)
                              : agent->List(flags.prefix, /*keys_only=*/!flags.is_long);
  if (!listed.ok()) return AsFailure(listed.status());
  const std::vector<coord::KeyValue>& entries = *listed;
  if (!flags.is_long) {
    for (const coord::KeyValue& entry : entries) std::printf("%s\n", Printable(entry.key).c_str());
    return kDone;
  }
  std::vector<std::vector<std::string>> rows = {{"KEY", "BYTES", "REVISION", "VALUE"}};
  for (const coord::KeyValue& entry : entries) {
    rows.push_back({Printable(entry.key), absl::StrCat(entry.value.size()),
                    absl::StrCat(entry.revision), Quoted(entry.value, kMaxShownBytes)});
  }
  std::fputs(FormatTable(rows).c_str(), stdout);
  return kDone;
}

absl::StatusOr<int> Remove(const KvFlags& flags) {
  FERRY_ASSIGN_OR_RETURN(const auto agent, ConnectTool(flags.coordinator));
  bool is_there = agent->TryGet(flags.key).ok();
  if (!is_there && flags.recursive) {
    FERRY_ASSIGN_OR_RETURN(const std::vector<coord::KeyValue> below,
                           agent->List(flags.key + "/", /*keys_only=*/true));
    is_there = !below.empty();
  }
  // Not an error for the coordinator, where deletion is idempotent; here it is, since the user may
  // have mistyped the key.
  if (!is_there) {
    return absl::NotFoundError(absl::StrCat("key ", Quoted(flags.key), " is not there"));
  }
  FERRY_RETURN_IF_ERROR(agent->Delete(flags.key, flags.recursive));
  return kDone;
}

// Records why a watch ended, from the agent's threads.
class Loss final {
 public:
  explicit Loss(BlockedSignals& signals) : signals_(signals) {}

  void Set(absl::Status status) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (status_.ok()) status_ = std::move(status);
    }
    signals_.Wake();
  }
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return status_;
  }

 private:
  BlockedSignals& signals_;
  mutable absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

absl::StatusOr<int> Watch(const KvFlags& flags) {
  // An interrupt is the normal end of a watch, even before it has started.
  BlockedSignals signals({SIGINT, SIGTERM}, EndAfterSignal{.exit_status = kDone});
  // Declared before the agent, whose threads use both.
  Loss loss(signals);
  NonBlockingWriter output(stdout, WakingOutput(signals));
  FERRY_ASSIGN_OR_RETURN(
      const auto agent, ConnectTool(flags.coordinator,
                                    [&loss](absl::Status status) { loss.Set(std::move(status)); }));
  const auto print = [&loss, &output](const coord::KeyChange& change) {
    std::string line = absl::StrCat(change.deleted ? "rm " : "set ", Printable(change.entry.key));
    if (!change.deleted) absl::StrAppend(&line, " ", Quoted(change.entry.value, kMaxShownBytes));
    if (output.Append(absl::StrCat(line, "\n"))) return;
    loss.Set(absl::ResourceExhaustedError(
        absl::StrCat("the output is read more slowly than keys change: ", output.waiting(),
                     " bytes wait; watch fewer keys")));
  };
  FERRY_ASSIGN_OR_RETURN(const auto watch, agent->Watch(flags.prefix, print));
  while (loss.status().ok()) {
    FERRY_ASSIGN_OR_RETURN(const bool is_interrupted,
                           WriteWaiting(output, signals, absl::InfiniteDuration()));
    if (is_interrupted) return kDone;
  }
  // Prints the remaining events, if the reader still reads.
  FERRY_RETURN_IF_ERROR(DrainOutput(output, signals, kReaderTimeout).status());
  const absl::Status lost = loss.status();
  if (output.waiting() == 0) return lost;
  return absl::Status(lost.code(), absl::StrCat(lost.message(), "; the last ", output.waiting(),
                                                " bytes of the output were not read"));
}

}  // namespace

Verb AddKvVerb(CLI::App& app) {
  auto flags = std::make_shared<KvFlags>();
  CLI::App& kv = *app.add_subcommand("kv", "Read and write the key-value store of a running job");
  kv.require_subcommand(1);
  std::map<const CLI::App*, absl::StatusOr<int> (*)(KvFlags&)> actions;
  const auto add = [&kv, &flags](const char* name, const char* description) {
    CLI::App& action = *kv.add_subcommand(name, description);
    AddCoordinatorFlag(action, flags->coordinator);
    return &action;
  };

  const auto add_scope = [&flags](CLI::App& action) {
    return action
        .add_option("--scope", flags->scope,
                    "a PyTorch store of the coordinator, as ferry status names it, instead of the "
                    "job's own; shared: that of the coordinator's port")
        ->type_name("NAME");
  };

  CLI::App* get = add("get", "Wait for a key and write its bytes to stdout");
  get->add_option("key", flags->key)->required()->type_name("KEY");
  CLI::Option* timeout = AddDuration(*get, "--timeout", flags->timeout, "how long to wait for it");
  CLI::Option* no_wait =
      get->add_flag("--no-wait", flags->is_not_waiting, "do not wait: fail when it is not there")
          ->excludes(timeout);
  AddDeprecatedName(*get, no_wait, "--try");
  add_scope(*get)->needs(no_wait);
  get->add_flag("--text", flags->is_text,
                "show records of Ferry's processes field by field, and other values escaped; as on "
                "a terminal");
  actions[get] = [](KvFlags& f) { return Get(f); };

  CLI::App* set = add("set", "Set a key");
  set->add_option("key", flags->key)->required()->type_name("KEY");
  set->add_option("value", flags->value, "- reads it from stdin, byte for byte")
      ->required()
      ->type_name("VALUE");
  set->add_flag("--overwrite", flags->overwrite, "also when the key is there already");
  actions[set] = [](KvFlags& f) { return Set(f); };

  CLI::App* list = add("ls", "List keys");
  list->add_option("prefix", flags->prefix, "how the keys begin")->type_name("PREFIX");
  add_scope(*list);
  list->add_flag("-l,--long", flags->is_long, "with sizes, revisions and values");
  actions[list] = [](KvFlags& f) { return List(f); };

  CLI::App* remove = add("rm", "Remove a key");
  remove->add_option("key", flags->key)->required()->type_name("KEY");
  remove->add_flag("--recursive", flags->recursive, "also everything below it: KEY/...");
  actions[remove] = [](KvFlags& f) { return Remove(f); };

  CLI::App* watch = add("watch", "Print existing keys, then every change, until interrupted");
  watch->add_option("prefix", flags->prefix, "how the keys begin")->type_name("PREFIX");
  actions[watch] = [](KvFlags& f) { return Watch(f); };

  return [flags, &kv, actions]() { return actions.at(kv.get_subcommands().front())(*flags); };
}

}  // namespace ferry::cli
