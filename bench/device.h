// SPDX-License-Identifier: Apache-2.0
// BenchDevice: the host or GPU memory that a bench's process sends from and receives into.
#ifndef FERRY_BENCH_DEVICE_H_
#define FERRY_BENCH_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "bench/plan.h"
#include "node/node.h"
#include "tensor/tensor.h"

namespace ferry::cli {

// Parses "host:0,gpu:1", the devices of the processes; at most `most`.
//   Errors: INVALID_ARGUMENT, naming the flag.
absl::StatusOr<BenchDevices> ParseDevicesFlag(absl::string_view text, int most);

// Returns the location of such a device.
TensorLocation LocationOfDevice(absl::string_view name);

// Tensors have one dimension, filled with a pattern of cli/pattern.h. Not thread-safe, except
// AwaitBytes.
class BenchDevice final {
 public:
  // `name`: as in ParseDevicesFlag. dtype: name of the type of all tensors. timeout: for each wait
  // for a GPU. The node must outlive it.
  //   Errors: INVALID_ARGUMENT for an unknown type; as Node::Allocate, Gpus::Get.
  static absl::StatusOr<std::unique_ptr<BenchDevice>> Open(Node& node, std::string name,
                                                           absl::string_view dtype,
                                                           absl::Duration timeout);
  ~BenchDevice();

  bool is_gpu() const { return gpu_ != nullptr; }
  // Null for a host.
  Gpu* gpu() const { return gpu_; }
  TensorLocation location() const;

  // Allocates `bytes`, here and below a multiple of the element size. Elements are undefined.
  absl::StatusOr<Tensor> Make(size_t bytes);
  // The pattern is complete when this returns.
  absl::StatusOr<Tensor> MakePattern(size_t bytes, uint64_t seed);
  // Blocks until a received tensor's bytes are ready: a GPU tensor is delivered before its data.
  absl::Status AwaitBytes(const Tensor& tensor);
  // Returns the number of wrong bytes of a received tensor; all of them if size or type differ.
  absl::StatusOr<size_t> CountErrors(const Tensor& tensor, size_t bytes, uint64_t seed);

  // Returns the P50 of a synchronous driver copy to this GPU: from other memory of it, or from and
  // to pinned host memory, averaged over both directions. REQUIRES: is_gpu().
  absl::StatusOr<absl::Duration> MeasureCopy(size_t bytes, int rounds, bool is_from_host);
  // Returns the P50 of a synchronous driver copy to GPU `other` of this process and back, averaged
  // over both directions. That GPU stays in use.
  //   Errors: UNAVAILABLE if it cannot be used here, or neither can access the other's memory.
  //   REQUIRES: is_gpu(); another GPU.
  absl::StatusOr<absl::Duration> MeasurePeerCopy(size_t bytes, int rounds,
                                                 const std::string& other);

 private:
  BenchDevice(Node& node, std::string name, DataType dtype, absl::Duration timeout)
      : node_(node), name_(std::move(name)), dtype_(dtype), timeout_(timeout) {}

  absl::StatusOr<Tensor> Allocate(const std::string& device, size_t bytes);
  absl::StatusOr<Tensor> Move(const Tensor& tensor, const TensorLocation& to, const char* what);

  Node& node_;
  const std::string name_;
  const DataType dtype_;
  const absl::Duration timeout_;
  // Owned by the node; null for a host.
  Gpu* gpu_ = nullptr;
};

// Returns the transports able to transfer tensors of `bytes` from that device of node `from` to
// this one.
std::set<std::string> DevicePaths(Node& node, int from, size_t bytes, absl::string_view from_device,
                                  absl::string_view to_device);

// Explains the path of tensors of `bytes` from that device of node `from` to this one.
std::string DevicePathReason(Node& node, int from, size_t bytes, absl::string_view from_device,
                             absl::string_view to_device);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_DEVICE_H_
