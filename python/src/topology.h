// SPDX-License-Identifier: Apache-2.0
// ferry.Topology and what it consists of.
#ifndef FERRY_PYTHON_SRC_TOPOLOGY_H_
#define FERRY_PYTHON_SRC_TOPOLOGY_H_

#include <nanobind/nanobind.h>

namespace ferry::python {

void DefineTopology(nanobind::module_& core);

}  // namespace ferry::python

#endif  // FERRY_PYTHON_SRC_TOPOLOGY_H_
