// SPDX-License-Identifier: Apache-2.0
// OutstandingOperations: the number of a step's sends not yet received or acknowledged.
#ifndef FERRY_RENDEZVOUS_OUTSTANDING_OPERATIONS_H_
#define FERRY_RENDEZVOUS_OUTSTANDING_OPERATIONS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

namespace ferry {

// A count that one or more callers wait for. Thread-safe. Kept alive by its owner and by every
// unfinished operation, without a separate reference count: an operation costs one atomic addition
// at its start and one subtraction at its end.
class OutstandingOperations final {
 public:
  // Called on the thread that ends the last operation while there is a waiter, with no lock held.
  using Wake = std::function<void()>;
  struct Releaser {
    void operator()(OutstandingOperations* operations) const { operations->Release(); }
  };
  using Ptr = std::unique_ptr<OutstandingOperations, Releaser>;

  // `wake` must outlive the owner, and any thread that ends an operation while there is a waiter;
  // null: waiters poll.
  static Ptr Create(const Wake* wake) { return Ptr(new OutstandingOperations(wake)); }

  OutstandingOperations(const OutstandingOperations&) = delete;
  OutstandingOperations& operator=(const OutstandingOperations&) = delete;

  // The owner or another operation must be alive.
  void Begin() { state_.fetch_add(1, std::memory_order_relaxed); }
  // A thread that then reads a count of 0 sees everything that happened before.
  void End() {
    const Wake* const wake = wake_;
    const uint64_t before = state_.fetch_sub(1, std::memory_order_acq_rel);
    // From here on this may have been deleted, unless this thread has to delete it.
    if ((before & kCount) != 1) return;
    if ((before & kReleased) != 0) {
      delete this;
    } else if ((before & kWaiters) != 0 && wake != nullptr) {
      (*wake)();
    }
  }
  uint64_t count() const { return state_.load(std::memory_order_acquire) & kCount; }

  // A caller that waits for a count of 0, and is woken then. The owner must outlive it.
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
  // The count, the number of waiters, and whether the owner has released it: one word, so that the
  // thread ending the last operation reads all three at once.
  std::atomic<uint64_t> state_{0};
};

// An operation, or none; the destructor ends it.
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

  // REQUIRES: no operation.
  void Begin(OutstandingOperations& operations) {
    operations.Begin();
    operations_.store(&operations, std::memory_order_relaxed);
  }
  // Ends it before the destructor does. Two threads may call this concurrently.
  void End() {
    auto* const operations = operations_.exchange(nullptr, std::memory_order_relaxed);
    if (operations != nullptr) operations->End();
  }

 private:
  std::atomic<OutstandingOperations*> operations_{nullptr};
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_OUTSTANDING_OPERATIONS_H_
