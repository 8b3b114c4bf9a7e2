// SPDX-License-Identifier: Apache-2.0
// Who else was at work while a bench measured.
#include "cli/bench_other_load.h"

#include <gtest/gtest.h>

namespace ferry::cli {
namespace {

TEST(BenchOtherLoad, CountsWorkAndWhatWasStolen) {
  // User, nice, system, idle, waiting for disks, two kinds of interrupts, stolen, guests.
  constexpr char kStat[] = "cpu  1000 20 300 90000 400 5 6 70 8 9\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
  EXPECT_DOUBLE_EQ(WorkedSeconds(kStat, 100).value_or(-1), 13.9);
}

TEST(BenchOtherLoad, SaysNothingOfWhatItDoesNotKnow) {
  for (const char* text : {"", "cpu", "cpu 1 2 3", "cpu  1000 20 x 90000 400 5 6 70 8 9",
                           "intr 1000 20 300 90000 400 5 6 70 8 9"}) {
    EXPECT_FALSE(WorkedSeconds(text, 100).has_value()) << text;
  }
  EXPECT_FALSE(WorkedSeconds("cpu  1 2 3 4 5 6 7 8", 0).has_value());
}

TEST(BenchOtherLoad, IsNeverLessThanNobody) {
  const OtherLoad load;
  EXPECT_GE(load.Cores().value_or(0), 0);
}

}  // namespace
}  // namespace ferry::cli
