// SPDX-License-Identifier: Apache-2.0
// TcpStoreRequest: one request of a PyTorch TCPStore client, and the limits on its size.
#ifndef FERRY_COORD_TCPSTORE_TCP_STORE_REQUEST_H_
#define FERRY_COORD_TCPSTORE_TCP_STORE_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace ferry::coord {

// The three versions of the wire format, which number the operations differently.
enum class TcpStoreDialect {
  kUnknown,
  // 1.13 to 2.0.
  kTorch1,
  // 2.1.
  kTorch21,
  // 2.2 and later: a connection begins with kValidate.
  kTorch22,
};

enum class TcpStoreOp {
  kValidate,
  kSet,
  kCompareSet,
  kGet,
  kAdd,
  kCheck,
  kWait,
  kGetNumKeys,
  kDeleteKey,
  kAppend,
  kMultiGet,
  kMultiSet,
  kCancelWait,
  kPing,
  kQueuePush,
  kQueuePop,
  kQueueLength,
  kListKeys,
  kBarrier,
};

// The name in PyTorch's sources, such as "WAIT".
absl::string_view TcpStoreOpName(TcpStoreOp op);
// The PyTorch releases that use it, such as "PyTorch 2.2 or later".
absl::string_view TcpStoreDialectName(TcpStoreDialect dialect);

// Fields that the operation does not have are empty or 0.
struct TcpStoreRequest {
  TcpStoreOp op = TcpStoreOp::kValidate;
  // The key; the keys of kCheck, kWait, kMultiGet and kMultiSet are in `keys`.
  std::string key;
  std::vector<std::string> keys;
  // The value; for kCompareSet the expected and the desired one; for kMultiSet one per key.
  std::vector<std::string> values;
  // The increment of kAdd, the world size of kBarrier, the nonce of kPing.
  int64_t number = 0;
};

struct TcpStoreLimits {
  size_t max_key_bytes = size_t{1} << 20;
  size_t max_value_bytes = size_t{64} << 20;
  // The number of keys in one request.
  size_t max_keys = size_t{128} << 10;
  // The total size of the keys and values of one request.
  size_t max_request_bytes = size_t{256} << 20;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_TCPSTORE_TCP_STORE_REQUEST_H_
