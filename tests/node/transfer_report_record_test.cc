// SPDX-License-Identifier: Apache-2.0
// Transfer reports, as published in the store.
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "node/transfer_report.h"
#include "tests/support/peer_record_rules.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

PathCandidate CandidateOf(std::string name, size_t transport) {
  PathCost cost;
  cost.latency = absl::Nanoseconds(1250);
  cost.bytes_per_second = 1.25e9;
  cost.latency_basis = CostBasis::kMeasured;
  cost.bandwidth_basis = CostBasis::kAtStart;
  cost.latency_age = absl::Milliseconds(1500);
  cost.bandwidth_age = absl::Milliseconds(7);
  cost.stages = 2;
  cost.note = std::string("n\0te\xff", 5);
  return {.name = std::move(name), .cost = std::move(cost), .transport = transport};
}

TransferReport FullTransferReport() {
  TransferReport report;
  report.pages = "4 KiB pages";
  report.arena_used_bytes = 1;
  report.arena_mapped_bytes = 2;
  report.arena_budget_bytes = std::numeric_limits<size_t>::max();
  report.refused_connections = 4;
  report.refused_calls = 5;
  report.last_refusal = "a\tb\nc";
  report.peers = std::numeric_limits<int64_t>::max();
  PathExplanation choice;
  // Transports are numbered in the sender's list, and candidates from 0.
  choice.transport = 6;
  choice.candidates = {CandidateOf("shm", 4),
                       {.name = "nccl", .cost = absl::UnavailableError("no GPU"), .transport = 5},
                       CandidateOf("tcp", 6)};
  choice.candidates[0].cost->bytes_per_second = kNoCopy;
  report.paths.push_back(
      {.peer = 7, .channel = "tcp to 10.0.0.3", .is_in_arena = false, .choice = choice});
  choice.transport = 9;
  report.paths.push_back({.peer = 8, .channel = "shm", .choice = choice});
  report.paths.push_back({.peer = 9, .choice = absl::FailedPreconditionError("nothing goes")});
  return report;
}

void ExpectEqualCost(const PathCost& read, const PathCost& cost) {
  EXPECT_EQ(read.latency, cost.latency);
  EXPECT_EQ(read.bytes_per_second, cost.bytes_per_second);
  EXPECT_EQ(read.latency_basis, cost.latency_basis);
  EXPECT_EQ(read.bandwidth_basis, cost.bandwidth_basis);
  EXPECT_EQ(read.latency_age, cost.latency_age);
  EXPECT_EQ(read.bandwidth_age, cost.bandwidth_age);
  EXPECT_EQ(read.stages, cost.stages);
  EXPECT_EQ(read.note, cost.note);
}

TEST(TransferReportRecord, RoundTripsEveryField) {
  const TransferReport report = FullTransferReport();
  const absl::StatusOr<TransferReport> read = DecodeTransferReport(EncodeTransferReport(report), 3);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->pages, report.pages);
  EXPECT_EQ(read->arena_used_bytes, report.arena_used_bytes);
  EXPECT_EQ(read->arena_mapped_bytes, report.arena_mapped_bytes);
  EXPECT_EQ(read->arena_budget_bytes, report.arena_budget_bytes);
  EXPECT_EQ(read->refused_connections, report.refused_connections);
  EXPECT_EQ(read->refused_calls, report.refused_calls);
  EXPECT_EQ(read->last_refusal, report.last_refusal);
  EXPECT_EQ(read->peers, report.peers);
  ASSERT_EQ(read->paths.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(read->paths[i].peer, report.paths[i].peer);
    EXPECT_EQ(read->paths[i].channel, report.paths[i].channel);
    EXPECT_EQ(read->paths[i].is_in_arena, report.paths[i].is_in_arena);
  }
  const PathExplanation& choice = *read->paths[0].choice;
  ASSERT_EQ(choice.candidates.size(), 3u);
  for (const size_t i : {0, 2}) {
    EXPECT_EQ(choice.candidates[i].name, report.paths[0].choice->candidates[i].name);
    EXPECT_EQ(choice.candidates[i].transport, i);
    ExpectEqualCost(*choice.candidates[i].cost, *report.paths[0].choice->candidates[i].cost);
  }
  EXPECT_EQ(choice.candidates[1].name, "nccl");
  EXPECT_EQ(choice.candidates[1].cost.status(), absl::UnavailableError("no GPU"));
  EXPECT_EQ(choice.transport, 2u);
  ExpectEqualCost(choice.cost, *choice.candidates[2].cost);
  // None was selected.
  EXPECT_GE(read->paths[1].choice->transport, 3u);
  EXPECT_EQ(read->paths[2].choice.status(), absl::FailedPreconditionError("nothing goes"));
}

TEST(TransferReportRecord, UnknownBandwidth_IsAFiniteNumber) {
  TransferReport report = FullTransferReport();
  report.paths[0].choice->candidates[0].cost->bytes_per_second =
      std::numeric_limits<double>::infinity();
  const absl::StatusOr<TransferReport> read = DecodeTransferReport(EncodeTransferReport(report), 3);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->paths[0].choice->candidates[0].cost->bytes_per_second, 1e15);
}

TEST(TransferReportRecord, FollowsTheRulesOfRecords) {
  ExpectRules(
      {.kind = "transfer report",
       .key = "ferry/report/3",
       .bytes = EncodeTransferReport(FullTransferReport()),
       .decode = [](absl::string_view bytes) { return DecodeTransferReport(bytes, 3).status(); }});
}

// Any client can write to the store.
TEST(TransferReportRecord, OutsideItsBounds_IsRefused) {
  using Path = peer::v1::TransferPath;
  const auto latency = [](Path& path) {
    return path.mutable_candidates(0)->mutable_cost()->mutable_latency_s();
  };
  const auto bandwidth = [](Path& path) {
    return path.mutable_candidates(0)->mutable_cost()->mutable_bytes_per_s();
  };
  const std::pair<std::function<void(Path&)>, const char*> kBad[] = {
      {[&](Path& path) { latency(path)->set_value(-1); }, "an estimate is out of range"},
      {[&](Path& path) { latency(path)->set_value(NAN); }, "an estimate is out of range"},
      {[&](Path& path) { bandwidth(path)->set_value(INFINITY); }, "an estimate is out of range"},
      {[&](Path& path) { bandwidth(path)->set_value(-0.5); }, "an estimate is out of range"},
      {[&](Path& path) { latency(path)->set_basis(static_cast<peer::v1::EstimateBasis>(3)); },
       "an estimate is out of range"},
      {[&](Path& path) { bandwidth(path)->set_basis(static_cast<peer::v1::EstimateBasis>(-1)); },
       "an estimate is out of range"},
      {[](Path& path) { path.mutable_candidates(0)->clear_result(); }, "neither a cost nor"},
      {[](Path& path) { path.set_no_path("why"); }, "candidates although there is no path"},
      // A candidate without a cost, and one that there is not.
      {[](Path& path) { path.set_chosen(1); }, "a path's choice is no candidate with a cost"},
      {[](Path& path) { path.set_chosen(3); }, "a path's choice is no candidate with a cost"},
      {[](Path& path) {
         while (path.candidates_size() < 66) *path.add_candidates() = path.candidates(0);
       },
       "66 candidates, over the limit of 65"},
  };
  peer::v1::TransferReport good;
  ASSERT_TRUE(good.ParseFromString(EncodeTransferReport(FullTransferReport())));
  const auto expect_invalid = [](const peer::v1::TransferReport& record, const char* why) {
    const absl::Status status = DecodeTransferReport(record.SerializeAsString(), 3).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << why;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  };
  for (const auto& [change, why] : kBad) {
    peer::v1::TransferReport record = good;
    change(*record.mutable_paths(0));
    expect_invalid(record, why);
  }
  // A path that is no message.
  EXPECT_THAT(
      std::string(DecodeTransferReport(VersionOf(1, 0) + "\x52\x02\xff\xff", 3).status().message()),
      HasSubstr("its 8 bytes are no protocol buffer"));
  // As many candidates, and paths, as there may be.
  peer::v1::TransferReport record = good;
  while (record.paths(0).candidates_size() < 65) {
    *record.mutable_paths(0)->add_candidates() = good.paths(0).candidates(0);
  }
  while (record.paths_size() < 2 * (static_cast<int>(kMaxReportPeers) + 1)) {
    *record.add_paths() = good.paths(2);
  }
  EXPECT_TRUE(DecodeTransferReport(record.SerializeAsString(), 3).ok());
  *record.add_paths() = good.paths(2);
  expect_invalid(record, "131 paths, over the limit of 130");
}

}  // namespace
}  // namespace ferry
