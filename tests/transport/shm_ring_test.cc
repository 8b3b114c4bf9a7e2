// SPDX-License-Identifier: Apache-2.0
// The ring: wrapping, filling up, two threads, and writers that mean harm.
#include "transport/control/shm_ring.h"

#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace ferry {
namespace {

constexpr size_t kCapacity = 4096;

struct Memory {
  alignas(64) char bytes[kRingControlBytes + kCapacity] = {};
};

TEST(ShmRingTest, FramesOfEverySizeWrapAround) {
  Memory memory;
  RingWriter writer(memory.bytes, kCapacity);
  RingReader reader(memory.bytes, kCapacity);
  std::mt19937 random(1);
  for (int i = 0; i < 100'000; ++i) {
    const std::string body(random() % (writer.max_body() + 1), static_cast<char>(i));
    const size_t cut = body.empty() ? 0 : random() % body.size();
    ASSERT_TRUE(writer.Write(static_cast<uint16_t>(i % 60000), static_cast<uint8_t>(i % 3),
                             {body.substr(0, cut), body.substr(cut)}));
    ASSERT_TRUE(reader.HasFrame());
    const auto frame = reader.Read();
    ASSERT_TRUE(frame.ok()) << frame.status();
    EXPECT_EQ(frame->type, i % 60000);
    EXPECT_EQ(frame->descriptors, i % 3);
    ASSERT_EQ(frame->body, body);
    reader.Release();
    EXPECT_FALSE(reader.HasFrame());
    EXPECT_FALSE(reader.Publish());
  }
}

// Their room is not returned before, whatever the writer writes.
TEST(ShmRingTest, FramesStayUntilTheyAreReleased) {
  Memory memory;
  RingWriter writer(memory.bytes, kCapacity);
  RingReader reader(memory.bytes, kCapacity);
  std::mt19937 random(2);
  int written = 0;
  int read = 0;
  const auto body_of = [](int i) { return absl::StrCat(i, std::string(i * 7 % 300, '.')); };
  for (int round = 0; round < 20'000; ++round) {
    for (auto left = random() % 8; left > 0 && writer.Write(1, 0, {body_of(written)}); --left) {
      ++written;
    }
    std::vector<absl::string_view> bodies;
    for (auto most = random() % 8; most > 0 && reader.HasFrame(); --most) {
      const auto frame = reader.Read();
      ASSERT_TRUE(frame.ok()) << frame.status();
      bodies.push_back(frame->body);
    }
    reader.Publish();
    const bool is_all_read = writer.IsAllRead();
    EXPECT_TRUE(!is_all_read || bodies.empty());
    if (round % 4 == 0) {
      while (writer.Write(1, 0, {body_of(written)})) ++written;
    }
    for (const absl::string_view body : bodies) ASSERT_EQ(body, body_of(read++));
    reader.Release();
    reader.Publish();
  }
  while (reader.HasFrame()) {
    ASSERT_EQ(reader.Read()->body, body_of(read++));
    reader.Release();
  }
  EXPECT_EQ(read, written);
  EXPECT_GT(read, 20'000);
}

// A reader that releases nothing stops at the end of the ring.
TEST(ShmRingTest, UnreleasedFrames_AreReadOnce) {
  // The last one leaves unused space at the end.
  for (const size_t frame_bytes : {64, 128, 1024, 192}) {
    const size_t in_ring = kCapacity / frame_bytes;
    for (size_t first = 0; first < in_ring; ++first) {
      Memory memory;
      RingWriter writer(memory.bytes, kCapacity);
      RingReader reader(memory.bytes, kCapacity);
      const std::string body(frame_bytes - kRingFrameHeader, 'x');
      for (size_t i = 0; i < first; ++i) {
        ASSERT_TRUE(writer.Write(1, 0, {body}));
        ASSERT_TRUE(reader.HasFrame() && reader.Read().ok());
        reader.Release();
      }
      reader.Publish();
      size_t written = 0;
      while (writer.Write(2, 0, {body})) ++written;
      ASSERT_GE(written, in_ring - 1);
      size_t read = 0;
      const auto read_all = [&] {
        for (; reader.HasFrame(); ++read) {
          ASSERT_TRUE(reader.Read().ok());
          ASSERT_LE(read, written);
        }
      };
      read_all();
      EXPECT_EQ(read, in_ring - first);
      reader.Release();
      read_all();
      EXPECT_EQ(read, written);
      reader.Release();
      EXPECT_FALSE(reader.HasFrame());
    }
  }
  // Unused space that is the whole ring: it is cleared, and not found again and again.
  Memory memory;
  const auto bytes = static_cast<uint32_t>(kCapacity);
  const uint16_t type = 0xFFFF;
  std::memcpy(memory.bytes + kRingControlBytes, &bytes, sizeof(bytes));
  std::memcpy(memory.bytes + kRingControlBytes + sizeof(bytes), &type, sizeof(type));
  EXPECT_FALSE(RingReader(memory.bytes, kCapacity).HasFrame());
}

TEST(ShmRingTest, WriterSeesWhetherAllHasBeenRead) {
  Memory memory;
  RingWriter writer(memory.bytes, kCapacity);
  RingReader reader(memory.bytes, kCapacity);
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(writer.IsAllRead());
    ASSERT_TRUE(writer.Write(1, 0, {std::string(100, 'x')}));
    EXPECT_FALSE(writer.IsAllRead());
    ASSERT_TRUE(reader.HasFrame());
    ASSERT_TRUE(reader.Read().ok());
    reader.Release();
    reader.Publish();
  }
}

TEST(ShmRingTest, FullRingRefusesFramesAndReportsRoom) {
  Memory memory;
  RingWriter writer(memory.bytes, kCapacity);
  RingReader reader(memory.bytes, kCapacity);
  const std::string body(100, 'x');
  int written = 0;
  while (writer.Write(1, 0, {body})) ++written;
  EXPECT_GE(written, 30);
  writer.RequestRoom();
  EXPECT_FALSE(writer.HasRoom(body.size()));
  int read = 0;
  while (reader.HasFrame()) {
    ASSERT_TRUE(reader.Read().ok());
    reader.Release();
    ++read;
  }
  EXPECT_EQ(read, written);
  EXPECT_TRUE(reader.Publish());
  EXPECT_FALSE(reader.Publish());
  EXPECT_TRUE(writer.Write(1, 0, {body}));
}

TEST(ShmRingTest, HintsAreReadOnce) {
  Memory memory;
  RingWriter writer(memory.bytes, kCapacity);
  RingReader reader(memory.bytes, kCapacity);
  EXPECT_FALSE(reader.TakeHint());
  writer.HintDescriptors();
  writer.HintDescriptors();
  EXPECT_TRUE(reader.TakeHint());
  EXPECT_FALSE(reader.TakeHint());
  EXPECT_FALSE(reader.HasFrame());
}

TEST(ShmRingTest, TwoThreads) {
  auto memory = std::make_unique<Memory>();
  constexpr int kFrames = 200'000;
  std::thread sender([&memory] {
    RingWriter writer(memory->bytes, kCapacity);
    for (int i = 0; i < kFrames; ++i) {
      const std::string body = absl::StrCat(i, std::string(i % 200, '.'));
      while (!writer.Write(1, 0, {body})) std::this_thread::yield();
    }
  });
  RingReader reader(memory->bytes, kCapacity);
  for (int i = 0; i < kFrames; ++i) {
    while (!reader.HasFrame()) {
      reader.Publish();
      std::this_thread::yield();
    }
    const auto frame = reader.Read();
    ASSERT_TRUE(frame.ok());
    ASSERT_EQ(frame->body, absl::StrCat(i, std::string(i % 200, '.')));
    reader.Release();
  }
  sender.join();
}

TEST(ShmRingTest, ReadersSurviveAnyContentOfTheRing) {
  std::mt19937 random(7);
  for (int round = 0; round < 20'000; ++round) {
    Memory memory;
    for (size_t i = 0; i < 64; ++i) {
      const auto word = static_cast<uint32_t>(random() % 3 == 0 ? random() % 200 : random());
      std::memcpy(memory.bytes + kRingControlBytes + i * 16, &word, sizeof(word));
      const auto type = static_cast<uint16_t>(random() % 2 == 0 ? 0xFFFF : random());
      std::memcpy(memory.bytes + kRingControlBytes + i * 16 + 4, &type, sizeof(type));
      memory.bytes[kRingControlBytes + i * 16 + 7] = static_cast<char>(random() % 5);
    }
    RingReader reader(memory.bytes, kCapacity);
    for (int i = 0; i < 1000 && reader.HasFrame(); ++i) {
      const auto frame = reader.Read();
      if (!frame.ok()) break;
      ASSERT_LE(frame->body.data() + frame->body.size(), memory.bytes + sizeof(memory.bytes));
      reader.Release();
    }
  }
}

// A full ring is full, and not one frame short of it; and so is the largest body.
TEST(ShmRingTest, TheLastByteIsUsed_AndNoneTwice) {
  Memory memory;
  RingWriter writer(memory.bytes, kCapacity);
  RingReader reader(memory.bytes, kCapacity);
  ASSERT_EQ(writer.max_body() + kRingFrameHeader, kCapacity / 4);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 4; ++i) {
      const std::string body(writer.max_body(), static_cast<char>('a' + i));
      EXPECT_TRUE(writer.HasRoom(body.size()));
      ASSERT_TRUE(writer.Write(1, 0, {body})) << i;
    }
    EXPECT_FALSE(writer.HasRoom(0));
    EXPECT_FALSE(writer.Write(1, 0, {""}));
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(reader.HasFrame());
      const auto frame = reader.Read();
      ASSERT_TRUE(frame.ok()) << frame.status();
      EXPECT_EQ(frame->body, std::string(writer.max_body(), static_cast<char>('a' + i)));
      reader.Release();
    }
    EXPECT_FALSE(reader.HasFrame());
    reader.Publish();
  }
}

// A frame never wraps around: a head that claims more than is left before the end would make the
// reader leave the mapping.
TEST(ShmRingTest, FrameBeyondTheEndOfTheRing_IsRefused) {
  constexpr size_t kLeft = 64;
  const auto front = [](uint32_t bytes) {
    auto memory = std::make_unique<Memory>();
    RingWriter writer(memory->bytes, kCapacity);
    RingReader reader(memory->bytes, kCapacity);
    for (size_t at = 0; at < kCapacity - kLeft; at += kLeft) {
      EXPECT_TRUE(writer.Write(1, 0, {std::string(kLeft - kRingFrameHeader, 'x')}));
      EXPECT_TRUE(reader.HasFrame());
      EXPECT_TRUE(reader.Read().ok());
      reader.Release();
      reader.Publish();
    }
    const uint16_t type = 1;
    char* const begin = memory->bytes + kRingControlBytes + kCapacity - kLeft;
    std::memcpy(begin + sizeof(bytes), &type, sizeof(type));
    std::memcpy(begin, &bytes, sizeof(bytes));
    EXPECT_TRUE(reader.HasFrame());
    return reader.Read().status().code();
  };
  EXPECT_EQ(front(kLeft), absl::StatusCode::kOk);
  EXPECT_EQ(front(kLeft + 1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(front(kCapacity / 4), absl::StatusCode::kInvalidArgument);
}

// Each of these differs by one from the head that a writer writes.
TEST(ShmRingTest, MalformedFrameHeads_AreRefused) {
  const auto front = [](uint32_t bytes, uint16_t type) {
    auto memory = std::make_unique<Memory>();
    std::memcpy(memory->bytes + kRingControlBytes, &bytes, sizeof(bytes));
    std::memcpy(memory->bytes + kRingControlBytes + sizeof(bytes), &type, sizeof(type));
    RingReader reader(memory->bytes, kCapacity);
    EXPECT_TRUE(reader.HasFrame());
    const auto frame = reader.Read();
    return frame.ok() ? static_cast<int>(frame->body.size()) : -1;
  };
  EXPECT_EQ(front(kRingFrameHeader, 1), 0);
  EXPECT_EQ(front(kRingFrameHeader - 1, 1), -1);
  EXPECT_EQ(front(kCapacity / 4, 1), static_cast<int>(kCapacity / 4 - kRingFrameHeader));
  EXPECT_EQ(front(kCapacity / 4 + 1, 1), -1);
  // Only to the very end may be skipped.
  EXPECT_EQ(front(kCapacity / 4, 0xFFFF), -1);
  EXPECT_EQ(front(kCapacity - 1, 0xFFFF), -1);
}

// The word by which a reader says that it understands padding.
void ForgetPadding(Memory& memory) { std::memset(memory.bytes + 192, 0, 4); }

const char* FramesOf(const Memory& memory) { return memory.bytes + kRingControlBytes; }

TEST(ShmRingTest, FramesBeginWithALine) {
  Memory memory;
  RingReader reader(memory.bytes, kCapacity);
  RingWriter writer(memory.bytes, kCapacity);
  // Several times around, in bursts: each ends somewhere else.
  for (size_t body = 0; body < 300; ++body) {
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(writer.Write(1, 0, {std::string(body, 'x')}));
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(reader.HasFrame());
      const auto frame = reader.Read();
      ASSERT_TRUE(frame.ok()) << frame.status();
      ASSERT_EQ(frame->body, std::string(body, 'x'));
      EXPECT_EQ((frame->body.data() - kRingFrameHeader - FramesOf(memory)) % kRingLine, 0u);
      reader.Release();
    }
    reader.Publish();
    EXPECT_TRUE(writer.IsAllRead());
  }
}

// The last line of the ring is used, and the next frame begins in the first.
TEST(ShmRingTest, FramesOfALine_FillTheRing_AndWrapAround) {
  Memory memory;
  RingReader reader(memory.bytes, kCapacity);
  RingWriter writer(memory.bytes, kCapacity);
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < kCapacity / kRingLine; ++i) {
      ASSERT_TRUE(writer.HasRoom(1));
      ASSERT_TRUE(writer.Write(1, 0, {std::string(i % 57, 'x')})) << i;
    }
    EXPECT_FALSE(writer.HasRoom(0));
    EXPECT_FALSE(writer.Write(1, 0, {""}));
    for (size_t i = 0; i < kCapacity / kRingLine; ++i) {
      ASSERT_TRUE(reader.HasFrame());
      const auto frame = reader.Read();
      ASSERT_TRUE(frame.ok()) << frame.status();
      EXPECT_EQ(frame->body, std::string(i % 57, 'x'));
      EXPECT_EQ(frame->body.data() - kRingFrameHeader, FramesOf(memory) + i * kRingLine);
      reader.Release();
    }
    EXPECT_FALSE(reader.HasFrame());
    reader.Publish();
  }
}

// One of an earlier release takes the bytes behind a frame for the next frame.
TEST(ShmRingTest, ReaderThatKnowsNoPadding_GetsNone) {
  Memory memory;
  RingReader reader(memory.bytes, kCapacity);
  ForgetPadding(memory);
  RingWriter writer(memory.bytes, kCapacity);
  size_t at = 0;
  for (const size_t body : {0, 8, 9, 40, 100, 0}) {
    ASSERT_TRUE(writer.Write(1, 0, {std::string(body, 'x')}));
    ASSERT_TRUE(reader.HasFrame());
    const auto frame = reader.Read();
    ASSERT_TRUE(frame.ok());
    EXPECT_EQ(frame->body.data() - kRingFrameHeader, FramesOf(memory) + at);
    EXPECT_EQ(FramesOf(memory)[at + 7], 0) << "padding";
    reader.Release();
    at += (kRingFrameHeader + body + kRingFrameAlignment - 1) / kRingFrameAlignment *
          kRingFrameAlignment;
  }
}

// The writer may be there before the reader. Room that was found is enough nevertheless.
TEST(ShmRingTest, ReaderComesLate_RoomThatWasFoundSuffices) {
  for (size_t frames = 1; frames <= kCapacity / 16; ++frames) {
    auto memory = std::make_unique<Memory>();
    RingWriter writer(memory->bytes, kCapacity);
    for (size_t i = 0; i < frames - 1; ++i) ASSERT_TRUE(writer.Write(1, 0, {"12345678"}));
    ASSERT_TRUE(writer.HasRoom(8));
    RingReader reader(memory->bytes, kCapacity);
    ASSERT_TRUE(writer.Write(2, 0, {"12345678"})) << frames;
    const bool has_more = writer.Write(3, 0, {"behind"});
    for (size_t i = 0; i < frames + (has_more ? 1 : 0); ++i) {
      ASSERT_TRUE(reader.HasFrame());
      const auto frame = reader.Read();
      ASSERT_TRUE(frame.ok());
      EXPECT_EQ(frame->type, i < frames - 1 ? 1 : i < frames ? 2 : 3);
      reader.Release();
    }
    EXPECT_FALSE(reader.HasFrame());
    reader.Publish();
    EXPECT_TRUE(writer.IsAllRead());
  }
}

// A peer's: of a line or more, or beyond the end of the ring.
TEST(ShmRingTest, MalformedPadding_IsRefused) {
  const auto front = [](size_t at, uint32_t bytes, uint8_t padding) {
    auto memory = std::make_unique<Memory>();
    RingWriter writer(memory->bytes, kCapacity);
    RingReader reader(memory->bytes, kCapacity);
    for (size_t i = 0; i < at; i += kRingLine) {
      EXPECT_TRUE(writer.Write(1, 0, {std::string(kRingLine - kRingFrameHeader, 'x')}));
      EXPECT_TRUE(reader.HasFrame());
      EXPECT_TRUE(reader.Read().ok());
      reader.Release();
      reader.Publish();
    }
    char* const begin = memory->bytes + kRingControlBytes + at;
    begin[4] = 1;
    begin[7] = static_cast<char>(padding);
    std::memcpy(begin, &bytes, sizeof(bytes));
    EXPECT_TRUE(reader.HasFrame());
    return reader.Read().status().code();
  };
  constexpr auto kOk = absl::StatusCode::kOk;
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(front(0, 16, 3), kOk);
  EXPECT_EQ(front(0, 16, 4), kInvalid);
  EXPECT_EQ(front(0, 16, 255), kInvalid);
  EXPECT_EQ(front(kCapacity - kRingLine, 16, 3), kOk);
  EXPECT_EQ(front(kCapacity - kRingLine, 17, 3), kInvalid);
  EXPECT_EQ(front(kCapacity - kRingLine, 17, 2), kOk);
  EXPECT_EQ(front(kCapacity - kRingLine, 64, 1), kInvalid);
}

}  // namespace
}  // namespace ferry
