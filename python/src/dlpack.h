// SPDX-License-Identifier: Apache-2.0
// DLPack's protocols of Python: capsules, and the C exchange API.
#ifndef FERRY_PYTHON_SRC_DLPACK_H_
#define FERRY_PYTHON_SRC_DLPACK_H_

#include <memory>

#include <ferry/tensor.h>
#include <nanobind/nanobind.h>

#include "python/src/arrays.h"
#include "python/src/dlpack_abi.h"

namespace ferry::python {

// The exchange API of arrays of that type; null if it has none of major version 1. Set Python
// errors are cleared.
const DLPackExchangeAPI* ExchangeApiOf(PyTypeObject* type);

// Takes an array by one of the two. Raises BufferError, or what the array's package raises.
//   stream: the consumer's, for arrays in the memory of a GPU; null: the array's own, for the
//   exchange API, or else the legacy default stream.
ImportedArray ImportByExchangeApi(const DLPackExchangeAPI& api, nanobind::handle array,
                                  ArrayUse use);
ImportedArray ImportByCapsule(nanobind::handle array, ArrayUse use);

// A capsule of `tensor`, as __dlpack__ returns it: versioned if `is_versioned`.
nanobind::object MakeCapsule(const Tensor& tensor, bool is_writable, bool is_versioned,
                             bool is_copy);

// Gives the Python type of ferry.Tensor the attribute __dlpack_c_exchange_api__.
void DefineExchangeApi(nanobind::handle tensor_type);

}  // namespace ferry::python

#endif  // FERRY_PYTHON_SRC_DLPACK_H_
