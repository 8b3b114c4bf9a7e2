// SPDX-License-Identifier: Apache-2.0
// A node's report of its transfers.
#include "node/transfer_report.h"

#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/node/engine_pair.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

const PathReport* PathTo(const TransferReport& report, int peer, bool is_in_arena = true) {
  for (const PathReport& path : report.paths) {
    if (path.peer == peer && path.is_in_arena == is_in_arena) return &path;
  }
  return nullptr;
}

const PathCost* CostOf(const PathReport& path, absl::string_view transport) {
  if (!path.choice.ok()) return nullptr;
  for (const PathCandidate& each : path.choice->candidates) {
    if (each.name == transport && each.cost.ok()) return &*each.cost;
  }
  return nullptr;
}

// Moves `bytes` from `a` to `b`.
void Move(EngineEnd& a, EngineEnd& b, int64_t step, int64_t bytes, bool is_in_arena = true) {
  const Shape shape = *Shape::Create({bytes});
  Receipt receipt;
  b.Step(step)->RecvAsync(KeyBetween(a, b, "k"), {}, receipt.callback());
  ASSERT_TRUE(a.Step(step)
                  ->Send(KeyBetween(a, b, "k"), is_in_arena
                                                    ? a.Allocate(DataType::kUint8, shape)
                                                    : *Tensor::Allocate(DataType::kUint8, shape))
                  .ok());
  ASSERT_TRUE(receipt.Wait().ok()) << receipt.Wait().status();
}

// The report survives the store, and is complete.
TransferReport ReportOf(const EngineEnd& end) {
  const TransferReport report = MakeTransferReport(*end.engine);
  const std::string text = EncodeTransferReport(report);
  absl::StatusOr<TransferReport> decoded = DecodeTransferReport(text, 1);
  EXPECT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(EncodeTransferReport(*decoded), text);
  return *std::move(decoded);
}

bool Becomes(const std::function<bool()>& condition) {
  for (int i = 0; i < 3000; ++i) {
    if (condition()) return true;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return false;
}

TEST(TransferReportTest, LatencyIsMeasuredWhenAChannelOpens) {
  Directory directory;
  EngineEnd a(directory, 1);
  EngineEnd b(directory, 2);
  EXPECT_EQ(PathTo(ReportOf(a), 2), nullptr) << "there is no connection yet";
  Move(a, b, 1, 8);
  ASSERT_TRUE(Becomes([&] {
    const TransferReport report = ReportOf(a);
    const PathReport* const path = PathTo(report, 2);
    return path != nullptr && CostOf(*path, "shm")->latency_basis == CostBasis::kMeasured;
  }));
  const TransferReport report = ReportOf(a);
  const PathCost shm = *CostOf(*PathTo(report, 2), "shm");
  // It is measured: on a loaded machine it may be anything but a wrong unit.
  EXPECT_LT(shm.latency, absl::Seconds(10));
  EXPECT_GT(shm.latency, absl::Nanoseconds(10));
  // In the arena there is nothing to be copied; elsewhere that was measured at the start.
  EXPECT_EQ(shm.bytes_per_second, kNoCopy);
  EXPECT_EQ(CostOf(*PathTo(report, 2, false), "shm")->bandwidth_basis, CostBasis::kAtStart);
  // Measured at the start, or the control channel's, where that is busy.
  EXPECT_NE(CostOf(*PathTo(report, 2), "tcp")->latency_basis, CostBasis::kAssumed);
  EXPECT_GE(CostOf(*PathTo(report, 2), "tcp")->latency, shm.latency);
  EXPECT_EQ(PathTo(report, 2)->channel, "shm");
  // The other side's, and a receiver's explanation.
  EXPECT_EQ(CostOf(*PathTo(ReportOf(b), 1), "shm")->latency_basis, CostBasis::kMeasured);
  EXPECT_THAT(Explain(*b.engine->PathFrom(a.engine->self(), 8, true)), HasSubstr("us measured "));
  // Within the process.
  EXPECT_EQ(CostOf(*PathTo(report, 1), "local")->latency_basis, CostBasis::kAtStart);
  EXPECT_LT(CostOf(*PathTo(report, 1), "local")->latency, absl::Seconds(10));
}

TEST(TransferReportTest, TransfersRefreshTheEstimates) {
  Directory directory;
  TransferEngineOptions by_tcp;
  by_tcp.require_transport = "tcp";
  EngineEnd a(directory, 1, by_tcp);
  EngineEnd b(directory, 2, by_tcp);
  Move(a, b, 1, 4 << 20);
  Move(a, b, 2, 300'000);
  ASSERT_TRUE(Becomes([&] {
    const TransferReport report = ReportOf(a);
    const PathCost* const tcp = CostOf(*PathTo(report, 2), "tcp");
    return tcp->bandwidth_basis == CostBasis::kMeasured &&
           tcp->latency_basis == CostBasis::kMeasured;
  }));
  const TransferReport report = ReportOf(a);
  EXPECT_GT(CostOf(*PathTo(report, 2), "tcp")->bytes_per_second, 1e6);
  // Why there is no other.
  EXPECT_THAT(Explain(*PathTo(report, 2)->choice), HasSubstr("not shm: descriptors cannot be"));
}

// An old measurement is repeated, both by requests and by sends.
TEST(TransferReportTest, LatencyIsMeasuredRepeatedly) {
  Directory directory;
  EngineEnd a(directory, 1);
  EngineEnd b(directory, 2);
  int64_t step = 1;
  Move(a, b, step, 300'000);
  const auto is_measured_again = [](const std::function<absl::Duration()>& age) {
    return Becomes([&] { return age() > absl::Seconds(1); }) &&
           Becomes([&] { return age() < absl::Milliseconds(500); });
  };
  EXPECT_TRUE(is_measured_again([&] {
    const TransferReport report = ReportOf(a);
    return CostOf(*PathTo(report, 2), "shm")->latency_age;
  }));
  // This sends no request.
  EXPECT_TRUE(is_measured_again([&] {
    Move(a, b, ++step, 300'000);
    const PathReport back = {.choice = a.engine->PathFrom(b.engine->self(), 1 << 20, true)};
    return CostOf(back, "shm")->latency_age;
  }));
}

TEST(TransferReportTest, CopyToTheArena_IsMeasured) {
  Directory directory;
  // On a busy machine another path may be faster.
  TransferEngineOptions only;
  only.require_transport = "shm";
  EngineEnd a(directory, 1, only);
  EngineEnd b(directory, 2, only);
  Move(a, b, 1, 8 << 20, /*is_in_arena=*/false);
  const TransferReport report = ReportOf(a);
  EXPECT_EQ(CostOf(*PathTo(report, 2, false), "shm")->bandwidth_basis, CostBasis::kMeasured);
}

TEST(TransferReportTest, ReportsThePagesOfTheArena) {
  Directory directory;
  EngineEnd a(directory, 1);
  EXPECT_EQ(ReportOf(a).pages, "none yet");
  {
    const Tensor tensor = a.Allocate(DataType::kUint8, *Shape::Create({4 << 20}));
    const TransferReport report = ReportOf(a);
    EXPECT_EQ(report.pages, PageKindName(a.engine->arena_stats().pages));
    EXPECT_EQ(report.arena_used_bytes, size_t{4} << 20);
    EXPECT_GE(report.arena_mapped_bytes, size_t{4} << 20);
  }
  a.engine->arena().Trim();
  EXPECT_EQ(ReportOf(a).pages, "none yet");
  TransferEngineOptions small;
  small.arena.memory.huge_pages = false;
  EngineEnd b(directory, 2, small);
  const Tensor tensor = b.Allocate(DataType::kUint8, *Shape::Create({4 << 20}));
  EXPECT_EQ(ReportOf(b).pages, "4 KiB pages");
}

TEST(TransferReportTest, CountsUnauthenticatedConnections) {
  Directory directory;
  TransferEngineOptions other;
  other.token = "another job";
  EngineEnd a(directory, 1);
  EngineEnd b(directory, 2, other);
  EXPECT_EQ(ReportOf(a).refused_connections, 0);
  EXPECT_EQ(ReportOf(a).last_refusal, "");
  Receipt receipt;
  b.Step(1)->RecvAsync(KeyBetween(a, b, "k"), {}, receipt.callback());
  EXPECT_EQ(receipt.Wait().status().code(), absl::StatusCode::kUnauthenticated);
  const TransferReport report = ReportOf(a);
  // Through the Unix socket, and over TCP.
  EXPECT_GE(report.refused_connections, 1);
  EXPECT_THAT(report.last_refusal, HasSubstr("token"));
}

TEST(TransferReportTest, CountsUnauthenticatedCalls) {
  Directory directory;
  TransferEngineOptions options;
  options.protocol = WireProtocol::kGrpc;
  EngineEnd a(directory, 1, options);
  options.token = "another job";
  EngineEnd b(directory, 2, options);
  EXPECT_EQ(ReportOf(a).refused_calls, 0);
  Receipt receipt;
  b.Step(1)->RecvAsync(KeyBetween(a, b, "k"), {}, receipt.callback());
  EXPECT_EQ(receipt.Wait().status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_GE(ReportOf(a).refused_calls, 1);
}

}  // namespace
}  // namespace ferry
