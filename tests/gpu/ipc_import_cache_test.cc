// SPDX-License-Identifier: Apache-2.0
// Which imports are shared, which are closed and when, and peers that end.
#include <unistd.h>

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "tests/gpu/ipc_fixture.h"

namespace ferry::cuda {
namespace {

class IpcImportCacheTest : public IpcProcessTest {};

// A producer that exports one allocation of 100 bytes, and frees it when the consumer is done.
void ExportUntilDone(const Wire& wire) {
  const Process process;
  const DevicePointer memory = process.Alloc(100);
  Put(wire, ExportOne(process, memory, 100));
  wire.Get<char>();
  process.Free(memory);
}

// Three of 4 MiB where 8 may be mapped.
TEST_F(IpcImportCacheTest, LeastRecentlyUsedIsEvictedAndImportsInUseStay) {
  ExpectBoth(
      [](const Wire& wire) {
        const Process process;
        std::vector<DevicePointer> memory;
        for (int i = 0; i < 3; ++i) {
          memory.push_back(process.Alloc(4 * kMiB));
          process.Write(memory.back(), std::string(1, static_cast<char>('a' + i)));
          Put(wire, ExportOne(process, memory.back(), 1));
        }
        wire.Get<char>();
        for (const DevicePointer each : memory) process.Free(each);
      },
      [](const Wire& wire) {
        Consumer consumer(0, {.cap_bytes = 8 * kMiB});
        std::vector<IpcDescriptor> descriptors;
        for (int i = 0; i < 3; ++i) descriptors.push_back(Get(wire).descriptor);
        const auto open = [&](int i) {
          return consumer.Open(descriptors[static_cast<size_t>(i)], UniqueFd());
        };
        std::optional<ImportedMemory> a = *open(0);
        std::optional<ImportedMemory> b = *open(1);
        const absl::Status refused = open(2).status();
        REQUIRE(refused.code() == absl::StatusCode::kResourceExhausted);
        REQUIRE(refused.message().find("--gpu-ipc-cache-bytes") != absl::string_view::npos);
        // Out of order; a is the longer unused one, but was used again.
        b.reset();
        a.reset();
        REQUIRE(consumer.cache->stats().mapping_count == 2);
        std::optional<ImportedMemory> c = *open(2);
        REQUIRE(consumer.Read(c->base(), 1) == "c");
        REQUIRE(consumer.cache->stats().closed == 1);
        REQUIRE(!consumer.cache->Find({kProducer, descriptors[0].allocation_id}).has_value());
        // A copy of the lease keeps it, whichever other copies are destroyed.
        std::optional<ImportedMemory> copy =
            *consumer.cache->Find({kProducer, descriptors[1].allocation_id});
        std::optional<ImportedMemory> second = copy;
        copy.reset();
        REQUIRE(open(0).status().code() == absl::StatusCode::kResourceExhausted);
        REQUIRE(consumer.Read(second->base(), 1) == "b");
        second.reset();
        REQUIRE_OK(open(0).status());
        consumer.cache->ClosePeer(kProducer);
        consumer.WaitClosed(3);
        REQUIRE(consumer.cache->stats().used_count == 1);
        consumer.cache.reset();
        // The last one is closed when its last lease is destroyed, and can be used until then.
        REQUIRE(consumer.Read(c->base(), 1) == "c");
        c.reset();
        wire.Put('y');
      });
}

TEST_F(IpcImportCacheTest, ConcurrentOpensShareOneMapping) {
  ExpectBoth(ExportUntilDone, [](const Wire& wire) {
    Consumer consumer;
    const IpcDescriptor descriptor = Get(wire).descriptor;
    absl::Mutex mu;
    std::vector<ImportedMemory> opened;
    for (int i = 0; i < 50; ++i) {
      REQUIRE_OK(consumer.cache->Open({kProducer, descriptor.allocation_id}, descriptor, UniqueFd(),
                                      SteadyClock().Now() + absl::Seconds(10),
                                      [&](absl::StatusOr<ImportedMemory> memory) {
                                        REQUIRE_OK(memory.status());
                                        absl::MutexLock lock(&mu);
                                        opened.push_back(*memory);
                                      }));
    }
    absl::MutexLock lock(&mu);
    const auto all = [&opened] { return opened.size() == 50; };
    mu.Await(absl::Condition(&all));
    for (const ImportedMemory& memory : opened) REQUIRE(memory.base() == opened[0].base());
    REQUIRE(consumer.cache->stats().opened == 1);
    opened.clear();
    // The last callback may still hold its own.
    while (consumer.cache->stats().used_count > 0) absl::SleepFor(absl::Milliseconds(1));
    consumer.cache.reset();
    wire.Put('x');
  });
}

// A caller without the descriptor, since it went to another whose transfer was cancelled, is first;
// the caller with the descriptor joins. Both, and all later callers, get the memory.
TEST_F(IpcImportCacheTest, JoiningCallerMayBringTheDescriptor) {
  ExpectBoth(
      [](const Wire& wire) {
        const Process process;
        const auto arena = GpuArena::Create(process.device, std::make_shared<SyncGate>(), {});
        REQUIRE_OK(arena.status());
        const auto buffer = (*arena)->Allocate(100);
        REQUIRE_OK(buffer.status());
        Put(wire, ExportOne(process, AsDevicePointer((*buffer)->data()), 100));
        wire.Get<char>();
      },
      [](const Wire& wire) {
        Consumer consumer;
        const ExportedPiece piece = Get(wire);
        REQUIRE(piece.fd.valid());
        for (const bool is_being_opened : {false, true}) {
          absl::Notification go_on;
          // Nothing is opened before the second one has joined; or the first one is at it.
          if (!is_being_opened) {
            REQUIRE_OK(consumer.side->Post([&] { go_on.WaitForNotification(); }));
          }
          absl::Mutex mu;
          int opened = 0;
          const auto open = [&](UniqueFd fd) {
            REQUIRE_OK(consumer.cache->Open({kProducer, piece.descriptor.allocation_id},
                                            piece.descriptor, std::move(fd),
                                            SteadyClock().Now() + absl::Seconds(10),
                                            [&](absl::StatusOr<ImportedMemory> memory) {
                                              // Too late to be joined.
                                              if (!memory.ok() && is_being_opened) return;
                                              REQUIRE_OK(memory.status());
                                              absl::MutexLock lock(&mu);
                                              ++opened;
                                            }));
          };
          open(UniqueFd());
          open(UniqueFd(dup(piece.fd.get())));
          if (!is_being_opened) go_on.Notify();
          const auto are_there = [&] { return opened >= (is_being_opened ? 1 : 2); };
          {
            absl::MutexLock lock(&mu);
            mu.Await(absl::Condition(&are_there));
          }
          // A joined caller is notified without the lock: its lease counts until then.
          while (consumer.cache->stats().used_count > 0) absl::SleepFor(absl::Milliseconds(1));
          consumer.cache->ClosePeer(kProducer);
          consumer.WaitClosed(is_being_opened ? 2 : 1);
        }
        consumer.cache.reset();
        wire.Put('x');
      });
}

// A lease is released while another mapping is being closed: its owner waits for it all the same.
TEST_F(IpcImportCacheTest, LeaseReleasedDuringACloseIsClosedToo) {
  ExpectBoth(
      [](const Wire& wire) {
        const Process process;
        const DevicePointer memory[] = {process.Alloc(4 * kMiB), process.Alloc(4 * kMiB)};
        for (const DevicePointer each : memory) Put(wire, ExportOne(process, each, 100));
        wire.Get<char>();
        for (const DevicePointer each : memory) process.Free(each);
      },
      [](const Wire& wire) {
        Consumer consumer;
        std::vector<ImportedMemory> held;
        for (int i = 0; i < 2; ++i) {
          const IpcDescriptor descriptor = Get(wire).descriptor;
          const auto opened = consumer.Open(descriptor, UniqueFd());
          REQUIRE_OK(opened.status());
          held.push_back(*opened);
          consumer.cache->Close({kProducer, descriptor.allocation_id});
        }
        // Closing waits for the device, which waits for us.
        absl::Notification go;
        const ScopedCurrent current(*consumer.device);
        REQUIRE(
            consumer.device->table().launch_host_function(
                consumer.stream->get(),
                [](void* until) { static_cast<absl::Notification*>(until)->WaitForNotification(); },
                &go) == kSuccess);
        held.erase(held.begin());
        // The side thread is in the middle of it.
        absl::SleepFor(absl::Milliseconds(50));
        held.clear();
        go.Notify();
        const absl::Time give_up = absl::Now() + absl::Seconds(10);
        while (consumer.cache->stats().closed < 2 && absl::Now() < give_up) {
          absl::SleepFor(absl::Milliseconds(1));
        }
        REQUIRE(consumer.cache->stats().closed == 2);
        wire.Put('x');
      });
}

// Mapping synchronises the device, and an NCCL kernel there may be waiting for our peer.
TEST_F(IpcImportCacheTest, NothingIsMappedOrUnmappedWhileNcclWorkIsInFlight) {
  ExpectBoth(ExportUntilDone, [](const Wire& wire) {
    Consumer consumer(0, {.timeout = absl::Milliseconds(5)});
    const IpcDescriptor descriptor = Get(wire).descriptor;
    consumer.gate->BeginWork();
    const absl::Status late =
        consumer.Open(descriptor, UniqueFd(), absl::Milliseconds(50)).status();
    REQUIRE(late.code() == absl::StatusCode::kDeadlineExceeded);
    consumer.gate->EndWork();
    {
      const auto memory = consumer.Open(descriptor, UniqueFd());
      REQUIRE_OK(memory.status());
      consumer.gate->BeginWork();
      consumer.cache->Close({kProducer, descriptor.allocation_id});
    }
    absl::SleepFor(absl::Milliseconds(30));
    REQUIRE(consumer.cache->stats().closed == 0);
    consumer.gate->EndWork();
    consumer.WaitClosed(1);
    wire.Put('x');
  });
}

TEST_F(IpcImportCacheTest, IdleMappingsAreClosedAfterTheTimeout) {
  ExpectBoth(
      [](const Wire& wire) {
        const Process process;
        const DevicePointer memory[] = {process.Alloc(4 * kMiB), process.Alloc(4 * kMiB)};
        for (const DevicePointer each : memory) Put(wire, ExportOne(process, each, 100));
        wire.Get<char>();
        for (const DevicePointer each : memory) process.Free(each);
      },
      [](const Wire& wire) {
        FakeClock clock;
        Consumer consumer(0, {.idle_timeout = absl::Seconds(10), .clock = &clock});
        const IpcDescriptor kept = Get(wire).descriptor;
        const IpcDescriptor used = Get(wire).descriptor;
        REQUIRE_OK(consumer.Open(kept, UniqueFd()).status());
        std::optional<ImportedMemory> held = *consumer.Open(used, UniqueFd());
        // A caller is told without the lock: its lease counts until then.
        while (consumer.cache->stats().used_count > 1) absl::SleepFor(absl::Milliseconds(1));
        clock.Advance(absl::Seconds(9));
        consumer.cache->CloseIdle();
        REQUIRE(consumer.cache->stats().closing_count == 0);
        // A use counts.
        REQUIRE(consumer.cache->Find({kProducer, kept.allocation_id}).has_value());
        clock.Advance(absl::Seconds(9));
        consumer.cache->CloseIdle();
        REQUIRE(consumer.cache->Find({kProducer, kept.allocation_id}).has_value());
        clock.Advance(absl::Seconds(10));
        consumer.cache->CloseIdle();
        REQUIRE(!consumer.cache->Find({kProducer, kept.allocation_id}).has_value());
        consumer.WaitClosed(1);
        REQUIRE(consumer.cache->stats().mapping_count == 1);
        held.reset();
        clock.Advance(absl::Seconds(10));
        consumer.cache->CloseIdle();
        consumer.WaitClosed(2);
        wire.Put('x');
      });
}

// Each caller of Close is told when the last mapping is gone, also one that was being closed.
TEST_F(IpcImportCacheTest, CloseTellsWhenNothingIsMapped) {
  ExpectBoth(ExportUntilDone, [](const Wire& wire) {
    Consumer consumer;
    const IpcDescriptor descriptor = Get(wire).descriptor;
    const ImportKey key = {kProducer, descriptor.allocation_id};
    bool is_inline = false;
    consumer.cache->Close(key, [&is_inline] { is_inline = true; });
    REQUIRE(is_inline);
    std::optional<ImportedMemory> memory = *consumer.Open(descriptor, UniqueFd());
    absl::Notification first;
    absl::Notification second;
    consumer.cache->Close(key, [&first] { first.Notify(); });
    consumer.cache->Close(key, [&second] { second.Notify(); });
    REQUIRE(!consumer.cache->Find(key).has_value());
    consumer.gate->BeginWork();
    memory.reset();
    absl::SleepFor(absl::Milliseconds(20));
    REQUIRE(!first.HasBeenNotified() && !second.HasBeenNotified());
    consumer.gate->EndWork();
    first.WaitForNotification();
    second.WaitForNotification();
    REQUIRE(consumer.cache->stats().mapping_count == 0);
    wire.Put('x');
  });
}

// kill -9 while its memory is mapped and used here.
TEST_F(IpcImportCacheTest, PeerDies_OnlyImportsInUseStay) {
  const auto outcomes = RunPair(
      [](const Wire& wire) {
        const Process process;
        const DevicePointer memory = process.Alloc(100);
        Put(wire, ExportOne(process, memory, 100));
        wire.Get<char>();
        raise(SIGKILL);
      },
      [](const Wire& wire) {
        Consumer consumer;
        const IpcDescriptor descriptor = Get(wire).descriptor;
        std::optional<ImportedMemory> memory = *consumer.Open(descriptor, UniqueFd());
        wire.Put('x');
        // The connection has ended: the producer is dead.
        char byte = 0;
        REQUIRE(read(wire.fd(), &byte, 1) <= 0);
        consumer.cache->ClosePeer(kProducer);
        REQUIRE(!consumer.cache->Find({kProducer, descriptor.allocation_id}).has_value());
        REQUIRE(consumer.cache->stats().mapping_count == 1);
        memory.reset();
        consumer.WaitClosed(1);
        // The driver of an H200 (580.159) still opened the handle of a dead process at this point.
        const absl::Status gone = consumer.Open(descriptor, UniqueFd()).status();
        REQUIRE(OnRealGpu() || !gone.ok());
      });
  EXPECT_TRUE(WIFSIGNALED(outcomes[0].status));
  ExpectSuccess(outcomes[1]);
}

TEST_F(IpcImportCacheTest, ErrorsDescribeTheImport) {
  NEEDS_FAKE_DRIVER("makes calls fail");
  setenv("STRICT_CUDA_PEERS", "none", 1);
  ExpectBoth(
      [](const Wire& wire) {
        const Process process;
        const DevicePointer memory = process.Alloc(100);
        const auto arena = *GpuArena::Create(process.device, nullptr, {});
        const auto buffer = *arena->Allocate(100);
        Put(wire, ExportOne(process, memory, 100));
        Put(wire, {arena->Describe(*buffer), *arena->ExportSegment(*buffer)});
        wire.Get<char>();
        process.Free(memory);
      },
      [](const Wire& wire) {
        Consumer consumer(1);
        const ExportedPiece plain = Get(wire);
        ExportedPiece segment = Get(wire);
        absl::Status status = consumer.Open(plain.descriptor, UniqueFd()).status();
        REQUIRE(status.code() == absl::StatusCode::kFailedPrecondition);
        REQUIRE(status.message().find("no peer access") != absl::string_view::npos);
        status = consumer.Open(segment.descriptor, UniqueFd()).status();
        REQUIRE(status.code() == absl::StatusCode::kInvalidArgument);
        status = consumer.Open(segment.descriptor, std::move(segment.fd)).status();
        REQUIRE(status.code() == absl::StatusCode::kFailedPrecondition);
        const auto fail_next = CU(strict_cuda_fail_next);
        fail_next("cuIpcOpenMemHandle_v2", kErrorAlreadyMapped, 0);
        status = consumer.Open(plain.descriptor, UniqueFd()).status();
        REQUIRE(status.code() == absl::StatusCode::kUnavailable);
        REQUIRE(status.message().find("older memory of the peer") != absl::string_view::npos);
        // A peer that sends us our own name.
        absl::Notification ended;
        REQUIRE_OK(consumer.cache->Open(
            {kConsumer, 1}, plain.descriptor, UniqueFd(), absl::InfiniteFuture(),
            [&](absl::StatusOr<ImportedMemory> memory) {
              REQUIRE(memory.status().code() == absl::StatusCode::kFailedPrecondition);
              ended.Notify();
            }));
        ended.WaitForNotification();
        wire.Put('x');
      });
  unsetenv("STRICT_CUDA_PEERS");
}

// The open is in progress when the peer is reported dead: its memory must not stay mapped.
TEST_F(IpcImportCacheTest, PeerClosedDuringOpen_MappingIsClosed) {
  ExpectBoth(ExportUntilDone, [](const Wire& wire) {
    Consumer consumer(0, {.timeout = absl::Seconds(10)});
    const IpcDescriptor descriptor = Get(wire).descriptor;
    consumer.gate->BeginWork();
    absl::Notification ended;
    absl::Status status;
    REQUIRE_OK(consumer.cache->Open({kProducer, descriptor.allocation_id}, descriptor, UniqueFd(),
                                    SteadyClock().Now() + absl::Seconds(10),
                                    [&](absl::StatusOr<ImportedMemory> opened) {
                                      status = opened.status();
                                      ended.Notify();
                                    }));
    consumer.cache->ClosePeer(kProducer);
    consumer.gate->EndWork();
    ended.WaitForNotification();
    REQUIRE(status.code() == absl::StatusCode::kUnavailable);
    consumer.WaitClosed(1);
    wire.Put('x');
  });
}

// The second caller joins an open whose own deadline is shorter; the gate is held past that one.
TEST_F(IpcImportCacheTest, TwoOpensOfOneBuffer_LongerDeadlineHolds) {
  ExpectBoth(ExportUntilDone, [](const Wire& wire) {
    Consumer consumer(0, {.timeout = absl::Milliseconds(5)});
    const IpcDescriptor descriptor = Get(wire).descriptor;
    consumer.gate->BeginWork();
    absl::Notification ended[2];
    absl::Status status[2];
    for (int i = 0; i < 2; ++i) {
      REQUIRE_OK(consumer.cache->Open(
          {kProducer, descriptor.allocation_id}, descriptor, UniqueFd(),
          SteadyClock().Now() + (i == 0 ? absl::Milliseconds(50) : absl::Seconds(10)),
          [&, i](absl::StatusOr<ImportedMemory> opened) {
            status[i] = opened.status();
            ended[i].Notify();
          }));
    }
    // The first one's deadline passes with the gate held.
    const absl::Time passed = SteadyClock().Now() + absl::Milliseconds(200);
    while (SteadyClock().Now() < passed) absl::SleepFor(absl::Milliseconds(5));
    consumer.gate->EndWork();
    for (int i = 0; i < 2; ++i) {
      ended[i].WaitForNotification();
      REQUIRE_OK(status[i]);
    }
    consumer.cache->Close({kProducer, descriptor.allocation_id});
    consumer.WaitClosed(1);
    wire.Put('x');
  });
}

}  // namespace
}  // namespace ferry::cuda
