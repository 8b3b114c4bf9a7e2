// SPDX-License-Identifier: Apache-2.0
// LiveCall: recorded values as arguments, and the calls by their types.
#include "benchmarks/gpu/calls/live_call.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "benchmarks/gpu/calls/kernel_shapes.h"

namespace ferry::calls {
namespace {

constexpr int64_t kMaxTextBuffer = int64_t{64} << 10;
constexpr uint64_t kFirstAddress = 4096;

// A record has no images: this one names the kernels of the fake driver.
const std::string& Image() {
  static const auto* const image = [] {
    auto* const text = new std::string(".version 7.0\n.target sm_80\n.address_size 64\n");
    for (const KernelShape& shape : kKernelShapes) {
      absl::StrAppend(text, ".visible .entry ", shape.name, "() {}\n");
    }
    return text;
  }();
  return *image;
}

void Nothing(void*) {}

template <typename T>
void Put(uint64_t address, const T& value) {
  std::memcpy(reinterpret_cast<void*>(address), &value, sizeof(T));
}

uint64_t AddressOf(const char* bytes) { return reinterpret_cast<uint64_t>(bytes); }

template <typename T>
T Field(const Value& value, size_t i) {
  return static_cast<T>(value.items[i].number);
}

// Returns true if the driver recognized the address as device memory.
bool WasDeviceMemory(const RecordedCall& call) {
  if (call.result != cuda::kSuccess) return false;
  const Value* const attributes = call.Find("attributes");
  const Value* const values = call.Find("values");
  if (attributes == nullptr) return true;
  for (size_t i = 0; i < std::min(attributes->items.size(), values->items.size()); ++i) {
    if (attributes->items[i].number == cuda::kPointerMemoryType) {
      return values->items[i].number == cuda::kMemoryTypeDevice;
    }
  }
  return false;
}

template <typename T>
T FromWord(const uint64_t& word) {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<T>(word);
  } else if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(word);
  } else {
    T value;
    std::memcpy(&value, reinterpret_cast<const void*>(word), sizeof(T));
    return value;
  }
}

template <typename Function>
struct Invoker;

template <typename... Arguments>
struct Invoker<cuda::Result (*)(Arguments...)> {
  static constexpr size_t kCount = sizeof...(Arguments);

  static cuda::Result Run(void* function, const uint64_t* words) {
    return Run(function, words, std::index_sequence_for<Arguments...>());
  }
  template <size_t... kAt>
  static cuda::Result Run(void* function, const uint64_t* words, std::index_sequence<kAt...>) {
    return reinterpret_cast<cuda::Result (*)(Arguments...)>(function)(
        FromWord<Arguments>(words[kAt])...);
  }
};

#define FERRY_CHECKED_TYPE(symbol, type, ...) \
  static_assert(Invoker<type>::kCount == kDriverCalls[FindDriverCall(#symbol)].count);
#define FERRY_CHECKED(symbol, member, ...) \
  FERRY_CHECKED_TYPE(symbol, decltype(cuda::CudaTable::member), )
FERRY_DRIVER_CALLS(FERRY_CHECKED, FERRY_CHECKED_TYPE)

#define FERRY_INVOKER_TYPE(symbol, type, ...) &Invoker<type>::Run,
#define FERRY_INVOKER(symbol, member, ...) &Invoker<decltype(cuda::CudaTable::member)>::Run,
constexpr cuda::Result (*kInvokers[])(void*, const uint64_t*) = {
    FERRY_DRIVER_CALLS(FERRY_INVOKER, FERRY_INVOKER_TYPE)};

}  // namespace

cuda::Result Invoke(const DriverCall& call, void* function, const uint64_t* words) {
  return kInvokers[&call - kDriverCalls](function, words);
}

absl::StatusOr<LiveCall> LiveCall::Build(const RecordedCall& call, const HandleTable& handles,
                                         HostMemory& host, const std::optional<Foreign>& foreign) {
  LiveCall live;
  for (size_t i = 0; i < call.values.size(); ++i) {
    FERRY_ASSIGN_OR_RETURN(live.words_[i], live.Word(call, i, handles, host, foreign));
  }
  // The values have places of their own, to which the driver is given pointers.
  return live;
}

uint64_t LiveCall::Keep(size_t bytes) {
  return reinterpret_cast<uint64_t>(kept_.emplace_back((bytes + 7) / 8).data());
}

uint64_t LiveCall::Output(const RecordedCall& call, size_t i) {
  const Argument& argument = call.description->arguments[i];
  // After a failure the record does not say whether there was room for the output.
  if (call.result == cuda::kSuccess && call.values[i].is_absent &&
      argument.kind != Kind::kTextPointer) {
    return 0;
  }
  switch (argument.kind) {
    case Kind::kText: {
      const Value* const bytes = call.Find("bytes");
      return Keep(static_cast<size_t>(std::clamp(bytes->number, int64_t{1}, kMaxTextBuffer)));
    }
    case Kind::kValues: {
      const size_t count = call.Find("attributes")->items.size();
      const uint64_t pointers = Keep(std::max<size_t>(1, count) * sizeof(void*));
      for (size_t k = 0; k < count; ++k) {
        Put(pointers + k * sizeof(void*), Keep(sizeof(uint64_t)));
      }
      return pointers;
    }
    default:
      return Keep(cuda::kIpcHandleBytes);
  }
}

absl::StatusOr<uint64_t> LiveCall::Address(const RecordedCall& call, size_t i,
                                           const HandleTable& handles, HostMemory& host) {
  const Argument& argument = call.description->arguments[i];
  const auto recorded = static_cast<uint64_t>(call.values[i].number);
  const Value* const bytes = call.Find("bytes");
  const uint64_t size = bytes == nullptr || bytes->is_absent || argument.may_be_foreign
                            ? 1
                            : static_cast<uint64_t>(bytes->number);
  if (argument.creates) return host.At(recorded, size);
  absl::StatusOr<uint64_t> known = handles.Find(argument.kind, recorded);
  if (known.ok() || !absl::IsNotFound(known.status())) return known;
  // Memory of the program that CUDA does not know.
  const bool is_pageable = argument.kind == Kind::kHost && !argument.destroys;
  const bool is_unknown = argument.may_be_foreign && !WasDeviceMemory(call);
  if (is_pageable || is_unknown) return host.At(recorded, std::max(size, uint64_t{1}));
  return known;
}

absl::StatusOr<uint64_t> LiveCall::KernelParameters(const Value& value,
                                                    const HandleTable& handles) {
  if (value.is_absent) {
    return absl::NotFoundError("the recorder did not know the parameters of this kernel");
  }
  const uint64_t pointers = Keep(std::max<size_t>(1, value.items.size()) * sizeof(void*));
  for (size_t i = 0; i < value.items.size(); ++i) {
    const std::string& bytes = value.items[i].bytes;
    const uint64_t place = Keep(std::max<size_t>(8, bytes.size()));
    std::memcpy(reinterpret_cast<void*>(place), bytes.data(), bytes.size());
    // Their types are not recorded: a word that is an address that the record knows is taken for
    // it.
    for (size_t at = 0; at + sizeof(uint64_t) <= bytes.size(); at += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + at, sizeof(word));
      if (word < kFirstAddress) continue;
      const absl::StatusOr<uint64_t> address = handles.Find(Kind::kMemory, word);
      if (address.ok()) Put(place + at, *address);
      if (absl::IsFailedPrecondition(address.status())) return address.status();
    }
    Put(pointers + i * sizeof(void*), place);
  }
  return pointers;
}

absl::StatusOr<uint64_t> LiveCall::Word(const RecordedCall& call, size_t i,
                                        const HandleTable& handles, HostMemory& host,
                                        const std::optional<Foreign>& foreign) {
  const Argument& argument = call.description->arguments[i];
  const Value& value = call.values[i];
  if (argument.is_output) return Output(call, i);
  if (argument.kind == Kind::kKernelParameters) return KernelParameters(value, handles);
  if (argument.kind == Kind::kIgnored) {
    return std::string_view(argument.name) == "host_function" ? reinterpret_cast<uint64_t>(&Nothing)
                                                              : 0;
  }
  if (value.is_absent) {
    if (argument.kind == Kind::kBlob) return absl::NotFoundError("the record has no handle here");
    return 0;
  }
  switch (argument.kind) {
    case Kind::kMemory:
    case Kind::kHost:
      return Address(call, i, handles, host);
    case Kind::kContext:
    case Kind::kStream:
    case Kind::kEvent:
    case Kind::kModule:
    case Kind::kFunction:
    case Kind::kPool:
    case Kind::kAllocation:
      return handles.Find(argument.kind, static_cast<uint64_t>(value.number));
    case Kind::kText:
      return AddressOf(value.bytes.c_str());
    case Kind::kImage:
      return AddressOf(Image().c_str());
    case Kind::kAllocationProperties: {
      cuda::AllocationProperties properties = {};
      properties.type = Field<int>(value, 0);
      properties.requested_handle_types = Field<int>(value, 1);
      properties.location = {Field<int>(value, 2), Field<int>(value, 3)};
      properties.compression_type = Field<unsigned char>(value, 4);
      properties.gpu_direct_rdma_capable = Field<unsigned char>(value, 5);
      properties.usage = Field<unsigned short>(value, 6);
      const uint64_t place = Keep(sizeof(properties));
      Put(place, properties);
      return place;
    }
    case Kind::kPoolProperties: {
      cuda::PoolProperties properties = {};
      properties.allocation_type = Field<int>(value, 0);
      properties.handle_types = Field<int>(value, 1);
      properties.location = {Field<int>(value, 2), Field<int>(value, 3)};
      properties.max_bytes = Field<size_t>(value, 4);
      properties.usage = Field<unsigned short>(value, 5);
      const uint64_t place = Keep(sizeof(properties));
      Put(place, properties);
      return place;
    }
    case Kind::kAccess: {
      const uint64_t place =
          Keep(std::max<size_t>(1, value.items.size()) * sizeof(cuda::AccessDescription));
      for (size_t k = 0; k < value.items.size(); ++k) {
        const Value& item = value.items[k];
        const cuda::AccessDescription description = {
            .location = {Field<int>(item, 0), Field<int>(item, 1)}, .flags = Field<int>(item, 2)};
        Put(place + k * sizeof(description), description);
      }
      return place;
    }
    case Kind::kAttributes: {
      const uint64_t place = Keep(std::max<size_t>(1, value.items.size()) * sizeof(int));
      for (size_t k = 0; k < value.items.size(); ++k) {
        Put(place + k * sizeof(int), Field<int>(value, k));
      }
      return place;
    }
    case Kind::kPoolValue: {
      const uint64_t place = Keep(sizeof(uint64_t));
      Put(place, value.number);
      return place;
    }
    case Kind::kBlob: {
      if (!foreign.has_value()) {
        return absl::NotFoundError("no process of the replay has exported this handle");
      }
      const uint64_t place = Keep(cuda::kIpcHandleBytes);
      std::memcpy(reinterpret_cast<void*>(place), foreign->bytes.data(),
                  std::min(foreign->bytes.size(), cuda::kIpcHandleBytes));
      return place;
    }
    case Kind::kShareable: {
      if (!foreign.has_value()) {
        return absl::NotFoundError("no process of the replay has exported this descriptor");
      }
      if (value.bytes.empty()) return static_cast<uint64_t>(foreign->descriptor);
      const uint64_t place = Keep(cuda::kIpcHandleBytes);
      std::memcpy(reinterpret_cast<void*>(place), foreign->bytes.data(),
                  std::min(foreign->bytes.size(), cuda::kIpcHandleBytes));
      return place;
    }
    default:
      return static_cast<uint64_t>(value.number);
  }
}

}  // namespace ferry::calls
