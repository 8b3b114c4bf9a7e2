// SPDX-License-Identifier: Apache-2.0
// Signals are looked for every tenth of a second.
#include "python/src/waits.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "python/src/deferred_release.h"
#include "python/src/errors.h"
#include "python/src/fork_guard.h"

namespace ferry::python {
namespace nb = nanobind;
namespace {

constexpr absl::Duration kSlice = absl::Milliseconds(100);

void LookForSignals() {
  DeferredReleases::Get().Run();
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

// Only this thread runs signal handlers.
bool IsMainThread() {
  static const unsigned long main_thread = nb::cast<unsigned long>(
      nb::module_::import_("threading").attr("main_thread")().attr("ident"));
  return PyThread_get_thread_ident() == main_thread;
}

// How many threads are in RunInterruptibly's calls. Never destroyed: they may outlive static
// objects.
class CallCount final {
 public:
  static CallCount& Get() {
    static auto& count = *new CallCount();
    return count;
  }

  void Add(int change) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    count_ += change;
  }
  bool AwaitNone(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_) {
    // The threads are the parent's.
    if (guard_.is_inherited()) return true;
    absl::MutexLock lock(&mu_);
    const auto is_none = [this] {
      mu_.AssertHeld();
      return count_ == 0;
    };
    return mu_.AwaitWithTimeout(absl::Condition(&is_none), timeout);
  }

 private:
  const ForkGuard guard_;
  absl::Mutex mu_;
  int count_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace

bool AwaitInterruptedCalls(absl::Duration timeout) { return CallCount::Get().AwaitNone(timeout); }

nb::object Timeout::Default() { return nb::borrow(Py_Ellipsis); }

absl::Duration Timeout::Parse(nb::handle timeout, absl::Duration default_timeout) {
  if (timeout.ptr() == Py_Ellipsis) return default_timeout;
  double seconds = 0;
  if (PyFloat_Check(timeout.ptr()) || PyLong_Check(timeout.ptr())) {
    seconds = PyFloat_AsDouble(timeout.ptr());
    if (seconds == -1.0 && PyErr_Occurred() != nullptr) throw nb::python_error();
  } else if (timeout.is_none()) {
    RaiseTypeError(
        "timeout=None: every wait needs a deadline; give seconds or a timedelta, or "
        "leave it out for the job's default");
  } else if (nb::hasattr(timeout, "total_seconds")) {
    seconds = nb::cast<double>(timeout.attr("total_seconds")());
  } else if (nb::hasattr(timeout, "__float__")) {
    // Numbers of other packages.
    seconds = nb::cast<double>(nb::float_(nb::borrow(timeout)));
  } else {
    RaiseTypeError("timeout must be a number of seconds or a timedelta");
  }
  if (!std::isfinite(seconds) || seconds < 0) {
    RaiseValueError(absl::StrCat("timeout must be finite and not negative, and is ", seconds));
  }
  return absl::Seconds(seconds);
}

bool WaitInSlices(absl::Duration timeout, absl::FunctionRef<bool(absl::Duration slice)> wait) {
  const absl::Time deadline = absl::Now() + timeout;
  for (absl::Duration left = timeout;; left = deadline - absl::Now()) {
    const absl::Duration slice = std::clamp(left, absl::ZeroDuration(), kSlice);
    bool is_done = false;
    {
      const nb::gil_scoped_release release;
      is_done = wait(slice);
    }
    if (is_done) return true;
    LookForSignals();
    if (left <= kSlice) return false;
  }
}

bool RunInterruptibly(std::function<void()> call, const std::function<void()>& interrupt,
                      const std::function<bool()>& is_over) {
  if (is_over == nullptr && !IsMainThread()) {
    const nb::gil_scoped_release release;
    call();
    return true;
  }
  const auto done = std::make_shared<absl::Notification>();
  CallCount::Get().Add(1);
  std::thread([call = std::move(call), done]() mutable {
    call();
    // It owns what it has used, such as the last reference to a node, and that ends here.
    call = nullptr;
    CallCount::Get().Add(-1);
    done->Notify();
  }).detach();
  bool has_ended = false;
  try {
    WaitInSlices(absl::Hours(24 * 365), [&](absl::Duration slice) {
      if (done->WaitForNotificationWithTimeout(slice)) return true;
      if (is_over == nullptr) return false;
      const nb::gil_scoped_acquire acquire;
      has_ended = is_over();
      return has_ended;
    });
  } catch (nb::python_error&) {
    const nb::gil_scoped_release release;
    interrupt();
    throw;
  }
  return !has_ended || done->HasBeenNotified();
}

}  // namespace ferry::python
