// SPDX-License-Identifier: Apache-2.0
// Deleters of other packages need the GIL, and run where it is held; Ferry's own need none.
#include "python/src/dlpack.h"

#include <ferry/dlpack.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "python/src/deferred_release.h"
#include "python/src/errors.h"
#include "python/src/tensor.h"

namespace ferry::python {
namespace nb = nanobind;
namespace {

constexpr char kPlainName[] = "dltensor";
constexpr char kUsedPlainName[] = "used_dltensor";
constexpr char kVersionedName[] = "dltensor_versioned";
constexpr char kUsedVersionedName[] = "used_dltensor_versioned";
constexpr char kExchangeName[] = "dlpack_exchange_api";

// Owns a struct of another package. The tensor that Ferry makes of it refers to `outer`, whose
// deleter needs no GIL.
struct Adopted {
  DLManagedTensorVersioned outer;
  // One of them.
  DLManagedTensorVersioned* versioned = nullptr;
  DLManagedTensor* plain = nullptr;
  std::shared_ptr<BorrowedMemory> borrowed;

  // REQUIRES: the GIL.
  void DeleteInner() {
    if (versioned != nullptr && versioned->deleter != nullptr) versioned->deleter(versioned);
    if (plain != nullptr && plain->deleter != nullptr) plain->deleter(plain);
    versioned = nullptr;
    plain = nullptr;
  }
};

void DeleteAdopted(DLManagedTensorVersioned* outer) {
  auto* const adopted = static_cast<Adopted*>(outer->manager_ctx);
  const std::shared_ptr<BorrowedMemory> borrowed = adopted->borrowed;
  DeferredReleases::Get().Add(
      [](void* context) {
        const std::unique_ptr<Adopted> owned(static_cast<Adopted*>(context));
        owned->DeleteInner();
      },
      adopted);
  borrowed->Release();
}

// Raises BufferError; the inner struct is deleted then.
ImportedArray Adopt(std::unique_ptr<Adopted> adopted, ArrayUse use) {
  Adopted* const raw = adopted.get();
  if (raw->versioned != nullptr) {
    // The fields before `flags` are the same in every version.
    if (raw->versioned->version.major != 1) {
      const std::string version =
          absl::StrCat(raw->versioned->version.major, ".", raw->versioned->version.minor);
      raw->DeleteInner();
      RaiseBufferError(
          absl::StrCat("the array is exported by DLPack ", version, "; Ferry takes 1.x"));
    }
    raw->outer = *raw->versioned;
  } else {
    raw->outer.version = {1, 0};
    raw->outer.flags = 0;
    raw->outer.dl_tensor = raw->plain->dl_tensor;
  }
  raw->outer.manager_ctx = raw;
  raw->outer.deleter = DeleteAdopted;
  raw->borrowed = std::make_shared<BorrowedMemory>();
  if (use == ArrayUse::kWrite && (raw->outer.flags & kDlReadOnly) != 0) {
    raw->DeleteInner();
    RaiseBufferError("the array is read-only");
  }
  ImportedArray result;
  result.borrowed = raw->borrowed;
  absl::StatusOr<Tensor> tensor = ImportDlpack(&raw->outer);
  if (!tensor.ok()) {
    raw->DeleteInner();
    RaiseBufferError(tensor.status().message());
  }
  adopted.release();
  result.tensor = *std::move(tensor);
  return result;
}

// The state of an exported struct of versions before 1.0.
struct ExportedPlain {
  DLManagedTensor plain;
  DLManagedTensorVersioned* versioned;
};

void DeletePlain(DLManagedTensor* self) {
  const std::unique_ptr<ExportedPlain> exported(static_cast<ExportedPlain*>(self->manager_ctx));
  exported->versioned->deleter(exported->versioned);
}

// Nobody has taken the capsule's struct.
void DestroyVersionedCapsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, kVersionedName) == 0) return;
  auto* const managed =
      static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(capsule, kVersionedName));
  managed->deleter(managed);
}

void DestroyPlainCapsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, kPlainName) == 0) return;
  auto* const managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, kPlainName));
  managed->deleter(managed);
}

// Functions of the exchange API turn exceptions into Python errors.
template <typename Body>
int Guarded(Body body) noexcept {
  try {
    body();
    return 0;
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return -1;
}

int AllocateManaged(DLTensor* prototype, DLManagedTensorVersioned** out, void* error_ctx,
                    void (*SetError)(void* error_ctx, const char* kind, const char* message)) {
  *out = nullptr;
  // The type's code is translated by a view of no elements.
  int64_t none = 0;
  DLManagedTensorVersioned empty = {};
  empty.version = {1, 0};
  empty.dl_tensor = *prototype;
  empty.dl_tensor.ndim = 1;
  empty.dl_tensor.shape = &none;
  empty.dl_tensor.strides = nullptr;
  empty.dl_tensor.data = nullptr;
  empty.dl_tensor.byte_offset = 0;
  empty.flags = prototype->dtype.bits < 8 ? 1 << 2 : 0;
  absl::StatusOr<Tensor> tensor = ImportDlpack(&empty);
  if (tensor.ok() && tensor->device() != Device::Host()) {
    tensor = absl::UnimplementedError("a ferry.Tensor in the memory of a GPU is made by a node");
  }
  if (tensor.ok()) {
    tensor =
        Tensor::Allocate(tensor->dtype(), {prototype->shape, static_cast<size_t>(prototype->ndim)});
  }
  absl::StatusOr<DLManagedTensorVersioned*> managed = tensor.status();
  if (tensor.ok()) managed = ExportDlpack(*tensor, /*is_writable=*/true);
  if (!managed.ok()) {
    SetError(error_ctx, "BufferError", std::string(managed.status().message()).c_str());
    return -1;
  }
  *out = *managed;
  return 0;
}

int ManagedFromObject(void* object, DLManagedTensorVersioned** out) {
  *out = nullptr;
  return Guarded([&] {
    const auto& tensor = nb::cast<const PyTensor&>(nb::handle(static_cast<PyObject*>(object)));
    *out = ValueOf(ExportDlpack(tensor.tensor(), tensor.is_writable()));
  });
}

int ObjectFromManaged(DLManagedTensorVersioned* managed, void** out) {
  *out = nullptr;
  return Guarded([&] {
    auto adopted = std::make_unique<Adopted>();
    adopted->versioned = managed;
    const bool is_writable = (managed->flags & kDlReadOnly) == 0;
    ImportedArray array = Adopt(std::move(adopted), ArrayUse::kRead);
    *out = nb::cast(PyTensor(std::move(array.tensor), is_writable)).release().ptr();
  });
}

int BorrowTensor(void* object, DLTensor* out) {
  return Guarded([&] {
    const auto& tensor = nb::cast<const PyTensor&>(nb::handle(static_cast<PyObject*>(object)));
    // Its shape and strides live as long as the struct, and that as the object's view of it: kept
    // here until the next call on this thread, as "borrowed for the call" needs no longer.
    thread_local DLManagedTensorVersioned* last = nullptr;
    DLManagedTensorVersioned* const managed =
        ValueOf(ExportDlpack(tensor.tensor(), tensor.is_writable()));
    if (last != nullptr) last->deleter(last);
    last = managed;
    *out = managed->dl_tensor;
  });
}

int CurrentWorkStream(int32_t device_type, int32_t device_id, void** out) {
  // Elements of a ferry.Tensor are complete, or ordered on a stream that the program knows.
  *out = nullptr;
  return 0;
}

// The error that a function of another package's exchange API has set.
[[noreturn]] void RaiseOfPackage() {
  if (PyErr_Occurred() == nullptr) {
    RaiseBufferError("the array's package has not exported it, and has not said why");
  }
  throw nb::python_error();
}

}  // namespace

const DLPackExchangeAPI* ExchangeApiOf(PyTypeObject* type) {
  PyObject* const capsule =
      PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__");
  if (capsule == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  const nb::object owned = nb::steal(capsule);
  // DLPack 1.2 had an integer here.
  if (!PyCapsule_CheckExact(capsule)) return nullptr;
  const auto* api =
      static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(capsule, kExchangeName));
  if (api == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  while (api != nullptr && api->header.version.major != 1) {
    api = reinterpret_cast<const DLPackExchangeAPI*>(api->header.prev_api);
  }
  if (api == nullptr || api->managed_tensor_from_py_object_no_sync == nullptr ||
      api->current_work_stream == nullptr) {
    return nullptr;
  }
  return api;
}

ImportedArray ImportByExchangeApi(const DLPackExchangeAPI& api, nb::handle array, ArrayUse use) {
  DLManagedTensorVersioned* managed = nullptr;
  if (api.managed_tensor_from_py_object_no_sync(array.ptr(), &managed) != 0 || managed == nullptr) {
    RaiseOfPackage();
  }
  auto adopted = std::make_unique<Adopted>();
  adopted->versioned = managed;
  const DLDevice device = managed->dl_tensor.device;
  ImportedArray result = Adopt(std::move(adopted), use);
  if (device.device_type == kDlCuda || device.device_type == kDlCudaManaged) {
    void* stream = nullptr;
    if (api.current_work_stream(device.device_type, device.device_id, &stream) != 0)
      RaiseOfPackage();
    result.stream = stream == nullptr ? LegacyStream() : static_cast<CUstream_st*>(stream);
  }
  return result;
}

ImportedArray ImportByCapsule(nb::handle array, ArrayUse use) {
  // Before the capsule is asked for: arrays of a GPU then have to order their work.
  const nb::tuple device = nb::cast<nb::tuple>(array.attr("__dlpack_device__")());
  if (device.size() != 2) RaiseBufferError("__dlpack_device__ has returned no pair");
  const int device_type = nb::cast<int>(device[0]);
  const bool is_on_gpu = device_type == kDlCuda || device_type == kDlCudaManaged;
  const nb::object stream = is_on_gpu ? nb::object(nb::int_(1)) : nb::none();
  nb::object capsule;
  try {
    capsule = array.attr("__dlpack__")(nb::arg("stream") = stream,
                                       nb::arg("max_version") = nb::make_tuple(1, 1));
  } catch (nb::python_error& error) {
    // Packages from before DLPack 1.0.
    if (!error.matches(PyExc_TypeError)) throw;
    capsule = array.attr("__dlpack__")(nb::arg("stream") = stream);
  }
  auto adopted = std::make_unique<Adopted>();
  if (PyCapsule_IsValid(capsule.ptr(), kVersionedName) != 0) {
    adopted->versioned =
        static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(capsule.ptr(), kVersionedName));
    PyCapsule_SetName(capsule.ptr(), kUsedVersionedName);
  } else if (PyCapsule_IsValid(capsule.ptr(), kPlainName) != 0) {
    adopted->plain = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), kPlainName));
    PyCapsule_SetName(capsule.ptr(), kUsedPlainName);
  } else {
    RaiseBufferError(
        "__dlpack__ has returned neither a capsule \"dltensor\" nor \"dltensor_versioned\"");
  }
  ImportedArray result = Adopt(std::move(adopted), use);
  if (is_on_gpu) result.stream = LegacyStream();
  return result;
}

nb::object MakeCapsule(const Tensor& tensor, bool is_writable, bool is_versioned, bool is_copy) {
  DLManagedTensorVersioned* const managed = ValueOf(ExportDlpack(tensor, is_writable));
  if (is_copy) managed->flags |= kDlIsCopied;
  PyObject* capsule = nullptr;
  if (is_versioned) {
    capsule = PyCapsule_New(managed, kVersionedName, DestroyVersionedCapsule);
    if (capsule == nullptr) managed->deleter(managed);
  } else {
    auto* const exported = new ExportedPlain{{managed->dl_tensor, nullptr, DeletePlain}, managed};
    exported->plain.manager_ctx = exported;
    capsule = PyCapsule_New(&exported->plain, kPlainName, DestroyPlainCapsule);
    if (capsule == nullptr) DeletePlain(&exported->plain);
  }
  if (capsule == nullptr) throw nb::python_error();
  return nb::steal(capsule);
}

void DefineExchangeApi(nb::handle tensor_type) {
  static DLPackExchangeAPI api = {
      .header = {.version = {1, 3}, .prev_api = nullptr},
      .managed_tensor_allocator = AllocateManaged,
      .managed_tensor_from_py_object_no_sync = ManagedFromObject,
      .managed_tensor_to_py_object_no_sync = ObjectFromManaged,
      .dltensor_from_py_object_no_sync = BorrowTensor,
      .current_work_stream = CurrentWorkStream,
  };
  PyObject* const capsule = PyCapsule_New(&api, kExchangeName, nullptr);
  if (capsule == nullptr) throw nb::python_error();
  nb::setattr(tensor_type, "__dlpack_c_exchange_api__", nb::steal(capsule));
}

}  // namespace ferry::python
