// SPDX-License-Identifier: Apache-2.0
// NonBlockingWriter: pipes that are full, files, sockets, streams in memory, and readers that go.
#include "base/non_blocking_writer.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace ferry {
namespace {

// A stream to one end of a pipe or of a pair of sockets.
class Stream {
 public:
  explicit Stream(bool is_socket) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(is_socket ? socketpair(AF_UNIX, SOCK_STREAM, 0, ends) : pipe(ends), 0);
    reader_ = UniqueFd(ends[0]);
    fcntl(reader_.get(), F_SETFL, O_NONBLOCK);
    file_ = fdopen(ends[1], "w");
  }
  ~Stream() { std::fclose(file_); }

  std::FILE* file() { return file_; }
  // Everything that is there to be read.
  std::string Read() {
    std::string text;
    char buffer[65536];
    while (true) {
      const ssize_t count = read(reader_.get(), buffer, sizeof(buffer));
      if (count <= 0) return text;
      text.append(buffer, static_cast<size_t>(count));
    }
  }
  void CloseReader() { reader_.Reset(); }
  // For a pipe: another reader comes.
  void ReopenReader() {
    reader_ = UniqueFd(open(absl::StrCat("/proc/self/fd/", fileno(file_)).c_str(),
                            O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    EXPECT_TRUE(reader_.valid());
  }

 private:
  UniqueFd reader_;
  std::FILE* file_ = nullptr;
};

std::string Pattern(size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>('a' + i % 23 + i / 4096 % 3);
  return text;
}

class NonBlockingWriterStreams : public ::testing::TestWithParam<bool> {};

TEST_P(NonBlockingWriterStreams, FullPipe_KeepsTheRestInOrder) {
  Stream stream(GetParam());
  NonBlockingWriter writer(stream.file());
  const std::string sent = Pattern(3 << 20);
  for (size_t at = 0; at < sent.size(); at += 100'000) {
    ASSERT_EQ(writer.Write(absl::string_view(sent).substr(at, 100'000)), 0);
  }
  EXPECT_GT(writer.waiting(), 0u);
  std::string read = stream.Read();
  while (writer.waiting() > 0) {
    ASSERT_EQ(writer.Flush(), 0);
    const std::string more = stream.Read();
    ASSERT_FALSE(more.empty());
    read += more;
  }
  EXPECT_TRUE(read == sent);
}

TEST_P(NonBlockingWriterStreams, Flush_WritesNoMoreThanItsLimit) {
  Stream stream(GetParam());
  NonBlockingWriter writer(stream.file());
  ASSERT_TRUE(writer.Append("first"));
  ASSERT_EQ(writer.Flush(2), 0);
  EXPECT_EQ(stream.Read(), "fi");
  EXPECT_EQ(writer.waiting(), 3u);
  ASSERT_TRUE(writer.Append(", second"));
  ASSERT_EQ(writer.Flush(), 0);
  EXPECT_EQ(stream.Read(), "rst, second");
}

TEST_P(NonBlockingWriterStreams, ReaderIsGone_FailsAndDropsPendingBytes) {
  std::signal(SIGPIPE, SIG_IGN);
  Stream stream(GetParam());
  NonBlockingWriter writer(stream.file());
  EXPECT_EQ(writer.FindLoss(), 0);
  ASSERT_TRUE(writer.Append("x"));
  stream.CloseReader();
  EXPECT_EQ(writer.FindLoss(), EPIPE);
  EXPECT_EQ(writer.Flush(), EPIPE);
  EXPECT_EQ(writer.waiting(), 0u);
}

INSTANTIATE_TEST_SUITE_P(All, NonBlockingWriterStreams, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Socket" : "Pipe"; });

TEST(NonBlockingWriter, MoreThanMayBePending_IsRefusedPermanently) {
  Stream stream(/*is_socket=*/false);
  int wakes = 0;
  NonBlockingWriter writer(stream.file(),
                           {.max_waiting_bytes = 10, .on_waiting = [&wakes] { ++wakes; }});
  EXPECT_TRUE(writer.Append("12345"));
  EXPECT_TRUE(writer.Append("67890"));
  EXPECT_EQ(wakes, 1);
  EXPECT_FALSE(writer.Append("x"));
  ASSERT_EQ(writer.Flush(), 0);
  EXPECT_FALSE(writer.Append("x")) << "there would be a gap";
  EXPECT_EQ(stream.Read(), "1234567890");
}

TEST(NonBlockingWriter, OnceWritten_WakesAgain) {
  Stream stream(/*is_socket=*/false);
  int wakes = 0;
  NonBlockingWriter writer(stream.file(), {.on_waiting = [&wakes] { ++wakes; }});
  for (int i = 1; i <= 3; ++i) {
    ASSERT_TRUE(writer.Append("line\n"));
    EXPECT_EQ(wakes, i);
    ASSERT_EQ(writer.Flush(), 0);
  }
}

// The thread that it wakes may flush before Append has returned.
TEST(NonBlockingWriter, Wakes_WhenTheBytesCanBeFlushed) {
  Stream stream(/*is_socket=*/false);
  NonBlockingWriter* flushed = nullptr;
  NonBlockingWriter writer(stream.file(), {.on_waiting = [&flushed] {
                             EXPECT_EQ(flushed->waiting(), 5u);
                             EXPECT_EQ(flushed->Flush(), 0);
                           }});
  flushed = &writer;
  ASSERT_TRUE(writer.Append("line\n"));
  EXPECT_EQ(stream.Read(), "line\n");
  EXPECT_EQ(writer.waiting(), 0u);
}

TEST(NonBlockingWriter, EmptyAppend_NeitherQueuesNorWakes) {
  Stream stream(/*is_socket=*/false);
  int wakes = 0;
  NonBlockingWriter writer(stream.file(), {.on_waiting = [&wakes] { ++wakes; }});
  EXPECT_TRUE(writer.Append(""));
  EXPECT_EQ(wakes, 0);
  EXPECT_TRUE(writer.Append("x"));
  EXPECT_EQ(wakes, 1);
}

TEST(NonBlockingWriter, WriteBeyondTheLimit_FailsAndKeepsWhatWasQueued) {
  Stream stream(/*is_socket=*/false);
  NonBlockingWriter writer(stream.file(), {.max_waiting_bytes = 10});
  ASSERT_EQ(writer.Write("1234567890"), 0);
  EXPECT_EQ(writer.Write("x"), ENOBUFS);
  ASSERT_EQ(writer.Flush(), 0);
  EXPECT_EQ(stream.Read(), "1234567890");
}

// Many short lines take few system calls.
TEST(NonBlockingWriter, Write_IsKeptUntil64KibibytesAreQueued) {
  Stream stream(/*is_socket=*/false);
  NonBlockingWriter writer(stream.file());
  const std::string most = Pattern((size_t{64} << 10) - 1);
  ASSERT_EQ(writer.Write(most), 0);
  EXPECT_EQ(stream.Read(), "");
  EXPECT_EQ(writer.waiting(), most.size());
  ASSERT_EQ(writer.Write("x"), 0);
  EXPECT_TRUE(stream.Read() == most + "x");
  EXPECT_EQ(writer.waiting(), 0u);
}

// Bytes that were dropped do not count as queued.
TEST(NonBlockingWriter, FullDisk_LaterBytesWakeAgain) {
  std::signal(SIGPIPE, SIG_IGN);
  std::FILE* const file = std::fopen("/dev/full", "we");
  ASSERT_NE(file, nullptr);
  int wakes = 0;
  NonBlockingWriter writer(file, {.on_waiting = [&wakes] { ++wakes; }});
  ASSERT_TRUE(writer.Append(Pattern(size_t{80} << 10)));
  ASSERT_TRUE(writer.Append("second piece"));
  EXPECT_EQ(writer.Flush(), ENOSPC);
  EXPECT_EQ(writer.waiting(), 0u);
  ASSERT_TRUE(writer.Append("x"));
  EXPECT_EQ(writer.waiting(), 1u);
  EXPECT_EQ(wakes, 2) << "the bytes that were dropped do not wait any more";
  EXPECT_EQ(writer.Flush(), ENOSPC);
  std::fclose(file);
}

// The next reader must not get the end of a line whose beginning was lost.
TEST(NonBlockingWriter, NextReaderAfterALoss_GetsNoBytesFromBefore) {
  std::signal(SIGPIPE, SIG_IGN);
  Stream stream(/*is_socket=*/false);
  NonBlockingWriter writer(stream.file());
  ASSERT_TRUE(writer.Append(Pattern(size_t{64} << 10)));
  ASSERT_TRUE(writer.Append("a second piece"));
  ASSERT_EQ(writer.Flush(2), 0);
  EXPECT_EQ(stream.Read(), "ab");
  stream.CloseReader();
  EXPECT_EQ(writer.Flush(), EPIPE);
  stream.ReopenReader();
  ASSERT_TRUE(writer.Append("next line"));
  ASSERT_EQ(writer.Flush(), 0);
  EXPECT_EQ(stream.Read(), "next line");
}

TEST(NonBlockingWriter, LimitOfAFlush_CountsForAllPieces) {
  Stream stream(/*is_socket=*/true);
  NonBlockingWriter writer(stream.file());
  const size_t first = size_t{64} << 10;
  ASSERT_TRUE(writer.Append(Pattern(first)));
  ASSERT_TRUE(writer.Append("second"));
  ASSERT_EQ(writer.Flush(first + 2), 0);
  EXPECT_EQ(writer.waiting(), 4u);
  EXPECT_TRUE(stream.Read() == Pattern(first) + "se");
  ASSERT_EQ(writer.Flush(), 0);
  EXPECT_EQ(stream.Read(), "cond");
}

TEST(NonBlockingWriter, DescriptorThatWasClosed_IsALossToo) {
  Stream stream(/*is_socket=*/true);
  NonBlockingWriter writer(stream.file());
  EXPECT_EQ(writer.FindLoss(), 0);
  close(fileno(stream.file()));
  EXPECT_EQ(writer.FindLoss(), EBADF);
}

TEST(NonBlockingWriter, StreamInMemory_IsWrittenByStdio) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* const file = open_memstream(&text, &size);
  NonBlockingWriter writer(file);
  EXPECT_LT(writer.fd(), 0);
  ASSERT_EQ(writer.Write("in memory"), 0);
  ASSERT_EQ(writer.Flush(), 0);
  EXPECT_EQ(std::string(text, size), "in memory");
  std::fclose(file);
  std::free(text);
}

TEST(NonBlockingWriter, FullDisk_FailsWithItsErrno) {
  std::FILE* const file = std::fopen("/dev/full", "we");
  ASSERT_NE(file, nullptr);
  NonBlockingWriter writer(file);
  ASSERT_TRUE(writer.Append("x"));
  EXPECT_EQ(writer.Flush(), ENOSPC);
  EXPECT_EQ(writer.waiting(), 0u);
  std::fclose(file);
}

TEST(NonBlockingWriters, OneDestination_KeepsTheOrderOfBoth) {
  Stream stream(/*is_socket=*/false);
  std::FILE* const again = fdopen(dup(fileno(stream.file())), "w");
  {
    NonBlockingWriters writers(stream.file(), again);
    EXPECT_EQ(&writers.out(), &writers.err());
    ASSERT_EQ(writers.out().Write("1"), 0);
    ASSERT_EQ(writers.err().Write("2"), 0);
    ASSERT_EQ(writers.out().Write("3"), 0);
    std::vector<pollfd> polled;
    writers.AddPolled(polled);
    EXPECT_EQ(polled.size(), 1u);
    ASSERT_EQ(writers.Flush(), 0);
    EXPECT_EQ(writers.waiting(), 0u);
  }
  EXPECT_EQ(stream.Read(), "123");
  std::fclose(again);
}

TEST(NonBlockingWriters, TwoDestinations_AreFlushedAndPolledEach) {
  std::signal(SIGPIPE, SIG_IGN);
  Stream out(/*is_socket=*/true);
  Stream err(/*is_socket=*/true);
  NonBlockingWriters writers(out.file(), err.file());
  ASSERT_NE(&writers.out(), &writers.err());
  ASSERT_TRUE(writers.err().Append("trouble"));
  EXPECT_EQ(writers.waiting(), 7u);
  std::vector<pollfd> polled;
  writers.AddPolled(polled);
  ASSERT_EQ(polled.size(), 1u);
  EXPECT_EQ(polled[0].fd, fileno(err.file()));
  ASSERT_TRUE(writers.out().Append("1"));
  EXPECT_EQ(writers.waiting(), 8u);
  polled.clear();
  writers.AddPolled(polled);
  EXPECT_EQ(polled.size(), 2u);
  ASSERT_EQ(writers.Flush(), 0);
  EXPECT_EQ(out.Read(), "1");
  EXPECT_EQ(err.Read(), "trouble");
  // Losing one is an error, and does not keep the other from being written.
  ASSERT_TRUE(writers.out().Append("2"));
  ASSERT_TRUE(writers.err().Append("more"));
  err.CloseReader();
  EXPECT_EQ(writers.Flush(), EPIPE);
  EXPECT_EQ(out.Read(), "2");
  ASSERT_TRUE(writers.out().Append("3"));
  ASSERT_TRUE(writers.err().Append("more"));
  out.CloseReader();
  EXPECT_EQ(writers.Flush(), EPIPE);
  EXPECT_EQ(writers.waiting(), 0u) << "both were tried";
}

}  // namespace
}  // namespace ferry
