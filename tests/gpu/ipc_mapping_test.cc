// SPDX-License-Identifier: Apache-2.0
// Every kind of memory, mapped by another process.
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/ipc_fixture.h"

namespace ferry::cuda {
namespace {

class IpcMappingTest : public IpcProcessTest {};

// The first, a middle and the last byte of an allocation with neighbours in the same block.
TEST_F(IpcMappingTest, RangeIsFoundAtItsOffsetInTheMapping) {
  NEEDS_TWO_PEERS();
  ExpectBoth(
      [](const Wire& wire) {
        const Process process;
        const DevicePointer before = process.Alloc(300);
        const DevicePointer memory = process.Alloc(1000);
        process.Write(memory, std::string(499, 'a') + "m" + std::string(499, 'b') + "z");
        for (const size_t offset : {size_t{0}, size_t{499}, size_t{999}}) {
          Put(wire, ExportOne(process, memory + offset, 1));
        }
        wire.Get<char>();
        process.Free(memory);
        process.Free(before);
      },
      [](const Wire& wire) {
        Consumer consumer(1);
        std::string seen;
        size_t mapped_bytes = 0;
        for (int i = 0; i < 3; ++i) {
          ExportedPiece piece = Get(wire);
          const auto memory = consumer.Open(piece.descriptor, std::move(piece.fd));
          REQUIRE_OK(memory.status());
          mapped_bytes = memory->bytes();
          REQUIRE(mapped_bytes >= 1000 && mapped_bytes <= 1024);
          seen += consumer.Read(memory->base() + piece.descriptor.offset, 1);
        }
        REQUIRE(seen == "amz");
        const IpcImportCacheStats stats = consumer.cache->stats();
        REQUIRE(stats.opened == 1 && stats.found == 2 && stats.mapped_bytes == mapped_bytes);
        REQUIRE(stats.used_count == 0);
        consumer.cache.reset();
        wire.Put('x');
      });
}

TEST_F(IpcMappingTest, ArenasSegmentIsOpenedOnceForAllItsBuffers) {
  ExpectBoth(
      [](const Wire& wire) {
        const Process process;
        const auto arena = *GpuArena::Create(process.device, nullptr, {});
        const auto first = *arena->Allocate(1000);
        const auto second = *arena->Allocate(1000);
        process.Write(first->pointer(), "first");
        process.Write(second->pointer(), "second");
        const auto hold = arena->HoldSegment(*first);
        Put(wire, {arena->Describe(*first), *arena->ExportSegment(*first)});
        // The peer has the segment: no descriptor any more.
        Put(wire, {arena->Describe(*second), UniqueFd()});
        wire.Get<char>();
        REQUIRE(process.Read(first->pointer(), 5) == "FIRST");
      },
      [](const Wire& wire) {
        Consumer consumer;
        ExportedPiece piece = Get(wire);
        const auto first = consumer.Open(piece.descriptor, std::move(piece.fd));
        REQUIRE_OK(first.status());
        const ExportedPiece other = Get(wire);
        const auto second = consumer.cache->Find({kProducer, other.descriptor.allocation_id});
        REQUIRE(second.has_value());
        REQUIRE(consumer.Read(first->base() + piece.descriptor.offset, 5) == "first");
        REQUIRE(consumer.Read(second->base() + other.descriptor.offset, 6) == "second");
        consumer.Write(first->base() + piece.descriptor.offset, "FIRST");
        wire.Put('x');
      });
}

TEST_F(IpcMappingTest, MemoryOfAPoolIsOpenedWithItsPool) {
  NEEDS_TWO_PEERS();
  ExpectBoth(
      [](const Wire& wire) {
        const Process process;
        const CudaTable& table = process.device->table();
        const ScopedCurrent current(*process.device);
        PoolProperties properties = {};
        properties.allocation_type = kAllocationTypePinned;
        properties.handle_types = kHandleTypePosixFd;
        properties.location = {kLocationTypeDevice, 0};
        MemoryPool pool = nullptr;
        REQUIRE(table.pool_create(&pool, &properties) == kSuccess);
        DevicePointer memory[2] = {};
        for (DevicePointer& each : memory) {
          REQUIRE(table.pool_alloc_async(&each, 1000, pool, process.stream->get()) == kSuccess);
        }
        process.Write(memory[0] + 7, "pool");
        process.Write(memory[1] + 9, "loop");
        Put(wire, ExportOne(process, memory[0] + 7, 4));
        Put(wire, ExportOne(process, memory[1] + 9, 4));
        wire.Get<char>();
        for (const DevicePointer each : memory) process.Free(each);
        REQUIRE(table.pool_destroy(pool) == kSuccess);
      },
      [](const Wire& wire) {
        Consumer consumer(1);
        for (const char* expected : {"pool", "loop"}) {
          ExportedPiece piece = Get(wire);
          const auto memory = consumer.Open(piece.descriptor, std::move(piece.fd));
          REQUIRE_OK(memory.status());
          REQUIRE(consumer.Read(memory->base() + piece.descriptor.offset, 4) == expected);
        }
        consumer.cache.reset();
        wire.Put('x');
      });
}

// The pool of the first is destroyed while its memory is mapped, as far as the consumer can tell,
// and another pool gets its number.
TEST_F(IpcMappingTest, NumberOfAPoolIsUsedAgain_ThePoolIsImportedAnew) {
  NEEDS_TWO_PEERS();
  ExpectBoth(
      [](const Wire& wire) {
        const Process process;
        const CudaTable& table = process.device->table();
        const ScopedCurrent current(*process.device);
        PoolProperties properties = {};
        properties.allocation_type = kAllocationTypePinned;
        properties.handle_types = kHandleTypePosixFd;
        properties.location = {kLocationTypeDevice, 0};
        MemoryPool pools[2] = {};
        DevicePointer memory[2] = {};
        for (int i = 0; i < 2; ++i) {
          REQUIRE(table.pool_create(&pools[i], &properties) == kSuccess);
          REQUIRE(table.pool_alloc_async(&memory[i], 1000, pools[i], process.stream->get()) ==
                  kSuccess);
        }
        process.Write(memory[0], "pool");
        process.Write(memory[1], "loop");
        ExportedPiece first = ExportOne(process, memory[0], 4);
        ExportedPiece second = ExportOne(process, memory[1], 4);
        REQUIRE(first.descriptor.pool_id != second.descriptor.pool_id);
        second.descriptor.pool_id = first.descriptor.pool_id;
        Put(wire, std::move(first));
        Put(wire, std::move(second));
        wire.Get<char>();
        for (const DevicePointer each : memory) process.Free(each);
        for (MemoryPool each : pools) REQUIRE(table.pool_destroy(each) == kSuccess);
      },
      [](const Wire& wire) {
        Consumer consumer(1);
        std::vector<ImportedMemory> held;
        for (const char* expected : {"pool", "loop"}) {
          ExportedPiece piece = Get(wire);
          auto memory = consumer.Open(piece.descriptor, std::move(piece.fd));
          REQUIRE_OK(memory.status());
          REQUIRE(consumer.Read(memory->base() + piece.descriptor.offset, 4) == expected);
          held.push_back(*std::move(memory));
        }
        held.clear();
        consumer.cache.reset();
        wire.Put('x');
      });
}

// An expandable segment: a range over two physical pieces is two descriptors.
TEST_F(IpcMappingTest, RangeOverSeveralPiecesIsOpenedPieceByPiece) {
  ExpectBoth(
      [](const Wire& wire) {
        const Process process;
        const CudaTable& table = process.device->table();
        const ScopedCurrent current(*process.device);
        constexpr size_t kGranule = 2 * kMiB;
        DevicePointer base = 0;
        REQUIRE(table.address_reserve(&base, 2 * kGranule, 0, 0, 0) == kSuccess);
        AllocationProperties properties = {};
        properties.type = kAllocationTypePinned;
        properties.requested_handle_types = kHandleTypePosixFd;
        properties.location = {kLocationTypeDevice, 0};
        for (size_t i = 0; i < 2; ++i) {
          AllocationHandle handle = 0;
          REQUIRE(table.memory_create(&handle, kGranule, &properties, 0) == kSuccess);
          REQUIRE(table.memory_map(base + i * kGranule, kGranule, 0, handle, 0) == kSuccess);
          REQUIRE(table.memory_release(handle) == kSuccess);
        }
        const AccessDescription access = {{kLocationTypeDevice, 0}, kAccessReadWrite};
        REQUIRE(table.memory_set_access(base, 2 * kGranule, &access, 1) == kSuccess);
        process.Write(base + kGranule - 3, "across");
        const auto pieces = ExportMemory(*process.device, AsHostPointer(base + kGranule - 3), 6);
        REQUIRE_OK(pieces.status());
        REQUIRE(pieces->size() == 2);
        for (const ExportedPiece& piece : *pieces) Put(wire, piece);
        wire.Get<char>();
      },
      [](const Wire& wire) {
        Consumer consumer;
        std::string seen;
        for (int i = 0; i < 2; ++i) {
          ExportedPiece piece = Get(wire);
          const auto memory = consumer.Open(piece.descriptor, std::move(piece.fd));
          REQUIRE_OK(memory.status());
          seen += consumer.Read(memory->base() + piece.descriptor.offset, piece.descriptor.bytes);
        }
        REQUIRE(seen == "across");
        wire.Put('x');
      });
}

// The owner reclaims its memory, frees it, and gets the same address again.
TEST_F(IpcMappingTest, MemoryAtARecycledAddress_IsNotTakenForTheOldOne) {
  NEEDS_FAKE_DRIVER("gives an address again at once");
  ExpectBoth(
      [](const Wire& wire) {
        const Process process;
        DevicePointer last = 0;
        for (const char* text : {"old", "new"}) {
          const DevicePointer memory = process.Alloc(4 * kMiB);
          REQUIRE(last == 0 || memory == last);
          last = memory;
          process.Write(memory, text);
          Put(wire, ExportOne(process, memory, 3));
          wire.Get<char>();  // closed
          process.Free(memory);
        }
      },
      [](const Wire& wire) {
        Consumer consumer;
        uint64_t old_id = 0;
        for (int round = 0; round < 2; ++round) {
          ExportedPiece piece = Get(wire);
          const ImportKey key = {kProducer, piece.descriptor.allocation_id};
          REQUIRE(piece.descriptor.allocation_id != old_id);
          old_id = piece.descriptor.allocation_id;
          REQUIRE(!consumer.cache->Find(key).has_value());
          absl::Notification closed;
          {
            const auto memory = consumer.Open(piece.descriptor, std::move(piece.fd));
            REQUIRE_OK(memory.status());
            REQUIRE(consumer.Read(memory->base(), 3) == (round == 0 ? "old" : "new"));
            consumer.cache->Close(key, [&closed] { closed.Notify(); });
            REQUIRE(!consumer.cache->Find(key).has_value());
            REQUIRE(consumer.cache->stats().closed == round);  // it is in use
            REQUIRE(!closed.HasBeenNotified());
          }
          closed.WaitForNotification();
          REQUIRE(consumer.cache->stats().closed == round + 1);
          wire.Put('x');
        }
      });
}

// An owner that frees without asking, as frameworks do: the new memory must not be taken for the
// old, and the old mapping must go.
TEST_F(IpcMappingTest, OlderMemoryAtTheSameAddressIsClosedFirst) {
  NEEDS_FAKE_DRIVER("gives an address again at once");
  setenv("STRICT_CUDA_ON_BREACH", "record", 1);
  ExpectBoth(
      [](const Wire& wire) {
        const Process process;
        for (const char* text : {"old", "new"}) {
          const DevicePointer memory = process.Alloc(4 * kMiB);
          process.Write(memory, text);
          Put(wire, ExportOne(process, memory, 3));
          wire.Get<char>();
          process.Free(memory);
        }
      },
      [](const Wire& wire) {
        Consumer consumer;
        for (const char* expected : {"old", "new"}) {
          ExportedPiece piece = Get(wire);
          const auto memory = consumer.Open(piece.descriptor, std::move(piece.fd));
          REQUIRE_OK(memory.status());
          REQUIRE(consumer.Read(memory->base(), 3) == expected);
          wire.Put('x');
        }
        REQUIRE(consumer.cache->stats().closed == 1);
        REQUIRE(consumer.cache->stats().mapping_count == 1);
      });
  unsetenv("STRICT_CUDA_ON_BREACH");
}

}  // namespace
}  // namespace ferry::cuda
