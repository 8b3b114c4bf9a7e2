// SPDX-License-Identifier: Apache-2.0
// Encoding and decoding of messages.
#include "rendezvous/peer/eager_protocol.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

#include "base/byte_reader.h"
#include "base/status_macros.h"
#include "rendezvous/peer/peer_protocol.h"

namespace ferry {
namespace {

// The only version of the limits.
constexpr uint8_t kLimitsVersion = 1;
// Besides the number of a name: its text follows.
constexpr uint32_t kHasText = 1u << 31;
// The byte that has a record's rank and these.
constexpr uint8_t kDeadRecord = 1 << 5;
constexpr uint8_t kSerializedRecord = 1 << 6;
constexpr uint8_t kChecksumRecord = 1 << 7;
constexpr uint8_t kRankMask = kDeadRecord - 1;
// Flag of a REQUEST.
constexpr uint8_t kNamedMayReject = 1;

constexpr size_t kHeadBytes = 24;
constexpr size_t kRecordHeadBytes = 8;
constexpr size_t kRangeBytes = 6;
constexpr size_t kMaxRanges = kMaxControlBody / kRangeBytes;
// Shorter payloads are copied in less time than a further part takes.
constexpr size_t kMinInPlaceBytes = 512;
// Longer payloads are a part of their own.
constexpr size_t kMaxPayloadInHead = 64;

absl::Status MalformedEager(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("a malformed ", what));
}

absl::Status TrailingBytes() { return MalformedEager("EAGER: bytes after its last value"); }

uint16_t TypeNumber(PeerMessageType message) { return static_cast<uint16_t>(message); }

size_t PaddingOf(size_t bytes) { return (8 - bytes % 8) % 8; }

absl::Status SendStep(ControlChannel& channel, PeerMessageType type, int64_t step_id) {
  char room[8];
  ByteWriter writer(room, sizeof(room));
  writer.Put(step_id);
  return channel.Send(TypeNumber(type), {writer.view()});
}

absl::StatusOr<int64_t> DecodeStep(absl::string_view body, absl::string_view what) {
  ByteReader reader(body);
  const auto step_id = reader.Get<int64_t>();
  if (reader.is_short() || !reader.rest().empty()) return MalformedEager(what);
  return step_id;
}

void PutScope(ByteWriter& writer, uint8_t kind, const EagerScope& scope) {
  writer.Put(kind);
  writer.Put(static_cast<uint8_t>(scope.kind));
  writer.Put(uint16_t{0});
  writer.Put(scope.name);
  writer.Put(scope.step_id);
}

absl::StatusOr<EagerScope> GetScope(ByteReader& reader, uint8_t& kind, absl::string_view what) {
  kind = reader.Get<uint8_t>();
  const auto scope_kind = reader.Get<uint8_t>();
  reader.Get<uint16_t>();
  EagerScope scope;
  scope.name = reader.Get<uint32_t>();
  scope.step_id = reader.Get<int64_t>();
  if (reader.is_short() || scope_kind > static_cast<uint8_t>(EagerScopeKind::kName)) {
    return MalformedEager(what);
  }
  scope.kind = static_cast<EagerScopeKind>(scope_kind);
  const bool is_name = scope.kind == EagerScopeKind::kName;
  if (is_name != (scope.name != 0) || scope.name >= kHasText ||
      (scope.kind != EagerScopeKind::kStep && scope.step_id != 0)) {
    return MalformedEager(absl::StrCat(what, ": a scope of two kinds"));
  }
  return scope;
}

// The heads as they are in a frame.
struct FrameHead {
  int64_t step_id;
  uint32_t sequence;
  uint32_t acked_first;
  uint16_t count;
  uint16_t acked_count;
  uint32_t reserved;
};
static_assert(sizeof(FrameHead) == kHeadBytes);

// The head of a frame, and its records; none: it is malformed.
std::optional<EagerHead> ReadHead(absl::string_view body, absl::string_view& records) {
  ByteReader reader(body);
  const auto frame = reader.Get<FrameHead>();
  if (reader.is_short() || frame.count == 0) return std::nullopt;
  records = reader.rest();
  return EagerHead{.step_id = frame.step_id,
                   .sequence = frame.sequence,
                   .count = frame.count,
                   .acked_first = frame.acked_first,
                   .acked_count = frame.acked_count};
}

struct RecordHead {
  uint32_t name;
  uint16_t bytes;
  uint8_t dtype;
  uint8_t flags;
};
static_assert(sizeof(RecordHead) == kRecordHeadBytes);

void StoreHead(char* room, const EagerHead& head) {
  const FrameHead stored = {.step_id = head.step_id,
                            .sequence = head.sequence,
                            .acked_first = head.acked_first,
                            .count = head.count,
                            .acked_count = head.acked_count,
                            .reserved = 0};
  std::memcpy(room, &stored, sizeof(stored));
}

void StoreRecordHead(char* room, const EagerRecord& record, size_t payload, size_t rank) {
  const RecordHead stored = {
      .name = record.name | (record.text.empty() ? 0 : kHasText),
      .bytes = static_cast<uint16_t>(payload),
      .dtype = static_cast<uint8_t>(record.is_dead ? 0 : static_cast<int>(record.header.dtype)),
      .flags = static_cast<uint8_t>(rank | (record.is_dead ? kDeadRecord : 0) |
                                    (record.is_serialized ? kSerializedRecord : 0) |
                                    (record.has_checksum ? kChecksumRecord : 0))};
  std::memcpy(room, &stored, sizeof(stored));
}

// Reads what follows the fixed part of a record, up to its padding.
absl::Status GetValue(ByteReader& reader, uint8_t dtype, uint8_t rank, size_t bytes,
                      EagerRecord& record) {
  absl::InlinedVector<int64_t, 8> dims;
  for (int i = 0; rank > 1 && i < rank; ++i) dims.push_back(reader.Get<int64_t>());
  if (record.has_checksum) record.checksum = reader.Get<uint64_t>();
  record.payload = reader.GetBytes(bytes);
  if (reader.is_short()) return MalformedEager("EAGER");
  if (record.is_dead) {
    if (bytes != 0 || rank != 0 || record.is_serialized || record.has_checksum) {
      return MalformedEager("EAGER: a dead value with a tensor");
    }
    return absl::OkStatus();
  }
  const std::optional<DataType> type = DataTypeOfNumber(dtype);
  if (!type.has_value() || IsFixedSize(*type) == record.is_serialized) {
    return MalformedEager("EAGER: no such type");
  }
  record.header.dtype = *type;
  record.header.bytes = bytes;
  if (record.is_serialized) {
    return rank == 0 ? absl::OkStatus() : MalformedEager("EAGER: a serialized value with a shape");
  }
  const size_t element = ElementBytes(*type);
  size_t expected = element;
  if (rank == 1) {
    // The one dimension of a vector follows from its bytes.
    if (bytes % element != 0)
      return MalformedEager("EAGER: the payload is not a multiple of the element size");
    record.header.shape = Shape::Vector(static_cast<int64_t>(bytes / element));
    return absl::OkStatus();
  }
  if (rank > 1) {
    FERRY_ASSIGN_OR_RETURN(record.header.shape, Shape::Create(dims));
    FERRY_ASSIGN_OR_RETURN(expected, TensorBytes(*type, record.header.shape));
  }
  if (expected != bytes) {
    return MalformedEager("EAGER: it does not hold as many bytes as its shape says");
  }
  return absl::OkStatus();
}

}  // namespace

std::string ToString(const EagerScope& scope) {
  switch (scope.kind) {
    case EagerScopeKind::kAll:
      return "all values";
    case EagerScopeKind::kStep:
      return absl::StrCat("step ", scope.step_id);
    case EagerScopeKind::kName:
      return absl::StrCat("name ", scope.name);
  }
  return "";
}

std::string EncodeEagerLimits(const EagerLimits& limits) {
  char room[1 + 6 * 4];
  ByteWriter writer(room, sizeof(room));
  writer.Put(kLimitsVersion);
  for (const uint32_t limit : {limits.step_values, limits.step_bytes, limits.peer_values,
                               limits.peer_bytes, limits.names, limits.name_bytes}) {
    writer.Put(limit);
  }
  return std::string(writer.view());
}

absl::StatusOr<EagerLimits> DecodeEagerLimits(absl::string_view value) {
  ByteReader reader(value);
  // A later version has this one's fields, and others after them.
  const auto version = reader.Get<uint8_t>();
  EagerLimits limits;
  for (uint32_t* const limit : {&limits.step_values, &limits.step_bytes, &limits.peer_values,
                                &limits.peer_bytes, &limits.names, &limits.name_bytes}) {
    *limit = reader.Get<uint32_t>();
  }
  if (reader.is_short() || version == 0) return MalformedEager("list of eager limits");
  FERRY_RETURN_IF_ERROR(CheckEagerLimits(limits));
  return limits;
}

absl::Status CheckEagerLimits(const EagerLimits& limits) {
  for (const uint32_t limit : {limits.step_values, limits.step_bytes, limits.peer_values,
                               limits.peer_bytes, limits.names, limits.name_bytes}) {
    if (limit == 0) return MalformedEager("eager limit: it is 0");
  }
  if (limits.names >= kHasText) return MalformedEager("eager limit: too many names");
  return absl::OkStatus();
}

void EagerFrameWriter::Start(int64_t step_id, uint32_t sequence) {
  body_.assign(kHeadBytes, '\0');
  in_place_.clear();
  in_place_bytes_ = 0;
  head_ = {.step_id = step_id, .sequence = sequence};
}

bool EagerFrameWriter::Append(const EagerRecord& record, bool is_in_place) {
  const Shape& shape = record.header.shape;
  const bool has_shape = !record.is_dead && !record.is_serialized;
  const size_t rank = has_shape ? static_cast<size_t>(shape.rank()) : 0;
  const absl::string_view payload = record.is_dead ? absl::string_view() : record.payload;
  const size_t bytes = kRecordHeadBytes + (record.text.empty() ? 0 : 2 + record.text.size()) +
                       (rank > 1 ? 8 * rank : 0) + (record.has_checksum ? 8 : 0) + payload.size();
  const size_t padding = PaddingOf(bytes);
  const size_t at = body_.size();
  if (rank > kMaxEagerRank || payload.size() > kMaxEagerBytes ||
      record.text.size() > kMaxKeyBytes || head_.count == UINT16_MAX ||
      at + in_place_bytes_ + bytes + padding > kMaxControlBody) {
    return false;
  }
  is_in_place = is_in_place && payload.size() >= kMinInPlaceBytes;
  const size_t copied = bytes + padding - (is_in_place ? payload.size() : 0);
  // Zeros, of which the padding remains.
  body_.resize(at + copied);
  StoreRecordHead(body_.data() + at, record, payload.size(), rank);
  const size_t after_head = at + kRecordHeadBytes;
  ByteWriter writer(body_.data() + after_head, copied - kRecordHeadBytes);
  if (!record.text.empty()) {
    writer.Put(static_cast<uint16_t>(record.text.size()));
    writer.PutBytes(record.text);
  }
  if (rank > 1) {
    for (const int64_t dim : shape.dims()) writer.Put(dim);
  }
  if (record.has_checksum) writer.Put(record.checksum);
  if (is_in_place) {
    in_place_.push_back({.at = after_head + writer.view().size(), .payload = payload});
    in_place_bytes_ += payload.size();
  } else {
    writer.PutBytes(payload);
  }
  ++head_.count;
  return true;
}

bool EagerFrameWriter::AppendVector(uint32_t name, const Tensor& tensor) {
  const size_t bytes = tensor.bytes();
  const size_t padding = PaddingOf(bytes);
  const size_t at = body_.size();
  if (bytes > kMaxEagerBytes || head_.count == UINT16_MAX ||
      at + in_place_bytes_ + kRecordHeadBytes + bytes + padding > kMaxControlBody) {
    return false;
  }
  const bool is_in_place = bytes >= kMinInPlaceBytes;
  body_.resize(at + kRecordHeadBytes + padding + (is_in_place ? 0 : bytes));
  const RecordHead stored = {.name = name,
                             .bytes = static_cast<uint16_t>(bytes),
                             .dtype = static_cast<uint8_t>(tensor.dtype()),
                             .flags = static_cast<uint8_t>(tensor.shape().rank())};
  char* const begin = body_.data() + at;
  std::memcpy(begin, &stored, sizeof(stored));
  const auto* const elements = static_cast<const char*>(tensor.data());
  if (is_in_place) {
    in_place_.push_back({.at = at + kRecordHeadBytes, .payload = {elements, bytes}});
    in_place_bytes_ += bytes;
  } else if (bytes != 0) {
    std::memcpy(begin + kRecordHeadBytes, elements, bytes);
  }
  ++head_.count;
  return true;
}

void EagerFrameWriter::Acknowledge(EagerRange range) {
  head_.acked_first = range.first;
  head_.acked_count = range.count;
}

absl::string_view EagerFrameWriter::view() {
  FERRY_CHECK(in_place_.empty());
  StoreHead(body_.data(), head_);
  return body_;
}

absl::InlinedVector<absl::string_view, 8> EagerFrameWriter::parts() {
  StoreHead(body_.data(), head_);
  const absl::string_view body = body_;
  absl::InlinedVector<absl::string_view, 8> parts;
  size_t begin = 0;
  for (const InPlace& each : in_place_) {
    parts.push_back(body.substr(begin, each.at - begin));
    parts.push_back(each.payload);
    begin = each.at;
  }
  parts.push_back(body.substr(begin));
  return parts;
}

absl::StatusOr<Shape> EagerPlainRecord::shape() const {
  if (rank == 0) return Shape();
  if (rank == 1) return Shape::Vector(static_cast<int64_t>(bytes / ElementBytes(dtype)));
  std::array<int64_t, kMaxEagerRank> dims;
  std::memcpy(dims.data(), extents, rank * sizeof(int64_t));
  return Shape::Create(absl::MakeConstSpan(dims).subspan(0, rank));
}

absl::Status EagerFrameReader::Start(absl::string_view body) {
  const std::optional<EagerHead> head = ReadHead(body, rest_);
  if (!head.has_value()) return MalformedEager("EAGER");
  head_ = *head;
  first_ = {.records = rest_, .count = head_.count};
  others_.clear();
  frame_ = 0;
  left_ = remaining_ = count_ = head_.count;
  return absl::OkStatus();
}

bool EagerFrameReader::AddFrame(absl::string_view body) {
  absl::string_view records;
  const std::optional<EagerHead> next = ReadHead(body, records);
  if (!next.has_value() || next->step_id != head_.step_id ||
      next->sequence != head_.sequence + count_ || next->acked_count != 0 ||
      others_.size() == kMaxFrames - 1) {
    return false;
  }
  others_.push_back({.records = records, .count = next->count});
  remaining_ += next->count;
  count_ += next->count;
  return true;
}

bool EagerFrameReader::EnterNextFrame() {
  if (left_ != 0) return true;
  if (!rest_.empty()) return false;
  ++frame_;
  rest_ = FrameAt(frame_).records;
  left_ = FrameAt(frame_).count;
  return true;
}

absl::Status EagerFrameReader::Read(EagerRecord& record) {
  if (!EnterNextFrame()) return TrailingBytes();
  ByteReader reader(rest_);
  record = {};
  const auto [name, bytes, dtype, flags] = reader.Get<RecordHead>();
  record.name = name & ~kHasText;
  if ((name & kHasText) != 0) record.text = reader.GetText();
  if (reader.is_short() || bytes > kMaxEagerBytes || record.text.size() > kMaxKeyBytes) {
    return MalformedEager("EAGER");
  }
  // Without a number there is a text, and a text is not empty.
  if (name == 0 || ((name & kHasText) != 0 && record.text.empty())) {
    return MalformedEager("EAGER: a value without a name");
  }
  record.is_dead = (flags & kDeadRecord) != 0;
  record.is_serialized = (flags & kSerializedRecord) != 0;
  record.has_checksum = (flags & kChecksumRecord) != 0;
  FERRY_RETURN_IF_ERROR(GetValue(reader, dtype, flags & kRankMask, bytes, record));
  reader.GetBytes(PaddingOf(rest_.size() - reader.rest().size()));
  if (reader.is_short()) return MalformedEager("EAGER");
  rest_ = reader.rest();
  --left_;
  --remaining_;
  return absl::OkStatus();
}

bool EagerFrameReader::ReadPlain(EagerPlainRecord& record) {
  RecordHead head;
  if (!EnterNextFrame() || rest_.size() < sizeof(head)) return false;
  const char* const begin = rest_.data();
  std::memcpy(&head, begin, sizeof(head));
  const size_t rank = head.flags & kRankMask;
  const bool is_dead = (head.flags & kDeadRecord) != 0;
  const bool has_text = (head.name & kHasText) != 0;
  const uint32_t name = head.name & ~kHasText;
  if (has_text == (name != 0) || head.bytes > kMaxEagerBytes ||
      (head.flags & (kSerializedRecord | kChecksumRecord)) != 0) {
    return false;
  }
  size_t before_extents = sizeof(head);
  record.text = {};
  if (has_text) {
    uint16_t text_bytes = 0;
    if (rest_.size() < sizeof(head) + sizeof(text_bytes)) return false;
    std::memcpy(&text_bytes, begin + sizeof(head), sizeof(text_bytes));
    before_extents += sizeof(text_bytes) + text_bytes;
    if (text_bytes == 0 || text_bytes > kMaxKeyBytes || before_extents > rest_.size()) return false;
    record.text = rest_.substr(before_extents - text_bytes, text_bytes);
  }
  const size_t extents = rank > 1 ? rank * sizeof(int64_t) : 0;
  const size_t unpadded = before_extents + extents + head.bytes;
  const size_t padded = unpadded + PaddingOf(unpadded);
  if (padded > rest_.size()) return false;
  record.name = name;
  record.is_dead = is_dead;
  record.rank = static_cast<uint8_t>(rank);
  record.bytes = head.bytes;
  record.extents = begin + before_extents;
  record.payload = record.extents + extents;
  record.begin = begin;
  record.frame_index = static_cast<uint16_t>(frame_);
  record.records_left = static_cast<uint16_t>(left_);
  if (is_dead) {
    if (head.bytes != 0 || rank != 0) return false;
  } else {
    const std::optional<DataType> dtype = DataTypeOfNumber(head.dtype);
    if (!dtype.has_value()) return false;
    record.dtype = *dtype;
    const size_t element = ElementBytes(*dtype);
    if (element == 0) return false;
    if (rank == 0 && head.bytes != element) return false;
    if (rank == 1 && head.bytes % element != 0) return false;
    if (rank > 1) {
      size_t expected = element;
      for (size_t i = 0; i < rank; ++i) {
        int64_t extent = 0;
        std::memcpy(&extent, record.extents + i * sizeof(extent), sizeof(extent));
        // An empty one, or one with an error, is not worth a distinction.
        if (extent <= 0 || static_cast<uint64_t>(extent) > kMaxEagerBytes) return false;
        expected *= static_cast<size_t>(extent);
        if (expected > kMaxEagerBytes) return false;
      }
      if (expected != head.bytes) return false;
    }
  }
  rest_.remove_prefix(padded);
  --left_;
  --remaining_;
  return true;
}

void EagerFrameReader::PutBack(const EagerPlainRecord& record, size_t count) {
  frame_ = record.frame_index;
  const absl::string_view records = FrameAt(frame_).records;
  rest_ = records.substr(static_cast<size_t>(record.begin - records.data()));
  left_ = record.records_left;
  remaining_ += count;
}

absl::Status EagerFrameReader::Finish() const {
  return rest_.empty() ? absl::OkStatus() : TrailingBytes();
}

absl::Status DecodeEager(absl::string_view body,
                         absl::FunctionRef<absl::Status(const EagerHead&)> start,
                         absl::FunctionRef<absl::Status(const EagerRecord&)> visit) {
  EagerFrameReader reader;
  FERRY_RETURN_IF_ERROR(reader.Start(body));
  FERRY_RETURN_IF_ERROR(start(reader.head()));
  while (!reader.is_at_end()) {
    EagerRecord record;
    FERRY_RETURN_IF_ERROR(reader.Read(record));
    FERRY_RETURN_IF_ERROR(visit(record));
  }
  return reader.Finish();
}

absl::Status SendEager(ControlChannel& channel, EagerFrameWriter& frame) {
  return channel.Send(TypeNumber(PeerMessageType::kEager), frame.parts());
}

absl::Status SendEagerValue(ControlChannel& channel, const EagerHead& head,
                            const EagerRecord& record) {
  static constexpr char kZeros[8] = {};
  const Shape& shape = record.header.shape;
  const bool has_shape = !record.is_dead && !record.is_serialized;
  const size_t rank = has_shape ? static_cast<size_t>(shape.rank()) : 0;
  char before[kHeadBytes + kRecordHeadBytes + 2];
  StoreHead(before, head);
  StoreRecordHead(before + kHeadBytes, record, record.payload.size(), rank);
  size_t to_text = kHeadBytes + kRecordHeadBytes;
  if (!record.text.empty()) {
    const auto size = static_cast<uint16_t>(record.text.size());
    std::memcpy(before + to_text, &size, sizeof(size));
    to_text += sizeof(size);
  }
  char between[8 * kMaxEagerRank + 8];
  ByteWriter to_payload(between, sizeof(between));
  if (rank > 1) {
    for (const int64_t dim : shape.dims()) to_payload.Put(dim);
  }
  if (record.has_checksum) to_payload.Put(record.checksum);
  const size_t bytes =
      to_text - kHeadBytes + record.text.size() + to_payload.view().size() + record.payload.size();
  const absl::string_view padding(kZeros, PaddingOf(bytes));
  return channel.Send(TypeNumber(PeerMessageType::kEager),
                      {absl::string_view(before, to_text), record.text, to_payload.view(),
                       record.payload, padding});
}

absl::Status SendEagerVector(ControlChannel& channel, int64_t step_id, uint32_t sequence,
                             uint32_t name, const Tensor* tensor) {
  static constexpr char kZeros[8] = {};
  struct Heads {
    FrameHead frame;
    RecordHead record;
    char payload[kMaxPayloadInHead];
  } heads;
  static_assert(offsetof(Heads, payload) == kHeadBytes + kRecordHeadBytes);
  heads.frame = {.step_id = step_id,
                 .sequence = sequence,
                 .acked_first = 0,
                 .count = 1,
                 .acked_count = 0,
                 .reserved = 0};
  const size_t bytes = tensor == nullptr ? 0 : tensor->bytes();
  const int dtype = tensor == nullptr ? 0 : static_cast<int>(tensor->dtype());
  const int flags = tensor == nullptr ? kDeadRecord : tensor->shape().rank();
  heads.record = {.name = name,
                  .bytes = static_cast<uint16_t>(bytes),
                  .dtype = static_cast<uint8_t>(dtype),
                  .flags = static_cast<uint8_t>(flags)};
  const auto* const begin = reinterpret_cast<const char*>(&heads);
  const size_t padding = PaddingOf(bytes);
  if (bytes + padding <= kMaxPayloadInHead) {
    // One part costs less than three.
    if (bytes != 0) std::memcpy(heads.payload, tensor->data(), bytes);
    std::memset(heads.payload + bytes, 0, padding);
    return channel.Send(TypeNumber(PeerMessageType::kEager),
                        {absl::string_view(begin, offsetof(Heads, payload) + bytes + padding)});
  }
  return channel.Send(TypeNumber(PeerMessageType::kEager),
                      {absl::string_view(begin, offsetof(Heads, payload)),
                       absl::string_view(static_cast<const char*>(tensor->data()), bytes),
                       {kZeros, padding}});
}

absl::Status SendEagerPull(ControlChannel& channel, const EagerPullMessage& pull) {
  char room[16];
  ByteWriter writer(room, sizeof(room));
  PutScope(writer, static_cast<uint8_t>(pull.kind), pull.scope);
  return channel.Send(TypeNumber(PeerMessageType::kEagerPull), {writer.view(), pull.definition});
}

absl::StatusOr<EagerPullMessage> DecodeEagerPull(absl::string_view body) {
  ByteReader reader(body);
  EagerPullMessage pull;
  uint8_t kind = 0;
  FERRY_ASSIGN_OR_RETURN(pull.scope, GetScope(reader, kind, "PULL"));
  if (kind > static_cast<uint8_t>(EagerPullKind::kMayPush)) return MalformedEager("PULL");
  pull.kind = static_cast<EagerPullKind>(kind);
  pull.definition = reader.rest();
  if (pull.definition.size() > kMaxKeyBytes) return MalformedEager("PULL: a name too long");
  const bool may_define =
      pull.scope.kind == EagerScopeKind::kName && pull.kind != EagerPullKind::kMayPush;
  if (!pull.definition.empty() && !may_define) return MalformedEager("PULL: a name that is none");
  return pull;
}

absl::Status SendEagerPush(ControlChannel& channel, const EagerScope& scope) {
  char room[16];
  ByteWriter writer(room, sizeof(room));
  PutScope(writer, 0, scope);
  return channel.Send(TypeNumber(PeerMessageType::kEagerPush), {writer.view()});
}

absl::StatusOr<EagerScope> DecodeEagerPush(absl::string_view body) {
  ByteReader reader(body);
  uint8_t kind = 0;
  FERRY_ASSIGN_OR_RETURN(const EagerScope scope, GetScope(reader, kind, "PUSH"));
  if (!reader.rest().empty()) return MalformedEager("PUSH");
  return scope;
}

absl::Status SendEagerAck(ControlChannel& channel, absl::Span<const EagerRange> ranges) {
  while (!ranges.empty()) {
    const absl::Span<const EagerRange> some = ranges.subspan(0, kMaxRanges);
    std::string body(some.size() * kRangeBytes, '\0');
    ByteWriter writer(body.data(), body.size());
    for (const EagerRange& range : some) {
      writer.Put(range.first);
      writer.Put(range.count);
    }
    FERRY_RETURN_IF_ERROR(channel.Send(TypeNumber(PeerMessageType::kEagerAck), {body}));
    ranges.remove_prefix(some.size());
  }
  return absl::OkStatus();
}

absl::StatusOr<EagerRanges> DecodeEagerAck(absl::string_view body) {
  // Before anything is allocated.
  if (body.empty() || body.size() % kRangeBytes != 0 || body.size() / kRangeBytes > kMaxRanges) {
    return MalformedEager("EAGER_ACK");
  }
  ByteReader reader(body);
  EagerRanges ranges(body.size() / kRangeBytes);
  for (EagerRange& range : ranges) {
    range.first = reader.Get<uint32_t>();
    range.count = reader.Get<uint16_t>();
    if (range.count == 0) return MalformedEager("EAGER_ACK: an empty range");
  }
  return ranges;
}

absl::Status SendStepRefused(ControlChannel& channel, int64_t step_id) {
  return SendStep(channel, PeerMessageType::kStepRefused, step_id);
}

absl::StatusOr<int64_t> DecodeStepRefused(absl::string_view body) {
  return DecodeStep(body, "STEP_REFUSED");
}

absl::Status SendAckNow(ControlChannel& channel, int64_t step_id) {
  return SendStep(channel, PeerMessageType::kAckNow, step_id);
}

absl::StatusOr<int64_t> DecodeAckNow(absl::string_view body) { return DecodeStep(body, "ACK_NOW"); }

absl::Status SendNamedRequest(ControlChannel& channel, const NamedRequestMessage& request) {
  char room[24];
  ByteWriter writer(room, sizeof(room));
  writer.Put(request.id);
  writer.Put(request.step_id);
  writer.Put(request.name);
  writer.Put(static_cast<uint32_t>(request.may_reject ? kNamedMayReject : 0));
  return channel.Send(TypeNumber(PeerMessageType::kNamedRequest), {writer.view()});
}

absl::StatusOr<NamedRequestMessage> DecodeNamedRequest(absl::string_view body) {
  ByteReader reader(body);
  NamedRequestMessage request;
  request.id = reader.Get<uint64_t>();
  request.step_id = reader.Get<int64_t>();
  request.name = reader.Get<uint32_t>();
  request.may_reject = (reader.Get<uint32_t>() & kNamedMayReject) != 0;
  if (reader.is_short() || !reader.rest().empty() || request.name == 0 ||
      request.name >= kHasText) {
    return MalformedEager("NAMED_REQUEST");
  }
  return request;
}

absl::Status SendWatch(ControlChannel& channel, uint64_t id, int64_t step_id) {
  char room[16];
  ByteWriter writer(room, sizeof(room));
  writer.Put(id);
  writer.Put(step_id);
  return channel.Send(TypeNumber(PeerMessageType::kWatch), {writer.view()});
}

absl::StatusOr<WatchMessage> DecodeWatch(absl::string_view body) {
  ByteReader reader(body);
  WatchMessage watch;
  watch.id = reader.Get<uint64_t>();
  watch.step_id = reader.Get<int64_t>();
  if (reader.is_short() || !reader.rest().empty()) return MalformedEager("WATCH");
  return watch;
}

}  // namespace ferry
