// SPDX-License-Identifier: Apache-2.0
// The store keys of a clique of devices, and the values that its ranks publish there.
#ifndef FERRY_GPU_CLIQUE_CLIQUE_KEY_H_
#define FERRY_GPU_CLIQUE_CLIQUE_KEY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ferry {

// A device by its global id, and the incarnation of its process.
struct CliqueMember {
  int32_t device = 0;
  uint64_t incarnation = 0;

  friend bool operator==(const CliqueMember&, const CliqueMember&) = default;
};

// Devices in the order of their ranks. A value.
class CliqueKey final {
 public:
  //   purpose: cliques of the same devices for different purposes are distinct.
  //   Errors: INVALID_ARGUMENT: no members, or one twice.
  static absl::StatusOr<CliqueKey> Create(std::vector<CliqueMember> members,
                                          absl::string_view purpose = "");

  int size() const { return static_cast<int>(members_.size()); }
  const CliqueMember& member(int rank) const { return members_[static_cast<size_t>(rank)]; }
  // "nccl/<32 hex digits>/": a hash of all members, so that no two cliques share it, and a
  // restarted process shares none with its former incarnation.
  const std::string& prefix() const { return prefix_; }
  // The first 64 bits of the hash: the communicator's id in batch agreements.
  uint64_t id() const { return id_; }

  // The current generation, in decimal; absent: 1.
  std::string GenerationKey() const;
  std::string UniqueIdKey(uint32_t generation) const;
  // Set once the rank takes part.
  std::string PresenceKey(uint32_t generation, int rank) const;
  // Set once the rank has initialized it: its device's sequence number for the first exchange.
  std::string NumberKey(uint32_t generation, int rank) const;
  // Prefix of all keys of a generation.
  std::string GenerationPrefix(uint32_t generation) const;

  // "rank 2 (device 7)".
  std::string DescribeRank(int rank) const;
  // Human-readable: "ranks 1,2 (devices 5,7)", of some ranks at most.
  std::string DescribeRanks(const std::vector<int>& ranks) const;
  // "the clique of devices 0-7".
  std::string Describe() const;

 private:
  CliqueKey(std::vector<CliqueMember> members, absl::string_view purpose);

  std::vector<CliqueMember> members_;
  uint64_t id_ = 0;
  std::string prefix_;
};

// Published by the first rank.
struct CliqueIds {
  // As returned by ncclGetVersion: 22809.
  int nccl_version = 0;
  uint64_t minter_incarnation = 0;
  // 128 bytes each.
  std::vector<std::string> ids;

  friend bool operator==(const CliqueIds&, const CliqueIds&) = default;
};

inline constexpr size_t kNcclUniqueIdBytes = 128;
// Number of ranks that NCCL's root thread of one id serves.
inline constexpr int kRanksPerUniqueId = 128;

int UniqueIdCount(int rank_count, int ranks_per_id = kRanksPerUniqueId);

// Fixed little-endian fields and a checksum.
std::string EncodeCliqueIds(const CliqueIds& ids);
//   Errors: DATA_LOSS: not written by EncodeCliqueIds.
absl::StatusOr<CliqueIds> DecodeCliqueIds(absl::string_view value);

// Published by each rank.
struct CliquePresence {
  int nccl_version = 0;
  uint64_t incarnation = 0;
};
// "22809 5f3c...": text, readable in the store.
std::string EncodeCliquePresence(const CliquePresence& presence);
absl::StatusOr<CliquePresence> DecodeCliquePresence(absl::string_view value);

// "2.28.9".
std::string NcclVersionText(int version);

}  // namespace ferry

#endif  // FERRY_GPU_CLIQUE_CLIQUE_KEY_H_
