// SPDX-License-Identifier: Apache-2.0
// Messages of the eager protocol: small tensors that are sent before they are requested.
#ifndef FERRY_RENDEZVOUS_PEER_EAGER_PROTOCOL_H_
#define FERRY_RENDEZVOUS_PEER_EAGER_PROTOCOL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "tensor/shape.h"
#include "tensor/tensor.h"
#include "transport/control/control_channel.h"
#include "transport/transport.h"

namespace ferry {

// The capability of a consumer, in its HELLO: how many unexpected values, whose receives have not
// been posted, it buffers. A producer that is below each limit sends one more value, so that it may
// exceed those of bytes by one value. All limits are positive.
struct EagerLimits {
  uint32_t step_values = 4096;
  uint32_t step_bytes = 8u << 20;
  uint32_t peer_values = 16384;
  uint32_t peer_bytes = 16u << 20;
  // Names that have a number at a time, and the bytes of their texts together.
  uint32_t names = 16384;
  uint32_t name_bytes = 4u << 20;

  friend bool operator==(const EagerLimits&, const EagerLimits&) = default;
};

// Payload of one value in bytes. Larger ones are requested.
inline constexpr size_t kMaxEagerBytes = 16 * 1024;
// Dimensions of one value.
inline constexpr int kMaxEagerRank = 31;
// REJECTED with this bit in its id is about the value with that sequence number.
inline constexpr uint64_t kEagerRejectedBit = uint64_t{1} << 63;

// All values between the two nodes, those of one step, or those of one name.
enum class EagerScopeKind : uint8_t { kAll = 0, kStep = 1, kName = 2 };

struct EagerScope {
  EagerScopeKind kind = EagerScopeKind::kAll;
  // For kStep.
  int64_t step_id = 0;
  // For kName: its number on this control channel.
  uint32_t name = 0;

  static EagerScope All() { return {}; }
  static EagerScope Step(int64_t step_id) { return {EagerScopeKind::kStep, step_id, 0}; }
  static EagerScope Name(uint32_t name) { return {EagerScopeKind::kName, 0, name}; }

  friend bool operator==(const EagerScope&, const EagerScope&) = default;
};

// "all values", "step 7", "name 12".
std::string ToString(const EagerScope& scope);

enum class EagerPullKind : uint8_t {
  // From now on the scope's values are requested, until half of the credit is free again.
  kUntilFree = 0,
  // From now on they are requested, until kMayPush.
  kUntilMayPush = 1,
  // The consumer may answer with PUSH.
  kMayPush = 2,
};

// PULL, from the producer.
struct EagerPullMessage {
  EagerPullKind kind = EagerPullKind::kUntilFree;
  EagerScope scope;
  // Not empty: gives the name that number. Points into the frame.
  absl::string_view definition;
};

// The head of an EAGER frame, which has one or more records of one step.
struct EagerHead {
  int64_t step_id = 0;
  // The low bits of the first record's sequence number; each record has the next one.
  uint32_t sequence = 0;
  // Number of records.
  uint16_t count = 0;
  // An EAGER_ACK of one range, for the other direction. Count 0: none. Accepted, but not sent by
  // this release.
  uint32_t acked_first = 0;
  uint16_t acked_count = 0;
};

// One value. Views point into the frame.
struct EagerRecord {
  // The key's number on this control channel; 0: it has none.
  uint32_t name = 0;
  // Not empty: the key's text, and a definition of the number if there is one.
  absl::string_view text;
  bool is_dead = false;
  bool is_serialized = false;
  bool has_checksum = false;
  uint64_t checksum = 0;
  // Only the type of a serialized one, nothing of a dead one.
  TensorHeader header;
  absl::string_view payload;
};

struct EagerRange {
  uint32_t first = 0;
  uint16_t count = 0;

  friend bool operator==(const EagerRange&, const EagerRange&) = default;
};

// Those of one acknowledgement, which are few when values are received in order.
using EagerRanges = absl::InlinedVector<EagerRange, 4>;

// A REQUEST whose key is a name with a number.
struct NamedRequestMessage {
  uint64_t id = 0;
  int64_t step_id = 0;
  bool may_reject = false;
  uint32_t name = 0;
};

//   Errors: INVALID_ARGUMENT if a limit is 0, or too large for the messages.
absl::Status CheckEagerLimits(const EagerLimits& limits);

// The field of HELLO for the limits.
std::string EncodeEagerLimits(const EagerLimits& limits);
//   Errors: INVALID_ARGUMENT if it is short or a limit is 0. Further bytes are a later version's.
absl::StatusOr<EagerLimits> DecodeEagerLimits(absl::string_view value);

// Collects the records of one EAGER frame. Not thread-safe.
class EagerFrameWriter final {
 public:
  EagerFrameWriter() = default;
  EagerFrameWriter(int64_t step_id, uint32_t sequence) { Start(step_id, sequence); }

  // Begins another frame, without records, in the same memory.
  void Start(int64_t step_id, uint32_t sequence);
  // Appends a record; false if the frame has no room for it, and then nothing is appended. An empty
  // frame has room for any legal record.
  bool Append(const EagerRecord& record) { return Append(record, /*is_in_place=*/false); }
  // The same, but its payload may be read as late as parts() are: it must stay until then.
  bool AppendInPlace(const EagerRecord& record) { return Append(record, /*is_in_place=*/true); }
  // As AppendInPlace, for a tensor of at most one dimension whose key has that number.
  bool AppendVector(uint32_t name, const Tensor& tensor);
  void Acknowledge(EagerRange range);
  // The frame's body, with every record so far, and the same in parts. REQUIRES for view: no
  // payload is in place.
  absl::string_view view();
  absl::InlinedVector<absl::string_view, 8> parts();
  uint16_t count() const { return head_.count; }
  int64_t step_id() const { return head_.step_id; }

 private:
  bool Append(const EagerRecord& record, bool is_in_place);

  EagerHead head_;
  // Without the payloads that are in place.
  std::string body_;
  struct InPlace {
    // Where it belongs in `body_`.
    size_t at = 0;
    absl::string_view payload;
  };
  absl::InlinedVector<InPlace, 16> in_place_;
  size_t in_place_bytes_ = 0;
};

// A value that defines no number, without a checksum, of a type with a fixed size. Points into the
// frame. Unlike EagerRecord it is cheap to make.
struct EagerPlainRecord {
  // 0: the name has no number, but a text.
  uint32_t name = 0;
  absl::string_view text;
  bool is_dead = false;
  DataType dtype = DataType::kFloat;
  uint8_t rank = 0;
  // The payload's.
  uint32_t bytes = 0;
  const char* payload = nullptr;
  // The extents, if it has more than one dimension; a vector's follows from its bytes.
  const char* extents = nullptr;
  // Where the record begins; for EagerFrameReader::PutBack.
  const char* begin = nullptr;
  // The index of its frame in the reader, and how many records of that are left with this one.
  uint16_t frame_index = 0;
  uint16_t records_left = 0;

  //   Errors: INVALID_ARGUMENT: extents in shared memory have changed since they were checked. Also
  //   if there is no error the shape may be one of other bytes.
  absl::StatusOr<Shape> shape() const;
};

// Reads the records of an EAGER frame, or of several of a step as if they were one frame. The
// frames must stay. Not thread-safe.
class EagerFrameReader final {
 public:
  // Frames that can be read as one.
  static constexpr size_t kMaxFrames = 64;

  //   Errors, for all: INVALID_ARGUMENT if a frame is malformed.
  absl::Status Start(absl::string_view body);
  // Adds a frame behind those so far, before any is read. False, and nothing has changed: it is of
  // another step, its first value does not follow theirs, it acknowledges something, its head is
  // malformed, or there are kMaxFrames. Start another reader with it, which finds what is wrong.
  bool AddFrame(absl::string_view body);
  // After Start; its count is that of the first frame.
  const EagerHead& head() const { return head_; }
  size_t remaining() const { return remaining_; }
  bool is_at_end() const { return remaining_ == 0; }
  // The next record. REQUIRES: !is_at_end().
  absl::Status Read(EagerRecord& record);
  // The same. False: it is not of that kind, or is malformed, and is the next one as before.
  bool ReadPlain(EagerPlainRecord& record);
  // Puts back the last `count` records, of which that is the first.
  void PutBack(const EagerPlainRecord& record, size_t count);
  // After the last record.
  absl::Status Finish() const;

 private:
  struct Frame {
    // The records, and their number.
    absl::string_view records;
    uint16_t count = 0;
  };

  // Goes to the next frame if this one has no records left. False: this one has bytes behind its
  // last record. REQUIRES: !is_at_end().
  bool EnterNextFrame();

  const Frame& FrameAt(size_t index) const { return index == 0 ? first_ : others_[index - 1]; }

  EagerHead head_;
  Frame first_;
  absl::InlinedVector<Frame, kMaxFrames - 1> others_;
  // The frame that is being read, what is left of it, and the number of its records that are left.
  size_t frame_ = 0;
  absl::string_view rest_;
  size_t left_ = 0;
  // Records that are left, of all frames.
  size_t remaining_ = 0;
  // Values of all frames.
  uint32_t count_ = 0;
};

// Visits the records of an EAGER frame in order. Stops at the first error of `visit`.
//   Errors: INVALID_ARGUMENT if the frame is malformed; records before the malformed part have been
//   visited. That of `visit`.
absl::Status DecodeEager(absl::string_view body,
                         absl::FunctionRef<absl::Status(const EagerHead&)> start,
                         absl::FunctionRef<absl::Status(const EagerRecord&)> visit);

absl::Status SendEager(ControlChannel& channel, EagerFrameWriter& frame);
// The same for a frame with that record only, without a copy of the payload. REQUIRES: the record
// is legal, see EagerFrameWriter::Append; `head.count` is 1.
absl::Status SendEagerValue(ControlChannel& channel, const EagerHead& head,
                            const EagerRecord& record);
// The same for a name with a number. `tensor`: null: it is dead. REQUIRES: it has at most one
// dimension.
absl::Status SendEagerVector(ControlChannel& channel, int64_t step_id, uint32_t sequence,
                             uint32_t name, const Tensor* tensor);
absl::Status SendEagerPull(ControlChannel& channel, const EagerPullMessage& pull);
absl::Status SendEagerPush(ControlChannel& channel, const EagerScope& scope);
// Sends as many frames as the ranges need.
absl::Status SendEagerAck(ControlChannel& channel, absl::Span<const EagerRange> ranges);
absl::Status SendStepRefused(ControlChannel& channel, int64_t step_id);
absl::Status SendAckNow(ControlChannel& channel, int64_t step_id);
absl::Status SendNamedRequest(ControlChannel& channel, const NamedRequestMessage& request);
// WATCH: an ERROR with that id says why the step is over at the producer; it has no other answer.
absl::Status SendWatch(ControlChannel& channel, uint64_t id, int64_t step_id);

struct WatchMessage {
  uint64_t id = 0;
  int64_t step_id = 0;
};

//   Errors, for all: INVALID_ARGUMENT.
absl::StatusOr<EagerPullMessage> DecodeEagerPull(absl::string_view body);
absl::StatusOr<EagerScope> DecodeEagerPush(absl::string_view body);
// The ranges are not empty, and their number is at most a frame's.
absl::StatusOr<EagerRanges> DecodeEagerAck(absl::string_view body);
absl::StatusOr<int64_t> DecodeStepRefused(absl::string_view body);
absl::StatusOr<int64_t> DecodeAckNow(absl::string_view body);
absl::StatusOr<NamedRequestMessage> DecodeNamedRequest(absl::string_view body);
absl::StatusOr<WatchMessage> DecodeWatch(absl::string_view body);

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_EAGER_PROTOCOL_H_
