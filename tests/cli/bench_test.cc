// SPDX-License-Identifier: Apache-2.0
// Statistics of a bench's samples, and comparisons of two runs.
#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

#include "bench/comparison.h"
#include "bench/flows.h"
#include "bench/loop.h"
#include "bench/pattern_merge.h"
#include "bench/plan.h"
#include "bench/report.h"
#include "bench/times.h"

namespace ferry::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Verdict = ComparedRow::Verdict;

absl::Duration Us(double us) { return absl::Microseconds(us); }

TEST(BenchTimes, ArePercentilesOfTheSortedSamples) {
  std::vector<absl::Duration> samples;
  // 1000 down to 1.
  for (int i = 1000; i > 0; --i) samples.push_back(Us(i));
  const BenchTimes times = SummarizeTimes(samples);
  EXPECT_EQ(times.p50, Us(501));
  EXPECT_EQ(times.p90, Us(901));
  EXPECT_EQ(times.p99, Us(991));
  EXPECT_EQ(times.p999, Us(1000));
  // 500 -+ 0.98 * sqrt(1000), which is 31.
  EXPECT_EQ(times.p50_low, Us(470));
  EXPECT_EQ(times.p50_high, Us(532));
}

TEST(BenchTimes, FewSamplesAreTheirMinimumAndMaximum) {
  const BenchTimes times = SummarizeTimes({Us(3), Us(1), Us(2)});
  EXPECT_EQ(times.p50, Us(2));
  EXPECT_EQ(times.p90, Us(3));
  EXPECT_EQ(times.p999, Us(3));
  EXPECT_EQ(times.p50_low, Us(1));
  EXPECT_EQ(times.p50_high, Us(3));
  EXPECT_EQ(SummarizeTimes({}).p50, absl::ZeroDuration());
  const BenchTimes one = SummarizeTimes({Us(7)});
  EXPECT_EQ(one.p50_low, Us(7));
  EXPECT_EQ(one.p999, Us(7));
}

BenchRow Row(const std::string& mode, size_t bytes, double us, double low_us, double high_us) {
  BenchRow row;
  row.mode = mode;
  row.bytes = bytes;
  row.count = 100;
  row.path = "shm";
  row.times = {Us(us), Us(us), Us(us), Us(us), Us(low_us), Us(high_us)};
  return row;
}

BenchReport Report(std::vector<BenchRow> rows) {
  BenchReport report;
  report.transport = "auto";
  report.rows = std::move(rows);
  return report;
}

std::string RunOf(std::vector<BenchRow> rows) { return FormatBenchJson(Report(std::move(rows))); }

TEST(BenchComparison, DistinguishesSlowerFasterAndEqual) {
  const std::string before =
      RunOf({Row("handoff", 8, 1.0, 0.9, 1.1), Row("handoff", 64, 1.0, 0.9, 1.1),
             Row("handoff", 512, 1.0, 0.9, 1.1), Row("into", 8, 1.0, 0.5, 1.6),
             Row("into", 64, 2.0, 1.9, 2.1)});
  const std::string now =
      RunOf({Row("handoff", 8, 1.5, 1.4, 1.6), Row("handoff", 64, 1.05, 1.04, 1.06),
             Row("handoff", 512, 0.7, 0.6, 0.8), Row("into", 8, 1.5, 1.4, 1.6),
             Row("into", 4096, 3.0, 2.9, 3.1)});
  const auto comparison = CompareBenches(before, now, 0.1);
  ASSERT_TRUE(comparison.ok()) << comparison.status();
  std::vector<Verdict> verdicts;
  for (const ComparedRow& row : comparison->rows) verdicts.push_back(row.verdict);
  // The intervals of into 8 overlap: no conclusion.
  EXPECT_EQ(verdicts, (std::vector<Verdict>{Verdict::kSlower, Verdict::kSame, Verdict::kFaster,
                                            Verdict::kSame, Verdict::kOnlyNew, Verdict::kOnlyOld}));
  EXPECT_NEAR(comparison->rows[0].change, 0.5, 1e-9);
  EXPECT_NEAR(comparison->rows[0].old_spread, 0.1, 1e-9);
  const std::string text = FormatComparison(*comparison);
  EXPECT_THAT(text, HasSubstr("+50.0%"));
  EXPECT_THAT(text, HasSubstr("SLOWER"));
  EXPECT_THAT(text, HasSubstr("1 slower, 1 faster, 2 the same (threshold 10%"));
  // A change that is within the threshold does not count, even if it is certain.
  EXPECT_EQ(CompareBenches(before, now, 0.6)->CountOf(Verdict::kSlower), 0u);
}

TEST(BenchComparison, RowsOfEachBatchAreComparedWithEachOther) {
  BenchRow batched = Row("into", 8, 2.0, 1.9, 2.1);
  batched.batch = 64;
  const BenchRow single = Row("into", 8, 1.0, 0.9, 1.1);
  const std::string now = RunOf({single, batched});
  const auto comparison = CompareBenches(now, now, 0.1);
  ASSERT_TRUE(comparison.ok()) << comparison.status();
  ASSERT_EQ(comparison->rows.size(), 2u);
  EXPECT_EQ(comparison->rows[1].label, "into, batches of 64");
  EXPECT_EQ(comparison->CountOf(Verdict::kSame), 2u);
  // A run of a release without batches.
  const std::string before = absl::StrReplaceAll(RunOf({single}), {{"\"batch\": 1,", ""}});
  ASSERT_NE(before, RunOf({single}));
  const auto mixed = CompareBenches(before, now, 0.1);
  ASSERT_TRUE(mixed.ok()) << mixed.status();
  EXPECT_EQ(mixed->CountOf(Verdict::kSame), 1u);
  EXPECT_EQ(mixed->CountOf(Verdict::kOnlyNew), 1u);
  const std::string bad = absl::StrReplaceAll(now, {{"\"batch\": 64", "\"batch\": \"64\""}});
  EXPECT_THAT(std::string(CompareBenches(now, bad, 0.1).status().message()),
              HasSubstr("batch is not an integer"));
}

TEST(BenchReport, PairsOfEachPathHaveAMatrixOfTheirOwn) {
  std::vector<BenchRow> rows;
  for (const auto& [inflight, transport, us] :
       {std::tuple{1, "", 1.0}, {4, "", 2.0}, {1, "tcp", 4.0}}) {
    BenchRow row = Row("handoff", 8000, us, us, us);
    row.pair = "0->1";
    row.inflight = inflight;
    row.transport = transport;
    rows.push_back(row);
  }
  const std::string text = FormatBenchText(Report(std::move(rows)));
  // 8000 B in 1, 2 and 4 us.
  for (const auto& [of, rate] : {std::pair{"handoff 8000 B", "8"},
                                 {"handoff x4 8000 B", "4"},
                                 {"handoff by tcp 8000 B", "2"}}) {
    const size_t at = text.find(std::string(of) + ", GB/s of one pair at a time");
    ASSERT_NE(at, std::string::npos) << of << " in " << text;
    EXPECT_EQ(text.find(std::string("\n0          -  ") + rate, at), text.find("\n0 ", at)) << text;
  }
}

// A run of all paths does not require sockets to be as fast as memory.
TEST(BenchReport, GatesApplyOnlyToSelectedPaths) {
  BenchRow other = Row("into", 8, 50, 50, 50);
  other.transport = "tcp";
  const BenchReport report = Report({Row("into", 8, 1, 1, 1), other});
  EXPECT_TRUE(CheckBenchGates(report, {.max_us = 2}).ok());
  const absl::Status missed = CheckBenchGates(report, {.max_us = 0.5});
  EXPECT_THAT(std::string(missed.message()), HasSubstr("1 of 1 rows miss --max-us=0.5: into 8 B"));
}

TEST(BenchComparison, RefusesIncomparableReports) {
  const std::string run = RunOf({Row("handoff", 8, 1.0, 0.9, 1.1)});
  const auto why = [](const std::string& before, const std::string& now) {
    const absl::Status status = CompareBenches(before, now, 0.1).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    return std::string(status.message());
  };
  EXPECT_THAT(why("", run), HasSubstr("the old run"));
  EXPECT_THAT(why(run, "{\"bench\": \"kv\"}"), HasSubstr("the new run"));
  for (const char* rows :
       {"[1]", "[{}]", "{}", "null",
        R"([{"mode":"into","inflight":1,"nodes":2,"threads":1,"bytes":-8,"p50_s":1}])",
        R"([{"mode":"into","inflight":1,"nodes":2,"threads":1,"bytes":8,"p50_s":"1"}])",
        R"([{"mode":"into","inflight":1,"nodes":2,"threads":1,"bytes":8,"p50_s":0,
                               "p50_low_s":0,"p50_high_s":0}])"}) {
    EXPECT_THAT(why(run, std::string(R"({"bench":"sendrecv","transport":"auto","polling":false,)") +
                             "\"rows\":" + rows + "}"),
                HasSubstr("the new run"))
        << rows;
  }
  BenchRow unmeasured = Row("handoff", 8, 1.0, 0.9, 1.1);
  unmeasured.count = 0;
  EXPECT_THAT(why(run, RunOf({unmeasured})),
              HasSubstr("the new run: a row without the number count"));
  EXPECT_THAT(why(RunOf({unmeasured}), run),
              HasSubstr("the old run: a row without the number count"));
  // The run's own total, which differs from its rows.
  nlohmann::json wrong = nlohmann::json::parse(run);
  wrong["wrong_bytes"] = 3;
  EXPECT_THAT(why(run, wrong.dump()), HasSubstr("it has 3 wrong bytes, and its rows have 0"));
  EXPECT_THAT(why(wrong.dump(), run), HasSubstr("the old run: it has 3 wrong bytes"));
  wrong.erase("wrong_bytes");
  EXPECT_THAT(why(run, wrong.dump()), HasSubstr("how many bytes were wrong"));
  BenchReport polling = Report({Row("handoff", 8, 1.0, 0.9, 1.1)});
  polling.is_polling = true;
  EXPECT_THAT(why(run, FormatBenchJson(polling)), HasSubstr("polling"));
  EXPECT_THAT(why(run, RunOf({Row("into", 8, 1.0, 0.9, 1.1)})), HasSubstr("no row in common"));
}

TEST(BenchReport, HasAsManyCellsInEachLineOfItsCsv) {
  const std::string csv =
      FormatBenchCsv(Report({Row("handoff", 8, 1.0, 0.9, 1.1), Row("into", 64, 2.0, 1.9, 2.1)}));
  std::vector<std::string> lines = absl::StrSplit(csv, '\n');
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines.back(), "");
  lines.pop_back();
  const std::vector<std::string> header = absl::StrSplit(lines[0], ',');
  const nlohmann::json rows =
      nlohmann::json::parse(RunOf({Row("handoff", 8, 1.0, 0.9, 1.1)}))["rows"];
  EXPECT_EQ(header.size(), rows[0].size());
  for (const std::string& name : header) EXPECT_TRUE(rows[0].contains(name)) << name;
  for (const std::string& line : lines) {
    EXPECT_EQ(std::vector<std::string>(absl::StrSplit(line, ',')).size(), header.size()) << line;
  }
}

// Times of wrong data are meaningless: a run that moved nothing would be the fastest.
TEST(BenchComparison, RowsWithWrongBytes_AreWrongInEitherRun) {
  const std::vector<BenchRow> rows = {Row("handoff", 8, 1.0, 0.9, 1.1),
                                      Row("into", 8, 1.0, 0.9, 1.1), Row("into", 64, 1, 1, 1)};
  const std::string good = RunOf(rows);
  std::vector<BenchRow> bad_rows = rows;
  bad_rows[0].errors = 3;
  bad_rows[2].mode = "read";
  bad_rows[2].errors = 1;
  const std::string bad = RunOf(bad_rows);
  for (const bool is_new : {false, true}) {
    const auto comparison = CompareBenches(is_new ? good : bad, is_new ? bad : good, 0.1);
    ASSERT_TRUE(comparison.ok()) << comparison.status();
    EXPECT_EQ(comparison->CountOf(Verdict::kWrong), 2u);
    EXPECT_EQ(comparison->CountOf(Verdict::kSame), 1u);
    EXPECT_THAT(FormatComparison(*comparison),
                HasSubstr(is_new ? "WRONG: 0 in the old run, 3 in the new one"
                                 : "WRONG: 3 in the old run, 0 in the new one"));
  }
  EXPECT_EQ(CompareBenches(good, good, 0.1)->CountOf(Verdict::kWrong), 0u);
}

TEST(BenchComparison, RowsWithoutAVerificationResult_AreRefused) {
  const std::string run = RunOf({Row("handoff", 8, 1.0, 0.9, 1.1)});
  for (const char* const wrong : {"null", "-1", "\"0\"", "0.5"}) {
    const std::string other = absl::StrReplaceAll(
        run, {{"\"wrong_bytes\": 0", absl::StrCat("\"wrong_bytes\": ", wrong)}});
    ASSERT_NE(other, run);
    EXPECT_EQ(CompareBenches(run, other, 0.1).status().code(),
              absl::StatusCode::kFailedPrecondition)
        << wrong;
  }
  // Values that are not finite are written as null.
  std::string other = absl::StrReplaceAll(run, {{"\"p50_s\": 1e-06", "\"p50_s\": null"}});
  ASSERT_NE(other, run);
  EXPECT_THAT(std::string(CompareBenches(run, other, 0.1).status().message()),
              HasSubstr("without the number p50_s"));
}

TEST(BenchComparison, DuplicateRow_IsRefused) {
  const BenchRow row = Row("add", 8, 1.0, 0.9, 1.1);
  EXPECT_THAT(std::string(CompareBenches(RunOf({row}), RunOf({row, row}), 0.1).status().message()),
              HasSubstr("the new run: two rows add of 8 bytes"));
}

TEST(BenchReport, DuplicateOrEmptyRows_AreFaults) {
  const BenchRow row = Row("add", 8, 1.0, 0.9, 1.1);
  EXPECT_TRUE(CheckBenchRows(Report({})).ok());
  BenchRow deeper = row;
  deeper.inflight = 64;
  EXPECT_TRUE(CheckBenchRows(Report({row, deeper})).ok());
  deeper.inflight = 1;
  EXPECT_EQ(CheckBenchRows(Report({row, deeper})),
            absl::InternalError("bench: there are two rows add 8 B"));
  BenchRow empty = row;
  empty.times = {};
  EXPECT_FALSE(CheckBenchRows(Report({empty})).ok());
  empty = row;
  empty.count = 0;
  EXPECT_FALSE(CheckBenchRows(Report({empty})).ok());
  empty = row;
  empty.times.p99 = absl::InfiniteDuration();
  EXPECT_FALSE(CheckBenchRows(Report({empty})).ok());
}

TEST(BenchPlan, DuplicateSizes_AreOne) {
  EXPECT_EQ(*ParseSizesFlag("8,4K,8,4096"), (std::vector<size_t>{8, 4096}));
  EXPECT_EQ(*ParseNodesFlag("2,3,2"), (std::vector<int>{2, 3}));
  for (const char* const text : {"", " 8", "8 ", "+8", "0x8", "nan", "8,", "8:64:x", "8:64:x1",
                                 "8:64:x+2", "64:8:x2", "8:64", "99999999999999999999G"}) {
    EXPECT_FALSE(ParseSizesFlag(text).ok()) << text;
  }
}

TEST(BenchPlan, RoundsWithSeveralInFlight_AreAsManyAsRequested) {
  BenchPlan plan;
  plan.iterations = 1;
  EXPECT_EQ(plan.RoundsOf(8, 1), 1);
  EXPECT_EQ(plan.RoundsOf(8, 64), 1);
  plan.iterations = 65;
  EXPECT_EQ(plan.RoundsOf(8, 1), 65);
  EXPECT_EQ(plan.RoundsOf(8, 64), 2);
  // Without an explicit count, as many as are meaningful.
  plan.iterations = 0;
  EXPECT_EQ(plan.RoundsOf(8, 64), 2000 / 64);
  EXPECT_EQ(plan.RoundsOf(size_t{1} << 30, 64), 3);
}

// A row that is named alike and is something else would be taken for slower.
TEST(BenchComparison, DistinguishesRowsByTheirParticipants) {
  std::vector<BenchRow> rows(3, Row("barrier", 0, 1.0, 0.9, 1.1));
  rows[1].nodes = 8;
  rows[2].pair = "0->1";
  BenchReport before = Report(rows);
  std::swap(rows[0].times, rows[1].times);
  rows[1].times = Row("", 0, 2.0, 1.9, 2.1).times;
  const auto comparison =
      CompareBenches(FormatBenchJson(before), FormatBenchJson(Report(rows)), 0.1);
  ASSERT_TRUE(comparison.ok()) << comparison.status();
  ASSERT_EQ(comparison->rows.size(), 3u);
  EXPECT_EQ(comparison->rows[0].verdict, Verdict::kSame);
  EXPECT_EQ(comparison->rows[1].verdict, Verdict::kSlower);
  EXPECT_EQ(comparison->rows[1].label, "barrier, 8 nodes");
  EXPECT_EQ(comparison->rows[2].label, "barrier, 0->1");
  // Another bench is not comparable at all.
  before.bench = "barrier";
  EXPECT_FALSE(CompareBenches(FormatBenchJson(before), FormatBenchJson(Report(rows)), 0.1).ok());
}

TEST(BenchReport, HasTheColumnsThatItsRowsFill) {
  BenchRow row = Row("barrier", 0, 1.0, 0.9, 1.1);
  row.tensors = 0;
  BenchReport report = Report({row});
  for (const char* heading : {"SIZE", "NODES", "GB/S", "ALGBW", "OPS/S", "CPU"}) {
    EXPECT_THAT(FormatBenchText(report), Not(HasSubstr(heading)));
  }
  report.rows[0].nodes = 8;
  report.rows[0].ops_per_s = 1e6;
  report.rows.push_back(row);
  // A column that is there is there for all.
  EXPECT_THAT(FormatBenchText(report), HasSubstr("NODES"));
  EXPECT_THAT(FormatBenchText(report), HasSubstr("\nbarrier  2      100"));
  EXPECT_THAT(FormatBenchText(report), HasSubstr("1000000"));
  // 8 tensors of 1 MiB in 1 ms; the formula of nccl-tests counts 7 of them.
  row = Row("into", size_t{1} << 20, 1000, 900, 1100);
  row.tensors = 8;
  row.algbw_bytes = 8.0 * (size_t{1} << 20);
  row.busbw_bytes = 7.0 * (size_t{1} << 20);
  EXPECT_NEAR(row.BytesPerSecond() / 1e9, 8.39, 0.01);
  EXPECT_NEAR(row.AlgbwBytesPerSecond() / 1e9, 8.39, 0.01);
  EXPECT_NEAR(row.BusbwBytesPerSecond() / 1e9, 7.34, 0.01);
  EXPECT_THAT(FormatBenchText(Report({row})), HasSubstr("BUSBW"));
}

TEST(BenchReport, HasAMatrixOfItsPairs) {
  std::vector<BenchRow> rows;
  for (const char* pair : {"0->1", "1->0"}) {
    rows.push_back(Row("into", 1000, pair[0] == '0' ? 1.0 : 2.0, 0.9, 2.1));
    rows.back().pair = pair;
  }
  EXPECT_THAT(FormatBenchText(Report(rows)), HasSubstr("FROM \\ TO  0    1\n"
                                                       "0          -    1\n"
                                                       "1          0.5  -\n"));
}

TEST(BenchLoop, KeepsThatManyInFlightAndNoMore) {
  int under_way = 0;
  int most = 0;
  std::vector<int> order;
  std::vector<absl::AnyInvocable<void(absl::Status) &&>> waiting;
  // Nothing completes before two are in flight; then the older one does.
  const BenchOperation operation = [&](int index, absl::AnyInvocable<void(absl::Status) &&> done) {
    most = std::max(most, ++under_way);
    order.push_back(index);
    waiting.push_back(std::move(done));
    const bool is_last = order.size() == 5;
    while (waiting.size() > 1 || (is_last && !waiting.empty())) {
      auto first = std::move(waiting.front());
      waiting.erase(waiting.begin());
      --under_way;
      std::move(first)(absl::OkStatus());
      if (!is_last) break;
    }
  };
  const auto load = RunBenchLoop(
      5, 2, operation, [] { return 1.0; }, absl::Seconds(20));
  ASSERT_TRUE(load.ok()) << load.status();
  EXPECT_EQ(load->samples.size(), 5u);
  EXPECT_EQ(most, 2);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(BenchLoop, EndsWithTheFirstErrorOrAtItsDeadline) {
  int begun = 0;
  const BenchOperation fails = [&begun](int, absl::AnyInvocable<void(absl::Status) &&> done) {
    std::move(done)(++begun == 3 ? absl::AbortedError("the third") : absl::OkStatus());
  };
  const auto failed = RunBenchLoop(
      9, 1, fails, [] { return 0.0; }, absl::Seconds(20));
  EXPECT_EQ(failed.status(), absl::AbortedError("the third"));
  EXPECT_EQ(begun, 3);
  std::vector<absl::AnyInvocable<void(absl::Status) &&>> kept;
  const BenchOperation hangs = [&kept](int, absl::AnyInvocable<void(absl::Status) &&> done) {
    kept.push_back(std::move(done));
  };
  const auto late = RunBenchLoop(
      4, 2, hangs, [] { return 0.0; }, absl::Milliseconds(1));
  EXPECT_THAT(std::string(late.status().message()), HasSubstr("0 of 4 operations"));
  // Later completions find the loop still there, and begin nothing.
  std::move(kept[0])(absl::OkStatus());
  EXPECT_EQ(kept.size(), 2u);
}

TEST(BenchFlows, AreThoseOfThePattern) {
  using Flows = std::vector<BenchFlow>;
  const auto only = [](const char* pattern, int nodes) {
    const std::vector<BenchFlowSet> sets = FlowSetsOf(pattern, nodes);
    EXPECT_EQ(sets.size(), 1u) << pattern;
    return sets.at(0);
  };
  EXPECT_EQ(only("bidir", 2).flows, (Flows{{0, 1}, {1, 0}}));
  EXPECT_EQ(only("ring", 3).flows, (Flows{{0, 1}, {1, 2}, {2, 0}}));
  EXPECT_EQ(only("fan-in", 3).flows, (Flows{{1, 0}, {2, 0}}));
  EXPECT_EQ(only("fan-out", 3).flows, (Flows{{0, 1}, {0, 2}}));
  EXPECT_EQ(only("fan-in", 4).MostReceived(), 3u);
  EXPECT_EQ(only("fan-out", 4).MostReceived(), 1u);
  EXPECT_EQ(only("ring", 4).Members(), (std::vector<int>{0, 1, 2, 3}));
  const std::vector<BenchFlowSet> pairs = FlowSetsOf("all-pairs", 3);
  ASSERT_EQ(pairs.size(), 6u);
  EXPECT_EQ(pairs[3].pair, "1->2");
  EXPECT_EQ(pairs[3].flows, (Flows{{1, 2}}));
  EXPECT_EQ(pairs[3].Members(), (std::vector<int>{1, 2}));
}

TEST(BenchFlows, AreCountedAsNcclTestsDoes) {
  // sendrecv_perf has a factor of 1; gather_perf counts the root's part, and (n-1)/n of that.
  EXPECT_EQ(BandwidthOf("ring", 4).bus, 1);
  EXPECT_EQ(BandwidthOf("fan-in", 4).alg, 4);
  EXPECT_EQ(BandwidthOf("fan-out", 4).bus, 3);
  EXPECT_EQ(BandwidthOf("all-pairs", 4).alg, 0);
}

TEST(BenchRounds, LastFromTheFirstStartToTheLastEnd) {
  const std::vector<nlohmann::ordered_json> lines = {{{"starts_ns", {1000, 50000}},
                                                      {"ends_ns", {5000, 52000}},
                                                      {"cpu_s", 0.5},
                                                      {"errors", 1},
                                                      {"paths", {"shm"}},
                                                      {"path_reason", "it is near"}},
                                                     {{"event", "case"}},
                                                     {{"starts_ns", {2000, 49000}},
                                                      {"ends_ns", {9000, 51000}},
                                                      {"cpu_s", 1.5},
                                                      {"errors", 2},
                                                      {"paths", {"inline", "shm"}}}};
  BenchRow row;
  // Two operations to a round, of 4 GB.
  ASSERT_TRUE(MergeRounds(lines, 2, 4, row).ok());
  EXPECT_EQ(row.times.p50_low, Us(1.5));
  EXPECT_EQ(row.times.p50_high, Us(4));
  EXPECT_EQ(row.count, 4);
  EXPECT_EQ(row.errors, 3u);
  EXPECT_EQ(row.path, "inline+shm");
  EXPECT_EQ(row.path_reason, "it is near");
  EXPECT_DOUBLE_EQ(row.cpu_s_per_gb, 2.0 / 8);
  EXPECT_FALSE(MergeRounds({lines[1]}, 1, 1, row).ok());
  // A participant without times has taken part all the same.
  BenchRow kept;
  ASSERT_TRUE(
      MergeRounds({lines[0], {{"cpu_s", 1.5}, {"errors", 2}, {"paths", {"tcp"}}}}, 1, 1, kept)
          .ok());
  EXPECT_EQ(kept.times.p50_low, Us(2));
  EXPECT_EQ(kept.errors, 3u);
  EXPECT_EQ(kept.path, "shm+tcp");
  EXPECT_DOUBLE_EQ(kept.cpu_s_per_gb, 2.0 / 2);
  EXPECT_FALSE(MergeRounds({lines[0], {{"starts_ns", {1}}, {"ends_ns", {2}}}}, 1, 1, row).ok());
}

TEST(BenchPlan, ReadsNumbersOfNodes) {
  EXPECT_THAT(ParseNodesFlag("2:64:x4"), ::testing::Truly([](const auto& nodes) {
                return nodes.ok() && *nodes == std::vector<int>{2, 8, 32};
              }));
  EXPECT_THAT(ParseNodesFlag("3,5"), ::testing::Truly([](const auto& nodes) {
                return nodes.ok() && *nodes == std::vector<int>{3, 5};
              }));
  for (const char* text : {"1", "0:4:x2", "2:4:x1", "", "20000", "two"}) {
    EXPECT_THAT(std::string(ParseNodesFlag(text).status().message()), HasSubstr("--nodes")) << text;
  }
}

TEST(BenchGates, NameTheRowsThatMissThem) {
  const BenchReport report =
      Report({Row("handoff", 8, 1.0, 0.9, 1.1), Row("into", size_t{1} << 20, 100, 99, 101)});
  EXPECT_TRUE(CheckBenchGates(report, {}).ok());
  // 8 bytes in 1 us are 0.008 GB/s, 1 MiB in 100 us 10.5.
  EXPECT_TRUE(CheckBenchGates(report, {.min_gbps = 0.007, .max_us = 100}).ok());
  const absl::Status slow = CheckBenchGates(report, {.min_gbps = 5});
  EXPECT_THAT(std::string(slow.message()),
              HasSubstr("1 of 2 rows miss --min-gbps=5: handoff 8 B (0.008)"));
  const absl::Status late = CheckBenchGates(report, {.min_gbps = 5, .max_us = 50});
  EXPECT_THAT(std::string(late.message()), HasSubstr("--max-us=50: into 1 MiB (100us)"));
  EXPECT_THAT(std::string(late.message()), HasSubstr("--min-gbps=5"));
  EXPECT_THAT(std::string(slow.message()), Not(HasSubstr("--max-us")));
}

}  // namespace
}  // namespace ferry::cli
