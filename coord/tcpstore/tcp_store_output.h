// SPDX-License-Identifier: Apache-2.0
// TcpStoreOutput: the write queue of one client, which refers to large values without copying them.
#ifndef FERRY_COORD_TCPSTORE_TCP_STORE_OUTPUT_H_
#define FERRY_COORD_TCPSTORE_TCP_STORE_OUTPUT_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "coord/core/store.h"
#include "coord/tcpstore/tcp_store_state.h"

namespace ferry::coord {

// Not thread-safe. Replies to MULTI_GET may be too large to copy for each client, so values of at
// least kMinShared bytes are shared with the store.
class TcpStoreOutput final {
 public:
  static constexpr size_t kMinShared = 512;
  // A buffer of at most this size is reused for the next reply.
  static constexpr size_t kMaxKept = size_t{16} << 10;

  void AddByte(uint8_t byte) { AddBytes({reinterpret_cast<const char*>(&byte), 1}); }
  // Little-endian.
  template <typename Number>
  void AddNumber(Number number) {
    AddBytes({reinterpret_cast<const char*>(&number), sizeof(number)});
  }
  // Appends the length and the bytes; null counts as empty.
  void AddVector(const StoreValue& value);
  void AddVector(absl::string_view bytes);
  void AddBytes(absl::string_view bytes);
  // Takes ownership of large strings instead of copying them.
  void AddOwned(std::string bytes);

  bool empty() const { return bytes_ == 0; }
  // The number of bytes to be written, including shared ones.
  size_t bytes() const { return bytes_; }

  // The memory it takes, excluding values that are shared with the store.
  size_t held_bytes() const { return copied_bytes_ + pieces_.size() * sizeof(Piece); }
  void ForEachShared(absl::FunctionRef<void(const StoreValue&)> visit) const;

  // Fills in up to `max` pieces and returns their number.
  size_t Pieces(iovec* pieces, size_t max) const;
  // The first `bytes` have been written.
  void Consume(size_t bytes);

  // Restore fills an empty queue with what was to be written.
  //   Errors: INVALID_ARGUMENT if `written` is beyond the first piece.
  TcpStoreOutputState Export() const;
  absl::Status Restore(TcpStoreOutputState state);

 private:
  struct Piece {
    // One of the two.
    std::string copied;
    StoreValue shared;

    absl::string_view view() const { return shared != nullptr ? *shared : copied; }
  };

  std::deque<Piece> pieces_;
  // The number of bytes of the first piece that have been written.
  size_t written_ = 0;
  size_t bytes_ = 0;
  // The size of the copied pieces; a piece is freed only once it is written entirely.
  size_t copied_bytes_ = 0;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_TCPSTORE_TCP_STORE_OUTPUT_H_
