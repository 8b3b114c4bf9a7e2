// SPDX-License-Identifier: Apache-2.0
// Preloaded into a process of ferry's, makes it appear to be on another machine by its clocks and
// the kernel's boot id: FERRY_TEST_CLOCK_AHEAD_NS is added to the time since 1970, and
// FERRY_TEST_BOOT_ID names the file that is read instead of the kernel's.
#include <dlfcn.h>
#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

int64_t AheadNs() {
  const char* const text = std::getenv("FERRY_TEST_CLOCK_AHEAD_NS");
  return text == nullptr ? 0 : std::strtoll(text, nullptr, 10);
}

template <typename Function>
Function Next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* now) {
  static const auto next = Next<int (*)(clockid_t, timespec*)>("clock_gettime");
  static const int64_t ahead_ns = AheadNs();
  const int result = next(clock, now);
  if (result != 0 || clock != CLOCK_REALTIME) return result;
  const int64_t ns = now->tv_sec * kSecondNs + now->tv_nsec + ahead_ns;
  now->tv_sec = ns / kSecondNs;
  now->tv_nsec = ns % kSecondNs;
  return 0;
}

// The functions with which the standard library's streams open files.
extern "C" FILE* fopen64(const char* path, const char* mode) {
  static const auto next = Next<FILE* (*)(const char*, const char*)>("fopen64");
  const char* const other = std::getenv("FERRY_TEST_BOOT_ID");
  const bool is_boot_id = std::strcmp(path, "/proc/sys/kernel/random/boot_id") == 0;
  return next(is_boot_id && other != nullptr ? other : path, mode);
}
