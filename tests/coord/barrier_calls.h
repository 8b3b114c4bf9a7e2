// SPDX-License-Identifier: Apache-2.0
// Calls that the barrier tests share.
#ifndef FERRY_TESTS_COORD_BARRIER_CALLS_H_
#define FERRY_TESTS_COORD_BARRIER_CALLS_H_

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tests/coord/coordinator_fixture.h"

namespace ferry::coord {

// The counter of a barrier that has not been used.
constexpr int64_t kFirst = 0;
inline const std::vector<int> kEveryone = {};

inline void ExpectPassed(const BarrierCall& call, int64_t counter) {
  EXPECT_THAT(call.result(), IsOk());
  EXPECT_EQ(call.result().counter, counter);
}

// A barrier that has passed once, for tests of the counters of later uses.
inline void PassOnce(TestJob& job) {
  job.RegisterAll();
  BarrierCall first = job.Barrier(0, "b");
  ExpectPassed(job.Barrier(1, "b"), 0);
  ExpectPassed(first, 0);
}

}  // namespace ferry::coord

#endif  // FERRY_TESTS_COORD_BARRIER_CALLS_H_
