// SPDX-License-Identifier: Apache-2.0
// NCCL's choice of interfaces, by its own rules, and RDMA devices.
#include "doctor/network_checks.h"

#include <sys/socket.h>

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "doctor/nccl_interfaces.h"
#include "tests/node/doctor/finding_matcher.h"
#include "tests/node/doctor/made_up_host.h"

namespace ferry::doctor {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Taken(const std::vector<InterfaceAddress>& all,
                               const std::string& ifname = "", const std::string& family = "") {
  std::vector<std::string> names;
  for (const InterfaceAddress& each : NcclInterfaces(all, {ifname, family})) {
    names.push_back(each.name + " " + each.address);
  }
  return names;
}

const std::vector<InterfaceAddress>& Machine() {
  static const auto& all = *new std::vector<InterfaceAddress>{
      MadeUpHost::At("lo", "127.0.0.1"),    MadeUpHost::At("docker0", "172.17.0.1"),
      MadeUpHost::At("virbr0", "10.9.0.1"), MadeUpHost::At("eth0", "10.0.0.7"),
      MadeUpHost::At("eth0", "fd00::7"),    MadeUpHost::At("eth10", "10.1.0.7"),
      MadeUpHost::At("ens5f0", "fe80::5"),  MadeUpHost::At("lo", "::1")};
  return all;
}

TEST(NcclInterfaces, SelectsInterfacesOtherThanLoDockerAndVirbr) {
  EXPECT_THAT(Taken(Machine()), ElementsAre("eth0 10.0.0.7", "eth10 10.1.0.7", "ens5f0 fe80::5"));
}

TEST(NcclInterfaces, SelectsInfinibandAloneIfPresent) {
  std::vector<InterfaceAddress> all = Machine();
  all.push_back(MadeUpHost::At("ib0", "192.168.0.7"));
  EXPECT_THAT(Taken(all), ElementsAre("ib0 192.168.0.7"));
}

TEST(NcclInterfaces, FallsBackToDockerThenLoThenVirbr) {
  std::vector<InterfaceAddress> all = {MadeUpHost::At("virbr0", "10.9.0.1")};
  EXPECT_THAT(Taken(all), ElementsAre("virbr0 10.9.0.1"));
  all.push_back(MadeUpHost::At("lo", "127.0.0.1"));
  EXPECT_THAT(Taken(all), ElementsAre("lo 127.0.0.1"));
  all.push_back(MadeUpHost::At("docker0", "172.17.0.1"));
  EXPECT_THAT(Taken(all), ElementsAre("docker0 172.17.0.1"));
  EXPECT_THAT(Taken({}), IsEmpty());
}

TEST(NcclInterfaces, NameIsAPrefixUnlessItIsExact) {
  EXPECT_THAT(Taken(Machine(), "eth"), ElementsAre("eth0 10.0.0.7", "eth10 10.1.0.7"));
  EXPECT_THAT(Taken(Machine(), "eth1"), ElementsAre("eth10 10.1.0.7"));
  EXPECT_THAT(Taken(Machine(), "=eth1"), IsEmpty());
  EXPECT_THAT(Taken(Machine(), "=eth0,docker0"),
              ElementsAre("docker0 172.17.0.1", "eth0 10.0.0.7"));
  EXPECT_THAT(Taken(Machine(), "eth0:1,lo"), ElementsAre("lo 127.0.0.1", "eth0 10.0.0.7"));
}

TEST(NcclInterfaces, ExclusionSelectsEverythingElse) {
  EXPECT_THAT(Taken(Machine(), "^eth,docker,virbr"), ElementsAre("lo 127.0.0.1", "ens5f0 fe80::5"));
  EXPECT_THAT(Taken(Machine(), "^=eth1,lo,docker0,virbr0,ens5f0"),
              ElementsAre("eth0 10.0.0.7", "eth10 10.1.0.7"));
}

TEST(NcclInterfaces, FamilyCanBeRequested) {
  EXPECT_THAT(Taken(Machine(), "", "AF_INET6"), ElementsAre("eth0 fd00::7", "ens5f0 fe80::5"));
  EXPECT_THAT(Taken(Machine(), "", "AF_INET"), ElementsAre("eth0 10.0.0.7", "eth10 10.1.0.7"));
  EXPECT_THAT(Taken(Machine(), "lo", "AF_INET6"), IsEmpty());
}

TEST(NcclInterfaces, InterfacesThatAreDownAreNotSelected) {
  std::vector<InterfaceAddress> all = Machine();
  for (InterfaceAddress& each : all) each.is_running = each.name != "eth0";
  EXPECT_THAT(Taken(all), ElementsAre("eth10 10.1.0.7", "ens5f0 fe80::5"));
}

TEST(CheckInterfaces, ReportsNcclsChoiceAndWhy) {
  MadeUpHost host;
  EXPECT_THAT(CheckInterfaces(host), IsOk("NCCL takes eth0 10.0.0.7"));
  host.environment["NCCL_SOCKET_IFNAME"] = "^lo";
  EXPECT_THAT(CheckInterfaces(host), IsOk("eth0 10.0.0.7 (NCCL_SOCKET_IFNAME=\"^lo\")"));
}

TEST(CheckInterfaces, UnknownInterfaceNameIsWrong) {
  MadeUpHost host;
  host.environment["NCCL_SOCKET_IFNAME"] = "ib0";
  EXPECT_THAT(CheckInterfaces(host), IsWrong("\"ib0\"); running: lo, eth0", "name one"));
}

TEST(CheckInterfaces, LoAndLocalBridgesAreReported) {
  MadeUpHost host;
  host.interfaces = {MadeUpHost::At("lo", "127.0.0.1")};
  EXPECT_THAT(CheckInterfaces(host),
              IsWarning("lo 127.0.0.1, which no other", "NCCL_SOCKET_IFNAME"));
  host.interfaces.push_back(MadeUpHost::At("docker0", "172.17.0.1"));
  EXPECT_THAT(CheckInterfaces(host),
              IsWarning("docker0 172.17.0.1: ranks meet on a bridge", "set"));
  host.interfaces = {MadeUpHost::At("eth0", "fe80::1")};
  EXPECT_THAT(CheckInterfaces(host), IsWarning("one link only", "give the interface an address"));
  host.interfaces.clear();
  EXPECT_THAT(CheckInterfaces(host), IsWrong("find none; running: none", "lo at least"));
}

TEST(CheckFamilies, ReportsTheKernelsFamilies) {
  MadeUpHost host;
  EXPECT_THAT(CheckFamilies(host), IsOk("IPv4 and IPv6"));
  host.files["/proc/sys/net/ipv6/bindv6only"] = "1";
  EXPECT_THAT(CheckFamilies(host), IsOk("bindv6only is 1"));
  host.files["/proc/sys/net/ipv6/conf/all/disable_ipv6"] = "1";
  EXPECT_THAT(CheckFamilies(host), IsOk("disable_ipv6 is 1"));
  host.families = {AF_INET};
  EXPECT_THAT(CheckFamilies(host), IsOk("listens on 0.0.0.0"));
  host.families = {AF_INET6};
  EXPECT_THAT(CheckFamilies(host), IsOk("the kernel has no IPv4"));
  host.families = {};
  EXPECT_THAT(CheckFamilies(host), IsWrong("neither", "seccomp"));
}

TEST(CheckAddresses, ListsTheAddressesInTheOrderOfAttempts) {
  MadeUpHost host;
  host.interfaces = {MadeUpHost::At("lo", "127.0.0.1"), MadeUpHost::At("docker0", "172.17.0.1"),
                     MadeUpHost::At("eth0", "10.0.0.7"), MadeUpHost::At("eth0", "fd00::7")};
  EXPECT_THAT(CheckAddresses(host),
              IsOk("in this order: 10.0.0.7 (eth0), fd00::7 (eth0), 172.17.0.1 (docker0), "
                   "127.0.0.1 (lo)"));
}

TEST(CheckAddresses, UnreachableAddressesAreReported) {
  MadeUpHost host;
  host.interfaces = {MadeUpHost::At("lo", "127.0.0.1")};
  EXPECT_THAT(CheckAddresses(host), IsWarning("no other machine reaches", "give an interface"));
  host.interfaces.push_back(MadeUpHost::At("docker0", "172.17.0.1"));
  EXPECT_THAT(CheckAddresses(host),
              IsWarning("none appears to be reachable by others", "--advertise"));
  host.interfaces.clear();
  EXPECT_THAT(CheckAddresses(host), IsWrong("no interface", "lo at least"));
}

TEST(CheckRdma, ReportsDevicesRatesAndUse) {
  MadeUpHost host;
  EXPECT_THAT(CheckRdma(host), IsOk("no devices"));
  host.files["/sys/class/infiniband/mlx5_0/ports/1/state"] = "1: DOWN";
  host.files["/sys/class/infiniband/mlx5_1/ports/1/state"] = "1: DOWN";
  EXPECT_THAT(CheckRdma(host), IsWarning("no port of mlx5_0, mlx5_1 is active", "ibstat"));
  host.files["/sys/class/infiniband/mlx5_1/ports/1/state"] = "4: ACTIVE";
  host.files["/sys/class/infiniband/mlx5_1/ports/1/rate"] = "400 Gb/sec (4X NDR)";
  EXPECT_THAT(CheckRdma(host), IsWrong("mlx5_1 400 Gb/sec (4X NDR), but", "/dev/infiniband"));
  host.files["/dev/infiniband/uverbs0"] = "";
  host.access["/dev/infiniband/uverbs0"] = absl::PermissionDeniedError("Permission denied");
  EXPECT_THAT(CheckRdma(host), IsWrong("may open no", "--device"));
  host.files["/dev/infiniband/uverbs1"] = "";
  EXPECT_THAT(CheckRdma(host), IsOk("mlx5_1 400 Gb/sec (4X NDR)"));
  host.files["/sys/module/nvidia_peermem/version"] = "580";
  EXPECT_THAT(CheckRdma(host), IsOk("nvidia_peermem is loaded"));
  host.environment["NCCL_IB_DISABLE"] = "1";
  EXPECT_THAT(CheckRdma(host), IsOk("not used: NCCL_IB_DISABLE=1"));
}

}  // namespace
}  // namespace ferry::doctor
