// SPDX-License-Identifier: Apache-2.0
// Ferry's own discovery with the fake driver: the two declare the binary interface separately, so
// an error in either is detected here.
#include "gpu/discovery.h"

#include "tests/support/strict_cuda/fake_driver_test.h"

namespace strict_cuda {
namespace {

class DiscoveryTest : public FakeDriverTest {
 protected:
  DiscoveryTest() {
    setenv("FERRY_CUDA_LIBRARY", STRICT_CUDA_LIBRARY, 1);
    setenv("FERRY_NVML_LIBRARY", STRICT_CUDA_LIBRARY, 1);
  }
};

TEST_F(DiscoveryTest, FindsTheDevicesAndTheirLinks) {
  setenv("STRICT_CUDA_DEVICES", "3", 1);
  setenv("STRICT_CUDA_NVLINK", "0-1:4", 1);
  ExpectSuccess(RunAlone([] {
    const ferry::GpuDiscovery found = ferry::DiscoverGpus();
    REQUIRE(found.cuda_reason.empty());
    REQUIRE(found.nvml_reason.empty());
    REQUIRE(found.devices.size() == 3);
    REQUIRE(found.devices[1].uuid == "GPU-53545249-4354-5f43-5544-415f47505501");
    REQUIRE(found.devices[2].pci_bus_id == "0000:1d:00.0");
    REQUIRE(found.devices[0].compute_major == 9);
    REQUIRE(found.links.size() == 3);
    REQUIRE(found.links[0].link.type == ferry::LinkType::kNvl);
    REQUIRE(found.links[0].link.nvlink_count == 4);
    REQUIRE(found.links[1].link.type == ferry::LinkType::kPhb ||
            found.links[1].link.type == ferry::LinkType::kNode);
  }));
  unsetenv("STRICT_CUDA_NVLINK");
}

TEST_F(DiscoveryTest, ReportsWhyThereIsNoDevice) {
  setenv("STRICT_CUDA_DEVICES", "0", 1);
  ExpectSuccess(RunAlone([] {
    const ferry::GpuDiscovery found = ferry::DiscoverGpus();
    REQUIRE(found.devices.empty());
    REQUIRE(found.cuda_reason.find("CUDA_ERROR_NO_DEVICE") != std::string::npos);
  }));
}

// As with CUDA: a list that is set and empty shows none.
TEST_F(DiscoveryTest, EmptyListOfVisibleDevicesShowsNone) {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  ExpectSuccess(RunAlone([] {
    const ferry::GpuDiscovery found = ferry::DiscoverGpus();
    REQUIRE(found.devices.empty());
    REQUIRE(found.cuda_reason.find("CUDA_ERROR_NO_DEVICE") != std::string::npos);
    REQUIRE(found.cuda_reason.find("CUDA_VISIBLE_DEVICES is set and empty") != std::string::npos);
  }));
}

}  // namespace
}  // namespace strict_cuda
