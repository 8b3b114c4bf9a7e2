// SPDX-License-Identifier: Apache-2.0
// ferry._core: the classes of the package that are written in C++.
#include <exception>
#include <typeinfo>

#include <nanobind/nanobind.h>

#include "python/src/communicator.h"
#include "python/src/completion_queue.h"
#include "python/src/fork_guard.h"
#include "python/src/node.h"
#include "python/src/step.h"
#include "python/src/store.h"
#include "python/src/tensor.h"
#include "python/src/topology.h"
#include "python/src/transfer.h"

NB_MODULE(_core, core) {
  // The interpreter ends without destroying the objects of modules.
  nanobind::set_leak_warnings(false);
  // nb::cast fails for arguments of a wrong type: a number out of range, a list instead of a tuple.
  nanobind::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::bad_cast&) {
      PyErr_SetString(PyExc_TypeError, "an argument is of a wrong type, or out of range");
    }
  });
  // Counts forks from now on.
  [[maybe_unused]] const ferry::python::ForkGuard guard;
  core.doc() = "The C++ part of the package ferry, which has its public names.";
  ferry::python::DefineCompletionQueue(core);
  ferry::python::DefineTensor(core);
  ferry::python::DefineTopology(core);
  ferry::python::DefineTransfer(core);
  ferry::python::DefineNode(core);
  ferry::python::DefineStep(core);
  ferry::python::DefineStore(core);
  ferry::python::DefineCommunicator(core);
}
