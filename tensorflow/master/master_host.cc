// SPDX-License-Identifier: Apache-2.0
// Assembles and tears down a master.
#include "tensorflow/master/master_host.h"

#include <random>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

#include "tensorflow/master/master_service.h"

namespace ferry::master {
namespace {

// Number of graphs processed concurrently; few, so that heartbeats are not delayed.
constexpr int kWorkThreads = 2;

// Thread-safe.
class Random final {
 public:
  uint64_t Next() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return engine_();
  }

 private:
  absl::Mutex mu_;
  std::mt19937_64 engine_ ABSL_GUARDED_BY(mu_) = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
};

}  // namespace

MasterHost::MasterHost(MasterOptions options, WorkerRecords records)
    : options_(std::move(options)), records_(std::move(records)), timers_(SteadyClock()) {}

MasterHost::~MasterHost() {
  Stop(absl::ZeroDuration());
  // Destroy users before what they use.
  if (looks_ != nullptr) looks_->Stop();
  if (pool_ != nullptr) pool_->Stop();
  timer_thread_ = nullptr;
}

std::vector<std::unique_ptr<grpc::Service>> MasterHost::Attach(coord::CoordinatorExecutor& strand,
                                                               coord::GenericMethodTable& rare) {
  timer_thread_ = std::make_unique<TimerThread>(timers_);
  pool_ = std::make_unique<WorkPool>("ferry-graph-", kWorkThreads);
  looks_ = std::make_unique<WorkPool>("ferry-looks-", 1);
  workers_ = std::make_unique<JobWorkers>(
      strand, records_, [this](const std::string& address, const std::string& token) {
        return links_.Connect(address, token);
      });
  const auto run_on = [](WorkPool& pool) -> RunWork {
    return [&pool](absl::AnyInvocable<void() &&> work) { pool.Add(std::move(work)); };
  };
  master_ = std::make_unique<Master>(
      options_, Master::Parts{*workers_, timers_, run_on(*pool_), run_on(*looks_),
                              [random = std::make_shared<Random>()] { return random->Next(); }});
  workers_->Watch([this] { master_->ClusterChanged(); });
  // If the server fails to start, it destroys its services, then the executor: stop before that.
  const std::shared_ptr<const void> guard(
      this, [](MasterHost* host) { host->Stop(absl::ZeroDuration()); });
  return MakeMasterServices(*master_, rare, guard);
}

void MasterHost::Stop(absl::Duration grace) {
  if (master_ == nullptr || std::exchange(is_stopped_, true)) return;
  workers_->Stop();
  const auto told = std::make_shared<absl::Notification>();
  master_->Stop([told] { told->Notify(); });
  told->WaitForNotificationWithTimeout(grace);
  // Cancels all calls to workers, and so completes everything that waits for them.
  links_.Stop();
  told->WaitForNotification();
}

}  // namespace ferry::master
