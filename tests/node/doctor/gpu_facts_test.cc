// SPDX-License-Identifier: Apache-2.0
// Facts of GPUs: the kernel's view of a made-up machine, and the fake driver's.
#include "doctor/gpu_facts.h"

#include <cstdlib>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gpu/scoped_environment.h"
#include "tests/node/doctor/made_up_host.h"

namespace ferry::doctor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(GpuFacts, KernelReportsDriverGpusAndPciDevices) {
  ScopedEnvironment environment;
  environment.Set("FERRY_CUDA_LIBRARY", "/nowhere/libcuda.so.1");
  MadeUpHost host;
  host.files["/proc/driver/nvidia/version"] =
      "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
      "GCC version:  gcc version 12.2.0";
  host.files["/proc/driver/nvidia/gpus/0000:1b:00.0/information"] = "";
  host.files["/proc/driver/nvidia/gpus/0000:43:00.0/information"] = "";
  host.files["/sys/bus/pci/devices/0000:1b:00.0/vendor"] = "0x10de";
  host.files["/sys/bus/pci/devices/0000:1b:00.0/class"] = "0x030200";
  // NVIDIA's too, but an audio device.
  host.files["/sys/bus/pci/devices/0000:1b:00.1/vendor"] = "0x10de";
  host.files["/sys/bus/pci/devices/0000:1b:00.1/class"] = "0x040300";
  host.files["/sys/bus/pci/devices/0000:00:02.0/vendor"] = "0x8086";
  host.files["/sys/bus/pci/devices/0000:00:02.0/class"] = "0x030000";
  host.files["/dev/nvidiactl"] = "";
  host.files["/dev/nvidia-caps-imex-channels/channel0"] = "";
  host.environment["CUDA_VISIBLE_DEVICES"] = "0";
  std::unique_ptr<cuda::CudaApi> api;
  const GpuFacts facts = ReadGpuFacts(host, api);
  EXPECT_EQ(facts.kernel_driver, "550.54.15");
  EXPECT_EQ(facts.kernel_gpu_count, 2);
  EXPECT_THAT(facts.pci, ElementsAre("0000:1b:00.0"));
  EXPECT_TRUE(facts.has_device_nodes);
  EXPECT_EQ(facts.imex_channel_count, 1);
  EXPECT_EQ(facts.visible_devices, "0");
  EXPECT_THAT(std::string(facts.cuda.message()), HasSubstr("/nowhere/libcuda.so.1"));
  EXPECT_EQ(api, nullptr);
}

TEST(GpuFacts, DriverReportsItsGpusWithoutAContext) {
  ScopedEnvironment environment;
  environment.Set("FERRY_CUDA_LIBRARY", STRICT_CUDA_LIBRARY);
  environment.Set("FERRY_NVML_LIBRARY", STRICT_CUDA_LIBRARY);
  std::unique_ptr<cuda::CudaApi> api;
  const GpuFacts facts = ReadGpuFacts(MadeUpHost(), api);
  ASSERT_TRUE(facts.cuda.ok()) << facts.cuda;
  ASSERT_NE(api, nullptr);
  EXPECT_EQ(facts.cuda_version, 13000);
  EXPECT_EQ(facts.nvml_driver, "580.65.06");
  EXPECT_EQ(facts.nvml_reason, "");
  EXPECT_THAT(facts.lacking, ElementsAre());
  ASSERT_EQ(facts.gpus.size(), 2u);
  EXPECT_EQ(facts.gpus[1].device.ordinal, 1);
  EXPECT_TRUE(facts.gpus[1].traits.exports_posix_fd);
}

}  // namespace
}  // namespace ferry::doctor
