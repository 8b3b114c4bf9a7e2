// SPDX-License-Identifier: Apache-2.0
// TensorSource: serves other workers' requests for values.
#ifndef FERRY_RENDEZVOUS_TENSOR_SOURCE_H_
#define FERRY_RENDEZVOUS_TENSOR_SOURCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "gpu/gpus.h"
#include "rendezvous/device_name.h"
#include "rendezvous/key.h"
#include "rendezvous/recent_request_ids.h"
#include "rendezvous/rendezvous_manager.h"
#include "rendezvous/response_cache.h"
#include "rendezvous/transfer_list.h"

namespace ferry {

// Returns the current incarnation of a device of this worker; nothing for others. Thread-safe; does
// not block.
using IncarnationLookup = std::function<std::optional<uint64_t>(const TaskDevice&)>;

struct TensorSourceOptions {
  // Keeps each value until its client acknowledges it, so that a request may be repeated whatever
  // happened to the first one. TensorFlow's rpc_options.cache_rpc_response.
  bool keep_responses = false;
  ResponseCacheLimits cache;
  // For values in GPU memory, which are copied to host memory before being sent; null: there are
  // none.
  Gpus* gpus = nullptr;
};

// Thread-safe. Common to all protocols that carry requests, such as the unary call and the stream.
// Source: tensorflow/core/distributed_runtime/rpc/grpc_worker_service.cc, GrpcRecvTensorAsync.
class TensorSource final {
 public:
  struct Request {
    int64_t step_id = 0;
    absl::string_view key;
    // 0: none.
    int64_t request_id = 0;
  };

  // `manager` must outlive it.
  TensorSource(RendezvousManager& manager, IncarnationLookup incarnation_of,
               TensorSourceOptions options = {});

  TensorSource(const TensorSource&) = delete;
  TensorSource& operator=(const TensorSource&) = delete;

  // Takes the value, waiting for it if needed, without blocking a thread.
  //   1. If responses are kept, a request with an id joins an earlier one with the same id.
  //   2. Else an id that was seen before is rejected.
  //   3. The key must name a device of this worker, in its current incarnation.
  //   4. The step's rendezvous delivers the value, once it is sent.
  //   cancellation: the client has disconnected. The value is left to another request, and so is
  //   the request's id; if responses are kept, it is taken nevertheless, and kept for this request.
  //   `done` may run inline, or on the sender's thread.
  //   Errors, through `done`: ABORTED received twice, another incarnation, or the step is over;
  //   FAILED_PRECONDITION a value in a device's memory, and options.gpus is null; INVALID_ARGUMENT
  //   for the key or an unknown device; CANCELLED; RESOURCE_EXHAUSTED.
  void Recv(const Request& request, CancellationToken* cancellation, ServedCallback done);

  // The client of that request has received its value.
  void MarkRecvFinished(int64_t request_id) { cache_->MarkFinished(request_id); }
  // Forgets the step's kept values, and lets calls end that still carry its values. Call the
  // manager's Cleanup too, before this.
  void CleanupStep(int64_t step_id) {
    cache_->CleanupStep(step_id);
    transfers_.EndStep(step_id);
  }

  // Callers that carry a value given by Recv report the start of the transfer, and how it ended.
  using TransferPtr = std::shared_ptr<TransferList::Transfer>;
  // Returns null for a malformed key.
  TransferPtr BeginTransfer(int64_t step_id, absl::string_view key, const ServedValue& value);
  //   status: not OK: the value has not arrived, and is lost unless it is kept.
  void EndTransfer(const TransferPtr& transfer, const absl::Status& status);
  // The task has failed: values in transit to it are lost, for that reason, and no longer waited
  // for, though the calls that carry them may last until the network fails them. Returns whether
  // there were any.
  bool FailTask(const TaskName& task, const absl::Status& why);
  const TransferList& transfers() const { return transfers_; }

  const ResponseCache& cache() const { return *cache_; }

 private:
  // Steps 3 and 4.
  void RecvUnkept(const Request& request, CancellationToken* cancellation, ServedCallback done);
  absl::StatusOr<RendezvousKey> CheckKey(absl::string_view text) const;

  // Constant after construction.
  RendezvousManager& manager_;
  const IncarnationLookup incarnation_of_;
  const TensorSourceOptions options_;

  // Shared with waiting receives, which may outlive this.
  const std::shared_ptr<RecentRequestIds> recent_ = std::make_shared<RecentRequestIds>();
  const std::shared_ptr<ResponseCache> cache_;
  TransferList transfers_{SteadyClock()};
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_TENSOR_SOURCE_H_
