// SPDX-License-Identifier: Apache-2.0
// Invariants of a coordinator's internal tables: at any time, and when no call is pending.
#ifndef FERRY_TESTS_COORD_TABLE_CHECKS_H_
#define FERRY_TESTS_COORD_TABLE_CHECKS_H_

#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"

#include "base/table_sizes.h"
#include "coord/core/coordinator.h"

namespace ferry::coord {

// The first two tables that do not agree, or one that has outgrown its limit; empty if all is well.
// Holds between any two calls.
inline std::string TablesThatDisagree(const Coordinator& coordinator) {
  const TableSizes sizes = coordinator.InnerTableSizes();
  std::string wrong;
  // A table that is not listed would agree with everything.
  const auto size = [&](const char* name) {
    const auto found = sizes.find(name);
    if (found == sizes.end() && wrong.empty()) wrong = absl::StrCat(name, " is not listed");
    return found == sizes.end() ? 0 : found->second;
  };
  const auto expect = [&](bool holds, const char* a, const char* b) {
    if (holds || !wrong.empty()) return;
    wrong = absl::StrCat(a, " has ", size(a), " entries, ", b, " has ", size(b));
  };
  const auto same = [&](const char* a, const char* b) { expect(size(a) == size(b), a, b); };
  const auto at_most = [&](const char* a, const char* b) { expect(size(a) <= size(b), a, b); };
  const auto bounded = [&](const char* a, size_t limit) {
    if (size(a) <= limit || !wrong.empty()) return;
    wrong = absl::StrCat(a, " has ", size(a), " entries, over the limit of ", limit);
  };
  const auto empty = [&](const char* a) { bounded(a, 0); };
  same("store.waits", "store.filed_waits");
  empty("store.keys_without_waits");
  at_most("store.deadlines", "store.waits");
  at_most("store.watched_prefixes", "store.watches");
  same("barriers.known_open", "barriers.open");
  same("barriers.parked", "barriers.waits");
  same("barriers.forgettable", "barriers.finished");
  same("barriers.bytes_of_finished", "barriers.finished_bytes");
  at_most("alive.askers", "alive.calls");
  empty("alive.rounds_without_calls");
  same("topology.waits", "topology.deadlines");
  at_most("joining.deadlines", "joining");
  at_most("joining", "barriers.waits");
  empty("membership.connected_without_check");
  same("former_incarnations", "former_incarnations.oldest_first");
  same("membership.connected", "membership.connected_count");
  same("membership.failed", "membership.error_count");
  const CoordinatorOptions& options = coordinator.options();
  bounded("store.keys", options.max_keys);
  bounded("store.bytes", options.max_store_bytes);
  bounded("store.waits", options.max_pending_gets);
  // The last one that has finished is kept regardless of the limit.
  bounded("barriers.finished",
          options.max_finished_barriers > 0 ? options.max_finished_barriers : 1);
  return wrong;
}

// The tables of calls, deadlines and results that a stopped coordinator has not cleared; empty if
// it has cleared all. Tasks and the incarnations of former jobs remain, and watches of the store
// remain until their owner removes them.
inline std::string TablesLeftByStop(const Coordinator& coordinator) {
  return NonEmptyTables(coordinator.InnerTableSizes(), {"membership.", "former_incarnations",
                                                        "store.watches", "store.watched_prefixes"});
}

}  // namespace ferry::coord

#endif  // FERRY_TESTS_COORD_TABLE_CHECKS_H_
