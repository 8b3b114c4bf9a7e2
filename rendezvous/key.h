// SPDX-License-Identifier: Apache-2.0
// RendezvousKey: the key under which a send and a receive are matched.
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
// thread-safe, cheap to copy (copies share the text). The step is not part of it: it selects the
// rendezvous. Source: tensorflow/core/framework/rendezvous.cc, CreateKey and ParseKey.
class RendezvousKey {
 public:
  // Returns the text of a key. REQUIRES: no part contains ';'.
  static std::string Text(absl::string_view src_device, uint64_t src_incarnation,
                          absl::string_view dst_device, absl::string_view edge, uint64_t frame = 0,
                          uint64_t iteration = 0);
  //   Errors: INVALID_ARGUMENT unless it has five parts of that form, and both devices have job,
  //   task, type and index.
  static absl::StatusOr<RendezvousKey> Parse(absl::string_view text);

  // The key of a receive that waits for the end of a step at `src`, and of no value: no text of a
  // key parses to it.
  static RendezvousKey StepEnd(const TaskName& src, uint64_t src_incarnation, const TaskName& dst);
  bool is_step_end() const { return parsed_->edge.empty(); }

  // Checks the name of a value.
  //   Errors: INVALID_ARGUMENT unless it has 1 to kMaxEdgeBytes bytes, without ';'.
  static absl::Status CheckEdge(absl::string_view edge);
  // Room in a request besides the rest of a key.
  static constexpr size_t kMaxEdgeBytes = 31 * 1024;

  // Equal to hash() of a key with that text.
  static uint64_t HashOf(absl::string_view text);

  const std::string& text() const { return parsed_->text; }
  // As written in the text.
  absl::string_view src_device() const { return parsed_->src_device; }
  absl::string_view dst_device() const { return parsed_->dst_device; }
  absl::string_view edge() const { return parsed_->edge; }
  const TaskDevice& src() const { return parsed_->src; }
  const TaskDevice& dst() const { return parsed_->dst; }
  uint64_t src_incarnation() const { return parsed_->src_incarnation; }
  // WorkerNumber of both tasks: equal numbers that are not negative are the same task.
  int64_t src_worker() const { return parsed_->src_worker; }
  int64_t dst_worker() const { return parsed_->dst_worker; }
  // src().task.task and dst().task.task.
  int64_t src_task_number() const {
    return parsed_->src_worker >= 0 ? parsed_->src_worker : parsed_->src.task.task;
  }
  int64_t dst_task_number() const {
    return parsed_->dst_worker >= 0 ? parsed_->dst_worker : parsed_->dst.task.task;
  }
  // Hash of the whole text; the same in every process.
  uint64_t hash() const { return hash_; }

  // True if one is a copy of the other: comparing them is cheap.
  bool IsSameObject(const RendezvousKey& other) const { return parsed_ == other.parsed_; }

  friend bool operator==(const RendezvousKey& a, const RendezvousKey& b) {
    return a.hash_ == b.hash_ && (a.parsed_ == b.parsed_ || a.text() == b.text());
  }

 private:
  struct Parsed {
    // Sending and matching a value read the first five, which are in one or two cache lines: a
    // program that uses each of many keys once finds none of them in a cache.
    std::string text;
    uint64_t src_incarnation = 0;
    int64_t src_worker = -1;
    int64_t dst_worker = -1;
    absl::string_view edge;
    absl::string_view src_device;
    absl::string_view dst_device;
    TaskDevice src;
    TaskDevice dst;
  };

  RendezvousKey(std::shared_ptr<const Parsed> parsed, uint64_t hash)
      : parsed_(std::move(parsed)), hash_(hash) {}

  std::shared_ptr<const Parsed> parsed_;
  uint64_t hash_ = 0;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_KEY_H_
