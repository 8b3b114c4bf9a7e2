// SPDX-License-Identifier: Apache-2.0
// MissingTcpStoreKeys: the keys that a store's clients wait for, and the ranks that should set
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
  // If each rank sets a key of this form: the ranks that have not, ascending.
  std::vector<int> ranks;
  // The number of clients that wait for it, and when the longest wait began.
  size_t clients = 0;
  absl::Time since;
  // As in TcpStoreWaitInfo.
  int64_t world_size = 0;
  int64_t arrived = 0;
};

// Lists the keys of a store that begin with a prefix, until `visit` returns false.
using ForEachTcpStoreKey = absl::FunctionRef<void(
    absl::string_view prefix, absl::FunctionRef<bool(absl::string_view)> visit)>;

// The number of keys of a wait that are examined; a wait may have thousands.
inline constexpr size_t kMaxMissingKeysOfWait = 64;
// The number of keys that are listed to find the ranks of all groups together. For a group that
// exceeds the rest of it, only the ranks that are waited for are reported.
inline constexpr size_t kMaxKeysListedForRanks = size_t{1} << 18;

// Returns at most `max_keys` keys of `waits`, those with most waits first. Pure.
//
// PyTorch's backends exchange addresses by keys that end in "/<rank>", such as
// "/default_pg/0//cpu//0/3": each rank sets its own, and waits for the others' one after another.
// A key is taken for one of these if another key with the same prefix exists, and one of rank 0
// exists or is waited for. A single entry then has all ranks of the group that are waited for, or
// that are absent and lower than one that has set its key.
std::vector<MissingTcpStoreKey> MissingTcpStoreKeys(const std::vector<TcpStoreWaitInfo>& waits,
                                                    ForEachTcpStoreKey for_each_key,
                                                    size_t max_keys);

}  // namespace ferry::coord

#endif  // FERRY_COORD_TCPSTORE_TCP_STORE_MISSING_H_
