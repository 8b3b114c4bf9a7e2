// SPDX-License-Identifier: Apache-2.0
// TcpStoreParser: parses the requests of one PyTorch TCPStore client.
#ifndef FERRY_COORD_TCPSTORE_TCP_STORE_PARSER_H_
#define FERRY_COORD_TCPSTORE_TCP_STORE_PARSER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "coord/tcpstore/tcp_store_request.h"
#include "coord/tcpstore/tcp_store_state.h"

namespace ferry::coord {

// Not thread-safe. Incremental: a request may arrive in pieces of any size. Memory is allocated
// for received bytes, never for an announced length.
//
// The format has no version. A client that begins with kValidate and its magic number is 2.2 or
// later; otherwise it is 1.13 to 2.1, which agree on the operations 0 to 6. The first operation
// above 6 distinguishes 2.1 from 1.13 to 2.0, except for 8, which is DELETE_KEY in 1.13 to 2.0 and
// APPEND, with a value after the key, in 2.1. Such a request is ambiguous at the end of its key: if
// no value follows within a timeout, it is a DELETE_KEY, and the caller calls ResolveAmbiguity. A
// short timeout suffices for clients that send field by field: 1.13 to 2.0 write each field with a
// send() of its own, while 2.1 writes requests of up to kTorch21SendBytes with a single one.
class TcpStoreParser final {
 public:
  explicit TcpStoreParser(const TcpStoreLimits& limits) : limits_(limits) {}

  // Consumes `bytes` up to the end of the next request and returns it. If the request is
  // incomplete, consumes all of them and returns nullopt.
  //   Errors: INVALID_ARGUMENT for an unknown operation, a wrong magic number, or a length over a
  //   limit. The connection must be closed, since nothing after it can be parsed.
  absl::StatusOr<std::optional<TcpStoreRequest>> Next(absl::string_view& bytes);

  // True if the input ends with a key that another field may or may not follow.
  bool is_ambiguous() const { return is_ambiguous_; }
  // True if the input of a call of Next ended between two fields where 2.1 would not have split its
  // writes. The network may split them there too, so this is only a hint that the client is 1.13 to
  // 2.0.
  bool sends_field_by_field() const { return sends_field_by_field_; }
  // Returns the DELETE_KEY that ended with the key. REQUIRES: is_ambiguous().
  TcpStoreRequest ResolveAmbiguity();

  TcpStoreDialect dialect() const { return dialect_; }
  // True between two requests.
  bool is_at_request() const { return field_ == Field::kOp; }
  // The memory of the incomplete request.
  size_t held_bytes() const { return held_bytes_ + body_.capacity(); }

  // Restore brings a new parser of the same limits into the state of the exported one.
  //   Errors: as Next; INVALID_ARGUMENT if the incomplete request is complete.
  TcpStoreParserState Export() const;
  absl::Status Restore(const TcpStoreParserState& state);

 private:
  // Clients of 2.1 and later flush their write buffer when it has at least this many bytes.
  static constexpr size_t kTorch21SendBytes = 1440;

  enum class Field {
    kOp,
    // The four bytes after a first operation 0: the magic number of VALIDATE (2.2 and later), or
    // the low half of the key length of a SET (1.13 to 2.1).
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
  // Handles the complete fixed-size field in scratch_.
  absl::Status TakeNumber();
  absl::Status TakeLength(size_t limit, absl::string_view what);
  // Moves on from a complete key or value to the next field.
  void Advance();
  absl::Status UnknownOp(uint8_t op) const;
  // The number of the operation in this dialect.
  char NumberOf(TcpStoreOp op) const;
  // The bytes of the incomplete request that have been consumed. They are not kept, since values
  // may be large, but encoded again.
  std::string IncompleteRequest() const;

  const TcpStoreLimits& limits_;
  TcpStoreDialect dialect_ = TcpStoreDialect::kUnknown;
  bool is_first_ = true;
  bool is_ambiguous_ = false;
  bool sends_field_by_field_ = false;

  Field field_ = Field::kOp;
  bool is_done_ = false;
  TcpStoreRequest request_;
  // The number of announced keys that are not complete.
  uint64_t keys_left_ = 0;
  // The number of values after the current key.
  size_t values_left_ = 0;
  // The sum of the announced lengths, and the memory of complete fields.
  size_t request_bytes_ = 0;
  size_t held_bytes_ = 0;
  // The number of missing bytes of the current key or value, and those received.
  size_t body_left_ = 0;
  std::string body_;
  // The received bytes of a fixed-size field.
  char scratch_[8] = {};
  size_t scratch_bytes_ = 0;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_TCPSTORE_TCP_STORE_PARSER_H_
