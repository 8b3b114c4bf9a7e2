// SPDX-License-Identifier: Apache-2.0
// Bench proposals to and from their wire form.
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "bench/offer.h"
#include "node/peer_record_proto.h"

namespace ferry::cli {
namespace {

constexpr size_t kMaxOfferBytes = size_t{1} << 20;
// More than FlagsOfPlan lists, in this version or a later one.
constexpr int kMaxOfferFlags = 256;

}  // namespace

std::string EncodeBenchOffer(const BenchProposal& offer) {
  auto record = NewPeerRecord<peer::v1::BenchProposal>();
  record.set_node_id(offer.node);
  record.set_incarnation(offer.incarnation);
  record.set_program_version(offer.version);
  for (const auto& [name, value] : offer.flags) {
    peer::v1::BenchFlag& flag = *record.add_flags();
    flag.set_name(name);
    flag.set_value(value);
  }
  return record.SerializeAsString();
}

absl::StatusOr<BenchProposal> DecodeBenchOffer(absl::string_view bytes, int node) {
  const PeerRecordName name = {.kind = "bench proposal", .node = node, .key = BenchOfferKey(node)};
  peer::v1::BenchProposal record;
  FERRY_RETURN_IF_ERROR(ParsePeerRecord(bytes, kMaxOfferBytes, name, record));
  if (!record.has_node_id() || !record.has_incarnation()) {
    return InvalidPeerRecord(name, "it does not say whose it is");
  }
  if (record.flags_size() > kMaxOfferFlags) {
    return InvalidPeerRecord(name, absl::StrCat("it has ", record.flags_size(),
                                                " flags, over the limit of ", kMaxOfferFlags));
  }
  BenchProposal offer{.node = record.node_id(),
                      .incarnation = record.incarnation(),
                      .version = record.program_version()};
  for (const peer::v1::BenchFlag& flag : record.flags()) {
    offer.flags.emplace_back(flag.name(), flag.value());
  }
  return offer;
}

}  // namespace ferry::cli
