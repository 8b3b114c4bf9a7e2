// SPDX-License-Identifier: Apache-2.0
// Faults on demand, and the checks at the door.
#include "tests/support/strict_cuda/entry.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <list>
#include <mutex>
#include <string>
#include <utility>

#include "tests/support/strict_cuda/config.h"
#include "tests/support/strict_cuda/violation.h"

namespace strict_cuda {
namespace {

std::atomic<bool> initialized = false;
std::atomic<pid_t> home = 0;
std::atomic<CUresult> process_error = CUDA_SUCCESS;
thread_local bool in_host_function = false;
thread_local bool is_access_illegal = false;

struct Fault {
  std::string symbol;
  int error = 0;
  int after_n = 0;
  int times = 1;
};

struct Faults {
  std::mutex mu;
  std::list<Fault> waiting;
  std::condition_variable cleared;
  // How often they were cleared.
  int round = 0;
  // Calls that wait for that.
  int hanging = 0;
};

// STRICT_CUDA_FAIL="symbol:error[:after_n[:times]],..."; error -1: the call returns when they are
// cleared
Faults& TheFaults() {
  static Faults* const faults = [] {
    auto* const made = new Faults;
    for (const std::string& part : SplitText(FromEnvironment("STRICT_CUDA_FAIL", ""), ',')) {
      const std::vector<std::string> words = SplitText(part, ':');
      if (words.size() < 2) continue;
      Fault fault;
      fault.symbol = words[0];
      fault.error = std::atoi(words[1].c_str());
      if (words.size() > 2) fault.after_n = std::atoi(words[2].c_str());
      if (words.size() > 3) fault.times = std::atoi(words[3].c_str());
      made->waiting.push_back(fault);
    }
    return made;
  }();
  return *faults;
}

// Instead of an error: the process is killed at the call.
constexpr int kDies = -2;
// The call succeeds, and what it enqueues accesses an illegal address.
constexpr int kIllegalAccess = -3;

}  // namespace

int TakeFault(const char* symbol) {
  Faults& faults = TheFaults();
  std::unique_lock<std::mutex> lock(faults.mu);
  int error = 0;
  for (auto fault = faults.waiting.begin(); fault != faults.waiting.end();) {
    if (fault->symbol != symbol) {
      ++fault;
    } else if (fault->after_n > 0) {
      --fault->after_n;
      ++fault;
    } else {
      if (error == 0) error = fault->error;
      fault = --fault->times <= 0 ? faults.waiting.erase(fault) : std::next(fault);
    }
  }
  if (error == kDies) kill(getpid(), SIGKILL);
  if (error == kIllegalAccess) {
    is_access_illegal = true;
    return 0;
  }
  if (error < 0) {
    ++faults.hanging;
    faults.cleared.wait(lock, [&faults, round = faults.round] { return faults.round != round; });
    --faults.hanging;
    return 0;
  }
  return error;
}

void CheckFork(const char* symbol) {
  const pid_t self = getpid();
  pid_t expected = 0;
  if (home.compare_exchange_strong(expected, self) || expected == self) return;
  Violation(Rule::kFork, symbol, "process %d uses the driver that was initialized in process %d",
            self, expected);
}

void SetInitialized() { initialized = true; }
void SetProcessError(CUresult error) {
  CUresult none = CUDA_SUCCESS;
  process_error.compare_exchange_strong(none, error);
}

CUresult ProcessError() { return process_error; }
bool TakeIllegalAccess() { return std::exchange(is_access_illegal, false); }

void SetInHostFunction(bool is_in) { in_host_function = is_in; }

CUresult Enter(const char* symbol) {
  if (!initialized) return CUDA_ERROR_NOT_INITIALIZED;
  CheckFork(symbol);
  if (in_host_function) Violation(Rule::kHostFunction, symbol, "called by a host function");
  if (const CUresult error = ProcessError(); error != CUDA_SUCCESS) return error;
  is_access_illegal = false;
  return TakeFault(symbol);
}

extern "C" {

STRICT_CUDA_EXPORT void strict_cuda_fail(const char* symbol, int error, int after_n, int times) {
  const std::lock_guard<std::mutex> lock(TheFaults().mu);
  TheFaults().waiting.push_back(Fault{symbol, error, after_n, times});
}

STRICT_CUDA_EXPORT void strict_cuda_fail_next(const char* symbol, int error, int after_n) {
  strict_cuda_fail(symbol, error, after_n, 1);
}

STRICT_CUDA_EXPORT void strict_cuda_clear_faults() {
  const std::lock_guard<std::mutex> lock(TheFaults().mu);
  TheFaults().waiting.clear();
  ++TheFaults().round;
  TheFaults().cleared.notify_all();
}

STRICT_CUDA_EXPORT int strict_cuda_hanging() {
  const std::lock_guard<std::mutex> lock(TheFaults().mu);
  return TheFaults().hanging;
}

}  // extern "C"

}  // namespace strict_cuda
