// SPDX-License-Identifier: Apache-2.0
// Workers with collectives, on one thread: the test decides when a sent tensor arrives.
#ifndef FERRY_TESTS_TENSORFLOW_WORKER_COLLECTIVE_WORLD_H_
#define FERRY_TESTS_TENSORFLOW_WORKER_COLLECTIVE_WORLD_H_

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "tensorflow/worker/collectives/host_backend.h"
#include "tensorflow/worker/collectives/leader.h"
#include "tensorflow/worker/collectives/nccl_backend.h"
#include "tensorflow/worker/collectives/staged_backend.h"
#include "tensorflow/worker/collectives/step_collectives.h"

namespace ferry::worker {

// One step of some workers, each with one device. Not thread-safe.
class CollectiveWorld final {
 public:
  // The result of a node.
  struct Outcome {
    int done_count = 0;
    absl::Status status;
    Tensor tensor;
    std::string path;
  };

  // A worker's GPU as NCCL uses it.
  using GpusOf = std::function<CollectiveGpus&(int worker)>;

  //   on_gpus: for each worker, whether its device is a GPU; empty: none is.
  //   gpus_of: if it is, they have NCCL.
  explicit CollectiveWorld(int count, HostBackendOptions options = {},
                           std::vector<bool> on_gpus = {}, const GpusOf& gpus_of = {},
                           NcclBackendRules rules = {})
      : has_nccl_(gpus_of != nullptr), on_gpus_(std::move(on_gpus)) {
    on_gpus_.resize(static_cast<size_t>(count));
    auto devices = std::make_shared<CollectiveDevices>();
    for (int i = 0; i < count; ++i) {
      const std::string name = NameOf(i);
      devices->push_back({name, *ParseDeviceName(name), static_cast<uint64_t>(i) + 7});
    }
    devices_ = std::move(devices);
    executor_ = [this](absl::AnyInvocable<void() &&> task) { tasks_.push_back(std::move(task)); };
    for (int i = 0; i < count; ++i) {
      auto transfers = std::make_shared<WorldTransfers>(*this, i);
      workers_.push_back(std::make_unique<WorldWorker>());
      workers_.back()->transfers = transfers;
      std::unique_ptr<CollectiveBackend> carrier = std::make_unique<StagedBackend>(
          std::make_unique<HostBackend>(transfers, &executor_, options),
          [this](MoveRequest request, Gpus::MoveCallback done) {
            Move(std::move(request), std::move(done));
          },
          &executor_);
      if (gpus_of) {
        carrier = std::make_unique<NcclBackend>(transfers, gpus_of(i), std::move(carrier),
                                                &executor_, rules);
      }
      workers_.back()->collectives =
          std::make_unique<StepCollectives>(transfers, std::move(carrier), clock_);
    }
  }
  // The step is over: nothing may be left that waits.
  ~CollectiveWorld() {
    for (size_t i = 0; i < workers_.size(); ++i) {
      Abort(static_cast<int>(i), absl::AbortedError("the step is over"));
    }
    EXPECT_TRUE(waiting_.empty());
    EXPECT_TRUE(tasks_.empty());
    for (const auto& worker : workers_) {
      worker->collectives.reset();
      EXPECT_EQ(worker->transfers.use_count(), 1) << "the step is still referenced";
    }
  }

  std::string NameOf(int worker) const {
    return absl::StrCat("/job:worker/replica:0/task:", worker,
                        "/device:", on_gpus_[static_cast<size_t>(worker)] ? "GPU" : "CPU", ":0");
  }
  // Tensors that a worker holds and receives.
  TensorLocation LocationOf(int worker) const {
    return on_gpus_[static_cast<size_t>(worker)] ? TensorLocation{MemorySpace::kCuda, 0}
                                                 : TensorLocation();
  }

  FakeClock& clock() { return clock_; }
  // Tensors that are delivered inside the receive, instead of later; chosen at random.
  std::function<bool()> arrives_inside = [] { return false; };

  // Sent instead of a tensor of numbers; none: the tensor.
  std::function<Tensor(int worker, Tensor tensor)> alters_sent;

  void StartLeader() { CollectiveLeader::Start(workers_[0]->transfers, devices_, clock_); }

  CollectiveNode NodeOf(int worker, CollectiveKind kind, DataType dtype = DataType::kFloat) const {
    CollectiveNode node;
    node.name = absl::StrCat("node", worker);
    node.kind = kind;
    node.dtype = dtype;
    node.group_size = static_cast<int32_t>(workers_.size());
    node.group_key = 1;
    node.instance_key = 1;
    node.devices = devices_;
    node.self = worker;
    node.memory = LocationOf(worker);
    if (has_nccl_) node.nccl = {.why_not = {}, .gpu = absl::StrCat("GPU-", worker)};
    return node;
  }

  // Copies of tensors between memories fail from now on.
  void FailCopies(const absl::Status& why) { copy_status_ = why; }

  //   input: on the host; moved to the node's memory. Returns a number for `outcome`.
  // As in a run of a graph: a failure aborts its worker's step.
  int Run(CollectiveNode node, std::optional<Tensor> input) {
    const int worker = node.self;
    const int number = static_cast<int>(outcomes_.size());
    outcomes_.emplace_back();
    nodes_.push_back(std::make_unique<CollectiveNode>(std::move(node)));
    std::vector<Tensor> inputs;
    if (input.has_value()) inputs.push_back(In(LocationOf(worker), *std::move(input)));
    WorldWorker& at = *workers_[static_cast<size_t>(worker)];
    at.collectives->Run(*nodes_.back(), environment_, inputs, &at.cancellation,
                        [this, number, worker](absl::Status status, Received received) {
                          Outcome& outcome = outcomes_[static_cast<size_t>(number)];
                          ++outcome.done_count;
                          outcome.status = status;
                          if (status.ok() && received.tensor.bytes() > 0) {
                            EXPECT_EQ(received.tensor.location(), LocationOf(worker));
                          }
                          outcome.tensor = In({}, std::move(received.tensor));
                          outcome.path = std::string(received.path);
                          if (!status.ok()) Fail(worker, status);
                        });
    return number;
  }
  const Outcome& outcome(int number) const { return outcomes_[static_cast<size_t>(number)]; }
  const std::deque<Outcome>& outcomes() const { return outcomes_; }

  void Cancel(int worker) { Fail(worker, absl::CancelledError("cancelled")); }
  // The others are notified, with its name.
  void Kill(int worker) {
    workers_[static_cast<size_t>(worker)]->death =
        absl::UnavailableError(absl::StrCat("node ", worker, " has died"));
    workers_[static_cast<size_t>(worker)]->cancellation.Cancel();
    Abort(worker, absl::CancelledError("this process is gone"));
  }
  bool IsDead(int worker) const { return !workers_[static_cast<size_t>(worker)]->death.ok(); }

  // The events that are possible next; 0: none.
  size_t choices() const { return tasks_.size() + Deliverable().size(); }
  void Choose(size_t choice) {
    if (choice < tasks_.size()) {
      absl::AnyInvocable<void()&&> task = std::move(tasks_[choice]);
      tasks_.erase(tasks_.begin() + static_cast<std::ptrdiff_t>(choice));
      return std::move(task)();
    }
    Deliver(Deliverable()[choice - tasks_.size()]);
  }
  void RunAll() {
    while (choices() > 0) Choose(0);
  }
  void Advance(absl::Duration by) {
    clock_.Advance(by);
    std::vector<int64_t> due;
    for (const auto& [id, waiting] : waiting_) {
      if (waiting.args.deadline <= clock_.Now()) due.push_back(id);
    }
    for (const int64_t id : due) End(id, absl::DeadlineExceededError("waited too long"));
    RunAll();
  }
  size_t waiting_count() const { return waiting_.size(); }

  // The same elements, labelled as being on another device.
  static Tensor In(TensorLocation location, Tensor tensor) {
    if (tensor.bytes() == 0 || tensor.location() == location) return tensor;
    void* const data = tensor.mutable_data();
    const size_t bytes = tensor.bytes();
    const DataType dtype = tensor.dtype();
    const Shape shape = tensor.shape();
    return *Tensor::Create(dtype, shape,
                           WrapForeignBuffer(
                               data, bytes, [kept = std::move(tensor)] {}, location));
  }

 private:
  class WorldTransfers final : public StepTransfers {
   public:
    WorldTransfers(CollectiveWorld& world, int worker) : world_(world), worker_(worker) {}
    absl::Status Send(const RendezvousKey& key, Tensor tensor, bool is_dead) override {
      return world_.Send(worker_, key, std::move(tensor), is_dead);
    }
    void RecvAsync(const RendezvousKey& key, RecvArgs args, RecvCallback done) override {
      world_.Receive(worker_, key, std::move(args), std::move(done));
    }
    void Abort(const absl::Status& why) override { world_.Abort(worker_, why); }

   private:
    CollectiveWorld& world_;
    const int worker_;
  };
  struct WorldWorker {
    std::shared_ptr<WorldTransfers> transfers;
    std::unique_ptr<StepCollectives> collectives;
    CancellationToken cancellation;
    absl::Status abort;
    absl::Status death;
  };
  struct Waiting {
    int worker = 0;
    RendezvousKey key;
    RecvArgs args;
    RecvCallback done;
    CancellationToken::CallbackId token = CancellationToken::kNoCallback;
  };

  // Completes later, as on devices.
  void Move(MoveRequest request, Gpus::MoveCallback done) {
    EXPECT_FALSE(request.tensor.location() == request.to && request.tensor.bytes() > 0);
    tasks_.push_back([this, request = std::move(request), done = std::move(done)]() mutable {
      if (!copy_status_.ok()) return std::move(done)(copy_status_);
      // Others may reuse the memory that it comes from.
      const Tensor from = In({}, std::move(request.tensor));
      Tensor copy = *Tensor::Allocate(from.dtype(), from.shape());
      if (from.bytes() > 0) std::memcpy(copy.mutable_data(), from.data(), from.bytes());
      std::move(done)(In(request.to, std::move(copy)));
    });
  }

  void Fail(int worker, const absl::Status& why) {
    Abort(worker, why);
    workers_[static_cast<size_t>(worker)]->cancellation.Cancel();
  }

  absl::Status Send(int worker, const RendezvousKey& key, Tensor tensor, bool is_dead) {
    EXPECT_EQ(key.src().task.task, worker) << key.text();
    EXPECT_EQ(key.src().type, "CPU") << key.text();
    EXPECT_TRUE(!tensor.is_valid() || tensor.is_on_host()) << key.text();
    EXPECT_FALSE(is_dead);
    const WorldWorker& from = *workers_[static_cast<size_t>(worker)];
    if (!from.abort.ok()) return from.abort;
    // The leader's messages are bytes.
    if (alters_sent && tensor.is_valid() && tensor.dtype() == DataType::kFloat) {
      tensor = alters_sent(worker, std::move(tensor));
    }
    // Other transfers must use another key, or wait for the previous value to be received.
    sent_[key.text()].push_back(std::move(tensor));
    return absl::OkStatus();
  }

  void Receive(int worker, const RendezvousKey& key, RecvArgs args, RecvCallback done) {
    EXPECT_EQ(key.dst().task.task, worker) << key.text();
    EXPECT_EQ(key.dst().type, "CPU") << key.text();
    const WorldWorker& to = *workers_[static_cast<size_t>(worker)];
    const WorldWorker& from = *workers_[static_cast<size_t>(key.src().task.task)];
    if (!to.abort.ok()) return std::move(done)(to.abort, {});
    if (!from.death.ok()) return std::move(done)(from.death, {});
    if (!from.abort.ok()) return std::move(done)(MakeDerived(from.abort), {});
    const int64_t id = ++last_id_;
    CancellationToken* const cancellation = args.cancellation;
    waiting_.emplace(id, Waiting{worker, key, std::move(args), std::move(done)});
    if (cancellation != nullptr) {
      const auto token = cancellation->Register([this, id] {
        End(id, MakeDerived(absl::CancelledError("RecvAsync is cancelled.")), false);
      });
      if (token == CancellationToken::kNoCallback) {
        return End(id, MakeDerived(absl::CancelledError("RecvAsync is cancelled.")), false);
      }
      waiting_.at(id).token = token;
    }
    if (HasValue(key) && arrives_inside()) Deliver(id);
  }

  void Abort(int worker, const absl::Status& why) {
    WorldWorker& at = *workers_[static_cast<size_t>(worker)];
    if (!at.abort.ok()) return;
    at.abort = why;
    const absl::Status to_others = at.death.ok() ? MakeDerived(why) : at.death;
    std::vector<std::pair<int64_t, absl::Status>> ended;
    for (const auto& [id, waiting] : waiting_) {
      if (waiting.worker == worker) {
        ended.emplace_back(id, why);
      } else if (waiting.key.src().task.task == worker) {
        ended.emplace_back(id, to_others);
      }
    }
    for (const auto& [id, status] : ended) End(id, status);
  }

  bool HasValue(const RendezvousKey& key) const {
    const auto found = sent_.find(key.text());
    return found != sent_.end() && !found->second.empty();
  }
  std::vector<int64_t> Deliverable() const {
    std::vector<int64_t> ids;
    for (const auto& [id, waiting] : waiting_) {
      if (HasValue(waiting.key)) ids.push_back(id);
    }
    return ids;
  }
  void Deliver(int64_t id) {
    std::deque<Tensor>& values = sent_.at(waiting_.at(id).key.text());
    Received received;
    received.tensor = std::move(values.front());
    values.pop_front();
    End(id, absl::OkStatus(), true, std::move(received));
  }
  void End(int64_t id, absl::Status status, bool deregister = true, Received received = {}) {
    const auto found = waiting_.find(id);
    if (found == waiting_.end()) return;
    Waiting waiting = std::move(found->second);
    waiting_.erase(found);
    if (deregister && waiting.args.cancellation != nullptr) {
      waiting.args.cancellation->Deregister(waiting.token);
    }
    std::move(waiting.done)(std::move(status), std::move(received));
  }

  FakeClock clock_;
  const bool has_nccl_;
  std::vector<bool> on_gpus_;
  absl::Status copy_status_;
  std::shared_ptr<const CollectiveDevices> devices_;
  Executor executor_;
  const KernelEnvironment environment_;
  std::vector<std::unique_ptr<WorldWorker>> workers_;
  std::vector<std::unique_ptr<CollectiveNode>> nodes_;
  // References stay good.
  std::deque<Outcome> outcomes_;
  std::vector<absl::AnyInvocable<void() &&>> tasks_;
  std::map<std::string, std::deque<Tensor>> sent_;
  std::map<int64_t, Waiting> waiting_;
  int64_t last_id_ = 0;
};

template <typename T>
Tensor Row(DataType dtype, const std::vector<T>& values) {
  Tensor tensor = *Tensor::Allocate(dtype, *Shape::Create({static_cast<int64_t>(values.size())}));
  std::copy(values.begin(), values.end(), static_cast<T*>(tensor.mutable_data()));
  return tensor;
}
inline Tensor FloatRow(const std::vector<float>& values) { return Row(DataType::kFloat, values); }
inline std::vector<float> FloatsOf(const Tensor& tensor) {
  const auto elements = tensor.elements<float>();
  return {elements.begin(), elements.end()};
}

}  // namespace ferry::worker

#endif  // FERRY_TESTS_TENSORFLOW_WORKER_COLLECTIVE_WORLD_H_
