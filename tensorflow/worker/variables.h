// SPDX-License-Identifier: Apache-2.0
// Variables: what outlives the steps of a device, in containers that a reset clears.
#ifndef FERRY_TENSORFLOW_WORKER_VARIABLES_H_
#define FERRY_TENSORFLOW_WORKER_VARIABLES_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

#include "tensor/tensor.h"

namespace ferry::worker {

// A resource is known by its name: a tensor of type resource is a scalar string that holds this, so
// that it may be copied, kept and sent like any other, and points nowhere when the variable is
// gone.
struct ResourceHandle {
  std::string device;
  std::string container;
  std::string name;

  bool operator==(const ResourceHandle&) const = default;
};

Tensor HandleToTensor(const ResourceHandle& handle);
//   Errors: INVALID_ARGUMENT for a tensor that HandleToTensor did not make.
absl::StatusOr<ResourceHandle> HandleFromTensor(const Tensor& tensor);

// Thread-safe. Shared by the table it is in and by the kernels that use it.
class Variable final {
 public:
  explicit Variable(DataType dtype) : dtype_(dtype) {}

  DataType dtype() const { return dtype_; }
  // No tensor until it has been assigned to.
  Tensor value() const ABSL_LOCKS_EXCLUDED(mu_);
  void Assign(Tensor value) ABSL_LOCKS_EXCLUDED(mu_);

  // Calls update(value, is_own) under the lock: it returns what the variable is from now on.
  //   is_own: nobody else sees the value, and it may be written in place.
  // Returns what `update` failed with, if it did.
  template <typename Update>
  absl::Status Modify(Update&& update) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    absl::StatusOr<Tensor> updated = update(value_, is_own_ && IsUnshared());
    if (!updated.ok()) return std::move(updated).status();
    value_ = *std::move(updated);
    is_own_ = true;
    return absl::OkStatus();
  }

 private:
  bool IsUnshared() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const DataType dtype_;
  mutable absl::Mutex mu_;
  Tensor value_ ABSL_GUARDED_BY(mu_);
  // Made by Modify: its buffer is of this device's allocator, and nobody's else.
  bool is_own_ ABSL_GUARDED_BY(mu_) = false;
};

// Thread-safe. One for each device; variables are there from their first assignment on.
class Variables final {
 public:
  // Where variables are that name no container. TensorFlow calls it as the device's job, which is
  // this one on every worker (tensorflow/graph/device_set.h), so clients may clear it by that name.
  static constexpr absl::string_view kDefaultContainer = "worker";

  //   device: its full name; handles of another device are refused.
  explicit Variables(std::string device) : device_(std::move(device)) {}

  const std::string& device() const { return device_; }

  //   Errors: NOT_FOUND with TensorFlow's text; INVALID_ARGUMENT for a handle of another device.
  absl::StatusOr<std::shared_ptr<Variable>> Find(const ResourceHandle& handle) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // The one that is there, whatever its type, or a new one of `dtype`.
  //   Errors: INVALID_ARGUMENT for a handle of another device.
  absl::StatusOr<std::shared_ptr<Variable>> FindOrCreate(const ResourceHandle& handle,
                                                         DataType dtype) ABSL_LOCKS_EXCLUDED(mu_);

  // Forgets the variables in these containers; kernels that are at one of them finish with it.
  //   containers: empty: the default one, as for a client's Reset.
  void Clear(absl::Span<const std::string> containers) ABSL_LOCKS_EXCLUDED(mu_);

  // For statistics and tests.
  int variable_count() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Container = absl::btree_map<std::string, std::shared_ptr<Variable>>;

  absl::Status CheckDevice(const ResourceHandle& handle) const;

  const std::string device_;
  mutable absl::Mutex mu_;
  absl::btree_map<std::string, Container> containers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_VARIABLES_H_
