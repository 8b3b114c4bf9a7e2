// SPDX-License-Identifier: Apache-2.0
// What a thread has kept goes with it.
#include "base/recycled.h"

namespace ferry::recycled_internal {
namespace {

struct Emptier {
  ~Emptier() {
    // Other objects of the thread may go after this one.
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
