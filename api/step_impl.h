// SPDX-License-Identifier: Apache-2.0
// Step::Impl: an internal step, and what its operations need of the node.
#ifndef FERRY_API_STEP_IMPL_H_
#define FERRY_API_STEP_IMPL_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include <ferry/request.h>
#include <ferry/step.h>

#include "api/peer_lookup.h"
#include "api/request_impl.h"
#include "node/node.h"
#include "node/step.h"

namespace ferry::v0 {

// Thread-safe. Alive as long as a receive of the step is under way.
class Step::Impl final : public std::enable_shared_from_this<Step::Impl> {
 public:
  // `node` and `lookup` outlive its use.
  Impl(ferry::Node& node, PeerLookup& lookup, ferry::Step step)
      : node_(node), lookup_(lookup), step_(std::move(step)) {}

  ferry::Step& inner() { return step_; }

  // The methods of Step.
  absl::Status Send(const TensorId& id, const Tensor& tensor, const SendOptions& options);
  // Returns the status of each.
  std::vector<absl::Status> SendMany(absl::Span<const SendOperation> operations);
  std::shared_ptr<RequestImpl> Recv(const TensorId& id, RecvOptions options) {
    return Recv(id, std::move(options), /*batch=*/nullptr);
  }
  std::vector<std::shared_ptr<RequestImpl>> RecvMany(absl::Span<const RecvOperation> operations);
  absl::Status Close(absl::Duration timeout);
  void Abort(const absl::Status& reason);

 private:
  // Receives that are posted together.
  struct ReceiveBatch {
    // Room for all of them is reserved: the items refer to it.
    std::vector<RendezvousKey> keys;
    std::vector<ferry::RecvItem> items;
  };

  // `batch`: null: it is posted at once, else added there if its key is known.
  std::shared_ptr<RequestImpl> Recv(const TensorId& id, RecvOptions options, ReceiveBatch* batch);
  // The key of a send.
  absl::StatusOr<RendezvousKey> KeyToSend(const TensorId& id, const Tensor& tensor);
  // In the words of the public API, without TensorFlow's mark and texts.
  //   source: the rank of the sender, which ends what waits for it when it leaves.
  absl::Status ExplainStatus(const absl::Status& status, int source) const;
  // Ends receives that wait for an address, if the step is closed.
  void EndLookups();
  // Begins the transfer of a receive whose key is known.
  //   deadline: of SteadyClock.
  //   batch: null: it is posted at once, else added there.
  void Start(const RendezvousKey& key, const std::shared_ptr<RequestImpl>& request,
             RecvOptions options, absl::Time deadline, ReceiveBatch* batch);
  // Completes a receive: with an error, or with a tensor that has arrived, or is being written to
  // the memory of a GPU.
  void Finish(absl::Status status, Received received, const std::shared_ptr<RequestImpl>& request,
              const RequestImpl::Transfer& transfer);

  ferry::Node& node_;
  PeerLookup& lookup_;
  ferry::Step step_;
};

}  // namespace ferry::v0

#endif  // FERRY_API_STEP_IMPL_H_
