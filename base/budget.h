// SPDX-License-Identifier: Apache-2.0
// Budget: a byte budget shared by several users, each of which holds a share and returns it.
#ifndef FERRY_BASE_BUDGET_H_
#define FERRY_BASE_BUDGET_H_

#include <atomic>
#include <cstddef>
#include <utility>

namespace ferry {

// Thread-safe; outlives its shares.
class Budget final {
 public:
  // A part of the budget, returned on destruction. Not thread-safe.
  class Share final {
   public:
    Share() = default;
    Share(Share&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Share& operator=(Share&& other) noexcept {
      if (this == &other) return *this;
      GiveBack();
      budget_ = std::exchange(other.budget_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
      return *this;
    }
    ~Share() { GiveBack(); }

    size_t bytes() const { return bytes_; }
    // Merges both shares. REQUIRES: they are of one budget, or one of them is empty.
    void Add(Share other) {
      if (budget_ == nullptr) budget_ = other.budget_;
      bytes_ += std::exchange(other.bytes_, 0);
    }

   private:
    friend class Budget;
    Share(Budget* budget, size_t bytes) : budget_(budget), bytes_(bytes) {}
    void GiveBack() {
      if (bytes_ > 0) budget_->used_.fetch_sub(bytes_, std::memory_order_relaxed);
      bytes_ = 0;
    }

    Budget* budget_ = nullptr;
    size_t bytes_ = 0;
  };

  explicit Budget(size_t limit) : limit_(limit) {}

  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  // Returns false, leaving `share` unchanged, if less than `bytes` is left.
  bool Take(size_t bytes, Share& share) {
    size_t used = used_.load(std::memory_order_relaxed);
    do {
      if (bytes > limit_ || used > limit_ - bytes) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    share.Add(Share(this, bytes));
    return true;
  }

  size_t limit() const { return limit_; }
  size_t used() const { return used_.load(std::memory_order_relaxed); }

 private:
  const size_t limit_;
  std::atomic<size_t> used_{0};
};

}  // namespace ferry

#endif  // FERRY_BASE_BUDGET_H_
