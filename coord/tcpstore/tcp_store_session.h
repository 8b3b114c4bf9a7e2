// SPDX-License-Identifier: Apache-2.0
// TcpStoreSession: the protocol of one PyTorch TCPStore client, from received bytes to replies.
#ifndef FERRY_COORD_TCPSTORE_TCP_STORE_SESSION_H_
#define FERRY_COORD_TCPSTORE_TCP_STORE_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "coord/tcpstore/tcp_store.h"
#include "coord/tcpstore/tcp_store_output.h"
#include "coord/tcpstore/tcp_store_parser.h"
#include "coord/tcpstore/tcp_store_request.h"

namespace ferry::coord {

// Not thread-safe. Without I/O: its owner passes on received bytes, and writes output().
//
// A connection has one request at a time and its replies come in order, so that requests behind a
// pending WAIT or BARRIER are not read, except for the CANCEL_WAIT that ends it. Clients of 1.13 to
// 2.0 have no such request: one that gave up a wait sends its next request, which ends the wait.
class TcpStoreSession final : public std::enable_shared_from_this<TcpStoreSession> {
 public:
  // Requests are not read while more output waits than this.
  static constexpr size_t kMaxOutput = size_t{1} << 20;

  // `store` and `limits` outlive it. `on_output`: output() has become non-empty outside of Consume,
  // because a wait has ended; it may also take requests again.
  TcpStoreSession(TcpStore& store, TcpStoreClient client, const TcpStoreLimits& limits,
                  std::function<void()> on_output)
      : store_(store), client_(client), parser_(limits), on_output_(std::move(on_output)) {}
  ~TcpStoreSession() { store_.Release(client_); }

  // Executes the requests in `bytes`, and removes what has been read. Bytes remain while a wait is
  // pending or too much output waits; call it again, with more, after on_output or when output has
  // been written.
  //   Errors: INVALID_ARGUMENT, or those of TcpStore; the connection is to be closed. They name the
  //   operation.
  absl::Status Consume(absl::string_view& bytes);

  // True if Consume would stop before anything but a CANCEL_WAIT.
  bool is_waiting() const { return pending_wait_ != 0; }
  // No bytes have come for a while; resolves what is_ambiguous() tells. May add output.
  bool is_ambiguous() const { return parser_.is_ambiguous(); }
  absl::Status ResolveAmbiguity();

  TcpStoreOutput& output() { return output_; }
  TcpStoreDialect dialect() const { return parser_.dialect(); }
  TcpStoreClient client() const { return client_; }

 private:
  absl::Status Execute(TcpStoreRequest request);
  // The callback of the wait that begins.
  TcpStore::WaitCallback OnWaitEnd();
  // Replies, or remembers that the last wait is pending.
  absl::Status Await(const absl::StatusOr<bool>& is_over);
  // Returns false if the byte that follows a pending wait has to stay unread.
  bool EndsWait(char op);

  TcpStore& store_;
  const TcpStoreClient client_;
  TcpStoreParser parser_;
  TcpStoreOutput output_;
  const std::function<void()> on_output_;
  // The number of the wait that is pending, and of the last one.
  uint64_t pending_wait_ = 0;
  uint64_t last_wait_ = 0;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_TCPSTORE_TCP_STORE_SESSION_H_
