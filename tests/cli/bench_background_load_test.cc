// SPDX-License-Identifier: Apache-2.0
// The load of other processes during a measurement.
#include "bench/background_load.h"

#include <fstream>
#include <optional>

#include <gtest/gtest.h>

namespace ferry::cli {
namespace {

TEST(BenchOtherLoad, CountsWorkAndStolenTime) {
  // User, nice, system, idle, waiting for disks, two kinds of interrupts, stolen, guests.
  constexpr char kStat[] = "cpu  1000 20 300 90000 400 5 6 70 8 9\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
  EXPECT_DOUBLE_EQ(WorkedSeconds(kStat, 100).value_or(-1), 13.9);
}

TEST(BenchOtherLoad, OmitsUnknownValues) {
  for (const char* text : {"", "cpu", "cpu 1 2 3", "cpu  1000 20 x 90000 400 5 6 70 8 9",
                           "intr 1000 20 300 90000 400 5 6 70 8 9"}) {
    EXPECT_FALSE(WorkedSeconds(text, 100).has_value()) << text;
  }
  EXPECT_FALSE(WorkedSeconds("cpu  1 2 3 4 5 6 7 8", 0).has_value());
}

TEST(BenchOtherLoad, OwnWorkIsSubtracted_NeverBelowZero) {
  EXPECT_DOUBLE_EQ(OthersCores(/*worked_s=*/5, /*own_s=*/1, /*elapsed_s=*/2), 2);
  EXPECT_DOUBLE_EQ(OthersCores(1, 1, 2), 0);
  // By a tick too many of its own.
  EXPECT_DOUBLE_EQ(OthersCores(1, 1.01, 2), 0);
}

TEST(BenchOtherLoad, KernelWithProcStat_IsMeasured) {
  std::ifstream stat("/proc/stat");
  if (!stat.good()) GTEST_SKIP() << "this machine has no /proc/stat";
  const BackgroundLoad load;
  const std::optional<double> cores = load.Cores();
  ASSERT_TRUE(cores.has_value());
  EXPECT_GE(*cores, 0);
}

}  // namespace
}  // namespace ferry::cli
