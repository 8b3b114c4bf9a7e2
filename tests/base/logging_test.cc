// SPDX-License-Identifier: Apache-2.0
// How FERRY_LOG is parsed, what is written, and the cost of a reader that does not read.
#include "base/logging.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "base/thread.h"
#include "base/unique_fd.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::SizeIs;

LogLevel LevelOf(const LogSpec& spec, LogComponent component) {
  return spec.levels[static_cast<size_t>(component)];
}

LogLevels All(LogLevel level) {
  LogLevels levels;
  levels.fill(level);
  return levels;
}

// Restores the default levels and output.
class LoggingTest : public ::testing::Test {
 protected:
  ~LoggingTest() override {
    SetLogOutput(nullptr);
    SetLogLevels(All(LogLevel::kWarn));
  }

  void Keep() {
    SetLogOutput([this](absl::string_view line) { lines_.emplace_back(line); });
  }

  std::vector<std::string> lines_;
};

using LogSpecTest = LoggingTest;

TEST_F(LogSpecTest, DefaultIsWarnings) {
  for (const absl::string_view text : {"", " ", ",", " , ,"}) {
    const LogSpec spec = ParseLogSpec(text);
    EXPECT_EQ(spec.levels, All(LogLevel::kWarn)) << text;
    EXPECT_THAT(spec.warning, IsEmpty()) << text;
  }
}

TEST_F(LogSpecTest, LevelAppliesToAllComponents) {
  EXPECT_EQ(ParseLogSpec("trace").levels, All(LogLevel::kTrace));
  EXPECT_EQ(ParseLogSpec("debug").levels, All(LogLevel::kDebug));
  EXPECT_EQ(ParseLogSpec("info").levels, All(LogLevel::kInfo));
  EXPECT_EQ(ParseLogSpec("warn").levels, All(LogLevel::kWarn));
  EXPECT_EQ(ParseLogSpec("error").levels, All(LogLevel::kError));
  EXPECT_EQ(ParseLogSpec("off").levels, All(LogLevel::kOff));
}

TEST_F(LogSpecTest, ComponentHasItsOwnLevel) {
  const LogSpec spec = ParseLogSpec("transport=debug,coord=info");
  EXPECT_THAT(spec.warning, IsEmpty());
  EXPECT_EQ(LevelOf(spec, LogComponent::kTransport), LogLevel::kDebug);
  EXPECT_EQ(LevelOf(spec, LogComponent::kCoord), LogLevel::kInfo);
  EXPECT_EQ(LevelOf(spec, LogComponent::kGpu), LogLevel::kWarn);
}

TEST_F(LogSpecTest, EveryComponentHasAName) {
  for (size_t i = 0; i < kLogComponents; ++i) {
    const auto component = static_cast<LogComponent>(i);
    const LogSpec spec = ParseLogSpec(absl::StrCat("off,", LogComponentName(component), "=trace"));
    EXPECT_THAT(spec.warning, IsEmpty()) << LogComponentName(component);
    LogLevels expected = All(LogLevel::kOff);
    expected[i] = LogLevel::kTrace;
    EXPECT_EQ(spec.levels, expected) << LogComponentName(component);
  }
}

TEST_F(LogSpecTest, BareLevelAppliesToTheOthersInAnyPosition) {
  for (const absl::string_view text : {"debug,coord=off", "coord=off,debug"}) {
    const LogSpec spec = ParseLogSpec(text);
    EXPECT_EQ(LevelOf(spec, LogComponent::kCoord), LogLevel::kOff) << text;
    EXPECT_EQ(LevelOf(spec, LogComponent::kNode), LogLevel::kDebug) << text;
  }
}

TEST_F(LogSpecTest, LastEntryWins) {
  const LogSpec spec = ParseLogSpec("info,coord=debug,coord=error,trace");
  EXPECT_EQ(LevelOf(spec, LogComponent::kCoord), LogLevel::kError);
  EXPECT_EQ(LevelOf(spec, LogComponent::kNode), LogLevel::kTrace);
}

TEST_F(LogSpecTest, SpacesAndCapitalsAreIgnored) {
  const LogSpec spec = ParseLogSpec(" Transport = DEBUG , Info ");
  EXPECT_THAT(spec.warning, IsEmpty());
  EXPECT_EQ(LevelOf(spec, LogComponent::kTransport), LogLevel::kDebug);
  EXPECT_EQ(LevelOf(spec, LogComponent::kCli), LogLevel::kInfo);
}

TEST_F(LogSpecTest, InvalidEntryIsNamedWithTheValidOnes) {
  const struct {
    absl::string_view text;
    absl::string_view mistake;
  } kMistakes[] = {
      {"transports=debug", "\"transports\" is no component"},
      {"transport=loud", "\"loud\" is no level"},
      {"transport=", "\"\" is no level"},
      {"=debug", "\"\" is no component"},
      {"=", "\"\" is no component"},
      {"loud", "\"loud\" is no level"},
      {"transport", "transport has no level"},
      {"transport=debug=info", "\"debug=info\" is no level"},
      {"transport:debug", "\"transport:debug\" is no level"},
      {"3", "\"3\" is no level"},
  };
  for (const auto& [text, mistake] : kMistakes) {
    const LogSpec spec = ParseLogSpec(text);
    EXPECT_EQ(spec.levels, All(LogLevel::kWarn)) << text;
    EXPECT_THAT(spec.warning,
                AllOf(HasSubstr(absl::StrCat("FERRY_LOG: ", mistake, ";")),
                      HasSubstr("components: coord, rendezvous, transport, node, launch, gpu, "
                                "tensorflow, cli"),
                      HasSubstr("levels: trace, debug, info, warn, error, off")))
        << text;
  }
}

TEST_F(LogSpecTest, ValidEntriesNextToAnInvalidOneCount) {
  const LogSpec spec = ParseLogSpec("transport=loud,coord=debug,nobody=info,error");
  EXPECT_THAT(spec.warning, HasSubstr("\"loud\" is no level, \"nobody\" is no component;"));
  EXPECT_EQ(LevelOf(spec, LogComponent::kCoord), LogLevel::kDebug);
  EXPECT_EQ(LevelOf(spec, LogComponent::kTransport), LogLevel::kError);
}

TEST_F(LogSpecTest, WarningIsOneLineOfBoundedLength) {
  std::string text = "a\nb\x1b[31m";
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&text, ",", std::string(1000, 'x'));
  const LogSpec spec = ParseLogSpec(text);
  EXPECT_THAT(spec.warning,
              AllOf(Not(HasSubstr("\n")), Not(HasSubstr("\x1b")), HasSubstr(" and 997 more;")));
  EXPECT_LT(spec.warning.size(), 1000u);
}

TEST_F(LoggingTest, LineNamesItsTimeLevelComponentNodeAndProcess) {
  Keep();
  FERRY_LOG_WARN(kTransport, "descriptor sent: peer={} step={} key={}", 1, int64_t{7},
                 absl::string_view("a;b"));
  LogNodeJoined(3);
  FERRY_LOG_ERROR(kCoord, "reason={}", absl::NotFoundError("gone"));
  LogNodeJoined(4);
  FERRY_LOG_ERROR(kNode, "of two nodes");
  LogNodeLeft(3);
  LogNodeLeft(4);
  FERRY_LOG_ERROR(kNode, "of none");
  constexpr char kTime[] = "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{3}Z";
  const std::string pid = absl::StrCat("pid=", getpid());
  EXPECT_THAT(
      lines_,
      ElementsAre(
          MatchesRegex(absl::StrCat(kTime, " warn transport node=- ", pid,
                                    " descriptor sent: peer=1 step=7 key=a;b\n")),
          MatchesRegex(
              absl::StrCat(kTime, " error coord node=3 ", pid, " reason=NOT_FOUND: gone\n")),
          MatchesRegex(absl::StrCat(kTime, " error node node=several ", pid, " of two nodes\n")),
          MatchesRegex(absl::StrCat(kTime, " error node node=- ", pid, " of none\n"))));
}

TEST_F(LoggingTest, ArgumentsOfDisabledMessagesAreNotEvaluated) {
  Keep();
  int evaluated = 0;
  const auto count = [&evaluated] { return ++evaluated; };
  FERRY_LOG_TRACE(kTransport, "{}", count());
  FERRY_LOG_DEBUG(kTransport, "{}", count());
  FERRY_LOG_INFO(kTransport, "{}", count());
  EXPECT_EQ(evaluated, 0);
  FERRY_LOG_WARN(kTransport, "{}", count());
  FERRY_LOG_ERROR(kTransport, "{}", count());
  EXPECT_EQ(evaluated, 2);
  SetLogLevels(ParseLogSpec("off,transport=debug").levels);
  FERRY_LOG_ERROR(kCoord, "{}", count());
  FERRY_LOG_TRACE(kTransport, "{}", count());
  EXPECT_EQ(evaluated, 2);
  FERRY_LOG_DEBUG(kTransport, "{}", count());
  EXPECT_EQ(evaluated, 3);
  EXPECT_THAT(lines_, ElementsAre(EndsWith(" 1\n"), EndsWith(" 2\n"), EndsWith(" 3\n")));
}

TEST_F(LoggingTest, AnyContentIsOneLineOfBoundedLength) {
  Keep();
  FERRY_LOG_WARN(kCli, "{}", "a\nb\x1b[31m{}%s");
  FERRY_LOG_WARN(kCli, "{}", std::string(100'000, 'x'));
  ASSERT_THAT(lines_, SizeIs(2));
  EXPECT_THAT(lines_[0], EndsWith(" a\\x0ab\\x1b[31m{}%s\n"));
  EXPECT_THAT(lines_[1], EndsWith("xxx...\n"));
  // So that a pipe accepts it atomically.
  EXPECT_LE(lines_[1].size(), 4096u);
}

TEST_F(LoggingTest, LinesOfThreadsAreNotMixed) {
  Keep();
  constexpr int kThreads = 4;
  constexpr int kLines = 500;
  {
    std::vector<std::unique_ptr<Thread>> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.push_back(std::make_unique<Thread>("log", [t] {
        for (int i = 0; i < kLines; ++i) FERRY_LOG_WARN(kNode, "thread={} line={} end", t, i);
      }));
    }
  }
  ASSERT_THAT(lines_, SizeIs(kThreads * kLines));
  std::vector<int> next(kThreads, 0);
  for (const std::string& line : lines_) {
    int thread = -1;
    int number = -1;
    const size_t at = line.find("thread=");
    ASSERT_NE(at, std::string::npos) << line;
    ASSERT_EQ(std::sscanf(line.c_str() + at, "thread=%d line=%d", &thread, &number), 2) << line;
    EXPECT_THAT(line, EndsWith(" end\n"));
    EXPECT_EQ(number, next[static_cast<size_t>(thread)]++);
  }
}

// Redirects standard error to a descriptor for its lifetime.
class StderrInstead final {
 public:
  explicit StderrInstead(int fd) : kept_(dup(STDERR_FILENO)) { dup2(fd, STDERR_FILENO); }
  ~StderrInstead() { dup2(kept_.get(), STDERR_FILENO); }

 private:
  const UniqueFd kept_;
};

// The available bytes; the descriptor does not block.
std::string ReadAll(int fd) {
  std::string all;
  char bytes[4096];
  for (ssize_t got = 0; (got = read(fd, bytes, sizeof(bytes))) > 0;) {
    all.append(bytes, static_cast<size_t>(got));
  }
  return all;
}

// Writes lines until some must have been lost, then reads, and writes once more.
void ExpectThatLostLinesAreCounted(int read_end, int write_end) {
  ASSERT_EQ(fcntl(read_end, F_SETFL, O_NONBLOCK), 0);
  constexpr int kLines = 20'000;
  std::string before;
  std::string after;
  {
    const StderrInstead instead(write_end);
    // More than pipes and sockets hold: if a line waited for its reader, this would not end.
    for (int i = 0; i < kLines; ++i) FERRY_LOG_WARN(kNode, "line={} end", i);
    before = ReadAll(read_end);
    FERRY_LOG_WARN(kNode, "last line");
    after = ReadAll(read_end);
  }
  const std::vector<std::string> lines = absl::StrSplit(before + after, '\n', absl::SkipEmpty());
  int whole = 0;
  int lost = -1;
  for (const std::string& line : lines) {
    if (absl::StrContains(line, " line=") && absl::EndsWith(line, " end")) ++whole;
    std::sscanf(line.c_str(), "ferry: %d lines of the log were lost here", &lost);
  }
  EXPECT_GT(whole, 0);
  EXPECT_GT(lost, 0);
  EXPECT_EQ(whole + lost, kLines);
  EXPECT_THAT(lines.back(), EndsWith(" last line"));
}

TEST_F(LoggingTest, FullPipeDropsLinesAndReportsHowMany) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd read_end(ends[0]);
  const UniqueFd write_end(ends[1]);
  ExpectThatLostLinesAreCounted(read_end.get(), write_end.get());
}

TEST_F(LoggingTest, FullSocketDropsLinesAndReportsHowMany) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd read_end(ends[0]);
  const UniqueFd write_end(ends[1]);
  ExpectThatLostLinesAreCounted(read_end.get(), write_end.get());
}

TEST_F(LoggingTest, PipeWithoutAReaderEndsNoProcess) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd write_end(ends[1]);
  close(ends[0]);
  const StderrInstead instead(write_end.get());
  FERRY_LOG_WARN(kNode, "nobody reads this");
}

}  // namespace
}  // namespace ferry
