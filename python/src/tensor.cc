// SPDX-License-Identifier: Apache-2.0
// ferry.Tensor, and the protocols by which other packages view it.
#include "python/src/tensor.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "python/src/arrays.h"
#include "python/src/dlpack.h"
#include "python/src/errors.h"
#include "python/src/waits.h"

namespace ferry::python {
namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

// The letter of the buffer protocol; null for types that it does not have.
const char* FormatOf(DataType type) {
  switch (type) {
    case DataType::kFloat:
      return "f";
    case DataType::kDouble:
      return "d";
    case DataType::kHalf:
      return "e";
    case DataType::kInt8:
    case DataType::kInt4:
    case DataType::kInt2:
      return "b";
    case DataType::kInt16:
      return "h";
    case DataType::kInt32:
      return "i";
    case DataType::kInt64:
      return "q";
    case DataType::kUint8:
    case DataType::kUint4:
    case DataType::kUint2:
      return "B";
    case DataType::kUint16:
      return "H";
    case DataType::kUint32:
      return "I";
    case DataType::kUint64:
      return "Q";
    case DataType::kBool:
      return "?";
    case DataType::kComplex64:
      return "Zf";
    case DataType::kComplex128:
      return "Zd";
    // As their bits.
    case DataType::kBfloat16:
      return "H";
    case DataType::kFloat8E5m2:
    case DataType::kFloat8E4m3fn:
    case DataType::kFloat8E4m3fnuz:
    case DataType::kFloat8E4m3b11fnuz:
    case DataType::kFloat8E5m2fnuz:
    case DataType::kFloat4E2m1fn:
      return "B";
    default:
      return nullptr;
  }
}

nb::tuple ShapeOf(const Tensor& tensor) {
  nb::list extents;
  for (const int64_t extent : tensor.shape()) extents.append(extent);
  return nb::tuple(extents);
}

// Owned by a Py_buffer of a tensor, through Py_buffer::internal.
struct BufferState {
  Tensor tensor;
  std::vector<Py_ssize_t> shape;
  std::vector<Py_ssize_t> strides;
};

int GetBuffer(PyObject* self, Py_buffer* view, int flags) {
  view->obj = nullptr;
  const auto& py_tensor = nb::cast<const PyTensor&>(nb::handle(self));
  if (py_tensor.is_released()) {
    PyErr_SetString(PyExc_BufferError, "the tensor was released");
    return -1;
  }
  const Tensor& tensor = py_tensor.tensor();
  const char* const format = FormatOf(tensor.dtype());
  if (tensor.device() != Device::Host() || format == nullptr) {
    PyErr_SetString(PyExc_BufferError, tensor.device() != Device::Host()
                                           ? "the tensor is in the memory of a GPU"
                                           : "the buffer protocol has no format for its type");
    return -1;
  }
  if ((flags & PyBUF_WRITABLE) != 0 && !py_tensor.is_writable()) {
    PyErr_SetString(PyExc_BufferError,
                    "the tensor is read-only: it was sent, or is a view of a peer's memory");
    return -1;
  }
  if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && tensor.shape().size() > 1) {
    PyErr_SetString(PyExc_BufferError, "the tensor is contiguous in C order, not in Fortran order");
    return -1;
  }
  auto state = std::make_unique<BufferState>();
  state->tensor = tensor;
  const auto item_bytes = static_cast<Py_ssize_t>(ElementBytes(tensor.dtype()));
  state->shape.assign(tensor.shape().begin(), tensor.shape().end());
  state->strides.resize(state->shape.size());
  Py_ssize_t stride = item_bytes;
  for (size_t i = state->shape.size(); i-- > 0;) {
    state->strides[i] = stride;
    stride *= state->shape[i];
  }
  view->buf = const_cast<void*>(tensor.data());
  view->len = static_cast<Py_ssize_t>(tensor.size_bytes());
  view->itemsize = item_bytes;
  view->readonly = py_tensor.is_writable() ? 0 : 1;
  view->ndim = static_cast<int>(state->shape.size());
  view->format = (flags & PyBUF_FORMAT) != 0 ? const_cast<char*>(format) : nullptr;
  view->shape = (flags & PyBUF_ND) != 0 ? state->shape.data() : nullptr;
  view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? state->strides.data() : nullptr;
  view->suboffsets = nullptr;
  view->internal = state.release();
  view->obj = self;
  Py_INCREF(self);
  return 0;
}

void ReleaseBuffer(PyObject* self, Py_buffer* view) {
  const std::unique_ptr<BufferState> state(static_cast<BufferState*>(view->internal));
}

PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(GetBuffer)},
                       {Py_bf_releasebuffer, reinterpret_cast<void*>(ReleaseBuffer)},
                       {0, nullptr}};

// A copy in host memory of one that is there.
Tensor CopyOf(const Tensor& tensor) {
  if (tensor.device() != Device::Host()) {
    RaiseBufferError(
        "a copy of a tensor in the memory of a GPU is made by the array's package: "
        "import it without copy=True");
  }
  Tensor copy = ValueOf(Tensor::Allocate(tensor.dtype(), tensor.shape()));
  const nb::gil_scoped_release release;
  if (tensor.size_bytes() > 0) std::memcpy(copy.mutable_data(), tensor.data(), tensor.size_bytes());
  return copy;
}

nb::object ToDlpack(const PyTensor& self, nb::handle stream, nb::handle max_version,
                    nb::handle dl_device, nb::handle copy) {
  const Tensor& tensor = self.tensor();
  if (tensor.device() == Device::Host() && !stream.is_none()) {
    RaiseValueError("stream= is for tensors in the memory of a GPU");
  }
  const bool is_versioned =
      !max_version.is_none() && nb::cast<std::pair<int, int>>(max_version).first >= 1;
  if (!dl_device.is_none()) {
    const auto [type, index] = nb::cast<std::pair<int, int>>(dl_device);
    const bool is_here = tensor.device() == Device::Host()
                             ? type == kDlCpu
                             : type == kDlCuda && index == tensor.device().index;
    if (!is_here) {
      RaiseBufferError(absl::StrCat("the tensor is on ", DeviceName(tensor.device()),
                                    "; it is moved to another device by a step"));
    }
  }
  const bool must_copy = !copy.is_none() && nb::cast<bool>(copy);
  if (!must_copy && !is_versioned && !self.is_writable()) {
    // The structs before 1.0 cannot say so, and their consumers would write.
    if (!copy.is_none()) {
      RaiseBufferError(
          "the tensor is read-only, which DLPack before 1.0 cannot express: copy=True");
    }
    return MakeCapsule(CopyOf(tensor), /*is_writable=*/true, is_versioned, /*is_copy=*/true);
  }
  if (must_copy) return MakeCapsule(CopyOf(tensor), /*is_writable=*/true, is_versioned, true);
  return MakeCapsule(tensor, self.is_writable(), is_versioned, /*is_copy=*/false);
}

nb::dict CudaArrayInterface(const PyTensor& self) {
  const Tensor& tensor = self.tensor();
  const char* type = nullptr;
  if (tensor.device().kind == DeviceKind::kGpu) {
    switch (tensor.dtype()) {
      case DataType::kFloat:
        type = "<f4";
        break;
      case DataType::kDouble:
        type = "<f8";
        break;
      case DataType::kHalf:
        type = "<f2";
        break;
      case DataType::kInt8:
        type = "|i1";
        break;
      case DataType::kInt16:
        type = "<i2";
        break;
      case DataType::kInt32:
        type = "<i4";
        break;
      case DataType::kInt64:
        type = "<i8";
        break;
      case DataType::kUint8:
        type = "|u1";
        break;
      case DataType::kUint16:
        type = "<u2";
        break;
      case DataType::kUint32:
        type = "<u4";
        break;
      case DataType::kUint64:
        type = "<u8";
        break;
      case DataType::kBool:
        type = "|b1";
        break;
      case DataType::kComplex64:
        type = "<c8";
        break;
      case DataType::kComplex128:
        type = "<c16";
        break;
      default:
        break;
    }
  }
  if (type == nullptr) {
    PyErr_SetString(PyExc_AttributeError, tensor.device().kind == DeviceKind::kGpu
                                              ? "the CUDA array interface does not have its type"
                                              : "the tensor is in host memory");
    throw nb::python_error();
  }
  nb::dict interface;
  interface["version"] = 3;
  interface["shape"] = ShapeOf(tensor);
  interface["typestr"] = type;
  interface["data"] =
      nb::make_tuple(reinterpret_cast<uintptr_t>(tensor.data()), !self.is_writable());
  interface["strides"] = nb::none();
  interface["stream"] = nb::none();
  return interface;
}

std::string Repr(const PyTensor& self) {
  if (self.is_released()) return "<ferry.Tensor, released>";
  const Tensor& tensor = self.tensor();
  return absl::StrCat("<ferry.Tensor ", DtypeName(tensor.dtype()), "[",
                      absl::StrJoin(tensor.shape(), ", "), "] on ", DeviceName(tensor.device()),
                      self.is_writable() ? "" : ", read-only", ">");
}

}  // namespace

const Tensor& PyTensor::tensor() const {
  if (is_released()) RaiseValueError("the tensor was released");
  return tensor_;
}

void DefineTensor(nb::module_& core) {
  auto tensor = nb::class_<PyTensor>(core, "Tensor", nb::type_slots(slots), nb::is_final(),
                                     nb::sig("@typing.final\nclass Tensor()"),
                                     R"(A dense, row-major array in host memory or in that of a GPU.

Received tensors may be views of the sender's memory: they are read-only, and the sender's memory stays
in use until the last view of it is gone, those that other packages hold included. Node.empty makes
tensors that processes of the same host receive without a copy.

Other packages view it without a copy: by DLPack (torch.from_dlpack, jax.dlpack.from_dlpack,
numpy.from_dlpack), on the host by the buffer protocol (numpy.asarray, memoryview), on a GPU by the CUDA
array interface (cupy.asarray).)");
  tensor
      .def_prop_ro(
          "shape", [](const PyTensor& self) { return ShapeOf(self.tensor()); },
          nb::sig("def shape(self) -> tuple[int, ...]"), "The extents; () for a scalar.")
      .def_prop_ro(
          "ndim", [](const PyTensor& self) { return self.tensor().shape().size(); },
          "The number of dimensions.")
      .def_prop_ro(
          "size", [](const PyTensor& self) { return self.tensor().element_count(); },
          "The number of elements.")
      .def_prop_ro(
          "nbytes", [](const PyTensor& self) { return self.tensor().size_bytes(); },
          "The size of all elements in bytes.")
      .def_prop_ro(
          "dtype", [](const PyTensor& self) { return DtypeName(self.tensor().dtype()); },
          nb::sig("def dtype(self) -> str"),
          "The type of the elements, by its name in NumPy or ml_dtypes: \"float32\", \"bfloat16\".")
      .def_prop_ro(
          "device", [](const PyTensor& self) { return DeviceName(self.tensor().device()); },
          "\"cpu\", or a GPU of this process: \"cuda:0\".")
      .def_prop_ro(
          "readonly", [](const PyTensor& self) { return !self.is_writable(); },
          "Whether the elements must not be written: they were sent, or are a peer's.")
      .def_prop_ro(
          "data_ptr",
          [](const PyTensor& self) { return reinterpret_cast<uintptr_t>(self.tensor().data()); },
          "The address of the first element, valid while the tensor is not released.")
      .def(
          "numpy",
          [](nb::handle self) {
            return nb::module_::import_("ferry._numpy").attr("from_tensor")(self);
          },
          nb::sig("def numpy(self) -> typing.Any"),
          "A NumPy array of the same memory. bfloat16 and float8 need the package ml_dtypes.\n\n"
          "Raises BufferError for memory of a GPU.")
      .def(
          "torch",
          [](nb::handle self) { return nb::module_::import_("torch").attr("from_dlpack")(self); },
          nb::sig("def torch(self) -> typing.Any"), "A torch.Tensor of the same memory.")
      .def(
          "jax",
          [](nb::handle self) { return nb::module_::import_("ferry._numpy").attr("to_jax")(self); },
          nb::sig("def jax(self) -> typing.Any"),
          "A jax.Array of the same memory where JAX can view it, or of a copy.")
      .def(
          "strings",
          [](const PyTensor& self) {
            nb::list result;
            for (const std::string& each : self.tensor().strings())
              result.append(nb::bytes(each.data(), each.size()));
            return result;
          },
          nb::sig("def strings(self) -> list[bytes]"),
          "The elements of a tensor of byte strings, in order.")
      .def(
          "tobytes",
          [](const PyTensor& self) {
            const Tensor& tensor = self.tensor();
            if (tensor.device() != Device::Host())
              RaiseBufferError("the tensor is in the memory of a GPU");
            return nb::bytes(static_cast<const char*>(tensor.data()), tensor.size_bytes());
          },
          "A copy of the elements' bytes.")
      .def(
          "reshape",
          [](const PyTensor& self, const std::vector<int64_t>& shape) {
            return PyTensor(ValueOf(self.tensor().Reshape(shape)), self.is_writable());
          },
          "shape"_a,
          "The same elements in another shape, of the same memory. Raises ValueError unless the "
          "sizes agree.")
      .def(
          "rows",
          [](const PyTensor& self, int64_t first, int64_t count) {
            return PyTensor(ValueOf(self.tensor().Slice(first, count)), self.is_writable());
          },
          "first"_a, "count"_a,
          "Rows first to first + count - 1 of the first dimension, of the same memory.")
      .def("release", &PyTensor::Release,
           "Gives the memory up, unless other views of it exist. The tensor cannot be used "
           "afterwards. "
           "Deleting the last reference does the same.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Tensor"))
      .def(
          "__exit__", [](PyTensor& self, nb::args) { self.Release(); },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("__len__",
           [](const PyTensor& self) {
             if (self.tensor().shape().empty()) RaiseTypeError("a scalar has no length");
             return self.tensor().shape()[0];
           })
      .def("__dlpack__", ToDlpack, nb::kw_only(), "stream"_a = nb::none(),
           "max_version"_a = nb::none(), "dl_device"_a = nb::none(), "copy"_a = nb::none(),
           nb::sig(
               "def __dlpack__(self, *, stream: typing.Any = None, max_version: tuple[int, int] | "
               "None = None, "
               "dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> typing.Any"))
      .def(
          "__dlpack_device__",
          [](const PyTensor& self) {
            const Device device = self.tensor().device();
            return nb::make_tuple(device.kind == DeviceKind::kHost ? kDlCpu : kDlCuda,
                                  device.index);
          },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"))
      .def_prop_ro("__cuda_array_interface__", CudaArrayInterface,
                   nb::sig("def __cuda_array_interface__(self) -> dict[str, typing.Any]"))
      .def(
          "__reduce__",
          [](const PyTensor&) {
            RaiseTypeError(
                "a ferry.Tensor cannot be pickled: send it in a step, or pickle .numpy()");
          },
          nb::sig("def __reduce__(self) -> typing.Any"))
      .def("__repr__", Repr);
  DefineExchangeApi(tensor);
}

}  // namespace ferry::python
