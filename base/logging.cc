// SPDX-License-Identifier: Apache-2.0
// Component and level names, and a sink that never waits for the reader of standard error.
#include "base/logging.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"

#include "base/bounded_text.h"
#include "base/text.h"

namespace ferry {
namespace {

constexpr std::array<absl::string_view, 6> kLevelNames = {"trace", "debug", "info",
                                                          "warn",  "error", "off"};
constexpr std::array<absl::string_view, kLogComponents> kComponentNames = {
    "coord", "rendezvous", "transport", "node", "launch", "gpu", "tensorflow", "cli"};
constexpr LogLevel kUnlessAsked = LogLevel::kWarn;
// Mistakes in FERRY_LOG that the warning names.
constexpr size_t kNamedMistakes = 4;
// A pipe write of up to PIPE_BUF bytes is atomic; a line also has a prefix and a newline.
constexpr size_t kMaxMessageBytes = 3800;

// Returns the index of `name`, or the size of `names`.
template <size_t kCount>
size_t Find(const std::array<absl::string_view, kCount>& names, absl::string_view name) {
  size_t i = 0;
  while (i < kCount && !absl::EqualsIgnoreCase(names[i], name)) ++i;
  return i;
}

spdlog::level::level_enum SpdlogLevel(LogLevel level) {
  static_assert(static_cast<int>(LogLevel::kTrace) == spdlog::level::trace &&
                static_cast<int>(LogLevel::kError) == spdlog::level::err);
  return static_cast<spdlog::level::level_enum>(level);
}

// Escapes `text` so that it fits on one line.
std::string OnOneLine(absl::string_view text) {
  std::string line;
  line.reserve(text.size());
  for (const char c : text) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      absl::StrAppend(&line, "\\x", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    } else {
      line.push_back(c);
    }
  }
  return line;
}

// The ids of the nodes that this process is.
struct Nodes {
  absl::Mutex mu;
  std::multiset<int> ids ABSL_GUARDED_BY(mu);

  std::string Text() {
    absl::MutexLock lock(&mu);
    if (ids.empty()) return "-";
    return *ids.begin() == *ids.rbegin() ? absl::StrCat(*ids.begin()) : "several";
  }
};

// Never destroyed: threads log until the process has ended.
Nodes& TheNodes() {
  static Nodes& nodes = *new Nodes;
  return nodes;
}

// How much of a line was written.
enum class Written { kAll, kSome, kNone };

// Writes `line` unless that would block because the reader of standard error does not read, such
// as a pager on its first page or a stopped terminal. O_NONBLOCK is not used: it would affect
// every process that shares the stream.
Written WriteToStderr(absl::string_view line) {
  struct stat about;
  if (fstat(STDERR_FILENO, &about) != 0) return Written::kNone;
  ssize_t count = -1;
  do {
    if (S_ISREG(about.st_mode)) {
      count = write(STDERR_FILENO, line.data(), line.size());
      continue;
    }
    // Writing to a pipe whose reader has gone would end the process (SIGPIPE).
    pollfd output = {STDERR_FILENO, POLLOUT, 0};
    if (poll(&output, 1, 0) != 1 || output.revents != POLLOUT) return Written::kNone;
    if (S_ISSOCK(about.st_mode)) {
      count = send(STDERR_FILENO, line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      continue;
    }
    // Another process may have filled the pipe since.
    iovec part = {const_cast<char*>(line.data()), line.size()};
    count = S_ISFIFO(about.st_mode) ? pwritev2(STDERR_FILENO, &part, 1, -1, RWF_NOWAIT) : -1;
    const bool is_unknown =
        errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL || errno == ESPIPE;
    if (!S_ISFIFO(about.st_mode) || (count < 0 && is_unknown)) {
      count = write(STDERR_FILENO, line.data(), line.size());
    }
  } while (count < 0 && errno == EINTR);
  if (count <= 0) return Written::kNone;
  return static_cast<size_t>(count) == line.size() ? Written::kAll : Written::kSome;
}

class Sink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void set_output(std::function<void(absl::string_view)> output) {
    const std::lock_guard<std::mutex> lock(mutex_);
    output_ = std::move(output);
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t text;
    formatter_->format(message, text);
    const absl::string_view line(text.data(), text.size());
    if (output_) return output_(line);
    if (is_torn_ || lost_ > 0) {
      const std::string before =
          absl::StrCat(is_torn_ ? "\n" : "",
                       lost_ > 0 ? absl::StrCat("ferry: ", lost_,
                                                " lines of the log were lost here, since standard "
                                                "error took no more\n")
                                 : "");
      const Written written = WriteToStderr(before);
      if (written == Written::kNone) {
        ++lost_;
        return;
      }
      is_torn_ = written == Written::kSome;
      lost_ = 0;
    }
    switch (WriteToStderr(line)) {
      case Written::kAll:
        return;
      case Written::kSome:
        is_torn_ = true;
        [[fallthrough]];
      case Written::kNone:
        ++lost_;
    }
  }
  void flush_() override {}

  std::function<void(absl::string_view)> output_;
  int64_t lost_ = 0;
  // The last line was written without its newline.
  bool is_torn_ = false;
};

class NodeFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg&, const std::tm&,
              spdlog::memory_buf_t& destination) override {
    const std::string text = TheNodes().Text();
    destination.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<NodeFlag>();
  }
};

// Prints levels by the names that FERRY_LOG uses, which are not spdlog's.
class LevelFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& destination) override {
    const absl::string_view name = LogLevelName(static_cast<LogLevel>(message.level));
    destination.append(name.data(), name.data() + name.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<LevelFlag>();
  }
};

// The loggers of the process.
struct Log {
  Log() : sink(std::make_shared<Sink>()) {
    auto formatter =
        std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc, "\n");
    formatter->add_flag<NodeFlag>('N');
    formatter->add_flag<LevelFlag>('V');
    formatter->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %V %n node=%N pid=%P %v");
    sink->set_formatter(std::move(formatter));
    for (const absl::string_view name : kComponentNames) {
      loggers.push_back(std::make_unique<spdlog::logger>(std::string(name), sink));
      // Callers have already checked the level.
      loggers.back()->set_level(spdlog::level::trace);
      // The default handler prints to standard error and may block there.
      loggers.back()->set_error_handler([](const std::string&) {});
    }
  }

  const std::shared_ptr<Sink> sink;
  std::vector<std::unique_ptr<spdlog::logger>> loggers;
};

// Never destroyed, as above.
Log& TheLog() {
  static Log& log = *new Log;
  return log;
}

}  // namespace

namespace log_internal {

// Warnings are enabled for what is logged before FERRY_LOG has been read.
static_assert(kLogComponents == 8);
constinit std::array<std::atomic<uint8_t>, kLogComponents> least_levels = {
    static_cast<uint8_t>(kUnlessAsked), static_cast<uint8_t>(kUnlessAsked),
    static_cast<uint8_t>(kUnlessAsked), static_cast<uint8_t>(kUnlessAsked),
    static_cast<uint8_t>(kUnlessAsked), static_cast<uint8_t>(kUnlessAsked),
    static_cast<uint8_t>(kUnlessAsked), static_cast<uint8_t>(kUnlessAsked)};

void Write(LogComponent component, LogLevel level, fmt::string_view format, fmt::format_args args) {
  std::string text = OnOneLine(fmt::vformat(format, args));
  if (text.size() > kMaxMessageBytes) {
    text.resize(kMaxMessageBytes);
    text += "...";
  }
  TheLog().loggers[static_cast<size_t>(component)]->log(SpdlogLevel(level),
                                                        spdlog::string_view_t(text));
}

}  // namespace log_internal

absl::string_view LogLevelName(LogLevel level) { return kLevelNames[static_cast<size_t>(level)]; }

absl::string_view LogComponentName(LogComponent component) {
  return kComponentNames[static_cast<size_t>(component)];
}

LogSpec ParseLogSpec(absl::string_view text) {
  LogLevel others = kUnlessAsked;
  std::array<bool, kLogComponents> is_named = {};
  LogSpec spec;
  std::vector<std::string> mistakes;
  for (absl::string_view entry : absl::StrSplit(text, ',')) {
    entry = absl::StripAsciiWhitespace(entry);
    if (entry.empty()) continue;
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(entry, absl::MaxSplits('=', 1));
    const bool is_alone = !absl::StrContains(entry, '=');
    const absl::string_view name = absl::StripAsciiWhitespace(parts.first);
    const absl::string_view value = is_alone ? name : absl::StripAsciiWhitespace(parts.second);
    const size_t component = is_alone ? 0 : Find(kComponentNames, name);
    const size_t level = Find(kLevelNames, value);
    if (component == kLogComponents) {
      mistakes.push_back(absl::StrCat(Quoted(name, 40), " is no component"));
    } else if (level < kLevelNames.size()) {
      const auto asked = static_cast<LogLevel>(level);
      (is_alone ? others : spec.levels[component]) = asked;
      is_named[component] = is_named[component] || !is_alone;
    } else if (is_alone && Find(kComponentNames, name) < kLogComponents) {
      mistakes.push_back(absl::StrCat(name, " has no level"));
    } else {
      mistakes.push_back(absl::StrCat(Quoted(value, 40), " is no level"));
    }
  }
  for (size_t i = 0; i < kLogComponents; ++i) {
    if (!is_named[i]) spec.levels[i] = others;
  }
  if (mistakes.empty()) return spec;
  spec.warning = absl::StrCat("FERRY_LOG: ", BoundedList(mistakes, kNamedMistakes),
                              "; it is LEVEL or COMPONENT=LEVEL, several with commas; components: ",
                              absl::StrJoin(kComponentNames, ", "),
                              "; levels: ", absl::StrJoin(kLevelNames, ", "));
  return spec;
}

void SetLogLevels(const LogLevels& levels) {
  for (size_t i = 0; i < kLogComponents; ++i) {
    log_internal::least_levels[i].store(static_cast<uint8_t>(levels[i]), std::memory_order_relaxed);
  }
}

void LogNodeJoined(int node_id) {
  Nodes& nodes = TheNodes();
  absl::MutexLock lock(&nodes.mu);
  nodes.ids.insert(node_id);
}

void LogNodeLeft(int node_id) {
  Nodes& nodes = TheNodes();
  absl::MutexLock lock(&nodes.mu);
  if (const auto found = nodes.ids.find(node_id); found != nodes.ids.end()) nodes.ids.erase(found);
}

void SetLogOutput(std::function<void(absl::string_view line)> output) {
  TheLog().sink->set_output(std::move(output));
}

namespace {

// Runs before main, so that everything a program logs is covered without an explicit call.
[[maybe_unused]] const bool kHasReadEnvironment = [] {
  const char* const text = std::getenv("FERRY_LOG");
  if (text == nullptr) return false;
  const LogSpec spec = ParseLogSpec(text);
  SetLogLevels(spec.levels);
  if (!spec.warning.empty()) WriteToStderr(absl::StrCat("ferry: ", spec.warning, "\n"));
  return true;
}();

}  // namespace
}  // namespace ferry
