// SPDX-License-Identifier: Apache-2.0
// Runs nodes, tracks which become ready, and distributes them over threads.
#include "tensorflow/worker/graph_run.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "rendezvous/host_memory.h"
#include "tensorflow/worker/collectives/step_collectives.h"
#include "tensorflow/worker/ready_nodes.h"

namespace ferry::worker {
namespace {

using Kind = PlanNode::Kind;

// Waking a thread takes tens of microseconds on common machines; shorter nodes are not handed over.
constexpr int64_t kLongNs = 20'000;
// Input size from which a node with unknown cost counts as long.
constexpr size_t kLongBytes = size_t{256} << 10;
// A thread shares out its short nodes after this time.
constexpr int64_t kSpreadNs = 100'000;
// Longest time that a run may occupy a thread outside the executor.
constexpr int64_t kGuestNs = 50'000;

int ThisThread() {
  // Cached to save the system call.
  thread_local const int id = static_cast<int>(gettid());
  return id;
}

}  // namespace

GraphRun::GraphRun(std::shared_ptr<const Plan> plan, std::shared_ptr<StepTransfers> transfers,
                   GraphRunOptions options, Done done)
    : plan_(std::move(plan)),
      transfers_(std::move(transfers)),
      options_(std::move(options)),
      slots_(static_cast<size_t>(plan_->slot_count())),
      pending_(std::make_unique<std::atomic<int>[]>(static_cast<size_t>(plan_->node_count()))),
      is_dead_(std::make_unique<std::atomic<bool>[]>(static_cast<size_t>(plan_->node_count()))),
      receives_(std::make_unique<Receive[]>(static_cast<size_t>(plan_->recv_count()))),
      done_(std::move(done)) {
  for (int i = 0; i < plan_->node_count(); ++i) {
    pending_[static_cast<size_t>(i)].store(plan_->node(i).in_degree, std::memory_order_relaxed);
  }
  if (options_.record_times) times_.resize(static_cast<size_t>(plan_->node_count()));
}

std::shared_ptr<GraphRun> GraphRun::Create(std::shared_ptr<const Plan> plan,
                                           std::shared_ptr<StepTransfers> transfers,
                                           GraphRunOptions options, Done done) {
  FERRY_CHECK(options.executor != nullptr && options.now_ns != nullptr);
  return std::shared_ptr<GraphRun>(
      new GraphRun(std::move(plan), std::move(transfers), std::move(options), std::move(done)));
}

void GraphRun::Start() {
  const std::shared_ptr<GraphRun> self = shared_from_this();
  self_ = self;
  const std::vector<int>& sources = plan_->sources();
  if (sources.empty()) return Finish();
  outstanding_.store(static_cast<int64_t>(sources.size()));
  Work work(options_.now_ns(), /*is_guest=*/true);
  for (const int index : sources) MarkReady(index, work);
  GoOn(work);
}

void GraphRun::Cancel(const absl::Status& why) {
  FERRY_CHECK(!why.ok());
  Fail(why);
}

void GraphRun::GoOn(Work& work) {
  while (work.size() > 0) {
    const int index = work.front();
    if (has_failed_.load(std::memory_order_relaxed)) {
      work.Pop();
      Leave(0);
      continue;
    }
    if (work.is_guest) {
      const Plan::Node& node = plan_->node(index);
      const bool is_quick =
          node.kind != Kind::kCompute || (IsKnownToBeShort(index) && !node.kernel->may_block());
      if (!is_quick || work.now_ns - work.begin_ns > kGuestNs) return Submit(work.TakeAll());
    } else if (work.size() > 1) {
      Spread(work);
    }
    work.Pop();
    RunNode(index, work);
    // Only kernels update the clock, and not for dead nodes.
    if (work.is_guest && work.size() > 0) work.now_ns = options_.now_ns();
  }
}

void GraphRun::Submit(std::vector<int> nodes) {
  if (nodes.empty()) return;
  (*options_.executor)([self = shared_from_this(), nodes = std::move(nodes)]() mutable {
    Work work(self->options_.now_ns(), /*is_guest=*/false);
    for (const int index : nodes) {
      work.Add(index, self->plan_->node(index).kind != Kind::kCompute);
    }
    self->GoOn(work);
  });
}

void GraphRun::Spread(Work& work) {
  const int index = work.front();
  if (plan_->node(index).kind != Kind::kCompute) return;
  if (IsLong(index)) {
    // Short nodes must not wait behind it: each long node gets a thread, the short ones one
    // together.
    std::vector<int> together;
    for (const int other : work.TakeCompute(1)) {
      if (IsLong(other)) {
        Submit({other});
      } else {
        together.push_back(other);
      }
    }
    Submit(std::move(together));
  } else if (work.now_ns - work.begin_ns > kSpreadNs) {
    Submit(work.TakeCompute((work.size() + 1) / 2));
    work.begin_ns = work.now_ns;
  }
}

bool GraphRun::IsLong(int index) const {
  if (const std::optional<int64_t> cost = plan_->CostNs(index)) return *cost > kLongNs;
  size_t bytes = 0;
  for (const Tensor& input : InputsOf(plan_->node(index))) bytes += input.bytes();
  return bytes > kLongBytes;
}

bool GraphRun::IsKnownToBeShort(int index) const {
  return plan_->CostNs(index).value_or(kLongNs) < kLongNs;
}

absl::Span<const Tensor> GraphRun::InputsOf(const Plan::Node& node) const {
  return absl::MakeConstSpan(slots_).subspan(static_cast<size_t>(node.first_slot),
                                             static_cast<size_t>(node.input_count));
}

bool GraphRun::IsDead(int index) const {
  return is_dead_[static_cast<size_t>(index)].load(std::memory_order_relaxed);
}

void GraphRun::MarkReady(int index, Work& work) {
  if (options_.record_times) times_[static_cast<size_t>(index)].ready_ns = options_.now_ns();
  work.Add(index, plan_->node(index).kind != Kind::kCompute);
}

void GraphRun::RunNode(int index, Work& work) {
  switch (plan_->node(index).kind) {
    case Kind::kCompute:
      return Compute(index, work);
    case Kind::kSend:
      return Send(index, work);
    case Kind::kRecv:
      return IssueReceive(index, work);
    case Kind::kCollective:
      return IssueCollective(index, work);
  }
}

void GraphRun::Compute(int index, Work& work) {
  const Plan::Node& node = plan_->node(index);
  std::vector<Tensor> dead;
  if (IsDead(index)) {
    dead.resize(static_cast<size_t>(node.output_count));
    return Propagate(index, absl::MakeSpan(dead), /*is_dead=*/true, work);
  }
  KernelContext context(*node.environment, InputsOf(node), node.output_count);
  const int64_t start = options_.now_ns();
  absl::Status status = node.kernel->Compute(context);
  work.now_ns = options_.now_ns();
  plan_->NoteCost(index, work.now_ns - start);
  if (options_.record_times) {
    NodeTimes& times = times_[static_cast<size_t>(index)];
    times.start_ns = start;
    times.end_ns = work.now_ns;
    times.thread = ThisThread();
  }
  for (size_t i = 0; status.ok() && i < context.outputs().size(); ++i) {
    if (context.outputs()[i].is_valid()) continue;
    status = absl::InternalError(absl::StrCat("Missing ", i, "-th output"));
  }
  if (!status.ok()) {
    Fail(AttachNode(status, node.name));
    return Leave(0);
  }
  // Releases the inputs, which have no other readers.
  for (int i = 0; i < node.input_count; ++i) {
    slots_[static_cast<size_t>(node.first_slot + i)] = Tensor();
  }
  Propagate(index, absl::MakeSpan(context.outputs()), /*is_dead=*/false, work);
}

void GraphRun::Send(int index, Work& work) {
  const Plan::Node& node = plan_->node(index);
  Tensor tensor;
  if (node.input_count > 0) tensor = std::move(slots_[static_cast<size_t>(node.first_slot)]);
  const bool is_dead = IsDead(index);
  const size_t bytes = tensor.bytes();
  const int64_t start = options_.record_times ? options_.now_ns() : 0;
  const absl::Status status =
      transfers_->Send(*node.key, is_dead ? Tensor() : std::move(tensor), is_dead);
  if (options_.record_times) {
    NodeTimes& times = times_[static_cast<size_t>(index)];
    times.start_ns = start;
    times.end_ns = options_.now_ns();
    times.bytes = bytes;
    times.thread = ThisThread();
  }
  if (!status.ok()) {
    Fail(AttachNode(status, node.name));
    return Leave(0);
  }
  Propagate(index, {}, is_dead, work);
}

void GraphRun::IssueReceive(int index, Work& work) {
  const Plan::Node& node = plan_->node(index);
  if (options_.record_times) times_[static_cast<size_t>(index)].start_ns = options_.now_ns();
  RecvArgs args;
  args.cancellation = &cancellation_;
  if (node.is_for_host) args.device_context = HostMemoryOfDevice();
  // This node is outstanding, which keeps this object alive.
  transfers_->RecvAsync(*node.key, std::move(args),
                        [this, index](absl::Status status, Received received) {
                          OnReceived(index, std::move(status), std::move(received));
                        });
  WhenIssued(index, work);
}

void GraphRun::IssueCollective(int index, Work& work) {
  const Plan::Node& node = plan_->node(index);
  if (IsDead(index)) {
    Tensor dead;
    return Propagate(index, absl::MakeSpan(&dead, 1), /*is_dead=*/true, work);
  }
  if (options_.record_times) times_[static_cast<size_t>(index)].start_ns = options_.now_ns();
  std::vector<Tensor> inputs;
  for (int i = 0; i < node.input_count; ++i) {
    inputs.push_back(std::move(slots_[static_cast<size_t>(node.first_slot + i)]));
  }
  // This node is outstanding, which keeps this object alive.
  options_.collectives->Run(*node.collective, *node.environment, inputs, &cancellation_,
                            [this, index](absl::Status status, Received received) {
                              OnReceived(index, std::move(status), std::move(received));
                            });
  WhenIssued(index, work);
}

void GraphRun::WhenIssued(int index, Work& work) {
  Receive& receive = receives_[static_cast<size_t>(plan_->node(index).recv_index)];
  int expected = Receive::kIssuing;
  if (receive.phase.compare_exchange_strong(expected, Receive::kIssued,
                                            std::memory_order_acq_rel)) {
    return;
  }
  FinishReceive(index, work);
}

void GraphRun::OnReceived(int index, absl::Status status, Received received) {
  Receive& receive = receives_[static_cast<size_t>(plan_->node(index).recv_index)];
  receive.status = std::move(status);
  receive.received = std::move(received);
  // If the receive is still being issued, the issuing thread may finish the run and destroy this.
  if (receive.phase.exchange(Receive::kAnswered, std::memory_order_acq_rel) == Receive::kIssuing) {
    return;
  }
  const std::shared_ptr<GraphRun> self = shared_from_this();
  Work work(options_.now_ns(), /*is_guest=*/true);
  FinishReceive(index, work);
  GoOn(work);
}

void GraphRun::FinishReceive(int index, Work& work) {
  const Plan::Node& node = plan_->node(index);
  Receive& receive = receives_[static_cast<size_t>(node.recv_index)];
  absl::Status status = std::move(receive.status);
  Received received = std::move(receive.received);
  if (status.ok() && !received.is_dead && received.tensor.dtype() != node.dtype) {
    status = absl::InternalError(
        absl::StrCat("Output 0 of type ", DataTypeName(received.tensor.dtype()),
                     " does not match declared output type ", DataTypeName(node.dtype)));
  }
  if (options_.record_times) {
    NodeTimes& times = times_[static_cast<size_t>(index)];
    times.end_ns = options_.now_ns();
    times.path = received.path;
    times.bytes = received.tensor.bytes();
    times.thread = ThisThread();
  }
  if (!status.ok()) {
    Fail(AttachNode(status, node.name));
    return Leave(0);
  }
  Propagate(index, absl::MakeSpan(&received.tensor, 1), received.is_dead, work);
}

void GraphRun::Propagate(int index, absl::Span<Tensor> outputs, bool is_dead, Work& work) {
  int ready = 0;
  for (const Plan::Edge& edge : plan_->edges(plan_->node(index))) {
    if (is_dead) {
      is_dead_[static_cast<size_t>(edge.node)].store(true, std::memory_order_relaxed);
    } else if (edge.port != Plan::kControl) {
      Tensor& output = outputs[static_cast<size_t>(edge.port)];
      Tensor& slot = slots_[static_cast<size_t>(edge.slot)];
      if (edge.is_last_of_port) {
        slot = std::move(output);
      } else {
        slot = output;
      }
    }
    const bool is_only = plan_->node(edge.node).in_degree == 1;
    if (is_only ||
        pending_[static_cast<size_t>(edge.node)].fetch_sub(1, std::memory_order_acq_rel) == 1) {
      MarkReady(edge.node, work);
      ++ready;
    }
  }
  Leave(ready);
}

void GraphRun::Leave(int ready) {
  if (ready == 1) return;
  if (outstanding_.fetch_add(ready - 1, std::memory_order_acq_rel) + ready == 1) Finish();
}

void GraphRun::Fail(absl::Status why) {
  {
    absl::MutexLock lock(&mu_);
    if (is_finished_) return;
    if (!status_.ok()) {
      if (IsDerived(status_) && !IsDerived(why)) status_ = std::move(why);
      return;
    }
    status_ = why;
    has_failed_.store(true);
  }
  transfers_->Abort(why);
  cancellation_.Cancel();
}

void GraphRun::Finish() {
  absl::Status status;
  {
    absl::MutexLock lock(&mu_);
    is_finished_ = true;
    status = status_;
  }
  const std::shared_ptr<GraphRun> self = std::move(self_);
  // Its captures are destroyed with it, and may own this object.
  Done done = std::move(done_);
  std::move(done)(std::move(status));
}

}  // namespace ferry::worker
