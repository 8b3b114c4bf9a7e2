// SPDX-License-Identifier: Apache-2.0
// The bytes that PyTorch's TCPStore clients send, by dialect.
#ifndef FERRY_TESTS_COORD_TCPSTORE_TCP_STORE_BYTES_H_
#define FERRY_TESTS_COORD_TCPSTORE_TCP_STORE_BYTES_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "coord/tcpstore/tcp_store_request.h"

namespace ferry::coord {

template <typename Number>
std::string AsBytes(Number number) {
  return std::string(reinterpret_cast<const char*>(&number), sizeof(number));
}

inline std::string Vec(absl::string_view bytes) {
  return absl::StrCat(AsBytes<uint64_t>(bytes.size()), bytes);
}

// The requests of one dialect. The numbers are those of docs/compatibility/pytorch_store.md.
class TcpStoreBytes final {
 public:
  explicit TcpStoreBytes(TcpStoreDialect dialect) : dialect_(dialect) {}

  // Empty but for 2.2 and later.
  std::string Hello() const {
    if (dialect_ != TcpStoreDialect::kTorch22) return "";
    return std::string("\0\xCE\xF7\x85\x3C", 5);
  }
  std::string Set(absl::string_view key, absl::string_view value) const {
    return absl::StrCat(Op(0, 0, 1), Vec(key), Vec(value));
  }
  std::string CompareSet(absl::string_view key, absl::string_view expected,
                         absl::string_view desired) const {
    return absl::StrCat(Op(1, 1, 2), Vec(key), Vec(expected), Vec(desired));
  }
  std::string Get(absl::string_view key) const { return absl::StrCat(Op(2, 2, 3), Vec(key)); }
  std::string Add(absl::string_view key, int64_t increment) const {
    return absl::StrCat(Op(3, 3, 4), Vec(key), AsBytes(increment));
  }
  std::string Check(const std::vector<std::string>& keys) const { return Keys(Op(4, 4, 5), keys); }
  std::string Wait(const std::vector<std::string>& keys) const { return Keys(Op(5, 5, 6), keys); }
  std::string GetNumKeys() const { return Op(6, 6, 7); }
  std::string DeleteKey(absl::string_view key) const { return absl::StrCat(Op(8, 7, 8), Vec(key)); }
  // Since 2.1.
  std::string Append(absl::string_view key, absl::string_view value) const {
    return absl::StrCat(Op(-1, 8, 9), Vec(key), Vec(value));
  }
  std::string MultiGet(const std::vector<std::string>& keys) const {
    return Keys(Op(-1, 9, 10), keys);
  }
  std::string MultiSet(const std::vector<std::pair<std::string, std::string>>& entries) const {
    std::string bytes = absl::StrCat(Op(-1, 10, 11), AsBytes<int64_t>(entries.size()));
    for (const auto& [key, value] : entries) absl::StrAppend(&bytes, Vec(key), Vec(value));
    return bytes;
  }
  std::string CancelWait() const { return Op(-1, 11, 12); }
  // Since 2.4.
  std::string Ping(uint32_t nonce) const { return absl::StrCat(Op(-1, -1, 13), AsBytes(nonce)); }
  // Since 2.8.
  std::string QueuePush(absl::string_view queue, absl::string_view value) const {
    return absl::StrCat(Op(-1, -1, 14), Vec(queue), Vec(value));
  }
  std::string QueuePop(absl::string_view queue) const {
    return absl::StrCat(Op(-1, -1, 15), Vec(queue));
  }
  std::string QueueLength(absl::string_view queue) const {
    return absl::StrCat(Op(-1, -1, 16), Vec(queue));
  }
  // Since 2.10.
  std::string ListKeys() const { return Op(-1, -1, 17); }
  std::string Barrier(absl::string_view key, int64_t world_size) const {
    return absl::StrCat(Op(-1, -1, 18), Vec(key), AsBytes(world_size));
  }

 private:
  std::string Op(int torch1, int torch21, int torch22) const {
    const int op = dialect_ == TcpStoreDialect::kTorch1    ? torch1
                   : dialect_ == TcpStoreDialect::kTorch21 ? torch21
                                                           : torch22;
    return std::string(1, static_cast<char>(op));
  }
  static std::string Keys(std::string op, const std::vector<std::string>& keys) {
    std::string bytes = absl::StrCat(op, AsBytes<uint64_t>(keys.size()));
    for (const std::string& key : keys) absl::StrAppend(&bytes, Vec(key));
    return bytes;
  }

  const TcpStoreDialect dialect_;
};

}  // namespace ferry::coord

#endif  // FERRY_TESTS_COORD_TCPSTORE_TCP_STORE_BYTES_H_
