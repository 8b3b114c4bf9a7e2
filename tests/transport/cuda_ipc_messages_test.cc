// SPDX-License-Identifier: Apache-2.0
// Messages about GPU memory survive encoding, and nothing else is accepted as one.
#include "transport/cuda_ipc/cuda_ipc_messages.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry {
namespace {

cuda::IpcDescriptor SomeMemory(uint64_t bytes = 300) {
  cuda::IpcDescriptor memory;
  memory.export_by = cuda::ExportBy::kPosixFd;
  memory.device.bytes[3] = 7;
  memory.allocation_id = 0x1122334455667788;
  memory.base = 0x7f0000000000;
  memory.allocation_bytes = 1 << 20;
  memory.offset = 4096;
  memory.bytes = bytes;
  return memory;
}

constexpr GpuPair kPair = {.source = 1, .destination = 513};

CudaIpcDescriptor DescriptorOf(size_t pieces) {
  CudaIpcDescriptor descriptor;
  descriptor.pair = kPair;
  descriptor.ready = {3, 0x100000002};
  descriptor.why_staged = pieces == 0 ? "it is small" : "";
  for (size_t i = 0; i < pieces; ++i) {
    descriptor.pieces.push_back(
        {.memory = SomeMemory(i + 1), .has_fd = i % 2 == 0, .is_kept = i % 3 == 0});
  }
  return descriptor;
}

CudaIpcProbe ProbeOf(size_t events) {
  CudaIpcProbe probe;
  probe.pair = kPair;
  probe.seed = 0xfedcba98;
  probe.memory = SomeMemory(kCudaIpcProbeBytes);
  probe.events.resize(events);
  for (size_t i = 0; i < events; ++i) probe.events[i].bytes[5] = static_cast<char>(i);
  return probe;
}

CudaIpcSlice SomeSlice() {
  return {.id = 5,
          .pair = kPair,
          .offset = 1ull << 33,
          .ready = {3, 9},
          .piece = {.memory = SomeMemory(), .has_fd = true, .is_kept = true}};
}

// Each part of a message is refused, as is one that continues. Returns the message as it arrives.
template <typename Message>
Message Exchange(const std::string& body, absl::StatusOr<Message> (*decode)(absl::string_view)) {
  for (size_t bytes = 0; bytes < body.size(); ++bytes) {
    EXPECT_EQ(decode(body.substr(0, bytes)).status().code(), absl::StatusCode::kInvalidArgument)
        << bytes << " of " << body.size() << " bytes";
  }
  EXPECT_EQ(decode(body + '\0').status().code(), absl::StatusCode::kInvalidArgument);
  absl::StatusOr<Message> message = decode(body);
  EXPECT_TRUE(message.ok()) << message.status();
  return message.ok() ? *std::move(message) : Message();
}

void ExpectKind(CudaIpcMessage kind, const std::string& body) {
  const absl::StatusOr<CudaIpcMessage> read = KindOfCudaIpc(body);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, kind);
}

TEST(CudaIpcMessagesTest, Descriptors) {
  for (const size_t pieces : {size_t{0}, size_t{1}, kMaxCudaIpcPieces}) {
    const CudaIpcDescriptor sent = DescriptorOf(pieces);
    const auto come = Exchange(EncodeCudaIpcDescriptor(sent), DecodeCudaIpcDescriptor);
    EXPECT_EQ(come.pair, sent.pair);
    EXPECT_EQ(come.ready.slot, sent.ready.slot);
    EXPECT_EQ(come.ready.sequence, sent.ready.sequence);
    EXPECT_EQ(come.why_staged, sent.why_staged);
    ASSERT_EQ(come.pieces.size(), pieces);
    for (size_t i = 0; i < pieces; ++i) {
      EXPECT_EQ(come.pieces[i].memory, sent.pieces[i].memory);
      EXPECT_EQ(come.pieces[i].has_fd, sent.pieces[i].has_fd);
      EXPECT_EQ(come.pieces[i].is_kept, sent.pieces[i].is_kept);
    }
  }
  EXPECT_FALSE(
      DecodeCudaIpcDescriptor(EncodeCudaIpcDescriptor(DescriptorOf(kMaxCudaIpcPieces + 1))).ok());
}

TEST(CudaIpcMessagesTest, Probes) {
  for (const size_t events : {size_t{0}, size_t{2}, kMaxCudaIpcEvents}) {
    const CudaIpcProbe sent = ProbeOf(events);
    const std::string body = EncodeCudaIpcProbe(sent);
    ExpectKind(CudaIpcMessage::kProbe, body);
    const auto come = Exchange(body, DecodeCudaIpcProbe);
    EXPECT_EQ(come.pair, sent.pair);
    EXPECT_EQ(come.seed, sent.seed);
    EXPECT_EQ(come.memory, sent.memory);
    ASSERT_EQ(come.events.size(), events);
    if (events == 0) continue;
    EXPECT_EQ(come.events.back().bytes[5], sent.events.back().bytes[5]);
  }
  EXPECT_FALSE(DecodeCudaIpcProbe(EncodeCudaIpcProbe(ProbeOf(kMaxCudaIpcEvents + 1))).ok());
  // The receiver reads as much as it has room for.
  for (const size_t bytes : {kCudaIpcProbeBytes - 1, kCudaIpcProbeBytes + 1}) {
    CudaIpcProbe probe = ProbeOf(1);
    probe.memory.bytes = bytes;
    EXPECT_FALSE(DecodeCudaIpcProbe(EncodeCudaIpcProbe(probe)).ok()) << bytes;
  }
}

TEST(CudaIpcMessagesTest, AnswersToProbes) {
  const CudaIpcProbed sent = {kPair, 7, "another container", "no /dev/shm"};
  const std::string body = EncodeCudaIpcProbed(sent);
  ExpectKind(CudaIpcMessage::kProbed, body);
  const auto come = Exchange(body, DecodeCudaIpcProbed);
  EXPECT_EQ(come.pair, sent.pair);
  EXPECT_EQ(come.seed, sent.seed);
  EXPECT_EQ(come.refusal, sent.refusal);
  EXPECT_EQ(come.events_unavailable_reason, sent.events_unavailable_reason);
}

TEST(CudaIpcMessagesTest, Slices) {
  const CudaIpcSlice sent = SomeSlice();
  const std::string body = EncodeCudaIpcSlice(sent);
  ExpectKind(CudaIpcMessage::kSlice, body);
  const auto come = Exchange(body, DecodeCudaIpcSlice);
  EXPECT_EQ(come.id, sent.id);
  EXPECT_EQ(come.pair, sent.pair);
  EXPECT_EQ(come.offset, sent.offset);
  EXPECT_EQ(come.ready.slot, sent.ready.slot);
  EXPECT_EQ(come.ready.sequence, sent.ready.sequence);
  EXPECT_EQ(come.piece.memory, sent.piece.memory);
  EXPECT_TRUE(come.piece.has_fd);
  // A slot of the ring stays where it is.
  CudaIpcSlice moving = sent;
  moving.piece.is_kept = false;
  EXPECT_FALSE(DecodeCudaIpcSlice(EncodeCudaIpcSlice(moving)).ok());
}

TEST(CudaIpcMessagesTest, EndsOfSlices) {
  const std::string taken = EncodeCudaIpcTaken({5, 1ull << 33});
  ExpectKind(CudaIpcMessage::kTaken, taken);
  EXPECT_EQ(Exchange(taken, DecodeCudaIpcTaken).id, 5u);
  EXPECT_EQ(Exchange(taken, DecodeCudaIpcTaken).offset, 1ull << 33);
  const std::string failed = EncodeCudaIpcFailed({6, "the device has failed"});
  ExpectKind(CudaIpcMessage::kFailed, failed);
  EXPECT_EQ(Exchange(failed, DecodeCudaIpcFailed).id, 6u);
  EXPECT_EQ(Exchange(failed, DecodeCudaIpcFailed).why, "the device has failed");
}

TEST(CudaIpcMessagesTest, Segments) {
  const std::string wanted = EncodeCudaIpcWanted({kPair, 77});
  ExpectKind(CudaIpcMessage::kWanted, wanted);
  EXPECT_EQ(Exchange(wanted, DecodeCudaIpcWanted).pair, kPair);
  EXPECT_EQ(Exchange(wanted, DecodeCudaIpcWanted).allocation_id, 77u);
  const std::string segment = EncodeCudaIpcSegment({kPair, SomeMemory()});
  ExpectKind(CudaIpcMessage::kSegment, segment);
  EXPECT_EQ(Exchange(segment, DecodeCudaIpcSegment).pair, kPair);
  EXPECT_EQ(Exchange(segment, DecodeCudaIpcSegment).memory, SomeMemory());
}

TEST(CudaIpcMessagesTest, MemoryThatStaysOpen) {
  CudaIpcDescriptor sent = DescriptorOf(2);
  sent.pieces[0].may_stay_open = true;
  sent.pieces[1].memory.pool_id = 0x8877665544332211;
  const std::string body = EncodeCudaIpcDescriptor(sent);
  const auto come = Exchange(body, DecodeCudaIpcDescriptor);
  EXPECT_TRUE(come.pieces[0].may_stay_open);
  EXPECT_EQ(come.pieces[0].memory.pool_id, 0u);
  EXPECT_FALSE(come.pieces[1].may_stay_open);
  EXPECT_EQ(come.pieces[1].memory.pool_id, sent.pieces[1].memory.pool_id);
  EXPECT_EQ(come.pieces[1].memory, sent.pieces[1].memory);
  const std::string reclaim = EncodeCudaIpcReclaim({kPair, 77});
  ExpectKind(CudaIpcMessage::kReclaim, reclaim);
  EXPECT_EQ(Exchange(reclaim, DecodeCudaIpcReclaim).pair, kPair);
  EXPECT_EQ(Exchange(reclaim, DecodeCudaIpcReclaim).allocation_id, 77u);
  ExpectKind(CudaIpcMessage::kReclaimed, EncodeCudaIpcReclaimed({kPair, 77}));
  const std::string refused = EncodeCudaIpcRefused({6, "cuMemPoolImportPointer failed"});
  ExpectKind(CudaIpcMessage::kRefused, refused);
  EXPECT_EQ(Exchange(refused, DecodeCudaIpcRefused).id, 6u);
  EXPECT_EQ(Exchange(refused, DecodeCudaIpcRefused).why, "cuMemPoolImportPointer failed");
}

// A release that handles none of that has an empty descriptor; a later one may say more.
TEST(CudaIpcMessagesTest, PeersThatMayKeepMemory) {
  EXPECT_FALSE(MayKeepForeignMemory(""));
  EXPECT_FALSE(MayKeepForeignMemory(absl::string_view("\0", 1)));
  EXPECT_TRUE(MayKeepForeignMemory(EncodeCudaIpcPeer()));
  EXPECT_TRUE(MayKeepForeignMemory("\x02more"));
}

// An error may quote a path, or another error.
TEST(CudaIpcMessagesTest, LongTexts_AreCutAndTheRestStays) {
  const std::string text(5000, 'x');
  CudaIpcDescriptor staged = DescriptorOf(0);
  staged.why_staged = text;
  const auto descriptor = DecodeCudaIpcDescriptor(EncodeCudaIpcDescriptor(staged));
  ASSERT_TRUE(descriptor.ok()) << descriptor.status();
  EXPECT_EQ(descriptor->why_staged, text.substr(0, 1024));
  const auto probed = DecodeCudaIpcProbed(EncodeCudaIpcProbed({kPair, 7, text, text}));
  ASSERT_TRUE(probed.ok()) << probed.status();
  EXPECT_EQ(probed->refusal, text.substr(0, 1024));
  EXPECT_EQ(probed->events_unavailable_reason, text.substr(0, 1024));
  const auto failed = DecodeCudaIpcFailed(EncodeCudaIpcFailed({6, text}));
  ASSERT_TRUE(failed.ok()) << failed.status();
  EXPECT_EQ(failed->why, text.substr(0, 1024));
}

TEST(CudaIpcMessagesTest, UnknownKinds_AreRefused) {
  for (const absl::string_view body : {absl::string_view(), absl::string_view("\0", 1),
                                       absl::string_view("\x0b"), absl::string_view("\xff")}) {
    EXPECT_EQ(KindOfCudaIpc(body).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace ferry
