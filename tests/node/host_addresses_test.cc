// SPDX-License-Identifier: Apache-2.0
// The order in which a host's addresses are offered to others.
#include "node/host_addresses.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

InterfaceAddress At(std::string name, std::string address) {
  InterfaceAddress made = {std::move(name), std::move(address), /*is_running=*/true};
  made.is_ipv6 = absl::StrContains(made.address, ":");
  made.is_loopback = made.address == "::1" || absl::StartsWith(made.address, "127.");
  made.is_link_local =
      absl::StartsWith(made.address, "fe80:") || absl::StartsWith(made.address, "169.254.");
  return made;
}

InterfaceAddress WithoutCarrier(std::string name, std::string address) {
  InterfaceAddress made = At(std::move(name), std::move(address));
  made.is_running = false;
  return made;
}

InterfaceAddress Down(std::string name, std::string address) {
  InterfaceAddress made = WithoutCarrier(std::move(name), std::move(address));
  made.is_up = false;
  return made;
}

std::vector<std::string> Order(const std::vector<InterfaceAddress>& all,
                               const std::string& local_end = "") {
  std::vector<std::string> addresses;
  for (const OfferedAddress& each : OrderAddresses(all, local_end)) {
    addresses.push_back(each.address);
  }
  return addresses;
}

// As the kernel lists them on a machine on which containers ran before its network was up.
std::vector<InterfaceAddress> Machine() {
  return {At("lo", "127.0.0.1"),
          At("docker0", "172.17.0.1"),
          At("eth0", "10.0.0.7"),
          At("ib0", "192.168.100.7"),
          At("lo", "::1"),
          At("docker0", "fd01::1"),
          At("docker0", "fe80::42:1"),
          At("eth0", "fd00::7"),
          At("eth0", "fe80::7")};
}

TEST(OrderAddresses, OlderBridge_ComesAfterNetworksOfBothFamilies) {
  EXPECT_THAT(Order(Machine()), ElementsAre("10.0.0.7", "192.168.100.7", "fd00::7", "172.17.0.1",
                                            "fd01::1", "127.0.0.1", "::1"));
}

TEST(OrderAddresses, LocalEndOfTheCoordinatorsConnection_IsFirst) {
  EXPECT_THAT(Order(Machine(), "192.168.100.7"),
              ElementsAre("192.168.100.7", "10.0.0.7", "fd00::7", "172.17.0.1", "fd01::1",
                          "127.0.0.1", "::1"));
  // In a job of containers and processes of their host.
  EXPECT_THAT(Order(Machine(), "172.17.0.1"),
              ElementsAre("172.17.0.1", "fd01::1", "10.0.0.7", "192.168.100.7", "fd00::7",
                          "127.0.0.1", "::1"));
}

TEST(OrderAddresses, OtherAddressesOfThatInterface_ComeNext) {
  std::vector<InterfaceAddress> all = Machine();
  all.push_back(At("ib0", "fd02::7"));
  EXPECT_THAT(Order(all, "192.168.100.7"),
              ElementsAre("192.168.100.7", "fd02::7", "10.0.0.7", "fd00::7", "172.17.0.1",
                          "fd01::1", "127.0.0.1", "::1"));
}

TEST(OrderAddresses, CoordinatorReachedByIpv6_PutsIpv6First) {
  EXPECT_THAT(Order(Machine(), "fd00::7"),
              ElementsAre("fd00::7", "10.0.0.7", "192.168.100.7", "fd01::1", "172.17.0.1", "::1",
                          "127.0.0.1"));
}

TEST(OrderAddresses, LoopbackConnection_ChangesNothing) {
  for (const char* local_end : {"127.0.0.1", "127.0.1.1", "::1"}) {
    EXPECT_EQ(Order(Machine(), local_end), Order(Machine())) << local_end;
  }
}

TEST(OrderAddresses, HostWithOnlyIpv6_OffersThatBeforeAnyBridgesIpv4) {
  EXPECT_THAT(Order({At("lo", "127.0.0.1"), At("docker0", "172.17.0.1"), At("lo", "::1"),
                     At("eth0", "2001:db8::7")}),
              ElementsAre("2001:db8::7", "172.17.0.1", "127.0.0.1", "::1"));
}

TEST(OrderAddresses, InterfacesThatNcclSkips_AreNotFirst) {
  for (const char* name : {"docker0", "docker_gwbridge", "virbr0", "br-0123456789ab", "veth12ab",
                           "cni0", "podman0", "lxcbr0", "cali123", "flannel.1"}) {
    EXPECT_TRUE(IsMachineInternal(name)) << name;
    EXPECT_THAT(Order({At(name, "172.17.0.1"), At("enp1s0", "10.0.0.7")}),
                ElementsAre("10.0.0.7", "172.17.0.1"))
        << name;
  }
  for (const char* name : {"eth0", "enp1s0", "ib0", "bond0", "br0", "lowlatency0", "wlan0"}) {
    EXPECT_FALSE(IsMachineInternal(name)) << name;
  }
}

TEST(OrderAddresses, LinksWithoutCarrierAndLinkLocalIpv4_ComeAfterBridges) {
  EXPECT_THAT(Order({WithoutCarrier("eth1", "10.9.0.1"), At("usb0", "169.254.3.1"),
                     At("virbr0", "192.168.122.1"), At("eth0", "10.0.0.7"), At("lo", "127.0.0.1")}),
              ElementsAre("10.0.0.7", "192.168.122.1", "10.9.0.1", "169.254.3.1", "127.0.0.1"));
  // A cable between two machines.
  EXPECT_THAT(Order({At("eth0", "10.0.0.7"), At("eth1", "169.254.3.1")}, "169.254.3.1"),
              ElementsAre("169.254.3.1", "10.0.0.7"));
}

TEST(OrderAddresses, InterfaceThatIsDown_IsOmitted) {
  EXPECT_THAT(Order({Down("eth1", "10.9.0.1"), At("eth0", "10.0.0.7"), Down("ib0", "fd00::1")}),
              ElementsAre("10.0.0.7"));
  EXPECT_THAT(Order({Down("eth1", "10.9.0.1")}), IsEmpty());
}

TEST(OrderAddresses, LinkLocalIpv6_IsOfferedOnlyOnTheLinkOfTheCoordinator) {
  const std::vector<InterfaceAddress> all = {At("eth0", "fe80::1"), At("eth1", "fe80::1"),
                                             At("docker0", "172.17.0.1"), At("eth1", "10.1.0.7")};
  EXPECT_THAT(Order(all), ElementsAre("10.1.0.7", "172.17.0.1"));
  EXPECT_THAT(Order(all, "fe80::1%eth1"), ElementsAre("10.1.0.7", "fe80::1%eth1", "172.17.0.1"));
  EXPECT_THAT(Order(all, "fe80::1%eth0"), ElementsAre("10.1.0.7", "fe80::1%eth0", "172.17.0.1"));
}

TEST(OrderAddresses, LocalEndThatIsNotTheHosts_ChangesNothing) {
  EXPECT_EQ(Order(Machine(), "203.0.113.9"), Order(Machine()));
}

TEST(OrderAddresses, AmongEquals_TheKernelsOrderStays) {
  EXPECT_THAT(Order({At("eth1", "10.1.0.7"), At("eth0", "10.0.0.7"), At("eth0", "10.0.0.8")}),
              ElementsAre("10.1.0.7", "10.0.0.7", "10.0.0.8"));
}

std::vector<std::string> Likely(const std::vector<InterfaceAddress>& all,
                                const std::string& local_end = "") {
  return WithPort(LikelyReachable(OrderAddresses(all, local_end)), 5);
}

// gRPC does not verify the peer: 172.17.0.1 leads every host to itself.
TEST(LikelyReachable, BridgesAreOmittedWhereThereIsANetwork) {
  EXPECT_THAT(Likely(Machine()), ElementsAre("10.0.0.7:5", "192.168.100.7:5", "[fd00::7]:5"));
  EXPECT_THAT(Likely(Machine(), "fd00::7"),
              ElementsAre("[fd00::7]:5", "10.0.0.7:5", "192.168.100.7:5"));
}

TEST(LikelyReachable, WithoutANetwork_TheBestOfTheRestIsUsed) {
  EXPECT_THAT(Likely({At("lo", "127.0.0.1"), At("docker0", "172.17.0.1"),
                      At("virbr0", "192.168.122.1"), At("eth0", "169.254.3.1")}),
              ElementsAre("172.17.0.1:5", "192.168.122.1:5"));
  EXPECT_THAT(Likely({At("lo", "127.0.0.1"), At("lo", "::1")}),
              ElementsAre("127.0.0.1:5", "[::1]:5"));
}

TEST(LikelyReachable, AddressWithAScope_IsOmitted) {
  EXPECT_THAT(Likely({At("eth0", "fe80::1"), At("lo", "127.0.0.1")}, "fe80::1%eth0"),
              ElementsAre("127.0.0.1:5"));
}

TEST(FindLocalEnd, AddressSeenByTheCoordinator_IsUsedIfItIsThisHosts) {
  // An address without a route from this machine, so that nothing else can be the answer.
  const std::string nowhere = "host.invalid.:1";
  EXPECT_EQ(FindLocalEnd(Machine(), "ipv4:10.0.0.7:41234", nowhere), "10.0.0.7");
  EXPECT_EQ(FindLocalEnd(Machine(), "ipv6:%5Bfd00::7%5D:41234", nowhere), "fd00::7");
}

TEST(FindLocalEnd, BehindNat_TheKernelIsAsked) {
  // As with a proxy on this machine, and the coordinator is reached by the loopback.
  EXPECT_EQ(FindLocalEnd(Machine(), "ipv4:203.0.113.9:41234", "127.0.0.1:1"), "");
  EXPECT_EQ(FindLocalEnd(Machine(), "ipv4:127.0.0.1:41234", "127.0.0.1:1"), "");
  EXPECT_EQ(FindLocalEnd(Machine(), "unknown", "127.0.0.1:1"), "");
}

// The only interface that every host has.
TEST(ReadInterfaces, Loopback_IsDescribed) {
  const absl::StatusOr<std::vector<InterfaceAddress>> all = ReadInterfaces();
  ASSERT_TRUE(all.ok()) << all.status();
  size_t count = 0;
  for (const InterfaceAddress& each : *all) {
    EXPECT_FALSE(each.name.empty()) << each.address;
    EXPECT_EQ(each.is_ipv6, absl::StrContains(each.address, ":")) << each.address;
    EXPECT_EQ(each.is_loopback, each.address == "::1" || absl::StartsWith(each.address, "127."))
        << each.address;
    EXPECT_EQ(each.is_link_local,
              absl::StartsWith(each.address, "fe80:") || absl::StartsWith(each.address, "169.254."))
        << each.address;
    if (each.address != "127.0.0.1") continue;
    ++count;
    EXPECT_TRUE(each.is_up);
    EXPECT_TRUE(each.is_running);
  }
  EXPECT_EQ(count, 1u);
}

}  // namespace
}  // namespace ferry
