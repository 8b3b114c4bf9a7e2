// SPDX-License-Identifier: Apache-2.0
// ferry.Communicator's base.
#ifndef FERRY_PYTHON_SRC_COMMUNICATOR_H_
#define FERRY_PYTHON_SRC_COMMUNICATOR_H_

#include <nanobind/nanobind.h>

namespace ferry::python {

void DefineCommunicator(nanobind::module_& core);

}  // namespace ferry::python

#endif  // FERRY_PYTHON_SRC_COMMUNICATOR_H_
