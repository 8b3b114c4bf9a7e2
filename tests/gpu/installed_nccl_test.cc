// SPDX-License-Identifier: Apache-2.0
// The machine's own libnccl.so.2, or the one of FERRY_NCCL_LIBRARY, as far as it works without a
// GPU. Skipped where there is none.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu/cuda/cuda_api.h"
#include "gpu/nccl/nccl_api.h"

namespace ferry::nccl {
namespace {

using ::testing::HasSubstr;

class InstalledNccl : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<NcclApi>> api = NcclApi::Load();
    // A library that was named is to be tested.
    const bool is_named = std::getenv("FERRY_NCCL_LIBRARY") != nullptr;
    if (!api.ok() && !is_named) GTEST_SKIP() << api.status().message();
    ASSERT_TRUE(api.ok()) << api.status();
    api_ = *std::move(api);
    std::cout << "seen: NCCL " << VersionText(api_->version()) << ", " << api_->path() << "\n";
  }

  // An id, whose NCCL thread listens until the process exits.
  UniqueId MakeId() {
    UniqueId id = {};
    const absl::Status made = api_->Check(api_->table().get_unique_id(&id), "ncclGetUniqueId");
    EXPECT_TRUE(made.ok()) << made;
    return id;
  }

  std::unique_ptr<NcclApi> api_;
};

// Returns errno of binding a socket to the address in `id`, which comes after 8 private bytes; 0:
// the address was free.
int BindTo(const UniqueId& id) {
  sockaddr_storage address = {};
  std::memcpy(&address, id.bytes + 8, sizeof(sockaddr_in6));
  const socklen_t bytes =
      address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  const int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  const int result = bind(fd, reinterpret_cast<const sockaddr*>(&address), bytes) == 0 ? 0 : errno;
  close(fd);
  return result;
}

TEST_F(InstalledNccl, EachOptionalFunctionIsThereFromItsVersionOn) {
  const NcclTable& table = api_->table();
  const int version = api_->version();
  EXPECT_GE(version, kMinVersion);
  EXPECT_EQ(table.init_rank_scalable != nullptr, version >= 22304);
  EXPECT_EQ(table.shrink != nullptr, version >= 22703);
  EXPECT_EQ(table.register_window != nullptr, version >= 22703);
  EXPECT_EQ(table.deregister_window != nullptr, version >= 22703);
  EXPECT_EQ(table.revoke != nullptr, version >= 22807);
  EXPECT_EQ(table.put_signal != nullptr, version >= 22902);
  EXPECT_EQ(table.signal != nullptr, version >= 22902);
  EXPECT_EQ(table.wait_signal != nullptr, version >= 22902);
  EXPECT_EQ(HasPut(*api_), version >= kPutVersion);
  EXPECT_EQ(table.get_grow_id != nullptr, version >= 22902);
  EXPECT_EQ(table.grow != nullptr, version >= 22902);
}

TEST_F(InstalledNccl, IdHasTheAddressWhereNcclListens) {
  const UniqueId id = MakeId();
  // EAFNOSUPPORT: there is no address at that place; EADDRNOTAVAIL: it is not of this machine.
  EXPECT_EQ(BindTo(id), EADDRINUSE) << std::strerror(BindTo(id));
  const UniqueId other = MakeId();
  EXPECT_NE(std::string(id.bytes, sizeof(id.bytes)), std::string(other.bytes, sizeof(other.bytes)));
}

// The caller aborts what was created, and nothing else.
TEST_F(InstalledNccl, FailedInitializationLeavesTheCommunicatorNull) {
  if (cuda::CudaApi::Load().ok()) GTEST_SKIP() << "this machine has a CUDA driver";
  for (const int blocking : {0, 1}) {
    SCOPED_TRACE(blocking);
    Config config;
    config.blocking = blocking;
    Communicator communicator = nullptr;
    const Result result = api_->table().init_rank_config(&communicator, /*rank_count=*/1, MakeId(),
                                                         /*rank=*/0, &config);
    EXPECT_EQ(communicator, nullptr);
    const absl::Status status = api_->Check(result, "ncclCommInitRankConfig");
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_THAT(status.message(), HasSubstr("ncclCommInitRankConfig failed with code 1"));
    EXPECT_THAT(status.message(), HasSubstr("driver"));
  }
}

// Its own texts show that the numbers mean the same.
TEST_F(InstalledNccl, ResultsHaveTheLibrarysText) {
  const absl::Status remote = api_->Check(kRemoteError, "ncclSend");
  EXPECT_EQ(remote.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(remote.message(), HasSubstr("remote process exited"));
  EXPECT_TRUE(api_->Check(kInProgress, "ncclSend").ok());
  const absl::Status timeout = api_->Check(kTimeout, "ncclSend");
  EXPECT_EQ(timeout.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(timeout.message(), HasSubstr(api_->version() >= 23003 ? "time" : "unknown"));
}

}  // namespace
}  // namespace ferry::nccl
