// SPDX-License-Identifier: Apache-2.0
// ForkGuard: recognizes objects that a child process has inherited by fork.
#ifndef FERRY_PYTHON_SRC_FORK_GUARD_H_
#define FERRY_PYTHON_SRC_FORK_GUARD_H_

namespace ferry::python {

// A node's threads do not exist in a child of fork, and its locks may be held there forever.
class ForkGuard final {
 public:
  // Belongs to this process.
  ForkGuard();

  // True in a child that was forked after the construction.
  bool is_inherited() const;

 private:
  int generation_;
};

}  // namespace ferry::python

#endif  // FERRY_PYTHON_SRC_FORK_GUARD_H_
