// SPDX-License-Identifier: Apache-2.0
// Reserves the descriptors of closed standard streams before any library can use them.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace ferry::cli {
namespace {

// Opens /dev/null for each of descriptors 0 to 2 that is closed, in a mode in which every read or
// write fails. Otherwise a socket could get such a number, and output would be sent over it.
//
// Uses raw system calls: the C library's are wrapped by sanitizers, which are not initialised yet.
__attribute__((no_sanitize("address", "thread", "undefined"))) void ReserveStandardStreams(int,
                                                                                           char**,
                                                                                           char**) {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (syscall(SYS_fcntl, fd, F_GETFD) >= 0) continue;
    // Returns exactly this number, the lowest free one, as those below are taken. Left open.
    syscall(SYS_openat, AT_FDCWD, "/dev/null",
            (fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) | O_CLOEXEC, 0);
  }
}

// The dynamic linker runs this section before the initialisers of shared libraries; gRPC's opens an
// eventfd that it keeps.
[[gnu::section(".preinit_array"),
  gnu::used]] void (*const kReserveFirst)(int, char**, char**) = ReserveStandardStreams;

}  // namespace
}  // namespace ferry::cli
