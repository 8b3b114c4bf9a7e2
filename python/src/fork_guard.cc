// SPDX-License-Identifier: Apache-2.0
// A process's generation is the number of forks between it and the one that has loaded the module.
#include "python/src/fork_guard.h"

#include <pthread.h>

namespace ferry::python {
namespace {

int generation = 0;

int Generation() {
  [[maybe_unused]] static const int registered =
      pthread_atfork(nullptr, nullptr, [] { ++generation; });
  return generation;
}

}  // namespace

ForkGuard::ForkGuard() : generation_(Generation()) {}

bool ForkGuard::is_inherited() const { return generation_ != Generation(); }

}  // namespace ferry::python
