// SPDX-License-Identifier: Apache-2.0
// Store keys and encoded values of communicators.
#include "gpu/communicator/communicator_key.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "base/ranges.h"
#include "base/status_macros.h"

namespace ferry {
namespace {

constexpr uint32_t kMagic = 0x31434e46;        // "FNC1"
constexpr uint32_t kShrinkMagic = 0x53434e46;  // "FNCS"
constexpr uint32_t kGrowMagic = 0x47434e46;    // "FNCG"
constexpr size_t kHeaderBytes = 4 + 4 + 8 + 4;
constexpr size_t kMaxIds = 4096;

// The finalizer of SplitMix64: every bit of the sum affects every bit of the result.
uint64_t Mix(uint64_t state, uint64_t word) {
  uint64_t x = state + word + 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

uint64_t Checksum(absl::string_view bytes) {
  uint64_t sum = bytes.size();
  for (const char byte : bytes) sum = Mix(sum, static_cast<unsigned char>(byte));
  return sum;
}

uint32_t MagicOf(CommunicatorWay way) {
  if (way == CommunicatorWay::kShrink) return kShrinkMagic;
  return way == CommunicatorWay::kGrow ? kGrowMagic : kMagic;
}

bool HasItsIds(CommunicatorWay way, uint32_t count) {
  if (way == CommunicatorWay::kCreate) return count > 0 && count <= kMaxIds;
  return count == (way == CommunicatorWay::kGrow ? 1 : 0);
}

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "fields lie in the store as in memory");

template <typename T>
void Put(T value, std::string& out) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
T Get(absl::string_view bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

}  // namespace

CommunicatorKey::CommunicatorKey(std::vector<CommunicatorMember> members, absl::string_view purpose)
    : members_(std::move(members)) {
  uint64_t halves[2] = {0x6e63636c, 0x66657272};
  for (uint64_t& half : halves) {
    half = Mix(half, members_.size());
    for (const CommunicatorMember& member : members_) {
      half = Mix(half, static_cast<uint32_t>(member.device));
      half = Mix(half, member.incarnation);
    }
    if (!purpose.empty()) half = Mix(half, Checksum(purpose));
  }
  id_ = halves[0];
  prefix_ = absl::StrCat("nccl/", absl::Hex(halves[0], absl::kZeroPad16),
                         absl::Hex(halves[1], absl::kZeroPad16), "/");
}

absl::StatusOr<CommunicatorKey> CommunicatorKey::Create(std::vector<CommunicatorMember> members,
                                                        absl::string_view purpose) {
  std::vector<int> devices;
  for (const CommunicatorMember& member : members) devices.push_back(member.device);
  std::sort(devices.begin(), devices.end());
  if (devices.empty() || devices[0] < 0 ||
      std::adjacent_find(devices.begin(), devices.end()) != devices.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a communicator is of one device or more, each once, not of [",
                     FormatRanges(devices), "]"));
  }
  return CommunicatorKey(std::move(members), purpose);
}

std::string CommunicatorKey::GenerationKey() const { return absl::StrCat(prefix_, "generation"); }

std::string CommunicatorKey::NumberKey(uint32_t generation, int rank) const {
  return absl::StrCat(GenerationPrefix(generation), "number/", rank);
}

std::string CommunicatorKey::StoppedKey(uint32_t generation, int rank) const {
  return absl::StrCat(GenerationPrefix(generation), "stopped/", rank);
}

std::string CommunicatorKey::GenerationPrefix(uint32_t generation) const {
  return absl::StrCat(prefix_, generation, "/");
}

std::string CommunicatorKey::UniqueIdKey(uint32_t generation) const {
  return absl::StrCat(GenerationPrefix(generation), "id");
}

std::string CommunicatorKey::PresenceKey(uint32_t generation, int rank) const {
  return absl::StrCat(GenerationPrefix(generation), "rank/", rank);
}

std::string CommunicatorKey::DescribeRank(int rank) const {
  return absl::StrCat("rank ", rank, " (device ", member(rank).device, ")");
}

std::string CommunicatorKey::DescribeRanks(const std::vector<int>& ranks) const {
  std::vector<int> devices;
  for (const int rank : ranks) devices.push_back(member(rank).device);
  const char* plural = ranks.size() == 1 ? "" : "s";
  return absl::StrCat("rank", plural, " ", FormatRanges(ranks), " (device", plural, " ",
                      FormatRanges(devices), ")");
}

std::string CommunicatorKey::Describe() const {
  std::vector<int> devices;
  for (const CommunicatorMember& member : members_) devices.push_back(member.device);
  return absl::StrCat("the communicator of devices ", FormatRanges(devices));
}

int UniqueIdCount(int rank_count, int ranks_per_id) {
  return (rank_count + ranks_per_id - 1) / ranks_per_id;
}

std::string EncodeCommunicatorUniqueIds(const CommunicatorUniqueIds& ids) {
  std::string value;
  Put(MagicOf(ids.way), value);
  Put(static_cast<int32_t>(ids.nccl_version), value);
  Put(ids.creator_incarnation, value);
  Put(static_cast<uint32_t>(ids.ids.size()), value);
  for (const std::string& id : ids.ids) value += id;
  Put(Checksum(value), value);
  return value;
}

absl::StatusOr<CommunicatorUniqueIds> DecodeCommunicatorUniqueIds(absl::string_view value) {
  const absl::Status malformed = absl::DataLossError(
      absl::StrCat("the ", value.size(), " bytes in the store are no NCCL ids of Ferry's"));
  if (value.size() < kHeaderBytes + 8) return malformed;
  const auto magic = Get<uint32_t>(value, 0);
  CommunicatorUniqueIds ids;
  if (magic == kShrinkMagic) ids.way = CommunicatorWay::kShrink;
  if (magic == kGrowMagic) ids.way = CommunicatorWay::kGrow;
  const auto count = Get<uint32_t>(value, 16);
  if (magic != MagicOf(ids.way) || !HasItsIds(ids.way, count) ||
      value.size() != kHeaderBytes + count * kNcclUniqueIdBytes + 8) {
    return malformed;
  }
  const absl::string_view content = value.substr(0, value.size() - 8);
  if (Get<uint64_t>(value, content.size()) != Checksum(content)) return malformed;
  ids.nccl_version = Get<int32_t>(value, 4);
  ids.creator_incarnation = Get<uint64_t>(value, 8);
  for (uint32_t i = 0; i < count; ++i) {
    ids.ids.emplace_back(value.substr(kHeaderBytes + i * kNcclUniqueIdBytes, kNcclUniqueIdBytes));
  }
  return ids;
}

std::string EncodeRankPresence(const RankPresence& presence) {
  return absl::StrCat(presence.nccl_version, " ", absl::Hex(presence.incarnation),
                      presence.origin.has_value() ? " " : "",
                      presence.origin.has_value() ? EncodeRankOrigin(*presence.origin) : "");
}

absl::StatusOr<RankPresence> DecodeRankPresence(absl::string_view value) {
  const std::vector<absl::string_view> words = absl::StrSplit(value, ' ');
  RankPresence presence;
  if (words.size() < 2 || words.size() > 3 || !absl::SimpleAtoi(words[0], &presence.nccl_version) ||
      !absl::SimpleHexAtoi(words[1], &presence.incarnation)) {
    return absl::DataLossError("a rank's presence in the store is malformed");
  }
  if (words.size() == 3) {
    FERRY_ASSIGN_OR_RETURN(presence.origin, DecodeRankOrigin(words[2]));
  }
  return presence;
}

std::string NcclVersionText(int version) {
  // Since 2.9: five digits.
  const int thousand = version >= 10000 ? 10000 : 1000;
  return absl::StrCat(version / thousand, ".", version % thousand / 100, ".", version % 100);
}

}  // namespace ferry
