// SPDX-License-Identifier: Apache-2.0
// Takes the program's arrays, of whatever package, as tensors.
#ifndef FERRY_PYTHON_SRC_ARRAYS_H_
#define FERRY_PYTHON_SRC_ARRAYS_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <ferry/device.h>
#include <ferry/tensor.h>
#include <nanobind/nanobind.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

struct CUstream_st;

namespace ferry::python {

// The state of program memory that a tensor borrows: in use, or released. Shared by its deleter
// and the transfer that the program holds. Thread-safe.
class BorrowedMemory final {
 public:
  bool is_released() const { return is_released_.load(std::memory_order_acquire); }
  // Returns whether it is released.
  bool AwaitRelease(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `on_release` once it is released, on any thread; at once if it is already. At most one at
  // a time: a later one takes the place of an earlier one.
  void NotifyRelease(std::function<void()> on_release) ABSL_LOCKS_EXCLUDED(mu_);

  void Release() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  std::atomic<bool> is_released_{false};
  absl::Mutex mu_;
  std::function<void()> on_release_ ABSL_GUARDED_BY(mu_);
};

struct ImportedArray {
  Tensor tensor;
  // Not null: the elements are the program's, and are not copied.
  std::shared_ptr<BorrowedMemory> borrowed;
  // The program cannot change the elements: a copy, bytes, or a tensor of Ferry's.
  bool is_immutable = false;
  // For memory of a GPU: the stream on which the program's work on the elements is enqueued.
  CUstream_st* stream = nullptr;
};

enum class ArrayUse {
  kRead,
  kWrite,  // its elements will be overwritten
};

// A view of the array's elements, which lives as long as the last copy of the tensor. In order of
// preference, by type: ferry.Tensor, DLPack's C exchange API, the buffer protocol, DLPack, the CUDA
// array interface. Arrays that are not dense and row-major are copied for kRead, where their
// package can.
//   stream: None, or the CUDA stream that writes the elements, or (kWrite) will read them.
//   copied_bytes: for kRead, arrays in host memory of at most that size are copied, and not
//   borrowed.
// Raises TypeError for what is no array, BufferError for one that cannot be taken, naming the
// reason. REQUIRES: the GIL.
ImportedArray ImportArray(nanobind::handle array, ArrayUse use, nanobind::handle stream,
                          size_t copied_bytes = 0);

// "float32", "bfloat16", ..., the names of NumPy and ml_dtypes; "bytes" for strings.
const char* DtypeName(DataType type);
// Raises TypeError naming the types that there are.
DataType ParseDtype(nanobind::handle dtype);

// "cpu", "cuda:1".
std::string DeviceName(const Device& device);
// A device, from "cpu", "cuda", "cuda:1", Ferry's names "host:0" and "gpu:1", or an object with
// such a text, such as torch.device.
// Raises ValueError.
Device ParseDevice(nanobind::handle device);

// The default stream that every stream of a device waits for, and which waits for them.
inline CUstream_st* LegacyStream() { return reinterpret_cast<CUstream_st*>(1); }
// A stream: its handle as an integer, or an object of CUDA's protocol (__cuda_stream__), PyTorch or
// CuPy. 0 and 1 are the legacy default stream, 2 the thread's.
// Raises TypeError.
CUstream_st* ParseStream(nanobind::handle stream);

}  // namespace ferry::python

#endif  // FERRY_PYTHON_SRC_ARRAYS_H_
