// SPDX-License-Identifier: Apache-2.0
// ferry bench-worker (hidden): one of the two processes of ferry bench sendrecv.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "cli/as_node.h"
#include "cli/bench_floors.h"
#include "cli/bench_plan.h"
#include "cli/bench_processes.h"
#include "cli/bench_times.h"
#include "cli/exchange_flags.h"
#include "cli/pattern.h"
#include "cli/verb.h"
#include "runtime/node.h"

namespace ferry::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kBenchStep = 1;
constexpr absl::Duration kPeerPatience = absl::Minutes(2);
// From here on a buffer is only made again when its last reader has told that it is done with it.
constexpr size_t kLargeBytes = size_t{1} << 20;
// More of them in flight at a time than this are no matter of latency, but of memory.
constexpr size_t kMaxInflightBytes = size_t{1} << 30;

void Tell(const Json& line) {
  std::printf("%s\n", line.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  std::fflush(stdout);
}

// A receive that is asked for now and waited for later, on the thread that drives the lanes
// meanwhile. Shared with its callback.
struct Posted {
  std::atomic<bool> is_done{false};
  absl::Status status;
  Received received;
};
using PostedPtr = std::shared_ptr<Posted>;

// What one row is told of: a size and a mode, and how many at a time.
struct Case {
  size_t bytes = 0;
  BenchMode mode = BenchMode::kHandoff;
  int inflight = 1;
  int warm_ups = 0;
  int iterations = 0;
};

struct CaseResult {
  std::vector<absl::Duration> samples;
  size_t errors = 0;
  std::set<std::string> paths;
  // Of this process, and what both have moved meanwhile.
  double cpu_s = 0;
  double moved_bytes = 0;
};

// Node 0 sends a ping and waits for the pong; node 1 answers.
class Peer final {
 public:
  static absl::StatusOr<std::unique_ptr<Peer>> Create(Node& node, const BenchPlan& plan);

  absl::Status Run();

 private:
  Peer(Node& node, const BenchPlan& plan, Step step, RendezvousKey out, RendezvousKey in,
       RendezvousKey control_out, RendezvousKey control_in)
      : node_(node),
        plan_(plan),
        is_first_(node.node_id() == 0),
        step_(std::move(step)),
        out_(std::move(out)),
        in_(std::move(in)),
        control_out_(std::move(control_out)),
        control_in_(std::move(control_in)) {}

  PostedPtr Post(const Tensor& destination);
  absl::Status Wait(Posted& posted);
  // A word to the other side, beside what is measured.
  absl::Status Signal();
  absl::Status AwaitSignal();

  absl::StatusOr<Tensor> Make(size_t bytes);
  uint64_t SeedOf(const Case& at, int node, int round) const;
  absl::Status RunSize(size_t bytes);
  absl::StatusOr<CaseResult> RunCase(const Case& at);
  absl::Status RunRound(const Case& at, int round, const Tensor& into, CaseResult& result);
  absl::Status RunBatch(const Case& at, int round, CaseResult& result);
  void Verify(const Case& at, int round, const Received& received, CaseResult& result) const;
  std::string ReasonOf(size_t bytes, const CaseResult& result) const;

  Node& node_;
  const BenchPlan& plan_;
  const bool is_first_;
  Step step_;
  const RendezvousKey out_;
  const RendezvousKey in_;
  const RendezvousKey control_out_;
  const RendezvousKey control_in_;
  std::unique_ptr<RawTcp> raw_tcp_;
};

absl::StatusOr<std::unique_ptr<Peer>> Peer::Create(Node& node, const BenchPlan& plan) {
  const int self = node.node_id();
  const int other = 1 - self;
  FERRY_ASSIGN_OR_RETURN(Step step, node.OpenStep(kBenchStep));
  FERRY_ASSIGN_OR_RETURN(RendezvousKey out, node.Key("bench", self, other));
  FERRY_ASSIGN_OR_RETURN(RendezvousKey in, node.Key("bench", other, self));
  FERRY_ASSIGN_OR_RETURN(RendezvousKey control_out, node.Key("control", self, other));
  FERRY_ASSIGN_OR_RETURN(RendezvousKey control_in, node.Key("control", other, self));
  return std::unique_ptr<Peer>(new Peer(node, plan, std::move(step), std::move(out), std::move(in),
                                        std::move(control_out), std::move(control_in)));
}

PostedPtr Peer::Post(const Tensor& destination) {
  auto posted = std::make_shared<Posted>();
  RecvArgs args;
  args.destination = destination;
  LaneLoop& loop = node_.exchange().loop();
  step_.RecvAsync(in_, std::move(args), [posted, &loop](absl::Status status, Received received) {
    posted->status = std::move(status);
    posted->received = std::move(received);
    posted->is_done.store(true, std::memory_order_release);
    loop.Wake();
  });
  return posted;
}

absl::Status Peer::Wait(Posted& posted) {
  const bool is_done = node_.exchange().loop().WaitUntil(
      [&posted] { return posted.is_done.load(std::memory_order_acquire); },
      SteadyClock().Now() + kPeerPatience);
  if (!is_done)
    return absl::DeadlineExceededError("the other process of the bench does not answer");
  return posted.status;
}

absl::Status Peer::Signal() {
  FERRY_ASSIGN_OR_RETURN(Tensor word, Tensor::Allocate(DataType::kUint8, Shape()));
  return step_.Send(control_out_, std::move(word));
}

absl::Status Peer::AwaitSignal() { return step_.Recv(control_in_, kPeerPatience).status(); }

absl::StatusOr<Tensor> Peer::Make(size_t bytes) {
  FERRY_ASSIGN_OR_RETURN(const Shape shape, Shape::Create({static_cast<int64_t>(bytes)}));
  return node_.Allocate("host:0", DataType::kUint8, shape);
}

uint64_t Peer::SeedOf(const Case& at, int node, int round) const {
  return PatternSeed(absl::StrCat(node, BenchModeName(at.mode), at.inflight), at.bytes,
                     static_cast<uint64_t>(round));
}

void Peer::Verify(const Case& at, int round, const Received& received, CaseResult& result) const {
  const Tensor& tensor = received.tensor;
  result.paths.insert(std::string(received.path));
  if (tensor.bytes() != at.bytes) {
    result.errors += at.bytes;
    return;
  }
  result.errors +=
      CountPatternErrors(tensor.data(), tensor.bytes(), SeedOf(at, 1 - node_.node_id(), round));
}

// Why tensors of that size come the way they do.
std::string Peer::ReasonOf(size_t bytes, const CaseResult& result) const {
  if (result.paths.contains("inline")) return "it is small enough to come with the answer";
  const absl::StatusOr<PathChoice> choice = node_.PathFrom(1 - node_.node_id(), bytes);
  return choice.ok() ? Explain(*choice) : std::string(choice.status().message());
}

// One ping and one pong. Only what lies between the two times is measured.
absl::Status Peer::RunRound(const Case& at, int round, const Tensor& into, CaseResult& result) {
  FERRY_ASSIGN_OR_RETURN(Tensor tensor, Make(at.bytes));
  WritePattern(tensor.mutable_data(), at.bytes, SeedOf(at, node_.node_id(), round));
  const PostedPtr posted = Post(into);
  double cpu_before = 0;
  if (is_first_) {
    // Twice, so that neither side has just woken up: checking a large tensor takes longer than
    // anybody looks for more.
    FERRY_RETURN_IF_ERROR(AwaitSignal());
    FERRY_RETURN_IF_ERROR(Signal());
    FERRY_RETURN_IF_ERROR(AwaitSignal());
    cpu_before = OwnCpuSeconds();
    const absl::Time start = SteadyClock().Now();
    FERRY_RETURN_IF_ERROR(step_.Send(out_, std::move(tensor)));
    FERRY_RETURN_IF_ERROR(Wait(*posted));
    const absl::Duration taken = SteadyClock().Now() - start;
    if (round >= at.warm_ups) result.samples.push_back(taken / 2);
  } else {
    FERRY_RETURN_IF_ERROR(Signal());
    FERRY_RETURN_IF_ERROR(AwaitSignal());
    FERRY_RETURN_IF_ERROR(Signal());
    cpu_before = OwnCpuSeconds();
    FERRY_RETURN_IF_ERROR(Wait(*posted));
    FERRY_RETURN_IF_ERROR(step_.Send(out_, std::move(tensor)));
  }
  if (round >= at.warm_ups) {
    result.cpu_s += OwnCpuSeconds() - cpu_before;
    result.moved_bytes += 2 * static_cast<double>(at.bytes);
  }
  Verify(at, round, posted->received, result);
  posted->received = Received();
  if (at.bytes < kLargeBytes) return absl::OkStatus();
  FERRY_RETURN_IF_ERROR(Signal());
  return AwaitSignal();
}

// Many pings, which all go before the one pong that answers the last.
absl::Status Peer::RunBatch(const Case& at, int round, CaseResult& result) {
  const int base = round * at.inflight;
  if (is_first_) {
    std::vector<Tensor> tensors;
    for (int i = 0; i < at.inflight; ++i) {
      FERRY_ASSIGN_OR_RETURN(Tensor tensor, Make(at.bytes));
      WritePattern(tensor.mutable_data(), at.bytes, SeedOf(at, 0, base + i));
      tensors.push_back(std::move(tensor));
    }
    FERRY_RETURN_IF_ERROR(AwaitSignal());
    const double cpu_before = OwnCpuSeconds();
    const absl::Time start = SteadyClock().Now();
    for (Tensor& tensor : tensors) {
      FERRY_RETURN_IF_ERROR(step_.Send(out_, std::move(tensor)));
    }
    FERRY_RETURN_IF_ERROR(AwaitSignal());
    const absl::Duration taken = SteadyClock().Now() - start;
    if (round >= at.warm_ups) {
      result.samples.push_back(taken / at.inflight);
      result.cpu_s += OwnCpuSeconds() - cpu_before;
      result.moved_bytes += static_cast<double>(at.bytes) * at.inflight;
    }
    return AwaitSignal();
  }
  std::vector<PostedPtr> all;
  for (int i = 0; i < at.inflight; ++i) {
    Tensor into;
    if (at.mode == BenchMode::kInto) {
      FERRY_ASSIGN_OR_RETURN(into, Make(at.bytes));
    }
    all.push_back(Post(into));
  }
  FERRY_RETURN_IF_ERROR(Signal());
  const double cpu_before = OwnCpuSeconds();
  for (const PostedPtr& posted : all) FERRY_RETURN_IF_ERROR(Wait(*posted));
  FERRY_RETURN_IF_ERROR(Signal());
  if (round >= at.warm_ups) result.cpu_s += OwnCpuSeconds() - cpu_before;
  for (int i = 0; i < at.inflight; ++i) Verify(at, base + i, all[i]->received, result);
  all.clear();
  return Signal();
}

absl::StatusOr<CaseResult> Peer::RunCase(const Case& at) {
  CaseResult result;
  Tensor into;
  if (at.mode == BenchMode::kInto && at.inflight == 1) {
    FERRY_ASSIGN_OR_RETURN(into, Make(at.bytes));
    WritePattern(into.mutable_data(), at.bytes, 0);
  }
  for (int round = 0; round < at.warm_ups + at.iterations; ++round) {
    FERRY_RETURN_IF_ERROR(at.inflight == 1 ? RunRound(at, round, into, result)
                                           : RunBatch(at, round, result));
  }
  return result;
}

absl::Status Peer::RunSize(size_t bytes) {
  const int iterations = plan_.IterationsOf(bytes);
  Json floors = {{"event", "floors"}, {"bytes", bytes}};
  if (is_first_ || raw_tcp_ != nullptr) {
    FERRY_ASSIGN_OR_RETURN(Tensor from, Make(bytes));
    WritePattern(from.mutable_data(), bytes, 1);
    const int rounds = std::clamp(iterations, 3, 30);
    if (is_first_) {
      FERRY_ASSIGN_OR_RETURN(Tensor to, Make(bytes));
      WritePattern(to.mutable_data(), bytes, 2);
      floors["memcpy_s"] =
          absl::ToDoubleSeconds(MeasureMemcpy(to.mutable_data(), from.data(), bytes, rounds));
    }
    if (raw_tcp_ != nullptr) {
      // Whichever is faster here: who polls takes a core, which large ones need for the kernel.
      FERRY_ASSIGN_OR_RETURN(const absl::Duration blocking,
                             raw_tcp_->Measure(from.mutable_data(), bytes, rounds, false));
      FERRY_ASSIGN_OR_RETURN(const absl::Duration polling,
                             raw_tcp_->Measure(from.mutable_data(), bytes, rounds, true));
      const absl::Duration raw = std::min(blocking, polling);
      floors["raw_tcp_s"] = absl::ToDoubleSeconds(raw);
    }
  }
  Tell(floors);
  std::vector<int> depths = {1};
  const bool fits = bytes <= kMaxInflightBytes / static_cast<size_t>(plan_.inflight);
  if (plan_.inflight > 1 && fits) depths.push_back(plan_.inflight);
  for (const BenchMode mode : plan_.modes) {
    for (const int depth : depths) {
      const Case at{bytes, mode, depth, depth == 1 ? plan_.WarmUpsOf(bytes) : 1,
                    std::max(iterations / depth, 3)};
      FERRY_ASSIGN_OR_RETURN(const CaseResult result, RunCase(at));
      const BenchTimes times = SummarizeTimes(result.samples);
      Tell({{"event", "case"},
            {"bytes", bytes},
            {"mode", BenchModeName(mode)},
            {"inflight", depth},
            {"count", at.iterations * depth},
            {"p50_s", absl::ToDoubleSeconds(times.p50)},
            {"p90_s", absl::ToDoubleSeconds(times.p90)},
            {"p99_s", absl::ToDoubleSeconds(times.p99)},
            {"p999_s", absl::ToDoubleSeconds(times.p999)},
            {"p50_low_s", absl::ToDoubleSeconds(times.p50_low)},
            {"p50_high_s", absl::ToDoubleSeconds(times.p50_high)},
            {"cpu_s", result.cpu_s},
            {"moved_bytes", result.moved_bytes},
            {"path", absl::StrJoin(result.paths, "+")},
            {"path_reason", ReasonOf(bytes, result)},
            {"pages", DescribePages(node_.exchange().arena_stats())},
            {"errors", result.errors}});
    }
  }
  // What this size was made of is none of the next one's.
  node_.exchange().arena().Trim();
  return absl::OkStatus();
}

absl::Status Peer::Run() {
  if (plan_.has_tcp_floor) {
    FERRY_ASSIGN_OR_RETURN(raw_tcp_, RawTcp::Create(node_.agent(), is_first_, plan_.tcp_streams));
  }
  FERRY_ASSIGN_OR_RETURN(const absl::Duration spin, MeasureSpin(plan_.floor_file, is_first_));
  Json machine = {{"event", "spin"}, {"spin_s", absl::ToDoubleSeconds(spin)}};
  Tell(machine);
  for (const size_t bytes : plan_.sizes) FERRY_RETURN_IF_ERROR(RunSize(bytes));
  FERRY_RETURN_IF_ERROR(step_.Close(kPeerPatience));
  return node_.Shutdown();
}

absl::StatusOr<int> Work(NodeOptions& options, const std::string& plan_text) {
  FERRY_ASSIGN_OR_RETURN(const BenchPlan plan, DecodeBenchPlan(plan_text));
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<Node> node, Node::Join(options));
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<Peer> peer, Peer::Create(*node, plan));
  FERRY_RETURN_IF_ERROR(AsFailure(peer->Run()));
  return kDone;
}

}  // namespace

Verb AddBenchWorkerVerb(CLI::App& app) {
  struct Flags {
    NodeOptions node;
    std::string plan;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App& verb = *app.add_subcommand("bench-worker", "One of the processes of ferry bench");
  verb.group("");  // Hidden.
  verb.add_option("--plan", flags->plan)->required();
  AddNodeFlags(verb, flags->node);
  return [flags]() { return Work(flags->node, flags->plan); };
}

}  // namespace ferry::cli
