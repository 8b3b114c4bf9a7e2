// SPDX-License-Identifier: Apache-2.0
// RendezvousKey: what a send and a receive meet under.
#ifndef FERRY_RENDEZVOUS_KEY_H_
#define FERRY_RENDEZVOUS_KEY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "rendezvous/device_name.h"

namespace ferry {

// "src_device;HEX16(src_incarnation);dst_device;edge;frame:iter", parsed once. A value: immutable,
// thread-safe, cheap to copy (copies share the text). The step is not in it: it chooses the
// rendezvous. Source: tensorflow/core/framework/rendezvous.cc, CreateKey and ParseKey.
class RendezvousKey {
 public:
  // The text of a key. REQUIRES: no part contains ';'.
  static std::string Text(absl::string_view src_device, uint64_t src_incarnation,
                          absl::string_view dst_device, absl::string_view edge, uint64_t frame = 0,
                          uint64_t iteration = 0);
  //   Errors: INVALID_ARGUMENT unless it is five parts of that form, both devices with job, task,
  //   type and index.
  static absl::StatusOr<RendezvousKey> Parse(absl::string_view text);

  // Whether a value may have that name.
  //   Errors: INVALID_ARGUMENT unless it is 1 to kMaxEdgeBytes bytes without ';'.
  static absl::Status CheckEdge(absl::string_view edge);
  // What requests have room for beside the rest of a key.
  static constexpr size_t kMaxEdgeBytes = 31 * 1024;

  // As hash() would be.
  static uint64_t HashOf(absl::string_view text);

  const std::string& text() const { return parsed_->text; }
  // As they stand in the text.
  absl::string_view src_device() const { return parsed_->src_device; }
  absl::string_view dst_device() const { return parsed_->dst_device; }
  absl::string_view edge() const { return parsed_->edge; }
  const TaskDevice& src() const { return parsed_->src; }
  const TaskDevice& dst() const { return parsed_->dst; }
  uint64_t src_incarnation() const { return parsed_->src_incarnation; }
  // Of the whole text; the same in every process.
  uint64_t hash() const { return hash_; }

  friend bool operator==(const RendezvousKey& a, const RendezvousKey& b) {
    return a.hash_ == b.hash_ && (a.parsed_ == b.parsed_ || a.text() == b.text());
  }

 private:
  struct Parsed {
    std::string text;
    absl::string_view src_device;
    absl::string_view dst_device;
    absl::string_view edge;
    TaskDevice src;
    TaskDevice dst;
    uint64_t src_incarnation = 0;
  };

  RendezvousKey(std::shared_ptr<const Parsed> parsed, uint64_t hash)
      : parsed_(std::move(parsed)), hash_(hash) {}

  std::shared_ptr<const Parsed> parsed_;
  uint64_t hash_ = 0;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_KEY_H_
