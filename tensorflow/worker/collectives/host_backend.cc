// SPDX-License-Identifier: Apache-2.0
// Posts all receives at once; received pieces are reduced, forwarded and counted.
#include "tensorflow/worker/collectives/host_backend.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "tensorflow/worker/collectives/backend_run.h"
#include "tensorflow/worker/collectives/merge.h"

namespace ferry::worker {
namespace {

// Returns a view of elements [first, first + count), flattened.
Tensor PieceOf(const Tensor& tensor, int64_t first, int64_t count) {
  const size_t element = static_cast<size_t>(ElementBytes(tensor.dtype()));
  absl::StatusOr<Shape> shape = Shape::Create({count});
  FERRY_CHECK(shape.ok());
  absl::StatusOr<Tensor> piece =
      Tensor::Create(tensor.dtype(), *std::move(shape), tensor.buffer(),
                     tensor.offset_bytes() + static_cast<size_t>(first) * element);
  FERRY_CHECK(piece.ok());
  return *std::move(piece);
}

void CopyInto(const Tensor& from, Tensor& to) {
  if (from.bytes() > 0) std::memcpy(to.mutable_data(), from.data(), from.bytes());
}

class HostWork final : public BackendRun {
 public:
  HostWork(std::shared_ptr<StepTransfers> transfers, const Executor* executor,
           const HostBackendOptions& options, CollectiveWork work, RecvCallback done)
      : BackendRun(std::move(transfers), std::move(work), std::move(done)),
        executor_(executor),
        options_(options),
        count_(static_cast<int>(work_.members.size())) {}

 private:
  // Consumes a received tensor; called once, on any thread.
  using OnTensor = std::function<absl::Status(Tensor)>;

  absl::Status Issue() override {
    if (count_ == 1) return Alone();
    switch (work_.node->kind) {
      case CollectiveKind::kBroadcast:
        return Broadcast();
      case CollectiveKind::kGather:
        return Gather();
      case CollectiveKind::kReduce:
        break;
    }
    const Tensor& input = work_.call.input;
    if (input.bytes() == 0) {
      result_.tensor = input;
      return absl::OkStatus();
    }
    const bool is_small = input.bytes() * static_cast<size_t>(count_) <= options_.max_direct_bytes;
    return is_small ? ReduceDirectly() : ReduceInRing();
  }

  absl::Status Alone() {
    absl::StatusOr<Tensor> same = work_.call.input.Reshape(work_.call.shape);
    if (!same.ok()) return same.status();
    result_.tensor = *std::move(same);
    return absl::OkStatus();
  }

  absl::Status Broadcast() {
    result_.path = "tree";
    const int place = (work_.rank - work_.source_rank + count_) % count_;
    const int fan_out = count_ - 1 <= options_.max_fan_out ? count_ - 1 : 2;
    const auto pass_on = [this, place, fan_out](const Tensor& tensor) {
      for (int child = place * fan_out + 1; child <= place * fan_out + fan_out && child < count_;
           ++child) {
        FERRY_RETURN_IF_ERROR(Send((child + work_.source_rank) % count_, "value", tensor));
      }
      return absl::OkStatus();
    };
    if (place == 0) {
      result_.tensor = work_.call.input;
      return work_.call.shape.element_count() == 0 ? absl::OkStatus() : pass_on(result_.tensor);
    }
    if (work_.call.shape.element_count() == 0) {
      FERRY_ASSIGN_OR_RETURN(result_.tensor, Allocate(work_.call.shape));
      return absl::OkStatus();
    }
    const int parent = ((place - 1) / fan_out + work_.source_rank) % count_;
    Receive(parent, "value", work_.call.shape.element_count(), /*is_quick=*/true,
            [this, pass_on](const Tensor& tensor) {
              FERRY_ASSIGN_OR_RETURN(result_.tensor, tensor.Reshape(work_.call.shape));
              return pass_on(result_.tensor);
            });
    return absl::OkStatus();
  }

  absl::Status Gather() {
    result_.path = "direct";
    const Tensor& input = work_.call.input;
    const int64_t each = input.shape().element_count();
    FERRY_ASSIGN_OR_RETURN(result_.tensor, Allocate(work_.call.shape));
    if (each == 0) return absl::OkStatus();
    for (int i = 1; i < count_; ++i) {
      const int from = (work_.rank - i + count_) % count_;
      Receive(from, "part", each, /*is_quick=*/false, [this, from, each](const Tensor& part) {
        Tensor piece = PieceOf(result_.tensor, from * each, each);
        CopyInto(part, piece);
        return absl::OkStatus();
      });
    }
    for (int i = 1; i < count_; ++i) {
      FERRY_RETURN_IF_ERROR(Send((work_.rank + i) % count_, "part", input));
    }
    Tensor own = PieceOf(result_.tensor, work_.rank * each, each);
    CopyInto(input, own);
    return absl::OkStatus();
  }

  absl::Status ReduceDirectly() {
    result_.path = "direct";
    const Tensor& input = work_.call.input;
    FERRY_ASSIGN_OR_RETURN(result_.tensor, Allocate(work_.call.shape));
    parts_.resize(static_cast<size_t>(count_));
    parts_[static_cast<size_t>(work_.rank)] = input;
    parts_missing_.store(count_ - 1);
    for (int i = 1; i < count_; ++i) {
      const int from = (work_.rank - i + count_) % count_;
      Receive(from, "part", input.shape().element_count(), /*is_quick=*/true,
              [this, from](Tensor part) {
                parts_[static_cast<size_t>(from)] = std::move(part);
                if (parts_missing_.fetch_sub(1, std::memory_order_acq_rel) == 1) MergeParts();
                return absl::OkStatus();
              });
    }
    for (int i = 1; i < count_; ++i) {
      FERRY_RETURN_IF_ERROR(Send((work_.rank + i) % count_, "part", input));
    }
    return absl::OkStatus();
  }

  void MergeParts() {
    const MergeOp op = work_.node->merge;
    Merge(op, parts_[0], parts_[1], result_.tensor);
    for (size_t i = 2; i < parts_.size(); ++i) {
      Merge(op, result_.tensor, parts_[i], result_.tensor);
    }
    parts_.clear();
    if (work_.node->divides) DivideBy(count_, result_.tensor);
  }

  // Returns piece number `piece` of `tensor`; the last ones may be shorter, or empty.
  Tensor Piece(const Tensor& tensor, int piece) const {
    const int64_t first = std::min(piece * piece_elements_, work_.call.shape.element_count());
    return PieceOf(tensor, first, PieceElements(piece));
  }
  int64_t PieceElements(int piece) const {
    const int64_t total = work_.call.shape.element_count();
    const int64_t first = std::min(piece * piece_elements_, total);
    return std::min(piece_elements_, total - first);
  }

  absl::Status ReduceInRing() {
    result_.path = "ring";
    const Tensor& input = work_.call.input;
    const int64_t element = static_cast<int64_t>(ElementBytes(input.dtype()));
    const int64_t line = static_cast<int64_t>(kBufferAlignment) / element;
    const int64_t share = (input.shape().element_count() + count_ - 1) / count_;
    piece_elements_ = (share + line - 1) / line * line;
    FERRY_ASSIGN_OR_RETURN(result_.tensor, Allocate(work_.call.shape));
    const int previous = (work_.rank - 1 + count_) % count_;
    for (int turn = 0; turn < count_ - 1; ++turn) {
      const int piece = (work_.rank - turn - 1 + count_) % count_;
      Receive(previous, absl::StrCat("merge", turn), PieceElements(piece), /*is_quick=*/false,
              [this, piece, turn](const Tensor& part) { return MergePiece(piece, turn, part); });
    }
    for (int turn = 0; turn < count_ - 1; ++turn) {
      const int piece = (work_.rank - turn + count_) % count_;
      Receive(previous, absl::StrCat("whole", turn), PieceElements(piece), /*is_quick=*/false,
              [this, piece, turn](const Tensor& part) {
                Tensor whole = Piece(result_.tensor, piece);
                CopyInto(part, whole);
                if (turn == count_ - 2) return absl::OkStatus();
                return SendToNext(absl::StrCat("whole", turn + 1), whole);
              });
    }
    return SendToNext("merge0", Piece(input, work_.rank));
  }

  absl::Status MergePiece(int piece, int turn, const Tensor& part) {
    const Tensor own = Piece(work_.call.input, piece);
    const bool is_last = turn == count_ - 2;
    Tensor merged;
    if (is_last) {
      merged = Piece(result_.tensor, piece);
    } else {
      FERRY_ASSIGN_OR_RETURN(merged, Allocate(own.shape()));
    }
    Merge(work_.node->merge, part, own, merged);
    if (!is_last) return SendToNext(absl::StrCat("merge", turn + 1), merged);
    if (work_.node->divides) DivideBy(count_, merged);
    return SendToNext("whole0", merged);
  }

  absl::Status SendToNext(absl::string_view what, const Tensor& tensor) {
    if (tensor.bytes() == 0) return absl::OkStatus();
    return Send((work_.rank + 1) % count_, what, tensor);
  }

  absl::StatusOr<Tensor> Allocate(const Shape& shape) {
    const KernelContext context(*work_.environment, {}, 0);
    return context.Allocate(work_.node->dtype, shape);
  }

  absl::Status Send(int to, absl::string_view what, const Tensor& tensor) {
    FERRY_ASSIGN_OR_RETURN(const RendezvousKey key, KeyOf(work_.rank, to, what));
    return transfers_->Send(key, tensor, /*is_dead=*/false);
  }

  // is_quick: `on_tensor` is cheap regardless of size, so it runs inline.
  void Receive(int from, absl::string_view what, int64_t elements, bool is_quick,
               OnTensor on_tensor) {
    if (elements == 0) return;
    absl::StatusOr<RendezvousKey> key = KeyOf(from, work_.rank, what);
    if (!key.ok()) return Fail(key.status());
    RecvArgs args;
    args.cancellation = &cancellation_;
    args.deadline = work_.deadline;
    BeginOne();
    transfers_->RecvAsync(
        *key, std::move(args),
        [self = std::static_pointer_cast<HostWork>(shared_from_this()), from, elements, is_quick,
         on_tensor = std::move(on_tensor)](absl::Status status, Received received) mutable {
          HostWork& work = *self;
          if (status.ok()) status = work.Check(from, elements, received);
          if (!status.ok()) {
            work.Fail(work.Explain(std::move(status), work.Missing(from)));
            return work.EndOne();
          }
          auto take = [self = std::move(self), on_tensor = std::move(on_tensor),
                       tensor = std::move(received.tensor)]() mutable {
            if (!self->has_failed()) {
              absl::Status taken = on_tensor(std::move(tensor));
              if (!taken.ok()) self->Fail(std::move(taken));
            }
            self->EndOne();
          };
          const size_t bytes = static_cast<size_t>(elements) *
                               static_cast<size_t>(ElementBytes(work.work_.node->dtype));
          if (is_quick || bytes <= work.options_.max_inline_bytes) return take();
          (*work.executor_)(std::move(take));
        });
  }

  absl::Status Check(int from, int64_t elements, const Received& received) const {
    const Tensor& tensor = received.tensor;
    if (!received.is_dead && tensor.is_valid() && tensor.dtype() == work_.node->dtype &&
        tensor.shape().element_count() == elements) {
      return CheckOnHost(tensor, "take part in a collective with");
    }
    return absl::InternalError(absl::StrCat(NameOf(from), " has sent ", ToString(tensor),
                                            " to a collective, not ", elements, " elements of ",
                                            DataTypeName(work_.node->dtype)));
  }

  std::string Missing(int from) const {
    return absl::StrCat(NameOf(from), " has not sent its part to ", NameOf(work_.rank), " in ",
                        Instance());
  }

  const Executor* const executor_;
  const HostBackendOptions options_;
  const int count_;

  // Each receive writes its own elements of the result.
  int64_t piece_elements_ = 0;
  std::vector<Tensor> parts_;
  std::atomic<int> parts_missing_{0};
};

}  // namespace

void HostBackend::Run(CollectiveWork work, RecvCallback done) {
  const auto run =
      std::make_shared<HostWork>(transfers_, executor_, options_, std::move(work), std::move(done));
  run->Start();
}

}  // namespace ferry::worker
