// SPDX-License-Identifier: Apache-2.0
// Memory files that back device memory, and addresses that the CPU cannot access.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "tests/support/strict_cuda/machine.h"
#include "tests/support/strict_cuda/memory.h"

namespace strict_cuda {
namespace {

// No more: the thread sanitizer leaves little room.
constexpr size_t kSpaceBytes = size_t{1} << 37;

// Free addresses by their start. Addresses are reused at once, lowest first, as the driver does: a
// cache by address alone is detected.
struct Space {
  std::mutex mu;
  CUdeviceptr base = 0;
  std::map<CUdeviceptr, size_t> free;
};

// Behind the memory, in the same file: a process with the descriptor can identify it, also when its
// creator has ended.
struct Label {
  uint64_t magic;
  int32_t physical;
  int32_t handle_types;
};
constexpr uint64_t kLabelMagic = 0x4c424c5354524943;
constexpr off_t kLabelBytes = 4096;

struct sigaction previous_handler;
CUdeviceptr space_base = 0;

// Reports what happened, then lets the fault take its course.
void OnFault(int signal, siginfo_t* info, void*) {
  const auto at = reinterpret_cast<CUdeviceptr>(info->si_addr);
  if (at >= space_base && at < space_base + kSpaceBytes) {
    constexpr char kText[] =
        "strict_cuda: the CPU touched device memory: copy it, or launch a kernel\n";
    if (write(STDERR_FILENO, kText, sizeof(kText) - 1) < 0) _exit(2);
  }
  sigaction(signal, &previous_handler, nullptr);
}

void WatchFaults() {
  if (sigaction(SIGSEGV, nullptr, &previous_handler) != 0) return;
  // Sanitizers have handlers of their own, which report as much.
  if (previous_handler.sa_handler != SIG_DFL) return;
  struct sigaction action = {};
  action.sa_sigaction = OnFault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
}

Space& TheSpace() {
  static Space* const space = [] {
    auto* const made = new Space;
    // Not by mmap: sanitizers would shadow all of it.
    const long got = syscall(SYS_mmap, nullptr, kSpaceBytes, PROT_NONE,  // NOLINT: syscall's type
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == -1) {
      std::perror("strict_cuda: address space");
      std::abort();
    }
    // Processes differ in addresses, so that a pointer of another one is found out.
    unsigned char random = 0;
    if (getrandom(&random, 1, 0) != 1) random = 1;
    const CUdeviceptr start = RoundUp(static_cast<size_t>(got), kGranularity) +
                              static_cast<size_t>(random) * 64 * kGranularity;
    made->base = space_base = static_cast<CUdeviceptr>(got);
    made->free[start] = (made->base + kSpaceBytes - start) & ~(kGranularity - 1);
    WatchFaults();
    return made;
  }();
  return *space;
}

}  // namespace

size_t RoundUp(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

uint64_t NextBufferId() {
  static std::atomic<uint64_t> next = 1;
  return next++;
}

CUdeviceptr TakeAddresses(size_t bytes, size_t alignment, CUdeviceptr wish) {
  Space& space = TheSpace();
  const std::lock_guard<std::mutex> lock(space.mu);
  auto chosen = space.free.end();
  CUdeviceptr at = 0;
  for (auto hole = space.free.begin(); hole != space.free.end(); ++hole) {
    const CUdeviceptr end = hole->first + hole->second;
    const CUdeviceptr first = RoundUp(hole->first, alignment);
    const bool fits = first < end && end - first >= bytes;
    if (wish != 0 && wish % alignment == 0 && wish >= hole->first && wish < end &&
        end - wish >= bytes) {
      chosen = hole;
      at = wish;
      break;
    }
    if (fits && chosen == space.free.end()) {
      chosen = hole;
      at = first;
      if (wish == 0) break;
    }
  }
  if (chosen == space.free.end()) return 0;
  const CUdeviceptr hole = chosen->first;
  const CUdeviceptr end = hole + chosen->second;
  space.free.erase(chosen);
  if (at > hole) space.free[hole] = at - hole;
  if (at + bytes < end) space.free[at + bytes] = end - (at + bytes);
  return at;
}

void GiveAddresses(CUdeviceptr base, size_t bytes) {
  Space& space = TheSpace();
  const std::lock_guard<std::mutex> lock(space.mu);
  auto next = space.free.lower_bound(base);
  if (next != space.free.end() && base + bytes == next->first) {
    bytes += next->second;
    next = space.free.erase(next);
  }
  if (next != space.free.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == base) {
      before->second += bytes;
      return;
    }
  }
  space.free[base] = bytes;
}

bool IsDeviceAddress(CUdeviceptr pointer) {
  const Space& space = TheSpace();
  return pointer >= space.base && pointer < space.base + kSpaceBytes;
}

std::shared_ptr<Backing> Backing::Create(int physical, size_t bytes, const char* what,
                                         int handle_types) {
  {
    const MachineLock lock;
    if (!TakeMemory(physical, bytes)) return nullptr;
  }
  const int fd = memfd_create(what, MFD_CLOEXEC);
  std::shared_ptr<Backing> backing;
  const Label label = {kLabelMagic, physical, handle_types};
  const auto end = static_cast<off_t>(bytes);
  if (fd >= 0 && ftruncate(fd, end + kLabelBytes) == 0 &&
      pwrite(fd, &label, sizeof(label), end) == sizeof(label)) {
    backing = Import(fd);
  }
  if (fd >= 0) close(fd);
  if (backing == nullptr) {
    const MachineLock lock;
    GiveMemory(physical, bytes);
    return nullptr;
  }
  backing->accounted_bytes_ = bytes;
  return backing;
}

std::shared_ptr<Backing> Backing::Import(int fd) {
  struct stat status = {};
  if (fstat(fd, &status) != 0 || status.st_size <= kLabelBytes) return nullptr;
  Label label = {};
  if (pread(fd, &label, sizeof(label), status.st_size - kLabelBytes) != sizeof(label)) {
    return nullptr;
  }
  if (label.magic != kLabelMagic) return nullptr;
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (own < 0) return nullptr;
  const size_t bytes = static_cast<size_t>(status.st_size - kLabelBytes);
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
  if (at == MAP_FAILED) {
    close(own);
    return nullptr;
  }
  std::shared_ptr<Backing> backing(new Backing);
  backing->host_ = static_cast<char*>(at);
  backing->bytes_ = bytes;
  backing->fd_ = own;
  backing->physical_ = label.physical;
  backing->handle_types_ = label.handle_types;
  backing->inode_ = status.st_ino;
  return backing;
}

std::shared_ptr<Backing> Backing::ImportFrom(int pid, int fd) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
  const int opened = open(path, O_RDWR | O_CLOEXEC);
  if (opened < 0) return nullptr;
  std::shared_ptr<Backing> backing = Import(opened);
  close(opened);
  return backing;
}

Backing::~Backing() {
  munmap(host_, bytes_);
  close(fd_);
  if (accounted_bytes_ == 0) return;
  const MachineLock lock;
  GiveMemory(physical_, accounted_bytes_);
}

}  // namespace strict_cuda
