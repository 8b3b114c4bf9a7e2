// SPDX-License-Identifier: Apache-2.0
// System calls for shared memory.
#include "tensor/memory_segment.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/file_limit.h"
#include "base/status_macros.h"

// Newer than some of the headers we build with. Source: memfd_create(2), fcntl(2), madvise(2).
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_GET_SEALS 1034
#define F_SEAL_SEAL 0x0001
#define F_SEAL_SHRINK 0x0002
#define F_SEAL_GROW 0x0004
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace ferry {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

absl::Status OsError(absl::string_view call, size_t bytes) {
  const int error = errno;
  return absl::ResourceExhaustedError(
      absl::StrCat(call, " for ", bytes, " bytes of shared memory: ", ErrorWithFileLimit(error)));
}

int CreateMemfd(unsigned flags) {
  flags |= MFD_CLOEXEC | MFD_ALLOW_SEALING;
  // Not executable. Kernels before 6.3 do not know the flag.
  const long fd = syscall(SYS_memfd_create, "ferry", flags | MFD_NOEXEC_SEAL);
  if (fd >= 0 || errno != EINVAL) return static_cast<int>(fd);
  return static_cast<int>(syscall(SYS_memfd_create, "ferry", flags));
}

// Growing a file, even one in memory, beyond that limit ends the process by SIGXFSZ.
absl::Status CheckFileSizeLimit(size_t bytes) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || bytes <= limit.rlim_cur) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(bytes, " bytes of shared memory are more than the ", limit.rlim_cur,
                   " that this process may have in one file (raise `ulimit -f`)"));
}

// True if the system call itself is not available, whatever its arguments: the kernel does not
// implement it, or a seccomp profile denies it.
bool IsRefused(int error) { return error == ENOSYS || error == EPERM || error == EACCES; }

absl::Status Prefault(void* base, size_t bytes) {
  if (madvise(base, bytes, MADV_POPULATE_WRITE) == 0) return absl::OkStatus();
  if (errno != EINVAL && !IsRefused(errno)) return OsError("madvise(MADV_POPULATE_WRITE)", bytes);
  // A kernel before 5.14, or a seccomp profile that denies madvise.
  auto* touch = static_cast<volatile char*>(base);
  for (size_t i = 0; i < bytes; i += 4096) touch[i] = 0;
  return absl::OkStatus();
}

// Backs whole 2 MiB ranges of an empty mapping by huge pages, whatever the kernel's policy for
// memfds: one page present in each suffices to collapse it (kernels from 6.1 on). Several times
// faster than touching all small pages. Returns false if some ranges keep small pages.
bool Collapse(void* base, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(base) % kHugePageBytes != 0) return false;
  const size_t whole = bytes / kHugePageBytes * kHugePageBytes;
  auto* touch = static_cast<volatile char*>(base);
  for (size_t i = 0; i < whole; i += kHugePageBytes) touch[i] = 0;
  return madvise(base, whole, MADV_COLLAPSE) == 0;
}

// Maps a shared file, or private memory if `fd` is -1, at a multiple of 2 MiB if it is that large:
// otherwise huge pages are mapped in pieces of 4 KiB. Never uses MAP_FIXED over another mapping,
// not even over a reservation of its own: if that fails, as with an empty huge page pool, it
// leaves a hole that other threads may map into.
void* Map(size_t bytes, int protection, int flags, int fd) {
  flags |= fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  // Another thread may take the address that was found.
  constexpr int kAttempts = 8;
  for (int i = 0; bytes >= kHugePageBytes && i < kAttempts; ++i) {
    const size_t room_bytes = bytes + kHugePageBytes;
    void* const room =
        mmap(nullptr, room_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) break;
    munmap(room, room_bytes);
    const auto start = reinterpret_cast<uintptr_t>(room);
    const uintptr_t aligned = (start + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
    void* const base = mmap(reinterpret_cast<void*>(aligned), bytes, protection,
                            MAP_FIXED_NOREPLACE | flags, fd, 0);
    if (base != MAP_FAILED || errno != EEXIST) return base;
  }
  return mmap(nullptr, bytes, protection, flags, fd, 0);
}

absl::Status Seal(int fd, bool peers_may_write) {
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
  // Kernels before 5.1 do not know F_SEAL_FUTURE_WRITE; peers are trusted there.
  if (!peers_may_write && fcntl(fd, F_ADD_SEALS, seals | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0) {
    return absl::OkStatus();
  }
  if (fcntl(fd, F_ADD_SEALS, seals | F_SEAL_SEAL) == 0) return absl::OkStatus();
  return OsError("fcntl(F_ADD_SEALS)", 0);
}

// True if Create fails because of what CheckSupport reports, not for lack of a resource.
bool IsForbidden() {
  const UniqueFd probe(CreateMemfd(0));
  if (!probe.valid()) return IsRefused(errno);
  return !Seal(probe.get(), /*peers_may_write=*/false).ok() && IsRefused(errno);
}

// Reads a file of the kernel's transparent huge page settings; "" if there is none.
std::string HugePagePolicy(const std::string& name) {
  const UniqueFd fd(open(absl::StrCat("/sys/kernel/mm/transparent_hugepage/", name).c_str(),
                         O_RDONLY | O_CLOEXEC));
  char text[128];
  const ssize_t bytes = fd.valid() ? read(fd.get(), text, sizeof(text)) : 0;
  return std::string(text, static_cast<size_t>(std::max<ssize_t>(bytes, 0)));
}

bool HasTransparentPages() {
  return GivesTransparentPages(HugePagePolicy("shmem_enabled"),
                               HugePagePolicy("hugepages-2048kB/shmem_enabled"));
}

}  // namespace

bool GivesTransparentPages(absl::string_view policy, absl::string_view of_2_mib) {
  const auto is_any = [](absl::string_view text) {
    return absl::StrContains(text, "[always]") || absl::StrContains(text, "[within_size]") ||
           absl::StrContains(text, "[advise]");
  };
  if (absl::StrContains(policy, "[deny]")) return false;
  if (absl::StrContains(policy, "[force]")) return true;
  if (of_2_mib.empty() || absl::StrContains(of_2_mib, "[inherit]")) return is_any(policy);
  return is_any(of_2_mib);
}

absl::string_view PageKindName(PageKind kind) {
  switch (kind) {
    case PageKind::kPool:
      return "2 MiB pages from the machine's pool";
    case PageKind::kTransparent:
      return "transparent huge pages";
    case PageKind::kOrdinary:
      break;
  }
  return "4 KiB pages";
}

absl::Status MemorySegment::CheckSupport() {
  const UniqueFd probe(CreateMemfd(0));
  const char* call = "memfd_create";
  int error = errno;
  if (probe.valid()) {
    if (Seal(probe.get(), /*peers_may_write=*/false).ok()) return absl::OkStatus();
    call = "fcntl(F_ADD_SEALS)";
    error = errno;
  }
  return absl::UnavailableError(
      absl::StrCat(call, IsRefused(error) ? " is refused here (" : " fails (", std::strerror(error),
                   IsRefused(error) ? ", by a seccomp profile or an old kernel" : "",
                   "); without it tensors cannot be handed over to other processes of this host"));
}

MemorySegment& MemorySegment::operator=(MemorySegment&& other) noexcept {
  if (this != &other) {
    if (base_ != nullptr) munmap(base_, bytes_);
    fd_ = std::move(other.fd_);
    base_ = std::exchange(other.base_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    pages_ = other.pages_;
  }
  return *this;
}

MemorySegment::~MemorySegment() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

absl::StatusOr<MemorySegment> MemorySegment::Create(size_t bytes,
                                                    const MemorySegmentOptions& options) {
  FERRY_RETURN_IF_ERROR(CheckFileSizeLimit(bytes));
  const auto map = [bytes](bool from_pool) -> absl::StatusOr<MemorySegment> {
    MemorySegment segment;
    segment.fd_ = UniqueFd(CreateMemfd(from_pool ? MFD_HUGETLB | MFD_HUGE_2MB : 0));
    if (!segment.fd_.valid()) return OsError("memfd_create", bytes);
    if (ftruncate(segment.fd_.get(), static_cast<off_t>(bytes)) != 0) {
      return OsError("ftruncate", bytes);
    }
    // Reserves pages of the pool here: an error now rather than SIGBUS at the first touch.
    void* base = Map(bytes, PROT_READ | PROT_WRITE, 0, segment.fd_.get());
    if (base == MAP_FAILED) return OsError("mmap", bytes);
    segment.base_ = base;
    segment.bytes_ = bytes;
    segment.pages_ = from_pool ? PageKind::kPool : PageKind::kOrdinary;
    return segment;
  };

  if (options.may_be_private && IsForbidden()) return CreatePrivate(bytes, options);
  absl::StatusOr<MemorySegment> segment = absl::UnavailableError("not tried");
  if (options.huge_pages && bytes > 0 && bytes % kHugePageBytes == 0) segment = map(true);
  if (!segment.ok()) {
    segment = map(false);
    if (!segment.ok()) return segment.status();
    // madvise succeeds even where the kernel's policy is not to follow it.
    if (options.huge_pages && bytes >= kHugePageBytes) {
      const bool is_given =
          HasTransparentPages() && madvise(segment->base_, bytes, MADV_HUGEPAGE) == 0;
      if (is_given || (options.prefault && Collapse(segment->base_, bytes))) {
        segment->pages_ = PageKind::kTransparent;
      }
    }
  }
  if (options.prefault) FERRY_RETURN_IF_ERROR(Prefault(segment->base_, bytes));
  FERRY_RETURN_IF_ERROR(Seal(segment->fd(), options.peers_may_write));
  return segment;
}

absl::StatusOr<MemorySegment> MemorySegment::CreatePrivate(size_t bytes,
                                                           const MemorySegmentOptions& options) {
  MemorySegment segment;
  void* const base = Map(bytes, PROT_READ | PROT_WRITE, 0, -1);
  if (base == MAP_FAILED) {
    const int error = errno;
    return absl::ResourceExhaustedError(
        absl::StrCat("mmap for ", bytes, " bytes of memory: ", std::strerror(error)));
  }
  segment.base_ = base;
  segment.bytes_ = bytes;
  // A hint only: without it pages are small.
  if (options.huge_pages && bytes >= kHugePageBytes && madvise(base, bytes, MADV_HUGEPAGE) == 0 &&
      !absl::StrContains(HugePagePolicy("enabled"), "[never]")) {
    segment.pages_ = PageKind::kTransparent;
  }
  if (options.prefault) FERRY_RETURN_IF_ERROR(Prefault(base, bytes));
  return segment;
}

absl::StatusOr<MemorySegment> MemorySegment::MapPeer(UniqueFd fd, size_t bytes, bool writable) {
  // Cheaper than fstat, on the path of receivers of new segments. The file position is unused.
  const off_t size = lseek(fd.get(), 0, SEEK_END);
  if (bytes == 0 || size < 0 || static_cast<size_t>(size) != bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the peer's descriptor is of ",
                                                   std::max<off_t>(size, 0), " bytes, not of ",
                                                   bytes, " as it says"));
  }
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::InvalidArgumentError(
        "the peer's memory is not sealed: it could shrink while it is being read");
  }
  MemorySegment segment;
  // Writable mappings are small and used soon; of readable ones, only a part may be read.
  void* base =
      Map(bytes, PROT_READ | (writable ? PROT_WRITE : 0), writable ? MAP_POPULATE : 0, fd.get());
  if (base == MAP_FAILED) {
    if (errno != EPERM) return OsError("mmap", bytes);
    return absl::PermissionDeniedError("the peer's memory may only be read");
  }
  segment.base_ = base;
  segment.bytes_ = bytes;
  return segment;
}

}  // namespace ferry
