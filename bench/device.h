// SPDX-License-Identifier: Apache-2.0
// BenchDevice: the memory that a bench's process sends from and receives into, a host's or a GPU's.
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

// "host:0,gpu:1": what the processes use, at most `most` of them.
//   Errors: INVALID_ARGUMENT, naming the flag.
absl::StatusOr<BenchDevices> ParseDevicesFlag(absl::string_view text, int most);

// Of one of these names.
TensorLocation PlaceOfDevice(absl::string_view name);

// Tensors have one dimension, and a pattern of cli/pattern.h. Not thread-safe but for AwaitBytes.
class BenchDevice final {
 public:
  // `name`: as of ParseDevicesFlag. dtype: of all its tensors, a name. The node outlives it.
  // timeout: of each wait for a GPU.
  //   Errors: INVALID_ARGUMENT no such type; as Node::Allocate, Gpus::Get.
  static absl::StatusOr<std::unique_ptr<BenchDevice>> Open(Node& node, std::string name,
                                                           absl::string_view dtype,
                                                           absl::Duration timeout);
  ~BenchDevice();

  bool is_gpu() const { return gpu_ != nullptr; }
  // Null on a host.
  Gpu* gpu() const { return gpu_; }
  TensorLocation place() const;

  // `bytes`, here and below: of whole elements. Elements undefined.
  absl::StatusOr<Tensor> Make(size_t bytes);
  // The pattern is there when this returns.
  absl::StatusOr<Tensor> MakePattern(size_t bytes, uint64_t seed);
  // Waits until the bytes of what has arrived are there: a GPU's may come after the word of them.
  absl::Status AwaitBytes(const Tensor& tensor);
  // How many bytes of what has arrived are wrong; all of them if there are more or less, or they
  // are of another type.
  absl::StatusOr<size_t> CountErrors(const Tensor& tensor, size_t bytes, uint64_t seed);

  // P50 of the driver's own copy to this GPU, waited for: from another piece of its memory, or
  // from, and to, pinned memory of the host, half of both ways. REQUIRES: is_gpu().
  absl::StatusOr<absl::Duration> MeasureCopy(size_t bytes, int rounds, bool is_from_host);
  // P50 of the driver's own copy to GPU `other` of this process, and back, waited for: half of both
  // ways. That GPU is in use from then on.
  //   Errors: UNAVAILABLE why it cannot be used here, or that neither reaches the other's memory.
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
  // Of the node; null on a host.
  Gpu* gpu_ = nullptr;
};

// The transports that can bring tensors of `bytes` from that device of node `from` to this one.
std::set<std::string> DeviceWays(Node& node, int from, size_t bytes, absl::string_view from_device,
                                 absl::string_view to_device);

// Why tensors of `bytes` come from that device of node `from` to this one the way they do.
std::string DevicePathReason(Node& node, int from, size_t bytes, absl::string_view from_device,
                             absl::string_view to_device);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_DEVICE_H_
