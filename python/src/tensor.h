// SPDX-License-Identifier: Apache-2.0
// PyTensor: the C++ state of ferry.Tensor.
#ifndef FERRY_PYTHON_SRC_TENSOR_H_
#define FERRY_PYTHON_SRC_TENSOR_H_

#include <memory>

#include <ferry/tensor.h>
#include <nanobind/nanobind.h>

namespace ferry::python {

// A tensor, unless it was released. REQUIRES: the GIL, for all members.
class PyTensor final {
 public:
  PyTensor(Tensor tensor, bool is_writable)
      : tensor_(std::move(tensor)), is_writable_(is_writable) {}

  // Raises ValueError after Release.
  const Tensor& tensor() const;
  bool is_writable() const { return is_writable_; }
  // It was sent: its receivers may read the same memory.
  void MakeReadOnly() { is_writable_ = false; }
  bool is_released() const { return !tensor_.is_valid(); }
  void Release() { tensor_ = Tensor(); }

 private:
  Tensor tensor_;
  bool is_writable_;
};

void DefineTensor(nanobind::module_& core);

}  // namespace ferry::python

#endif  // FERRY_PYTHON_SRC_TENSOR_H_
