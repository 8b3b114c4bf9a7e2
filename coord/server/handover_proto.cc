// SPDX-License-Identifier: Apache-2.0
// The records of a hand-over.
#include "coord/server/handover_proto.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "proto/ferry_handover.pb.h"

namespace ferry::coord {
namespace {

// Copied replies and the keys of a reply in progress are divided into records of about this size.
constexpr size_t kBytesInRecord = size_t{16} << 20;

constexpr TcpStoreDialect kDialects[] = {TcpStoreDialect::kUnknown, TcpStoreDialect::kTorch1,
                                         TcpStoreDialect::kTorch21, TcpStoreDialect::kTorch22};
constexpr TcpStoreLongReply kLongReplies[] = {
    TcpStoreLongReply::kNone, TcpStoreLongReply::kMultiGet, TcpStoreLongReply::kListKeys};

template <typename T, size_t kCount>
uint32_t NumberIn(const T (&all)[kCount], T value) {
  return static_cast<uint32_t>(std::find(all, all + kCount, value) - all);
}

template <typename T, size_t kCount>
std::optional<T> AtNumber(const T (&all)[kCount], uint32_t number) {
  return number < kCount ? std::optional<T>(all[number]) : std::nullopt;
}

int64_t ToNanos(absl::Time time) { return absl::ToUnixNanos(time); }

class Encoder {
 public:
  explicit Encoder(absl::FunctionRef<absl::Status(absl::string_view)> write) : write_(write) {}

  absl::Status Encode(const HandoverState& state);

 private:
  absl::Status EncodeScope(const TcpStoreScopeState& scope);
  absl::Status EncodeConnection(const TcpStoreConnectionState& connection);
  void SetValue(const StoreValue& value, handover::v1::Value& out);
  absl::Status Write(const handover::v1::Record& record);

  const absl::FunctionRef<absl::Status(absl::string_view)> write_;
  // The values that replies refer to, and the numbers of those that have been written.
  absl::flat_hash_set<const std::string*> shared_;
  absl::flat_hash_map<const std::string*, uint64_t> written_;
  uint64_t records_ = 0;
};

absl::Status Encoder::Write(const handover::v1::Record& record) {
  std::string bytes(sizeof(uint32_t), '\0');
  if (record.ByteSizeLong() > std::numeric_limits<int32_t>::max() ||
      !record.AppendToString(&bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a record of ", record.ByteSizeLong(), " bytes is too large"));
  }
  const uint32_t length = static_cast<uint32_t>(bytes.size() - sizeof(uint32_t));
  std::memcpy(bytes.data(), &length, sizeof(length));
  ++records_;
  return write_(bytes);
}

void Encoder::SetValue(const StoreValue& value, handover::v1::Value& out) {
  if (shared_.contains(value.get())) {
    const auto [at, is_new] = written_.try_emplace(value.get(), written_.size() + 1);
    out.set_id(at->second);
    if (!is_new) return;
  }
  out.set_content(*value);
}

absl::Status Encoder::Encode(const HandoverState& state) {
  for (const TcpStoreScopeState& scope : state.scopes) {
    for (const TcpStoreConnectionState& connection : scope.connections) {
      for (const TcpStoreOutputState::Piece& piece : connection.session.output.pieces) {
        if (piece.shared != nullptr) shared_.insert(piece.shared.get());
      }
    }
  }
  handover::v1::Record record;
  handover::v1::Begin& begin = *record.mutable_begin();
  begin.set_format_version(kHandoverFormat);
  begin.set_address(state.address);
  begin.mutable_listeners()->Add(state.listeners.begin(), state.listeners.end());
  begin.mutable_silent()->Add(state.silent.begin(), state.silent.end());
  FERRY_RETURN_IF_ERROR(Write(record));
  for (const TcpStoreScopeState& scope : state.scopes) FERRY_RETURN_IF_ERROR(EncodeScope(scope));
  const uint64_t records = records_;
  record.mutable_end()->set_records(records);
  return Write(record);
}

absl::Status Encoder::EncodeScope(const TcpStoreScopeState& scope) {
  handover::v1::Record record;
  handover::v1::Scope& head = *record.mutable_scope();
  head.set_name(scope.name);
  head.set_since_ns(ToNanos(scope.since));
  head.set_is_idle(scope.store.is_idle);
  FERRY_RETURN_IF_ERROR(Write(record));
  for (const auto& [key, value] : scope.store.entries) {
    handover::v1::Entry& entry = *record.mutable_entry();
    entry.Clear();
    entry.set_key(key);
    SetValue(value, *entry.mutable_value());
    FERRY_RETURN_IF_ERROR(Write(record));
  }
  for (const TcpStoreState::Queue& queue : scope.store.queues) {
    for (const StoreValue& value : queue.elements) {
      handover::v1::Element& element = *record.mutable_element();
      element.Clear();
      element.set_queue(queue.name);
      SetValue(value, *element.mutable_value());
      FERRY_RETURN_IF_ERROR(Write(record));
    }
  }
  for (const TcpStoreConnectionState& connection : scope.connections) {
    FERRY_RETURN_IF_ERROR(EncodeConnection(connection));
  }
  for (const TcpStoreState::Reservation& each : scope.store.reservations) {
    handover::v1::Reservation& reservation = *record.mutable_reservation();
    reservation.Clear();
    reservation.set_client(each.client.value());
    reservation.set_queue(each.queue);
    reservation.set_until_ns(ToNanos(each.until));
    FERRY_RETURN_IF_ERROR(Write(record));
  }
  for (const TcpStoreWaitInfo& each : scope.store.waits) {
    handover::v1::Wait& wait = *record.mutable_wait();
    wait.Clear();
    wait.set_client(each.client.value());
    for (const std::string& key : each.keys) wait.add_keys(key);
    wait.set_is_barrier(each.is_barrier);
    wait.set_may_reserve(each.may_reserve);
    wait.set_world_size(each.world_size);
    wait.set_since_ns(ToNanos(each.since));
    FERRY_RETURN_IF_ERROR(Write(record));
  }
  return absl::OkStatus();
}

absl::Status Encoder::EncodeConnection(const TcpStoreConnectionState& connection) {
  const TcpStoreSessionState& session = connection.session;
  handover::v1::Record record;
  handover::v1::Session& head = *record.mutable_session();
  head.set_socket(connection.socket);
  head.set_client(session.client.value());
  head.set_dialect(NumberIn(kDialects, session.parser.dialect));
  head.set_is_first(session.parser.is_first);
  head.set_sends_field_by_field(session.parser.sends_field_by_field);
  head.set_incomplete_request(session.parser.incomplete);
  head.set_unread(connection.unread);
  head.set_request_count(session.request_count);
  head.set_written(session.output.written);
  head.set_long_reply(NumberIn(kLongReplies, session.long_reply));
  FERRY_RETURN_IF_ERROR(Write(record));
  for (const TcpStoreOutputState::Piece& piece : session.output.pieces) {
    if (piece.shared != nullptr) {
      record.mutable_reply()->Clear();
      SetValue(piece.shared, *record.mutable_reply()->mutable_shared());
      FERRY_RETURN_IF_ERROR(Write(record));
      continue;
    }
    for (absl::string_view rest = piece.copied; !rest.empty();) {
      const absl::string_view part = rest.substr(0, kBytesInRecord);
      record.mutable_reply()->set_copied(part.data(), part.size());
      FERRY_RETURN_IF_ERROR(Write(record));
      rest.remove_prefix(part.size());
    }
  }
  for (size_t next = 0; next < session.long_reply_keys.size();) {
    handover::v1::LongReplyKeys& keys = *record.mutable_long_reply_keys();
    keys.Clear();
    for (size_t bytes = 0; next < session.long_reply_keys.size() && bytes < kBytesInRecord;) {
      bytes += session.long_reply_keys[next].size() + 1;
      keys.add_keys(session.long_reply_keys[next++]);
    }
    FERRY_RETURN_IF_ERROR(Write(record));
  }
  return absl::OkStatus();
}

class Decoder {
 public:
  absl::StatusOr<HandoverState> Decode(absl::string_view bytes);

 private:
  absl::Status Take(handover::v1::Record& record);
  absl::Status TakeBegin(const handover::v1::Begin& begin);
  absl::Status TakeSession(handover::v1::Session& session);
  absl::Status TakeInScope(handover::v1::Record& record);
  absl::Status TakeInSession(handover::v1::Record& record);
  absl::StatusOr<StoreValue> TakeValue(handover::v1::Value& value);

  HandoverState state_;
  bool has_begun_ = false;
  bool is_over_ = false;
  // The last scope has a session.
  bool has_session_ = false;
  uint64_t records_ = 0;
  absl::flat_hash_map<uint64_t, StoreValue> values_;
};

absl::Status Malformed(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the state of the predecessor is malformed: ", what));
}

absl::StatusOr<HandoverState> Decoder::Decode(absl::string_view bytes) {
  while (!bytes.empty()) {
    uint32_t length = 0;
    if (bytes.size() < sizeof(length)) return Malformed("it ends within a length");
    std::memcpy(&length, bytes.data(), sizeof(length));
    bytes.remove_prefix(sizeof(length));
    if (length > bytes.size()) return Malformed("it ends within a record");
    if (length > std::numeric_limits<int32_t>::max()) return Malformed("a record is too large");
    handover::v1::Record record;
    if (is_over_ || !record.ParseFromArray(bytes.data(), static_cast<int>(length))) {
      return Malformed(absl::StrCat("record ", records_, " cannot be parsed"));
    }
    bytes.remove_prefix(length);
    FERRY_RETURN_IF_ERROR(Take(record));
    ++records_;
  }
  if (!is_over_) return Malformed("it has no end");
  return std::move(state_);
}

absl::Status Decoder::Take(handover::v1::Record& record) {
  if (!has_begun_) {
    if (!record.has_begin()) return Malformed("it has no beginning");
    return TakeBegin(record.begin());
  }
  switch (record.record_case()) {
    case handover::v1::Record::kScope: {
      TcpStoreScopeState& scope = state_.scopes.emplace_back();
      scope.name = std::move(*record.mutable_scope()->mutable_name());
      scope.since = absl::FromUnixNanos(record.scope().since_ns());
      scope.store.is_idle = record.scope().is_idle();
      has_session_ = false;
      return absl::OkStatus();
    }
    case handover::v1::Record::kEnd:
      if (record.end().records() != records_) return Malformed("records are missing");
      is_over_ = true;
      return absl::OkStatus();
    case handover::v1::Record::kReply:
    case handover::v1::Record::kLongReplyKeys:
      return has_session_ ? TakeInSession(record) : Malformed("a reply has no connection");
    case handover::v1::Record::kEntry:
    case handover::v1::Record::kElement:
    case handover::v1::Record::kSession:
    case handover::v1::Record::kReservation:
    case handover::v1::Record::kWait:
      return state_.scopes.empty() ? Malformed("a record has no scope") : TakeInScope(record);
    default:
      return Malformed(absl::StrCat("record ", records_, " is of an unknown kind"));
  }
}

absl::Status Decoder::TakeBegin(const handover::v1::Begin& begin) {
  if (begin.format_version() != kHandoverFormat) {
    return absl::UnimplementedError(absl::StrCat("the state of the predecessor has the format ",
                                                 begin.format_version(),
                                                 ", and this program reads ", kHandoverFormat));
  }
  has_begun_ = true;
  state_.address = begin.address();
  state_.listeners.assign(begin.listeners().begin(), begin.listeners().end());
  state_.silent.assign(begin.silent().begin(), begin.silent().end());
  return absl::OkStatus();
}

absl::StatusOr<StoreValue> Decoder::TakeValue(handover::v1::Value& value) {
  StoreValue taken;
  // Not a const object: see Store::Append.
  if (value.has_content())
    taken = std::make_shared<std::string>(std::move(*value.mutable_content()));
  if (value.id() == 0) {
    if (taken == nullptr) return Malformed("a value is missing");
    return taken;
  }
  StoreValue& known = values_[value.id()];
  if ((known == nullptr) == (taken == nullptr))
    return Malformed("a value is missing, or occurs twice");
  if (taken != nullptr) known = std::move(taken);
  return known;
}

absl::Status Decoder::TakeInScope(handover::v1::Record& record) {
  TcpStoreState& store = state_.scopes.back().store;
  switch (record.record_case()) {
    case handover::v1::Record::kEntry: {
      handover::v1::Entry& entry = *record.mutable_entry();
      FERRY_ASSIGN_OR_RETURN(StoreValue value, TakeValue(*entry.mutable_value()));
      store.entries.emplace_back(std::move(*entry.mutable_key()), std::move(value));
      return absl::OkStatus();
    }
    case handover::v1::Record::kElement: {
      handover::v1::Element& element = *record.mutable_element();
      FERRY_ASSIGN_OR_RETURN(StoreValue value, TakeValue(*element.mutable_value()));
      // Those of a queue follow each other.
      if (store.queues.empty() || store.queues.back().name != element.queue()) {
        store.queues.push_back({element.queue(), {}});
      }
      store.queues.back().elements.push_back(std::move(value));
      return absl::OkStatus();
    }
    case handover::v1::Record::kSession:
      return TakeSession(*record.mutable_session());
    case handover::v1::Record::kReservation: {
      handover::v1::Reservation& reservation = *record.mutable_reservation();
      store.reservations.push_back({TcpStoreClient(reservation.client()),
                                    std::move(*reservation.mutable_queue()),
                                    absl::FromUnixNanos(reservation.until_ns())});
      return absl::OkStatus();
    }
    default:
      break;
  }
  handover::v1::Wait& each = *record.mutable_wait();
  TcpStoreWaitInfo wait{.client = TcpStoreClient(each.client()),
                        .number = store.waits.size() + 1,
                        .key_count = static_cast<size_t>(each.keys_size()),
                        .is_barrier = each.is_barrier(),
                        .may_reserve = each.may_reserve(),
                        .world_size = each.world_size(),
                        .since = absl::FromUnixNanos(each.since_ns())};
  for (std::string& key : *each.mutable_keys()) wait.keys.push_back(std::move(key));
  store.waits.push_back(std::move(wait));
  return absl::OkStatus();
}

absl::Status Decoder::TakeSession(handover::v1::Session& session) {
  const std::optional<TcpStoreDialect> dialect = AtNumber(kDialects, session.dialect());
  const std::optional<TcpStoreLongReply> long_reply = AtNumber(kLongReplies, session.long_reply());
  if (!dialect || !long_reply) return Malformed("a connection is of an unknown kind");
  TcpStoreConnectionState connection;
  connection.socket = session.socket();
  connection.unread = std::move(*session.mutable_unread());
  connection.session.client = TcpStoreClient(session.client());
  connection.session.parser = {.dialect = *dialect,
                               .is_first = session.is_first(),
                               .sends_field_by_field = session.sends_field_by_field(),
                               .incomplete = std::move(*session.mutable_incomplete_request())};
  connection.session.output.written = session.written();
  connection.session.request_count = session.request_count();
  connection.session.long_reply = *long_reply;
  state_.scopes.back().connections.push_back(std::move(connection));
  has_session_ = true;
  return absl::OkStatus();
}

absl::Status Decoder::TakeInSession(handover::v1::Record& record) {
  TcpStoreSessionState& session = state_.scopes.back().connections.back().session;
  if (record.has_long_reply_keys()) {
    for (std::string& key : *record.mutable_long_reply_keys()->mutable_keys()) {
      session.long_reply_keys.push_back(std::move(key));
    }
    return absl::OkStatus();
  }
  handover::v1::Reply& reply = *record.mutable_reply();
  TcpStoreOutputState::Piece piece;
  if (reply.has_shared()) {
    FERRY_ASSIGN_OR_RETURN(piece.shared, TakeValue(*reply.mutable_shared()));
  } else {
    piece.copied = std::move(*reply.mutable_copied());
  }
  session.output.pieces.push_back(std::move(piece));
  return absl::OkStatus();
}

}  // namespace

absl::Status EncodeHandover(const HandoverState& state,
                            absl::FunctionRef<absl::Status(absl::string_view)> write) {
  return Encoder(write).Encode(state);
}

absl::StatusOr<HandoverState> DecodeHandover(absl::string_view bytes) {
  return Decoder().Decode(bytes);
}

}  // namespace ferry::coord
