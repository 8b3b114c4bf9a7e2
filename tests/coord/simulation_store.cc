// SPDX-License-Identifier: Apache-2.0
// Operations of the simulation's agents on the store.
#include "tests/coord/simulation_world.h"

#include <algorithm>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ferry::coord {

std::string Simulation::RandomKey() {
  static const std::vector<std::string> kKeys = {"a",  "a/1", "a/1/x", "a/2",
                                                 "ab", "b",   "n/0",   "n/1"};
  return dice_.Pick(kKeys);
}

bool Simulation::IsRefused(const absl::Status& status) {
  return is_store_small_ && absl::IsResourceExhausted(status);
}

Simulation::Message Simulation::Put() {
  std::vector<std::pair<std::string, std::string>> entries;
  const int count = dice_.Chance(80) ? 1 : 1 + dice_.Roll(3);
  for (int i = 0; i < count; ++i) {
    const std::string key = RandomKey();
    const bool repeats = std::any_of(entries.begin(), entries.end(),
                                     [&key](const auto& entry) { return entry.first == key; });
    if (!repeats) entries.emplace_back(key, absl::StrCat(dice_.Roll(100)));
  }
  return [this, entries, overwrite = dice_.Chance(50)] {
    Log(absl::StrCat("put ", absl::StrJoin(entries, " ", absl::PairFormatter("=")),
                     overwrite ? " over" : ""));
    const bool exists = std::any_of(entries.begin(), entries.end(), [this](const auto& entry) {
      return model_->keys().contains(entry.first);
    });
    const absl::StatusOr<int64_t> revision = coordinator_->store().Put(entries, overwrite);
    if (revision.ok()) {
      model_->Expect(overwrite || !exists, "a key was replaced without leave");
      for (const auto& [key, value] : entries) model_->Set(key, value);
      return;
    }
    const bool is_expected = absl::IsAlreadyExists(revision.status())
                                 ? exists && !overwrite
                                 : IsRefused(revision.status());
    model_->Expect(is_expected, absl::StrCat("a put was refused: ", revision.status().ToString()));
  };
}

Simulation::Message Simulation::Get(TaskId task) {
  std::vector<std::string> keys = {RandomKey()};
  while (dice_.Chance(35)) keys.push_back(RandomKey());
  const absl::Duration timeout =
      dice_.Chance(50) ? absl::InfiniteDuration() : absl::Milliseconds(dice_.Roll(9000));
  return [this, task, keys, timeout] {
    Log(absl::StrCat("get ", absl::StrJoin(keys, " ")));
    CallPtr call = NewCall(CallKind::kGet, task);
    call->keys = keys;
    call->deadline = clock_.Now() + timeout;
    model_->Opened(
        call, coordinator_->GetKeys(keys, task, timeout,
                                    [this, call](absl::StatusOr<std::vector<StoreEntry>> entries) {
                                      if (entries.ok()) call->entries = *entries;
                                      model_->Answered(call, entries.status());
                                    }));
  };
}

Simulation::Message Simulation::Delete() {
  return [this, key = RandomKey(), subtree = dice_.Chance(50)] {
    Log(absl::StrCat("delete ", key, subtree ? "/" : ""));
    int64_t expected = model_->keys().contains(key) ? 1 : 0;
    if (subtree) {
      expected = model_->EraseTree(key);
    } else {
      model_->Erase(key);
    }
    model_->Expect(coordinator_->store().Delete(key, subtree) == expected,
                   "a delete removed another number of keys");
  };
}

Simulation::Message Simulation::Increment() {
  return [this, key = RandomKey(), by = dice_.Roll(20) - 10] {
    Log(absl::StrCat("increment ", key, " by ", by));
    const auto old = model_->keys().find(key);
    int64_t number = 0;
    const bool is_number = old == model_->keys().end() || absl::SimpleAtoi(old->second, &number);
    const absl::StatusOr<StoreEntry> entry = coordinator_->store().Increment(key, by);
    if (entry.ok()) {
      model_->Expect(is_number && *entry->value == absl::StrCat(number + by),
                     "an increment gave another number");
      model_->Set(key, *entry->value);
    } else {
      model_->Expect(!is_number || IsRefused(entry.status()), "an increment was refused");
    }
  };
}

Simulation::Message Simulation::CompareAndSet() {
  const std::string key = RandomKey();
  std::optional<std::string> expected;
  if (dice_.Chance(70)) expected = absl::StrCat(dice_.Roll(100));
  const auto known = model_->keys().find(key);
  if (dice_.Chance(60) && known != model_->keys().end()) expected = known->second;
  return
      [this, key, expected, desired = dice_.Chance(10) ? "text" : absl::StrCat(dice_.Roll(100))] {
        Log(absl::StrCat("compare ", key, " with ", expected.value_or("nothing")));
        const auto old = model_->keys().find(key);
        const bool matches = old == model_->keys().end()
                                 ? !expected.has_value()
                                 : expected.has_value() && *expected == old->second;
        const auto result = coordinator_->store().CompareAndSet(key, expected, desired);
        if (!result.ok()) {
          model_->Expect(IsRefused(result.status()), "a compare-and-set was refused");
          return;
        }
        model_->Expect(result->first == matches, "a compare-and-set was judged wrongly");
        if (result->first) model_->Set(key, desired);
      };
}

}  // namespace ferry::coord
