// SPDX-License-Identifier: Apache-2.0
// Limits by kind of request, and counting fields before parsing.
#include "coord/wire/control_limits.h"

#include <algorithm>
#include <limits>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include "absl/strings/str_cat.h"

namespace ferry::coord {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// Limit for all fields of a frame. Each takes up to some 100 bytes once parsed.
constexpr int64_t kMaxFields = int64_t{1} << 21;
// Limit for bytes other than values and key lists; valid ones are smaller.
constexpr int kMaxPlainBytes = 4 << 20;

// Counts the fields of a frame, and of those submessages that may have many.
class FieldCounter final {
 public:
  absl::Status Count(absl::string_view frame) { return Walk(frame, Level::kFrame); }

 private:
  enum class Level { kFrame, kRequest, kPut, kEnumerate, kKeys, kEntry, kPlain };

  // The level of a field that is, or may be, a message; others are not descended into.
  static Level LevelOf(Level outer, int field) {
    switch (outer) {
      case Level::kFrame:
        return field == v1::ClientFrame::kRequestsFieldNumber ? Level::kRequest : Level::kPlain;
      case Level::kRequest:
        switch (field) {
          case v1::Request::kPutFieldNumber:
            return Level::kPut;
          case v1::Request::kGetFieldNumber:
          case v1::Request::kDeleteFieldNumber:
          case v1::Request::kCompareAndSetFieldNumber:
            return Level::kKeys;
          case v1::Request::kEnumerateFieldNumber:
            return Level::kEnumerate;
          default:
            return Level::kPlain;
        }
      case Level::kPut:
        return field == v1::Put::kEntriesFieldNumber ? Level::kEntry : Level::kPlain;
      case Level::kEnumerate:
        // Bytes that contain a message: its fields are counted; nested ones are few.
        return field == v1::Enumerate::kLocalTopologyFieldNumber ? Level::kKeys : Level::kPlain;
      default:
        return Level::kPlain;
    }
  }

  absl::Status Walk(absl::string_view bytes, Level level) {
    CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()),
                        static_cast<int>(bytes.size()));
    const bool is_of_messages = level == Level::kFrame || level == Level::kRequest ||
                                level == Level::kPut || level == Level::kEnumerate;
    while (const uint32_t tag = in.ReadTag()) {
      if (++fields_ > kMaxFields) {
        return absl::InvalidArgumentError(absl::StrCat("a frame has over ", kMaxFields, " fields"));
      }
      const int field = WireFormatLite::GetTagFieldNumber(tag);
      if (WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_START_GROUP) {
        return absl::InvalidArgumentError("a frame has a group, which no message of ours has");
      }
      if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
        if (!WireFormatLite::SkipField(&in, tag)) break;
        continue;
      }
      uint32_t length = 0;
      if (!in.ReadVarint32(&length)) break;
      const int at = in.CurrentPosition();
      if (length > bytes.size() - static_cast<size_t>(at) || !in.Skip(static_cast<int>(length))) {
        break;
      }
      if (!is_of_messages) continue;
      const Level inner = LevelOf(level, field);
      if (inner == Level::kRequest && ++requests_ > kMaxRequests) {
        return absl::InvalidArgumentError(
            absl::StrCat("a frame has over ", kMaxRequests, " requests"));
      }
      if (inner == Level::kPlain && length > kMaxPlainBytes) {
        return absl::InvalidArgumentError(absl::StrCat(
            "a request that is none for keys and values has over ", kMaxPlainBytes, " bytes"));
      }
      absl::Status status = Walk(bytes.substr(static_cast<size_t>(at), length), inner);
      if (!status.ok()) return status;
    }
    // Malformed messages are detected by parsing.
    return absl::OkStatus();
  }

  int requests_ = 0;
  int64_t fields_ = 0;
};

}  // namespace

absl::Status CheckFrameBytes(size_t bytes, size_t max_frame_bytes) {
  if (bytes <= max_frame_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("a frame of ", bytes, " bytes is more than this coordinator takes at once, ",
                   max_frame_bytes, " bytes (--max-frame-bytes)"));
}

absl::Status ParseFrame(absl::string_view bytes, size_t max_frame_bytes, v1::ClientFrame& frame) {
  absl::Status status = CheckFrameBytes(bytes.size(), max_frame_bytes);
  // Short frames are parsed faster than counted.
  if (status.ok() && bytes.size() > kMaxRequests) status = FieldCounter().Count(bytes);
  if (!status.ok()) return status;
  if (frame.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return status;
  return absl::InvalidArgumentError("the frame cannot be parsed");
}

absl::Duration WaitTime(int64_t milliseconds) {
  if (milliseconds < 0) return absl::ZeroDuration();
  return std::min(absl::Milliseconds(milliseconds), absl::Hours(24 * 7));
}

size_t MaxBacklogBytes(const v1::Request& request) {
  switch (request.op_case()) {
    case v1::Request::kGetJobStatus:
    case v1::Request::kWatchTasks:
    case v1::Request::kGetAlive:
      return size_t{64} << 20;
    case v1::Request::kGet:
    case v1::Request::kList:
    case v1::Request::kListStore:
    case v1::Request::kWatch:
      return kMostBehindForValues;
    default:
      return std::numeric_limits<size_t>::max();
  }
}

absl::Status BacklogTooLargeError(size_t bytes) {
  return absl::ResourceExhaustedError(absl::StrCat(
      bytes, " bytes of earlier answers wait for this client to read and acknowledge them"));
}

}  // namespace ferry::coord
