// SPDX-License-Identifier: Apache-2.0
// MissingTcpStoreKeys: the keys for which a store's clients wait, and the ranks that are to set
// them.
#ifndef FERRY_COORD_TCPSTORE_TCP_STORE_MISSING_H_
#define FERRY_COORD_TCPSTORE_TCP_STORE_MISSING_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "coord/tcpstore/tcp_store.h"

namespace ferry::coord {

struct MissingTcpStoreKey {
  std::string key;
  // The ranks that have not set theirs, ascending, if it is one of the keys that each rank sets.
  std::vector<int> ranks;
  // The waits for it, and when the longest one began.
  size_t clients = 0;
  absl::Time since;
  // As in TcpStoreWaitInfo.
  int64_t world_size = 0;
  int64_t arrived = 0;
};

// Lists the keys of a store that begin with a prefix, until `visit` returns false.
using ForEachTcpStoreKey = absl::FunctionRef<void(
    absl::string_view prefix, absl::FunctionRef<bool(absl::string_view)> visit)>;

// Only so many keys of each wait are looked at: a wait may name thousands, and the first ones say
// enough.
inline constexpr size_t kMaxMissingKeysOfWait = 64;
// The number of keys that are listed in order to find the ranks of all groups. A group with more
// than are left has only the ranks that are waited for.
inline constexpr size_t kMaxKeysListedForRanks = size_t{1} << 18;

// Returns the keys of `waits`, those of most waits first, at most `max_keys`. Pure.
//
// PyTorch's backends exchange addresses by keys that end in "/<rank>", such as
// "/default_pg/0//cpu//0/3": each rank sets its own, and waits for the others' one after another.
// A key is taken for such a one if another of its group exists, and the group has a rank 0, present
// or waited for. One entry then names all ranks of the group that are waited for, or lower than
// another that has set its key.
std::vector<MissingTcpStoreKey> MissingTcpStoreKeys(const std::vector<TcpStoreWaitInfo>& waits,
                                                    ForEachTcpStoreKey for_each_key,
                                                    size_t max_keys);

}  // namespace ferry::coord

#endif  // FERRY_COORD_TCPSTORE_TCP_STORE_MISSING_H_
