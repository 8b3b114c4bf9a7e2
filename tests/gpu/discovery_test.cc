// SPDX-License-Identifier: Apache-2.0
// Discovery with fakes of the driver and NVML: the GPUs found, and the reasons when something is
// missing.
#include "gpu/discovery.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gpu/scoped_environment.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DiscoveryTest : public ::testing::Test {
 protected:
  DiscoveryTest() {
    Set("FERRY_CUDA_LIBRARY", FERRY_FAKE_CUDA);
    Set("FERRY_NVML_LIBRARY", FERRY_FAKE_NVML);
    options_.sysfs_root = "/nonexistent";
  }

  // Every discovery must release what it took from NVML.
  ~DiscoveryTest() override {
    for (const char* path : {FERRY_FAKE_NVML, FERRY_FAKE_NVML_OLD}) {
      void* const library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
      if (library == nullptr) continue;
      const auto open_count =
          reinterpret_cast<int (*)()>(dlsym(library, "ferry_fake_nvml_open_count"));
      EXPECT_EQ(open_count(), 0) << path;
      dlclose(library);
    }
  }

  void Set(const std::string& name, const std::string& value) { environment_.Set(name, value); }

  GpuDiscovery Discover() const { return DiscoverGpus(options_); }

  // With nothing wrong, the path between the two GPUs.
  Link DiscoverLink() const {
    const GpuDiscovery found = Discover();
    EXPECT_EQ(found.nvml_reason, "");
    EXPECT_EQ(found.links.size(), 1u);
    return found.links.empty() ? Link() : found.links[0].link;
  }

  DiscoveryOptions options_;

 private:
  ScopedEnvironment environment_;
};

TEST_F(DiscoveryTest, DescribesEachGpuWithoutAContext) {
  const GpuDiscovery found = Discover();
  EXPECT_EQ(found.cuda_reason, "");
  EXPECT_EQ(found.nvml_reason, "");
  ASSERT_EQ(found.devices.size(), 2u);
  Device expected;
  expected.kind = DeviceKind::kGpu;
  expected.ordinal = 1;
  expected.name = "Fake GPU";
  expected.vendor = "NVIDIA";
  expected.uuid = "GPU-00112233-4455-6677-8899-aabbccddee01";
  expected.pci_bus_id = "0000:1b:00.0";
  expected.compute_major = 9;
  expected.core_count = 132;
  expected.memory_bytes = 1000;
  EXPECT_EQ(found.devices[1], expected);
}

TEST_F(DiscoveryTest, ReadsTheNumaNodeFromSysfs) {
  options_.sysfs_root = absl::StrCat(::testing::TempDir(), "/ferry_sysfs");
  std::string path = options_.sysfs_root;
  mkdir(path.c_str(), 0700);
  for (const char* part : {"/bus", "/pci", "/devices", "/0000:1b:00.0"}) {
    path += part;
    mkdir(path.c_str(), 0700);
  }
  std::ofstream(path + "/numa_node") << "3\n";
  const GpuDiscovery found = Discover();
  ASSERT_EQ(found.devices.size(), 2u);
  EXPECT_EQ(found.devices[0].numa_node, -1);
  EXPECT_EQ(found.devices[1].numa_node, 3);
}

TEST_F(DiscoveryTest, TranslatesNvmlsLevels) {
  const std::pair<const char*, LinkType> levels[] = {
      {"0", LinkType::kPix},  {"10", LinkType::kPix},  {"20", LinkType::kPxb},
      {"30", LinkType::kPhb}, {"40", LinkType::kNode}, {"50", LinkType::kSys}};
  for (const auto& [level, type] : levels) {
    Set("FERRY_FAKE_NVML_LEVEL", level);
    EXPECT_EQ(DiscoverLink(), PlainLink(type)) << level;
  }
}

// Two links lead to the peer, one to a GPU that is not ours, one is down.
TEST_F(DiscoveryTest, CountsTheActiveNvlinksToThePeer) {
  Set("FERRY_FAKE_NVML_LINKS", "direct");
  EXPECT_EQ(DiscoverLink(), NvLink(2, false, LinkType::kPhb, 9, 0));
}

TEST_F(DiscoveryTest, CountsNvlinksToSwitches) {
  Set("FERRY_FAKE_NVML_LINKS", "switch");
  EXPECT_EQ(DiscoverLink(), NvLink(4, true, LinkType::kPhb, 9, 0));
}

TEST_F(DiscoveryTest, OldNvmlStillDistinguishesSwitchesFromGpus) {
  Set("FERRY_NVML_LIBRARY", FERRY_FAKE_NVML_OLD);
  Set("FERRY_FAKE_NVML_LINKS", "switch");
  EXPECT_EQ(DiscoverLink(), NvLink(4, true, LinkType::kPhb, 9, 0));
  Set("FERRY_FAKE_NVML_LINKS", "direct");
  EXPECT_EQ(DiscoverLink(), NvLink(2, false, LinkType::kPhb, 9, 0));
}

TEST_F(DiscoveryTest, NamesTheFabric) {
  Set("FERRY_FAKE_NVML_CLUSTER", "10");
  EXPECT_EQ(Discover().devices[0].fabric_uuid, "0a000000-0000-0000-0000-000000000000/7");
  // The first form of the question, which older drivers have alone.
  Set("FERRY_NVML_LIBRARY", FERRY_FAKE_NVML_OLD);
  EXPECT_EQ(Discover().devices[1].fabric_uuid, "0a000000-0000-0000-0000-000000000000/7");
}

TEST_F(DiscoveryTest, FabricThatIsZeroOrNotReadyIsNone) {
  EXPECT_EQ(Discover().devices[0].fabric_uuid, "");
  Set("FERRY_FAKE_NVML_CLUSTER", "10");
  Set("FERRY_FAKE_NVML_FABRIC_STATE", "2");
  EXPECT_EQ(Discover().devices[0].fabric_uuid, "");
}

TEST_F(DiscoveryTest, FindsGpusByBusIdWhereUuidsAreUnknown) {
  Set("FERRY_FAKE_NVML_NO_UUIDS", "1");
  EXPECT_EQ(DiscoverLink(), PlainLink(LinkType::kPhb));
}

TEST_F(DiscoveryTest, PairUnknownToNvmlHasNoLink) {
  Set("FERRY_FAKE_NVML_LEVEL", "-1");
  const GpuDiscovery found = Discover();
  EXPECT_EQ(found.nvml_reason, "");
  EXPECT_TRUE(found.links.empty());
}

TEST_F(DiscoveryTest, ReportsAMissingDriver) {
  Set("FERRY_CUDA_LIBRARY", "/nonexistent/libcuda.so.1");
  const GpuDiscovery found = Discover();
  EXPECT_TRUE(found.devices.empty());
  EXPECT_THAT(found.cuda_reason,
              AllOf(HasSubstr("cannot load /nonexistent/libcuda.so.1 (FERRY_CUDA_LIBRARY)"),
                    HasSubstr("No such file")));
  EXPECT_THAT(found.nvml_reason, HasSubstr("not asked"));
}

TEST_F(DiscoveryTest, NamesTheFunctionThatTheDriverLacks) {
  Set("FERRY_CUDA_LIBRARY", FERRY_FAKE_CUDA_WITHOUT_UUID);
  EXPECT_THAT(Discover().cuda_reason, HasSubstr("has no function cuDeviceGetUuid_v2"));
}

// An old driver lacks functions too; the remedy is a newer one.
TEST_F(DiscoveryTest, ReportsADriverThatIsTooOld) {
  Set("FERRY_FAKE_CUDA_VERSION", "11020");
  EXPECT_THAT(Discover().cuda_reason, HasSubstr("is of CUDA 11.2, at least 11.4 is needed"));
  Set("FERRY_CUDA_LIBRARY", FERRY_FAKE_CUDA_WITHOUT_UUID);
  EXPECT_THAT(Discover().cuda_reason, HasSubstr("is of CUDA 11.2"));
}

TEST_F(DiscoveryTest, ReportsAMachineWithoutGpus) {
  Set("FERRY_FAKE_CUDA_INIT_RESULT", "100");
  EXPECT_EQ(Discover().cuda_reason,
            "cuInit failed with code 100 CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected");
}

TEST_F(DiscoveryTest, ReportsThatAllGpusAreHidden) {
  Set("FERRY_FAKE_CUDA_COUNT", "0");
  EXPECT_EQ(Discover().cuda_reason, "the CUDA driver shows no GPU");
}

TEST_F(DiscoveryTest, NamesTheCallThatFailedAndItsGpu) {
  Set("FERRY_FAKE_CUDA_BAD_ATTRIBUTE", "16");
  EXPECT_EQ(Discover().cuda_reason,
            "gpu:0: cuDeviceGetAttribute 16 failed with code 999 (unknown)");
}

TEST_F(DiscoveryTest, GpuThatAnswersWithAnErrorHidesNoOther) {
  Set("FERRY_FAKE_CUDA_BAD_ATTRIBUTE", "16");
  Set("FERRY_FAKE_CUDA_BAD_DEVICE", "0");
  const GpuDiscovery found = Discover();
  EXPECT_EQ(found.cuda_reason, "");
  EXPECT_EQ(found.nvml_reason, "");
  ASSERT_EQ(found.devices.size(), 1u);
  EXPECT_EQ(DeviceName(found.devices[0]), "gpu:1");
  EXPECT_THAT(
      found.gpu_failures,
      ::testing::ElementsAre("gpu:0: cuDeviceGetAttribute 16 failed with code 999 (unknown)"));
  // The machine is valid without it.
  const LocalDiscovery local = DiscoverLocal(options_);
  ASSERT_EQ(local.topology.devices.size(), 2u);
  EXPECT_EQ(local.topology.LinkBetween(0, 1).type, LinkType::kPhb);
  EXPECT_EQ(local.gpu_failures, found.gpu_failures);
}

TEST_F(DiscoveryTest, WithoutNvmlTheGpusAreFoundAndTheReasonIsReported) {
  Set("FERRY_NVML_LIBRARY", "/nonexistent/libnvidia-ml.so.1");
  const GpuDiscovery found = Discover();
  EXPECT_EQ(found.devices.size(), 2u);
  EXPECT_EQ(found.cuda_reason, "");
  EXPECT_TRUE(found.links.empty());
  EXPECT_THAT(found.nvml_reason, HasSubstr("(FERRY_NVML_LIBRARY)"));
}

// Any library that loads but is another one.
TEST_F(DiscoveryTest, NamesTheFunctionThatNvmlLacks) {
  Set("FERRY_NVML_LIBRARY", FERRY_FAKE_CUDA);
  EXPECT_THAT(Discover().nvml_reason, HasSubstr("has no function nvmlInit_v2"));
}

TEST_F(DiscoveryTest, ReportsThatNvmlDoesNotStart) {
  Set("FERRY_FAKE_NVML_INIT_RESULT", "9");
  EXPECT_EQ(Discover().nvml_reason, "nvmlInit_v2 failed with code 9: Driver Not Loaded");
}

TEST_F(DiscoveryTest, ReportsAnNvmlThatIsTooOld) {
  for (const char* version : {"418.87.00", "unknown"}) {
    Set("FERRY_FAKE_NVML_DRIVER", version);
    EXPECT_THAT(Discover().nvml_reason,
                HasSubstr(absl::StrCat("is of driver ", version, ", at least 450 is needed")));
  }
}

TEST_F(DiscoveryTest, KeepsItsResultsWhenOneQueryFails) {
  Set("FERRY_FAKE_NVML_CLUSTER", "10");
  Set("FERRY_FAKE_NVML_LEVEL", "-2");
  const GpuDiscovery found = Discover();
  EXPECT_THAT(found.nvml_reason,
              HasSubstr("nvmlDeviceGetTopologyCommonAncestor failed with code 999: Other"));
  EXPECT_FALSE(found.devices[1].fabric_uuid.empty());
}

TEST_F(DiscoveryTest, GpusThatNvmlDoesNotFindHaveNoLinks) {
  Set("FERRY_FAKE_NVML_NO_UUIDS", "1");
  Set("FERRY_FAKE_NVML_NO_GPUS", "1");
  const GpuDiscovery found = Discover();
  EXPECT_TRUE(found.links.empty());
  EXPECT_THAT(found.nvml_reason, HasSubstr("nvmlDeviceGetHandleByPciBusId_v2 0000:1a:00.0"));
}

TEST_F(DiscoveryTest, TheWholeMachineIsHostFirstAndValid) {
  const LocalDiscovery local = DiscoverLocal(options_);
  const LocalTopology& topology = local.topology;
  EXPECT_TRUE(Validate(topology).ok());
  ASSERT_EQ(topology.devices.size(), 3u);
  EXPECT_EQ(DeviceName(topology.devices[0]), "host:0");
  EXPECT_EQ(DeviceName(topology.devices[2]), "gpu:1");
  EXPECT_EQ(topology.LinkBetween(0, 2).type, LinkType::kPhb);
  EXPECT_EQ(topology.LinkBetween(1, 2).type, LinkType::kPhb);
}

TEST_F(DiscoveryTest, MachineWithoutADriverIsItsHost) {
  Set("FERRY_CUDA_LIBRARY", "/nonexistent/libcuda.so.1");
  const LocalDiscovery local = DiscoverLocal(options_);
  EXPECT_EQ(local.topology.devices.size(), 1u);
  EXPECT_THAT(local.cuda_reason, HasSubstr("cannot load"));
}

TEST_F(DiscoveryTest, DriverThatListsOneGpuTwiceIsRefused) {
  Set("FERRY_FAKE_CUDA_SAME_UUID", "1");
  const LocalDiscovery local = DiscoverLocal(options_);
  EXPECT_EQ(local.topology.devices.size(), 1u);
  EXPECT_THAT(local.cuda_reason, HasSubstr("appears twice"));
}

}  // namespace
}  // namespace ferry
