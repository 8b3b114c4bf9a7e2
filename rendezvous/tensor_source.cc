// SPDX-License-Identifier: Apache-2.0
// The steps of RecvTensor on the sender's side.
#include "rendezvous/tensor_source.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/bounded_text.h"
#include "base/status_macros.h"

namespace ferry {
namespace {

// For a value in GPU memory. `operation`: kept until the value was handed over.
void Stage(Gpus& gpus, Received received, std::unique_ptr<StepOperation> operation,
           ServedCallback done) {
  MoveRequest move;
  move.tensor = std::move(received.tensor);
  move.what = "a tensor that is asked for over gRPC";
  gpus.Move(std::move(move), [operation = std::move(operation),
                              done = std::move(done)](absl::StatusOr<Tensor> tensor) mutable {
    ServedValue value;
    value.send_start_micros = absl::ToUnixMicros(absl::Now());
    const absl::Status status = tensor.status();
    if (tensor.ok()) value.tensor = *std::move(tensor);
    std::move(done)(status, std::move(value));
  });
}

}  // namespace

TensorSource::TensorSource(RendezvousManager& manager, IncarnationLookup incarnation_of,
                           TensorSourceOptions options)
    : manager_(manager),
      incarnation_of_(std::move(incarnation_of)),
      options_(options),
      cache_(std::make_shared<ResponseCache>(options.cache)) {}

void TensorSource::Recv(const Request& request, CancellationToken* cancellation,
                        ServedCallback done) {
  const int64_t request_id = request.request_id;
  if (options_.keep_responses && request_id != 0) {
    if (!cache_->Attach(request_id, request.step_id, cancellation, std::move(done))) return;
    // Not tied to one call's cancellation: the value is for any repeat of the request.
    return RecvUnkept(request, nullptr,
                      [cache = cache_, request_id](absl::Status status, ServedValue value) {
                        cache->Complete(request_id, status, std::move(value));
                      });
  }
  uint64_t turn = 0;
  absl::Status status = recent_->TrackUnique(request_id, "RecvTensor (GrpcWorker)", &turn);
  if (!status.ok()) return std::move(done)(std::move(status), {});
  RecvUnkept(request, cancellation,
             [recent = recent_, request_id, turn, done = std::move(done)](
                 absl::Status status, ServedValue value) mutable {
               if (absl::IsCancelled(status)) recent->Forget(request_id, turn);
               std::move(done)(std::move(status), std::move(value));
             });
}

void TensorSource::RecvUnkept(const Request& request, CancellationToken* cancellation,
                              ServedCallback done) {
  absl::StatusOr<RendezvousKey> key = CheckKey(request.key);
  if (!key.ok()) return std::move(done)(key.status(), {});
  // Kept until the value's carrier has begun a transfer, which has an operation of its own.
  auto operation = std::make_unique<StepOperation>();
  StepOperation* const begun = operation.get();
  manager_.RecvLocalAsync(request.step_id, *key, {.cancellation = cancellation, .operation = begun},
                          [operation = std::move(operation), done = std::move(done),
                           gpus = options_.gpus](absl::Status status, Received received) mutable {
                            if (status.ok()) status = CheckOnHost(received.tensor, "send");
                            if (absl::IsFailedPrecondition(status) && gpus != nullptr) {
                              return Stage(*gpus, std::move(received), std::move(operation),
                                           std::move(done));
                            }
                            ServedValue value;
                            value.tensor = std::move(received.tensor);
                            value.is_dead = received.is_dead;
                            value.send_start_micros = absl::ToUnixMicros(absl::Now());
                            std::move(done)(std::move(status), std::move(value));
                          });
}

TensorSource::TransferPtr TensorSource::BeginTransfer(int64_t step_id, absl::string_view key,
                                                      const ServedValue& value) {
  const absl::StatusOr<RendezvousKey> parsed = RendezvousKey::Parse(key);
  if (!parsed.ok()) return nullptr;
  return transfers_.Add(step_id, *parsed, value.is_dead ? 0 : value.tensor.bytes(),
                        value.require_ack, manager_.BeginOperation(step_id));
}

void TensorSource::EndTransfer(const TransferPtr& transfer, const absl::Status& status) {
  if (transfer == nullptr || transfer->is_given_up.exchange(true)) return;
  // Before its operation ends: the thread waiting for that then asks what was lost.
  if (!status.ok() && !transfer->is_kept) {
    manager_.RecordSendFailure(transfer->step_id, transfer->key, status);
  }
  transfers_.Remove(transfer);
}

bool TensorSource::FailTask(const TaskName& task, const absl::Status& why) {
  const std::vector<TransferPtr> transfers = transfers_.To(task);
  for (const TransferPtr& each : transfers) {
    // Takes effect at its next frame, if there ever is one.
    each->is_step_over.store(true, std::memory_order_relaxed);
    EndTransfer(each, why);
  }
  return !transfers.empty();
}

absl::StatusOr<RendezvousKey> TensorSource::CheckKey(absl::string_view text) const {
  FERRY_ASSIGN_OR_RETURN(RendezvousKey key, RendezvousKey::Parse(text));
  const std::optional<uint64_t> incarnation = incarnation_of_(key.src());
  if (!incarnation.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(BoundedName(key.src_device()),
                                                   " unknown device. Asked for by the key ",
                                                   BoundedName(key.text())));
  }
  if (*incarnation != key.src_incarnation()) {
    return absl::AbortedError(absl::StrCat(
        "RecvTensor expects a different device incarnation: ", key.src_incarnation(), " vs. ",
        *incarnation, ". Your worker job (\"", BoundedName(ToString(key.src().task)),
        "\") was probably restarted. Check your worker job for the reason why it was restarted."));
  }
  return key;
}

}  // namespace ferry
