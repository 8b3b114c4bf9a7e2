// SPDX-License-Identifier: Apache-2.0
// A thread's cached blocks are freed when it ends.
#include "base/recycled.h"

namespace ferry::recycled_internal {
namespace {

struct Emptier {
  ~Emptier() {
    // Other thread-local objects may be destroyed after this one.
    lists.is_over = true;
    for (Free*& first : lists.first) {
      while (first != nullptr) {
        Free* const next = first->next;
        ::operator delete(first);
        first = next;
      }
    }
    lists.count.fill(0);
  }
};

}  // namespace

void Watch() {
  lists.is_watched = true;
  thread_local Emptier emptier;
  (void)emptier;
}

}  // namespace ferry::recycled_internal
