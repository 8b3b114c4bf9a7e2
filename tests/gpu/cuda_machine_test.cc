// SPDX-License-Identifier: Apache-2.0
// Restrictions of a machine, its driver or its limits.
#include <sys/resource.h>

#include <string>
#include <utility>

#include "gpu/cuda/ipc_mapping.h"
#include "tests/gpu/ipc_fixture.h"
#include "tests/support/used_up_descriptors.h"

namespace ferry::cuda {
namespace {

class CudaMachineTest : public IpcProcessTest {};

TEST_F(CudaMachineTest, WithoutDescriptors_TheLimitIsNamed) {
  NEEDS_FAKE_DRIVER("plays other machines");
  ExpectSuccess(RunAlone([] {
    const Process process;
    const auto arena = *GpuArena::Create(process.device, nullptr, {});
    const auto buffer = *arena->Allocate(100);
    REQUIRE_OK(arena->ExportSegment(*buffer).status());
    rlimit limit = {};
    getrlimit(RLIMIT_NOFILE, &limit);
    const rlim_t before = std::exchange(limit.rlim_cur, 3);
    setrlimit(RLIMIT_NOFILE, &limit);
    const absl::Status status = arena->ExportSegment(*buffer).status();
    // The sanitizers need some.
    limit.rlim_cur = before;
    setrlimit(RLIMIT_NOFILE, &limit);
    REQUIRE(status.code() == absl::StatusCode::kResourceExhausted);
    REQUIRE(status.message().find("ulimit -n") != absl::string_view::npos);
  }));
}

// The driver's code does not mention them.
TEST_F(CudaMachineTest, WithoutDescriptorsToImport_TheLimitIsNamed) {
  NEEDS_FAKE_DRIVER("makes calls fail");
  setenv("STRICT_CUDA_FAIL", "cuMemImportFromShareableHandle:304", 1);
  ExpectSuccess(RunAlone([] {
    const Process process;
    const auto arena = *GpuArena::Create(process.device, nullptr, {});
    const auto buffer = *arena->Allocate(100);
    UniqueFd fd = *arena->ExportSegment(*buffer);
    absl::Status status;
    {
      const UsedUpDescriptors none;
      status = IpcMapping::Open(process.device, arena->Describe(*buffer), std::move(fd)).status();
    }
    REQUIRE(status.code() == absl::StatusCode::kResourceExhausted);
    REQUIRE(status.message().find("failed with code 304") != absl::string_view::npos);
    REQUIRE(status.message().find("ulimit -n") != absl::string_view::npos);
  }));
}

// Restrictions of the machine.
TEST_F(CudaMachineTest, DeviceThatProhibitsContexts_IsRefused) {
  NEEDS_FAKE_DRIVER("plays other machines");
  setenv("STRICT_CUDA_ATTRIBUTES", "20=2", 1);
  ExpectSuccess(RunAlone([] {
    std::shared_ptr<const CudaApi> api = *CudaApi::Load();
    const absl::Status status = CudaDevice::Open(api, 0).status();
    REQUIRE(status.code() == absl::StatusCode::kFailedPrecondition);
    REQUIRE(status.message().find("prohibits contexts") != absl::string_view::npos);
  }));
}

TEST_F(CudaMachineTest, Mps_IsReportedIfTheDriverKnows) {
  NEEDS_FAKE_DRIVER("plays other machines");
  for (const auto& [attributes, uses_mps] : {std::pair("133=1", true), std::pair("133=0", false)}) {
    setenv("STRICT_CUDA_ATTRIBUTES", attributes, 1);
    ExpectSuccess(RunAlone([uses_mps = uses_mps] {
      std::shared_ptr<const CudaApi> api = *CudaApi::Load();
      REQUIRE((*CudaDevice::Open(api, 0))->traits().uses_mps == uses_mps);
    }));
  }
}

TEST_F(CudaMachineTest, ArenaMemoryIsForNicsWhereTheDeviceCan) {
  NEEDS_FAKE_DRIVER("plays other machines");
  for (const auto& [attributes, is_for_nics] :
       {std::pair("110=1", true), std::pair("110=0", false)}) {
    setenv("STRICT_CUDA_ATTRIBUTES", attributes, 1);
    ExpectSuccess(RunAlone([is_for_nics = is_for_nics] {
      const Process process;
      REQUIRE(process.device->traits().registers_with_nics == is_for_nics);
      const auto arena = *GpuArena::Create(process.device, nullptr, {});
      REQUIRE(arena->fallback_reason().empty());
      const auto buffer = *arena->Allocate(100);
      bool is_capable = !is_for_nics;
      PointerAttribute attribute = kPointerIsRdmaCapable;
      void* values[] = {&is_capable};
      REQUIRE(process.device->table().pointer_get_attributes(1, &attribute, values,
                                                             buffer->pointer()) == kSuccess);
      REQUIRE(is_capable == is_for_nics);
    }));
  }
}

TEST_F(CudaMachineTest, ExclusiveDevice_BelongsToTheFirstProcess) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  setenv("STRICT_CUDA_ATTRIBUTES", "20=3", 1);
  ExpectBoth(
      [](const Wire& wire) {
        {
          const Process process;
          wire.Put('h');
          wire.Get<char>();
        }
        wire.Put('g');
        wire.Get<char>();
      },
      [](const Wire& wire) {
        std::shared_ptr<const CudaApi> api = *CudaApi::Load();
        wire.Get<char>();
        const absl::Status status = CudaDevice::Open(api, 0).status();
        REQUIRE(status.code() == absl::StatusCode::kFailedPrecondition);
        REQUIRE(status.message().find("nvidia-smi -c DEFAULT") != absl::string_view::npos);
        REQUIRE_OK(CudaDevice::Open(api, 1).status());
        wire.Put('w');
        wire.Get<char>();
        REQUIRE_OK(CudaDevice::Open(api, 0).status());
        wire.Put('e');
      });
}

TEST_F(CudaMachineTest, WithoutVirtualMemory_TheArenaUsesLegacyHandles) {
  NEEDS_FAKE_DRIVER("plays other machines");
  setenv("STRICT_CUDA_ATTRIBUTES", "102=0,125=0", 1);
  ExpectBoth(
      [](const Wire& wire) {
        const Process process;
        const auto arena = *GpuArena::Create(process.device, nullptr, {});
        REQUIRE(arena->fallback_reason() == "the device has no virtual memory management");
        const auto first = *arena->Allocate(1000);
        const auto second = *arena->Allocate(1000);
        process.Write(second->pointer(), "legacy");
        Put(wire, {arena->Describe(*second), *arena->ExportSegment(*second)});
        REQUIRE(InterprocessEventPool::Create(process.device, 1).status().code() ==
                absl::StatusCode::kFailedPrecondition);
        wire.Get<char>();
      },
      [](const Wire& wire) {
        Consumer consumer;
        const ExportedPiece piece = Get(wire);
        {
          const auto memory = consumer.Open(piece.descriptor, UniqueFd());
          REQUIRE_OK(memory.status());
          REQUIRE(consumer.Read(memory->base() + piece.descriptor.offset, 6) == "legacy");
        }
        consumer.cache.reset();
        wire.Put('x');
      });
}

TEST_F(CudaMachineTest, DriverWithoutExecution_IsUsedForDiscoveryOnly) {
  NEEDS_FAKE_DRIVER("plays other machines");
  setenv("FERRY_CUDA_LIBRARY", FERRY_FAKE_CUDA, 1);
  ExpectSuccess(RunAlone([] {
    std::shared_ptr<const CudaApi> api = *CudaApi::Load();
    const absl::Status status = CudaDevice::Open(api, 0).status();
    REQUIRE(status.code() == absl::StatusCode::kUnimplemented);
    REQUIRE(status.message().find("has no function cuDevicePrimaryCtxRelease_v2") !=
            absl::string_view::npos);
    REQUIRE(!PeerMatrix::Query(*api).ok());
  }));
}

TEST_F(CudaMachineTest, WithoutAGpu_TheReasonIsTheDrivers) {
  NEEDS_FAKE_DRIVER("plays other machines");
  setenv("STRICT_CUDA_DEVICES", "0", 1);
  ExpectSuccess(RunAlone([] {
    const absl::Status status = CudaApi::Load().status();
    REQUIRE(status.code() == absl::StatusCode::kNotFound);
    REQUIRE(status.message().find("cuInit failed with code 100") != absl::string_view::npos);
  }));
  unsetenv("STRICT_CUDA_DEVICES");
}

}  // namespace
}  // namespace ferry::cuda
