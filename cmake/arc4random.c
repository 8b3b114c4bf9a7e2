// SPDX-License-Identifier: Apache-2.0
// arc4random for programs that are packed. libstdc++'s std::random_device calls the C library's
// where it has one, as the build machine's does (glibc 2.36), and a program with a static libstdc++
// would then start on no older system.
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

__attribute__((visibility("hidden"))) uint32_t arc4random(void) {
  uint32_t value;
  // So few bytes are never cut short: a signal interrupts only the wait for the kernel's first
  // entropy after boot.
  while (getrandom(&value, sizeof(value), 0) != (ssize_t)sizeof(value)) {
    if (errno == EINTR) continue;
    perror("getrandom, for random numbers");
    abort();
  }
  return value;
}
