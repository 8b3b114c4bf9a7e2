// SPDX-License-Identifier: Apache-2.0
// Prepare, line, turn, go, launch, over.
#include "worker/collectives/nccl_carrier.h"

#include <atomic>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "base/status_macros.h"
#include "worker/collectives/leader.h"

namespace ferry::worker {
namespace {

Tensor GenerationTensor(uint32_t generation) {
  absl::StatusOr<Tensor> tensor = Tensor::Allocate(DataType::kInt64, Shape());
  FERRY_CHECK(tensor.ok());
  *static_cast<int64_t*>(tensor->mutable_data()) = generation;
  return *std::move(tensor);
}

absl::StatusOr<uint32_t> GenerationIn(const Received& received) {
  const Tensor& tensor = received.tensor;
  if (received.is_dead || !tensor.is_valid() || !tensor.is_on_host() ||
      tensor.dtype() != DataType::kInt64 || tensor.shape().element_count() != 1) {
    return absl::InternalError(
        absl::StrCat("a member of a collective has sent ", ToString(tensor), " for a generation"));
  }
  return static_cast<uint32_t>(tensor.elements<int64_t>()[0]);
}

// One work. Keeps itself while something is under way.
class NcclWork final : public std::enable_shared_from_this<NcclWork> {
 public:
  NcclWork(std::shared_ptr<StepExchange> exchange, CollectiveGpu& gpu, const Executor* executor,
           const NcclCarrierRules& rules, CollectiveWork work, RecvCallback done)
      : exchange_(std::move(exchange)),
        gpu_(gpu),
        executor_(executor),
        rules_(rules),
        work_(std::move(work)),
        last_(static_cast<int>(work_.members.size()) - 1),
        done_(std::move(done)) {}

  void Start() {
    token_ = work_.cancellation->Register([weak = weak_from_this()] {
      if (const auto strong = weak.lock()) {
        strong->Fail(MakeDerived(absl::CancelledError("the collective was cancelled")));
      }
    });
    if (token_ == Cancellation::kNoToken) {
      Fail(MakeDerived(absl::CancelledError("the collective was cancelled")));
    } else {
      Listen();
      Prepare();
    }
    EndOne();
  }

 private:
  // Whatever has begun with `BeginOne` ends with `EndOne`, once.
  void BeginOne() { waiting_.fetch_add(1, std::memory_order_relaxed); }

  // Hears when the one before fails, dies, or does not come in time.
  void Listen() {
    const int before = work_.rank == 0 ? last_ : work_.rank - 1;
    Receive(before, "over", [](const Received&) { return absl::OkStatus(); });
  }

  void Prepare() {
    BeginOne();
    gpu_.Prepare(work_.call.input, work_.node->dtype, work_.call.shape, work_.deadline,
                 [self = shared_from_this()](absl::StatusOr<Tensor> output) {
                   if (!output.ok()) {
                     self->Fail(output.status());
                   } else if (!self->has_failed()) {
                     self->output_ = *std::move(output);
                     self->AwaitTurn();
                   }
                   self->EndOne();
                 });
  }

  void AwaitTurn() {
    if (!rules_.takes_turns) return Launch(gpu_.Generation(*work_.node, work_.members));
    if (work_.rank == 0) return EnterLine();
    Receive(work_.rank - 1, "turn", [this](const Received& received) {
      FERRY_ASSIGN_OR_RETURN(generation_, GenerationIn(received));
      EnterLine();
      return absl::OkStatus();
    });
  }

  void EnterLine() {
    BeginOne();
    const DeviceLine::Ticket ticket = gpu_.line().Enter([self = shared_from_this()] {
      self->OnHead();
      self->EndOne();
    });
    bool has_failed = false;
    {
      absl::MutexLock lock(&mu_);
      ticket_ = ticket;
      // Whoever failed meanwhile, or has launched, did not know the ticket.
      has_failed = !status_.ok() || has_left_;
    }
    if (has_failed) LeaveLine();
  }

  void OnHead() {
    if (has_failed()) return;
    const uint32_t own = gpu_.Generation(*work_.node, work_.members);
    if (work_.rank == 0) generation_ = own;
    if (generation_ != own) generation_ = 0;
    if (work_.rank < last_) {
      Send(work_.rank + 1, "turn", generation_);
      return Receive(last_, "go", [this](const Received& received) {
        FERRY_ASSIGN_OR_RETURN(const uint32_t generation, GenerationIn(received));
        Launch(generation);
        return absl::OkStatus();
      });
    }
    for (int rank = 0; rank < last_; ++rank) Send(rank, "go", generation_);
    Launch(generation_);
  }

  // All ranks are at the heads of their lines.
  void Launch(uint32_t generation) {
    NcclCollective collective;
    collective.node = work_.node;
    collective.members = work_.members;
    collective.rank = work_.rank;
    collective.source_rank = work_.source_rank;
    collective.input = work_.call.input;
    collective.output = output_;
    collective.is_anew = generation == 0;
    collective.generation = generation;
    collective.deadline = work_.deadline;
    collective.what = About();
    BeginOne();
    BeginOne();
    std::shared_ptr<NcclRun> run = gpu_.Launch(
        std::move(collective),
        [self = shared_from_this()](absl::Status begun) {
          if (!begun.ok()) self->Fail(std::move(begun));
          self->LeaveLine();
          self->EndOne();
        },
        [self = shared_from_this()](absl::Status over) {
          // Not on a thread of the device's.
          (*self->executor_)([self, over = std::move(over)]() mutable {
            if (over.ok()) {
              self->Finish();
            } else {
              self->Fail(std::move(over));
            }
            self->EndOne();
          });
        });
    absl::Status failed;
    {
      absl::MutexLock lock(&mu_);
      run_ = run;
      failed = status_;
    }
    if (!failed.ok()) run->Abort(failed);
  }

  void Finish() {
    if (has_failed()) return;
    const bool has_own = work_.node->kind == CollectiveKind::kBroadcast && work_.node->is_source;
    absl::StatusOr<Tensor> result =
        has_own ? work_.call.input : gpu_.Finish(*work_.node, last_ + 1, output_);
    if (!result.ok()) return Fail(result.status());
    result_.tensor = *std::move(result);
    result_.path = "nccl";
    is_over_.store(true, std::memory_order_release);
    // Ends what listens.
    cancellation_.Cancel();
  }

  void LeaveLine() {
    DeviceLine::Ticket ticket = 0;
    {
      absl::MutexLock lock(&mu_);
      has_left_ = true;
      ticket = std::exchange(ticket_, 0);
    }
    if (ticket != 0 && gpu_.line().Leave(ticket)) EndOne();
  }

  void Send(int to, absl::string_view what, uint32_t generation) {
    const absl::StatusOr<RendezvousKey> key = KeyOf(work_.rank, to, what);
    const absl::Status sent =
        key.ok() ? exchange_->Send(*key, GenerationTensor(generation), /*is_dead=*/false)
                 : key.status();
    if (!sent.ok()) Fail(sent);
  }

  void Receive(int from, absl::string_view what,
               absl::AnyInvocable<absl::Status(const Received&) &&> then) {
    const absl::StatusOr<RendezvousKey> key = KeyOf(from, work_.rank, what);
    if (!key.ok()) return Fail(key.status());
    RecvArgs args;
    args.cancellation = &cancellation_;
    args.deadline = work_.deadline;
    BeginOne();
    exchange_->RecvAsync(*key, std::move(args),
                         [self = shared_from_this(), from, then = std::move(then)](
                             absl::Status status, Received received) mutable {
                           if (status.ok() && !self->has_failed()) {
                             status = std::move(then)(received);
                           }
                           if (!status.ok()) self->Fail(self->Explain(from, std::move(status)));
                           self->EndOne();
                         });
  }

  absl::StatusOr<RendezvousKey> KeyOf(int from, int to, absl::string_view what) const {
    return CollectiveKey(*work_.node->devices, work_.members[static_cast<size_t>(from)],
                         work_.members[static_cast<size_t>(to)],
                         CollectiveEdge(work_.call.group_key, work_.call.instance_key, what));
  }

  const std::string& NameOf(int rank) const {
    const int member = work_.members[static_cast<size_t>(rank)];
    return (*work_.node->devices)[static_cast<size_t>(member)].name;
  }
  std::string About() const {
    return absl::StrCat("instance ", work_.call.instance_key, " of group ", work_.call.group_key,
                        " on ", NameOf(work_.rank));
  }

  absl::Status Explain(int from, absl::Status status) const {
    if (!absl::IsDeadlineExceeded(status) || work_.deadline == absl::InfiniteFuture()) {
      return status;
    }
    if (absl::StrContains(status.message(), "Collective has timed out")) return status;
    return absl::DeadlineExceededError(
        absl::StrCat("Collective has timed out during execution. By NCCL, ", About(),
                     " has waited for ", NameOf(from), " or one that it waits for"));
  }

  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }

  void Fail(absl::Status why) {
    // What listened is called off.
    if (is_over_.load(std::memory_order_acquire)) return;
    std::shared_ptr<NcclRun> run;
    {
      absl::MutexLock lock(&mu_);
      const bool is_first = status_.ok();
      if (is_first || (IsDerived(status_) && !IsDerived(why))) status_ = why;
      has_failed_.store(true, std::memory_order_release);
      if (!is_first) return;
      run = run_;
    }
    cancellation_.Cancel();
    if (run != nullptr) {
      run->Abort(why);
    } else {
      LeaveLine();
    }
  }

  void EndOne() {
    if (waiting_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    if (token_ != Cancellation::kNoToken) work_.cancellation->Deregister(token_);
    absl::Status status;
    {
      absl::MutexLock lock(&mu_);
      status = status_;
      // It keeps this.
      run_ = nullptr;
    }
    RecvCallback done = std::move(done_);
    if (!status.ok()) return std::move(done)(std::move(status), {});
    std::move(done)(absl::OkStatus(), std::move(result_));
  }

  const std::shared_ptr<StepExchange> exchange_;
  CollectiveGpu& gpu_;
  const Executor* const executor_;
  const NcclCarrierRules rules_;
  const CollectiveWork work_;
  const int last_;
  RecvCallback done_;
  Cancellation::Token token_ = Cancellation::kNoToken;
  Cancellation cancellation_;

  // Each is written by one step of the way, and read by later ones.
  Tensor output_;
  uint32_t generation_ = 0;
  Received result_;

  std::atomic<int> waiting_{1};
  std::atomic<bool> has_failed_{false};
  std::atomic<bool> is_over_{false};
  absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  DeviceLine::Ticket ticket_ ABSL_GUARDED_BY(mu_) = 0;
  bool has_left_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<NcclRun> run_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

void NcclCarrier::Run(CollectiveWork work, RecvCallback done) {
  if (!work.by_nccl) return otherwise_->Run(std::move(work), std::move(done));
  CollectiveGpu& gpu = gpus_.gpu(work.node->memory.ordinal);
  const auto run = std::make_shared<NcclWork>(exchange_, gpu, executor_, rules_, std::move(work),
                                              std::move(done));
  run->Start();
}

}  // namespace ferry::worker
