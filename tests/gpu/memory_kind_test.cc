// SPDX-License-Identifier: Apache-2.0
// Every kind of memory: its classification, and how it can be exported.
#include "gpu/cuda/memory_kind.h"

#include <cstdlib>

#include "gpu/cuda/ipc_export.h"
#include "gpu/cuda/pinned_pool.h"
#include "tests/gpu/cuda_fixture.h"

namespace ferry::cuda {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::SizeIs;

constexpr size_t kGranule = 2 * kMiB;

class MemoryKindTest : public CudaTest {
 protected:
  MemoryInfo InfoOf(DevicePointer pointer, size_t bytes = 1) const {
    absl::StatusOr<MemoryInfo> info = Classify(*device_, reinterpret_cast<void*>(pointer), bytes);
    EXPECT_OK(info.status());
    return info.ok() ? *info : MemoryInfo();
  }
  absl::Status ExportStatus(DevicePointer pointer) const {
    return ExportMemory(*device_, reinterpret_cast<void*>(pointer), 1).status();
  }

  MemoryPool MakePool(int handle_types) const {
    PoolProperties properties = {};
    properties.allocation_type = kAllocationTypePinned;
    properties.handle_types = handle_types;
    properties.location = {kLocationTypeDevice, 0};
    const ScopedCurrent current(*device_);
    MemoryPool pool = nullptr;
    EXPECT_EQ(table().pool_create(&pool, &properties), kSuccess);
    return pool;
  }
  // Allocated when it returns.
  DevicePointer AllocFrom(MemoryPool pool, size_t bytes) const {
    const std::unique_ptr<CudaStream> stream = *CudaStream::Create(device_);
    const ScopedCurrent current(*device_);
    DevicePointer pointer = 0;
    EXPECT_EQ(table().pool_alloc_async(&pointer, bytes, pool, stream->get()), kSuccess);
    EXPECT_EQ(table().stream_synchronize(stream->get()), kSuccess);
    return pointer;
  }

  // Chunks of one granule each, with these handle types, one after the other.
  struct Mapped {
    DevicePointer base = 0;
    size_t bytes = 0;
    std::vector<AllocationHandle> handles;
  };
  Mapped Map(const std::vector<int>& handle_types) const {
    const ScopedCurrent current(*device_);
    Mapped mapped;
    mapped.bytes = handle_types.size() * kGranule;
    // Larger than the mapped part, as expandable segments are.
    EXPECT_EQ(table().address_reserve(&mapped.base, mapped.bytes + kGranule, 0, 0, 0), kSuccess);
    for (size_t i = 0; i < handle_types.size(); ++i) {
      AllocationProperties properties = {};
      properties.type = kAllocationTypePinned;
      properties.requested_handle_types = handle_types[i];
      properties.location = {kLocationTypeDevice, 0};
      AllocationHandle handle = 0;
      EXPECT_EQ(table().memory_create(&handle, kGranule, &properties, 0), kSuccess);
      EXPECT_EQ(table().memory_map(mapped.base + i * kGranule, kGranule, 0, handle, 0), kSuccess);
      mapped.handles.push_back(handle);
    }
    const AccessDescription access = {{kLocationTypeDevice, 0}, kAccessReadWrite};
    EXPECT_EQ(table().memory_set_access(mapped.base, mapped.bytes, &access, 1), kSuccess);
    return mapped;
  }
  void Unmap(const Mapped& mapped) const {
    const ScopedCurrent current(*device_);
    for (size_t i = 0; i < mapped.handles.size(); ++i) {
      EXPECT_EQ(table().memory_unmap(mapped.base + i * kGranule, kGranule), kSuccess);
      EXPECT_EQ(table().memory_release(mapped.handles[i]), kSuccess);
    }
    EXPECT_EQ(table().address_free(mapped.base, mapped.bytes + kGranule), kSuccess);
  }
};

// A handle stands for the whole allocation: the receiver needs the offset of any byte.
TEST_F(MemoryKindTest, PlainMemoryIsItsAllocationAndAnOffset) {
  const DevicePointer memory = Alloc(1000);
  const DevicePointer neighbour = Alloc(1000);
  for (const size_t offset : {size_t{0}, size_t{500}, size_t{999}}) {
    const MemoryInfo info = InfoOf(memory + offset);
    EXPECT_EQ(info.kind, MemoryKind::kPlain);
    EXPECT_EQ(info.device, 0);
    EXPECT_EQ(info.export_by, ExportBy::kLegacyHandle);
    EXPECT_EQ(info.no_export_reason, "");
    ASSERT_THAT(info.pieces, SizeIs(1));
    EXPECT_EQ(info.pieces[0].base, memory);
    EXPECT_THAT(info.pieces[0].allocation_bytes, AllOf(Ge(1000u), Le(1024u)));
    EXPECT_EQ(info.pieces[0].offset, offset);
    EXPECT_EQ(info.pieces[0].bytes, 1u);
  }
  EXPECT_NE(InfoOf(memory).pieces[0].buffer_id, InfoOf(neighbour).pieces[0].buffer_id);
  Free(memory);
  Free(neighbour);
}

TEST_F(MemoryKindTest, RangeBeyondItsAllocationIsRefused) {
  const DevicePointer memory = Alloc(1000);
  const absl::Status status =
      Classify(*device_, reinterpret_cast<void*>(memory + 1), 1024).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("leave their cudaMalloc memory"));
  Free(memory);
}

// Caches that go by the address would take new memory for old.
TEST_F(MemoryKindTest, MemoryAtARecycledAddressHasAnotherId) {
  NEEDS_FAKE_DRIVER("gives an address again at once");
  const DevicePointer first = Alloc(4 * kMiB);
  const uint64_t first_id = InfoOf(first).pieces[0].buffer_id;
  Free(first);
  const DevicePointer second = Alloc(4 * kMiB);
  ASSERT_EQ(second, first) << "the fake driver is meant to give the address again";
  EXPECT_NE(InfoOf(second).pieces[0].buffer_id, first_id);
  Free(second);
}

TEST_F(MemoryKindTest, MemoryOfAnotherDeviceIsReportedAsSuch) {
  NEEDS_TWO_GPUS();
  const std::shared_ptr<CudaDevice> other = OpenDevice(1);
  DevicePointer memory = 0;
  {
    const ScopedCurrent current(*other);
    ASSERT_EQ(table().memory_alloc(&memory, 100), kSuccess);
  }
  const MemoryInfo info = InfoOf(memory + 7);
  EXPECT_EQ(info.device, 1);
  EXPECT_EQ(info.pieces[0].offset, 7u);
  const absl::Status status = ExportStatus(memory);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("of gpu:1, not of gpu:0"));
  const ScopedCurrent current(*other);
  EXPECT_EQ(table().memory_free(memory), kSuccess);
}

TEST_F(MemoryKindTest, MemoryOfTheDefaultPoolCannotBeExported) {
  MemoryPool pool = nullptr;
  ASSERT_EQ(table().device_get_default_pool(&pool, device_->handle()), kSuccess);
  const DevicePointer memory = AllocFrom(pool, 1000);
  const MemoryInfo info = InfoOf(memory + 3, 10);
  EXPECT_EQ(info.kind, MemoryKind::kPool);
  EXPECT_EQ(info.export_by, ExportBy::kNone);
  EXPECT_THAT(info.no_export_reason, HasSubstr("the default pool of cudaMallocAsync never can"));
  const absl::Status status = ExportStatus(memory);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("no other process can open this pool memory"));
  Free(memory);
}

TEST_F(MemoryKindTest, MemoryOfAPoolWithAHandleTypeIsExportedWithItsPool) {
  const MemoryPool pool = MakePool(kHandleTypePosixFd);
  const DevicePointer memory = AllocFrom(pool, 1000);
  const MemoryInfo info = InfoOf(memory + 999);
  EXPECT_EQ(info.kind, MemoryKind::kPool);
  EXPECT_EQ(info.export_by, ExportBy::kPoolPointer);
  EXPECT_EQ(info.pool, pool);
  EXPECT_EQ(info.pieces[0].offset, 999u);
  const auto pieces = ExportMemory(*device_, reinterpret_cast<void*>(memory + 999), 1);
  ASSERT_OK(pieces.status());
  EXPECT_TRUE((*pieces)[0].fd.valid());
  Free(memory);
  const ScopedCurrent current(*device_);
  EXPECT_EQ(table().pool_destroy(pool), kSuccess);
}

TEST_F(MemoryKindTest, MappedMemoryHasAPieceForEachPhysicalAllocation) {
  const Mapped mapped = Map({kHandleTypePosixFd, kHandleTypePosixFd, kHandleTypePosixFd});
  // From the last byte of the first to the first of the third.
  const MemoryInfo info = InfoOf(mapped.base + kGranule - 1, kGranule + 2);
  EXPECT_EQ(info.kind, MemoryKind::kVirtual);
  EXPECT_EQ(info.export_by, ExportBy::kPosixFd);
  ASSERT_THAT(info.pieces, SizeIs(3));
  EXPECT_EQ(info.pieces[0].offset, kGranule - 1);
  EXPECT_EQ(info.pieces[0].bytes, 1u);
  EXPECT_EQ(info.pieces[1].base, mapped.base + kGranule);
  EXPECT_EQ(info.pieces[1].offset, 0u);
  EXPECT_EQ(info.pieces[1].bytes, kGranule);
  EXPECT_EQ(info.pieces[2].bytes, 1u);
  const bool has_own_ids = info.pieces[0].buffer_id != info.pieces[1].buffer_id;
  if (!OnRealGpu()) {
    EXPECT_TRUE(has_own_ids);
  }
  std::printf("seen: pieces of physical memory have %s\n",
              has_own_ids ? "ids of their own" : "one id");
  const auto pieces =
      ExportMemory(*device_, reinterpret_cast<void*>(mapped.base + kGranule - 1), kGranule + 2);
  ASSERT_OK(pieces.status());
  ASSERT_THAT(*pieces, SizeIs(3));
  for (const ExportedPiece& piece : *pieces) EXPECT_TRUE(piece.fd.valid());
  // Reserved, but nothing is mapped behind the last.
  EXPECT_EQ(
      Classify(*device_, reinterpret_cast<void*>(mapped.base), mapped.bytes + 1).status().code(),
      absl::StatusCode::kInvalidArgument);
  Unmap(mapped);
}

TEST_F(MemoryKindTest, ReservedAddressesAreRefused) {
  NEEDS_FAKE_DRIVER("says of what device reserved addresses are");
  const Mapped mapped = Map({kHandleTypePosixFd});
  const absl::Status status =
      Classify(*device_, reinterpret_cast<void*>(mapped.base + mapped.bytes), 1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("at which no memory is mapped"));
  Unmap(mapped);
}

// One chunk of an expandable segment suffices.
TEST_F(MemoryKindTest, MappedMemoryWithoutAHandleTypeCannotBeExported) {
  const Mapped mapped = Map({kHandleTypePosixFd, kHandleTypeNone});
  EXPECT_EQ(InfoOf(mapped.base, kGranule).export_by, ExportBy::kPosixFd);
  const MemoryInfo info = InfoOf(mapped.base, 2 * kGranule);
  EXPECT_EQ(info.kind, MemoryKind::kVirtual);
  EXPECT_EQ(info.export_by, ExportBy::kNone);
  EXPECT_THAT(info.no_export_reason, HasSubstr("without a handle type"));
  Unmap(mapped);
}

TEST_F(MemoryKindTest, ManagedMemoryCannotBeExported) {
  NEEDS_FAKE_DRIVER("is asked for what is in no table");
  DevicePointer memory = 0;
  {
    const ScopedCurrent current(*device_);
    const auto alloc_managed = reinterpret_cast<Result (*)(DevicePointer*, size_t, unsigned int)>(
        StrictSymbol("cuMemAllocManaged"));
    ASSERT_EQ(alloc_managed(&memory, 1000, 1), kSuccess);
  }
  const MemoryInfo info = InfoOf(memory, 1000);
  EXPECT_EQ(info.kind, MemoryKind::kManaged);
  EXPECT_FALSE(info.is_host());
  EXPECT_EQ(info.export_by, ExportBy::kNone);
  EXPECT_THAT(info.no_export_reason, HasSubstr("managed memory"));
  Free(memory);
}

TEST_F(MemoryKindTest, HostMemoryIsPinnedOrNot) {
  const auto info_of = [this](const void* at) {
    return InfoOf(reinterpret_cast<DevicePointer>(at), 100);
  };
  std::vector<char> pageable(100);
  EXPECT_EQ(info_of(pageable.data()).kind, MemoryKind::kPageableHost);
  EXPECT_THAT(info_of(pageable.data()).pieces, IsEmpty());

  void* allocated = nullptr;
  const ScopedCurrent current(*device_);
  ASSERT_EQ(table().host_alloc(&allocated, 100, kHostAllocPortable), kSuccess);
  const MemoryInfo info = info_of(allocated);
  EXPECT_EQ(info.kind, MemoryKind::kPinnedHost);
  EXPECT_TRUE(info.is_host());
  EXPECT_EQ(info.export_by, ExportBy::kNone);
  EXPECT_EQ(table().host_free(allocated), kSuccess);

  void* registered = std::aligned_alloc(4096, 4096);
  {
    const auto registration = PinnedRegistration::Create(device_, registered, 4096);
    ASSERT_OK(registration.status());
    EXPECT_EQ(info_of(registered).kind, MemoryKind::kPinnedHost);
    EXPECT_FALSE(PinnedRegistration::Create(device_, registered, 4096).ok());
  }
  EXPECT_EQ(info_of(registered).kind, MemoryKind::kPageableHost);
  std::free(registered);
}

// A tensor without elements has no address, and the driver must not be queried for it.
TEST_F(MemoryKindTest, NullAddressIsHostMemory) {
  if (!OnRealGpu()) FailNext("cuPointerGetAttributes", 1);
  const absl::StatusOr<MemoryInfo> info = Classify(*device_, nullptr, 0);
  ASSERT_OK(info.status());
  EXPECT_EQ(info->kind, MemoryKind::kPageableHost);
  EXPECT_THAT(info->pieces, IsEmpty());
  // The injected fault is still pending: no call has been made.
  if (!OnRealGpu()) {
    const DevicePointer memory = Alloc(8);
    EXPECT_FALSE(Classify(*device_, reinterpret_cast<void*>(memory), 8).ok());
    Free(memory);
  }
}

// Equal allocations must be equal bytes: the driver leaves a part of the handle as it was.
TEST_F(MemoryKindTest, ExportingTwiceGivesTheSameBytes) {
  const DevicePointer memory = Alloc(1000);
  const auto pointer = reinterpret_cast<void*>(memory + 10);
  const auto first = ExportMemory(*device_, pointer, 20);
  const auto second = ExportMemory(*device_, pointer, 20);
  ASSERT_OK(first.status());
  ASSERT_OK(second.status());
  EXPECT_FALSE((*first)[0].fd.valid());
  const IpcDescriptor descriptor = (*first)[0].descriptor;
  EXPECT_EQ(descriptor, (*second)[0].descriptor);
  EXPECT_EQ(descriptor.offset, 10u);
  EXPECT_EQ(descriptor.bytes, 20u);
  EXPECT_THAT(descriptor.allocation_bytes, AllOf(Ge(1000u), Le(1024u)));
  const absl::StatusOr<IpcDescriptor> decoded =
      DecodeIpcDescriptor(EncodeIpcDescriptor(descriptor));
  ASSERT_OK(decoded.status());
  EXPECT_EQ(*decoded, descriptor);
  Free(memory);
}

TEST_F(MemoryKindTest, DescriptorsOfAPeerAreValidated) {
  IpcDescriptor descriptor;
  descriptor.export_by = ExportBy::kPosixFd;
  descriptor.allocation_bytes = 100;
  descriptor.offset = 90;
  descriptor.bytes = 10;
  EXPECT_OK(DecodeIpcDescriptor(EncodeIpcDescriptor(descriptor)).status());
  const auto refuses = [&descriptor](auto change) {
    IpcDescriptor changed = descriptor;
    change(changed);
    EXPECT_EQ(DecodeIpcDescriptor(EncodeIpcDescriptor(changed)).status().code(),
              absl::StatusCode::kInvalidArgument);
  };
  refuses([](IpcDescriptor& d) { d.bytes = 11; });
  refuses([](IpcDescriptor& d) { d.bytes = 0; });
  refuses([](IpcDescriptor& d) { d.offset = 101; });
  refuses([](IpcDescriptor& d) { d.bytes = ~uint64_t{0}; });
  refuses([](IpcDescriptor& d) { d.export_by = ExportBy::kNone; });
  refuses([](IpcDescriptor& d) { d.export_by = static_cast<ExportBy>(9); });
  EXPECT_FALSE(DecodeIpcDescriptor("short").ok());
}

}  // namespace
}  // namespace ferry::cuda
