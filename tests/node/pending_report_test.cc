// SPDX-License-Identifier: Apache-2.0
// Pending operations, as published in the store.
#include "node/pending_report.h"

#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

#include "rendezvous/rendezvous_manager.h"
#include "tests/support/peer_record_rules.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

class NoFetcher final : public RemoteFetcher {
 public:
  std::shared_ptr<RemoteFetch> Fetch(int64_t, const RendezvousKey&, const RecvArgs&,
                                     RecvCallback) override {
    return nullptr;
  }
};

RendezvousKey KeyTo(int node, absl::string_view name) {
  return *RendezvousKey::Parse(RendezvousKey::Text(
      "/job:worker/replica:0/task:0/device:CPU:0", 1,
      absl::StrCat("/job:worker/replica:0/task:", node, "/device:CPU:0"), name));
}

class PendingReportTest : public ::testing::Test {
 protected:
  PendingReportTest() : manager_(clock_, fetcher_) {}

  void Send(int64_t step, int node, absl::string_view name) {
    const auto rendezvous = *manager_.Find(step);
    ASSERT_TRUE(rendezvous->Initialize({.job = "worker", .replica = 0, .task = 0}).ok());
    ASSERT_TRUE(
        rendezvous
            ->Send(KeyTo(node, name), *Tensor::Allocate(DataType::kUint8, *Shape::Create({100})))
            .ok());
  }

  FakeClock clock_;
  NoFetcher fetcher_;
  RendezvousManager manager_;
  const PendingSource source_ = [this](absl::Duration min_age, PendingVisitor visit) {
    manager_.ForEachPending(min_age, visit);
  };
};

TEST_F(PendingReportTest, NamesStepSidePeerKeyAndAge) {
  Send(7, 3, "grad");
  clock_.Advance(absl::Seconds(2));
  Send(7, 4, "young");
  const PendingReport report = MakePendingReport(source_, kPendingAge);
  EXPECT_EQ(report.total, 1);
  ASSERT_EQ(report.rows.size(), 1u);
  const PendingRow& row = report.rows[0];
  EXPECT_EQ(row.step_id, 7);
  EXPECT_EQ(row.side, "send");
  EXPECT_EQ(row.peer, 3);
  EXPECT_EQ(row.bytes, 100u);
  EXPECT_EQ(row.age, absl::Seconds(2));
  EXPECT_THAT(row.key, HasSubstr(";grad;"));
}

// An operator looks for the process that has to act: it is the other one, or this one.
TEST_F(PendingReportTest, EachKindNamesTheOtherSideAndWhatIsMissing) {
  using Side = PendingStepOp::Side;
  // From node 0 to node 3.
  const auto row_of = [](Side side, const std::string& phase) {
    const PendingReport report = MakePendingReport(
        [&](absl::Duration, PendingVisitor visit) {
          visit({.step_id = 7,
                 .key = KeyTo(3, "x"),
                 .side = side,
                 .age = absl::Seconds(2),
                 .phase = phase});
        },
        kPendingAge);
    EXPECT_EQ(report.rows.size(), 1u);
    const PendingRow row = report.rows.empty() ? PendingRow() : report.rows[0];
    return absl::StrCat(row.side, " ", row.peer, ": ", row.phase);
  };
  EXPECT_EQ(row_of(Side::kSend, ""), "send 3: sent; not asked for yet");
  EXPECT_EQ(row_of(Side::kTransfer, "offered"), "send 3: offered");
  EXPECT_EQ(row_of(Side::kRecv, ""), "recv 3: asked for by the peer; not sent yet");
  EXPECT_EQ(row_of(Side::kDeferred, ""),
            "recv 3: asked for by the peer; the step has not begun here");
  EXPECT_EQ(row_of(Side::kFetch, ""), "recv 0: asked");
  EXPECT_EQ(row_of(Side::kFetch, "connecting"), "recv 0: connecting");
}

// A node in trouble may have a million of them; the store is not for that.
TEST_F(PendingReportTest, KeepsTheOldestAndCountsAll) {
  for (int i = 0; i < 200; ++i) {
    Send(i, 1, "x");
    clock_.Advance(absl::Seconds(1));
  }
  const PendingReport report = MakePendingReport(source_, kPendingAge);
  EXPECT_EQ(report.total, 200);
  ASSERT_EQ(report.rows.size(), kMaxPendingRows);
  for (size_t i = 0; i < report.rows.size(); ++i) {
    EXPECT_EQ(report.rows[i].step_id, static_cast<int64_t>(i));
  }
}

PendingReport FullReport() {
  PendingReport report;
  report.total = 1'000'000;
  report.rows.push_back({-5, "recv", 17, absl::Milliseconds(1234), 0,
                         std::string("a\tb\nc\\\0\xff", 8), "asked node 17"});
  report.rows.push_back({std::numeric_limits<int64_t>::max(), "send", -1, absl::ZeroDuration(),
                         std::numeric_limits<size_t>::max(), "", "x"});
  return report;
}

TEST_F(PendingReportTest, RoundTrips) {
  const absl::StatusOr<PendingReport> read = DecodePending(EncodePending(FullReport()), 3);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, FullReport());
  EXPECT_EQ(*DecodePending(EncodePending({}), 3), PendingReport());
}

TEST_F(PendingReportTest, FollowsTheRulesOfRecords) {
  ExpectRules({.kind = "pending report",
               .key = "ferry/pending/3",
               .bytes = EncodePending(FullReport()),
               .decode = [](absl::string_view bytes) { return DecodePending(bytes, 3).status(); }});
}

// Any client can write to the store.
TEST_F(PendingReportTest, OutsideItsBounds_IsRefused) {
  PendingReport report;
  report.rows.resize(kMaxPendingRows, {.side = "send", .key = std::string(64 << 10, 'k')});
  EXPECT_TRUE(DecodePending(EncodePending(report), 3).ok());
  report.rows.push_back({.side = "send"});
  absl::Status status = DecodePending(EncodePending(report), 3).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("65 operations, over the limit of 64"));
  // An operation that is no message.
  status = DecodePending(VersionOf(1, 0) + "\x1a\x02\xff\xff", 3).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("its 8 bytes are no protocol buffer"));
  for (const int side : {0, 3, -1}) {
    peer::v1::PendingReport record;
    ASSERT_TRUE(record.ParseFromString(EncodePending(FullReport())));
    record.mutable_operations(1)->set_side(static_cast<peer::v1::PendingSide>(side));
    status = DecodePending(record.SerializeAsString(), 3).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("on side ", side)));
  }
}

}  // namespace
}  // namespace ferry
