// SPDX-License-Identifier: Apache-2.0
// Combines membership, topology and worker records.
#include "tensorflow/master/job_workers.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/text.h"
#include "topology/global_topology.h"
#include "topology/gpu_description.h"

namespace ferry::master {
namespace {

// The value TensorFlow reports for host memory, which it does not limit.
constexpr int64_t kHostMemoryLimit = int64_t{256} << 20;

std::vector<tensorflow::DeviceAttributes> DescribeDevices(const std::string& task,
                                                          const WorkerRecord& record,
                                                          const LocalTopology& topology) {
  std::vector<tensorflow::DeviceAttributes> devices(1);
  devices[0].set_name(absl::StrCat(task, "/device:CPU:0"));
  devices[0].set_device_type("CPU");
  devices[0].set_memory_limit(kHostMemoryLimit);
  devices[0].mutable_locality();
  devices[0].set_incarnation(record.incarnation);
  for (const Device& device : topology.devices) {
    if (device.kind != DeviceKind::kGpu || device.ordinal >= record.gpu_count) continue;
    tensorflow::DeviceAttributes& gpu = devices.emplace_back();
    gpu.set_name(absl::StrCat(task, "/device:GPU:", device.ordinal));
    gpu.set_device_type("GPU");
    gpu.set_memory_limit(static_cast<int64_t>(device.memory_bytes));
    if (device.numa_node >= 0) gpu.mutable_locality()->set_numa_node(device.numa_node);
    gpu.set_incarnation(record.incarnation);
    gpu.set_physical_device_desc(GpuDescription(device));
  }
  return devices;
}

}  // namespace

// A consistent snapshot of the coordinator's state.
struct JobWorkers::Facts {
  std::vector<coord::TaskInfo> tasks;
  coord::TopologyExchange::Result topology;
  std::map<std::string, coord::StoreValue> records;
  std::string token;
};

// Re-arms itself after each change. Kept alive by its pending watches.
class JobWorkers::Watcher final : public std::enable_shared_from_this<Watcher> {
 public:
  Watcher(coord::CoordinatorExecutor& strand, std::function<void()> changed)
      : strand_(strand), changed_(std::move(changed)) {}

  void Start(const std::string& prefix) {
    strand_.Run([&](coord::Coordinator& coordinator) {
      record_watch_ = coordinator.store().AddWatch(
          prefix, /*with_existing=*/false,
          [self = shared_from_this()](const coord::StoreEvent&) { self->Tell(); });
      AwaitTasks(coordinator, -1);
    });
  }
  void Stop() {
    strand_.Run([this](coord::Coordinator& coordinator) {
      coordinator.store().RemoveWatch(record_watch_);
      is_stopped_ = true;
      coordinator.Cancel(task_wait_);
    });
    // Waits for a running Tell to return.
    absl::MutexLock lock(&mu_);
    changed_ = nullptr;
  }

 private:
  void Tell() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (changed_) changed_();
  }
  // Runs on the executor.
  void AwaitTasks(coord::Coordinator& coordinator, int64_t version) {
    task_wait_ = coordinator.WatchTasks(
        version, coord::kCoordinatorItself,
        [self = shared_from_this()](absl::StatusOr<coord::Coordinator::TablePtr> table) {
          if (!table.ok()) return;
          self->Tell();
          self->strand_.Run([&](coord::Coordinator& again) {
            if (!self->is_stopped_ && !again.is_stopped())
              self->AwaitTasks(again, (*table)->version);
          });
        });
  }

  coord::CoordinatorExecutor& strand_;
  // Accessed on the executor only, up to is_stopped_.
  coord::Store::Watch record_watch_;
  coord::WaitId task_wait_ = coord::kNoWait;
  bool is_stopped_ = false;
  // Held while changed_ is called, which must only set a flag.
  absl::Mutex mu_;
  std::function<void()> changed_ ABSL_GUARDED_BY(mu_);
};

JobWorkers::JobWorkers(coord::CoordinatorExecutor& strand, WorkerRecords records, Connect connect)
    : strand_(strand), records_(std::move(records)), connect_(std::move(connect)) {}

JobWorkers::~JobWorkers() { Stop(); }

void JobWorkers::Watch(std::function<void()> changed) {
  watcher_ = std::make_shared<Watcher>(strand_, std::move(changed));
  watcher_->Start(records_.prefix);
}

void JobWorkers::Stop() {
  if (watcher_ != nullptr) std::exchange(watcher_, nullptr)->Stop();
}

bool JobWorkers::Complete(ClusterWorker& worker, const WorkerRecord& record, const Facts& facts) {
  const GlobalTopology* const topology =
      facts.topology == nullptr ? nullptr : &facts.topology->topology;
  const int32_t node = worker.task.task;
  absl::MutexLock lock(&mu_);
  Known& known = known_[node];
  if (known.link == nullptr || known.incarnation != record.incarnation ||
      known.address != record.address || known.token != facts.token) {
    known = {
        record.incarnation, record.address, facts.token, connect_(record.address, facts.token), {}};
  }
  const std::optional<int> index = topology == nullptr ? std::nullopt : topology->NodeIndex(node);
  if (index.has_value()) {
    known.devices =
        DescribeDevices(worker.name, record, topology->nodes()[static_cast<size_t>(*index)]);
  }
  worker.incarnation = record.incarnation;
  worker.has_gpu_kernels = record.has_gpu_kernels;
  worker.devices = known.devices;
  worker.link = known.link;
  return !known.devices.empty();
}

Cluster JobWorkers::Now() {
  const Facts facts = strand_.Run([this](coord::Coordinator& coordinator) {
    Facts result;
    result.tasks = coordinator.membership().Snapshot();
    result.topology = coordinator.topology();
    for (coord::StoreEntry& entry : coordinator.store().List(records_.prefix)) {
      result.records.emplace(std::move(entry.key), std::move(entry.value));
    }
    result.token = records_.token;
    if (result.token.empty() && !records_.token_key.empty()) {
      if (const auto stored = coordinator.store().Find(records_.token_key)) {
        result.token = *stored->value;
      }
    }
    return result;
  });
  Cluster cluster;
  for (const coord::TaskInfo& task : facts.tasks) {
    const int32_t node = task.task.value();
    ClusterWorker worker;
    worker.task = {"worker", 0, node};
    worker.name = ToString(worker.task);
    const auto miss = [&](std::string why) {
      cluster.missing.push_back({worker.task, worker.name, std::move(why)});
    };
    if (task.state != coord::TaskState::kConnected) {
      miss(task.state == coord::TaskState::kError
               ? absl::StrCat("has failed: ", Quoted(task.status.message()))
               : "has not joined");
      continue;
    }
    const auto found = facts.records.find(records_.key(node));
    if (found == facts.records.end()) {
      miss("has joined, but serves no graphs; ferry worker does");
      continue;
    }
    const absl::StatusOr<WorkerRecord> record = records_.read(node, *found->second);
    if (!record.ok()) {
      miss(absl::StrCat("has a record that cannot be read: ", record.status().message()));
      continue;
    }
    if (record->incarnation != task.incarnation.value()) {
      miss("has restarted, and has not said yet where it listens");
      continue;
    }
    if (record->address.empty()) {
      miss("has joined, but serves no graphs; ferry worker does");
      continue;
    }
    if (!Complete(worker, *record, facts)) {
      miss("has joined, but the devices of all nodes are not known yet");
      continue;
    }
    cluster.workers.push_back(std::move(worker));
  }
  return cluster;
}

}  // namespace ferry::master
