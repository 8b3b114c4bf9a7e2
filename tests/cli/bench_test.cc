// SPDX-License-Identifier: Apache-2.0
// What a bench says of its samples, and of two runs.
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"

#include "cli/bench_comparison.h"
#include "cli/bench_report.h"
#include "cli/bench_times.h"

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

TEST(BenchTimes, OfFewSamplesAreTheirEnds) {
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

TEST(BenchComparison, TellsWhatIsSlowerFasterAndTheSame) {
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
  // Of into 8 the intervals touch: it cannot be told.
  EXPECT_EQ(verdicts, (std::vector<Verdict>{Verdict::kSlower, Verdict::kSame, Verdict::kFaster,
                                            Verdict::kSame, Verdict::kOnlyNew, Verdict::kOnlyOld}));
  EXPECT_NEAR(comparison->rows[0].change, 0.5, 1e-9);
  EXPECT_NEAR(comparison->rows[0].old_spread, 0.1, 1e-9);
  const std::string text = FormatComparison(*comparison);
  EXPECT_THAT(text, HasSubstr("+50.0%"));
  EXPECT_THAT(text, HasSubstr("SLOWER"));
  EXPECT_THAT(text, HasSubstr("1 slower, 1 faster, 2 the same (threshold 10%"));
  // A change that is within the threshold is none, however sure it is.
  EXPECT_EQ(CompareBenches(before, now, 0.6)->CountOf(Verdict::kSlower), 0u);
}

TEST(BenchComparison, RefusesWhatCannotBeCompared) {
  const std::string run = RunOf({Row("handoff", 8, 1.0, 0.9, 1.1)});
  const auto why = [](const std::string& before, const std::string& now) {
    const absl::Status status = CompareBenches(before, now, 0.1).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    return std::string(status.message());
  };
  EXPECT_THAT(why("", run), HasSubstr("the old run"));
  EXPECT_THAT(why(run, "{\"bench\": \"kv\"}"), HasSubstr("the new run"));
  for (const char* rows : {"[1]", "[{}]", "{}", "null",
                           R"([{"mode":"into","inflight":1,"bytes":-8,"one_way_p50_s":1}])",
                           R"([{"mode":"into","inflight":1,"bytes":8,"one_way_p50_s":"1"}])",
                           R"([{"mode":"into","inflight":1,"bytes":8,"one_way_p50_s":0,
                               "p50_low_s":0,"p50_high_s":0}])"}) {
    EXPECT_THAT(why(run, std::string(R"({"bench":"sendrecv","transport":"auto","polling":false,)") +
                             "\"rows\":" + rows + "}"),
                HasSubstr("the new run"))
        << rows;
  }
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
