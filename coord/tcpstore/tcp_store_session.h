// SPDX-License-Identifier: Apache-2.0
// TcpStoreSession: the protocol of one PyTorch TCPStore client, from received bytes to replies.
#ifndef FERRY_COORD_TCPSTORE_TCP_STORE_SESSION_H_
#define FERRY_COORD_TCPSTORE_TCP_STORE_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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
// MULTI_GET and LIST_KEYS of many keys are executed in parts of kKeysInPart, between which the
// owner serves other clients; the reply of MULTI_GET goes on as it is read. Other clients may
// change the store meanwhile: a key that is there all the time is in the reply.
//
// A connection has one request at a time and its replies come in order, so that requests behind a
// pending WAIT or BARRIER are not read, except for the CANCEL_WAIT that ends it. Clients of 1.13 to
// 2.0 have no such request: one that gave up a wait sends its next request, which ends the wait.
class TcpStoreSession final : public std::enable_shared_from_this<TcpStoreSession> {
 public:
  // Requests are not read while more output waits than this.
  static constexpr size_t kMaxOutput = size_t{1} << 20;
  static constexpr size_t kKeysInPart = 1024;

  // `store` and `limits` outlive it. `on_output`: output() has become non-empty outside of Consume,
  // because a wait has ended; it may also take requests again.
  TcpStoreSession(TcpStore& store, TcpStoreClient client, const TcpStoreLimits& limits,
                  std::function<void()> on_output)
      : store_(store), client_(client), parser_(limits), on_output_(std::move(on_output)) {}
  ~TcpStoreSession() { store_.Release(client_); }

  // Executes the requests in `bytes`, and removes what has been read. Bytes remain while a wait is
  // pending, too much output waits, or a request is not finished; call it again, with more, after
  // on_output, when output has been written, or at once if has_more_parts().
  //   Errors: INVALID_ARGUMENT, or those of TcpStore; the connection is to be closed. They name the
  //   operation.
  absl::Status Consume(absl::string_view& bytes);

  // True if Consume would stop before anything but a CANCEL_WAIT.
  bool is_waiting() const { return pending_wait_ != 0; }
  // True if a request is not finished, and Consume, also of no bytes, would go on with it.
  bool has_more_parts() const { return long_reply_ != nullptr && output_.bytes() <= kMaxOutput; }
  // No bytes have come for a while; resolves what is_ambiguous() tells. May add output.
  bool is_ambiguous() const { return parser_.is_ambiguous(); }
  // See TcpStoreParser.
  bool sends_field_by_field() const { return parser_.sends_field_by_field(); }
  absl::Status ResolveAmbiguity();

  TcpStoreOutput& output() { return output_; }
  TcpStoreDialect dialect() const { return parser_.dialect(); }
  TcpStoreClient client() const { return client_; }
  // The memory it takes: a request that has not ended, replies, and the pending wait.
  size_t held_bytes() const {
    return parser_.held_bytes() + output_.held_bytes() + wait_bytes_ +
           (long_reply_ == nullptr ? 0 : long_reply_->held_bytes);
  }
  // The number of requests that were executed.
  uint64_t request_count() const { return request_count_; }

 private:
  // MULTI_GET or LIST_KEYS, between two parts.
  struct LongReply {
    TcpStoreOp op;
    // The keys of MULTI_GET, and how many of them have been replied to.
    std::vector<std::string> keys;
    size_t done = 0;
    // LIST_KEYS: the number of keys and the end of the reply, whose beginning is the number; and
    // the last of the keys.
    int64_t listed = 0;
    std::string list;
    std::optional<std::string> last;
    size_t held_bytes = 0;
  };

  absl::Status Execute(TcpStoreRequest request);
  void BeginLongReply(TcpStoreRequest request);
  // Executes a part of long_reply_.
  void ContinueLongReply();
  void ContinueMultiGet();
  void ContinueListKeys();
  // The callback of the wait that begins.
  TcpStore::WaitCallback OnWaitEnd();
  // Replies if the last wait is over already, and else remembers that it is pending.
  absl::Status ReplyOrWait(const absl::StatusOr<bool>& is_over);
  // Returns true if a request that begins with `op` may be executed while a wait is pending, which
  // it ends then.
  bool InterruptsWait(char op);

  TcpStore& store_;
  const TcpStoreClient client_;
  TcpStoreParser parser_;
  TcpStoreOutput output_;
  const std::function<void()> on_output_;
  // The number of the wait that is pending, and of the last one.
  uint64_t pending_wait_ = 0;
  uint64_t last_wait_ = 0;
  size_t wait_bytes_ = 0;
  uint64_t request_count_ = 0;
  std::unique_ptr<LongReply> long_reply_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_TCPSTORE_TCP_STORE_SESSION_H_
