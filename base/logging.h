// SPDX-License-Identifier: Apache-2.0
// Logging to standard error, controlled by FERRY_LOG (docs/logging.md).
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

// In the order of their names in logging.cc. kTensorflow covers worker, graph and master.
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

// The lowest level of each component that is written.
using LogLevels = std::array<LogLevel, kLogComponents>;

// The parsed value of FERRY_LOG.
struct LogSpec {
  LogLevels levels = {};
  // The error in the value, on one line that names the valid choices; empty if there is none.
  // The valid parts apply all the same.
  std::string warning;
};

// Parses "LEVEL", "COMPONENT=LEVEL" or several of these separated by commas. A level alone applies
// to all components that are not named, wherever it stands; later entries override earlier ones.
// The default is warnings and errors only.
LogSpec ParseLogSpec(absl::string_view text);

// Overrides the levels that FERRY_LOG set at process start. Thread-safe.
void SetLogLevels(const LogLevels& levels);

// Sets the node id that this process's lines carry from when it has joined until it leaves. A
// process may be several nodes; its lines then name none. Thread-safe.
void LogNodeJoined(int node_id);
void LogNodeLeft(int node_id);

// For tests: redirects lines from standard error to `output`; null restores standard error. Called
// with a lock held, so it must not log.
void SetLogOutput(std::function<void(absl::string_view line)> output);

namespace log_internal {

extern std::array<std::atomic<uint8_t>, kLogComponents> least_levels;

void Write(LogComponent component, LogLevel level, fmt::string_view format, fmt::format_args args);

// Converts an argument to the type that fmt formats.
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

// Out of line, so that a disabled log statement costs a comparison and a jump.
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
// evaluated only if the line is written. Never blocks: a line that standard error does not accept
// is counted and dropped. May be used with locks held, but not in signal handlers.
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
