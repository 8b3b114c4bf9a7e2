// SPDX-License-Identifier: Apache-2.0
// Drivers that are absent, old, broken or hidden, and GPUs in every mode; by facts alone.
#include "doctor/gpu_checks.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

#include "tests/node/doctor/finding_matcher.h"
#include "tests/node/doctor/made_up_host.h"

namespace ferry::doctor {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

GpuFact Gpu(int ordinal) {
  GpuFact gpu;
  gpu.device.kind = DeviceKind::kGpu;
  gpu.device.ordinal = ordinal;
  gpu.device.name = "NVIDIA H100 80GB HBM3";
  gpu.device.compute_major = 9;
  gpu.device.pci_bus_id = ordinal == 0 ? "0000:1b:00.0" : "0000:43:00.0";
  gpu.device.memory_bytes = 80 * kGiB;
  gpu.traits.has_virtual_memory = gpu.traits.exports_posix_fd = true;
  return gpu;
}

// Two GPUs and nothing wrong.
GpuFacts Sound() {
  GpuFacts facts;
  facts.cuda_path = "libcuda.so.1";
  facts.cuda_version = 13000;
  facts.gpus = {Gpu(0), Gpu(1)};
  facts.nvml_driver = facts.kernel_driver = "580.65.06";
  facts.kernel_gpu_count = 2;
  facts.has_device_nodes = true;
  return facts;
}

GpuFacts Without(absl::Status cuda) {
  GpuFacts facts;
  facts.cuda = std::move(cuda);
  return facts;
}

absl::Status NoLibrary() { return absl::UnavailableError("cannot load libcuda.so.1: absent"); }
absl::Status Failed(int code, const char* name) {
  return absl::InternalError(absl::StrCat("cuInit failed with code ", code, " ", name));
}
absl::Status NoDevice() {
  return absl::NotFoundError("cuInit failed with code 100 CUDA_ERROR_NO_DEVICE");
}

TEST(CheckDriver, HealthyMachineIsOkInEveryLine) {
  const std::vector<Finding> findings = CheckGpus(Sound());
  EXPECT_THAT(findings, ElementsAre(IsOk("580.65.06, up to CUDA 13.0, by libcuda.so.1"),
                                    IsOk("2 GPUs"), IsOk("8 for the streams of a GPU"),
                                    IsOk("NVIDIA H100 80GB HBM3, sm_90, 80 GiB, 0000:1b:00.0"),
                                    IsOk("0000:43:00.0")));
}

TEST(CheckDriver, GpuThatAnswersWithAnErrorIsWrongAndHidesNoOther) {
  GpuFacts facts = Sound();
  facts.gpus.erase(facts.gpus.begin());
  facts.gpu_failures = {"gpu:0: cuDeviceTotalMem_v2 failed with code 999"};
  EXPECT_THAT(CheckGpus(facts),
              ElementsAre(IsOk("580.65.06"),
                          IsWrong("1 GPU, and 1 more that answered with an error: gpu:0: "
                                  "cuDeviceTotalMem_v2 failed with code 999",
                                  "leave it out of CUDA_VISIBLE_DEVICES"),
                          IsOk("8 for the streams of a GPU"), IsOk("0000:43:00.0")));
}

TEST(CheckDriver, MachineWithoutAGpuIsSkippedWithTheReason) {
  EXPECT_THAT(CheckGpus(Without(NoLibrary())), ElementsAre(WasSkipped("no GPU: cannot load")));
  EXPECT_THAT(CheckDriver(Without(NoDevice())), WasSkipped("no GPU: cuInit failed"));
}

TEST(CheckDriver, GpuWithoutADriverIsWrong) {
  GpuFacts facts = Without(NoLibrary());
  facts.pci = {"0000:1b:00.0"};
  EXPECT_THAT(CheckDriver(facts), IsWrong("no driver for the GPU at 0000:1b:00.0", "install"));
}

TEST(CheckDriver, ContainerWithoutTheLibraryIsWrong) {
  GpuFacts facts = Without(NoLibrary());
  facts.kernel_driver = "580.65.06";
  EXPECT_THAT(CheckDriver(facts), IsWrong("the kernel has driver 580.65.06, but", "--gpus all"));
}

TEST(CheckDriver, NamedLibraryMustExist) {
  GpuFacts facts = Without(NoLibrary());
  facts.cuda_library = "/nowhere/libcuda.so.1";
  EXPECT_THAT(CheckDriver(facts), IsWrong("cannot load", "FERRY_CUDA_LIBRARY"));
  facts.cuda_library = "";
  EXPECT_THAT(CheckDriver(facts), WasSkipped("no GPU"));
}

TEST(CheckDriver, HiddenGpusAreReportedAsHidden) {
  GpuFacts facts = Without(NoDevice());
  facts.kernel_gpu_count = 8;
  facts.has_device_nodes = true;
  facts.visible_devices = "";
  EXPECT_THAT(CheckDriver(facts), WasSkipped("CUDA_VISIBLE_DEVICES=\"\" hides every GPU"));
  facts.visible_devices = "-1";
  EXPECT_THAT(CheckDriver(facts), WasSkipped("hides every GPU"));
  facts.visible_devices = "9";
  EXPECT_THAT(CheckDriver(facts), IsWrong("CUDA_VISIBLE_DEVICES=\"9\"", "nvidia-smi -L"));
}

TEST(CheckDriver, InaccessibleDevicesAreWrong) {
  GpuFacts facts = Without(NoDevice());
  facts.kernel_gpu_count = 8;
  EXPECT_THAT(CheckDriver(facts), IsWrong("may not open /dev/nvidiactl", "--gres"));
  facts.has_device_nodes = true;
  EXPECT_THAT(CheckDriver(facts), IsWrong("code 100", "nvidia-smi"));
}

TEST(CheckDriver, DriverErrorsHaveTheirRemedy) {
  EXPECT_THAT(CheckDriver(Without(Failed(802, "CUDA_ERROR_SYSTEM_NOT_READY"))),
              IsWrong("802", "nvidia-fabricmanager"));
  EXPECT_THAT(CheckDriver(Without(Failed(803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"))),
              IsWrong("803", "reboot"));
  EXPECT_THAT(CheckDriver(Without(Failed(804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"))),
              IsWrong("804", "LD_LIBRARY_PATH"));
  EXPECT_THAT(CheckDriver(Without(Failed(999, "CUDA_ERROR_UNKNOWN"))),
              IsWrong("999", "nvidia-uvm"));
  EXPECT_THAT(CheckDriver(Without(Failed(2, "CUDA_ERROR_OUT_OF_MEMORY"))), IsWrong("2", "dmesg"));
  EXPECT_THAT(CheckDriver(Without(absl::FailedPreconditionError(
                  "libcuda.so.1 is of CUDA 10.2, at least 11.4 is needed"))),
              IsWrong("10.2", "newer driver"));
  EXPECT_THAT(CheckDriver(Without(absl::UnimplementedError("no function cuDeviceGetUuid_v2"))),
              IsWrong("cuDeviceGetUuid_v2", "install"));
}

TEST(CheckDriver, UpgradeWithoutARebootIsWrong) {
  GpuFacts facts = Sound();
  facts.nvml_driver = "580.82.07";
  EXPECT_THAT(CheckDriver(facts), IsWrong("but the kernel's module is 580.65.06", "reboot"));
}

TEST(CheckDriver, MissingFunctionsOfAReducedDriverAreNamed) {
  GpuFacts facts = Sound();
  facts.lacking = {"IPC (libcuda.so.1 has no function cuIpcGetMemHandle)"};
  EXPECT_THAT(CheckDriver(facts), IsWarning("lacks IPC (libcuda.so.1 has no", "staged"));
  facts.lacking.clear();
  facts.nvml_reason = "cannot load libnvidia-ml.so.1";
  EXPECT_THAT(CheckDriver(facts), IsWarning("not known: cannot load libnvidia-ml", "utility"));
}

TEST(CheckGpuCount, ReportsHiddenGpus) {
  GpuFacts facts = Sound();
  facts.visible_devices = "0,1";
  facts.kernel_gpu_count = 8;
  EXPECT_THAT(CheckGpuCount(facts), IsOk("2 GPUs by CUDA_VISIBLE_DEVICES=\"0,1\""));
  facts.visible_devices = "0,1,9,3";
  EXPECT_THAT(CheckGpuCount(facts), IsWarning("which names 4", "stops at the first"));
  facts.visible_devices.reset();
  EXPECT_THAT(CheckGpuCount(facts), IsWarning("2 GPUs of the 8 that the kernel has", "container"));
}

TEST(CheckHardwareQueues, FewQueuesAreAWarning) {
  GpuFacts facts = Sound();
  EXPECT_THAT(CheckHardwareQueues(facts), IsOk("8 for the streams"));
  for (const char* const few : {"1", "7"}) {
    facts.max_connections = few;
    EXPECT_THAT(CheckHardwareQueues(facts),
                IsWarning(absl::StrCat(few, " for the streams of a GPU, by CUDA_DEVICE_MAX_CONN"),
                          "--gpu-wait-on-device"));
  }
  for (const char* const enough : {"8", "32"}) {
    facts.max_connections = enough;
    EXPECT_THAT(CheckHardwareQueues(facts), IsOk(absl::StrCat(enough, " for the streams")));
  }
  for (const char* const wrong : {"", "0", "33", "many"}) {
    facts.max_connections = wrong;
    EXPECT_THAT(CheckHardwareQueues(facts), IsWarning("not a number from 1 to 32", "unset"));
  }
}

TEST(CheckGpu, ComputeModesLimitSharing) {
  GpuFact gpu = Gpu(1);
  gpu.traits.compute_mode = cuda::kComputeModeExclusiveProcess;
  EXPECT_THAT(CheckGpu(gpu), IsWarning("one process at a time", "nvidia-smi -i 0000:43:00.0 -c 0"));
  EXPECT_EQ(CheckGpu(gpu).name, "gpu:1");
  gpu.traits.compute_mode = cuda::kComputeModeProhibited;
  EXPECT_THAT(CheckGpu(gpu), IsWrong("Prohibited", "-c 0"));
}

TEST(CheckGpu, Mps_IsMentioned) {
  GpuFact gpu = Gpu(0);
  EXPECT_EQ(CheckGpu(gpu).seen.find("MPS"), std::string::npos);
  gpu.traits.uses_mps = true;
  EXPECT_THAT(CheckGpu(gpu), IsOk("shared by MPS"));
}

TEST(CheckGpu, MigSlicesAndUnexportableMemoryAreReported) {
  GpuFact gpu = Gpu(0);
  gpu.device.name = "NVIDIA H100 80GB HBM3 MIG 1g.10gb";
  EXPECT_THAT(CheckGpu(gpu), IsWarning("a slice (MIG)", "NCCL_HOSTID"));
  gpu = Gpu(0);
  gpu.traits.exports_posix_fd = false;
  EXPECT_THAT(CheckGpu(gpu), IsWarning("cannot be exported", "pid namespace"));
}

TEST(CheckFabric, IsReportedOnlyWhereThereIsOne) {
  GpuFacts facts = Sound();
  EXPECT_THAT(CheckFabric(facts), IsEmpty());
  facts.gpus[0].device.fabric_uuid = "00000000-0000-0000-0000-000000000000/0";
  EXPECT_THAT(CheckFabric(facts), IsEmpty());
  for (GpuFact& gpu : facts.gpus) {
    gpu.device.fabric_uuid = "5f0e1d2c-0000-0000-0000-000000000001/1";
  }
  EXPECT_THAT(CheckFabric(facts), ElementsAre(IsWarning("no channel", "nvidia-imex")));
  facts.imex_channel_count = 1;
  EXPECT_THAT(CheckFabric(facts), ElementsAre(IsOk("5f0e1d2c")));
}

TEST(JudgePeers, DistinguishesPairsWithoutAccessFromWrongData) {
  EXPECT_THAT(JudgePeers({}), WasSkipped("no two GPUs"));
  std::vector<PeerOutcome> outcomes = {{0, 1, true, absl::OkStatus()},
                                       {1, 0, true, absl::OkStatus()}};
  EXPECT_THAT(JudgePeers(outcomes), IsOk("all 2 ordered pairs"));
  outcomes[1].can_access = false;
  EXPECT_THAT(JudgePeers(outcomes),
              IsWarning("1 of 2 ordered pairs have none: gpu:1>gpu:0", "host"));
  outcomes[0].copied = absl::DataLossError("12 of 65536 bytes arrived wrong");
  EXPECT_THAT(JudgePeers(outcomes), IsWrong("gpu:0>gpu:1: 12 of 65536", "ACS"));
}

// Whether or not the driver promises access, its remedy is that of the call that failed.
TEST(JudgePeers, GpuThatCannotBeOpenedIsWrongWithItsReason) {
  const absl::Status why = absl::InternalError("gpu:1: x failed with code 46 UNAVAILABLE");
  for (const bool can_access : {false, true}) {
    const std::vector<PeerOutcome> outcomes = {{0, 1, can_access, absl::OkStatus(), why},
                                               {1, 0, can_access, absl::OkStatus(), why}};
    EXPECT_THAT(JudgePeers(outcomes),
                IsWrong("GPUs cannot be opened: gpu:1: x failed with code 46", "nvidia-smi -c 0"));
  }
}

TEST(JudgePeers, ManyPairsAreTruncated) {
  std::vector<PeerOutcome> outcomes;
  for (int to = 1; to <= 8; ++to) outcomes.push_back({0, to, false, absl::OkStatus()});
  EXPECT_THAT(JudgePeers(outcomes), IsWarning("gpu:0>gpu:6 and 2 more", "host"));
}

TEST(JudgeIpc, EitherDirectionMayBeRefused) {
  const IpcOutcome worked = {absl::OkStatus(), absl::Milliseconds(2)};
  const IpcOutcome refused = {absl::InternalError("cuIpcOpenMemHandle failed with code 400 X")};
  EXPECT_THAT(JudgeIpc(3, worked, worked), IsOk("by descriptor after 2ms, by handle after 2ms"));
  EXPECT_EQ(JudgeIpc(3, worked, worked).name, "gpu:3 ipc");
  EXPECT_THAT(JudgeIpc(0, worked, refused),
              IsWarning("by handle: cuIpcOpenMemHandle", "cudaMalloc"));
  EXPECT_THAT(JudgeIpc(0, refused, worked), IsWarning("by descriptor: cuIpc", "pid namespace"));
  EXPECT_THAT(JudgeIpc(0, refused, refused), IsWrong("cuIpcOpenMemHandle failed", "dmesg"));
  const IpcOutcome exclusive = {absl::InternalError("gpu:0: x failed with code 46 UNAVAILABLE")};
  EXPECT_THAT(JudgeIpc(0, exclusive, exclusive), IsWrong("code 46", "nvidia-smi -c 0"));
  EXPECT_EQ(JudgeIpc(0, exclusive, exclusive).seen, exclusive.status.message());
  const IpcOutcome wrong = {absl::DataLossError("it opened, but 7 of 1048576 bytes are wrong")};
  EXPECT_THAT(JudgeIpc(0, wrong, wrong), IsWrong("7 of 1048576", "staged"));
}

}  // namespace
}  // namespace ferry::doctor
