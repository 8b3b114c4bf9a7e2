// SPDX-License-Identifier: Apache-2.0
// OutstandingOperations: how much of what a step has sent is neither taken nor acknowledged yet.
#ifndef FERRY_RENDEZVOUS_OUTSTANDING_OPERATIONS_H_
#define FERRY_RENDEZVOUS_OUTSTANDING_OPERATIONS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

namespace ferry {

// A count that one or more callers wait for. Thread-safe. It is kept by its owner and by every
// operation that has not ended, without a reference count of its own: an operation costs one atomic
// addition when it begins and one subtraction when it ends.
class OutstandingOperations final {
 public:
  // Called on the thread of whoever ends the last operation while somebody waits, with no lock
  // held.
  using Wake = std::function<void()>;
  struct Releaser {
    void operator()(OutstandingOperations* operations) const { operations->Release(); }
  };
  using Ptr = std::unique_ptr<OutstandingOperations, Releaser>;

  // `wake` outlives the owner and whatever ends an operation while somebody waits; null: waiters
  // look by themselves.
  static Ptr Create(const Wake* wake) { return Ptr(new OutstandingOperations(wake)); }

  OutstandingOperations(const OutstandingOperations&) = delete;
  OutstandingOperations& operator=(const OutstandingOperations&) = delete;

  // As long as the owner is there, or another operation.
  void Begin() { state_.fetch_add(1, std::memory_order_relaxed); }
  // Whoever then sees a count of 0 sees all that has happened before.
  void End() {
    const Wake* const wake = wake_;
    const uint64_t before = state_.fetch_sub(1, std::memory_order_acq_rel);
    // From here on this may have been deleted, unless it is for us to do.
    if ((before & kCount) != 1) return;
    if ((before & kReleased) != 0) {
      delete this;
    } else if ((before & kWaiters) != 0 && wake != nullptr) {
      (*wake)();
    }
  }
  uint64_t count() const { return state_.load(std::memory_order_acquire) & kCount; }

  // Somebody waits until the count is 0, and is woken then. The owner stays meanwhile.
  class Waiter final {
   public:
    explicit Waiter(OutstandingOperations& operations) : operations_(operations) {
      operations_.state_.fetch_add(kOneWaiter, std::memory_order_relaxed);
    }
    ~Waiter() { operations_.state_.fetch_sub(kOneWaiter, std::memory_order_relaxed); }

    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;

   private:
    OutstandingOperations& operations_;
  };

 private:
  static constexpr uint64_t kOneWaiter = uint64_t{1} << 40;
  static constexpr uint64_t kCount = kOneWaiter - 1;
  static constexpr uint64_t kReleased = uint64_t{1} << 63;
  static constexpr uint64_t kWaiters = kReleased - kOneWaiter;

  explicit OutstandingOperations(const Wake* wake) : wake_(wake) {}
  ~OutstandingOperations() = default;

  void Release() {
    if ((state_.fetch_or(kReleased, std::memory_order_acq_rel) & kCount) == 0) delete this;
  }

  const Wake* const wake_;
  // The count, how many wait, and whether the owner has gone: one word, so that whoever ends the
  // last operation knows of all three without another look.
  std::atomic<uint64_t> state_{0};
};

// An operation, or none; ends with this at the latest.
class StepOperation final {
 public:
  StepOperation() = default;
  explicit StepOperation(OutstandingOperations& operations) { Begin(operations); }
  StepOperation(StepOperation&& other) noexcept
      : operations_(other.operations_.exchange(nullptr, std::memory_order_relaxed)) {}
  StepOperation& operator=(StepOperation&&) = delete;
  ~StepOperation() {
    auto* const operations = operations_.load(std::memory_order_relaxed);
    if (operations != nullptr) operations->End();
  }

  // REQUIRES: this is none.
  void Begin(OutstandingOperations& operations) {
    operations.Begin();
    operations_.store(&operations, std::memory_order_relaxed);
  }
  // Before this goes. Two threads may call it at once.
  void End() {
    auto* const operations = operations_.exchange(nullptr, std::memory_order_relaxed);
    if (operations != nullptr) operations->End();
  }

 private:
  std::atomic<OutstandingOperations*> operations_{nullptr};
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_OUTSTANDING_OPERATIONS_H_
