// SPDX-License-Identifier: Apache-2.0
// Variables: state that outlives a device's steps, in containers that a reset clears.
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

// A resource is identified by name: a tensor of type resource is a scalar string that holds this
// handle. It can be copied, stored and sent like any other tensor, and never dangles: a lookup
// fails if the variable is gone.
struct ResourceHandle {
  std::string device;
  std::string container;
  std::string name;

  bool operator==(const ResourceHandle&) const = default;
};

Tensor HandleToTensor(const ResourceHandle& handle);
//   Errors: INVALID_ARGUMENT for a tensor that was not made by HandleToTensor.
absl::StatusOr<ResourceHandle> HandleFromTensor(const Tensor& tensor);

// Thread-safe. Shared by its table and the kernels that use it.
class Variable final {
 public:
  explicit Variable(DataType dtype) : dtype_(dtype) {}

  DataType dtype() const { return dtype_; }
  // Invalid until the first assignment.
  Tensor value() const ABSL_LOCKS_EXCLUDED(mu_);
  void Assign(Tensor value) ABSL_LOCKS_EXCLUDED(mu_);

  // Calls update(value, is_own) under the lock, which returns the variable's new value.
  //   is_own: the value has no other users and may be written in place.
  // Returns the error of `update`, if any.
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
  // Made by Modify: the buffer is from this device's allocator and not shared.
  bool is_own_ ABSL_GUARDED_BY(mu_) = false;
};

// Thread-safe. One per device; variables are created by their first assignment.
class Variables final {
 public:
  // Container of variables that name none. TensorFlow names it after the device's job, which is
  // this one on every worker (tensorflow/graph/device_set.h), so clients may clear it by that name.
  static constexpr absl::string_view kDefaultContainer = "worker";

  //   device: its full name; handles of other devices are rejected.
  explicit Variables(std::string device) : device_(std::move(device)) {}

  const std::string& device() const { return device_; }

  //   Errors: NOT_FOUND with TensorFlow's text; INVALID_ARGUMENT for a handle of another device.
  absl::StatusOr<std::shared_ptr<Variable>> Find(const ResourceHandle& handle) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the existing variable, whatever its type, or a new one of `dtype`.
  //   Errors: INVALID_ARGUMENT for a handle of another device.
  absl::StatusOr<std::shared_ptr<Variable>> FindOrCreate(const ResourceHandle& handle,
                                                         DataType dtype) ABSL_LOCKS_EXCLUDED(mu_);

  // Removes the variables in these containers; kernels that are using one finish with it.
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
