// SPDX-License-Identifier: Apache-2.0
// Descriptors over Unix sockets, also to a process that has no room for them.
#include "transport/control/descriptors.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <deque>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry {
namespace {

using ::testing::HasSubstr;

// Lets the process open `room` more descriptors, until it is destroyed.
class ScopedRoom final {
 public:
  explicit ScopedRoom(int room) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    std::vector<UniqueFd> probes;
    for (int i = 0; i <= room; ++i) probes.emplace_back(fcntl(0, F_DUPFD_CLOEXEC, 0));
    // The kernel gives out the lowest free numbers, which may have gaps.
    const rlimit limit = {static_cast<rlim_t>(probes.back().get()), before_.rlim_max};
    probes.clear();
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  ~ScopedRoom() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_ = {};
};

class DescriptorsTest : public ::testing::Test {
 protected:
  DescriptorsTest() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    sender_ = UniqueFd(ends[0]);
    receiver_ = UniqueFd(ends[1]);
    for (UniqueFd& each : files_) {
      int pipe_ends[2];
      EXPECT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
      close(pipe_ends[1]);
      each = UniqueFd(pipe_ends[0]);
    }
  }

  static bool IsSameFile(const UniqueFd& a, const UniqueFd& b) {
    struct stat first = {};
    struct stat second = {};
    return fstat(a.get(), &first) == 0 && fstat(b.get(), &second) == 0 &&
           first.st_ino == second.st_ino;
  }
  void Send(size_t count) {
    std::vector<int> fds;
    for (size_t i = 0; i < count; ++i) fds.push_back(files_[i].get());
    EXPECT_TRUE(SendDescriptors(sender_.get(), fds).ok());
  }

  UniqueFd sender_;
  UniqueFd receiver_;
  UniqueFd files_[kMaxDescriptors];
  std::deque<UniqueFd> arrived_;
};

TEST_F(DescriptorsTest, ArriveInOrder) {
  Send(kMaxDescriptors);
  ASSERT_TRUE(ReceiveDescriptors(receiver_.get(), arrived_).ok());
  ASSERT_EQ(arrived_.size(), kMaxDescriptors);
  for (size_t i = 0; i < kMaxDescriptors; ++i) EXPECT_TRUE(IsSameFile(arrived_[i], files_[i])) << i;
}

// Each that the kernel drops is counted: otherwise the receiver would wait for the rest.
TEST_F(DescriptorsTest, WithoutRoom_TheLostOnesArriveAsInvalid) {
  for (const int room : {0, 1, 2}) {
    arrived_.clear();
    {
      const ScopedRoom limit(room);
      Send(4);
      ASSERT_TRUE(ReceiveDescriptors(receiver_.get(), arrived_, 4).ok());
      ASSERT_EQ(arrived_.size(), 4u) << "room for " << room;
    }
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(arrived_[i].valid(), i < static_cast<size_t>(room)) << i << ", room for " << room;
    }
    EXPECT_EQ(CheckDescriptor(arrived_.back()).code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(CheckDescriptor(arrived_.back()).message(), HasSubstr("ulimit -n"));
  }
}

// Later descriptors are not taken for the lost ones.
TEST_F(DescriptorsTest, AfterALoss_TheNextMessageArrivesWhole) {
  {
    const ScopedRoom limit(0);
    Send(3);
    ASSERT_TRUE(ReceiveDescriptors(receiver_.get(), arrived_, 3).ok());
  }
  Send(2);
  ASSERT_TRUE(ReceiveDescriptors(receiver_.get(), arrived_, 5).ok());
  ASSERT_EQ(arrived_.size(), 5u);
  EXPECT_TRUE(IsSameFile(arrived_[3], files_[0]));
  EXPECT_TRUE(IsSameFile(arrived_[4], files_[1]));
}

TEST_F(DescriptorsTest, StopsWhenItHasEnough) {
  Send(1);
  Send(2);
  ASSERT_TRUE(ReceiveDescriptors(receiver_.get(), arrived_, 1).ok());
  EXPECT_EQ(arrived_.size(), 1u);
  ASSERT_TRUE(ReceiveDescriptors(receiver_.get(), arrived_).ok());
  EXPECT_EQ(arrived_.size(), 3u);
}

TEST_F(DescriptorsTest, ClosedSocket_IsTheEnd) {
  Send(1);
  sender_.Reset();
  const auto is_open = ReceiveDescriptors(receiver_.get(), arrived_);
  ASSERT_TRUE(is_open.ok());
  EXPECT_FALSE(*is_open);
  EXPECT_EQ(arrived_.size(), 1u);
}

}  // namespace
}  // namespace ferry
