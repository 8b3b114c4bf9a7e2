// SPDX-License-Identifier: Apache-2.0
// TcpStoreOutput: replies that wait to be written to one client, with large values by reference.
#ifndef FERRY_COORD_TCPSTORE_TCP_STORE_OUTPUT_H_
#define FERRY_COORD_TCPSTORE_TCP_STORE_OUTPUT_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

#include "coord/core/store.h"

namespace ferry::coord {

// Not thread-safe. A reply to MULTI_GET may be larger than memory allows to copy for each client,
// so values of kMinShared bytes or more are shared with the store.
class TcpStoreOutput final {
 public:
  static constexpr size_t kMinShared = 512;
  // A buffer of at most this size is kept for the next reply.
  static constexpr size_t kMaxKept = size_t{16} << 10;

  void AddByte(uint8_t byte) { AddBytes({reinterpret_cast<const char*>(&byte), 1}); }
  // Little-endian.
  template <typename Number>
  void AddNumber(Number number) {
    AddBytes({reinterpret_cast<const char*>(&number), sizeof(number)});
  }
  // The length and the bytes; null is an empty vector.
  void AddVector(const StoreValue& value);
  void AddVector(absl::string_view bytes);
  void AddBytes(absl::string_view bytes);
  // Without a copy.
  void AddOwned(std::string bytes);

  bool empty() const { return bytes_ == 0; }
  // The number of bytes to be written, shared ones included.
  size_t bytes() const { return bytes_; }

  // The memory it takes, values that are shared with the store excluded.
  size_t held_bytes() const { return copied_bytes_ + pieces_.size() * sizeof(Piece); }
  void ForEachShared(absl::FunctionRef<void(const StoreValue&)> visit) const;

  // Fills in up to `max` pieces and returns their number.
  size_t Pieces(iovec* pieces, size_t max) const;
  // The first `bytes` have been written.
  void Consume(size_t bytes);

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
  // The size of the copied pieces, which lose their memory as a whole.
  size_t copied_bytes_ = 0;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_TCPSTORE_TCP_STORE_OUTPUT_H_
