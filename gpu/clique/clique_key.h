// SPDX-License-Identifier: Apache-2.0
// What a clique of devices is called in the store, and what its ranks leave there for each other.
#ifndef FERRY_GPU_CLIQUE_CLIQUE_KEY_H_
#define FERRY_GPU_CLIQUE_CLIQUE_KEY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ferry {

// A device by its global id, in one life of its process.
struct CliqueMember {
  int32_t device = 0;
  uint64_t incarnation = 0;

  friend bool operator==(const CliqueMember&, const CliqueMember&) = default;
};

// Devices in the order of their ranks. A value.
class CliqueKey final {
 public:
  //   purpose: cliques of one set of devices for different purposes are different ones.
  //   Errors: INVALID_ARGUMENT: none, or one twice.
  static absl::StatusOr<CliqueKey> Create(std::vector<CliqueMember> members,
                                          absl::string_view purpose = "");

  int size() const { return static_cast<int>(members_.size()); }
  const CliqueMember& member(int rank) const { return members_[static_cast<size_t>(rank)]; }
  // "nccl/<32 hex digits>/": of all members, none left out, so that no two cliques share it and a
  // process that comes back shares none with its former life.
  const std::string& prefix() const { return prefix_; }
  // The first 64 bits of it: what grants call the communicator.
  uint64_t id() const { return id_; }

  // Which generation is being made, in decimal; absent: 1.
  std::string GenerationKey() const;
  std::string UniqueIdKey(uint32_t generation) const;
  // That the rank takes part.
  std::string PresenceKey(uint32_t generation, int rank) const;
  // That the rank has initialised it, and the number that its device gives its first exchange.
  std::string NumberKey(uint32_t generation, int rank) const;
  // Everything of a generation.
  std::string GenerationPrefix(uint32_t generation) const;

  // "rank 2 (device 7)".
  std::string DescribeRank(int rank) const;
  // "ranks 1,2 (devices 5,7)", of at most some: for people.
  std::string DescribeRanks(const std::vector<int>& ranks) const;
  // "the clique of devices 0-7".
  std::string Describe() const;

 private:
  CliqueKey(std::vector<CliqueMember> members, absl::string_view purpose);

  std::vector<CliqueMember> members_;
  uint64_t id_ = 0;
  std::string prefix_;
};

// What the first rank publishes.
struct CliqueIds {
  // As ncclGetVersion says: 22809.
  int nccl_version = 0;
  uint64_t minter_incarnation = 0;
  // 128 bytes each.
  std::vector<std::string> ids;

  friend bool operator==(const CliqueIds&, const CliqueIds&) = default;
};

inline constexpr size_t kNcclUniqueIdBytes = 128;
// NCCL's root thread of one id serves that many ranks.
inline constexpr int kRanksPerUniqueId = 128;

int UniqueIdCount(int rank_count, int ranks_per_id = kRanksPerUniqueId);

// Fixed little-endian fields and a checksum.
std::string EncodeCliqueIds(const CliqueIds& ids);
//   Errors: DATA_LOSS: it is not what EncodeCliqueIds writes.
absl::StatusOr<CliqueIds> DecodeCliqueIds(absl::string_view value);

// What a rank says of itself.
struct CliquePresence {
  int nccl_version = 0;
  uint64_t incarnation = 0;
};
// "22809 5f3c...": text, so that people can read it in the store.
std::string EncodeCliquePresence(const CliquePresence& presence);
absl::StatusOr<CliquePresence> DecodeCliquePresence(absl::string_view value);

// "2.28.9".
std::string NcclVersionText(int version);

}  // namespace ferry

#endif  // FERRY_GPU_CLIQUE_CLIQUE_KEY_H_
