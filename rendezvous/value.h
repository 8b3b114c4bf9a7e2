// SPDX-License-Identifier: Apache-2.0
// What passes through a rendezvous, and what either side says of it.
#ifndef FERRY_RENDEZVOUS_VALUE_H_
#define FERRY_RENDEZVOUS_VALUE_H_

#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "base/cancellation_token.h"
#include "rendezvous/outstanding_operations.h"
#include "tensor/tensor.h"

namespace ferry {

// What a device needs of a value besides its bytes, such as the stream that is still writing them.
// The rendezvous only hands it on.
class DeviceContext {
 public:
  virtual ~DeviceContext() = default;
};

struct SendArgs {
  std::shared_ptr<DeviceContext> device_context;
};

// A tensor that the elements of a value are wanted in, or none. One pointer wide but for its count,
// since most receives have none and every hand that passes one on would pay for it.
class Destination final {
 public:
  Destination() = default;
  // Of an invalid tensor: none. Implicit: a tensor is what callers have.
  Destination(Tensor tensor)
      : tensor_(tensor.is_valid() ? std::make_shared<const Tensor>(std::move(tensor)) : nullptr) {}

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
  // May be null; outlives the receive.
  CancellationToken* cancellation = nullptr;
  // Of a consumer in another process: begins when a value that was sent is taken for it, and is for
  // whoever brings the value there to end. May be null; outlives the receive.
  StepOperation* operation = nullptr;
  absl::Time deadline = absl::InfiniteFuture();
  // Where the elements are wanted; none: anywhere. Whoever carries them may put them there
  // straight away, and then gives back this very tensor; if it gives back another one, the facade
  // copies. Once the receive has ended nothing is written there any more, but for what a GPU was
  // told before, which keeps the memory until then. Of another type or size than what comes: the
  // receive fails with INVALID_ARGUMENT.
  Destination destination;
};

// A value that has arrived.
struct Received {
  // Not valid if is_dead: the producer was on a branch that was not taken.
  Tensor tensor;
  bool is_dead = false;
  SendArgs send_args;
  RecvArgs recv_args;
  // How it came: "shm", "tcp", "inline", "grpc", ...; "local": it never left the process.
  absl::string_view path = "local";
};

// Called exactly once, with no lock held; `received` only means something if the status is OK.
using RecvCallback = absl::AnyInvocable<void(absl::Status, Received) &&>;

// An error that another one caused, such as a copy of another worker's: reported only if the
// original error is not known. The mark is found behind text that others prepend.
//   "[_Derived_]RecvAsync is cancelled."
absl::Status MakeDerived(const absl::Status& status);
bool IsDerived(const absl::Status& status);
// For people, who need no mark.
absl::Status WithoutDerivedMark(const absl::Status& status);

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_VALUE_H_
