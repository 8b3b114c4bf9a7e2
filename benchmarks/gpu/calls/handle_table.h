// SPDX-License-Identifier: Apache-2.0
// HandleTable: what the handles and addresses of a recorded process are in the replay.
#ifndef FERRY_BENCHMARKS_GPU_CALLS_HANDLE_TABLE_H_
#define FERRY_BENCHMARKS_GPU_CALLS_HANDLE_TABLE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "benchmarks/gpu/calls/driver_calls.h"

namespace ferry::calls {

// Not thread-safe. A handle is its kind and its recorded value; addresses of devices and of pinned
// host memory are one kind, and stand for all memory behind them.
class HandleTable final {
 public:
  // From now on `recorded` is `live`; empty: the replayed call of `line` failed and made nothing.
  // `bytes` of memory; 0 if the call does not tell. A value that is known already gets a further
  // meaning, until that is removed.
  void Add(Kind kind, uint64_t recorded, std::optional<uint64_t> live, int line,
           uint64_t bytes = 0);
  // Removes the meaning `live`. Another one remains: the driver may have given the value again
  // before its end was recorded.
  void Remove(Kind kind, uint64_t recorded, std::optional<uint64_t> live);

  // Null and the driver's own streams are themselves, addresses those behind a known one.
  // Errors: NOT_FOUND if the record does not say where the handle comes from; FAILED_PRECONDITION
  // if the call that should have made it failed in the replay.
  absl::StatusOr<uint64_t> Find(Kind kind, uint64_t recorded) const;

 private:
  struct Meaning {
    std::optional<uint64_t> live;
    int line;
    uint64_t bytes;
  };
  using Key = std::pair<Kind, uint64_t>;

  static Key KeyOf(Kind kind, uint64_t recorded);

  std::map<Key, std::vector<Meaning>> meanings_;  // the newest last; never empty
};

}  // namespace ferry::calls

#endif  // FERRY_BENCHMARKS_GPU_CALLS_HANDLE_TABLE_H_
