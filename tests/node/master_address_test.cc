// SPDX-License-Identifier: Apache-2.0
// MASTER_ADDR and MASTER_PORT: which values of a user's environment are kept, and what is reported
// about the others.
#include "launch/master_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <map>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/unique_fd.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

MasterRequest WishOf(const std::map<std::string, std::string>& environment) {
  return ReadMasterWish([&environment](const char* name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    if (found == environment.end()) return std::nullopt;
    return found->second;
  });
}

// On a machine where every port but 29500 is free, and port 40000 is found.
MasterAddress Choose(const std::map<std::string, std::string>& environment,
                     const std::string& own_host, int machine_count) {
  const absl::StatusOr<MasterAddress> master =
      ChooseMaster(WishOf(environment), own_host, machine_count,
                   {.free_port = [](int port) -> absl::StatusOr<int> {
                      if (port == 29500) return absl::InternalError("it is taken");
                      return port == 0 ? 40000 : port;
                    },
                    .is_own = [](const std::string& host) { return host == "10.0.0.1"; }});
  EXPECT_TRUE(master.ok()) << master.status();
  return master.value_or(MasterAddress());
}

TEST(MasterAddress, EmptyEnvironment_IsThisMachineAndAFreePort) {
  const MasterAddress master = Choose({}, "10.0.0.1", 2);
  EXPECT_EQ(master.host, "10.0.0.1");
  EXPECT_EQ(master.port, 40000);
  EXPECT_THAT(master.notes, IsEmpty());
}

TEST(MasterAddress, CompletePair_IsKeptWithoutANote) {
  for (const char* host : {"10.0.0.1", "[10.0.0.1]"}) {
    for (const int machines : {1, 2}) {
      const MasterAddress master =
          Choose({{"MASTER_ADDR", host}, {"MASTER_PORT", "5000"}}, "10.0.0.9", machines);
      EXPECT_EQ(master.host, "10.0.0.1");
      EXPECT_EQ(master.port, 5000);
      EXPECT_THAT(master.notes, IsEmpty());
    }
  }
}

TEST(MasterAddress, InvalidPort_IsReportedAndTheHostKept) {
  const MasterAddress master =
      Choose({{"MASTER_ADDR", "service"}, {"MASTER_PORT", "tcp://10.96.0.7:443"}}, "10.0.0.1", 2);
  EXPECT_EQ(master.host, "service");
  EXPECT_EQ(master.port, 40000);
  EXPECT_THAT(master.notes,
              ElementsAre(HasSubstr("MASTER_PORT=\"tcp://10.96.0.7:443\" is not a port number "
                                    "(Kubernetes")));
  EXPECT_THAT(master.notes.front(), HasSubstr("; ranks get service:40000"));
  for (const char* port : {"0", "65536", "-1", "x", " 5", "1e3"}) {
    EXPECT_THAT(Choose({{"MASTER_PORT", port}}, "10.0.0.1", 2).notes,
                ElementsAre(HasSubstr("is not a port number")))
        << port;
  }
}

TEST(MasterAddress, PortInUse_IsReportedAndReplaced) {
  const MasterAddress master =
      Choose({{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}}, "10.0.0.1", 2);
  EXPECT_EQ(master.port, 40000);
  EXPECT_THAT(master.notes, ElementsAre(HasSubstr("MASTER_PORT=29500 cannot be listened on")));
}

TEST(MasterAddress, LoopbackOfSeveralMachines_IsReportedAndNotUsed) {
  for (const char* host : {"localhost", "127.0.0.1", "127.0.1.1", "::1"}) {
    const MasterAddress master =
        Choose({{"MASTER_ADDR", host}, {"MASTER_PORT", "5000"}}, "10.0.0.1", 2);
    EXPECT_EQ(master.host, "10.0.0.1") << host;
    EXPECT_EQ(master.port, 5000);
    EXPECT_EQ(master.notes.size(), 1u);
    // All of them are one machine if the coordinator is reached by the loopback.
    EXPECT_THAT(Choose({{"MASTER_ADDR", host}}, "127.0.0.1", 2).notes, IsEmpty());
  }
}

TEST(MasterAddress, AddressOfAnotherMachine_IsNotUsedByAJobOfOneMachine) {
  const MasterAddress alone = Choose({{"MASTER_ADDR", "10.0.0.8"}}, "127.0.0.1", 1);
  EXPECT_EQ(alone.host, "127.0.0.1");
  EXPECT_THAT(alone.notes, ElementsAre(HasSubstr("not an address of this machine")));
  // The first of several machines may be reached through a service with an address of its own.
  EXPECT_EQ(Choose({{"MASTER_ADDR", "10.0.0.8"}}, "10.0.0.1", 2).host, "10.0.0.8");
}

TEST(MasterAddress, GarbledHost_IsReportedAndNotUsed) {
  for (const char* host : {"a b", "http://a", "[a"}) {
    const MasterAddress master = Choose({{"MASTER_ADDR", host}}, "10.0.0.1", 2);
    EXPECT_EQ(master.host, "10.0.0.1");
    EXPECT_THAT(master.notes, ElementsAre(HasSubstr("is not a host name or address")));
  }
}

TEST(MasterAddress, VariablesOfAnOuterJob_AreIgnored) {
  const std::map<std::string, std::string> pair = {{"MASTER_ADDR", "10.0.0.1"},
                                                   {"MASTER_PORT", "5000"}};
  auto torchrun = pair;
  torchrun["TORCHELASTIC_RUN_ID"] = "none";
  auto ferry_run = pair;
  ferry_run["FERRY_RUN"] = "head:1 0 abc";
  ferry_run["FERRY_COORDINATOR"] = "head:1";
  ferry_run["FERRY_NODE_ID"] = "0";
  for (const auto& environment : {torchrun, ferry_run}) {
    const MasterRequest wish = WishOf(environment);
    EXPECT_FALSE(wish.host.has_value() || wish.port.has_value());
    EXPECT_THAT(wish.notes, IsEmpty());
  }
}

TEST(MasterAddress, HostOfAPeer_IsFoundInEverySpelling) {
  EXPECT_EQ(HostOfPeer("ipv4:10.0.0.3:41234"), "10.0.0.3");
  EXPECT_EQ(HostOfPeer("ipv6:%5B::1%5D:5000"), "::1");
  EXPECT_EQ(HostOfPeer("ipv6:%5B::ffff:10.0.0.3%5D:5000"), "10.0.0.3");
  EXPECT_EQ(HostOfPeer("10.0.0.3:1"), "10.0.0.3");
  EXPECT_EQ(HostOfPeer("[2001:db8::7]:1"), "2001:db8::7");
  EXPECT_EQ(HostOfPeer("head:1"), "head");
  EXPECT_EQ(JoinHostPort("2001:db8::7", 1), "[2001:db8::7]:1");
  EXPECT_EQ(JoinHostPort("head", 1), "head:1");
}

TEST(FreePort, PortThatAnotherSocketListensOn_IsRefused) {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(fd.get(), 1), 0);
  ASSERT_EQ(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  EXPECT_FALSE(FreePort(ntohs(address.sin_port)).ok());
  const absl::StatusOr<int> found = FreePort();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*FreePort(*found), *found);
}

TEST(IsOwnAddress, NumericAddressesOfThisMachine_AreRecognised) {
  EXPECT_TRUE(IsOwnAddress("127.0.0.1"));
  // An address for documentation (RFC 5737), which no machine has.
  EXPECT_FALSE(IsOwnAddress("192.0.2.1"));
}

}  // namespace
}  // namespace ferry
