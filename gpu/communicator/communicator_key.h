// SPDX-License-Identifier: Apache-2.0
// The store keys of a communicator of devices, and the values that its ranks publish there.
#ifndef FERRY_GPU_COMMUNICATOR_COMMUNICATOR_KEY_H_
#define FERRY_GPU_COMMUNICATOR_COMMUNICATOR_KEY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "gpu/communicator/communicator_origin.h"

namespace ferry {

// A device by its global id, and the incarnation of its process.
struct CommunicatorMember {
  int32_t device = 0;
  uint64_t incarnation = 0;

  friend bool operator==(const CommunicatorMember&, const CommunicatorMember&) = default;
};

// Devices in the order of their ranks. A value.
class CommunicatorKey final {
 public:
  //   purpose: communicators of the same devices for different purposes are distinct.
  //   Errors: INVALID_ARGUMENT: no members, or one twice.
  static absl::StatusOr<CommunicatorKey> Create(std::vector<CommunicatorMember> members,
                                                absl::string_view purpose = "");

  int size() const { return static_cast<int>(members_.size()); }
  const CommunicatorMember& member(int rank) const { return members_[static_cast<size_t>(rank)]; }
  // "nccl/<32 hex digits>/": a hash of all members, so that no two communicators share it, and a
  // restarted process shares none with its former incarnation.
  const std::string& prefix() const { return prefix_; }
  // The first 64 bits of the hash: the communicator's id in batch agreements.
  uint64_t id() const { return id_; }

  // The current generation, in decimal; absent: 1.
  std::string GenerationKey() const;
  std::string UniqueIdKey(uint32_t generation) const;
  // Set once the rank takes part.
  std::string PresenceKey(uint32_t generation, int rank) const;
  // Set once the rank has initialized it: its device's sequence number for the warm-up.
  std::string NumberKey(uint32_t generation, int rank) const;
  // Set once no operation of the rank runs on it, or will (StoppedRanks).
  std::string StoppedKey(uint32_t generation, int rank) const;
  // Prefix of all keys of a generation.
  std::string GenerationPrefix(uint32_t generation) const;

  // "rank 2 (device 7)".
  std::string DescribeRank(int rank) const;
  // Human-readable: "ranks 1,2 (devices 5,7)", of some ranks at most.
  std::string DescribeRanks(const std::vector<int>& ranks) const;
  // "the communicator of devices 0-7".
  std::string Describe() const;

 private:
  CommunicatorKey(std::vector<CommunicatorMember> members, absl::string_view purpose);

  std::vector<CommunicatorMember> members_;
  uint64_t id_ = 0;
  std::string prefix_;
};

// Published by the first rank.
struct CommunicatorUniqueIds {
  // As returned by ncclGetVersion: 22809.
  int nccl_version = 0;
  uint64_t creator_incarnation = 0;
  // 128 bytes each. kCreate: one or more; kShrink: none; kGrow: one, of the origin.
  std::vector<std::string> ids;
  CommunicatorWay way = CommunicatorWay::kCreate;

  friend bool operator==(const CommunicatorUniqueIds&, const CommunicatorUniqueIds&) = default;
};

inline constexpr size_t kNcclUniqueIdBytes = 128;
// Number of ranks that NCCL's root thread of one id serves.
inline constexpr int kRanksPerUniqueId = 128;

int UniqueIdCount(int rank_count, int ranks_per_id = kRanksPerUniqueId);

// Fixed little-endian fields and a checksum.
std::string EncodeCommunicatorUniqueIds(const CommunicatorUniqueIds& ids);
//   Errors: DATA_LOSS: not written by EncodeCommunicatorUniqueIds.
absl::StatusOr<CommunicatorUniqueIds> DecodeCommunicatorUniqueIds(absl::string_view value);

// Published by each rank.
struct RankPresence {
  int nccl_version = 0;
  uint64_t incarnation = 0;
  // Nothing: it can only be created.
  std::optional<RankOrigin> origin;
};
// "22809 5f3c...", and a third word for the origin: text, readable in the store.
std::string EncodeRankPresence(const RankPresence& presence);
absl::StatusOr<RankPresence> DecodeRankPresence(absl::string_view value);

// "2.28.9".
std::string NcclVersionText(int version);

}  // namespace ferry

#endif  // FERRY_GPU_COMMUNICATOR_COMMUNICATOR_KEY_H_
