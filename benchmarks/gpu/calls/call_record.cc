// SPDX-License-Identifier: Apache-2.0
// Reading a record: every field is checked, since records are copied, cut and edited.
#include "benchmarks/gpu/calls/call_record.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "base/status_macros.h"
#include "benchmarks/gpu/calls/call_writer.h"

namespace ferry::calls {
namespace {

constexpr size_t kMaxLine = size_t{256} << 10;
constexpr size_t kMaxItems = 4096;
constexpr int64_t kMaxTextOutput = int64_t{64} << 10;
// The limit of an excerpt in an error.
constexpr size_t kMaxShown = 60;

std::string Shown(absl::string_view text) {
  return absl::StrCat("'", absl::CHexEscape(text.substr(0, kMaxShown)),
                      text.size() > kMaxShown ? "...'" : "'");
}

absl::Status Wrong(absl::string_view text, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(Shown(text), " is not ", expected));
}

absl::StatusOr<int64_t> Number(absl::string_view text) {
  int64_t number = 0;
  if (!absl::SimpleAtoi(text, &number)) return Wrong(text, "a number");
  return number;
}

absl::StatusOr<uint64_t> Hex(absl::string_view text) {
  uint64_t number = 0;
  if (!absl::StartsWith(text, "0x") || !absl::SimpleHexAtoi(text, &number)) {
    return Wrong(text, "a hexadecimal number");
  }
  return number;
}

absl::StatusOr<std::string> Bytes(absl::string_view text, size_t count) {
  const absl::string_view whole = text;
  const bool is_hex =
      absl::ConsumePrefix(&text, "bytes:") && text.size() % 2 == 0 &&
      std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isxdigit(c); });
  if (!is_hex || (count != 0 && text.size() != 2 * count)) {
    return Wrong(whole, count == 0 ? std::string("bytes:HEX")
                                   : absl::StrCat("bytes: with ", 2 * count, " digits"));
  }
  return absl::HexStringToBytes(text);
}

absl::StatusOr<std::string> Quoted(absl::string_view text) {
  const absl::string_view whole = text;
  std::string value;
  if (!absl::ConsumePrefix(&text, "\"") || !absl::ConsumeSuffix(&text, "\"")) {
    return Wrong(whole, "a text in quotes");
  }
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      value += text[i];
      continue;
    }
    const absl::string_view escape = text.substr(i, 4);
    if (escape.size() < 4 || escape[1] != 'x' || !absl::ascii_isxdigit(escape[2]) ||
        !absl::ascii_isxdigit(escape[3])) {
      return Wrong(whole, "a text with escapes \\xHH");
    }
    value += absl::HexStringToBytes(escape.substr(2));
    i += 3;
  }
  return value;
}

// The items between the brackets, split at commas that are in no inner brackets.
absl::StatusOr<std::vector<absl::string_view>> Items(absl::string_view text, absl::string_view open,
                                                     absl::string_view close) {
  const absl::string_view whole = text;
  if (!absl::ConsumePrefix(&text, open) || !absl::ConsumeSuffix(&text, close)) {
    return Wrong(whole, absl::StrCat("in ", open, close));
  }
  std::vector<absl::string_view> items;
  if (text.empty()) return items;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (text[i] == ',' && depth == 0)) {
      items.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    } else if (text[i] == '{') {
      ++depth;
    } else if (text[i] == '}') {
      --depth;
    }
  }
  if (items.size() > kMaxItems) {
    return absl::InvalidArgumentError(
        absl::StrCat("a list has ", items.size(), " items, more than ", kMaxItems));
  }
  return items;
}

absl::StatusOr<Value> ParseValue(Kind kind, absl::string_view text);

absl::StatusOr<Value> ParseStruct(absl::string_view text,
                                  std::initializer_list<absl::string_view> names) {
  Value value{.text = std::string(text)};
  FERRY_ASSIGN_OR_RETURN(const std::vector<absl::string_view> fields, Items(text, "{", "}"));
  if (fields.size() != names.size()) {
    return Wrong(text, absl::StrCat("a struct of ", names.size(), " fields"));
  }
  for (size_t i = 0; i < fields.size(); ++i) {
    absl::string_view field = fields[i];
    const absl::string_view name = names.begin()[i];
    if (!absl::ConsumePrefix(&field, name) || !absl::ConsumePrefix(&field, ":")) {
      return Wrong(fields[i], absl::StrCat("the field ", name));
    }
    FERRY_ASSIGN_OR_RETURN(Value parsed, ParseValue(Kind::kSize, field));
    value.items.push_back(std::move(parsed));
  }
  return value;
}

// Each item is of one of the kinds, or absent.
absl::StatusOr<Value> ParseList(absl::string_view text, std::initializer_list<Kind> kinds) {
  Value value{.text = std::string(text)};
  FERRY_ASSIGN_OR_RETURN(const std::vector<absl::string_view> items, Items(text, "[", "]"));
  for (const absl::string_view item : items) {
    absl::StatusOr<Value> parsed = Wrong(item, "an item of this list");
    for (const Kind kind : kinds) {
      if (!parsed.ok()) parsed = ParseValue(kind, item);
    }
    FERRY_RETURN_IF_ERROR(parsed.status());
    value.items.push_back(*std::move(parsed));
  }
  return value;
}

absl::StatusOr<Value> ParseAccess(absl::string_view text) {
  Value value{.text = std::string(text)};
  FERRY_ASSIGN_OR_RETURN(const std::vector<absl::string_view> items, Items(text, "[", "]"));
  for (const absl::string_view item : items) {
    FERRY_ASSIGN_OR_RETURN(Value parsed,
                           ParseStruct(item, {"location_type", "location_id", "flags"}));
    value.items.push_back(std::move(parsed));
  }
  return value;
}

absl::StatusOr<Value> ParseShareable(absl::string_view text) {
  Value value{.text = std::string(text)};
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "fd:")) {
    const std::vector<absl::string_view> parts = absl::StrSplit(rest, absl::MaxSplits('/', 1));
    if (parts.size() != 2) return Wrong(text, "fd:NUMBER/DEVICE/INODE");
    FERRY_ASSIGN_OR_RETURN(value.number, Number(parts[0]));
    value.file = std::string(parts[1]);
  } else {
    FERRY_ASSIGN_OR_RETURN(value.bytes, Bytes(text, cuda::kIpcHandleBytes));
  }
  return value;
}

absl::StatusOr<Value> ParseValue(Kind kind, absl::string_view text) {
  Value value{.text = std::string(text)};
  if (text == "-") {
    value.is_absent = true;
    return value;
  }
  switch (kind) {
    case Kind::kInt: {
      FERRY_ASSIGN_OR_RETURN(value.number, Number(text));
      // Flags are unsigned.
      if (value.number < std::numeric_limits<int32_t>::min() ||
          value.number > std::numeric_limits<uint32_t>::max()) {
        return Wrong(text, "a number of 32 bits");
      }
      return value;
    }
    case Kind::kSize: {
      FERRY_ASSIGN_OR_RETURN(value.number, Number(text));
      return value;
    }
    case Kind::kFloat: {
      float number = 0;
      if (!absl::SimpleAtof(text, &number)) return Wrong(text, "a number");
      return value;
    }
    case Kind::kContext:
    case Kind::kStream:
    case Kind::kEvent:
    case Kind::kModule:
    case Kind::kFunction:
    case Kind::kPool:
    case Kind::kAllocation:
    case Kind::kMemory:
    case Kind::kHost: {
      absl::string_view digits = text;
      if (!absl::ConsumePrefix(&digits, absl::StrCat(PrefixOf(kind), ":"))) {
        return Wrong(text, absl::StrCat(PrefixOf(kind), ":0x..."));
      }
      FERRY_ASSIGN_OR_RETURN(const uint64_t number, Hex(digits));
      value.number = static_cast<int64_t>(number);
      return value;
    }
    case Kind::kText:
    case Kind::kTextPointer:
    case Kind::kImage: {
      FERRY_ASSIGN_OR_RETURN(value.bytes, Quoted(text));
      return value;
    }
    case Kind::kAllocationProperties:
      return ParseStruct(text, {"type", "handle_types", "location_type", "location_id",
                                "compression", "rdma", "usage"});
    case Kind::kPoolProperties:
      return ParseStruct(
          text, {"type", "handle_types", "location_type", "location_id", "max_bytes", "usage"});
    case Kind::kAccess:
      return ParseAccess(text);
    case Kind::kAttributes:
      return ParseList(text, {Kind::kInt});
    case Kind::kValues:
      return ParseList(text, {Kind::kSize, Kind::kContext, Kind::kPool});
    case Kind::kPoolValue:
      return ParseValue(Kind::kSize, text);
    case Kind::kBlob: {
      FERRY_ASSIGN_OR_RETURN(value.bytes, Bytes(text, cuda::kIpcHandleBytes));
      return value;
    }
    case Kind::kUuid: {
      FERRY_ASSIGN_OR_RETURN(value.bytes, Bytes(text, sizeof(cuda::Uuid)));
      return value;
    }
    case Kind::kShareable:
      return ParseShareable(text);
    case Kind::kKernelParameters: {
      FERRY_ASSIGN_OR_RETURN(const std::vector<absl::string_view> items, Items(text, "[", "]"));
      for (const absl::string_view item : items) {
        Value parameter{.text = std::string(item)};
        FERRY_ASSIGN_OR_RETURN(parameter.bytes, Bytes(item, 0));
        value.items.push_back(std::move(parameter));
      }
      return value;
    }
    case Kind::kNone:
    case Kind::kIgnored:
      return Wrong(text, "-");
  }
  return Wrong(text, "of a known kind");
}

// The length that the call was given is that of the list, and there is room for its text.
absl::Status CheckLengths(const RecordedCall& call) {
  for (size_t i = 0; i < call.values.size(); ++i) {
    const Argument& argument = call.description->arguments[i];
    if (argument.kind != Kind::kText || !argument.is_output) continue;
    const Value* const bytes = call.Find("bytes");
    if (bytes->number < 0 || bytes->number > kMaxTextOutput) {
      return absl::InvalidArgumentError(absl::StrCat(call.description->symbol,
                                                     ": bytes=", bytes->text, ", more than ",
                                                     kMaxTextOutput, " or less than 0"));
    }
  }
  const Value* const count = call.Find("count");
  for (size_t i = 0; i < call.values.size(); ++i) {
    const Kind kind = call.description->arguments[i].kind;
    const Value& list = call.values[i];
    if ((kind != Kind::kAttributes && kind != Kind::kValues && kind != Kind::kAccess) ||
        list.is_absent) {
      continue;
    }
    if (count == nullptr || count->number != static_cast<int64_t>(list.items.size())) {
      return absl::InvalidArgumentError(absl::StrCat(
          call.description->symbol, ": count=", count == nullptr ? "" : count->text, ", but ",
          call.description->arguments[i].name, " has ", list.items.size(), " items"));
    }
  }
  return absl::OkStatus();
}

class FieldReader final {
 public:
  explicit FieldReader(absl::string_view line) : fields_(absl::StrSplit(line, ' ')) {}

  absl::StatusOr<absl::string_view> Next(absl::string_view what) {
    if (next_ == fields_.size()) {
      return absl::InvalidArgumentError(absl::StrCat("the line ends where ", what, " should be"));
    }
    return fields_[next_++];
  }
  absl::StatusOr<int64_t> NextNumber(absl::string_view what) {
    FERRY_ASSIGN_OR_RETURN(const absl::string_view field, Next(what));
    absl::StatusOr<int64_t> number = Number(field);
    if (!number.ok()) return Wrong(field, what);
    return number;
  }
  absl::StatusOr<Value> NextArgument(const DriverCall& call, const Argument& argument) {
    const std::string what = absl::StrCat("the argument ", argument.name, " of ", call.symbol);
    FERRY_ASSIGN_OR_RETURN(absl::string_view field, Next(what));
    const absl::string_view whole = field;
    if (!absl::ConsumePrefix(&field, argument.name) || !absl::ConsumePrefix(&field, "=")) {
      return Wrong(whole, what);
    }
    absl::StatusOr<Value> value = ParseValue(argument.kind, field);
    if (!value.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(call.symbol, ", ", argument.name, ": ", value.status().message()));
    }
    return value;
  }
  bool IsAtEnd() const { return next_ == fields_.size(); }
  absl::string_view Rest() const { return fields_[next_]; }

 private:
  std::vector<absl::string_view> fields_;
  size_t next_ = 0;
};

// Adds a line after the first two to the record.
absl::Status AddLine(absl::string_view line, int number, CallRecord& record) {
  if (line.size() > kMaxLine) return Wrong(line, "a line of at most 256 KiB");
  FieldReader fields(line);
  if (absl::ConsumePrefix(&line, "again ")) {
    fields = FieldReader(line);
    FERRY_RETURN_IF_ERROR(fields.NextNumber("a thread").status());
    return fields.NextNumber("how often a poll was repeated").status();
  }
  if (absl::ConsumePrefix(&line, "end ")) {
    FERRY_ASSIGN_OR_RETURN(record.ended_ns, FieldReader(line).NextNumber("the time of the end"));
    return absl::OkStatus();
  }
  if (absl::ConsumePrefix(&line, "gone ")) {
    fields = FieldReader(line);
    FERRY_ASSIGN_OR_RETURN(const int64_t seen_ns, fields.NextNumber("a time"));
    FERRY_ASSIGN_OR_RETURN(const absl::string_view name, fields.Next("the name of a record"));
    FERRY_ASSIGN_OR_RETURN(std::string record_name, Quoted(name));
    record.gone.emplace_back(seen_ns, std::move(record_name));
    return absl::OkStatus();
  }
  if (absl::StartsWith(line, "limit ")) {
    record.is_limited = true;
    return absl::OkStatus();
  }
  FERRY_ASSIGN_OR_RETURN(RecordedCall call, ParseCall(line));
  call.line = number;
  record.calls.push_back(std::move(call));
  return absl::OkStatus();
}

absl::Status ReadHeader(absl::string_view version, absl::string_view process, CallRecord& record) {
  if (!absl::ConsumePrefix(&version, kRecordMagic)) {
    return absl::InvalidArgumentError(absl::StrCat(
        record.name, ":1: the first line is not '", kRecordMagic,
        "VERSION': this is no record, or one of an older recorder, which cannot be replayed"));
  }
  if (version != absl::StrCat(kRecordVersion)) {
    return absl::InvalidArgumentError(absl::StrCat(
        record.name, ":1: version ", Shown(version), " of the format; this program reads ",
        kRecordVersion, ": use the cuda_replay of the tree that recorded it"));
  }
  const std::vector<absl::string_view> fields = absl::StrSplit(process, ' ');
  absl::StatusOr<std::string> program =
      fields.size() == 4 ? Quoted(fields[3]) : Wrong(process, "process PID PARENT \"PROGRAM\"");
  if (!program.ok() || fields[0] != "process" || !absl::SimpleAtoi(fields[1], &record.pid)) {
    return absl::InvalidArgumentError(absl::StrCat(record.name, ":2: ", Shown(process),
                                                   " is not: process PID PARENT \"PROGRAM\""));
  }
  record.program = *std::move(program);
  return absl::OkStatus();
}

}  // namespace

const Value* RecordedCall::Find(absl::string_view name) const {
  const int at = FindArgument(*description, {name.data(), name.size()});
  return at < 0 ? nullptr : &values[static_cast<size_t>(at)];
}

absl::StatusOr<RecordedCall> ParseCall(absl::string_view line) {
  FieldReader fields(line);
  RecordedCall call;
  FERRY_ASSIGN_OR_RETURN(call.began_ns, fields.NextNumber("a time"));
  FERRY_ASSIGN_OR_RETURN(call.thread, fields.NextNumber("a thread"));
  FERRY_ASSIGN_OR_RETURN(const absl::string_view symbol, fields.Next("a function"));
  const int found = FindDriverCall({symbol.data(), symbol.size()});
  if (found < 0) return Wrong(symbol, "a driver function that is known here");
  call.description = &kDriverCalls[found];
  call.values.resize(call.description->count);
  for (size_t i = 0; i < call.values.size(); ++i) {
    const Argument& argument = call.description->arguments[i];
    call.values[i].is_absent = true;
    if (argument.is_output) continue;
    FERRY_ASSIGN_OR_RETURN(call.values[i], fields.NextArgument(*call.description, argument));
  }
  FERRY_ASSIGN_OR_RETURN(const absl::string_view equals, fields.Next("the result"));
  if (equals != "=") return Wrong(equals, "the '=' before the result");
  FERRY_ASSIGN_OR_RETURN(const int64_t result, fields.NextNumber("the result"));
  if (result < 0 || result > 9999) return Wrong(absl::StrCat(result), "a CUresult");
  call.result = static_cast<cuda::Result>(result);
  FERRY_ASSIGN_OR_RETURN(const int64_t duration, fields.NextNumber("a duration"));
  constexpr int64_t kMaxTime = int64_t{1} << 61;
  if (call.began_ns < 0 || duration < 0 || call.began_ns > kMaxTime || duration > kMaxTime) {
    return Wrong(absl::StrCat(call.began_ns, " ", duration), "a time and a duration");
  }
  call.ended_ns = call.began_ns + duration;
  for (size_t i = 0; i < call.values.size() && call.result == cuda::kSuccess; ++i) {
    const Argument& argument = call.description->arguments[i];
    if (!argument.is_output) continue;
    FERRY_ASSIGN_OR_RETURN(call.values[i], fields.NextArgument(*call.description, argument));
  }
  if (!fields.IsAtEnd()) return Wrong(fields.Rest(), "expected: the call has no more arguments");
  FERRY_RETURN_IF_ERROR(CheckLengths(call));
  return call;
}

absl::StatusOr<CallRecord> CallRecord::Parse(absl::string_view name, absl::string_view text) {
  CallRecord record{.name = std::string(name)};
  if (text.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(record.name, ": the record is empty"));
  }
  const bool is_whole = absl::ConsumeSuffix(&text, "\n");
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  FERRY_RETURN_IF_ERROR(
      ReadHeader(lines[0], lines.size() > 1 ? lines[1] : absl::string_view(), record));
  if (!is_whole) {
    return absl::InvalidArgumentError(
        absl::StrCat(record.name, ":", lines.size(),
                     ": the line is cut: it does not end with a line feed (a full disk, or an "
                     "incomplete copy)"));
  }
  for (size_t i = 2; i < lines.size(); ++i) {
    const int number = static_cast<int>(i) + 1;
    if (const absl::Status status = AddLine(lines[i], number, record); !status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(record.name, ":", number, ": ", status.message()));
    }
  }
  // A line is written when its call returns.
  std::stable_sort(
      record.calls.begin(), record.calls.end(),
      [](const RecordedCall& a, const RecordedCall& b) { return a.began_ns < b.began_ns; });
  return record;
}

}  // namespace ferry::calls
