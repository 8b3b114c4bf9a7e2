// SPDX-License-Identifier: Apache-2.0
// TcpStoreSessionState: what a connection's successor must know of it, when the process is
// replaced.
#ifndef FERRY_COORD_TCPSTORE_TCP_STORE_STATE_H_
#define FERRY_COORD_TCPSTORE_TCP_STORE_STATE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/strong_id.h"
#include "coord/core/store.h"
#include "coord/tcpstore/tcp_store_request.h"

namespace ferry::coord {

// Identifies a connection.
using TcpStoreClient = StrongId<struct TcpStoreClientTag, uint64_t>;

struct TcpStoreParserState {
  TcpStoreDialect dialect = TcpStoreDialect::kUnknown;
  // The next operation, or the incomplete one, is the first of the connection and may be a
  // greeting.
  bool is_first = true;
  bool sends_field_by_field = false;
  // The bytes of the incomplete request.
  std::string incomplete;
};

// Replies that have not been written.
struct TcpStoreOutputState {
  struct Piece {
    // One of the two.
    std::string copied;
    StoreValue shared;
  };
  std::vector<Piece> pieces;
  // The number of bytes of the first piece that have been written; 0 unless it is shared.
  size_t written = 0;
};

enum class TcpStoreLongReply { kNone, kMultiGet, kListKeys };

struct TcpStoreSessionState {
  // As in the state of its store.
  TcpStoreClient client;
  TcpStoreParserState parser;
  TcpStoreOutputState output;
  uint64_t request_count = 0;
  // The reply in progress and, for a MULTI_GET, the keys whose values are not in `output`.
  TcpStoreLongReply long_reply = TcpStoreLongReply::kNone;
  std::vector<std::string> long_reply_keys;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_TCPSTORE_TCP_STORE_STATE_H_
