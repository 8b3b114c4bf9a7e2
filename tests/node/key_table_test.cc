// SPDX-License-Identifier: Apache-2.0
// KeyTable: keys are found by all of their parts, and their number is bounded.
#include "node/key_table.h"

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace ferry {
namespace {

constexpr uint64_t kIncarnation = 7;

// A key that has the name; the table does not look at its devices.
RendezvousKey KeyOf(absl::string_view name, uint64_t incarnation = kIncarnation) {
  return *RendezvousKey::Parse(RendezvousKey::Text("/job:worker/task:0/cpu:0", incarnation,
                                                   "/job:worker/task:1/cpu:0", name));
}

KeyParts PartsOf(absl::string_view name) { return {name, 0, 1, "host:0", "host:0"}; }

TEST(KeyTable, KeptKey_IsFoundByAllOfItsParts) {
  KeyTable table;
  const KeyParts parts = PartsOf("weights");
  EXPECT_FALSE(table.Find(parts, kIncarnation).has_value());
  table.Keep(parts, KeyOf("weights"));
  const std::optional<RendezvousKey> found = table.Find(parts, kIncarnation);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(*found, KeyOf("weights"));
  for (const KeyParts& other :
       {KeyParts{"weight", 0, 1, "host:0", "host:0"}, KeyParts{"", 0, 1, "host:0", "host:0"},
        KeyParts{"weights", 2, 1, "host:0", "host:0"},
        KeyParts{"weights", 0, 2, "host:0", "host:0"},
        KeyParts{"weights", 1, 0, "host:0", "host:0"}, KeyParts{"weights", 0, 1, "gpu:0", "host:0"},
        KeyParts{"weights", 0, 1, "host:0", "gpu:0"},
        KeyParts{"weights", 0, 1, "host:00", "host:0"},
        // No device, although its bytes are followed by zeros as those of a shorter name are.
        KeyParts{"weights", 0, 1, absl::string_view("host:0\0", 7), "host:0"},
        KeyParts{"weights", 0, 1, "host:0", "a name of a device"}}) {
    EXPECT_FALSE(table.Find(other, kIncarnation).has_value())
        << other.name << " " << other.from << " " << other.to_device;
  }
}

// Its source was restarted: the key of the former incarnation is not found, and gives its place to
// that of the next.
TEST(KeyTable, AnotherIncarnation_ReplacesTheKey) {
  KeyTable table;
  table.Keep(PartsOf("x"), KeyOf("x"));
  EXPECT_FALSE(table.Find(PartsOf("x"), kIncarnation + 1).has_value());
  table.Keep(PartsOf("x"), KeyOf("x", kIncarnation + 1));
  EXPECT_FALSE(table.Find(PartsOf("x"), kIncarnation).has_value());
  EXPECT_EQ(table.Find(PartsOf("x"), kIncarnation + 1), KeyOf("x", kIncarnation + 1));
  EXPECT_EQ(table.size(), 1u);
}

TEST(KeyTable, ManyNames_TheNumberOfKeysIsBounded) {
  KeyTable table;
  for (size_t i = 0; i < 3 * KeyTable::kMaxKeys; ++i) {
    const std::string name = absl::StrCat("name", i);
    table.Keep(PartsOf(name), KeyOf(name));
    ASSERT_EQ(table.Find(PartsOf(name), kIncarnation), KeyOf(name)) << "the newest is there";
  }
  EXPECT_LE(table.size(), KeyTable::kMaxKeys);
  EXPECT_GT(table.size(), KeyTable::kMaxKeys / 10 * 9);
}

// So many are used in turns by a program that sends and receives a tree of a thousand tensors.
TEST(KeyTable, TwoThousandNames_NearlyAllStay) {
  KeyTable table;
  size_t found = 0;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 2000; ++i) {
      const std::string name = absl::StrCat("layers/", i / 8, "/parameter/", i % 8);
      found += table.Find(PartsOf(name), kIncarnation).has_value() ? 1 : 0;
      table.Keep(PartsOf(name), KeyOf(name));
    }
  }
  EXPECT_GT(found, 1900u);
}

TEST(KeyTable, LongNames_AreNotKept) {
  KeyTable table;
  for (const size_t bytes : {KeyTable::kMaxNameBytes, KeyTable::kMaxNameBytes + 1}) {
    const std::string name(bytes, 'n');
    table.Keep(PartsOf(name), KeyOf(name));
    EXPECT_EQ(table.Find(PartsOf(name), kIncarnation).has_value(),
              bytes <= KeyTable::kMaxNameBytes);
  }
  table.Keep({"x", 0, 1, "gpu:1234567", "host:0"}, KeyOf("x"));
  EXPECT_EQ(table.size(), 1u);
}

// Keys of all sets are replaced by both while both find them.
TEST(KeyTable, TwoThreads_FindOnlyWhatTheyAskFor) {
  KeyTable table;
  std::vector<std::string> names;
  std::vector<RendezvousKey> keys;
  for (size_t i = 0; i < 2 * KeyTable::kMaxKeys; ++i) {
    names.push_back(absl::StrCat("name", i));
    keys.push_back(KeyOf(names.back()));
  }
  const auto use = [&](size_t from) {
    for (size_t i = 0; i < names.size(); ++i) {
      const size_t at = (from + i) % names.size();
      const std::optional<RendezvousKey> found = table.Find(PartsOf(names[at]), kIncarnation);
      if (found.has_value()) {
        EXPECT_EQ(*found, keys[at]);
      } else {
        table.Keep(PartsOf(names[at]), keys[at]);
      }
    }
  };
  std::thread other([&use] { use(0); });
  use(names.size() / 2);
  other.join();
  EXPECT_LE(table.size(), KeyTable::kMaxKeys);
}

}  // namespace
}  // namespace ferry
