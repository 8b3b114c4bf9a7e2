// SPDX-License-Identifier: Apache-2.0
// Plans of small functions, and a step whose other end is the test.
#ifndef FERRY_TESTS_TENSORFLOW_WORKER_PLAN_FIXTURE_H_
#define FERRY_TESTS_TENSORFLOW_WORKER_PLAN_FIXTURE_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "tensorflow/worker/graph_run.h"
#include "tensorflow/worker/plan.h"
#include "tensorflow/worker/step_transfers.h"

namespace ferry::worker {

// int64[]: the elements of the tests' nodes.
inline Tensor Number(int64_t number) {
  Tensor tensor = *Tensor::Allocate(DataType::kInt64, Shape());
  *static_cast<int64_t*>(tensor.mutable_data()) = number;
  return tensor;
}
inline int64_t NumberOf(const Tensor& tensor) { return tensor.elements<int64_t>()[0]; }

inline RendezvousKey EdgeKey(absl::string_view edge) {
  const std::string device = "/job:worker/replica:0/task:0/device:CPU:0";
  return *RendezvousKey::Parse(RendezvousKey::Text(device, 1, device, edge));
}

class FunctionKernel final : public Kernel {
 public:
  using Function = std::function<absl::Status(KernelContext&)>;
  explicit FunctionKernel(Function function) : function_(std::move(function)) {}
  absl::Status Compute(KernelContext& context) const override { return function_(context); }

 private:
  const Function function_;
};

// Nodes by their names; each outputs the sum of its inputs and one number more.
class PlanWriter {
 public:
  // Returns the node's number.
  int Add(const std::string& name, const std::vector<int>& inputs,
          const std::vector<int>& controls = {}, FunctionKernel::Function function = nullptr) {
    PlanNode node;
    node.name = name;
    for (const int input : inputs) node.inputs.push_back({input, 0});
    node.controls = controls;
    node.output_count = 1;
    if (function == nullptr) function = Sum;
    node.kernel = std::make_shared<FunctionKernel>(std::move(function));
    node.environment = &kEnvironment;
    nodes_.push_back(std::move(node));
    return static_cast<int>(nodes_.size()) - 1;
  }
  int AddRecv(const std::string& edge, const std::vector<int>& controls = {}) {
    PlanNode node;
    node.kind = PlanNode::Kind::kRecv;
    node.name = absl::StrCat("recv_", edge);
    node.controls = controls;
    node.output_count = 1;
    node.key = EdgeKey(edge);
    node.dtype = DataType::kInt64;
    nodes_.push_back(std::move(node));
    return static_cast<int>(nodes_.size()) - 1;
  }
  int AddSend(const std::string& edge, int input) {
    PlanNode node;
    node.kind = PlanNode::Kind::kSend;
    node.name = absl::StrCat("send_", edge);
    node.inputs.push_back({input, 0});
    node.key = EdgeKey(edge);
    nodes_.push_back(std::move(node));
    return static_cast<int>(nodes_.size()) - 1;
  }

  std::shared_ptr<const Plan> Make() { return *Plan::Create(std::move(nodes_)); }
  std::vector<PlanNode>& nodes() { return nodes_; }

  static absl::Status Sum(KernelContext& context) {
    int64_t sum = 1;
    for (const Tensor& input : context.inputs()) sum += NumberOf(input);
    context.set_output(0, Number(sum));
    return absl::OkStatus();
  }

 private:
  static inline const KernelEnvironment kEnvironment;
  std::vector<PlanNode> nodes_;
};

// Records sends, and answers receives when the test decides. Thread-safe.
class HeldTransfers final : public StepTransfers {
 public:
  absl::Status Send(const RendezvousKey& key, Tensor tensor, bool is_dead) override {
    absl::MutexLock lock(&mu_);
    if (!abort_.ok()) return abort_;
    sent_[std::string(key.edge())] = is_dead ? "dead" : absl::StrCat(NumberOf(tensor));
    return absl::OkStatus();
  }
  void RecvAsync(const RendezvousKey& key, RecvArgs args, RecvCallback done) override {
    const std::string edge(key.edge());
    absl::Status status;
    Received received;
    {
      absl::MutexLock lock(&mu_);
      if (const auto found = values_.find(edge); found != values_.end()) {
        received = found->second;
      } else if (!abort_.ok()) {
        status = abort_;
      } else {
        CancellationToken* const cancellation = args.cancellation;
        waiting_[edge] = {std::move(args), std::move(done)};
        const auto token = cancellation->Register([this, edge] {
          Answer(edge, MakeDerived(absl::CancelledError("RecvAsync is cancelled.")), {}, false);
        });
        if (token != CancellationToken::kNoCallback) {
          waiting_[edge].token = token;
          return;
        }
        status = MakeDerived(absl::CancelledError("RecvAsync is cancelled."));
        done = std::move(waiting_[edge].done);
        waiting_.erase(edge);
      }
    }
    std::move(done)(std::move(status), std::move(received));
  }
  void Abort(const absl::Status& why) override {
    std::vector<std::string> edges;
    {
      absl::MutexLock lock(&mu_);
      if (abort_.ok()) abort_ = why;
      for (const auto& [edge, each] : waiting_) edges.push_back(edge);
    }
    for (const std::string& edge : edges) Answer(edge, why, {});
  }

  // The immediate result of a receive.
  void Offer(const std::string& edge, Received received) {
    absl::MutexLock lock(&mu_);
    values_[edge] = std::move(received);
  }
  // False if there is no pending receive.
  bool Answer(const std::string& edge, absl::Status status, Received received,
              bool deregister = true) {
    Waiting waiting;
    {
      absl::MutexLock lock(&mu_);
      const auto found = waiting_.find(edge);
      if (found == waiting_.end()) return false;
      waiting = std::move(found->second);
      waiting_.erase(found);
    }
    if (deregister) waiting.args.cancellation->Deregister(waiting.token);
    std::move(waiting.done)(std::move(status), std::move(received));
    return true;
  }

  std::vector<std::string> waiting() const {
    absl::MutexLock lock(&mu_);
    std::vector<std::string> edges;
    for (const auto& [edge, each] : waiting_) edges.push_back(edge);
    return edges;
  }
  std::map<std::string, std::string> sent() const {
    absl::MutexLock lock(&mu_);
    return sent_;
  }
  absl::Status abort_status() const {
    absl::MutexLock lock(&mu_);
    return abort_;
  }

 private:
  struct Waiting {
    RecvArgs args;
    RecvCallback done;
    CancellationToken::CallbackId token = CancellationToken::kNoCallback;
  };

  mutable absl::Mutex mu_;
  absl::Status abort_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Received> values_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::string> sent_ ABSL_GUARDED_BY(mu_);
};

inline Received Value(int64_t number) {
  Received received;
  received.tensor = Number(number);
  return received;
}

MATCHER_P2(Fails, code, message, "") {
  *result_listener << arg;
  return arg.code() == code &&
         ::testing::ExplainMatchResult(message, std::string(arg.message()), result_listener);
}

}  // namespace ferry::worker

#endif  // FERRY_TESTS_TENSORFLOW_WORKER_PLAN_FIXTURE_H_
