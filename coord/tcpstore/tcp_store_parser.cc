// SPDX-License-Identifier: Apache-2.0
// A state machine over the fields of requests.
#include "coord/tcpstore/tcp_store_parser.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ferry::coord {
namespace {

constexpr uint32_t kMagic = 0x3C85F7CE;

// The operations 0 to 6 of 1.13 to 2.1. From 7 on the numbering of 2.1 differs from that of 1.13 to
// 2.0, where only 8, DELETE_KEY, is served.
constexpr TcpStoreOp kFirstOps[] = {
    TcpStoreOp::kSet,   TcpStoreOp::kCompareSet, TcpStoreOp::kGet,       TcpStoreOp::kAdd,
    TcpStoreOp::kCheck, TcpStoreOp::kWait,       TcpStoreOp::kGetNumKeys};
constexpr TcpStoreOp kTorch21Ops[] = {
    TcpStoreOp::kDeleteKey, TcpStoreOp::kAppend,     TcpStoreOp::kMultiGet,
    TcpStoreOp::kMultiSet,  TcpStoreOp::kCancelWait,
};
constexpr uint8_t kFirstTorch21Op = 7;
constexpr uint8_t kTorch1DeleteKey = 8;
constexpr TcpStoreOp kTorch22Ops[] = {
    TcpStoreOp::kValidate,   TcpStoreOp::kSet,         TcpStoreOp::kCompareSet,
    TcpStoreOp::kGet,        TcpStoreOp::kAdd,         TcpStoreOp::kCheck,
    TcpStoreOp::kWait,       TcpStoreOp::kGetNumKeys,  TcpStoreOp::kDeleteKey,
    TcpStoreOp::kAppend,     TcpStoreOp::kMultiGet,    TcpStoreOp::kMultiSet,
    TcpStoreOp::kCancelWait, TcpStoreOp::kPing,        TcpStoreOp::kQueuePush,
    TcpStoreOp::kQueuePop,   TcpStoreOp::kQueueLength, TcpStoreOp::kListKeys,
    TcpStoreOp::kBarrier,
};

// PyTorch sends integers in native byte order; only little-endian clients are supported.
template <typename Number>
Number Load(const char* bytes) {
  Number number;
  std::memcpy(&number, bytes, sizeof(number));
  return number;
}

bool HasKeys(TcpStoreOp op) {
  return op == TcpStoreOp::kCheck || op == TcpStoreOp::kWait || op == TcpStoreOp::kMultiGet ||
         op == TcpStoreOp::kMultiSet;
}

size_t ValuesPerKey(TcpStoreOp op) {
  switch (op) {
    case TcpStoreOp::kSet:
    case TcpStoreOp::kAppend:
    case TcpStoreOp::kMultiSet:
    case TcpStoreOp::kQueuePush:
      return 1;
    case TcpStoreOp::kCompareSet:
      return 2;
    default:
      return 0;
  }
}

}  // namespace

absl::string_view TcpStoreOpName(TcpStoreOp op) {
  constexpr absl::string_view kNames[] = {
      "VALIDATE",   "SET",        "COMPARE_SET", "GET",       "ADD",       "CHECK",       "WAIT",
      "GETNUMKEYS", "DELETE_KEY", "APPEND",      "MULTI_GET", "MULTI_SET", "CANCEL_WAIT", "PING",
      "QUEUE_PUSH", "QUEUE_POP",  "QUEUE_LEN",   "LIST_KEYS", "BARRIER"};
  return kNames[static_cast<size_t>(op)];
}

absl::string_view TcpStoreDialectName(TcpStoreDialect dialect) {
  switch (dialect) {
    case TcpStoreDialect::kTorch1:
      return "PyTorch 1.13 to 2.0";
    case TcpStoreDialect::kTorch21:
      return "PyTorch 2.1";
    case TcpStoreDialect::kTorch22:
      return "PyTorch 2.2 or later";
    case TcpStoreDialect::kUnknown:
      break;
  }
  return "PyTorch 1.13 to 2.1";
}

absl::Status TcpStoreParser::UnknownOp(uint8_t op) const {
  return absl::InvalidArgumentError(absl::StrCat("unknown operation ", op, " in the protocol of ",
                                                 TcpStoreDialectName(dialect_)));
}

absl::StatusOr<std::optional<TcpStoreRequest>> TcpStoreParser::Next(absl::string_view& bytes) {
  while (!bytes.empty()) {
    absl::Status status;
    switch (field_) {
      case Field::kOp: {
        const uint8_t op = static_cast<uint8_t>(bytes.front());
        bytes.remove_prefix(1);
        status = TakeOp(op);
        break;
      }
      case Field::kKey:
      case Field::kValue: {
        const size_t taken = std::min(body_left_, bytes.size());
        body_.append(bytes.data(), taken);
        bytes.remove_prefix(taken);
        body_left_ -= taken;
        if (body_left_ == 0) Advance();
        break;
      }
      default: {
        if (is_ambiguous_) {
          // A value follows the key, so the request is an APPEND.
          is_ambiguous_ = false;
          dialect_ = TcpStoreDialect::kTorch21;
        }
        const size_t wanted = field_ == Field::kMagic || field_ == Field::kNonce ? 4 : 8;
        const size_t taken = std::min(wanted - scratch_bytes_, bytes.size());
        std::memcpy(scratch_ + scratch_bytes_, bytes.data(), taken);
        bytes.remove_prefix(taken);
        scratch_bytes_ += taken;
        if (scratch_bytes_ == wanted) status = TakeNumber();
        break;
      }
    }
    if (!status.ok()) return status;
    if (is_done_) {
      is_done_ = false;
      field_ = Field::kOp;
      held_bytes_ = 0;
      return std::exchange(request_, {});
    }
  }
  const bool is_between_fields = field_ != Field::kOp && scratch_bytes_ == 0 && body_.empty();
  if (is_between_fields && !is_ambiguous_ &&
      request_bytes_ + sizeof(scratch_) < kTorch21SendBytes) {
    sends_field_by_field_ = true;
  }
  return std::nullopt;
}

absl::Status TcpStoreParser::TakeOp(uint8_t op) {
  request_ = {};
  request_bytes_ = 0;
  held_bytes_ = 0;
  scratch_bytes_ = 0;
  keys_left_ = 0;
  if (std::exchange(is_first_, false) && op == 0) {
    field_ = Field::kMagic;
    return absl::OkStatus();
  }
  if (dialect_ == TcpStoreDialect::kTorch22) {
    if (op >= std::size(kTorch22Ops)) return UnknownOp(op);
    request_.op = kTorch22Ops[op];
  } else if (op < std::size(kFirstOps)) {
    request_.op = kFirstOps[op];
  } else if (op == kTorch1DeleteKey && dialect_ == TcpStoreDialect::kTorch1) {
    request_.op = TcpStoreOp::kDeleteKey;
  } else if (op - kFirstTorch21Op < static_cast<int>(std::size(kTorch21Ops))) {
    // No Python client of 1.13 to 2.0 sends their 7, WATCH_KEY.
    request_.op = kTorch21Ops[op - kFirstTorch21Op];
    if (dialect_ == TcpStoreDialect::kTorch1) return UnknownOp(op);
    if (op != kTorch1DeleteKey) dialect_ = TcpStoreDialect::kTorch21;
  } else {
    return UnknownOp(op);
  }
  values_left_ = ValuesPerKey(request_.op);
  switch (request_.op) {
    case TcpStoreOp::kGetNumKeys:
    case TcpStoreOp::kCancelWait:
    case TcpStoreOp::kListKeys:
      is_done_ = true;
      break;
    case TcpStoreOp::kValidate:
      field_ = Field::kMagic;
      break;
    case TcpStoreOp::kPing:
      field_ = Field::kNonce;
      break;
    default:
      field_ = HasKeys(request_.op) ? Field::kCount : Field::kKeyLength;
  }
  return absl::OkStatus();
}

absl::Status TcpStoreParser::TakeLength(size_t limit, absl::string_view what) {
  const uint64_t length = Load<uint64_t>(scratch_);
  scratch_bytes_ = 0;
  if (length > limit) {
    return absl::InvalidArgumentError(absl::StrCat(TcpStoreOpName(request_.op), " has a ", what,
                                                   " of ", length, " bytes, over the limit of ",
                                                   limit));
  }
  request_bytes_ += length;
  if (request_bytes_ > limits_.max_request_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(TcpStoreOpName(request_.op), " has more than ",
                                                   limits_.max_request_bytes,
                                                   " bytes, the limit of a request"));
  }
  body_.clear();
  body_left_ = length;
  return absl::OkStatus();
}

absl::Status TcpStoreParser::TakeNumber() {
  switch (field_) {
    case Field::kMagic: {
      const uint32_t magic = Load<uint32_t>(scratch_);
      if (magic == kMagic) {
        dialect_ = TcpStoreDialect::kTorch22;
        request_.op = TcpStoreOp::kValidate;
        is_done_ = true;
        return absl::OkStatus();
      }
      if (dialect_ == TcpStoreDialect::kTorch22)
        return absl::InvalidArgumentError("wrong magic number");
      // Otherwise op 0 is a SET, and these are the low four bytes of its key's length.
      if (magic > limits_.max_key_bytes) return absl::InvalidArgumentError("wrong magic number");
      request_.op = TcpStoreOp::kSet;
      values_left_ = ValuesPerKey(request_.op);
      field_ = Field::kKeyLength;
      return absl::OkStatus();
    }
    case Field::kKeyLength: {
      absl::Status status = TakeLength(limits_.max_key_bytes, "key");
      field_ = Field::kKey;
      if (status.ok() && body_left_ == 0) Advance();
      return status;
    }
    case Field::kValueLength: {
      absl::Status status = TakeLength(limits_.max_value_bytes, "value");
      field_ = Field::kValue;
      if (status.ok() && body_left_ == 0) Advance();
      return status;
    }
    case Field::kCount: {
      const uint64_t count = Load<uint64_t>(scratch_);
      scratch_bytes_ = 0;
      if (count > limits_.max_keys) {
        return absl::InvalidArgumentError(absl::StrCat(TcpStoreOpName(request_.op), " has ", count,
                                                       " keys, over the limit of ",
                                                       limits_.max_keys));
      }
      keys_left_ = count;
      field_ = Field::kKeyLength;
      is_done_ = count == 0;
      return absl::OkStatus();
    }
    case Field::kNumber:
      request_.number = Load<int64_t>(scratch_);
      is_done_ = true;
      return absl::OkStatus();
    case Field::kNonce:
      request_.number = Load<uint32_t>(scratch_);
      is_done_ = true;
      return absl::OkStatus();
    default:
      return absl::InternalError("not a fixed-size field");
  }
}

void TcpStoreParser::Advance() {
  if (field_ == Field::kKey) {
    if (HasKeys(request_.op)) {
      held_bytes_ += body_.capacity() + sizeof(std::string);
      request_.keys.push_back(std::exchange(body_, {}));
    } else {
      held_bytes_ += body_.capacity();
      request_.key = std::exchange(body_, {});
    }
  } else {
    held_bytes_ += body_.capacity() + sizeof(std::string);
    request_.values.push_back(std::exchange(body_, {}));
    --values_left_;
  }
  if (values_left_ > 0) {
    is_ambiguous_ = field_ == Field::kKey && request_.op == TcpStoreOp::kAppend &&
                    dialect_ == TcpStoreDialect::kUnknown;
    field_ = Field::kValueLength;
    return;
  }
  if (keys_left_ > 1) {
    --keys_left_;
    values_left_ = ValuesPerKey(request_.op);
    field_ = Field::kKeyLength;
    return;
  }
  if (request_.op == TcpStoreOp::kAdd || request_.op == TcpStoreOp::kBarrier) {
    field_ = Field::kNumber;
    return;
  }
  is_done_ = true;
}

char TcpStoreParser::NumberOf(TcpStoreOp op) const {
  const auto index_in = [op](const auto& ops) {
    return static_cast<size_t>(std::find(std::begin(ops), std::end(ops), op) - std::begin(ops));
  };
  // Before the dialect is known, this is a first operation 0.
  if (op == TcpStoreOp::kValidate) return 0;
  if (dialect_ == TcpStoreDialect::kTorch22) return static_cast<char>(index_in(kTorch22Ops));
  const size_t first = index_in(kFirstOps);
  if (first < std::size(kFirstOps)) return static_cast<char>(first);
  const bool is_torch1_delete =
      op == TcpStoreOp::kDeleteKey && dialect_ == TcpStoreDialect::kTorch1;
  if (is_torch1_delete) return kTorch1DeleteKey;
  return static_cast<char>(kFirstTorch21Op + index_in(kTorch21Ops));
}

std::string TcpStoreParser::IncompleteRequest() const {
  if (field_ == Field::kOp) return "";
  std::string bytes(1, NumberOf(request_.op));
  const auto add_length = [&bytes](uint64_t length) {
    bytes.append(reinterpret_cast<const char*>(&length), sizeof(length));
  };
  const auto add = [&](const std::string& field) {
    add_length(field.size());
    bytes += field;
  };
  const bool is_in_key = field_ == Field::kKeyLength || field_ == Field::kKey;
  if (HasKeys(request_.op)) {
    if (field_ != Field::kCount) {
      const bool has_values = ValuesPerKey(request_.op) > 0;
      add_length(keys_left_ + (has_values ? request_.values.size() : request_.keys.size()));
    }
    for (size_t i = 0; i < request_.keys.size(); ++i) {
      add(request_.keys[i]);
      if (i < request_.values.size()) add(request_.values[i]);
    }
  } else if (field_ != Field::kMagic && field_ != Field::kNonce && !is_in_key) {
    add(request_.key);
    for (const std::string& value : request_.values) add(value);
  }
  if (field_ == Field::kKey || field_ == Field::kValue) {
    add_length(body_.size() + body_left_);
    bytes += body_;
  } else {
    bytes.append(scratch_, scratch_bytes_);
  }
  return bytes;
}

TcpStoreParserState TcpStoreParser::Export() const {
  const bool may_be_greeting = field_ == Field::kMagic && dialect_ == TcpStoreDialect::kUnknown;
  return {.dialect = dialect_,
          .is_first = is_first_ || may_be_greeting,
          .sends_field_by_field = sends_field_by_field_,
          .incomplete = IncompleteRequest()};
}

absl::Status TcpStoreParser::Restore(const TcpStoreParserState& state) {
  dialect_ = state.dialect;
  is_first_ = state.is_first;
  absl::string_view bytes = state.incomplete;
  const absl::StatusOr<std::optional<TcpStoreRequest>> request = Next(bytes);
  if (!request.ok()) return request.status();
  if (request->has_value()) {
    return absl::InvalidArgumentError("the incomplete request of a client is a complete one");
  }
  sends_field_by_field_ = state.sends_field_by_field;
  return absl::OkStatus();
}

TcpStoreRequest TcpStoreParser::ResolveAmbiguity() {
  is_ambiguous_ = false;
  dialect_ = TcpStoreDialect::kTorch1;
  field_ = Field::kOp;
  held_bytes_ = 0;
  request_.op = TcpStoreOp::kDeleteKey;
  return std::exchange(request_, {});
}

}  // namespace ferry::coord
