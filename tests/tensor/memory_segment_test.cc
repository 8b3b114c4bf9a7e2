// SPDX-License-Identifier: Apache-2.0
// The pages of a segment, its alignment, and a peer's access to it.
#include "tensor/memory_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"

namespace ferry {
namespace {

constexpr size_t kSegmentMib = size_t{1} << 20;

// The kernel's setting as shown in its files: the one in brackets.
TEST(MemorySegment, HugePagesFollowTheKernelsSetting) {
  constexpr char kNever[] = "always within_size advise [never] deny force\n";
  constexpr char kAdvise[] = "always within_size [advise] never deny force\n";
  constexpr char kInherit[] = "always [inherit] within_size advise never\n";
  EXPECT_FALSE(GivesTransparentPages(kNever, ""));
  EXPECT_TRUE(GivesTransparentPages(kAdvise, ""));
  EXPECT_FALSE(GivesTransparentPages(kNever, kInherit));
  EXPECT_TRUE(GivesTransparentPages(kAdvise, kInherit));
  EXPECT_TRUE(GivesTransparentPages(kNever, "always inherit within_size [advise] never\n"));
  EXPECT_FALSE(GivesTransparentPages(kAdvise, "always inherit within_size advise [never]\n"));
  EXPECT_FALSE(GivesTransparentPages("always within_size advise never [deny] force\n",
                                     "[always] inherit within_size advise never\n"));
  EXPECT_TRUE(GivesTransparentPages("always within_size advise never deny [force]\n", ""));
  EXPECT_FALSE(GivesTransparentPages("", ""));
}

// A shell's `ulimit -f` is inherited by processes that have nothing to do with files.
TEST(MemorySegment, FileSizeLimitIsNamedInTheError) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 3 * kSegmentMib;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  const auto small = MemorySegment::Create(3 * kSegmentMib, {});
  const auto large = MemorySegment::Create(4 * kSegmentMib, {});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(small.ok()) << small.status();
  EXPECT_TRUE(absl::IsResourceExhausted(large.status())) << large.status();
  EXPECT_TRUE(absl::StrContains(large.status().message(), "ulimit -f")) << large.status();
}

TEST(MemorySegment, PeerReadsTheOwnersWrites) {
  const MemorySegment mine = *MemorySegment::Create(kSegmentMib, {.prefault = false});
  const MemorySegment peer = *MemorySegment::MapPeer(UniqueFd(dup(mine.fd())), kSegmentMib, false);
  std::memcpy(mine.base(), "hello", 6);
  EXPECT_STREQ(static_cast<const char*>(peer.base()), "hello");
  EXPECT_NE(peer.base(), mine.base());
}

TEST(MemorySegment, PeerCanNeitherWriteNorResizeIt) {
  const MemorySegment mine = *MemorySegment::Create(kSegmentMib, {.prefault = false});
  const absl::Status status =
      MemorySegment::MapPeer(UniqueFd(dup(mine.fd())), kSegmentMib, true).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_NE(ftruncate(mine.fd(), 0), 0);
  EXPECT_NE(ftruncate(mine.fd(), 2 * kSegmentMib), 0);
  const MemorySegment open = *MemorySegment::Create(kSegmentMib, {.peers_may_write = true});
  EXPECT_TRUE(MemorySegment::MapPeer(UniqueFd(dup(open.fd())), kSegmentMib, true).ok());
}

// A descriptor that lies, or that could shrink under the reader.
TEST(MemorySegment, PeersDescriptorIsChecked) {
  const MemorySegment mine = *MemorySegment::Create(kSegmentMib, {.prefault = false});
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(
      MemorySegment::MapPeer(UniqueFd(dup(mine.fd())), 2 * kSegmentMib, false).status().code(),
      kInvalid);
  UniqueFd unsealed(memfd_create("unsealed", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(unsealed.get(), kSegmentMib), 0);
  EXPECT_EQ(MemorySegment::MapPeer(std::move(unsealed), kSegmentMib, false).status().code(),
            kInvalid);
  EXPECT_EQ(MemorySegment::MapPeer(UniqueFd(), kSegmentMib, false).status().code(), kInvalid);
  EXPECT_EQ(
      MemorySegment::MapPeer(UniqueFd(open("/dev/null", O_RDWR)), 4096, false).status().code(),
      kInvalid);
}

struct MappedPages {
  size_t resident = 0;
  size_t huge = 0;
};

// The size in bytes of the mapping that starts at the address. Source: proc(5), smaps.
MappedPages PagesAt(const void* base) {
  std::ifstream maps("/proc/self/smaps");
  const std::string start = absl::StrFormat("%x-", reinterpret_cast<uintptr_t>(base));
  std::string line;
  while (std::getline(maps, line) && !absl::StartsWith(line, start)) {
  }
  MappedPages pages;
  while (std::getline(maps, line) && !absl::StrContains(line, "VmFlags:")) {
    size_t kib = 0;
    if (std::sscanf(line.c_str(), "Rss: %zu", &kib) == 1) pages.resident = kib << 10;
    if (std::sscanf(line.c_str(), "ShmemPmdMapped: %zu", &kib) == 1) pages.huge = kib << 10;
  }
  return pages;
}

// All of them are resident, and huge where the kernel says so, for all whole 2 MiB of them: for the
// owner, and for a peer that has touched them.
TEST(MemorySegment, PagesAreResidentAndHugeWhereReported) {
  for (const size_t bytes : {4 * kSegmentMib, 5 * kSegmentMib}) {
    const MemorySegment mine = *MemorySegment::Create(bytes, {});
    // Pages of the pool are counted elsewhere.
    if (mine.pages() == PageKind::kPool) continue;
    const bool are_huge = mine.pages() == PageKind::kTransparent;
    EXPECT_EQ(PagesAt(mine.base()).resident, bytes);
    EXPECT_EQ(PagesAt(mine.base()).huge == 4 * kSegmentMib, are_huge);
    const MemorySegment peer = *MemorySegment::MapPeer(UniqueFd(dup(mine.fd())), bytes, false);
    for (size_t i = 0; i < bytes; i += 4096) {
      EXPECT_EQ(static_cast<const volatile char*>(peer.base())[i], 0);
    }
    EXPECT_EQ(PagesAt(peer.base()).huge == 4 * kSegmentMib, are_huge);
  }
}

// Elsewhere the kernel maps them in pieces of 4 KiB.
TEST(MemorySegment, LargeOnesAreAlignedForHugePages) {
  for (const size_t bytes :
       {2 * kSegmentMib, 3 * kSegmentMib + 4096, 3 * kSegmentMib + 5, 64 * kSegmentMib}) {
    const MemorySegment mine = *MemorySegment::Create(bytes, {.prefault = false});
    const MemorySegment peer = *MemorySegment::MapPeer(UniqueFd(dup(mine.fd())), bytes, false);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(mine.base()) % (2 * kSegmentMib), 0U);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(peer.base()) % (2 * kSegmentMib), 0U);
  }
}

// Room around a mapping, so that it lies there, is given back, also when there is no mapping.
TEST(MemorySegment, NothingElseStaysMapped) {
  const auto address_space = [] {
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    return pages * 4096;
  };
  const MemorySegment mine = *MemorySegment::Create(3 * kSegmentMib + 5, {.prefault = false});
  const size_t before = address_space();
  for (int i = 0; i < 100; ++i) {
    const MemorySegment other = *MemorySegment::Create(3 * kSegmentMib + 5, {.prefault = false});
    const MemorySegment peer =
        *MemorySegment::MapPeer(UniqueFd(dup(mine.fd())), mine.bytes(), false);
    EXPECT_FALSE(MemorySegment::MapPeer(UniqueFd(dup(mine.fd())), mine.bytes(), true).ok());
  }
  EXPECT_LT(address_space(), before + 50 * kSegmentMib);
}

// Where a mapping fails, as that of a pool without pages does each time, others map at once.
TEST(MemorySegment, ThreadsDoNotTakeEachOthersAddresses) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 500; ++i) {
        const MemorySegment mine = *MemorySegment::Create(2 * kSegmentMib, {.prefault = false});
        auto* const word = static_cast<volatile int*>(mine.base());
        *word = t + 1;
        auto refused = MemorySegment::MapPeer(UniqueFd(dup(mine.fd())), mine.bytes(), true);
        ASSERT_FALSE(refused.ok());
        const MemorySegment peer =
            *MemorySegment::MapPeer(UniqueFd(dup(mine.fd())), mine.bytes(), false);
        ASSERT_EQ(*static_cast<const volatile int*>(peer.base()), t + 1);
        ASSERT_EQ(*word, t + 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace ferry
