// SPDX-License-Identifier: Apache-2.0
// TcpStoreSession: the server side of one PyTorch TCPStore connection, without its I/O.
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

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "coord/tcpstore/tcp_store.h"
#include "coord/tcpstore/tcp_store_output.h"
#include "coord/tcpstore/tcp_store_parser.h"
#include "coord/tcpstore/tcp_store_request.h"
#include "coord/tcpstore/tcp_store_state.h"

namespace ferry::coord {

// Not thread-safe. Does no I/O: its owner passes received bytes to Consume, and writes output().
//
// MULTI_GET and LIST_KEYS of many keys are executed in parts of kKeysInPart, between which the
// owner serves other clients; the reply to MULTI_GET is produced as the client reads it. The reply
// is not a snapshot: a key is sure to be in it only if it exists during the whole call.
//
// Requests of a connection are executed in order, so those behind a pending WAIT or BARRIER are not
// read, except for a CANCEL_WAIT, which ends it. Clients of 1.13 to 2.0 have no such request: their
// next request after a wait that timed out ends the wait.
class TcpStoreSession final : public std::enable_shared_from_this<TcpStoreSession> {
 public:
  // No requests are read while more output than this is queued, in bytes.
  static constexpr size_t kMaxOutput = size_t{1} << 20;
  static constexpr size_t kKeysInPart = 1024;

  // Called by the store's completions when a wait has ended. Its number is for EndWait, which the
  // owner calls at once or later.
  using WaitEndCallback = std::function<void(TcpStoreSession& session, uint64_t wait)>;

  // `store` and `limits` outlive it.
  TcpStoreSession(TcpStore& store, TcpStoreClient client, const TcpStoreLimits& limits,
                  WaitEndCallback on_wait_end)
      : store_(store), client_(client), parser_(limits), on_wait_end_(std::move(on_wait_end)) {}
  ~TcpStoreSession() { store_.Release(client_); }

  // Executes the requests in `bytes`, and removes the consumed ones. Bytes remain while a wait is
  // pending, too much output is queued, or a long reply is incomplete; call it again with them
  // after EndWait, when output has been written, or at once if has_more_parts().
  //   Errors: INVALID_ARGUMENT, or those of TcpStore, with the name of the operation; the
  //   connection must be closed.
  absl::Status Consume(absl::string_view& bytes);

  // Adds the reply of a wait that has ended, unless the client has cancelled it meanwhile. Unread
  // requests may be consumed again. Does not use the store.
  void EndWait(uint64_t wait);

  // True while a WAIT or BARRIER is pending, when Consume accepts a CANCEL_WAIT only.
  bool is_waiting() const { return pending_wait_ != 0; }
  // True if a long reply is incomplete, and Consume, even of no bytes, would continue it.
  bool has_more_parts() const { return long_reply_ != nullptr && output_.bytes() <= kMaxOutput; }
  // See TcpStoreParser.
  bool is_ambiguous() const { return parser_.is_ambiguous(); }
  bool sends_field_by_field() const { return parser_.sends_field_by_field(); }
  // No value has followed within the timeout: executes the request as a DELETE_KEY.
  absl::Status ResolveAmbiguity();

  TcpStoreOutput& output() { return output_; }
  TcpStoreDialect dialect() const { return parser_.dialect(); }
  TcpStoreClient client() const { return client_; }
  // The memory it takes: the incomplete request, queued replies, and the pending wait.
  size_t held_bytes() const {
    return parser_.held_bytes() + output_.held_bytes() + wait_bytes_ +
           (long_reply_ == nullptr ? 0 : long_reply_->held_bytes);
  }
  // The number of requests executed so far.
  uint64_t request_count() const { return request_count_; }

  // The state without the pending wait, which is one of the store's. Restore brings a new session
  // into the state of the exported one; it executes nothing, so that Consume must be called after
  // it, even with no bytes.
  //   Errors: INVALID_ARGUMENT.
  TcpStoreSessionState Export() const;
  absl::Status Restore(TcpStoreSessionState state);
  // Restores the reservations and waits of a store whose sessions have been restored. `sessions`
  // has them by the clients that `state` names.
  //   Errors: INVALID_ARGUMENT.
  using Sessions = absl::flat_hash_map<TcpStoreClient, std::shared_ptr<TcpStoreSession>>;
  static absl::Status RestoreWaits(const TcpStoreState& state, const Sessions& sessions);

 private:
  // The state of a MULTI_GET or LIST_KEYS between two parts.
  struct LongReply {
    TcpStoreOp op;
    // MULTI_GET: the keys, and the number of those whose values have been queued.
    std::vector<std::string> keys;
    size_t done = 0;
    // LIST_KEYS: the number of keys listed so far, their encoding, and the last one of them.
    int64_t listed = 0;
    std::string list;
    std::optional<std::string> last;
    size_t held_bytes = 0;
  };

  absl::Status RestoreWait(const TcpStoreWaitInfo& wait);
  absl::Status Execute(TcpStoreRequest request);
  void BeginLongReply(TcpStoreRequest request);
  // Without executing a part of it.
  void SetLongReply(TcpStoreOp op, std::vector<std::string> keys);
  // Executes a part of long_reply_.
  void ContinueLongReply();
  void ContinueMultiGet();
  void ContinueListKeys();
  // Returns the callback for a new wait.
  TcpStore::WaitCallback OnWaitEnd();
  // Replies if the wait was satisfied at once; otherwise records it as pending.
  absl::Status ReplyOrWait(const absl::StatusOr<bool>& is_over);
  // Returns true if a request that begins with `op` ends the pending wait, and may be read.
  bool InterruptsWait(char op);

  TcpStore& store_;
  const TcpStoreClient client_;
  TcpStoreParser parser_;
  TcpStoreOutput output_;
  const WaitEndCallback on_wait_end_;
  // The number of the pending wait, 0 if there is none, and of the latest one.
  uint64_t pending_wait_ = 0;
  uint64_t last_wait_ = 0;
  size_t wait_bytes_ = 0;
  uint64_t request_count_ = 0;
  std::unique_ptr<LongReply> long_reply_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_TCPSTORE_TCP_STORE_SESSION_H_
