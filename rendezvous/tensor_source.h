// SPDX-License-Identifier: Apache-2.0
// TensorSource: finds the values that other workers ask this one for.
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

// The present incarnation of a device of this worker; nothing for others. Thread-safe; does not
// block.
using IncarnationLookup = std::function<std::optional<uint64_t>(const TaskDevice&)>;

struct TensorSourceOptions {
  // Keeps each value until its client says that it has it, so that a request may be sent again
  // whatever became of the first one. TensorFlow's rpc_options.cache_rpc_response.
  bool keep_responses = false;
  ResponseCacheLimits cache;
  // For values in their memory, which are copied to the host's before they go; null: none are.
  Gpus* gpus = nullptr;
};

// Thread-safe. Whatever carries requests asks here: the unary call and the stream are two of them.
// Source: tensorflow/core/distributed_runtime/rpc/grpc_worker_service.cc, GrpcRecvTensorAsync.
class TensorSource final {
 public:
  struct Request {
    int64_t step_id = 0;
    absl::string_view key;
    // 0: none.
    int64_t request_id = 0;
  };

  // `manager` outlives it.
  TensorSource(RendezvousManager& manager, IncarnationLookup incarnation_of,
               TensorSourceOptions options = {});

  TensorSource(const TensorSource&) = delete;
  TensorSource& operator=(const TensorSource&) = delete;

  // Takes the value, waiting for it if need be, without holding a thread.
  //   1. A request with an id that responses are kept for joins the one that came before it.
  //   2. Else an id that was seen before ends it.
  //   3. The key names a device of this worker, of the incarnation that it has now.
  //   4. The step's rendezvous gives the value, when it is sent.
  //   cancellation: the client has gone. The value is left to another request, and so is the
  //     request's id; when responses are kept it is taken nevertheless, and kept for this one.
  //   `done` may run inside, or on the thread of whoever sends.
  //   Errors, through `done`: ABORTED received twice, another incarnation, or the step is over;
  //   FAILED_PRECONDITION a value in a device's memory, and options.gpus is null;
  //   INVALID_ARGUMENT for the key or an unknown device; CANCELLED; RESOURCE_EXHAUSTED.
  void Recv(const Request& request, CancellationToken* cancellation, ServedCallback done);

  // The client of that request has its value.
  void MarkRecvFinished(int64_t request_id) { cache_->MarkFinished(request_id); }
  // Forgets what is kept for the step, and lets calls end that still carry its values. The
  // manager's Cleanup is to be called too, before.
  void CleanupStep(int64_t step_id) {
    cache_->CleanupStep(step_id);
    transfers_.EndStep(step_id);
  }

  // Whoever carries a value that Recv has given says so, and how that ended.
  using TransferPtr = std::shared_ptr<TransferList::Transfer>;
  // Null for a key that is none.
  TransferPtr BeginTransfer(int64_t step_id, absl::string_view key, const ServedValue& value);
  //   status: not OK: the value has not arrived, and is lost unless it is kept.
  void EndTransfer(const TransferPtr& transfer, const absl::Status& status);
  // The task has died: what is on its way there is lost, for that reason, and waited for no more,
  // though the calls that carry it may take as long as the network lets them. Whether there is any.
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

  // Shared with receives that wait, which may end when this is gone.
  const std::shared_ptr<RecentRequestIds> recent_ = std::make_shared<RecentRequestIds>();
  const std::shared_ptr<ResponseCache> cache_;
  TransferList transfers_{SteadyClock()};
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_TENSOR_SOURCE_H_
