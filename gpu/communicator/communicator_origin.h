// SPDX-License-Identifier: Apache-2.0
// A communicator made of another one: without the members that have left, or with new ones.
#ifndef FERRY_GPU_COMMUNICATOR_COMMUNICATOR_ORIGIN_H_
#define FERRY_GPU_COMMUNICATOR_COMMUNICATOR_ORIGIN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ferry {

enum class CommunicatorWay : uint8_t {
  kCreate = 0,  // from unique ids
  kShrink = 1,  // ncclCommShrink
  kGrow = 2,    // ncclCommGrow
};

// "shrink".
absl::string_view CommunicatorWayName(CommunicatorWay way);

// 2.27 can shrink; 2.28.7 can also stop the operations of the origin without blocking (revoke).
inline constexpr int kShrinkVersion = 22807;
inline constexpr int kGrowVersion = 22902;

// Offer of a rank to make a communicator of another one: of one that it holds, or to join one as a
// new member. A value.
struct RankOrigin {
  // CommunicatorKey::id and generation of the communicator held; 0: none.
  uint64_t id = 0;
  uint32_t generation = 0;
  // This rank in it, and its size; -1 and 0: none.
  int rank = -1;
  int size = 0;

  bool is_new() const { return size == 0; }
  friend bool operator==(const RankOrigin&, const RankOrigin&) = default;
};

// "joins", or "1f2e:3:0:4": text without spaces, readable in the store.
std::string EncodeRankOrigin(const RankOrigin& origin);
//   Errors: DATA_LOSS: not written by EncodeRankOrigin.
absl::StatusOr<RankOrigin> DecodeRankOrigin(absl::string_view text);

// The way that a rank with this offer is prepared for, if it is to be one of `size` ranks: a
// communicator that shrinks has been stopped already, and cannot grow.
CommunicatorWay WayOf(const RankOrigin& offer, int size);

// The one way that all ranks can take, by what they offer in the order of the new ranks; nullopt: a
// rank offers nothing, because its library cannot, its communicator is broken, or nobody asked for
// it. All offers must name the same communicator:
//   kShrink  all ranks held it, in the same order, and some of its ranks are not among them;
//   kGrow    its ranks are the first of the new ones, in the same order, and the others join.
CommunicatorWay ChooseCommunicatorWay(int nccl_version,
                                      const std::vector<std::optional<RankOrigin>>& offers);

}  // namespace ferry

#endif  // FERRY_GPU_COMMUNICATOR_COMMUNICATOR_ORIGIN_H_
