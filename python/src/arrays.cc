// SPDX-License-Identifier: Apache-2.0
// How an array is taken depends on its type alone, and is looked up once for each type.
#include "python/src/arrays.h"

#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/string.h>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "python/src/deferred_release.h"
#include "python/src/dlpack.h"
#include "python/src/errors.h"
#include "python/src/tensor.h"

namespace ferry::python {
namespace nb = nanobind;
namespace {

struct DtypeRow {
  DataType type;
  const char* name;
};
constexpr DtypeRow kDtypes[] = {
    {DataType::kFloat, "float32"},
    {DataType::kDouble, "float64"},
    {DataType::kHalf, "float16"},
    {DataType::kBfloat16, "bfloat16"},
    {DataType::kInt8, "int8"},
    {DataType::kInt16, "int16"},
    {DataType::kInt32, "int32"},
    {DataType::kInt64, "int64"},
    {DataType::kUint8, "uint8"},
    {DataType::kUint16, "uint16"},
    {DataType::kUint32, "uint32"},
    {DataType::kUint64, "uint64"},
    {DataType::kBool, "bool"},
    {DataType::kComplex64, "complex64"},
    {DataType::kComplex128, "complex128"},
    {DataType::kFloat8E5m2, "float8_e5m2"},
    {DataType::kFloat8E4m3fn, "float8_e4m3fn"},
    {DataType::kFloat8E4m3fnuz, "float8_e4m3fnuz"},
    {DataType::kFloat8E4m3b11fnuz, "float8_e4m3b11fnuz"},
    {DataType::kFloat8E5m2fnuz, "float8_e5m2fnuz"},
    {DataType::kFloat4E2m1fn, "float4_e2m1fn"},
    {DataType::kInt4, "int4"},
    {DataType::kUint4, "uint4"},
    {DataType::kInt2, "int2"},
    {DataType::kUint2, "uint2"},
    {DataType::kString, "bytes"},
};

std::optional<DataType> FindDtype(absl::string_view name) {
  for (const DtypeRow& row : kDtypes) {
    if (name == row.name) return row.type;
  }
  return std::nullopt;
}

enum class Protocol { kFerry, kExchangeApi, kBuffer, kNumpy, kDlpack, kCudaArray, kNone };

struct TypeEntry {
  Protocol protocol = Protocol::kNone;
  const DLPackExchangeAPI* api = nullptr;
};

std::string ModuleOf(nb::handle type) {
  return nb::cast<std::string>(nb::str(nb::getattr(type, "__module__", nb::str(""))));
}

TypeEntry Classify(PyTypeObject* type) {
  const nb::handle handle = reinterpret_cast<PyObject*>(type);
  if (nb::type_check(handle) && nb::type_info(handle) == typeid(PyTensor)) {
    return {Protocol::kFerry};
  }
  if (const DLPackExchangeAPI* const api = ExchangeApiOf(type); api != nullptr) {
    return {Protocol::kExchangeApi, api};
  }
  // NumPy's arrays have both protocols, and the buffer's costs a third of a capsule.
  if (ModuleOf(handle) == "numpy") return {Protocol::kNumpy};
  if (nb::hasattr(handle, "__dlpack__")) return {Protocol::kDlpack};
  if (nb::hasattr(handle, "__cuda_array_interface__")) return {Protocol::kCudaArray};
  if (PyType_GetSlot(type, Py_bf_getbuffer) != nullptr) return {Protocol::kBuffer};
  return {};
}

const TypeEntry& EntryOf(PyTypeObject* type) {
  // Types are kept, so that no other comes to be at the address of one.
  static auto& entries = *new absl::flat_hash_map<PyTypeObject*, TypeEntry>();
  const auto it = entries.find(type);
  if (it != entries.end()) return it->second;
  const TypeEntry entry = Classify(type);
  Py_INCREF(reinterpret_cast<PyObject*>(type));
  return entries.emplace(type, entry).first->second;
}

std::string TypeName(nb::handle object) {
  return nb::cast<std::string>(
      nb::str(nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())))));
}

std::optional<DataType> TypeOfFormat(absl::string_view format, size_t item_bytes) {
  // Little-endian, as this machine, in native or standard sizes.
  if (!format.empty() && (format[0] == '@' || format[0] == '=' || format[0] == '<')) {
    format.remove_prefix(1);
  }
  if (format == "?") return DataType::kBool;
  if (format == "e") return DataType::kHalf;
  if (format == "f") return DataType::kFloat;
  if (format == "d") return DataType::kDouble;
  if (format == "Zf") return DataType::kComplex64;
  if (format == "Zd") return DataType::kComplex128;
  if (format == "c") return DataType::kUint8;
  if (format.size() != 1) return std::nullopt;
  const bool is_signed = absl::string_view("bhilq").find(format[0]) != absl::string_view::npos;
  if (!is_signed && absl::string_view("BHILQ").find(format[0]) == absl::string_view::npos) {
    return std::nullopt;
  }
  switch (item_bytes) {
    case 1:
      return is_signed ? DataType::kInt8 : DataType::kUint8;
    case 2:
      return is_signed ? DataType::kInt16 : DataType::kUint16;
    case 4:
      return is_signed ? DataType::kInt32 : DataType::kUint32;
    case 8:
      return is_signed ? DataType::kInt64 : DataType::kUint64;
    default:
      return std::nullopt;
  }
}

// A deleter for Tensor::Wrap, for memory that `owner` keeps, which is released with the GIL.
absl::AnyInvocable<void() &&> ReleaseOf(std::shared_ptr<BorrowedMemory> borrowed,
                                        DeferredReleases::Release release, void* owner) {
  return [borrowed = std::move(borrowed), release, owner] {
    DeferredReleases::Get().Add(release, owner);
    borrowed->Release();
  };
}

Tensor WrapOrRaise(absl::StatusOr<Tensor> tensor, nb::handle array) {
  if (tensor.ok()) return *std::move(tensor);
  RaiseBufferError(
      absl::StrCat("cannot take a ", TypeName(array), ": ", tensor.status().message()));
}

// A copy of that many elements in host memory.
Tensor CopyOf(DataType type, absl::Span<const int64_t> shape, const void* data) {
  Tensor copy = ValueOf(Tensor::Allocate(type, shape));
  if (copy.size_bytes() > 0) std::memcpy(copy.mutable_data(), data, copy.size_bytes());
  return copy;
}

// Nullopt, with no error set: its elements are not contiguous, or of a type without a format.
std::optional<ImportedArray> TryImportBuffer(nb::handle array, ArrayUse use, size_t copied_bytes,
                                             std::optional<DataType> type = std::nullopt) {
  auto view = std::make_unique<Py_buffer>();
  const int flags =
      PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (use == ArrayUse::kWrite ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(array.ptr(), view.get(), flags) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  // Until the tensor owns it.
  struct ViewGuard {
    Py_buffer* view;
    ~ViewGuard() {
      if (view != nullptr) PyBuffer_Release(view);
    }
  } guard{view.get()};
  if (!type.has_value()) {
    type = TypeOfFormat(view->format == nullptr ? "B" : view->format,
                        static_cast<size_t>(view->itemsize));
    if (!type.has_value()) return std::nullopt;
  }
  ImportedArray result;
  result.is_immutable = PyBytes_CheckExact(array.ptr());
  const absl::InlinedVector<int64_t, 6> shape(
      view->shape, view->shape + (view->shape == nullptr ? 0 : view->ndim));
  if (use == ArrayUse::kRead && static_cast<size_t>(view->len) <= copied_bytes) {
    return ImportedArray{.tensor = CopyOf(*type, shape, view->buf), .is_immutable = true};
  }
  result.borrowed = std::make_shared<BorrowedMemory>();
  void* const data = view->buf;
  absl::StatusOr<Tensor> tensor =
      Tensor::Wrap(*type, shape, data,
                   ReleaseOf(
                       result.borrowed,
                       [](void* owner) {
                         const std::unique_ptr<Py_buffer> released(static_cast<Py_buffer*>(owner));
                         PyBuffer_Release(released.get());
                       },
                       view.get()));
  result.tensor = WrapOrRaise(std::move(tensor), array);
  guard.view = nullptr;
  view.release();
  return result;
}

// A copy of elements that are not contiguous. Nullopt, with no error set: as TryImportBuffer.
std::optional<ImportedArray> TryCopyBuffer(nb::handle array) {
  Py_buffer view;
  if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_FULL_RO) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  struct ViewGuard {
    Py_buffer* view;
    ~ViewGuard() { PyBuffer_Release(view); }
  } const guard{&view};
  const std::optional<DataType> type =
      TypeOfFormat(view.format == nullptr ? "B" : view.format, static_cast<size_t>(view.itemsize));
  if (!type.has_value()) return std::nullopt;
  const std::vector<int64_t> shape(view.shape, view.shape + view.ndim);
  ImportedArray result;
  result.is_immutable = true;
  result.tensor = WrapOrRaise(Tensor::Allocate(*type, shape), array);
  if (view.len > 0 &&
      PyBuffer_ToContiguous(result.tensor.mutable_data(), &view, view.len, 'C') != 0) {
    throw nb::python_error();
  }
  return result;
}

ImportedArray ImportBuffer(nb::handle array, ArrayUse use, size_t copied_bytes) {
  std::optional<ImportedArray> result = TryImportBuffer(array, use, copied_bytes);
  if (!result.has_value() && use == ArrayUse::kRead) result = TryCopyBuffer(array);
  if (result.has_value()) return *std::move(result);
  RaiseBufferError(absl::StrCat(
      "cannot take a ", TypeName(array), ": its buffer must be contiguous",
      use == ArrayUse::kWrite ? ", writable," : "", " and hold numbers of a type that Ferry has"));
}

// Arrays of the types of ml_dtypes have no format, and others are made contiguous.
ImportedArray ImportNumpy(nb::handle array, ArrayUse use, size_t copied_bytes) {
  std::optional<ImportedArray> result = TryImportBuffer(array, use, copied_bytes);
  if (result.has_value()) return *std::move(result);
  const nb::tuple plain = nb::cast<nb::tuple>(
      nb::module_::import_("ferry._numpy").attr("as_plain_array")(array, use == ArrayUse::kWrite));
  result = TryImportBuffer(plain[0], use, copied_bytes, FindDtype(nb::cast<std::string>(plain[1])));
  if (result.has_value()) return *std::move(result);
  RaiseBufferError(absl::StrCat("cannot take a ", TypeName(array), " of ",
                                nb::cast<std::string>(nb::str(array.attr("dtype")))));
}

ImportedArray ImportCudaArray(nb::handle array, ArrayUse use) {
  const nb::dict interface = nb::cast<nb::dict>(array.attr("__cuda_array_interface__"));
  const auto refuse = [&array](absl::string_view why) {
    RaiseBufferError(
        absl::StrCat("cannot take a ", TypeName(array), " by its CUDA array interface: ", why));
  };
  if (nb::cast<int>(interface["version"]) < 2) refuse("its version is older than 2");
  if (interface.contains("mask") && !nb::object(interface["mask"]).is_none())
    refuse("it has a mask");
  const auto typestr = nb::cast<std::string>(interface["typestr"]);
  std::optional<DataType> type;
  if (typestr.size() >= 3 && (typestr[0] == '<' || typestr[0] == '|')) {
    int bytes = 0;
    if (absl::SimpleAtoi(typestr.substr(2), &bytes)) {
      const char kind = typestr[1];
      if (kind == 'b' && bytes == 1) type = DataType::kBool;
      if (kind == 'i') type = TypeOfFormat("b", static_cast<size_t>(bytes));
      if (kind == 'u') type = TypeOfFormat("B", static_cast<size_t>(bytes));
      if (kind == 'f' && bytes == 2) type = DataType::kHalf;
      if (kind == 'f' && bytes == 4) type = DataType::kFloat;
      if (kind == 'f' && bytes == 8) type = DataType::kDouble;
      if (kind == 'c' && bytes == 8) type = DataType::kComplex64;
      if (kind == 'c' && bytes == 16) type = DataType::kComplex128;
    }
  }
  if (!type.has_value()) refuse(absl::StrCat("Ferry has no type ", typestr));
  const auto shape_tuple = nb::cast<nb::tuple>(interface["shape"]);
  std::vector<int64_t> shape;
  for (const nb::handle extent : shape_tuple) shape.push_back(nb::cast<int64_t>(extent));
  if (interface.contains("strides") && !nb::object(interface["strides"]).is_none()) {
    int64_t expected = static_cast<int64_t>(ElementBytes(*type));
    const auto strides = nb::cast<nb::tuple>(interface["strides"]);
    if (strides.size() != shape.size()) refuse("it has not as many strides as dimensions");
    for (size_t i = shape.size(); i-- > 0;) {
      if (shape[i] != 1 && nb::cast<int64_t>(strides[i]) != expected)
        refuse("it is not contiguous");
      expected *= shape[i];
    }
  }
  const auto data = nb::cast<nb::tuple>(interface["data"]);
  if (data.size() != 2) refuse("its data is no pair");
  if (use == ArrayUse::kWrite && nb::cast<bool>(data[1])) refuse("it is read-only");
  ImportedArray result;
  result.borrowed = std::make_shared<BorrowedMemory>();
  result.stream = LegacyStream();
  if (interface.contains("stream") && !nb::object(interface["stream"]).is_none()) {
    result.stream = ParseStream(interface["stream"]);
  }
  // The interface does not say which; packages that have several devices offer an attribute.
  int ordinal = 0;
  if (nb::hasattr(array, "device")) {
    const nb::object device = array.attr("device");
    if (nb::hasattr(device, "id")) ordinal = nb::cast<int>(device.attr("id"));
  }
  nb::object keep = nb::borrow(array);
  absl::StatusOr<Tensor> tensor =
      Tensor::Wrap(*type, shape, reinterpret_cast<void*>(nb::cast<uintptr_t>(data[0])),
                   ReleaseOf(
                       result.borrowed,
                       [](void* owner) { Py_DECREF(static_cast<PyObject*>(owner)); }, array.ptr()),
                   Device::Gpu(ordinal));
  result.tensor = WrapOrRaise(std::move(tensor), array);
  keep.release();
  return result;
}

ImportedArray ImportByType(nb::handle array, ArrayUse use, size_t copied_bytes) {
  const TypeEntry entry = EntryOf(Py_TYPE(array.ptr()));
  switch (entry.protocol) {
    case Protocol::kFerry: {
      const auto& tensor = nb::cast<const PyTensor&>(array);
      if (use == ArrayUse::kWrite && !tensor.is_writable()) {
        RaiseBufferError(
            "the ferry.Tensor is read-only: it was sent, or is a view of a peer's memory");
      }
      return {.tensor = tensor.tensor(), .is_immutable = true, .stream = nullptr};
    }
    case Protocol::kExchangeApi:
      return ImportByExchangeApi(*entry.api, array, use);
    case Protocol::kNumpy:
      return ImportNumpy(array, use, copied_bytes);
    case Protocol::kDlpack:
      // JAX exports its immutable arrays without the flag.
      if (use == ArrayUse::kWrite && absl::StartsWith(ModuleOf(array.type()), "jax")) {
        RaiseBufferError("jax.Arrays are immutable: leave out= away, and give like=\"jax\"");
      }
      return ImportByCapsule(array, use);
    case Protocol::kCudaArray:
      return ImportCudaArray(array, use);
    case Protocol::kBuffer:
      return ImportBuffer(array, use, copied_bytes);
    case Protocol::kNone:
      break;
  }
  RaiseTypeError(absl::StrCat(TypeName(array),
                              " is no array: it has neither __dlpack__, nor the buffer "
                              "protocol, nor __cuda_array_interface__"));
}

}  // namespace

bool BorrowedMemory::AwaitRelease(absl::Duration timeout) {
  if (is_released()) return true;
  const auto released = [this] { return is_released(); };
  absl::MutexLock lock(&mu_);
  return mu_.AwaitWithTimeout(absl::Condition(&released), timeout);
}

void BorrowedMemory::NotifyRelease(std::function<void()> on_release) {
  {
    absl::MutexLock lock(&mu_);
    if (!is_released()) {
      on_release_ = std::move(on_release);
      return;
    }
  }
  on_release();
}

void BorrowedMemory::Release() {
  std::function<void()> on_release;
  {
    absl::MutexLock lock(&mu_);
    is_released_.store(true, std::memory_order_release);
    on_release = std::move(on_release_);
    on_release_ = nullptr;
  }
  if (on_release != nullptr) on_release();
}

ImportedArray ImportArray(nb::handle array, ArrayUse use, nb::handle stream, size_t copied_bytes) {
  DeferredReleases::Get().Run();
  ImportedArray result = ImportByType(array, use, copied_bytes);
  const Tensor& tensor = result.tensor;
  if (use == ArrayUse::kRead && result.borrowed != nullptr && tensor.device() == Device::Host() &&
      tensor.size_bytes() <= copied_bytes) {
    // By a protocol whose memory is taken as a tensor at once.
    result = {.tensor = CopyOf(tensor.dtype(), tensor.shape(), tensor.data()),
              .is_immutable = true};
    DeferredReleases::Get().Run();
  }
  const bool is_on_gpu = result.tensor.device().kind == DeviceKind::kGpu;
  if (!stream.is_none()) {
    if (!is_on_gpu) RaiseValueError("stream= is for arrays in the memory of a GPU");
    result.stream = ParseStream(stream);
  }
  return result;
}

const char* DtypeName(DataType type) {
  for (const DtypeRow& row : kDtypes) {
    if (row.type == type) return row.name;
  }
  return "invalid";
}

DataType ParseDtype(nb::handle dtype) {
  std::string name;
  if (PyUnicode_Check(dtype.ptr())) {
    name = nb::cast<std::string>(dtype);
  } else if (nb::hasattr(dtype, "name")) {
    name = nb::cast<std::string>(nb::str(dtype.attr("name")));
  } else if (nb::hasattr(dtype, "__name__")) {
    // numpy.float32, ml_dtypes.bfloat16, float.
    name = nb::cast<std::string>(nb::str(dtype.attr("__name__")));
  } else {
    name = nb::cast<std::string>(nb::str(dtype));
  }
  absl::string_view plain = name;
  absl::ConsumePrefix(&plain, "torch.");
  if (plain == "float") plain = "float64";
  if (plain == "int") plain = "int64";
  if (plain == "bool_") plain = "bool";
  const std::optional<DataType> type = FindDtype(plain);
  if (type.has_value() && *type != DataType::kString) return *type;
  std::string names;
  for (const DtypeRow& row : kDtypes) {
    if (row.type != DataType::kString) absl::StrAppend(&names, names.empty() ? "" : ", ", row.name);
  }
  RaiseTypeError(absl::StrCat("Ferry has no type ", name, "; it has ", names));
}

std::string DeviceName(const Device& device) {
  if (device.kind == DeviceKind::kHost) return "cpu";
  return absl::StrCat("cuda:", device.index);
}

Device ParseDevice(nb::handle device) {
  const std::string text = nb::cast<std::string>(nb::str(device));
  if (text == "cpu" || text == "host" || text == "host:0") return Device::Host();
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "cuda") || absl::ConsumePrefix(&rest, "gpu")) {
    int index = 0;
    if (rest.empty()) return Device::Gpu(0);
    if (absl::ConsumePrefix(&rest, ":") && absl::SimpleAtoi(rest, &index) && index >= 0) {
      return Device::Gpu(index);
    }
  }
  RaiseValueError(absl::StrCat(
      "\"", text, "\" is no device; devices are \"cpu\" and \"cuda:0\", \"cuda:1\", ..."));
}

CUstream_st* ParseStream(nb::handle stream) {
  nb::object number = nb::borrow(stream);
  if (nb::hasattr(stream, "__cuda_stream__")) {
    nb::object pair = stream.attr("__cuda_stream__");
    if (PyCallable_Check(pair.ptr())) pair = pair();
    number = pair[1];
  } else if (nb::hasattr(stream, "cuda_stream")) {
    number = stream.attr("cuda_stream");
  } else if (nb::hasattr(stream, "ptr")) {
    number = stream.attr("ptr");
  }
  if (!PyLong_Check(number.ptr())) {
    RaiseTypeError(absl::StrCat(TypeName(stream),
                                " is no CUDA stream: give its handle as an integer, or an object "
                                "of PyTorch, CuPy or CUDA's Python"));
  }
  const auto handle = nb::cast<uintptr_t>(number);
  return handle == 0 ? LegacyStream() : reinterpret_cast<CUstream_st*>(handle);
}

}  // namespace ferry::python
