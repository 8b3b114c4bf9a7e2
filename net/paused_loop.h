// SPDX-License-Identifier: Apache-2.0
// PausedLoop: keeps a loop from running while its sources are looked at.
#ifndef FERRY_NET_PAUSED_LOOP_H_
#define FERRY_NET_PAUSED_LOOP_H_

#include <memory>
#include <utility>

#include "net/loop.h"

namespace ferry {

// Movable. As long as it exists, the loop calls nothing, and what is loop only may be used by the
// thread that has created it.
class PausedLoop final {
 public:
  // Blocks until the loop has run what has been posted before, and what that has posted. Not on the
  // loop. REQUIRES: the loop does not end.
  explicit PausedLoop(Loop& loop);
  // The loop goes on.
  ~PausedLoop();

  PausedLoop(PausedLoop&&) = default;
  PausedLoop& operator=(PausedLoop&&) = delete;

 private:
  struct Shared;

  // Null after a move.
  std::shared_ptr<Shared> shared_;
};

}  // namespace ferry

#endif  // FERRY_NET_PAUSED_LOOP_H_
