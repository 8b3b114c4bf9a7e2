// SPDX-License-Identifier: Apache-2.0
// Small worlds to search: which transfers, in which directions.
#ifndef FERRY_TESTS_TRANSPORT_NCCL_GRANT_CHOICES_H_
#define FERRY_TESTS_TRANSPORT_NCCL_GRANT_CHOICES_H_

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "absl/strings/str_join.h"

#include "tests/transport/nccl/grant_world.h"

namespace ferry::grant_test {

inline constexpr int64_t kMaxStates = 20'000'000;

// Every choice of `count` directions among three devices; their order is for the search to choose.
inline std::vector<std::vector<BatchAgreementTransfer>> EveryChoice(int count) {
  const std::pair<int, int> directions[] = {{0, 1}, {1, 0}, {0, 2}, {2, 0}, {1, 2}, {2, 1}};
  std::vector<std::vector<BatchAgreementTransfer>> choices = {{}};
  for (int i = 0; i < count; ++i) {
    std::vector<std::vector<BatchAgreementTransfer>> longer;
    for (const std::vector<BatchAgreementTransfer>& choice : choices) {
      for (const auto& [source, destination] : directions) {
        BatchAgreementTransfer next;
        next.key = {DeviceId(source), DeviceId(destination), static_cast<uint64_t>(i + 1)};
        next.bytes = 100 + static_cast<uint64_t>(i);
        if (!choice.empty() &&
            std::pair(next.key.source, next.key.destination) <
                std::pair(choice.back().key.source, choice.back().key.destination)) {
          continue;
        }
        longer.push_back(choice);
        longer.back().push_back(next);
      }
    }
    choices = std::move(longer);
  }
  return choices;
}

// Without an optimiser, or with a sanitizer, a search takes ten times as long.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
inline constexpr bool kIsQuick = false;
#else
inline constexpr bool kIsQuick = true;
#endif

// All of them where a search is quick, and a few elsewhere.
inline std::vector<std::vector<BatchAgreementTransfer>> WhereItIsQuick(
    std::vector<std::vector<BatchAgreementTransfer>> choices) {
  if (!kIsQuick) choices.resize(std::min<size_t>(choices.size(), 5));
  return choices;
}

inline void ExpectEveryScheduleEndsWell(
    const std::vector<std::vector<BatchAgreementTransfer>>& choices, WorldOptions options) {
  int64_t states = 0;
  for (const std::vector<BatchAgreementTransfer>& choice : choices) {
    options.transfers = choice;
    const SearchResult result = Search(options, kMaxStates);
    states += result.states;
    ASSERT_EQ(result.violation, "") << absl::StrJoin(result.trace, "\n");
    ASSERT_TRUE(result.is_complete) << result.states << " states";
  }
  std::printf("%zu worlds, %lld states\n", choices.size(), static_cast<long long>(states));
}

// Around all three devices, and one of them back: the worlds with the most interleavings.
inline std::vector<std::vector<BatchAgreementTransfer>> ACircleAndBack() {
  return {{{{DeviceId(0), DeviceId(1), 1}, 100},
           {{DeviceId(1), DeviceId(0), 2}, 101},
           {{DeviceId(1), DeviceId(2), 3}, 102},
           {{DeviceId(2), DeviceId(0), 4}, 103}}};
}

}  // namespace ferry::grant_test

#endif  // FERRY_TESTS_TRANSPORT_NCCL_GRANT_CHOICES_H_
