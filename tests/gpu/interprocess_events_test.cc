// SPDX-License-Identifier: Apache-2.0
// Events that one process records and another waits for.
#include <optional>
#include <string>
#include <vector>

#include "tests/gpu/ipc_fixture.h"

namespace ferry::cuda {
namespace {

class InterprocessEventsTest : public IpcProcessTest {};

TEST_F(InterprocessEventsTest, EventsOrderTheStreamsOfTwoProcesses) {
  setenv("STRICT_CUDA_DELAY_US", "10000", 1);
  ExpectBoth(
      [](const Wire& wire) {
        const Process process;
        const DevicePointer memory = process.Alloc(100);
        const auto pool = InterprocessEventPool::Create(process.device, 2);
        REQUIRE_OK(pool.status());
        for (const IpcEventHandle& handle : (*pool)->handles()) wire.Put(handle);
        Put(wire, ExportOne(process, memory, 100));
        for (unsigned char round = 1; round <= 5; ++round) {
          {
            const ScopedCurrent current(*process.device);
            REQUIRE(process.device->table().set_bytes_async(memory, round, 100,
                                                            process.stream->get()) == kSuccess);
          }
          const auto ticket = (*pool)->Record(process.stream->get());
          REQUIRE_OK(ticket.status());
          // Slots are used in rotation.
          wire.Put(*ticket);
          const auto passed = wire.Get<EventTicket>();
          REQUIRE(passed == *ticket);
          REQUIRE_OK((*pool)->Release(passed));
          REQUIRE((*pool)->Release(passed).code() == absl::StatusCode::kInvalidArgument);
        }
        REQUIRE((*pool)->free_count() == 2);
        wire.Get<char>();
        process.Free(memory);
      },
      [](const Wire& wire) {
        Consumer consumer;
        std::vector<IpcEventHandle> handles;
        for (int i = 0; i < 2; ++i) handles.push_back(wire.Get<IpcEventHandle>());
        auto events = ImportedEvents::Open(consumer.device, handles);
        REQUIRE_OK(events.status());
        ExportedPiece piece = Get(wire);
        std::optional<ImportedMemory> memory = *consumer.Open(piece.descriptor, UniqueFd());
        for (char round = 1; round <= 5; ++round) {
          const auto ticket = wire.Get<EventTicket>();
          if (round % 2 == 1) {
            REQUIRE_OK((*events)->EnqueueWait(ticket, consumer.stream->get()));
          } else {
            // The host may look as well, which waits for nothing.
            absl::StatusOr<bool> has_passed = false;
            while (has_passed.ok() && !*has_passed) {
              has_passed = (*events)->HasPassed(ticket);
              absl::SleepFor(absl::Microseconds(100));
            }
            REQUIRE_OK(has_passed.status());
            REQUIRE((*events)->HasPassed(ticket).status().code() ==
                    absl::StatusCode::kInvalidArgument);
          }
          REQUIRE(consumer.Read(memory->base(), 100) == std::string(100, round));
          REQUIRE((*events)->EnqueueWait(ticket, consumer.stream->get()).code() ==
                  absl::StatusCode::kInvalidArgument);
          wire.Put(ticket);
        }
        REQUIRE((*events)->EnqueueWait({7, 1}, consumer.stream->get()).code() ==
                absl::StatusCode::kInvalidArgument);
        events->reset();
        memory.reset();
        consumer.cache.reset();
        wire.Put('x');
      });
  unsetenv("STRICT_CUDA_DELAY_US");
}

TEST_F(InterprocessEventsTest, AllEventsInUse_IsReported) {
  ExpectSuccess(RunAlone([] {
    const Process process;
    const auto pool = *InterprocessEventPool::Create(process.device, 2);
    const EventTicket first = *pool->Record(process.stream->get());
    REQUIRE_OK(pool->Record(process.stream->get()).status());
    const absl::Status status = pool->Record(process.stream->get()).status();
    REQUIRE(status.code() == absl::StatusCode::kResourceExhausted);
    REQUIRE_OK(pool->Release(first));
    const EventTicket again = *pool->Record(process.stream->get());
    REQUIRE(again.slot == first.slot && again.sequence == first.sequence + 1);
    REQUIRE(pool->Release(first).code() == absl::StatusCode::kInvalidArgument);
  }));
}

TEST_F(InterprocessEventsTest, DriverError_ReleasesTheSlot) {
  NEEDS_FAKE_DRIVER("makes calls fail");
  ExpectSuccess(RunAlone([] {
    const Process process;
    const auto pool = *InterprocessEventPool::Create(process.device, 1);
    CU(strict_cuda_fail_next)("cuEventRecord", 700, 0);
    REQUIRE(!pool->Record(process.stream->get()).ok());
    REQUIRE(pool->free_count() == 1);
  }));
}

}  // namespace
}  // namespace ferry::cuda
