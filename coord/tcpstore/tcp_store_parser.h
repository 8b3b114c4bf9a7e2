// SPDX-License-Identifier: Apache-2.0
// TcpStoreParser: the requests in the bytes of one PyTorch TCPStore client.
#ifndef FERRY_COORD_TCPSTORE_TCP_STORE_PARSER_H_
#define FERRY_COORD_TCPSTORE_TCP_STORE_PARSER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "coord/tcpstore/tcp_store_request.h"

namespace ferry::coord {

// Not thread-safe. Incremental: a request may arrive in pieces of any size. Memory is allocated
// for bytes that have arrived, never for a length that was only announced.
//
// The format has no version. A connection that begins with kValidate and its magic number is of
// 2.2 or later; otherwise it is of 1.13 to 2.1, which agree in the operations 0 to 6. The first
// operation above that tells the two apart, except for 8: DELETE_KEY of 1.13 to 2.0, or APPEND of
// 2.1, which has a value after the key. Such a request is ambiguous at the end of its key: nothing
// but silence tells that no value follows, so the caller waits and calls ResolveAmbiguity. How long
// is told by how the client sends. 1.13 to 2.0 send each field by itself, so that they arrive one
// after another, while 2.1 sends a request of up to kTorch21SendBytes at once.
class TcpStoreParser final {
 public:
  explicit TcpStoreParser(const TcpStoreLimits& limits) : limits_(limits) {}

  // Consumes `bytes` up to the end of the next request, which it returns, or all of them, and then
  // returns nullopt.
  //   Errors: INVALID_ARGUMENT for an unknown operation, a wrong magic number, or a length over a
  //   limit. The connection is to be closed: nothing after it can be parsed.
  absl::StatusOr<std::optional<TcpStoreRequest>> Next(absl::string_view& bytes);

  // True at the end of a key which another field may follow.
  bool is_ambiguous() const { return is_ambiguous_; }
  // True if bytes have ended, in a call of Next, where only clients of 1.13 to 2.0 end what they
  // send. A network may split the bytes of 2.1 there too, but hardly does.
  bool sends_field_by_field() const { return sends_field_by_field_; }
  // Returns the request that ended with the key. REQUIRES: is_ambiguous().
  TcpStoreRequest ResolveAmbiguity();

  TcpStoreDialect dialect() const { return dialect_; }
  // True between two requests.
  bool is_at_request() const { return field_ == Field::kOp; }
  // The memory of the request that has not ended.
  size_t held_bytes() const { return held_bytes_ + body_.capacity(); }

 private:
  // Clients of 2.1 and later send what they have when it is as long as this.
  static constexpr size_t kTorch21SendBytes = 1440;

  enum class Field {
    kOp,
    // The four bytes after a leading zero: the magic number, or half of the length of a SET's key.
    kMagic,
    kKeyLength,
    kKey,
    kValueLength,
    kValue,
    kCount,
    kNumber,
    kNonce,
  };

  absl::Status TakeOp(uint8_t op);
  // A field of fixed size is complete in scratch_.
  absl::Status TakeNumber();
  absl::Status TakeLength(size_t limit, absl::string_view what);
  // Moves to the field after the key, value, count or number that has ended.
  void Advance();
  absl::Status UnknownOp(uint8_t op) const;

  const TcpStoreLimits& limits_;
  TcpStoreDialect dialect_ = TcpStoreDialect::kUnknown;
  bool is_first_ = true;
  bool is_ambiguous_ = false;
  bool sends_field_by_field_ = false;

  Field field_ = Field::kOp;
  bool is_done_ = false;
  TcpStoreRequest request_;
  // The number of keys that the request announced and that have not ended.
  uint64_t keys_left_ = 0;
  // The number of values after the current key.
  size_t values_left_ = 0;
  // All lengths that were announced, and what its fields take that have ended.
  size_t request_bytes_ = 0;
  size_t held_bytes_ = 0;
  // The bytes of a key or value still to come, and where they go.
  size_t body_left_ = 0;
  std::string body_;
  // A field of fixed size.
  char scratch_[8] = {};
  size_t scratch_bytes_ = 0;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_TCPSTORE_TCP_STORE_PARSER_H_
