// SPDX-License-Identifier: Apache-2.0
// Walks tags and lengths, guided by the messages' descriptors.
#include "tensorflow/graph/request_size.h"

#include <cstdint>
#include <string>

#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/message.h>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

#include "proto/tf_node.pb.h"

namespace ferry::graph {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::io::CodedInputStream;

// The protobuf parser's limit.
constexpr int kMaxDepth = 100;
// A pointer in a repeated field, whose capacity doubles.
constexpr size_t kPointerBytes = 16;
constexpr size_t kStringBytes = sizeof(std::string) + kPointerBytes;
constexpr size_t kUnknownFieldBytes = 32;
// A map entry without its value, which is counted as a message.
constexpr size_t kMapEntryBytes = 128;

enum WireType : uint32_t {
  kVarint = 0,
  kFixed64 = 1,
  kBytes = 2,
  kStartGroup = 3,
  kEndGroup = 4,
  kFixed32 = 5,
};

WireType WireTypeOf(const FieldDescriptor& field) {
  switch (field.type()) {
    case FieldDescriptor::TYPE_DOUBLE:
    case FieldDescriptor::TYPE_FIXED64:
    case FieldDescriptor::TYPE_SFIXED64:
      return kFixed64;
    case FieldDescriptor::TYPE_FLOAT:
    case FieldDescriptor::TYPE_FIXED32:
    case FieldDescriptor::TYPE_SFIXED32:
      return kFixed32;
    case FieldDescriptor::TYPE_STRING:
    case FieldDescriptor::TYPE_BYTES:
    case FieldDescriptor::TYPE_MESSAGE:
      return kBytes;
    default:
      return kVarint;
  }
}

class Walker {
 public:
  explicit Walker(CodedInputStream& in) : in_(in) {}

  // Walks to the end of the message.
  bool Walk(const Descriptor& type, int depth) {
    if (depth > kMaxDepth) return false;
    while (const uint32_t tag = in_.ReadTag()) {
      const FieldDescriptor* const field = type.FindFieldByNumber(static_cast<int>(tag >> 3));
      if (!Field(field, tag, depth)) return false;
    }
    return in_.ConsumedEntireMessage();
  }

  RequestSize size;

 private:
  bool Field(const FieldDescriptor* field, uint32_t tag, int depth) {
    const auto wire_type = static_cast<WireType>(tag & 7);
    if (field != nullptr && wire_type != WireTypeOf(*field) &&
        !(wire_type == kBytes && field->is_packable())) {
      // The parser keeps it as an unknown field.
      field = nullptr;
    }
    if (field == nullptr || field->is_repeated()) size.bytes += kUnknownFieldBytes;
    uint64_t varint = 0;
    uint32_t fixed32 = 0;
    switch (wire_type) {
      case kVarint:
        return in_.ReadVarint64(&varint);
      case kFixed64:
        return in_.ReadLittleEndian64(&varint);
      case kFixed32:
        return in_.ReadLittleEndian32(&fixed32);
      case kBytes:
        break;
      case kStartGroup:
        return Group(tag >> 3, depth + 1);
      default:
        return false;
    }
    uint32_t length = 0;
    if (!in_.ReadVarint32(&length) || length > INT32_MAX) return false;
    const int bytes = static_cast<int>(length);
    if (field != nullptr && field->message_type() != nullptr) {
      return Message(*field->message_type(), bytes, depth);
    }
    size.bytes += InMemory(field, length);
    return in_.Skip(bytes);
  }

  bool Message(const Descriptor& type, int bytes, int depth) {
    size.bytes += kPointerBytes + BytesOf(type);
    if (&type == tensorflow::NodeDef::descriptor()) ++size.nodes;
    const CodedInputStream::Limit limit = in_.PushLimit(bytes);
    if (!Walk(type, depth + 1)) return false;
    in_.PopLimit(limit);
    return true;
  }

  // These messages have no groups; the parser keeps them as unknown fields.
  bool Group(uint32_t number, int depth) {
    if (depth > kMaxDepth) return false;
    size.bytes += kUnknownFieldBytes;
    while (const uint32_t tag = in_.ReadTag()) {
      if ((tag & 7) == kEndGroup) return tag >> 3 == number;
      if (!Field(nullptr, tag, depth)) return false;
    }
    return false;
  }

  // Returns the memory used by a string or packed field of `length` wire bytes.
  static size_t InMemory(const FieldDescriptor* field, size_t length) {
    if (field == nullptr || field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      return kStringBytes + length;
    }
    switch (field->type()) {
      case FieldDescriptor::TYPE_DOUBLE:
      case FieldDescriptor::TYPE_FLOAT:
      case FieldDescriptor::TYPE_FIXED64:
      case FieldDescriptor::TYPE_FIXED32:
      case FieldDescriptor::TYPE_SFIXED64:
      case FieldDescriptor::TYPE_SFIXED32:
      case FieldDescriptor::TYPE_BOOL:
        return length;
      case FieldDescriptor::TYPE_INT64:
      case FieldDescriptor::TYPE_UINT64:
      case FieldDescriptor::TYPE_SINT64:
        return length * sizeof(int64_t);
      default:
        return length * sizeof(int32_t);
    }
  }

  size_t BytesOf(const Descriptor& type) {
    const auto [found, is_new] = bytes_of_.try_emplace(&type, kMapEntryBytes);
    if (is_new && !type.options().map_entry()) {
      const google::protobuf::Message* const prototype =
          google::protobuf::MessageFactory::generated_factory()->GetPrototype(&type);
      if (prototype != nullptr) found->second = prototype->SpaceUsedLong();
    }
    return found->second;
  }

  CodedInputStream& in_;
  absl::flat_hash_map<const Descriptor*, size_t> bytes_of_;
};

}  // namespace

RequestSize MeasureRequest(const Descriptor& type,
                           google::protobuf::io::ZeroCopyInputStream& wire) {
  CodedInputStream in(&wire);
  Walker walker(in);
  walker.size.is_message = walker.Walk(type, 0);
  return walker.size;
}

absl::Status CheckRequestSize(const Descriptor& type,
                              google::protobuf::io::ZeroCopyInputStream& wire, size_t wire_bytes,
                              const RequestLimits& limits) {
  // A NodeDef takes at least two bytes on the wire.
  if (wire_bytes <= limits.max_bytes / kMaxExpansion && wire_bytes / 2 <= limits.max_nodes) {
    return absl::OkStatus();
  }
  const RequestSize size = MeasureRequest(type, wire);
  // Rejected here: the parser might accept what the walk could not measure.
  if (!size.is_message) {
    return absl::InvalidArgumentError(absl::StrCat("the request is no ", type.full_name()));
  }
  if (size.nodes > limits.max_nodes) {
    return absl::ResourceExhaustedError(absl::StrCat("The request has ", size.nodes, " nodes, and ",
                                                     limits.max_nodes_name, " is ",
                                                     limits.max_nodes));
  }
  if (size.bytes > limits.max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("The request of ", wire_bytes, " bytes would take ", size.bytes,
                     " when it is parsed, and ", limits.max_bytes_name, " is ", limits.max_bytes));
  }
  return absl::OkStatus();
}

}  // namespace ferry::graph
