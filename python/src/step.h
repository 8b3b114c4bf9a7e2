// SPDX-License-Identifier: Apache-2.0
// ferry.Step's base.
#ifndef FERRY_PYTHON_SRC_STEP_H_
#define FERRY_PYTHON_SRC_STEP_H_

#include <nanobind/nanobind.h>

namespace ferry::python {

void DefineStep(nanobind::module_& core);

}  // namespace ferry::python

#endif  // FERRY_PYTHON_SRC_STEP_H_
