// SPDX-License-Identifier: Apache-2.0
// Takes the numbers of standard streams that are closed before a library of ours can.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace ferry::cli {
namespace {

// Gives the descriptors 0 to 2 that are closed a /dev/null that fails every read or write. Else a
// socket of ours would get such a number, and what is printed would go over it.
//
// System calls alone: sanitizers, whose wrappers those of the C library are, are not there yet.
__attribute__((no_sanitize("address", "thread", "undefined"))) void ReserveStandardStreams(int,
                                                                                           char**,
                                                                                           char**) {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (syscall(SYS_fcntl, fd, F_GETFD) >= 0) continue;
    // The lowest free number is this one: those below it are taken by now. It stays open.
    syscall(SYS_openat, AT_FDCWD, "/dev/null",
            (fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) | O_CLOEXEC, 0);
  }
}

// The dynamic linker calls what is in this section before the initializers of shared libraries, of
// which gRPC's opens an eventfd that it keeps.
[[gnu::section(".preinit_array"),
  gnu::used]] void (*const kReserveFirst)(int, char**, char**) = ReserveStandardStreams;

}  // namespace
}  // namespace ferry::cli
