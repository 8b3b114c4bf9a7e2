// SPDX-License-Identifier: Apache-2.0
// One rank's state machine: prepare, queue, turn, go, launch, over.
#include "tensorflow/worker/collectives/nccl_backend.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "base/status_macros.h"
#include "tensorflow/worker/collectives/backend_run.h"

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

class NcclWork final : public BackendRun {
 public:
  NcclWork(std::shared_ptr<StepTransfers> transfers, CollectiveGpu& gpu, const Executor* executor,
           const NcclBackendRules& rules, CollectiveWork work, RecvCallback done)
      : BackendRun(std::move(transfers), std::move(work), std::move(done)),
        gpu_(gpu),
        executor_(executor),
        rules_(rules),
        last_(static_cast<int>(work_.members.size()) - 1) {}

 private:
  std::shared_ptr<NcclWork> Self() {
    return std::static_pointer_cast<NcclWork>(shared_from_this());
  }

  absl::Status Issue() override {
    Listen();
    Prepare();
    return absl::OkStatus();
  }

  // Detects that the previous rank fails, dies, or times out.
  void Listen() {
    const int before = work_.rank == 0 ? last_ : work_.rank - 1;
    Receive(before, "over", [](const Received&) { return absl::OkStatus(); });
  }

  void Prepare() {
    BeginOne();
    gpu_.Prepare(work_.call.input, work_.node->dtype, work_.call.shape, work_.deadline,
                 [self = Self()](absl::StatusOr<Tensor> output) {
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
    const AsyncFifoLock::Ticket ticket = gpu_.line().Enter([self = Self()] {
      self->OnHead();
      self->EndOne();
    });
    bool has_left = false;
    {
      absl::MutexLock lock(&mu_);
      ticket_ = ticket;
      has_left = has_left_;
    }
    // If the run has failed or launched in the meantime, LeaveLine did not see ticket_ yet.
    if (has_left || has_failed()) LeaveLine();
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

  // Called when all ranks are at the heads of their lines.
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
        [self = Self()](absl::Status begun) {
          if (!begun.ok()) self->Fail(std::move(begun));
          self->LeaveLine();
          self->EndOne();
        },
        [self = Self()](absl::Status over) {
          // Continue on the executor, off the device's threads.
          (*self->executor_)([self, over = std::move(over)]() mutable {
            if (over.ok()) {
              self->TakeResult();
            } else {
              self->Fail(std::move(over));
            }
            self->EndOne();
          });
        });
    {
      absl::MutexLock lock(&mu_);
      run_ = run;
    }
    // A failure before run_ was set could not abort the run.
    if (const absl::Status failed = failure(); !failed.ok()) run->Abort(failed);
  }

  void TakeResult() {
    if (has_failed()) return;
    const bool has_own = work_.node->kind == CollectiveKind::kBroadcast && work_.node->is_source;
    absl::StatusOr<Tensor> result =
        has_own ? work_.call.input : gpu_.Finish(*work_.node, last_ + 1, output_);
    if (!result.ok()) return Fail(result.status());
    result_.tensor = *std::move(result);
    result_.path = "nccl";
    // Cancels Listen's receive.
    Finish();
  }

  void LeaveLine() {
    AsyncFifoLock::Ticket ticket = 0;
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
        key.ok() ? transfers_->Send(*key, GenerationTensor(generation), /*is_dead=*/false)
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
    transfers_->RecvAsync(*key, std::move(args),
                          [self = Self(), from, then = std::move(then)](absl::Status status,
                                                                        Received received) mutable {
                            if (status.ok() && !self->has_failed()) {
                              status = std::move(then)(received);
                            }
                            if (!status.ok()) {
                              self->Fail(self->Explain(std::move(status), self->WaitsFor(from)));
                            }
                            self->EndOne();
                          });
  }

  std::string About() const { return absl::StrCat(Instance(), " on ", NameOf(work_.rank)); }
  std::string WaitsFor(int from) const {
    return absl::StrCat("By NCCL, ", About(), " has waited for ", NameOf(from),
                        " or one that it waits for");
  }

  void OnFailed(const absl::Status& why) override {
    std::shared_ptr<NcclRun> run;
    {
      absl::MutexLock lock(&mu_);
      run = run_;
    }
    if (run != nullptr) {
      run->Abort(why);
    } else {
      LeaveLine();
    }
  }
  // Breaks the reference cycle: the run keeps this object.
  void OnEnd() override {
    absl::MutexLock lock(&mu_);
    run_ = nullptr;
  }

  CollectiveGpu& gpu_;
  const Executor* const executor_;
  const NcclBackendRules rules_;
  const int last_;

  // Each is written by one stage and read by later ones.
  Tensor output_;
  uint32_t generation_ = 0;

  absl::Mutex mu_;
  AsyncFifoLock::Ticket ticket_ ABSL_GUARDED_BY(mu_) = 0;
  bool has_left_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<NcclRun> run_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

void NcclBackend::Run(CollectiveWork work, RecvCallback done) {
  if (!work.by_nccl) return otherwise_->Run(std::move(work), std::move(done));
  CollectiveGpu& gpu = gpus_.gpu(work.node->memory.ordinal);
  const auto run = std::make_shared<NcclWork>(transfers_, gpu, executor_, rules_, std::move(work),
                                              std::move(done));
  run->Start();
}

}  // namespace ferry::worker
