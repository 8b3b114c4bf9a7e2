// SPDX-License-Identifier: Apache-2.0
// Frames of the eager protocol: what is written is read, and nothing else is accepted.
#include "rendezvous/peer/eager_protocol.h"

#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"

#include "rendezvous/peer/peer_protocol.h"
#include "tests/rendezvous/recording_control_channel.h"

namespace ferry {
namespace {

using testing::ElementsAre;

std::string BodyOf(absl::FunctionRef<absl::Status(ControlChannel&)> send) {
  RecordingControlChannel channel({1, 1001});
  EXPECT_TRUE(send(channel).ok());
  return channel.bodies.at(0);
}

EagerRecord Vector(uint32_t name, absl::string_view payload) {
  EagerRecord record;
  record.name = name;
  record.header = {DataType::kUint8, *Shape::Create({static_cast<int64_t>(payload.size())}),
                   payload.size()};
  record.payload = payload;
  return record;
}

struct Frame {
  absl::Status status;
  EagerHead head;
  std::vector<EagerRecord> records;
};

Frame Decode(absl::string_view body) {
  Frame frame;
  frame.status = DecodeEager(
      body,
      [&](const EagerHead& head) {
        frame.head = head;
        return absl::OkStatus();
      },
      [&](const EagerRecord& record) {
        frame.records.push_back(record);
        return absl::OkStatus();
      });
  return frame;
}

TEST(EagerProtocol, Records) {
  EagerFrameWriter writer(-7, 0xfffffffe);
  writer.Acknowledge({9, 3});
  EXPECT_TRUE(writer.Append(Vector(5, "12345678")));
  EagerRecord matrix = Vector(6, "123456");
  matrix.text = "text";
  matrix.header.shape = *Shape::Create({2, 3});
  matrix.has_checksum = true;
  matrix.checksum = 0x1234567890;
  EXPECT_TRUE(writer.Append(matrix));
  EagerRecord dead;
  dead.text = "unnumbered";
  dead.is_dead = true;
  EXPECT_TRUE(writer.Append(dead));
  EagerRecord strings;
  strings.name = 7;
  strings.is_serialized = true;
  strings.header.dtype = DataType::kString;
  strings.payload = "proto";
  EXPECT_TRUE(writer.Append(strings));
  EagerRecord scalar = Vector(8, "x");
  scalar.header.shape = Shape();
  EXPECT_TRUE(writer.Append(scalar));

  const std::string body(writer.view());
  EXPECT_EQ(body.size() % 8, 0u);
  const Frame frame = Decode(body);
  ASSERT_TRUE(frame.status.ok()) << frame.status;
  EXPECT_EQ(frame.head.step_id, -7);
  EXPECT_EQ(frame.head.sequence, 0xfffffffe);
  EXPECT_EQ(frame.head.count, 5);
  EXPECT_EQ(frame.head.acked_first, 9u);
  EXPECT_EQ(frame.head.acked_count, 3);
  ASSERT_EQ(frame.records.size(), 5u);
  EXPECT_EQ(frame.records[0].name, 5u);
  EXPECT_EQ(frame.records[0].text, "");
  EXPECT_EQ(frame.records[0].payload, "12345678");
  EXPECT_EQ(frame.records[0].header.shape, *Shape::Create({8}));
  EXPECT_EQ(frame.records[1].name, 6u);
  EXPECT_EQ(frame.records[1].text, "text");
  EXPECT_EQ(frame.records[1].checksum, 0x1234567890u);
  EXPECT_EQ(frame.records[1].header.shape, *Shape::Create({2, 3}));
  EXPECT_TRUE(frame.records[2].is_dead);
  EXPECT_EQ(frame.records[2].name, 0u);
  EXPECT_TRUE(frame.records[3].is_serialized);
  EXPECT_EQ(frame.records[3].payload, "proto");
  EXPECT_EQ(frame.records[4].header.shape.rank(), 0);

  // No part of it is a frame, nor is it with anything after it.
  for (size_t bytes = 0; bytes < body.size(); ++bytes) {
    EXPECT_FALSE(Decode(absl::string_view(body).substr(0, bytes)).status.ok()) << bytes;
  }
  EXPECT_FALSE(Decode(body + std::string(8, '\0')).status.ok());
}

TEST(EagerProtocol, FramesThatFollowEachOther_AreReadAsOne) {
  std::vector<std::string> bodies;
  uint32_t sequence = 0xfffffffe;
  for (const uint32_t count : {1, 3, 1, 2}) {
    EagerFrameWriter writer(5, sequence);
    for (uint32_t i = 0; i < count; ++i) {
      EXPECT_TRUE(writer.Append(Vector(1, absl::StrCat(sequence + i))));
    }
    sequence += count;
    bodies.emplace_back(writer.view());
  }
  EagerFrameReader reader;
  const auto start = [&] {
    EXPECT_TRUE(reader.Start(bodies[0]).ok());
    for (size_t i = 1; i < bodies.size(); ++i) EXPECT_TRUE(reader.AddFrame(bodies[i]));
    EXPECT_EQ(reader.remaining(), 7u);
    EXPECT_EQ(reader.head().sequence, 0xfffffffe);
  };
  start();
  for (uint32_t i = 0; i < 7; ++i) {
    EagerRecord record;
    ASSERT_TRUE(reader.Read(record).ok());
    EXPECT_EQ(record.payload, absl::StrCat(0xfffffffe + i));
  }
  EXPECT_TRUE(reader.is_at_end() && reader.Finish().ok());
  // From each of them on again.
  for (uint32_t from = 0; from < 7; ++from) {
    start();
    std::vector<EagerPlainRecord> records(7);
    for (EagerPlainRecord& record : records) ASSERT_TRUE(reader.ReadPlain(record));
    EXPECT_TRUE(reader.is_at_end() && reader.Finish().ok());
    reader.PutBack(records[from], 7 - from);
    for (uint32_t i = from; i < 7; ++i) {
      EXPECT_EQ(reader.remaining(), 7 - i);
      EagerRecord record;
      ASSERT_TRUE(reader.Read(record).ok());
      EXPECT_EQ(record.payload, absl::StrCat(0xfffffffe + i));
    }
    EXPECT_TRUE(reader.is_at_end() && reader.Finish().ok());
  }
}

TEST(EagerProtocol, FramesThatDoNotFollow_AreNotAdded) {
  const auto frame = [](int64_t step_id, uint32_t sequence) {
    EagerFrameWriter writer(step_id, sequence);
    EXPECT_TRUE(writer.Append(Vector(1, "12345678")));
    return std::string(writer.view());
  };
  const std::string first = frame(5, 7);
  EagerFrameReader reader;
  ASSERT_TRUE(reader.Start(first).ok());
  EXPECT_FALSE(reader.AddFrame(frame(6, 8)));
  EXPECT_FALSE(reader.AddFrame(frame(5, 7)));
  EXPECT_FALSE(reader.AddFrame(frame(5, 9)));
  EXPECT_FALSE(reader.AddFrame(""));
  EXPECT_FALSE(reader.AddFrame(first.substr(0, 20)));
  EagerFrameWriter acknowledges(5, 8);
  EXPECT_TRUE(acknowledges.Append(Vector(1, "12345678")));
  acknowledges.Acknowledge({9, 1});
  EXPECT_FALSE(reader.AddFrame(acknowledges.view()));
  EXPECT_EQ(reader.remaining(), 1u);
  std::vector<std::string> more;
  for (uint32_t i = 8; i < 100; ++i) more.push_back(frame(5, i));
  size_t added = 0;
  while (reader.AddFrame(more[added])) ++added;
  EXPECT_EQ(added, EagerFrameReader::kMaxFrames - 1);
}

// Found only when it is read, as in a single frame: what is before it has been read by then.
TEST(EagerProtocol, MalformedFrameBehindOthers_IsAnErrorBehindTheirRecords) {
  const auto frame = [](uint32_t sequence) {
    EagerFrameWriter writer(5, sequence);
    EXPECT_TRUE(writer.Append(Vector(1, "12345678")));
    return std::string(writer.view());
  };
  const std::string first = frame(0);
  const std::string longer = frame(1) + std::string(8, '\0');
  const std::string shorter = frame(1).substr(0, first.size() - 8);
  const std::string last = frame(2);
  for (const std::string& malformed : {longer, shorter}) {
    for (const bool is_plain : {false, true}) {
      EagerFrameReader reader;
      ASSERT_TRUE(reader.Start(first).ok());
      ASSERT_TRUE(reader.AddFrame(malformed) && reader.AddFrame(last));
      size_t read = 0;
      EagerPlainRecord plain;
      while (is_plain && reader.ReadPlain(plain)) ++read;
      EagerRecord record;
      absl::Status status;
      while (!reader.is_at_end() && (status = reader.Read(record)).ok()) ++read;
      EXPECT_EQ(read, malformed == shorter ? 1u : 2u);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    }
  }
}

// A peer may change a frame in shared memory at any time.
TEST(EagerProtocol, ExtentsThatChangeAfterTheyWereChecked_AreNotTrusted) {
  EagerFrameWriter writer(1, 0);
  EagerRecord matrix = Vector(6, "123456");
  matrix.header.shape = *Shape::Create({2, 3});
  EXPECT_TRUE(writer.Append(matrix));
  std::string body(writer.view());
  EagerFrameReader reader;
  EagerPlainRecord record;
  ASSERT_TRUE(reader.Start(body).ok() && reader.ReadPlain(record));
  EXPECT_EQ(*record.shape(), *Shape::Create({2, 3}));
  const int64_t negative = -1;
  std::memcpy(&body[static_cast<size_t>(record.extents - body.data())], &negative,
              sizeof(negative));
  EXPECT_EQ(record.shape().status().code(), absl::StatusCode::kInvalidArgument);
}

// A frame is the same whether payloads are copied or stay in place.
TEST(EagerProtocol, PayloadsInPlace_AreWhereTheyBelong) {
  const std::string large(600, 'l');
  const std::string odd(513, 'o');
  EagerFrameWriter copied(1, 0);
  EagerFrameWriter in_place(1, 0);
  for (const EagerRecord& record :
       {Vector(1, large), Vector(2, "12345678"), Vector(3, odd), Vector(4, large)}) {
    EXPECT_TRUE(copied.Append(record));
    EXPECT_TRUE(in_place.AppendInPlace(record));
  }
  std::string body;
  bool is_in_place = false;
  for (const absl::string_view part : in_place.parts()) {
    absl::StrAppend(&body, part);
    is_in_place |= part.data() == odd.data();
  }
  EXPECT_TRUE(is_in_place);
  EXPECT_EQ(body, copied.view());
  // As much fits.
  const std::string most(kMaxEagerBytes, 'm');
  while (copied.Append(Vector(5, most))) EXPECT_TRUE(in_place.AppendInPlace(Vector(5, most)));
  EXPECT_FALSE(in_place.AppendInPlace(Vector(5, most)));
  // The next frame has none of it.
  in_place.Start(1, 8);
  EXPECT_TRUE(in_place.Append(Vector(1, "12345678")));
  EXPECT_EQ(in_place.view().size(), 24u + 16u);
}

// With the ring's head of 8 bytes.
TEST(EagerProtocol, AVectorOf8Bytes_IsInOneCacheLine) {
  EagerFrameWriter writer(1, 0);
  EXPECT_TRUE(writer.Append(Vector(1, "12345678")));
  EXPECT_LE(writer.view().size() + 8, 64u);
}

TEST(EagerProtocol, MalformedRecords) {
  const auto with = [](size_t at, char byte) {
    EagerFrameWriter writer(1, 0);
    EXPECT_TRUE(writer.Append(Vector(1, "12345678")));
    std::string body(writer.view());
    body[at] = byte;
    return Decode(body).status;
  };
  EXPECT_TRUE(with(24, 1).ok());
  // No records, one too many, no name, another length, no such type, another rank, dead.
  EXPECT_FALSE(with(16, 0).ok());
  EXPECT_FALSE(with(16, 2).ok());
  EXPECT_FALSE(with(24, 0).ok());
  EXPECT_FALSE(with(28, 9).ok());
  EXPECT_FALSE(with(29, 127).ok());
  EXPECT_FALSE(with(30, 0).ok());
  EXPECT_FALSE(with(30, static_cast<char>(DataType::kString)).ok());
  EXPECT_FALSE(with(31, 0).ok());
  EXPECT_FALSE(with(31, 2).ok());
  EXPECT_FALSE(with(31, 1 << 5).ok());
  // A text where there is none.
  EXPECT_FALSE(with(27, static_cast<char>(0x80)).ok());
}

TEST(EagerProtocol, RecordsOfTheLargestSize_FitIntoAFrameAndNoLarger) {
  const std::string payload(kMaxEagerBytes, 'x');
  EagerRecord record = Vector(1, payload);
  const std::string text(kMaxKeyBytes, 'k');
  record.text = text;
  std::vector<int64_t> dims(kMaxEagerRank, 1);
  dims[3] = static_cast<int64_t>(payload.size());
  record.header.shape = *Shape::Create(dims);
  record.has_checksum = true;
  EagerFrameWriter writer(1, 0);
  EXPECT_TRUE(writer.Append(record));
  EXPECT_TRUE(Decode(writer.view()).status.ok());
  // Full.
  EXPECT_FALSE(writer.Append(record));
  EXPECT_EQ(writer.count(), 1);
  EXPECT_TRUE(Decode(writer.view()).status.ok());

  EagerFrameWriter other(1, 0);
  EXPECT_FALSE(other.Append(Vector(1, payload + "x")));
  dims.push_back(1);
  record.header.shape = *Shape::Create(dims);
  EXPECT_FALSE(other.Append(record));
  record = Vector(1, "x");
  const std::string longer = text + "k";
  record.text = longer;
  EXPECT_FALSE(other.Append(record));
}

// A frame with every kind of record, and the same with errors.
TEST(EagerProtocol, PlainRecords_AreReadAsOthersAre) {
  EagerFrameWriter writer(3, 0);
  std::vector<bool> is_plain;
  const auto add = [&](const EagerRecord& record, bool plain) {
    ASSERT_TRUE(writer.Append(record));
    is_plain.push_back(plain);
  };
  add(Vector(1, "12345678"), true);
  add(Vector(2, ""), true);
  EagerRecord record = Vector(3, "123456");
  record.header.shape = *Shape::Create({1, 2, 3});
  add(record, true);
  record = Vector(4, "1");
  record.header.shape = Shape();
  add(record, true);
  record = EagerRecord();
  record.name = 5;
  record.is_dead = true;
  add(record, true);
  record = Vector(6, "12345678");
  record.header.dtype = DataType::kFloat;
  record.header.shape = *Shape::Create({2});
  add(record, true);
  record = Vector(7, "1");
  record.text = "text";
  add(record, false);
  record = Vector(0, "12345678");
  record.text = "a text";
  add(record, true);
  record = Vector(0, "123456");
  record.text = "odd";
  record.header.shape = *Shape::Create({1, 2, 3});
  add(record, true);
  record = EagerRecord();
  record.text = "dead";
  record.is_dead = true;
  add(record, true);
  record = Vector(8, "1");
  record.has_checksum = true;
  add(record, false);
  record = Vector(9, "");
  record.header.shape = *Shape::Create({0, 2});
  add(record, false);
  const std::string frame(writer.view());

  EagerFrameReader reader;
  ASSERT_TRUE(reader.Start(frame).ok());
  for (const bool plain : is_plain) {
    EagerPlainRecord read;
    EXPECT_EQ(reader.ReadPlain(read), plain) << reader.remaining() << " remain";
    if (plain) reader.PutBack(read, 1);
    ASSERT_TRUE(reader.Read(record).ok());
    if (!plain) continue;
    EXPECT_EQ(read.name, record.name);
    EXPECT_EQ(read.text, record.text);
    EXPECT_EQ(read.is_dead, record.is_dead);
    EXPECT_EQ(absl::string_view(read.payload, read.bytes), record.payload);
    if (read.is_dead) continue;
    EXPECT_EQ(read.dtype, record.header.dtype);
    EXPECT_EQ(*read.shape(), record.header.shape);
  }
  EXPECT_TRUE(reader.is_at_end());
  EXPECT_TRUE(reader.Finish().ok());

  // Each byte with each bit changed, and cut at each byte: nothing is read that is not legal.
  for (size_t at = 0; at < 9 * frame.size(); ++at) {
    std::string changed = frame;
    if (at < frame.size()) {
      changed.resize(at);
    } else {
      const size_t bit = at - frame.size();
      changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
    }
    if (!reader.Start(changed).ok()) continue;
    while (!reader.is_at_end()) {
      EagerFrameReader other = reader;
      const bool is_legal = reader.Read(record).ok();
      EagerPlainRecord read;
      if (other.ReadPlain(read)) {
        ASSERT_TRUE(is_legal) << "change " << at;
        ASSERT_EQ(other.remaining(), reader.remaining());
        ASSERT_EQ(absl::string_view(read.payload, read.bytes), record.payload);
        ASSERT_EQ(read.name, record.name);
        ASSERT_EQ(read.text, record.text);
        if (!read.is_dead) {
          ASSERT_EQ(*read.shape(), record.header.shape);
        }
      }
      if (!is_legal) break;
    }
  }
}

TEST(EagerProtocol, ErrorsOfTheVisitor_EndTheFrame) {
  EagerFrameWriter writer(1, 0);
  EXPECT_TRUE(writer.Append(Vector(1, "a")));
  EXPECT_TRUE(writer.Append(Vector(1, "b")));
  const absl::Status error = absl::InvalidArgumentError("no");
  int visited = 0;
  EXPECT_EQ(DecodeEager(
                writer.view(), [&](const EagerHead&) { return error; },
                [&](const EagerRecord&) {
                  ++visited;
                  return absl::OkStatus();
                }),
            error);
  EXPECT_EQ(visited, 0);
  EXPECT_EQ(DecodeEager(
                writer.view(), [](const EagerHead&) { return absl::OkStatus(); },
                [&](const EagerRecord&) {
                  ++visited;
                  return error;
                }),
            error);
  EXPECT_EQ(visited, 1);
}

TEST(EagerProtocol, Scopes) {
  for (const EagerScope& scope :
       {EagerScope::All(), EagerScope::Step(INT64_MIN), EagerScope::Name(INT32_MAX)}) {
    const std::string push =
        BodyOf([&](ControlChannel& channel) { return SendEagerPush(channel, scope); });
    EXPECT_EQ(*DecodeEagerPush(push), scope);
    EXPECT_FALSE(DecodeEagerPush(push + "x").ok());
    EXPECT_FALSE(DecodeEagerPush(absl::string_view(push).substr(1)).ok());
    const std::string pull = BodyOf([&](ControlChannel& channel) {
      return SendEagerPull(channel, {EagerPullKind::kMayPush, scope, ""});
    });
    EXPECT_EQ(DecodeEagerPull(pull)->scope, scope);
    EXPECT_EQ(DecodeEagerPull(pull)->kind, EagerPullKind::kMayPush);
    // Only a name that is pulled is defined.
    EXPECT_FALSE(DecodeEagerPull(pull + "text").ok());
    std::string other = pull;
    other[0] = 3;
    EXPECT_FALSE(DecodeEagerPull(other).ok());
    other = pull;
    other[1] = 3;
    EXPECT_FALSE(DecodeEagerPull(other).ok());
    // A scope of another kind with the same numbers.
    other[1] = static_cast<char>((pull[1] + 1) % 3);
    EXPECT_FALSE(scope.kind == EagerScopeKind::kAll ? other[1] == 2 && DecodeEagerPull(other).ok()
                                                    : DecodeEagerPull(other).ok());
  }
  const std::string defined = BodyOf([](ControlChannel& channel) {
    return SendEagerPull(channel, {EagerPullKind::kUntilMayPush, EagerScope::Name(3), "text"});
  });
  EXPECT_EQ(DecodeEagerPull(defined)->definition, "text");
  EXPECT_EQ(ToString(EagerScope::Step(7)), "step 7");
}

TEST(EagerProtocol, Acks) {
  const EagerRanges ranges = {{0, 1}, {7, UINT16_MAX}, {UINT32_MAX, 2}};
  const std::string body =
      BodyOf([&](ControlChannel& channel) { return SendEagerAck(channel, ranges); });
  EXPECT_EQ(*DecodeEagerAck(body), ranges);
  EXPECT_FALSE(DecodeEagerAck("").ok());
  EXPECT_FALSE(DecodeEagerAck(body + "x").ok());
  EXPECT_FALSE(DecodeEagerAck(std::string(6, '\0')).ok());
  EXPECT_FALSE(DecodeEagerAck(std::string(6 * 11000, '\1')).ok());
  // As many frames as they need.
  RecordingControlChannel channel({1, 1001});
  const std::vector<EagerRange> many(11000, {1, 1});
  EXPECT_TRUE(SendEagerAck(channel, many).ok());
  ASSERT_EQ(channel.bodies.size(), 2u);
  EXPECT_EQ(DecodeEagerAck(channel.bodies[0])->size() + DecodeEagerAck(channel.bodies[1])->size(),
            11000u);
}

TEST(EagerProtocol, MessagesOfFixedSize) {
  const std::string refused =
      BodyOf([](ControlChannel& channel) { return SendStepRefused(channel, -3); });
  EXPECT_EQ(*DecodeStepRefused(refused), -3);
  EXPECT_FALSE(DecodeStepRefused(refused + "x").ok());
  const std::string now = BodyOf([](ControlChannel& channel) { return SendAckNow(channel, 4); });
  EXPECT_EQ(*DecodeAckNow(now), 4);
  EXPECT_FALSE(DecodeAckNow("").ok());
  const std::string watch =
      BodyOf([](ControlChannel& channel) { return SendWatch(channel, 5, 6); });
  EXPECT_EQ(DecodeWatch(watch)->id, 5u);
  EXPECT_EQ(DecodeWatch(watch)->step_id, 6);
  EXPECT_FALSE(DecodeWatch(watch + "x").ok());
  const std::string request = BodyOf([](ControlChannel& channel) {
    return SendNamedRequest(channel, {7, 8, /*may_reject=*/true, 9});
  });
  EXPECT_EQ(DecodeNamedRequest(request)->id, 7u);
  EXPECT_EQ(DecodeNamedRequest(request)->step_id, 8);
  EXPECT_TRUE(DecodeNamedRequest(request)->may_reject);
  EXPECT_EQ(DecodeNamedRequest(request)->name, 9u);
  EXPECT_FALSE(DecodeNamedRequest(request + "x").ok());
  EXPECT_FALSE(DecodeNamedRequest(std::string(24, '\0')).ok());
}

TEST(EagerProtocol, Limits_AreAFieldOfHelloThatNobodySendsYet) {
  HelloMessage hello;
  EXPECT_FALSE(DecodeHello(BodyOf([&](ControlChannel& channel) {
                 return SendHello(channel, hello);
               }))->eager.has_value());
  hello.eager = EagerLimits{1, 2, 3, 4, 5, 6};
  const std::string body =
      BodyOf([&](ControlChannel& channel) { return SendHello(channel, hello); });
  EXPECT_EQ(DecodeHello(body)->eager, hello.eager);
  const std::string limits = EncodeEagerLimits(*hello.eager);
  // Twice.
  EXPECT_FALSE(DecodeHello(body + body.substr(body.size() - limits.size() - 3)).ok());
  // A later version's has more.
  EXPECT_EQ(*DecodeEagerLimits(limits + "more"), *hello.eager);
  EXPECT_FALSE(DecodeEagerLimits(limits.substr(1)).ok());
  for (size_t at = 0; at < limits.size(); at += at == 0 ? 1 : 4) {
    std::string zero = limits;
    zero[at] = '\0';
    EXPECT_FALSE(DecodeEagerLimits(zero).ok()) << at;
  }
}

}  // namespace
}  // namespace ferry
