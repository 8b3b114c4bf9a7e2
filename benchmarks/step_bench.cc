// SPDX-License-Identifier: Apache-2.0
// The cost of a step at the master, without a client: from its request until its answer, over a
// worker in a process of its own. Alternating with it, fifty at a time, a unary gRPC call of that
// worker on the same connection, which does nothing there. Both end in gRPC's callback, so that no
// thread is woken.
//
//   build/release/benchmarks/step_bench
//
// Estimate: one unary call, and some microseconds of the master's; the cleanup behind a step is not
// waited for, but uses the processor, so up to two. Goal: below 4.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "absl/synchronization/notification.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "tensorflow/master/grpc_worker_link.h"
#include "tensorflow/master/master.h"
#include "tensorflow/master/timer_thread.h"
#include "tensorflow/master/work_pool.h"
#include "tests/tensorflow/graph/graph_fixture.h"
#include "tests/tensorflow/worker/worker_fixture.h"

namespace ferry::master {
namespace {

constexpr int kTurn = 50;
constexpr uint64_t kIncarnation = 1000;
constexpr char kWorker[] = "/job:worker/replica:0/task:0";

// A worker, until its parent has ended.
class WorkerProcess final {
 public:
  // REQUIRES: there are no threads yet.
  WorkerProcess() {
    int to_parent[2];
    int to_child[2];
    FERRY_CHECK(pipe(to_parent) == 0 && pipe(to_child) == 0);
    child_ = fork();
    FERRY_CHECK(child_ >= 0);
    if (child_ == 0) {
      close(to_child[1]);
      Serve(to_child[0], to_parent[1]);
    }
    close(to_parent[1]);
    close(to_child[0]);
    life_ = to_child[1];
    char c = 0;
    while (read(to_parent[0], &c, 1) == 1 && c != '\n') address_ += c;
    close(to_parent[0]);
  }
  ~WorkerProcess() {
    close(life_);
    waitpid(child_, nullptr, 0);
  }

  const std::string& address() const { return address_; }

 private:
  [[noreturn]] static void Serve(int until, int told) {
    {
      Directory directory;
      WorkerEnd end(directory, 0);
      const std::string line = end.transfer_engine().self().grpc_address + "\n";
      FERRY_CHECK(write(told, line.data(), line.size()) == static_cast<ssize_t>(line.size()));
      char c = 0;
      while (read(until, &c, 1) > 0) {
      }
    }
    _exit(0);
  }

  pid_t child_ = -1;
  int life_ = -1;
  std::string address_;
};

class OneWorker final : public ClusterSource {
 public:
  explicit OneWorker(std::shared_ptr<WorkerLink> link) {
    worker_.name = kWorker;
    worker_.task = {"worker", 0, 0};
    worker_.incarnation = kIncarnation;
    worker_.link = std::move(link);
    tensorflow::DeviceAttributes& device = worker_.devices.emplace_back();
    device.set_name(absl::StrCat(kWorker, "/device:CPU:0"));
    device.set_device_type("CPU");
    device.set_incarnation(kIncarnation);
  }
  Cluster Now() override { return {{worker_}, {}}; }

 private:
  ClusterWorker worker_;
};

// A master and its only session.
class Bench final {
 public:
  explicit Bench(const std::string& address)
      : link_(links_.Connect(address)),
        cluster_(link_),
        master_({}, {cluster_, timers_, Run(), Run(), [this] { return random_(); }}) {
    graph::GraphWriter graph;
    graph.Add("empty", "NoOp");
    auto request = std::make_shared<tensorflow::CreateSessionRequest>();
    *request->mutable_graph_def() = graph.def();
    absl::Notification done;
    master_.CreateSession(request, nullptr, [&](const auto& response) {
      if (response.ok()) session_ = response->session_handle();
      done.Notify();
    });
    done.WaitForNotification();
    FERRY_CHECK(!session_.empty());
  }
  ~Bench() {
    absl::Notification done;
    master_.Stop([&done] { done.Notify(); });
    done.WaitForNotification();
    links_.Stop();
    pool_.Stop();
  }

  // How long it took; aborts the program if it fails.
  absl::Duration Step() {
    auto request = std::make_shared<tensorflow::RunStepRequest>();
    request->set_session_handle(session_);
    request->add_target("empty");
    return Time([&](auto done) { master_.RunStep(request, nullptr, std::move(done)); });
  }
  absl::Duration UnaryCall() {
    tensorflow::CleanupGraphRequest request;
    request.set_step_id(1);
    return Time([&](auto done) { link_->CleanupGraph(request, {}, std::move(done)); });
  }

 private:
  RunWork Run() {
    return [this](absl::AnyInvocable<void() &&> work) { pool_.Add(std::move(work)); };
  }
  template <typename Start>
  absl::Duration Time(Start start) {
    absl::Notification ended;
    absl::Time end;
    const absl::Time begin = SteadyClock().Now();
    start([&](const auto& response) {
      FERRY_CHECK(response.ok());
      end = SteadyClock().Now();
      ended.Notify();
    });
    ended.WaitForNotification();
    return end - begin;
  }

  GrpcWorkerLinks links_;
  std::shared_ptr<WorkerLink> link_;
  OneWorker cluster_;
  Timers timers_{SteadyClock()};
  TimerThread timer_thread_{timers_};
  WorkPool pool_{"bench-graph-", 1};
  std::mt19937_64 random_{17};
  std::string session_;
  Master master_;
};

double Micros(std::vector<absl::Duration>& samples, double fraction) {
  std::sort(samples.begin(), samples.end());
  return absl::ToDoubleMicroseconds(
      samples[static_cast<size_t>(fraction * static_cast<double>(samples.size() - 1))]);
}

std::string* worker_address = nullptr;

void BM_Master_EmptyStep(benchmark::State& state) {
  Bench bench(*worker_address);
  std::vector<absl::Duration> steps;
  std::vector<absl::Duration> calls;
  for (int i = 0; i < 10 * kTurn; ++i) {
    bench.Step();
    bench.UnaryCall();
  }
  for (auto _ : state) {
    absl::Duration turn;
    for (int i = 0; i < kTurn; ++i) {
      steps.push_back(bench.Step());
      turn += steps.back();
    }
    for (int i = 0; i < kTurn; ++i) calls.push_back(bench.UnaryCall());
    state.SetIterationTime(absl::ToDoubleSeconds(turn));
  }
  const double step_us = Micros(steps, 0.5);
  const double call_us = Micros(calls, 0.5);
  state.counters["p50_us"] = step_us;
  state.counters["p99_us"] = Micros(steps, 0.99);
  state.counters["unary_p50_us"] = call_us;
  state.counters["unary_calls"] = step_us / call_us;
}
// An iteration is one alternation of both.
BENCHMARK(BM_Master_EmptyStep)->UseManualTime()->Iterations(100)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace ferry::master

int main(int argc, char** argv) {
  const ferry::master::WorkerProcess worker;
  std::string address = worker.address();
  FERRY_CHECK(!address.empty());
  ferry::master::worker_address = &address;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
