// SPDX-License-Identifier: Apache-2.0
// The bootstrap's steps with NCCL, driven by the thread that waits for the communicator.
#include "gpu/communicator/communicator.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

#include "base/clock.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "gpu/communicator/communicator_warm_up.h"
#include "gpu/communicator/in_flight_operations.h"
#include "gpu/communicator/stopped_ranks.h"
#include "gpu/communicator/store_event_queue.h"
#include "gpu/cuda/cuda_event.h"
#include "gpu/nccl/unique_ids.h"
#include "gpu/nccl_arbiter.h"

namespace ferry {
namespace {

// Polling interval for NCCL and the device while an operation is in flight.
constexpr absl::Duration kPollInterval = absl::Milliseconds(1);
constexpr absl::Duration kEnqueuePollInterval = absl::Microseconds(20);
// Minimum time for the device's thread to run a call, however little of the deadline is left.
constexpr absl::Duration kShortestCallTimeout = absl::Seconds(1);
constexpr absl::Duration kCallTimeout = absl::Seconds(30);
// Freeing a communicator waits this long for other NCCL work of the process to end, and keeps new
// work from starting for so long at most.
constexpr absl::Duration kQuietTimeout = absl::Seconds(2);
constexpr absl::Duration kMaxQuiet = absl::Seconds(1);

// NCCL's functions, and the ranks' reports, for one communicator that ends.
class EndCalls final : public CommunicatorEnd::Calls {
 public:
  EndCalls(const nccl::NcclApi& api, nccl::Communicator comm, std::function<void()> report_stopped,
           const StoppedRanks& stopped, uint32_t generation)
      : api_(api),
        comm_(comm),
        report_stopped_(std::move(report_stopped)),
        stopped_(stopped),
        generation_(generation) {}

  absl::Status Finalize() override {
    return api_.Check(api_.table().finalize(comm_), "ncclCommFinalize", comm_);
  }
  bool CanRevoke() const override { return api_.table().revoke != nullptr; }
  absl::Status Revoke() override {
    return api_.Check(api_.table().revoke(comm_, nccl::kRevokeDefault), "ncclCommRevoke", comm_);
  }
  absl::StatusOr<bool> IsSettled() override {
    nccl::Result state = nccl::kSuccess;
    FERRY_RETURN_IF_ERROR(
        api_.Check(api_.table().get_async_error(comm_, &state), "ncclCommGetAsyncError", comm_));
    FERRY_RETURN_IF_ERROR(api_.Check(state, "ending a communicator", comm_));
    return state != nccl::kInProgress;
  }
  absl::Status Destroy() override {
    return api_.Check(api_.table().destroy(comm_), "ncclCommDestroy");
  }
  absl::Status Abort() override { return api_.Check(api_.table().abort(comm_), "ncclCommAbort"); }
  void ReportStopped() override {
    if (!std::exchange(has_reported_, true)) report_stopped_();
  }
  bool HaveOthersStopped() override { return stopped_.HaveOthersStopped(generation_); }
  std::string DescribeOthers() override { return stopped_.DescribeMissing(generation_); }

 private:
  const nccl::NcclApi& api_;
  nccl::Communicator const comm_;
  const std::function<void()> report_stopped_;
  const StoppedRanks& stopped_;
  const uint32_t generation_;
  bool has_reported_ = false;
};

}  // namespace

// A communicator that another one is made of. It ends with this, on the thread that creates the
// other one, which makes all calls on it.
class NcclCommunicator::Yielded final {
 public:
  // Null if it cannot be used, for the reason that is logged; it has ended then.
  static std::unique_ptr<Yielded> Take(std::shared_ptr<NcclCommunicator> from, int ordinal,
                                       const CommunicatorKey& key);
  ~Yielded();

  const RankOrigin& offer() const { return offer_; }
  // May wait for the ranks of the origin to be reachable.
  absl::StatusOr<std::string> CreateGrowId();
  // Starts; IsMade reports the end.
  absl::Status Shrink(nccl::Config& config);
  absl::Status Grow(int size, absl::string_view id, nccl::Config& config);
  // After Shrink: its communicator exists only once it is complete.
  absl::StatusOr<bool> IsShrunk();
  // After Shrink when IsShrunk, after Grow at once. The caller ends it.
  nccl::Communicator TakeChild() { return __atomic_exchange_n(&child_, nullptr, __ATOMIC_ACQ_REL); }

 private:
  Yielded(std::shared_ptr<NcclCommunicator> from, const RankOrigin& offer,
          std::vector<int> excluded);

  const std::shared_ptr<NcclCommunicator> from_;
  const RankOrigin offer_;
  // Ranks that are not in the other one; none: it grows.
  std::vector<int> excluded_;
  nccl::Communicator const comm_;
  EndCalls calls_;
  CommunicatorEnd end_;
  // Written by NCCL while it shrinks.
  nccl::Communicator child_ = nullptr;
};

// All NCCL calls are made on the device's executor thread, in its order; the bootstrap, and this
// object, belong to the thread that creates the communicator.
class NcclCommunicator::Impl final : public BootstrapActions {
 public:
  Impl(std::shared_ptr<const nccl::NcclApi> api, Gpus& gpus, Gpu& gpu, const CommunicatorKey& key,
       int rank, const BootstrapStoreFactory& store, const CommunicatorOptions& options,
       std::unique_ptr<Yielded> yielded)
      : api_(std::move(api)),
        gpus_(gpus),
        gpu_(gpu),
        options_(options),
        rank_(rank),
        arbiter_(gpus.nccl_arbiter(gpu.device->ordinal())),
        stopped_(std::make_shared<StoppedRanks>(key, rank, options.is_gone)),
        store_(store(events_)),
        bootstrap_(key, rank,
                   {.nccl_version = api_->version(),
                    .timeout = options.timeout,
                    .ranks_per_id = options.ranks_per_id,
                    .origin = OfferOf(options, yielded.get(), *api_)},
                   *store_, *this, SteadyClock()),
        yielded_(std::move(yielded)) {}

  // Other ranks may have the communicator already, or wait for it: this tells them that it is over.
  ~Impl() override {
    bootstrap_.Retire(absl::CancelledError("the communicator is not used any more"));
  }

  absl::Status Run() {
    if (options_.warms_up) {
      FERRY_ASSIGN_OR_RETURN(warm_up_, CommunicatorWarmUp::Create(
                                           api_, gpus_, gpu_,
                                           [this](std::function<absl::Status()> call) {
                                             return OnDevice(std::move(call));
                                           },
                                           rank_, bootstrap_.key().size()));
    }
    bootstrap_.Start();
    while (!ended_.has_value()) {
      FERRY_RETURN_IF_ERROR(KeepGoing());
      events_->Deliver(bootstrap_, kPollInterval);
      if (!ended_.has_value()) Poll();
      if (!ended_.has_value()) bootstrap_.Expire();
    }
    return *ended_;
  }

  // --- BootstrapActions ---

  absl::StatusOr<std::vector<std::string>> CreateUniqueIds(int count) override {
    return nccl::CreateUniqueIds(api_, count, bootstrap_.NextDeadline(),
                                 [this] { return KeepGoing(); });
  }

  absl::StatusOr<std::string> CreateGrowId() override {
    // The store may say of this rank what it has not offered.
    if (yielded_ == nullptr) {
      return absl::AbortedError("to grow, which this rank has not offered");
    }
    return yielded_->CreateGrowId();
  }

  void Initialise(uint32_t generation, CommunicatorWay way,
                  const std::vector<std::string>& ids) override {
    FERRY_LOG_INFO(kGpu, "NCCL communicator begun: gpu:{} rank={} of {} attempt={} way={}",
                   gpu_.device->ordinal(), rank_, bootstrap_.key().size(), generation,
                   static_cast<int>(way));
    begun_ = generation;
    way_ = way;
    phase_ = Phase::kInitialising;
    if (way != CommunicatorWay::kCreate) {
      step_ = Reshape(ids);
      return;
    }
    step_ = OnDevice([&]() -> absl::Status {
      std::vector<nccl::UniqueId> unique(ids.size());
      for (size_t i = 0; i < ids.size(); ++i) {
        std::copy(ids[i].begin(), ids[i].end(), unique[i].bytes);
      }
      nccl::Config config = ConfigOf();
      const int size = bootstrap_.key().size();
      if (unique.size() == 1) {
        return api_->Check(api_->table().init_rank_config(&comm_, size, unique[0], rank_, &config),
                           "ncclCommInitRankConfig");
      }
      if (api_->table().init_rank_scalable == nullptr) {
        return absl::UnimplementedError(
            absl::StrCat("NCCL ", nccl::VersionText(api_->version()), " of ", api_->path(),
                         " initialises no communicator of ", size, " ranks at once; 2.23 does"));
      }
      return api_->Check(
          api_->table().init_rank_scalable(&comm_, size, rank_, static_cast<int>(unique.size()),
                                           unique.data(), &config),
          "ncclCommInitRankScalable");
    });
  }

  std::optional<uint64_t> ProposeSequenceNumber(uint32_t generation) override {
    if (warm_up_ == nullptr) return std::nullopt;
    return warm_up_->ProposeSequenceNumber(bootstrap_.key(), generation);
  }

  void WarmUp(uint32_t generation, uint64_t number) override {
    phase_ = Phase::kWarmingUp;
    if (warm_up_ != nullptr) warm_up_->Begin(comm_, number);
  }

  std::string DescribeWarmUp() const override {
    return warm_up_ == nullptr ? "" : warm_up_->Describe();
  }

  void OnAbandoned(uint32_t generation, const absl::Status& why) override { abandoned_ = why; }

  void Discard(uint32_t generation, const absl::Status& why) override {
    FERRY_LOG_INFO(kGpu, "NCCL communicator discarded: gpu:{} rank={} of {} attempt={}: {}",
                   gpu_.device->ordinal(), rank_, bootstrap_.key().size(), generation, why);
    if (comm_ == nullptr) {
      // Also ends a child that is not there yet.
      yielded_ = nullptr;
      // NCCL has made nothing here, and may have on other ranks. If it had made it, the caller ends
      // it, which must not wait for the executor.
      if (!ended_.has_value()) EndCallsOf(nullptr).ReportStopped();
    } else {
      const bool is_idle = IsIdle();
      // Wait until no call on it is in progress.
      if (!gpu_.nccl->is_own_thread()) OnDevice([] { return absl::OkStatus(); }).IgnoreError();
      EndNow(std::exchange(comm_, nullptr), is_idle, nullptr);
      yielded_ = nullptr;
    }
    if (warm_up_ != nullptr) warm_up_->End();
    phase_ = Phase::kIdle;
  }

  void OnEnded(const absl::Status& status) override {
    FERRY_LOG_INFO(kGpu, "NCCL communicator made: gpu:{} rank={} of {}: {}", gpu_.device->ordinal(),
                   rank_, bootstrap_.key().size(), status);
    ended_ = status;
    yielded_ = nullptr;
  }

  // --- Once it is ready ---

  void End(const absl::Status& why, bool is_idle, const std::function<void()>& on_stopped) {
    // The other ranks are told first: NCCL may wait for them.
    nccl::Communicator const comm = std::exchange(comm_, nullptr);
    Retire(why);
    // No call is in progress: other communicators that are waited for must not wait for this
    // device's executor.
    EndNow(comm, is_idle, on_stopped);
    CloseStore();
  }

  void Retire(const absl::Status& why) {
    absl::MutexLock lock(&bootstrap_mu_);
    bootstrap_.Retire(why);
  }
  // Where blocking on the coordinator is allowed. REQUIRES: retired: the bootstrap no longer uses
  // it.
  void CloseStore() { store_.reset(); }

  // How `comm`, of this rank, ends. REQUIRES: this outlives it.
  EndCalls EndCallsOf(nccl::Communicator comm) {
    return EndCalls(
        *api_, comm,
        [this, generation = begun_] {
          store_->Set(bootstrap_.key().StoppedKey(generation, rank_), "1");
        },
        *stopped_, begun_);
  }

  // Its communicator; the caller retires this, ends the communicator by FinishEnd, and closes the
  // store.
  nccl::Communicator Yield() {
    OnDevice([] { return absl::OkStatus(); }).IgnoreError();
    is_initialised_ = false;
    return std::exchange(comm_, nullptr);
  }

  void Listen(std::function<void()> on_event) { events_->Listen(std::move(on_event)); }

  absl::Status Check() {
    absl::MutexLock lock(&bootstrap_mu_);
    if (bootstrap_.state() == BootstrapState::kReady)
      events_->Deliver(bootstrap_, absl::ZeroDuration());
    return abandoned_;
  }

  absl::Status CheckReusable() {
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
                         bootstrap_.key().DescribeRank(rank_), " of ", bootstrap_.key().Describe(),
                         " has asked for: another rank has not, or is gone"));
      }
      absl::SleepFor(kEnqueuePollInterval);
    }
  }

  absl::Status Run(cuda::Stream stream, RunCalls calls, absl::Duration timeout) {
    const absl::Time deadline = SteadyClock().Now() + timeout;
    FERRY_ASSIGN_OR_RETURN(std::shared_ptr<NcclTurn> turn,
                           NcclTurn::Take(arbiter_, gpus_.gate(), timeout));
    const absl::Status called = OnDevice(
        [&] { return api_->Check(calls(api_->table(), comm_), "a call of NCCL's", comm_); });
    const absl::Status enqueued =
        WaitEnqueued(std::max(deadline - SteadyClock().Now(), absl::ZeroDuration()));
    const absl::Status followed = enqueued.ok() ? Follow(stream, turn) : enqueued;
    if (!followed.ok()) {
      // Work in flight ends only with the communicator.
      work_.AddUntilEnd(std::move(turn));
    }
    return called.ok() ? followed : called;
  }

  // `call` must not block the executor.
  absl::Status OnDevice(std::function<absl::Status()> call) {
    const absl::Duration left = bootstrap_.NextDeadline() - SteadyClock().Now();
    return gpu_.nccl->PostAndWait(
        std::move(call), std::clamp(left, kShortestCallTimeout, kCallTimeout), "a call of NCCL's");
  }

  const std::shared_ptr<const nccl::NcclApi>& api() const { return api_; }
  nccl::Communicator comm() const { return comm_; }
  Gpu& gpu() const { return gpu_; }
  const CommunicatorBootstrap& bootstrap() const { return bootstrap_; }
  int rank() const { return rank_; }
  CommunicatorWay way() const { return way_; }
  const CommunicatorEnd::Options& end_options() const { return options_.end; }

  // Whether it is initialised, and nothing that Ferry knows of is in flight on it. What a program
  // has in flight without Run is flushed, or aborted at the deadline.
  bool IsIdle() {
    if (phase_ != Phase::kIdle || !is_initialised_ || gpu_.nccl->is_own_thread()) return false;
    // It has failed, not ended.
    if (warm_up_ != nullptr && warm_up_->is_in_flight()) return false;
    return work_.IsOver().value_or(false) && WaitEnqueued(absl::ZeroDuration()).ok();
  }

  // Ends one that has begun to, with the device current.
  void FinishEnd(CommunicatorEnd& end) {
    Finish(end);
    end.AwaitOthers();
    Finish(end);
    if (end.state() == CommunicatorEnd::State::kDestroying) {
      FreeQuiesced(end);
    } else {
      end.Free();
    }
    if (!end.problem().ok()) {
      FERRY_LOG_WARN(kGpu, "NCCL communicator aborted: gpu:{} rank={} of {}: {}",
                     gpu_.device->ordinal(), rank_, bootstrap_.key().size(), end.problem());
    }
    work_.EndAll();
  }

 private:
  enum class Phase { kIdle, kInitialising, kWarmingUp };

  absl::Status KeepGoing() const {
    return options_.keep_going ? options_.keep_going() : absl::OkStatus();
  }

  absl::Status WorkUnderWay() const {
    return absl::FailedPreconditionError(
        absl::StrCat("work is under way on ", bootstrap_.key().Describe()));
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

  static std::optional<RankOrigin> OfferOf(const CommunicatorOptions& options,
                                           const Yielded* yielded, const nccl::NcclApi& api) {
    if (yielded != nullptr) return yielded->offer();
    const bool joins = options.origin.has_value() && options.origin->from == nullptr;
    return joins && api.table().grow != nullptr ? std::optional<RankOrigin>(RankOrigin{})
                                                : std::nullopt;
  }

  // Starts to make it of the origin. On this thread: NCCL may wait for what other ranks of the
  // origin have sent, and the executor must not.
  absl::Status Reshape(const std::vector<std::string>& ids) {
    const cuda::ScopedCurrent current(*gpu_.device);
    FERRY_RETURN_IF_ERROR(current.status());
    nccl::Config config = ConfigOf();
    if (way_ == CommunicatorWay::kShrink) {
      // The store's way need not fit this rank's offer.
      return yielded_ != nullptr ? yielded_->Shrink(config)
                                 : absl::AbortedError("there is nothing here to shrink");
    }
    const int size = bootstrap_.key().size();
    if (yielded_ != nullptr) {
      const absl::Status status = yielded_->Grow(size, ids[0], config);
      comm_ = yielded_->TakeChild();
      return status;
    }
    nccl::UniqueId id;
    std::copy(ids[0].begin(), ids[0].end(), id.bytes);
    return api_->Check(api_->table().grow(nullptr, size, &id, rank_, &comm_, &config),
                       "ncclCommGrow");
  }

  nccl::Config ConfigOf() const {
    nccl::Config config;
    config.blocking = 0;
    if (options_.max_ctas > 0) config.max_ctas = options_.max_ctas;
    return config;
  }

  // Runs on the calling thread, which makes all calls from here on: it may block until every kernel
  // has left the device, and the executor must stay free for the other communicators whose kernels
  // must leave too. REQUIRES: no other call on it is in progress.
  //   on_stopped: as for Abort; may be null.
  void EndNow(nccl::Communicator comm, bool is_idle, const std::function<void()>& on_stopped) {
    if (comm == nullptr) return;
    const cuda::ScopedCurrent current(*gpu_.device);
    EndCalls calls = EndCallsOf(comm);
    CommunicatorEnd end(calls, SteadyClock(), options_.end);
    const bool was_initialised = std::exchange(is_initialised_, false);
    if (gpu_.nccl->is_own_thread()) {
      // The executor must not wait.
      calls.Abort().IgnoreError();
      calls.ReportStopped();
      return work_.EndAll();
    }
    was_initialised ? end.Begin(is_idle) : end.BeginUninitialized();
    // Cancelled before it took part in any operation: its user does not wait for the others. Not
    // once it was made: what keep_going refers to may not exist any more.
    if (!was_initialised && !ended_.has_value() && !KeepGoing().ok()) stopped_->IgnoreAll();
    if (end.state() == CommunicatorEnd::State::kRevoking && on_stopped) on_stopped();
    FinishEnd(end);
  }

  // Polls until nothing is waited for.
  static void Finish(CommunicatorEnd& end) {
    while (end.is_waiting()) {
      absl::SleepFor(kPollInterval);
      end.Poll();
    }
  }

  // Frees memory, for which the driver may wait until the device is idle: while no NCCL work of
  // this process is in flight. NCCL may also wait for ranks of this machine that have not finalized
  // it yet, and so another thread ends the quiet after a while.
  void FreeQuiesced(CommunicatorEnd& end) {
    absl::Notification is_quiet;
    absl::Notification is_freed;
    absl::Status failed;
    Thread holder("ferry-ncclquiet", [&] {
      const absl::Status status = gpus_.gate()->RunQuiesced(
          kQuietTimeout, "free an NCCL communicator", [&is_quiet, &is_freed] {
            is_quiet.Notify();
            is_freed.WaitForNotificationWithTimeout(kMaxQuiet);
          });
      if (status.ok()) return;
      failed = status;
      is_quiet.Notify();
    });
    is_quiet.WaitForNotification();
    if (!failed.ok()) end.GiveUp(failed);
    end.Free();
    is_freed.Notify();
    holder.Join();
  }

  // Polls the operation in progress.
  void Poll() {
    if (phase_ == Phase::kWarmingUp) {
      const std::optional<absl::Status> warm =
          warm_up_ == nullptr ? absl::OkStatus() : warm_up_->Poll();
      if (!warm.has_value()) return;
      phase_ = Phase::kIdle;
      return bootstrap_.OnWarmedUp(begun_, *warm);
    }
    if (phase_ != Phase::kInitialising) return;
    bool is_over = false;
    if (step_.ok() && way_ == CommunicatorWay::kShrink && comm_ == nullptr) {
      const absl::StatusOr<bool> is_shrunk = yielded_->IsShrunk();
      step_ = is_shrunk.status();
      if (step_.ok() && !*is_shrunk) return;
      comm_ = yielded_->TakeChild();
      if (step_.ok() && comm_ == nullptr)
        step_ = absl::InternalError("ncclCommShrink made nothing");
    }
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
    is_initialised_ = step_.ok();
    bootstrap_.OnInitialised(begun_, std::exchange(step_, absl::OkStatus()));
  }

  const std::shared_ptr<const nccl::NcclApi> api_;
  Gpus& gpus_;
  Gpu& gpu_;
  const CommunicatorOptions options_;
  const int rank_;
  const std::shared_ptr<NcclArbiter> arbiter_;
  const std::shared_ptr<StoppedRanks> stopped_;
  const std::shared_ptr<StoreEventQueue> events_ = std::make_shared<StoreEventQueue>(
      [stopped = stopped_](absl::string_view key) { stopped->OnEntry(key); });
  std::unique_ptr<BootstrapStore> store_;
  // Serializes use of the bootstrap once it is Ready.
  absl::Mutex bootstrap_mu_;
  CommunicatorBootstrap bootstrap_;
  absl::Status abandoned_;

  std::optional<absl::Status> ended_;
  Phase phase_ = Phase::kIdle;
  // Result of starting the initialization.
  absl::Status step_;
  uint32_t begun_ = 0;
  nccl::Communicator comm_ = nullptr;
  bool is_initialised_ = false;
  CommunicatorWay way_ = CommunicatorWay::kCreate;
  // Null: there is none, or it has ended.
  std::unique_ptr<Yielded> yielded_;
  // Null if options_.warms_up is false.
  std::unique_ptr<CommunicatorWarmUp> warm_up_;

  InFlightOperations work_;
};

NcclCommunicator::Yielded::Yielded(std::shared_ptr<NcclCommunicator> from, const RankOrigin& offer,
                                   std::vector<int> excluded)
    : from_(std::move(from)),
      offer_(offer),
      excluded_(std::move(excluded)),
      comm_(from_->impl_->Yield()),
      calls_(from_->impl_->EndCallsOf(comm_)),
      end_(calls_, SteadyClock(), from_->impl_->end_options()) {}

std::unique_ptr<NcclCommunicator::Yielded> NcclCommunicator::Yielded::Take(
    std::shared_ptr<NcclCommunicator> from, int ordinal, const CommunicatorKey& key) {
  Impl& impl = *from->impl_;
  const CommunicatorKey& held = impl.bootstrap().key();
  const nccl::NcclTable& table = impl.api()->table();
  const int version = impl.api()->version();
  // Ranks of it that are in the other one, in order, and those that are not.
  std::vector<int> excluded;
  int next = 0;
  for (int rank = 0; rank < held.size(); ++rank) {
    if (next < key.size() && held.member(rank) == key.member(next)) {
      ++next;
    } else {
      excluded.push_back(rank);
    }
  }
  const bool is_idle = impl.IsIdle();
  const char* why_not = nullptr;
  if (impl.comm() == nullptr) {
    why_not = "it has ended";
  } else if (impl.gpu().device->ordinal() != ordinal) {
    why_not = "it is of another GPU";
  } else if (excluded.empty()) {
    if (held.size() == key.size()) why_not = "it has the same members";
    if (version < kGrowVersion || table.grow == nullptr) why_not = "NCCL before 2.29.2 cannot grow";
    if (!is_idle) why_not = "it has work in flight or an error";
  } else {
    if (next < key.size()) why_not = "its members are others, or in another order";
    if (version < kShrinkVersion || table.shrink == nullptr || table.revoke == nullptr)
      why_not = "NCCL before 2.28.7 cannot stop and shrink it";
  }
  const RankOrigin offer = {.id = held.id(),
                            .generation = impl.bootstrap().generation(),
                            .rank = impl.rank(),
                            .size = held.size()};
  if (why_not == nullptr) {
    const cuda::ScopedCurrent current(*impl.gpu().device);
    std::unique_ptr<Yielded> yielded(new Yielded(std::move(from), offer, std::move(excluded)));
    // Its operations can wait for ranks that are gone: they leave first.
    if (!yielded->excluded_.empty()) yielded->end_.Begin(/*is_idle=*/false);
    while (yielded->end_.is_waiting()) {
      absl::SleepFor(kPollInterval);
      yielded->end_.Poll();
    }
    if (yielded->end_.problem().ok()) {
      // Not only at its end: a rank that cannot use it waits for that before it takes part.
      yielded->calls_.ReportStopped();
      return yielded;
    }
    why_not = "its operations cannot be stopped";
  } else if (impl.comm() != nullptr) {
    impl.End(absl::CancelledError("another communicator replaces it"), is_idle, nullptr);
  }
  FERRY_LOG_INFO(kGpu, "{} is not made of {}: {}", key.Describe(), held.Describe(), why_not);
  return nullptr;
}

NcclCommunicator::Yielded::~Yielded() {
  Impl& impl = *from_->impl_;
  const cuda::ScopedCurrent current(*impl.gpu().device);
  impl.Retire(absl::CancelledError("another communicator replaces it"));
  if (end_.state() == CommunicatorEnd::State::kOpen) end_.Begin(/*is_idle=*/true);
  impl.FinishEnd(end_);
  // Complete in the last moment.
  if (nccl::Communicator const child = TakeChild(); child != nullptr) {
    impl.EndCallsOf(child).Abort().IgnoreError();
  }
  impl.CloseStore();
}

absl::StatusOr<std::string> NcclCommunicator::Yielded::CreateGrowId() {
  const nccl::NcclApi& api = *from_->impl_->api();
  const cuda::ScopedCurrent current(*from_->impl_->gpu().device);
  nccl::UniqueId id = {};
  FERRY_RETURN_IF_ERROR(
      api.Check(api.table().get_grow_id(comm_, &id), "ncclCommGetUniqueId", comm_));
  return std::string(id.bytes, sizeof(id.bytes));
}

absl::Status NcclCommunicator::Yielded::Shrink(nccl::Config& config) {
  const nccl::NcclApi& api = *from_->impl_->api();
  return api.Check(api.table().shrink(comm_, excluded_.data(), static_cast<int>(excluded_.size()),
                                      &child_, &config, nccl::kShrinkAbort),
                   "ncclCommShrink", comm_);
}

absl::Status NcclCommunicator::Yielded::Grow(int size, absl::string_view id, nccl::Config& config) {
  const nccl::NcclApi& api = *from_->impl_->api();
  nccl::UniqueId unique;
  std::copy(id.begin(), id.end(), unique.bytes);
  // The first rank has created the id.
  return api.Check(
      api.table().grow(comm_, size, offer_.rank == 0 ? &unique : nullptr, -1, &child_, &config),
      "ncclCommGrow", comm_);
}

absl::StatusOr<bool> NcclCommunicator::Yielded::IsShrunk() { return calls_.IsSettled(); }

NcclCommunicator::NcclCommunicator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NcclCommunicator::~NcclCommunicator() = default;

absl::StatusOr<std::shared_ptr<NcclCommunicator>> NcclCommunicator::Make(
    std::shared_ptr<const nccl::NcclApi> api, Gpus& gpus, int ordinal, const CommunicatorKey& key,
    int rank, const BootstrapStoreFactory& store, const CommunicatorOptions& options) {
  // It overrides the communicator's configuration, and blocking calls would keep the device's
  // thread from all other work.
  const char* const blocking = std::getenv("NCCL_COMM_BLOCKING");
  if (blocking != nullptr && std::atoi(blocking) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("NCCL_COMM_BLOCKING=", blocking,
                     " makes every call of NCCL's block: unset it, Ferry's must not"));
  }
  FERRY_ASSIGN_OR_RETURN(Gpu* const gpu, gpus.Get(ordinal));
  std::unique_ptr<Yielded> yielded;
  CommunicatorOptions own = options;
  if (own.origin.has_value() && own.origin->from != nullptr) {
    yielded = Yielded::Take(std::move(own.origin->from), ordinal, key);
    own.origin.reset();
  }
  auto impl =
      std::make_unique<Impl>(std::move(api), gpus, *gpu, key, rank, store, own, std::move(yielded));
  FERRY_RETURN_IF_ERROR(impl->Run());
  return std::shared_ptr<NcclCommunicator>(new NcclCommunicator(std::move(impl)));
}

nccl::Communicator NcclCommunicator::get() const { return impl_->comm(); }
const nccl::NcclApi& NcclCommunicator::api() const { return *impl_->api(); }
int NcclCommunicator::rank() const { return impl_->rank(); }
int NcclCommunicator::size() const { return impl_->bootstrap().key().size(); }
int NcclCommunicator::ordinal() const { return impl_->gpu().device->ordinal(); }
uint32_t NcclCommunicator::generation() const { return impl_->bootstrap().generation(); }
CommunicatorWay NcclCommunicator::way() const { return impl_->way(); }
absl::Status NcclCommunicator::Run(cuda::Stream stream, RunCalls calls, absl::Duration timeout) {
  return impl_->Run(stream, calls, timeout);
}
absl::Status NcclCommunicator::RunWithoutTurn(RunCalls calls, absl::Duration timeout) {
  FERRY_RETURN_IF_ERROR(impl_->OnDevice(
      [&] { return api().Check(calls(api().table(), get()), "a call of NCCL's", get()); }));
  return WaitEnqueued(timeout);
}
void NcclCommunicator::Listen(std::function<void()> on_event) {
  impl_->Listen(std::move(on_event));
}
absl::Status NcclCommunicator::CheckReusable() { return impl_->CheckReusable(); }
absl::Status NcclCommunicator::Check() { return impl_->Check(); }
void NcclCommunicator::Close(const absl::Status& why) {
  impl_->End(why, /*is_idle=*/true, nullptr);
}
void NcclCommunicator::Abort(const absl::Status& why, const std::function<void()>& on_stopped) {
  impl_->End(why, /*is_idle=*/false, on_stopped);
}
absl::Status NcclCommunicator::WaitEnqueued(absl::Duration timeout) {
  return impl_->WaitEnqueued(timeout);
}

}  // namespace ferry
