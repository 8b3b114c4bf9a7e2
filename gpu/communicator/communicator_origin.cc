// SPDX-License-Identifier: Apache-2.0
// Which way all ranks can take.
#include "gpu/communicator/communicator_origin.h"

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ferry {
namespace {

constexpr char kJoins[] = "joins";

bool IsOf(const RankOrigin& offer, const RankOrigin& first) {
  return offer.id == first.id && offer.generation == first.generation && offer.size == first.size;
}

}  // namespace

absl::string_view CommunicatorWayName(CommunicatorWay way) {
  static constexpr absl::string_view kNames[] = {"create", "shrink", "grow"};
  return kNames[static_cast<int>(way)];
}

CommunicatorWay WayOf(const RankOrigin& offer, int size) {
  return offer.is_new() || offer.size < size ? CommunicatorWay::kGrow : CommunicatorWay::kShrink;
}

std::string EncodeRankOrigin(const RankOrigin& origin) {
  if (origin.is_new()) return kJoins;
  return absl::StrCat(absl::Hex(origin.id), ":", origin.generation, ":", origin.rank, ":",
                      origin.size);
}

absl::StatusOr<RankOrigin> DecodeRankOrigin(absl::string_view text) {
  RankOrigin origin;
  if (text == kJoins) return origin;
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  if (parts.size() != 4 || !absl::SimpleHexAtoi(parts[0], &origin.id) ||
      !absl::SimpleAtoi(parts[1], &origin.generation) ||
      !absl::SimpleAtoi(parts[2], &origin.rank) || !absl::SimpleAtoi(parts[3], &origin.size) ||
      origin.rank < 0 || origin.rank >= origin.size) {
    return absl::DataLossError("the origin of a rank in the store is malformed");
  }
  return origin;
}

CommunicatorWay ChooseCommunicatorWay(int nccl_version,
                                      const std::vector<std::optional<RankOrigin>>& offers) {
  if (offers.empty() || !offers[0].has_value() || offers[0]->is_new()) {
    return CommunicatorWay::kCreate;
  }
  const RankOrigin& first = *offers[0];
  int last = -1;  // rank in the origin of the last one that held it
  int held = 0;
  for (const std::optional<RankOrigin>& offer : offers) {
    if (!offer.has_value()) return CommunicatorWay::kCreate;
    if (offer->is_new()) continue;
    // New members come last.
    const bool is_next = &offer - offers.data() == held;
    if (!is_next || !IsOf(*offer, first) || offer->rank <= last) return CommunicatorWay::kCreate;
    last = offer->rank;
    ++held;
  }
  const bool has_new = held < static_cast<int>(offers.size());
  const bool has_lost = held < first.size;
  if (has_new == has_lost) return CommunicatorWay::kCreate;
  if (has_lost && nccl_version >= kShrinkVersion) return CommunicatorWay::kShrink;
  if (has_new && nccl_version >= kGrowVersion) return CommunicatorWay::kGrow;
  return CommunicatorWay::kCreate;
}

}  // namespace ferry
