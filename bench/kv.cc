// SPDX-License-Identifier: Apache-2.0
// ferry bench kv: latency of the coordinator's store, compared to raw gRPC calls.
#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/usable_resources.h"
#include "bench/floor.h"
#include "bench/loop.h"
#include "bench/output.h"
#include "bench/plan.h"
#include "bench/processes.h"
#include "bench/verbs.h"
#include "cli/pattern.h"
#include "cli/progress.h"
#include "cli/tool_agent.h"

namespace ferry::cli {
namespace {

constexpr absl::Duration kKvTimeout = absl::Seconds(30);
// Baseline and store are measured alternately, in this many turns.
constexpr int kTurns = 5;
// Values read in a turn are kept until they are verified.
constexpr size_t kBytesOfATurn = size_t{16} << 20;
constexpr size_t kLargestValue = size_t{1} << 20;
constexpr int kDefaultIterations = 2000;

struct KvBenchFlags {
  std::string sizes = "8,1K,64K";
  int inflight = 64;
  // Iterations per row. 0 selects kDefaultIterations, or fewer for large values.
  int iterations = 0;
  std::string coordinator;
  BenchOutput output;
};

// The case of one row.
struct KvCase {
  std::string mode;
  size_t bytes = 0;
  int inflight = 1;
  // Operations of each measured turn.
  std::vector<int> turns;
};

// Splits a row's operations into turns of about equal size.
//   operations: total.
//   inflight: minimum per turn, if there are that many operations.
//   most: maximum per turn.
std::vector<int> TurnsOf(int operations, int inflight, int most) {
  const int wanted = std::clamp(operations / inflight, 1, kTurns);
  const int count = std::max(wanted, (operations + most - 1) / most);
  std::vector<int> turns;
  for (int turn = 0; turn < count; ++turn) {
    turns.push_back(operations / count + (turn < operations % count ? 1 : 0));
  }
  return turns;
}

// Measures one coordinator's store, under unique keys. Not thread-safe.
class KvBench final {
 public:
  KvBench(std::unique_ptr<coord::Agent> agent, BenchServer coordinator, BenchServer floor)
      : agent_(std::move(agent)),
        coordinator_(std::move(coordinator)),
        floor_server_(std::move(floor)),
        prefix_(absl::StrCat("ferry-bench/", agent_->incarnation())),
        floor_(std::make_unique<UnaryFloor>(floor_server_.address, 1)) {}

  absl::StatusOr<BenchRow> Measure(const KvCase& at);
  absl::Status CleanUp() { return agent_->Delete(prefix_, /*subtree=*/true); }

 private:
  // Runs one turn of this many operations.
  absl::StatusOr<BenchLoad> RunTurn(const KvCase& at, int turn, int operations, size_t* errors);
  absl::StatusOr<BenchLoad> Set(const KvCase& at, int turn, int operations, size_t* errors);
  absl::StatusOr<BenchLoad> Get(const KvCase& at, int turn, int operations, size_t* errors);
  absl::StatusOr<BenchLoad> Add(const KvCase& at, int turn, int operations, size_t* errors);
  absl::StatusOr<BenchLoad> RunFloor(const KvCase& at, int operations);

  std::string KeyOf(int index) const { return absl::StrCat(prefix_, "/", index); }
  static std::string ValueOf(const KvCase& at, int turn, int index);
  std::vector<std::string> KeysOf(int operations) const;
  // Returns the number of values that are not those of this turn.
  static size_t CountWrong(const KvCase& at, int turn, const std::vector<std::string>& values);

  const std::unique_ptr<coord::Agent> agent_;
  const BenchServer coordinator_;
  const BenchServer floor_server_;
  const std::string prefix_;
  const std::function<double()> cpu_s_ = [this] {
    return OwnCpuSeconds() + coordinator_.CpuSeconds();
  };
  // Declared after its server, to be destroyed before it.
  const std::unique_ptr<UnaryFloor> floor_;
};

std::string KvBench::ValueOf(const KvCase& at, int turn, int index) {
  std::string value(at.bytes, '\0');
  WritePattern(value.data(), at.bytes,
               PatternSeed(absl::StrCat(at.mode, at.inflight, "/", turn), at.bytes,
                           static_cast<uint64_t>(index)));
  return value;
}

std::vector<std::string> KvBench::KeysOf(int operations) const {
  std::vector<std::string> keys;
  for (int i = 0; i < operations; ++i) keys.push_back(KeyOf(i));
  return keys;
}

size_t KvBench::CountWrong(const KvCase& at, int turn, const std::vector<std::string>& values) {
  size_t wrong = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] != ValueOf(at, turn, static_cast<int>(i))) ++wrong;
  }
  return wrong;
}

absl::StatusOr<BenchLoad> KvBench::Set(const KvCase& at, int turn, int operations, size_t* errors) {
  auto values = std::make_shared<std::vector<std::string>>();
  for (int i = 0; i < operations; ++i) values->push_back(ValueOf(at, turn, i));
  FERRY_ASSIGN_OR_RETURN(
      BenchLoad load,
      RunBenchLoop(
          operations, at.inflight,
          [this, values](int index, absl::AnyInvocable<void(absl::Status) &&> done) {
            agent_->SetAllAsync({{KeyOf(index), std::move((*values)[static_cast<size_t>(index)])}},
                                /*overwrite=*/true, std::move(done));
          },
          cpu_s_, kKvTimeout));
  FERRY_ASSIGN_OR_RETURN(const std::vector<std::string> found,
                         agent_->GetAll(KeysOf(operations), kKvTimeout));
  *errors += CountWrong(at, turn, found);
  return load;
}

absl::StatusOr<BenchLoad> KvBench::Get(const KvCase& at, int turn, int operations, size_t* errors) {
  std::vector<std::pair<std::string, std::string>> entries;
  for (int i = 0; i < operations; ++i) entries.emplace_back(KeyOf(i), ValueOf(at, turn, i));
  FERRY_RETURN_IF_ERROR(agent_->SetAll(std::move(entries), /*overwrite=*/true));
  auto values = std::make_shared<std::vector<std::string>>(static_cast<size_t>(operations));
  FERRY_ASSIGN_OR_RETURN(
      BenchLoad load,
      RunBenchLoop(
          operations, at.inflight,
          [this, values](int index, absl::AnyInvocable<void(absl::Status) &&> done) {
            agent_->GetAllAsync({KeyOf(index)}, kKvTimeout,
                                [values, index, done = std::move(done)](
                                    absl::StatusOr<std::vector<std::string>> found) mutable {
                                  if (found.ok())
                                    (*values)[static_cast<size_t>(index)] = std::move((*found)[0]);
                                  std::move(done)(found.status());
                                });
          },
          cpu_s_, kKvTimeout));
  *errors += CountWrong(at, turn, *values);
  return load;
}

// Increments one counter.
absl::StatusOr<BenchLoad> KvBench::Add(const KvCase& at, int turn, int operations, size_t* errors) {
  const std::string key = absl::StrCat(prefix_, "/sum/", at.inflight, "/", turn);
  auto sums = std::make_shared<std::vector<int64_t>>(static_cast<size_t>(operations));
  FERRY_ASSIGN_OR_RETURN(
      BenchLoad load,
      RunBenchLoop(
          operations, at.inflight,
          [this, &key, sums](int index, absl::AnyInvocable<void(absl::Status) &&> done) {
            agent_->IncrementAsync(
                key, 1, [sums, index, done = std::move(done)](absl::StatusOr<int64_t> now) mutable {
                  if (now.ok()) (*sums)[static_cast<size_t>(index)] = *now;
                  std::move(done)(now.status());
                });
          },
          cpu_s_, kKvTimeout));
  // Each value from 1 on must have been returned exactly once.
  std::sort(sums->begin(), sums->end());
  for (size_t i = 0; i < sums->size(); ++i) {
    if ((*sums)[i] != static_cast<int64_t>(i) + 1) ++*errors;
  }
  return load;
}

absl::StatusOr<BenchLoad> KvBench::RunTurn(const KvCase& at, int turn, int operations,
                                           size_t* errors) {
  if (at.mode == "set") return Set(at, turn, operations, errors);
  if (at.mode == "get") return Get(at, turn, operations, errors);
  return Add(at, turn, operations, errors);
}

absl::StatusOr<BenchLoad> KvBench::RunFloor(const KvCase& at, int operations) {
  const bool is_get = at.mode == "get";
  const size_t key_bytes = KeyOf(operations).size();
  const size_t there = key_bytes + (is_get ? 0 : at.bytes);
  const size_t back = is_get ? at.bytes : 0;
  return RunBenchLoop(
      operations, at.inflight,
      [this, there, back](int, absl::AnyInvocable<void(absl::Status) &&> done) {
        floor_->CallAsync(0, there, back, std::move(done), kKvTimeout);
      },
      cpu_s_, kKvTimeout);
}

absl::StatusOr<BenchRow> KvBench::Measure(const KvCase& at) {
  BenchRow row;
  row.mode = at.mode;
  row.bytes = at.bytes;
  row.inflight = at.inflight;
  row.tensors = 0;
  row.path = "control stream";
  std::vector<absl::Duration> samples;
  std::vector<absl::Duration> floors;
  absl::Duration whole;
  double cpu_s = 0;
  // The first, extra turn warms up connections, keys and code.
  for (size_t turn = 0; turn <= at.turns.size(); ++turn) {
    const int operations = at.turns[turn == 0 ? 0 : turn - 1];
    FERRY_ASSIGN_OR_RETURN(const BenchLoad floor, RunFloor(at, operations));
    FERRY_ASSIGN_OR_RETURN(const BenchLoad load,
                           RunTurn(at, static_cast<int>(turn), operations, &row.errors));
    if (turn == 0) continue;
    cpu_s += load.cpu_s;
    samples.insert(samples.end(), load.samples.begin(), load.samples.end());
    floors.insert(floors.end(), floor.samples.begin(), floor.samples.end());
    whole += load.whole;
  }
  row.count = static_cast<int>(samples.size());
  row.ops_per_s = row.count / absl::ToDoubleSeconds(whole);
  // The CPU time of a coordinator on another machine is unknown.
  if (coordinator_.process != nullptr) row.cpu_s_per_op = cpu_s / row.count;
  row.times = SummarizeTimes(std::move(samples));
  row.floor = SummarizeTimes(std::move(floors)).p50;
  row.floor_name = "grpc unary";
  return row;
}

absl::StatusOr<BenchReport> Measure(const KvBenchFlags& flags, const std::vector<size_t>& sizes) {
  BenchStage stage("starting a coordinator");
  const Progress progress([&stage] { return stage.Get(); });
  BenchServer coordinator;
  coordinator.address = flags.coordinator;
  if (flags.coordinator.empty()) {
    FERRY_ASSIGN_OR_RETURN(
        coordinator, StartBenchServer("the coordinator",
                                      {"coordinator", "--nodes=1", "--listen=127.0.0.1:0"}, stage));
  }
  FERRY_ASSIGN_OR_RETURN(BenchServer floor,
                         StartBenchServer("the floor's server", {"bench-floor"}, stage));
  FERRY_ASSIGN_OR_RETURN(std::unique_ptr<coord::Agent> agent, ConnectTool(coordinator.address));
  BenchReport report;
  report.bench = "kv";
  report.subject = flags.coordinator.empty()
                       ? "the store of a coordinator on this machine"
                       : absl::StrCat("the store of the coordinator at ", flags.coordinator);
  report.time = "round trips";
  report.errors_of = "value";
  report.transport = "control stream";
  report.moves_tensors = false;
  report.cores = Usable().processors;
  KvBench bench(std::move(agent), std::move(coordinator), std::move(floor));
  std::set<std::tuple<std::string, size_t, int>> measured;
  const auto measure = [&](const std::string& mode, size_t bytes, int inflight) -> absl::Status {
    const int fits =
        std::max(static_cast<int>(std::min(kBytesOfATurn / bytes, size_t{1} << 20)), 1);
    const int operations =
        flags.iterations > 0 ? flags.iterations : std::min(kDefaultIterations, kTurns * fits);
    KvCase at{mode, bytes, inflight, TurnsOf(operations, inflight, fits)};
    // The depth is limited by the smallest turn; a row of that depth may already exist.
    at.inflight = std::min(inflight, *std::min_element(at.turns.begin(), at.turns.end()));
    if (!measured.emplace(mode, bytes, at.inflight).second) return absl::OkStatus();
    stage.Set(absl::StrCat("measuring ", mode, " of ", BenchSizeText(bytes)));
    FERRY_ASSIGN_OR_RETURN(BenchRow row, bench.Measure(at));
    report.rows.push_back(std::move(row));
    return absl::OkStatus();
  };
  std::vector<int> depths = {1};
  if (flags.inflight > 1) depths.push_back(flags.inflight);
  for (const char* const mode : {"set", "get"}) {
    for (const int inflight : depths) {
      for (const size_t bytes : sizes) FERRY_RETURN_IF_ERROR(measure(mode, bytes, inflight));
    }
  }
  for (const int inflight : depths) {
    FERRY_RETURN_IF_ERROR(measure("add", sizeof(int64_t), inflight));
  }
  FERRY_RETURN_IF_ERROR(bench.CleanUp());
  return report;
}

absl::StatusOr<int> Bench(const KvBenchFlags& flags) {
  FERRY_ASSIGN_OR_RETURN(const std::vector<size_t> sizes, ParseSizesFlag(flags.sizes));
  if (*std::max_element(sizes.begin(), sizes.end()) > kLargestValue) {
    return absl::InvalidArgumentError(
        absl::StrCat("--sizes: values of a store, at most ", BenchSizeText(kLargestValue)));
  }
  return FinishBench(Measure(flags, sizes), flags.output);
}

}  // namespace

Verb AddKvBench(CLI::App& bench) {
  auto flags = std::make_shared<KvBenchFlags>();
  CLI::App& verb =
      *bench.add_subcommand("kv", "Measure the coordinator's store against raw gRPC calls");
  verb.add_option("--sizes", flags->sizes, "of values: FIRST:LAST:xFACTOR, or a list")
      ->type_name("SIZES")
      ->capture_default_str();
  AddNumber(verb, "--inflight", flags->inflight, "also measure with N operations in flight", 1,
            4096);
  AddNumber(verb, "--iters", flags->iterations,
            absl::StrCat("operations of each row; else ", kDefaultIterations,
                         ", or fewer of large values"),
            1, 100000)
      ->default_str("");
  AddCoordinatorFlag(verb, flags->coordinator);
  AddBenchOutputFlags(verb, flags->output, BenchMoves::kNothing);
  return [flags]() { return Bench(*flags); };
}

}  // namespace ferry::cli
