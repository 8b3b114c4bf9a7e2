// SPDX-License-Identifier: Apache-2.0
// The value that passes through a rendezvous, and the arguments of both sides.
#ifndef FERRY_RENDEZVOUS_VALUE_H_
#define FERRY_RENDEZVOUS_VALUE_H_

#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "base/cancellation_token.h"
#include "base/recycled.h"
#include "rendezvous/key.h"
#include "rendezvous/outstanding_operations.h"
#include "tensor/tensor.h"

namespace ferry {

// Device-specific data of a value besides its bytes, such as the stream still writing them. The
// rendezvous only passes it on.
class DeviceContext {
 public:
  virtual ~DeviceContext() = default;
};

struct SendArgs {
  std::shared_ptr<DeviceContext> device_context;
};

// A tensor to receive a value's elements into, or none. One pointer and its count, since most
// receives have none, and every function that passes one on would pay for more.
class Destination final {
 public:
  Destination() = default;
  // An invalid tensor: none. Implicit, since callers have a tensor.
  Destination(Tensor tensor)
      : tensor_(tensor.is_valid() ? std::allocate_shared<const Tensor>(RecyclingAllocator<Tensor>(),
                                                                       std::move(tensor))
                                  : nullptr) {}

  bool is_valid() const { return tensor_ != nullptr; }
  // REQUIRES: is_valid().
  const Tensor& operator*() const { return *tensor_; }
  const Tensor* operator->() const { return tensor_.get(); }
  // Not valid: there is none.
  Tensor tensor() const { return is_valid() ? *tensor_ : Tensor(); }

 private:
  std::shared_ptr<const Tensor> tensor_;
};

struct RecvArgs {
  std::shared_ptr<DeviceContext> device_context;
  // May be null; must outlive the receive.
  CancellationToken* cancellation = nullptr;
  // For a consumer in another process: begins when a sent value is taken for it; the code that
  // delivers the value must end it. May be null; must outlive the receive.
  StepOperation* operation = nullptr;
  absl::Time deadline = absl::InfiniteFuture();
  // Where to put the elements; none: anywhere. The transfer may write there directly, and then
  // returns this very tensor; if it returns another one, the facade copies. Once the receive has
  // ended nothing is written there, except by copies already enqueued on a GPU, which keep the
  // memory until then. If its type or size differs from the value's, the receive fails with
  // INVALID_ARGUMENT.
  Destination destination;
};

// A received value.
struct Received {
  // Not valid if is_dead: the producer was on a branch that was not taken.
  Tensor tensor;
  bool is_dead = false;
  SendArgs send_args;
  RecvArgs recv_args;
  // The path: "shm", "tcp", "inline", "eager", "grpc"; "local": it never left the process.
  absl::string_view path = "local";
};

// One of several sends that are passed on together.
struct SendItem {
  const RendezvousKey* key = nullptr;
  Tensor tensor;
  // Set by the call.
  absl::Status status;
};

// Called exactly once, with no lock held; `received` is meaningful only if the status is OK.
using RecvCallback = absl::AnyInvocable<void(absl::Status, Received) &&>;

// One of several receives that are posted together.
struct RecvItem {
  const RendezvousKey* key = nullptr;
  RecvArgs args;
  RecvCallback done;
};

// Marks an error caused by another error, such as a copy of another worker's: it is reported only
// if the original is unknown. The mark is found even behind text that others prepend.
//   "[_Derived_]RecvAsync is cancelled."
absl::Status MakeDerived(const absl::Status& status);
bool IsDerived(const absl::Status& status);
// The error without its mark, for display.
absl::Status WithoutDerivedMark(const absl::Status& status);

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_VALUE_H_
