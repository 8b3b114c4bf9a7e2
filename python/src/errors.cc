// SPDX-License-Identifier: Apache-2.0
// The exception is made by ferry._errors.from_status, which selects its class.
#include "python/src/errors.h"

#include <ferry/error_details.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace ferry::python {
namespace nb = nanobind;
namespace {

nb::object OrNone(const std::string& text) {
  if (text.empty()) return nb::none();
  return nb::cast(text);
}

[[noreturn]] void RaiseOwn(PyObject* type, absl::string_view message) {
  PyErr_SetString(type, std::string(message).c_str());
  throw nb::python_error();
}

// Texts of other processes may hold any bytes.
nb::object Text(absl::string_view bytes) {
  PyObject* const text =
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace");
  if (text == nullptr) throw nb::python_error();
  return nb::steal(text);
}

}  // namespace

void Raise(const absl::Status& status, const ErrorContext& context) {
  nb::dict fields;
  fields["key"] = context.key.empty() ? nb::object(nb::none()) : Text(context.key);
  fields["rank"] = context.rank.has_value() ? nb::object(nb::int_(*context.rank)) : nb::none();
  fields["host"] = OrNone(context.host);
  fields["waited"] = context.waited.has_value()
                         ? nb::object(nb::float_(absl::ToDoubleSeconds(*context.waited)))
                         : nb::none();
  fields["missing"] = nb::cast(MissingRanks(status));
  fields["phase"] = OrNone(TransferPhase(status));
  const nb::object error = nb::module_::import_("ferry._errors")
                               .attr("from_status")(absl::StatusCodeToString(status.code()),
                                                    Text(status.message()), **fields);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

void Check(const absl::Status& status, const ErrorContext& context) {
  if (!status.ok()) Raise(status, context);
}

void RaiseTypeError(absl::string_view message) { RaiseOwn(PyExc_TypeError, message); }
void RaiseValueError(absl::string_view message) { RaiseOwn(PyExc_ValueError, message); }
void RaiseBufferError(absl::string_view message) { RaiseOwn(PyExc_BufferError, message); }

}  // namespace ferry::python
