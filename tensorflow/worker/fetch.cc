// SPDX-License-Identifier: Apache-2.0
// Counts pending receives.
#include "tensorflow/worker/fetch.h"

#include <atomic>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"

#include "base/bounded_text.h"
#include "rendezvous/host_memory.h"

#include "base/spin_lock.h"

namespace ferry::worker {
namespace {

struct Fetching {
  FetchCallback done;
  std::vector<Tensor> tensors;
  std::atomic<size_t> missing{0};
  SpinLock mu;
  absl::Status status ABSL_GUARDED_BY(mu);

  void Note(absl::Status error) {
    SpinLockHolder lock(&mu);
    if (status.ok() || (IsDerived(status) && !IsDerived(error))) status = std::move(error);
  }
  void Leave() {
    if (missing.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    absl::Status ended;
    {
      SpinLockHolder lock(&mu);
      ended = std::move(status);
    }
    std::move(done)(std::move(ended), std::move(tensors));
  }
};

}  // namespace

void FetchAll(StepTransfers& transfers, absl::Span<const RendezvousKey> keys,
              CancellationToken* cancellation, FetchCallback done) {
  auto fetching = std::make_shared<Fetching>();
  fetching->done = std::move(done);
  fetching->tensors.resize(keys.size());
  // Plus one, so that it does not complete while receives are being issued.
  fetching->missing.store(keys.size() + 1);
  for (size_t i = 0; i < keys.size(); ++i) {
    RecvArgs args;
    args.cancellation = cancellation;
    // The fetching client reads the tensor on the host.
    if (keys[i].dst().type != "CPU") args.device_context = HostMemoryOfDevice();
    transfers.RecvAsync(
        keys[i], std::move(args),
        [fetching, i, key = keys[i]](absl::Status status, Received received) {
          if (status.ok() && received.is_dead) {
            status = absl::InvalidArgumentError(absl::StrCat(
                "The tensor returned for ", BoundedName(key.text()), " was not valid."));
          }
          if (status.ok()) {
            fetching->tensors[i] = std::move(received.tensor);
          } else {
            fetching->Note(std::move(status));
          }
          fetching->Leave();
        });
  }
  fetching->Leave();
}

}  // namespace ferry::worker
