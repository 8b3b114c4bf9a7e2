// SPDX-License-Identifier: Apache-2.0
// MemorySegment: memory that processes of a host can share by a descriptor.
#ifndef FERRY_TENSOR_MEMORY_SEGMENT_H_
#define FERRY_TENSOR_MEMORY_SEGMENT_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "base/unique_fd.h"

namespace ferry {

enum class PageKind {
  kOrdinary,     // 4 KiB
  kTransparent,  // huge where the kernel finds free memory
  kPool,         // 2 MiB, from the machine's pool (vm.nr_hugepages)
};

inline constexpr size_t kPageKindCount = 3;

// "4 KiB pages", ...: for logs and reports.
absl::string_view PageKindName(PageKind kind);

// True if a kernel with these settings gives transparent huge pages to memfds whose owner requests
// them.
//   policy: content of /sys/kernel/mm/transparent_hugepage/shmem_enabled.
//   of_2_mib: content of hugepages-2048kB/shmem_enabled there; "" before kernel 6.9.
bool GivesTransparentPages(absl::string_view policy, absl::string_view of_2_mib);

struct MemorySegmentOptions {
  // Fault in every page now, so that later accesses do not.
  bool prefault = true;
  // Use pages from the pool if there are any, else request transparent huge ones; where the
  // kernel's policy excludes memfds, prefaulted pages are collapsed into huge ones all the same.
  bool huge_pages = true;
  // Other processes may map it for writing too; otherwise the kernel restricts them to reading.
  bool peers_may_write = false;
  // Where this process cannot create shareable memory (CheckSupport), use private memory: fd() is
  // -1 then.
  bool may_be_private = false;
};

// A memfd and its mapping, unmapped and closed on destruction, which does not affect other
// processes' mappings. Needs neither /dev/shm nor a common pid namespace. Sealed: its size cannot
// change, so that a peer cannot turn a read into SIGBUS. Move-only.
class MemorySegment final {
 public:
  //   Errors: RESOURCE_EXHAUSTED with the call that failed and the kernel's reason.
  static absl::StatusOr<MemorySegment> Create(size_t bytes, const MemorySegmentOptions& options);

  // Maps another process's segment.
  //   Errors: INVALID_ARGUMENT if the descriptor is not one of `bytes`, or not sealed against
  //   shrinking; RESOURCE_EXHAUSTED as above; PERMISSION_DENIED for a writable mapping that the
  //   owner does not allow.
  static absl::StatusOr<MemorySegment> MapPeer(UniqueFd fd, size_t bytes, bool writable);

  // Returns UNAVAILABLE, with the reason, where this process cannot create shareable memory: the
  // kernel has no memfd, or a seccomp profile denies the calls.
  static absl::Status CheckSupport();

  MemorySegment() = default;
  MemorySegment(MemorySegment&& other) noexcept { *this = std::move(other); }
  MemorySegment& operator=(MemorySegment&& other) noexcept;
  ~MemorySegment();

  void* base() const { return base_; }
  size_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }
  PageKind pages() const { return pages_; }

 private:
  static absl::StatusOr<MemorySegment> CreatePrivate(size_t bytes,
                                                     const MemorySegmentOptions& options);

  UniqueFd fd_;
  void* base_ = nullptr;
  size_t bytes_ = 0;
  PageKind pages_ = PageKind::kOrdinary;
};

}  // namespace ferry

#endif  // FERRY_TENSOR_MEMORY_SEGMENT_H_
