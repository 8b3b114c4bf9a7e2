// SPDX-License-Identifier: Apache-2.0
// Lines on standard error of what a process does, as FERRY_LOG asks for them (docs/logging.md).
#ifndef FERRY_BASE_LOGGING_H_
#define FERRY_BASE_LOGGING_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include <fmt/core.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ferry {

enum class LogLevel : uint8_t { kTrace, kDebug, kInfo, kWarn, kError, kOff };

// In the order of their names in logging.cc. kTensorflow: worker, graph and master.
enum class LogComponent : uint8_t {
  kCoord,
  kRendezvous,
  kTransport,
  kNode,
  kLaunch,
  kGpu,
  kTensorflow,
  kCli,
};
inline constexpr size_t kLogComponents = 8;

absl::string_view LogLevelName(LogLevel level);
absl::string_view LogComponentName(LogComponent component);

// The least level of each component that is written.
using LogLevels = std::array<LogLevel, kLogComponents>;

// FERRY_LOG as it was read.
struct LogSpec {
  LogLevels levels = {};
  // What is wrong with it, on one line that names what would be right; empty: nothing. What is
  // right counts all the same.
  std::string warning;
};

// Reads "LEVEL", "COMPONENT=LEVEL" or several of these between commas. A level alone is for all
// components that are not named, wherever it stands; what comes later counts. Without it they write
// warnings and errors only.
LogSpec ParseLogSpec(absl::string_view text);

// Replaces what FERRY_LOG has asked for when the process began. Thread-safe.
void SetLogLevels(const LogLevels& levels);

// The node that this process is, for its lines, from the time it has joined until it leaves. A
// process may be several nodes; its lines then name none. Thread-safe.
void LogNodeJoined(int node_id);
void LogNodeLeft(int node_id);

// For tests: lines go there in the place of standard error; null: to standard error again. Called
// with a lock held, so that it must not log.
void SetLogOutput(std::function<void(absl::string_view line)> output);

namespace log_internal {

extern std::array<std::atomic<uint8_t>, kLogComponents> least_levels;

void Write(LogComponent component, LogLevel level, fmt::string_view format, fmt::format_args args);

// What fmt is given of an argument.
template <typename T>
struct Printed {
  using Type = T;
  static const T& Of(const T& value) { return value; }
};
template <>
struct Printed<absl::string_view> {
  using Type = fmt::string_view;
  static Type Of(absl::string_view value) { return {value.data(), value.size()}; }
};
template <>
struct Printed<absl::Status> {
  using Type = std::string;
  static Type Of(const absl::Status& value) { return value.ToString(); }
};

// Out of line, so that what a disabled line leaves where it stands is a comparison and a jump.
template <typename... Args>
[[gnu::cold, gnu::noinline]] void Format(LogComponent component, LogLevel level,
                                         fmt::format_string<typename Printed<Args>::Type...> format,
                                         const Args&... args) {
  Write(component, level, format, fmt::make_format_args(Printed<Args>::Of(args)...));
}

}  // namespace log_internal

inline bool IsLogged(LogComponent component, LogLevel level) {
  const std::atomic<uint8_t>& least = log_internal::least_levels[static_cast<size_t>(component)];
  return static_cast<uint8_t>(level) >= least.load(std::memory_order_relaxed);
}

}  // namespace ferry

// FERRY_LOG_DEBUG(kTransport, "request sent: peer={} step={}", peer, step_id): the arguments are
// evaluated only if the line is written. Never blocks: a line that standard error does not take is
// counted and dropped. May be used with locks held, but not in signal handlers.
#define FERRY_LOG_AT(level, component, ...)                                                     \
  do {                                                                                          \
    if (::ferry::IsLogged(::ferry::LogComponent::component, ::ferry::LogLevel::level))          \
        [[unlikely]] {                                                                          \
      ::ferry::log_internal::Format(::ferry::LogComponent::component, ::ferry::LogLevel::level, \
                                    __VA_ARGS__);                                               \
    }                                                                                           \
  } while (false)
#define FERRY_LOG_TRACE(component, ...) FERRY_LOG_AT(kTrace, component, __VA_ARGS__)
#define FERRY_LOG_DEBUG(component, ...) FERRY_LOG_AT(kDebug, component, __VA_ARGS__)
#define FERRY_LOG_INFO(component, ...) FERRY_LOG_AT(kInfo, component, __VA_ARGS__)
#define FERRY_LOG_WARN(component, ...) FERRY_LOG_AT(kWarn, component, __VA_ARGS__)
#define FERRY_LOG_ERROR(component, ...) FERRY_LOG_AT(kError, component, __VA_ARGS__)

#endif  // FERRY_BASE_LOGGING_H_
