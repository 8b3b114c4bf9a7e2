// SPDX-License-Identifier: Apache-2.0
// TcpStoreReplay: the recorded sessions of PyTorch's clients, played to a store.
#ifndef FERRY_TESTS_COORD_TCPSTORE_TCP_STORE_REPLAY_H_
#define FERRY_TESTS_COORD_TCPSTORE_TCP_STORE_REPLAY_H_

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

#include "base/clock.h"
#include "coord/core/completions.h"
#include "coord/tcpstore/tcp_store_session.h"
#include "tests/coord/tcpstore/tcp_store_handover.h"

namespace ferry::coord {

// The files in recorded/, without ".txt".
inline const std::string kRecordings[] = {
    "torch-1.13.1-operations", "torch-1.13.1-gloo", "torch-2.1.2-operations", "torch-2.1.2-gloo",
    "torch-2.3.1-operations",  "torch-2.3.1-gloo",  "torch-2.6.0-operations", "torch-2.6.0-gloo",
    "torch-2.15.0-operations", "torch-2.15.0-gloo"};

inline std::string RecordingTestName(absl::string_view name) {
  return absl::StrReplaceAll(name, {{"torch-", ""}, {".", "_"}, {"-", "_"}});
}

// A piece as it arrived, from the client or from the server.
struct RecordedPiece {
  int line = 0;
  int connection = 0;
  bool is_from_client = false;
  bool is_end = false;
  std::string bytes;
};

inline std::vector<RecordedPiece> ReadRecording(const std::string& name) {
  const std::string path = absl::StrCat(FERRY_RECORDED_DIR, "/", name, ".txt");
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::vector<RecordedPiece> pieces;
  std::string text;
  for (int line = 1; std::getline(file, text); ++line) {
    if (text.empty() || text[0] == '#') continue;
    const std::vector<std::string> words = absl::StrSplit(text, ' ');
    RecordedPiece piece;
    piece.line = line;
    if (words.size() != 3 || !absl::SimpleAtoi(words[0], &piece.connection)) {
      ADD_FAILURE() << path << ":" << line << ": not a piece";
      return {};
    }
    piece.is_from_client = words[1] == ">";
    piece.is_end = words[2] == "closed";
    if (!piece.is_end) piece.bytes = absl::HexStringToBytes(words[2]);
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

// A store and the connections of a recording.
class TcpStoreReplay final {
 public:
  void Send(int connection, absl::string_view bytes) {
    Connection& client = Find(connection);
    if (client.session == nullptr) return;
    client.unread.append(bytes.data(), bytes.size());
    absl::string_view rest = client.unread;
    client.status = client.session->Consume(rest);
    client.unread = std::string(rest);
    RunCompletions();
  }
  void Disconnect(int connection) {
    Connection& client = Find(connection);
    if (client.session != nullptr) left_ += Take(client, client.session->output().bytes());
    client.session = nullptr;
    RunCompletions();
  }
  // Takes as many bytes of the replies as there are, at most this many. A reply that depends on
  // silence after the request comes then.
  std::string Receive(int connection, size_t bytes) {
    Connection& client = Find(connection);
    if (client.session == nullptr) return "";
    std::string taken = Take(client, bytes);
    if (taken.size() < bytes && client.session->is_ambiguous()) {
      client.status = client.session->ResolveAmbiguity();
      RunCompletions();
      taken += Take(client, bytes - taken.size());
    }
    return taken;
  }
  // The replies that nothing has taken, of all connections.
  std::string Left() {
    for (auto& [number, client] : connections_) Disconnect(number);
    return left_;
  }
  const absl::Status& status(int connection) { return Find(connection).status; }
  TcpStoreDialect dialect(int connection) { return Find(connection).session->dialect(); }
  int64_t wait_count() const { return static_cast<int64_t>(store_->wait_count()); }

  // Continues with a new store, and new sessions of all connections, made from the encoded state of
  // the present ones.
  void HandOver() {
    TcpStoreScopeState scope;
    scope.store = store_->Export();
    for (auto& [number, client] : connections_) {
      if (client.session == nullptr) continue;
      scope.connections.push_back({number, client.unread, client.session->Export()});
    }
    const absl::StatusOr<HandoverState> read = ThroughHandover(std::move(scope));
    ASSERT_TRUE(read.ok()) << read.status();
    for (auto& [number, client] : connections_) client.session = nullptr;
    store_ = std::make_unique<TcpStore>(options_, clock_, completions_);
    const TcpStoreScopeState& restored = read->scopes.at(0);
    ASSERT_TRUE(store_->Restore(restored.store).ok());
    TcpStoreSession::Sessions sessions;
    for (const TcpStoreConnectionState& each : restored.connections) {
      Connection& client = connections_[each.socket];
      client.session = NewSession();
      client.unread = each.unread;
      ASSERT_TRUE(client.session->Restore(each.session).ok());
      sessions[each.session.client] = client.session;
    }
    ASSERT_TRUE(TcpStoreSession::RestoreWaits(restored.store, sessions).ok());
    RunCompletions();
  }

 private:
  struct Connection {
    std::shared_ptr<TcpStoreSession> session;
    std::string unread;
    absl::Status status;
  };

  std::shared_ptr<TcpStoreSession> NewSession() {
    return std::make_shared<TcpStoreSession>(
        *store_, TcpStoreClient(++last_client_), limits_,
        [](auto& session, uint64_t wait) { session.EndWait(wait); });
  }
  Connection& Find(int number) {
    Connection& client = connections_[number];
    if (client.session == nullptr && known_.insert(number).second) client.session = NewSession();
    return client;
  }
  void RunCompletions() {
    for (Completion& completion : completions_.Take()) std::move(completion)();
  }
  // Takes at most this many bytes of the replies.
  std::string Take(Connection& client, size_t bytes) {
    std::string taken;
    TcpStoreOutput& output = client.session->output();
    while (taken.size() < bytes && !output.empty()) {
      iovec piece = {};
      EXPECT_EQ(output.Pieces(&piece, 1), 1);
      const size_t part = std::min(piece.iov_len, bytes - taken.size());
      taken.append(static_cast<const char*>(piece.iov_base), part);
      output.Consume(part);
    }
    return taken;
  }

  CoordinatorOptions options_;
  TcpStoreLimits limits_;
  FakeClock clock_;
  Completions completions_;
  std::unique_ptr<TcpStore> store_ = std::make_unique<TcpStore>(options_, clock_, completions_);
  std::map<int, Connection> connections_;
  std::set<int> known_;
  std::string left_;
  uint64_t last_client_ = 0;
};

}  // namespace ferry::coord

#endif  // FERRY_TESTS_COORD_TCPSTORE_TCP_STORE_REPLAY_H_
