// SPDX-License-Identifier: Apache-2.0
// Informs ThreadSanitizer of the locks of Debian's Abseil, in programs of Tsan builds only.
//
// That Abseil is a shared library without instrumentation, so the sanitizer sees no order between
// two holders of an absl::Mutex and reports every field it guards. The functions below interpose
// on the library's (the dynamic linker prefers the program's own symbols), call them, and add the
// order: what was done before a release is visible after the next acquire of the same object.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>
#include <stdio.h>
#include <stdlib.h>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

// Part of the sanitizer's runtime.
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);

namespace {

// Returns the library's own function with this mangled name.
template <typename Function>
Function Original(const char* name) {
  void* const address = dlsym(RTLD_NEXT, name);
  if (address == nullptr) {
    // Without it nothing that follows can be trusted.
    fprintf(stderr, "tsan_abseil: Abseil has no %s: its inline namespace is another one\n", name);
    abort();
  }
  return reinterpret_cast<Function>(address);
}

// A thread that unlocks evaluates the conditions of waiters while it still holds the lock, but
// after the sanitizer was told of the release: such reads are not races.
class IgnoreReads final {
 public:
  IgnoreReads() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~IgnoreReads() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

}  // namespace

// Debian's inline namespace is absl::debian3; a member function takes `this` first.
#define FERRY_ORIGINAL(name, ...) \
  static const auto original = Original<__VA_ARGS__>("_ZN4absl7debian3" name)
#define FERRY_ORIGINAL_CONST(name, ...) \
  static const auto original = Original<__VA_ARGS__>("_ZNK4absl7debian3" name)

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  FERRY_ORIGINAL("5Mutex4LockEv", void (*)(Mutex*));
  original(this);
  __tsan_acquire(this);
}

bool Mutex::TryLock() {
  FERRY_ORIGINAL("5Mutex7TryLockEv", bool (*)(Mutex*));
  const bool locked = original(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::Unlock() {
  FERRY_ORIGINAL("5Mutex6UnlockEv", void (*)(Mutex*));
  __tsan_release(this);
  const IgnoreReads ignore;
  original(this);
}

void Mutex::ReaderLock() {
  FERRY_ORIGINAL("5Mutex10ReaderLockEv", void (*)(Mutex*));
  original(this);
  __tsan_acquire(this);
}

bool Mutex::ReaderTryLock() {
  FERRY_ORIGINAL("5Mutex13ReaderTryLockEv", bool (*)(Mutex*));
  const bool locked = original(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::ReaderUnlock() {
  FERRY_ORIGINAL("5Mutex12ReaderUnlockEv", void (*)(Mutex*));
  __tsan_release(this);
  const IgnoreReads ignore;
  original(this);
}

void Mutex::Await(const Condition& condition) {
  FERRY_ORIGINAL("5Mutex5AwaitERKNS0_9ConditionE", void (*)(Mutex*, const Condition&));
  __tsan_release(this);
  const IgnoreReads ignore;
  original(this, condition);
  __tsan_acquire(this);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  FERRY_ORIGINAL("5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE",
                 bool (*)(Mutex*, const Condition&, Duration));
  __tsan_release(this);
  const IgnoreReads ignore;
  const bool holds = original(this, condition, timeout);
  __tsan_acquire(this);
  return holds;
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  FERRY_ORIGINAL("5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE",
                 bool (*)(Mutex*, const Condition&, Time));
  __tsan_release(this);
  const IgnoreReads ignore;
  const bool holds = original(this, condition, deadline);
  __tsan_acquire(this);
  return holds;
}

void Mutex::LockWhen(const Condition& condition) {
  FERRY_ORIGINAL("5Mutex8LockWhenERKNS0_9ConditionE", void (*)(Mutex*, const Condition&));
  original(this, condition);
  __tsan_acquire(this);
}

bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  FERRY_ORIGINAL("5Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE",
                 bool (*)(Mutex*, const Condition&, Duration));
  const bool holds = original(this, condition, timeout);
  __tsan_acquire(this);
  return holds;
}

bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  FERRY_ORIGINAL("5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE",
                 bool (*)(Mutex*, const Condition&, Time));
  const bool holds = original(this, condition, deadline);
  __tsan_acquire(this);
  return holds;
}

void CondVar::Wait(Mutex* mutex) {
  FERRY_ORIGINAL("7CondVar4WaitEPNS0_5MutexE", void (*)(CondVar*, Mutex*));
  __tsan_release(mutex);
  const IgnoreReads ignore;
  original(this, mutex);
  __tsan_acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  FERRY_ORIGINAL("7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE",
                 bool (*)(CondVar*, Mutex*, Duration));
  __tsan_release(mutex);
  const IgnoreReads ignore;
  const bool timed_out = original(this, mutex, timeout);
  __tsan_acquire(mutex);
  return timed_out;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  FERRY_ORIGINAL("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE",
                 bool (*)(CondVar*, Mutex*, Time));
  __tsan_release(mutex);
  const IgnoreReads ignore;
  const bool timed_out = original(this, mutex, deadline);
  __tsan_acquire(mutex);
  return timed_out;
}

void Notification::Notify() {
  FERRY_ORIGINAL("12Notification6NotifyEv", void (*)(Notification*));
  __tsan_release(this);
  // The flag behind the lock, which the inline HasBeenNotified loads.
  static_assert(sizeof(Notification) == 2 * sizeof(Mutex));
  __tsan_release(reinterpret_cast<char*>(this) + sizeof(Mutex));
  original(this);
}

void Notification::WaitForNotification() const {
  FERRY_ORIGINAL_CONST("12Notification19WaitForNotificationEv", void (*)(const Notification*));
  original(this);
  __tsan_acquire(const_cast<Notification*>(this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  FERRY_ORIGINAL_CONST("12Notification30WaitForNotificationWithTimeoutENS0_8DurationE",
                       bool (*)(const Notification*, Duration));
  const bool notified = original(this, timeout);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

bool Notification::WaitForNotificationWithDeadline(Time deadline) const {
  FERRY_ORIGINAL_CONST("12Notification31WaitForNotificationWithDeadlineENS0_4TimeE",
                       bool (*)(const Notification*, Time));
  const bool notified = original(this, deadline);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

ABSL_NAMESPACE_END
}  // namespace absl
