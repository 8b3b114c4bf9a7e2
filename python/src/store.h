// SPDX-License-Identifier: Apache-2.0
// ferry.Store's base, and ferry.Watch's.
#ifndef FERRY_PYTHON_SRC_STORE_H_
#define FERRY_PYTHON_SRC_STORE_H_

#include <nanobind/nanobind.h>

namespace ferry::python {

void DefineStore(nanobind::module_& core);

}  // namespace ferry::python

#endif  // FERRY_PYTHON_SRC_STORE_H_
