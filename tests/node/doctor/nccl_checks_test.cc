// SPDX-License-Identifier: Apache-2.0
// NCCL libraries of all ages, and ids that listen here and there.
#include "doctor/nccl_checks.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gpu/scoped_environment.h"
#include "tests/node/doctor/finding_matcher.h"
#include "tests/node/doctor/made_up_host.h"

namespace ferry::doctor {
namespace {

using std::string_literals::operator""s;

NcclFacts SoundNccl() {
  NcclFacts facts;
  facts.path = "/usr/lib/libnccl.so.2";
  facts.version = 22809;
  facts.built_with_cuda = 13000;
  return facts;
}

TEST(CudaOfNccl, FindsTheVersionStringInTheLibrary) {
  EXPECT_EQ(CudaOfNccl("\0x\0NCCL version 2.28.9+cuda13.0\0more"s), 13000);
  EXPECT_EQ(CudaOfNccl("NCCL version 2.18.3+cuda12.1"), 12010);
  EXPECT_EQ(CudaOfNccl("NCCL version %d.%d\0NCCL version 2.21.5+cuda11.8"s), 11080);
  EXPECT_EQ(CudaOfNccl("NCCL version 2.28.9\0+cuda13.0"s), 0);
  EXPECT_EQ(CudaOfNccl("NCCL version 2.28.9+cuda13"), 0);
  EXPECT_EQ(CudaOfNccl("NCCL version +cuda.1"), 0);
  EXPECT_EQ(CudaOfNccl(""), 0);
}

nccl::UniqueId IdAt(const void* address, size_t bytes) {
  nccl::UniqueId id = {};
  std::memcpy(id.bytes + 8, address, bytes);
  return id;
}

TEST(AddressOfId, ReadsBothFamilies) {
  sockaddr_in v4 = {};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(41235);
  inet_pton(AF_INET, "10.0.0.7", &v4.sin_addr);
  EXPECT_EQ(*AddressOfId(IdAt(&v4, sizeof(v4))), std::pair("10.0.0.7:41235"s, false));
  inet_pton(AF_INET, "127.0.0.1", &v4.sin_addr);
  EXPECT_EQ(*AddressOfId(IdAt(&v4, sizeof(v4))), std::pair("127.0.0.1:41235"s, true));
  sockaddr_in6 v6 = {};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(7);
  inet_pton(AF_INET6, "fd00::2", &v6.sin6_addr);
  EXPECT_EQ(*AddressOfId(IdAt(&v6, sizeof(v6))), std::pair("[fd00::2]:7"s, false));
  EXPECT_FALSE(AddressOfId(nccl::UniqueId()).ok());
}

TEST(JudgeNccl, ReportsWhichLibraryAndWhy) {
  EXPECT_THAT(JudgeNccl(SoundNccl(), 8, 13000),
              IsOk("2.28.9 for CUDA 13.0, /usr/lib/libnccl.so.2, the first that fits"));
  NcclFacts facts = SoundNccl();
  facts.is_named = true;
  EXPECT_THAT(JudgeNccl(facts, 8, 13000), IsOk("libnccl.so.2 (FERRY_NCCL_LIBRARY)"));
  facts.version = 23001;
  EXPECT_THAT(JudgeNccl(facts, 8, 13000), IsOk("newer than 2.28.9"));
}

TEST(JudgeNccl, LibraryForANewerCudaThanTheDriversIsWrong) {
  EXPECT_THAT(JudgeNccl(SoundNccl(), 8, 12040),
              IsWrong("the driver runs CUDA 12.4 at most", "install driver 580 or newer"));
  EXPECT_THAT(JudgeNccl(SoundNccl(), 8, 12040), IsWrong("", "nvidia-nccl-cu12"));
  NcclFacts facts = SoundNccl();
  facts.built_with_cuda = 12090;
  // A minor version may be newer.
  EXPECT_THAT(JudgeNccl(facts, 8, 12040), IsOk("2.28.9 for CUDA 12.9"));
  EXPECT_THAT(JudgeNccl(facts, 8, 13000), IsOk("2.28.9 for CUDA 12.9"));
  facts.built_with_cuda = 0;
  EXPECT_THAT(JudgeNccl(facts, 8, 11080), IsOk("2.28.9, /usr"));
}

TEST(JudgeNccl, AbsentLibraryIsWrongWhereAGpuNeedsIt) {
  NcclFacts facts;
  facts.loaded = absl::UnavailableError(
      "no NCCL: /usr/lib/libnccl.so.2 is NCCL 2.10.3, at least "
      "2.19.1 is needed");
  EXPECT_THAT(JudgeNccl(facts, 1, 13000), IsWrong("2.10.3", "nvidia-nccl-cu13"));
  EXPECT_THAT(JudgeNccl(facts, 1, 12080), IsWrong("2.10.3", "nvidia-nccl-cu12"));
  EXPECT_THAT(JudgeNccl(facts, 0, 0), WasSkipped("no GPU needs it; no NCCL"));
  facts.is_named = true;
  EXPECT_THAT(JudgeNccl(facts, 0, 0), IsWrong("2.10.3", "FERRY_NCCL_LIBRARY"));
}

TEST(JudgeNccl, MissingFunctionsOfAnOlderLibraryAreNamed) {
  NcclFacts facts = SoundNccl();
  facts.version = 22005;
  facts.lacking = {"shrinking (2.27)", "revoking (2.28.7)"};
  EXPECT_THAT(JudgeNccl(facts, 1, 13000),
              IsWarning("lacks shrinking (2.27), revoking (2.28.7)", "2.28.9 or newer"));
}

TEST(JudgeNcclId, ReportsTheAddressWhereRanksWouldConnect) {
  NcclIdFacts facts = {absl::OkStatus(), absl::Milliseconds(1), "10.0.0.7:4000"};
  EXPECT_THAT(JudgeNcclId(facts), IsOk("made in 1ms; ranks would meet at 10.0.0.7:4000"));
  facts.is_loopback = true;
  EXPECT_THAT(JudgeNcclId(facts), IsWarning("no other machine", "NCCL_SOCKET_IFNAME"));
  facts.comm_id = "10.0.0.7:4000";
  EXPECT_THAT(JudgeNcclId(facts), IsWarning("every id is that one", "unset"));
  facts.comm_id = std::nullopt;
  facts.blocking = "1";
  EXPECT_THAT(JudgeNcclId(facts), IsWrong("would block", "unset"));
  facts.made = absl::InternalError("ncclGetUniqueId failed with code 3: no socket interface found");
  EXPECT_THAT(JudgeNcclId(facts), IsWrong("no socket interface", "NCCL_DEBUG"));
}

TEST(ReadNcclFacts, LoadsTheNamedLibraryAndMakesAnId) {
  ScopedEnvironment environment;
  environment.Set("FERRY_NCCL_LIBRARY", STRICT_CUDA_LIBRARY);
  MadeUpHost host;
  host.environment["FERRY_NCCL_LIBRARY"] = STRICT_CUDA_LIBRARY;
  std::unique_ptr<nccl::NcclApi> api;
  const NcclFacts facts = ReadNcclFacts(host, api);
  ASSERT_NE(api, nullptr) << facts.loaded;
  EXPECT_TRUE(facts.is_named);
  EXPECT_EQ(facts.version, 22809);
  EXPECT_EQ(facts.path, STRICT_CUDA_LIBRARY);
  EXPECT_EQ(facts.built_with_cuda, 0);
  const NcclIdFacts id = TryNcclId(host, *api);
  EXPECT_TRUE(id.made.ok()) << id.made;
  EXPECT_EQ(id.address, "");
}

}  // namespace
}  // namespace ferry::doctor
