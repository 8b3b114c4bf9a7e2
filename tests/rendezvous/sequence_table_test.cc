// SPDX-License-Identifier: Apache-2.0
// Values that are removed soon, and others that stay.
#include "rendezvous/peer/sequence_table.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include <gmock/gmock.h>

namespace ferry {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<uint64_t> NumbersIn(const SequenceTable<int>& table) {
  std::vector<uint64_t> numbers;
  table.ForEach([&numbers](uint64_t sequence, int) { numbers.push_back(sequence); });
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

TEST(SequenceTable, ValuesAreFoundUntilTheyAreErased) {
  SequenceTable<int> table;
  EXPECT_EQ(table.Find(0), nullptr);
  for (uint64_t i = 7; i < 10; ++i) table.Add(i) = static_cast<int>(i);
  EXPECT_EQ(*table.Find(8), 8);
  EXPECT_EQ(table.Find(6), nullptr);
  EXPECT_EQ(table.Find(10), nullptr);
  table.Erase(8);
  EXPECT_EQ(table.Find(8), nullptr);
  EXPECT_THAT(NumbersIn(table), ElementsAre(7, 9));
  table.Erase(7);
  table.Erase(9);
  EXPECT_EQ(table.size(), 0u);
  // Numbers need not begin anew.
  table.Add(10) = 1;
  EXPECT_THAT(NumbersIn(table), ElementsAre(10));
}

TEST(SequenceTable, ValuesThatStay_AreKeptBesideAnyNumberOfOthers) {
  SequenceTable<int> table;
  constexpr uint64_t kCount = 20'000;
  for (uint64_t i = 0; i < kCount; ++i) {
    table.Add(i) = static_cast<int>(i);
    if (i % 5000 != 0) table.Erase(i);
  }
  EXPECT_THAT(NumbersIn(table), ElementsAre(0, 5000, 10'000, 15'000));
  EXPECT_EQ(*table.Find(5000), 5000);
  const SequenceTable<int> copy = table;
  table.EraseIf([](uint64_t sequence, int) { return sequence != 10'000; });
  EXPECT_THAT(NumbersIn(table), ElementsAre(10'000));
  table.Erase(10'000);
  EXPECT_THAT(NumbersIn(table), IsEmpty());
  EXPECT_EQ(copy.size(), 4u);
}

TEST(SequenceTable, IsAMap) {
  SequenceTable<int> table;
  std::map<uint64_t, int> model;
  uint64_t random = 1;
  uint64_t next = 0;
  for (int i = 0; i < 100'000; ++i) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    // Grows for a while, and then shrinks.
    if ((random >> 33) % 100 < (i / 20'000 % 2 == 0 ? 70u : 30u)) {
      table.Add(next) = i;
      model[next++] = i;
    } else if (!model.empty()) {
      const uint64_t number = next - 1 - (random >> 40) % std::min<uint64_t>(next, 9000);
      int* const found = table.Find(number);
      ASSERT_EQ(found != nullptr, model.contains(number));
      if (found == nullptr) continue;
      ASSERT_EQ(*found, model[number]);
      table.Erase(number);
      model.erase(number);
    }
    if (i % 997 == 0 && next > 0) {
      const uint64_t begin = next - 1 - (random >> 40) % std::min<uint64_t>(next, 9000);
      const uint64_t end = begin + 1 + (random >> 20) % 50;
      auto each = model.lower_bound(begin);
      table.EraseRange(begin, end, [&](uint64_t number, int value) {
        ASSERT_TRUE(each != model.end());
        EXPECT_EQ(each->first, number);
        EXPECT_EQ(each->second, value);
        each = model.erase(each);
      });
      ASSERT_TRUE(each == model.lower_bound(end));
    }
    ASSERT_EQ(table.size(), model.size());
  }
  for (const auto& [number, value] : model) {
    ASSERT_NE(table.Find(number), nullptr);
    EXPECT_EQ(*table.Find(number), value);
  }
}

}  // namespace
}  // namespace ferry
