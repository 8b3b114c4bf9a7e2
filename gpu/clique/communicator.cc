// SPDX-License-Identifier: Apache-2.0
// The bootstrap's steps with NCCL, driven by the thread that waits for the communicator.
#include "gpu/clique/communicator.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

#include "base/clock.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "gpu/clique/communicator_work.h"
#include "gpu/clique/first_exchange.h"
#include "gpu/clique/store_event_queue.h"
#include "gpu/cuda/cuda_event.h"
#include "gpu/nccl/unique_ids.h"
#include "gpu/nccl_arbiter.h"

namespace ferry {
namespace {

// Polling interval for NCCL and the device while an operation is in flight.
constexpr absl::Duration kLook = absl::Milliseconds(1);
constexpr absl::Duration kEnqueueLook = absl::Microseconds(20);
// Minimum time for the device's thread to run a call, however little of the deadline is left.
constexpr absl::Duration kShortestCallTimeout = absl::Seconds(1);
constexpr absl::Duration kCallTimeout = absl::Seconds(30);

}  // namespace

// All NCCL calls are made on the device's executor thread, in its order; the bootstrap, and this
// object, belong to the thread that creates the communicator.
class NcclCommunicator::Maker final : public CliqueSteps {
 public:
  Maker(std::shared_ptr<const nccl::NcclApi> api, Gpus& gpus, Gpu& gpu, const CliqueKey& key,
        int rank, const CliqueStoreFactory& store, const CommunicatorOptions& options)
      : api_(std::move(api)),
        gpus_(gpus),
        gpu_(gpu),
        options_(options),
        rank_(rank),
        turns_(gpus.turns(gpu.device->ordinal())),
        store_(store(mailbox_)),
        plan_(key, rank,
              {.nccl_version = api_->version(),
               .timeout = options.timeout,
               .ranks_per_id = options.ranks_per_id},
              *store_, *this, SteadyClock()) {}

  // Other ranks may have the communicator already, or wait for it: this tells them that it is over.
  ~Maker() override { plan_.Retire(absl::CancelledError("the communicator is not used any more")); }

  absl::Status Run() {
    if (options_.warms_up) {
      FERRY_ASSIGN_OR_RETURN(exchange_, FirstExchange::Create(
                                            api_, gpus_, gpu_,
                                            [this](std::function<absl::Status()> call) {
                                              return OnDevice(std::move(call));
                                            },
                                            rank_, plan_.key().size()));
    }
    plan_.Start();
    while (!ended_.has_value()) {
      FERRY_RETURN_IF_ERROR(KeepGoing());
      mailbox_->Deliver(plan_, kLook);
      if (!ended_.has_value()) Look();
      if (!ended_.has_value()) plan_.Expire();
    }
    return *ended_;
  }

  // --- CliqueSteps ---

  absl::StatusOr<std::vector<std::string>> Mint(int count) override {
    return nccl::MintUniqueIds(api_, count, plan_.NextDeadline(), [this] { return KeepGoing(); });
  }

  void Initialise(uint32_t generation, const std::vector<std::string>& ids) override {
    FERRY_LOG_INFO(kGpu, "NCCL communicator begun: gpu:{} rank={} of {} attempt={}",
                   gpu_.device->ordinal(), rank_, plan_.key().size(), generation);
    begun_ = generation;
    phase_ = Phase::kInitialising;
    step_ = OnDevice([&]() -> absl::Status {
      std::vector<nccl::UniqueId> unique(ids.size());
      for (size_t i = 0; i < ids.size(); ++i) {
        std::copy(ids[i].begin(), ids[i].end(), unique[i].bytes);
      }
      nccl::Config config;
      config.blocking = 0;
      if (options_.max_ctas > 0) config.max_ctas = options_.max_ctas;
      const int size = plan_.key().size();
      if (unique.size() == 1) {
        return api_->Check(api_->table().init_rank_config(&comm_, size, unique[0], rank_, &config),
                           "ncclCommInitRankConfig");
      }
      if (api_->table().init_rank_scalable == nullptr) {
        return absl::UnimplementedError(
            absl::StrCat("NCCL ", nccl::VersionText(api_->version()), " of ", api_->path(),
                         " initialises no clique of ", size, " ranks at once; 2.23 does"));
      }
      return api_->Check(
          api_->table().init_rank_scalable(&comm_, size, rank_, static_cast<int>(unique.size()),
                                           unique.data(), &config),
          "ncclCommInitRankScalable");
    });
  }

  std::optional<uint64_t> LineUp(uint32_t generation) override {
    if (exchange_ == nullptr) return std::nullopt;
    return exchange_->LineUp(plan_.key(), generation);
  }

  void WarmUp(uint32_t generation, uint64_t number) override {
    phase_ = Phase::kWarmingUp;
    if (exchange_ != nullptr) exchange_->Begin(comm_, number);
  }

  std::string DescribeWarmUp() const override {
    return exchange_ == nullptr ? "" : exchange_->Describe();
  }

  void GivenUp(uint32_t generation, const absl::Status& why) override { given_up_ = why; }

  void Discard(uint32_t generation, const absl::Status& why) override {
    FERRY_LOG_INFO(kGpu, "NCCL communicator discarded: gpu:{} rank={} of {} attempt={}: {}",
                   gpu_.device->ordinal(), rank_, plan_.key().size(), generation, why);
    AbortNow();
    if (exchange_ != nullptr) exchange_->End();
    phase_ = Phase::kIdle;
  }

  void Ended(const absl::Status& status) override {
    FERRY_LOG_INFO(kGpu, "NCCL communicator made: gpu:{} rank={} of {}: {}", gpu_.device->ordinal(),
                   rank_, plan_.key().size(), status);
    ended_ = status;
  }

  // --- Once it is ready ---

  void Abort(const absl::Status& why) {
    // No call is in progress: other communicators that are waited for must not wait for this
    // device's executor.
    AbortNow(/*has_callers=*/false);
    {
      absl::MutexLock lock(&plan_mu_);
      plan_.Retire(why);
    }
    // Destroyed here, where blocking on the coordinator is allowed; the bootstrap no longer uses
    // it.
    store_.reset();
  }

  void Listen(std::function<void()> heard) { mailbox_->Listen(std::move(heard)); }

  absl::Status Check() {
    absl::MutexLock lock(&plan_mu_);
    if (plan_.state() == CliqueState::kReady) mailbox_->Deliver(plan_, absl::ZeroDuration());
    return given_up_;
  }

  absl::Status Settled() {
    FERRY_RETURN_IF_ERROR(Check());
    if (comm_ == nullptr) return absl::AbortedError("it was aborted");
    if (gpu_.nccl->is_own_thread()) return WorkUnderWay();
    FERRY_ASSIGN_OR_RETURN(const bool is_over, work_.IsOver());
    if (!is_over) return WorkUnderWay();
    return WaitEnqueued(absl::ZeroDuration());
  }

  absl::Status WaitEnqueued(absl::Duration timeout) {
    const absl::Time deadline = SteadyClock().Now() + timeout;
    while (true) {
      nccl::Result state = nccl::kSuccess;
      FERRY_RETURN_IF_ERROR(OnDevice([&] {
        return api_->Check(api_->table().get_async_error(comm_, &state), "ncclCommGetAsyncError",
                           comm_);
      }));
      if (state != nccl::kInProgress) return api_->Check(state, "a communicator's work", comm_);
      if (SteadyClock().Now() >= deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat("NCCL has not enqueued within ", absl::FormatDuration(timeout), " what ",
                         plan_.key().DescribeRank(rank_), " of ", plan_.key().Describe(),
                         " has asked for: another rank has not, or is gone"));
      }
      absl::SleepFor(kEnqueueLook);
    }
  }

  absl::Status Run(cuda::Stream stream, RunCalls calls, absl::Duration timeout) {
    const absl::Time deadline = SteadyClock().Now() + timeout;
    FERRY_ASSIGN_OR_RETURN(std::shared_ptr<NcclTurn> turn,
                           NcclTurn::Take(turns_, gpus_.gate(), timeout));
    const absl::Status called = OnDevice(
        [&] { return api_->Check(calls(api_->table(), comm_), "a call of NCCL's", comm_); });
    const absl::Status enqueued =
        WaitEnqueued(std::max(deadline - SteadyClock().Now(), absl::ZeroDuration()));
    const absl::Status followed = enqueued.ok() ? Follow(stream, turn) : enqueued;
    if (!followed.ok()) {
      // Work in flight ends only with the communicator.
      work_.AddEndless(std::move(turn));
    }
    return called.ok() ? followed : called;
  }

  // `call` must not block the executor.
  absl::Status OnDevice(std::function<absl::Status()> call) {
    const absl::Duration left = plan_.NextDeadline() - SteadyClock().Now();
    return gpu_.nccl->PostAndWait(
        std::move(call), std::clamp(left, kShortestCallTimeout, kCallTimeout), "a call of NCCL's");
  }

  const std::shared_ptr<const nccl::NcclApi>& api() const { return api_; }
  nccl::Communicator comm() const { return comm_; }
  Gpu& gpu() const { return gpu_; }
  const CommunicatorBootstrap& plan() const { return plan_; }
  int rank() const { return rank_; }

 private:
  enum class Phase { kIdle, kInitialising, kWarmingUp };

  absl::Status KeepGoing() const {
    return options_.keep_going ? options_.keep_going() : absl::OkStatus();
  }

  absl::Status WorkUnderWay() const {
    return absl::FailedPreconditionError(
        absl::StrCat("work is under way on ", plan_.key().Describe()));
  }

  // Ends the turn when the stream's work has completed.
  absl::Status Follow(cuda::Stream stream, std::shared_ptr<NcclTurn> turn) {
    const cuda::ScopedCurrent current(*gpu_.device);
    FERRY_ASSIGN_OR_RETURN(std::shared_ptr<const cuda::ReadyEvent> over,
                           cuda::ReadyEvent::Record(*gpu_.events, stream));
    work_.Add(over);
    return gpu_.nccl->Watch(
        {.event = std::move(over), .what = "a program's NCCL work", .keep = std::move(turn)},
        [](absl::Status) {});
  }

  // Runs on the calling thread: it may block until every kernel has left the device, and the
  // executor must stay free for the other communicators whose kernels must leave too.
  void AbortNow(bool has_callers = true) {
    nccl::Communicator const comm = std::exchange(comm_, nullptr);
    if (comm == nullptr) return;
    // Wait until no call on it is in progress.
    if (has_callers && !gpu_.nccl->is_own_thread())
      OnDevice([] { return absl::OkStatus(); }).IgnoreError();
    const cuda::ScopedCurrent current(*gpu_.device);
    const absl::Status ignored = api_->Check(api_->table().abort(comm), "ncclCommAbort");
    work_.EndAll();
  }

  // Polls the operation in progress.
  void Look() {
    if (phase_ == Phase::kWarmingUp) {
      const std::optional<absl::Status> warm =
          exchange_ == nullptr ? absl::OkStatus() : exchange_->Look();
      if (!warm.has_value()) return;
      phase_ = Phase::kIdle;
      return plan_.OnWarmedUp(begun_, *warm);
    }
    if (phase_ != Phase::kInitialising) return;
    bool is_over = false;
    if (step_.ok()) {
      step_ = OnDevice([&]() -> absl::Status {
        nccl::Result state = nccl::kSuccess;
        FERRY_RETURN_IF_ERROR(api_->Check(api_->table().get_async_error(comm_, &state),
                                          "ncclCommGetAsyncError", comm_));
        is_over = state != nccl::kInProgress;
        return api_->Check(state, "initialising", comm_);
      });
    }
    if (step_.ok() && !is_over) return;
    phase_ = Phase::kIdle;
    plan_.OnInitialised(begun_, std::exchange(step_, absl::OkStatus()));
  }

  const std::shared_ptr<const nccl::NcclApi> api_;
  Gpus& gpus_;
  Gpu& gpu_;
  const CommunicatorOptions options_;
  const int rank_;
  const std::shared_ptr<NcclArbiter> turns_;
  const std::shared_ptr<StoreEventQueue> mailbox_ = std::make_shared<StoreEventQueue>();
  std::unique_ptr<CliqueStore> store_;
  // Serializes use of the bootstrap once it is Ready.
  absl::Mutex plan_mu_;
  CommunicatorBootstrap plan_;
  absl::Status given_up_;

  std::optional<absl::Status> ended_;
  Phase phase_ = Phase::kIdle;
  // Result of starting the initialization.
  absl::Status step_;
  uint32_t begun_ = 0;
  nccl::Communicator comm_ = nullptr;
  // Null if options_.warms_up is false.
  std::unique_ptr<FirstExchange> exchange_;

  CommunicatorWork work_;
};

NcclCommunicator::NcclCommunicator(std::unique_ptr<Maker> maker) : maker_(std::move(maker)) {}
NcclCommunicator::~NcclCommunicator() = default;

absl::StatusOr<std::shared_ptr<NcclCommunicator>> NcclCommunicator::Make(
    std::shared_ptr<const nccl::NcclApi> api, Gpus& gpus, int ordinal, const CliqueKey& key,
    int rank, const CliqueStoreFactory& store, const CommunicatorOptions& options) {
  // It overrides the communicator's configuration, and blocking calls would keep the device's
  // thread from all other work.
  const char* const blocking = std::getenv("NCCL_COMM_BLOCKING");
  if (blocking != nullptr && std::atoi(blocking) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("NCCL_COMM_BLOCKING=", blocking,
                     " makes every call of NCCL's block: unset it, Ferry's must not"));
  }
  FERRY_ASSIGN_OR_RETURN(Gpu* const gpu, gpus.Get(ordinal));
  auto maker = std::make_unique<Maker>(std::move(api), gpus, *gpu, key, rank, store, options);
  FERRY_RETURN_IF_ERROR(maker->Run());
  return std::shared_ptr<NcclCommunicator>(new NcclCommunicator(std::move(maker)));
}

nccl::Communicator NcclCommunicator::get() const { return maker_->comm(); }
const nccl::NcclApi& NcclCommunicator::api() const { return *maker_->api(); }
int NcclCommunicator::rank() const { return maker_->rank(); }
int NcclCommunicator::size() const { return maker_->plan().key().size(); }
int NcclCommunicator::ordinal() const { return maker_->gpu().device->ordinal(); }
uint32_t NcclCommunicator::generation() const { return maker_->plan().generation(); }
absl::Status NcclCommunicator::Run(cuda::Stream stream, RunCalls calls, absl::Duration timeout) {
  return maker_->Run(stream, calls, timeout);
}
absl::Status NcclCommunicator::RunAside(RunCalls calls, absl::Duration timeout) {
  FERRY_RETURN_IF_ERROR(maker_->OnDevice(
      [&] { return api().Check(calls(api().table(), get()), "a call of NCCL's", get()); }));
  return WaitEnqueued(timeout);
}
void NcclCommunicator::Listen(std::function<void()> heard) { maker_->Listen(std::move(heard)); }
absl::Status NcclCommunicator::Settled() { return maker_->Settled(); }
absl::Status NcclCommunicator::Check() { return maker_->Check(); }
void NcclCommunicator::Abort(const absl::Status& why) { maker_->Abort(why); }
absl::Status NcclCommunicator::WaitEnqueued(absl::Duration timeout) {
  return maker_->WaitEnqueued(timeout);
}

}  // namespace ferry
