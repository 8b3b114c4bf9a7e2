// SPDX-License-Identifier: Apache-2.0
// The frames of a session, without a stream.
#include "coord/server/control_outbox.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "coord/wire/bytes.h"

namespace ferry::coord {
namespace {

v1::Reply ReplyTo(uint64_t id) {
  v1::Reply reply;
  reply.set_request_id(id);
  return reply;
}

// The frames that are to be written now.
std::vector<v1::ServerFrame> Drain(ControlOutbox& outbox) {
  std::vector<v1::ServerFrame> frames;
  grpc::ByteBuffer bytes;
  while (outbox.Next(bytes)) {
    EXPECT_TRUE(ParseMessage(bytes, frames.emplace_back()));
  }
  return frames;
}

TEST(ControlOutbox, IsEmptyInitially) {
  ControlOutbox outbox;
  grpc::ByteBuffer bytes;
  EXPECT_FALSE(outbox.Next(bytes));
  EXPECT_EQ(outbox.retained_bytes(), 0u);
}

TEST(ControlOutbox, MessagesAddedTogetherShareAFrame) {
  ControlOutbox outbox;
  outbox.Add(ReplyTo(1));
  v1::Event event;
  event.set_request_id(7);
  outbox.Add(event);
  outbox.Add(ReplyTo(2));
  const std::vector<v1::ServerFrame> frames = Drain(outbox);
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].sequence(), 1u);
  ASSERT_EQ(frames[0].replies_size(), 2);
  EXPECT_EQ(frames[0].replies(1).request_id(), 2u);
  ASSERT_EQ(frames[0].events_size(), 1);
  EXPECT_EQ(frames[0].events(0).request_id(), 7u);
}

TEST(ControlOutbox, BlobEndsItsFrame) {
  ControlOutbox outbox;
  const grpc::Slice blob(std::string(3'000'000, 'b'));
  outbox.Add(ReplyTo(1));
  v1::Reply with_blob = ReplyTo(2);
  with_blob.set_has_blob(true);
  outbox.Add(with_blob, SharedBytes{.blob = blob, .values = {}});
  outbox.Add(ReplyTo(3));
  const std::vector<v1::ServerFrame> frames = Drain(outbox);
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames[0].replies_size(), 2);
  EXPECT_EQ(frames[0].blob().size(), 3'000'000u);
  EXPECT_EQ(frames[1].replies(0).request_id(), 3u);
  EXPECT_TRUE(frames[1].blob().empty());
  // Shared bytes are there once, however many sessions hold them.
  EXPECT_LT(outbox.retained_bytes(), 100u);
}

// One value that hundreds get is in memory once; and copying it delays nothing else.
TEST(ControlOutbox, LargeValuesAreNotCopied) {
  ControlOutbox outbox;
  static const std::string large(3'000'000, 'v');
  const grpc::Slice value(large.data(), large.size(), grpc::Slice::STATIC_SLICE);
  outbox.Add(ReplyTo(1));
  v1::Reply reply = ReplyTo(2);
  reply.set_revision(17);
  for (int i = 0; i < 4; ++i) reply.add_entries()->set_key(std::string(i + 1, 'k'));
  reply.mutable_entries(2)->set_value("small");
  outbox.Add(reply, SharedBytes{.blob = {}, .values = {value, {}, {}, value}});
  EXPECT_GT(outbox.retained_bytes(), 6'000'000u);
  v1::Event event;
  event.set_request_id(7);
  event.mutable_entry()->set_key("changed");
  outbox.Add(event, value);
  outbox.Add(ReplyTo(3));

  grpc::ByteBuffer bytes;
  ASSERT_TRUE(outbox.Next(bytes));
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(bytes.Dump(&slices).ok());
  int shared = 0;
  for (const grpc::Slice& slice : slices) {
    if (reinterpret_cast<const char*>(slice.begin()) == large.data()) ++shared;
  }
  EXPECT_EQ(shared, 2);
  outbox.Rewind();
  const std::vector<v1::ServerFrame> frames = Drain(outbox);
  ASSERT_EQ(frames.size(), 3u);
  ASSERT_EQ(frames[0].replies_size(), 2);
  const v1::Reply& read = frames[0].replies(1);
  EXPECT_EQ(read.request_id(), 2u);
  EXPECT_EQ(read.revision(), 17);
  ASSERT_EQ(read.entries_size(), 4);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(read.entries(i).key(), std::string(i + 1, 'k'));
  EXPECT_EQ(read.entries(0).value(), large);
  EXPECT_EQ(read.entries(1).value(), "");
  EXPECT_EQ(read.entries(2).value(), "small");
  EXPECT_EQ(read.entries(3).value(), large);
  ASSERT_EQ(frames[1].events_size(), 1);
  EXPECT_EQ(frames[1].events(0).request_id(), 7u);
  EXPECT_EQ(frames[1].events(0).entry().key(), "changed");
  EXPECT_EQ(frames[1].events(0).entry().value(), large);
  EXPECT_EQ(frames[2].replies(0).request_id(), 3u);
  outbox.Acknowledge(3);
  EXPECT_EQ(outbox.retained_bytes(), 0u);
}

TEST(ControlOutbox, LargeRepliesAreSpreadOverFrames) {
  ControlOutbox outbox;
  v1::Reply large = ReplyTo(1);
  large.add_entries()->set_value(std::string(600'000, 'v'));
  for (int i = 0; i < 4; ++i) outbox.Add(large);
  const std::vector<v1::ServerFrame> frames = Drain(outbox);
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames[1].sequence(), 2u);
  EXPECT_EQ(frames[0].replies_size() + frames[1].replies_size(), 4);
}

TEST(ControlOutbox, NewStreamGetsUnacknowledgedFrames) {
  ControlOutbox outbox;
  for (uint64_t id = 1; id <= 5; ++id) {
    outbox.Add(ReplyTo(id));
    ASSERT_EQ(Drain(outbox).size(), 1u);
  }
  outbox.Acknowledge(3);
  EXPECT_TRUE(Drain(outbox).empty());
  outbox.Rewind();
  const std::vector<v1::ServerFrame> again = Drain(outbox);
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[0].sequence(), 4u);
  EXPECT_EQ(again[0].replies(0).request_id(), 4u);
  outbox.Acknowledge(5);
  outbox.Rewind();
  EXPECT_TRUE(Drain(outbox).empty());
  EXPECT_EQ(outbox.retained_bytes(), 0u);
}

TEST(ControlOutbox, AcknowledgementsOfUnsentFramesAreHarmless) {
  ControlOutbox outbox;
  outbox.Acknowledge(~uint64_t{0});
  outbox.Add(ReplyTo(1));
  ASSERT_EQ(Drain(outbox).size(), 1u);
  outbox.Acknowledge(~uint64_t{0});
  outbox.Acknowledge(0);
  outbox.Add(ReplyTo(2));
  const std::vector<v1::ServerFrame> frames = Drain(outbox);
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].sequence(), 2u);
}

// Acknowledged one by one, late, for a long time: frames are neither lost nor kept.
TEST(ControlOutbox, KeepsOrderOverManyFrames) {
  ControlOutbox outbox;
  uint64_t expected = 0;
  for (uint64_t id = 1; id <= 10'000; ++id) {
    outbox.Add(ReplyTo(id));
    for (const v1::ServerFrame& frame : Drain(outbox)) {
      EXPECT_EQ(frame.sequence(), ++expected);
      EXPECT_EQ(frame.replies(0).request_id(), expected);
    }
    if (id > 100) outbox.Acknowledge(id - 100);
  }
  EXPECT_EQ(expected, 10'000u);
  EXPECT_LT(outbox.retained_bytes(), 2'000u);
  outbox.Rewind();
  EXPECT_EQ(Drain(outbox).front().sequence(), 9'901u);
}

// The client's new stream begins, and reports how much it has received.
TEST(ControlOutbox, FramesAcknowledgedAfterARewind_AreNotSentAgain) {
  ControlOutbox outbox;
  for (uint64_t id = 1; id <= 3; ++id) {
    outbox.Add(ReplyTo(id));
    ASSERT_EQ(Drain(outbox).size(), 1u);
  }
  outbox.Rewind();
  outbox.Acknowledge(2);
  const std::vector<v1::ServerFrame> frames = Drain(outbox);
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].sequence(), 3u);
  EXPECT_EQ(frames[0].replies(0).request_id(), 3u);
}

// Entries at the end have their values themselves.
TEST(ControlOutbox, FewerSharedValuesThanEntries_BelongToTheFirst) {
  ControlOutbox outbox;
  const std::string large(100'000, 'v');
  v1::Reply reply = ReplyTo(1);
  reply.add_entries()->set_key("a");
  reply.add_entries()->set_key("b");
  reply.mutable_entries(1)->set_value("small");
  outbox.Add(reply, SharedBytes{.blob = {}, .values = {grpc::Slice(large)}});
  const std::vector<v1::ServerFrame> frames = Drain(outbox);
  ASSERT_EQ(frames.size(), 1u);
  ASSERT_EQ(frames[0].replies(0).entries_size(), 2);
  EXPECT_EQ(frames[0].replies(0).entries(0).value(), large);
  EXPECT_EQ(frames[0].replies(0).entries(1).key(), "b");
  EXPECT_EQ(frames[0].replies(0).entries(1).value(), "small");
}

// Neither sent nor begun frames are kept; sequence numbers continue.
TEST(ControlOutbox, ClearedFrames_AreNeitherSentNorKept) {
  ControlOutbox outbox;
  outbox.Add(ReplyTo(1));
  ASSERT_EQ(Drain(outbox).size(), 1u);
  v1::Event event;
  event.mutable_entry()->set_key("k");
  outbox.Add(event, grpc::Slice(std::string(1000, 'v')));
  EXPECT_GT(outbox.retained_bytes(), 1000u);
  outbox.Clear();
  EXPECT_EQ(outbox.retained_bytes(), 0u);
  outbox.Rewind();
  EXPECT_TRUE(Drain(outbox).empty());
  outbox.Add(ReplyTo(3));
  const std::vector<v1::ServerFrame> frames = Drain(outbox);
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_GT(frames[0].sequence(), 1u);
  EXPECT_EQ(frames[0].replies(0).request_id(), 3u);
  EXPECT_TRUE(frames[0].events().empty());
}

}  // namespace
}  // namespace ferry::coord
