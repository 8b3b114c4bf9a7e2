// SPDX-License-Identifier: Apache-2.0
// UniqueFd: owns a file descriptor and closes it on destruction.
#ifndef FERRY_BASE_UNIQUE_FD_H_
#define FERRY_BASE_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace ferry {

// Move-only; empty by default and after a move. Not thread-safe.
class UniqueFd final {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { Reset(); }

  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }

  // The descriptor, or -1 if there is none. Ownership stays here.
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

  // Closes now. Linux closes even when close() reports an error, so it is never retried.
  void Reset() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

  // Transfers the descriptor to the caller, who closes it.
  [[nodiscard]] int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

}  // namespace ferry

#endif  // FERRY_BASE_UNIQUE_FD_H_
