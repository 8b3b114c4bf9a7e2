// SPDX-License-Identifier: Apache-2.0
// Sessions of PyTorch's own clients with its own server, replayed against ours: the same bytes in
// give the same bytes out. recorded/record.py made them.
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

#include "base/clock.h"
#include "coord/core/completions.h"
#include "coord/tcpstore/tcp_store_session.h"

namespace ferry::coord {
namespace {

// A piece as it arrived, from the client or from the server.
struct Piece {
  int line = 0;
  int connection = 0;
  bool is_from_client = false;
  bool is_end = false;
  std::string bytes;
};

std::vector<Piece> Read(const std::string& name) {
  const std::string path = absl::StrCat(FERRY_RECORDED_DIR, "/", name, ".txt");
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::vector<Piece> pieces;
  std::string text;
  for (int line = 1; std::getline(file, text); ++line) {
    if (text.empty() || text[0] == '#') continue;
    const std::vector<std::string> words = absl::StrSplit(text, ' ');
    Piece piece;
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
class Replay {
 public:
  void Send(int connection, absl::string_view bytes) {
    Connection& client = Find(connection);
    if (client.session == nullptr) return;
    client.unread.append(bytes.data(), bytes.size());
    absl::string_view rest = client.unread;
    client.status = client.session->Consume(rest);
    client.unread = std::string(rest);
    Settle();
  }
  void Disconnect(int connection) {
    Find(connection).session = nullptr;
    Settle();
  }
  // Takes as many bytes of the replies as there are, at most this many. A reply that depends on
  // silence after the request comes then.
  std::string Receive(int connection, size_t bytes) {
    Connection& client = Find(connection);
    if (client.received.size() < bytes && client.session != nullptr &&
        client.session->is_ambiguous()) {
      client.status = client.session->ResolveAmbiguity();
      Settle();
    }
    const std::string taken = client.received.substr(0, bytes);
    client.received.erase(0, taken.size());
    return taken;
  }
  // The replies that nothing has taken, of all connections.
  std::string Left() {
    std::string left;
    for (auto& [number, client] : connections_) left += client.received;
    return left;
  }
  const absl::Status& status(int connection) { return Find(connection).status; }
  TcpStoreDialect dialect(int connection) { return Find(connection).session->dialect(); }
  int64_t wait_count() const { return static_cast<int64_t>(store_.wait_count()); }

 private:
  struct Connection {
    std::shared_ptr<TcpStoreSession> session;
    std::string unread;
    std::string received;
    absl::Status status;
  };

  Connection& Find(int number) {
    Connection& client = connections_[number];
    if (client.session == nullptr && known_.insert(number).second) {
      client.session = std::make_shared<TcpStoreSession>(
          store_, TcpStoreClient(++last_client_), limits_,
          [](auto& session, uint64_t wait) { session.EndWait(wait); });
    }
    return client;
  }
  void Settle() {
    for (Completion& completion : completions_.Take()) std::move(completion)();
    for (auto& [number, client] : connections_) {
      while (client.session != nullptr && !client.session->output().empty()) {
        iovec pieces[3];
        const size_t count = client.session->output().Pieces(pieces, 3);
        size_t bytes = 0;
        for (size_t i = 0; i < count; ++i) {
          client.received.append(static_cast<const char*>(pieces[i].iov_base), pieces[i].iov_len);
          bytes += pieces[i].iov_len;
        }
        client.session->output().Consume(bytes);
      }
    }
  }

  CoordinatorOptions options_;
  TcpStoreLimits limits_;
  FakeClock clock_;
  Completions completions_;
  TcpStore store_{options_, clock_, completions_};
  std::map<int, Connection> connections_;
  std::set<int> known_;
  uint64_t last_client_ = 0;
};

// A recording, and whether its requests arrive byte by byte instead of as they did.
class RecordedTcpStore : public testing::TestWithParam<std::tuple<std::string, bool>> {};

INSTANTIATE_TEST_SUITE_P(
    Torch, RecordedTcpStore,
    testing::Combine(testing::Values("torch-1.13.1-operations", "torch-1.13.1-gloo",
                                     "torch-2.1.2-operations", "torch-2.1.2-gloo",
                                     "torch-2.3.1-operations", "torch-2.3.1-gloo",
                                     "torch-2.6.0-operations", "torch-2.6.0-gloo",
                                     "torch-2.15.0-operations", "torch-2.15.0-gloo"),
                     testing::Bool()),
    [](const auto& info) {
      return absl::StrCat(
          absl::StrReplaceAll(std::get<0>(info.param), {{"torch-", ""}, {".", "_"}, {"-", "_"}}),
          std::get<1>(info.param) ? "_byte_by_byte" : "");
    });

// The answers of upstream's server to its client's bytes are the specification; tests with
// composed bytes could share a misunderstanding with the code.
TEST_P(RecordedTcpStore, BytesOfTheClients_AreAnsweredAsByPyTorchsServer) {
  const auto& [name, is_byte_by_byte] = GetParam();
  const std::vector<Piece> pieces = Read(name);
  ASSERT_FALSE(pieces.empty());
  Replay replay;
  size_t answers = 0;
  for (const Piece& piece : pieces) {
    SCOPED_TRACE(absl::StrCat(name, ".txt:", piece.line));
    if (piece.is_from_client && piece.is_end) {
      replay.Disconnect(piece.connection);
    } else if (piece.is_from_client && is_byte_by_byte) {
      for (char byte : piece.bytes) replay.Send(piece.connection, absl::string_view(&byte, 1));
    } else if (piece.is_from_client) {
      replay.Send(piece.connection, piece.bytes);
    } else if (piece.is_end) {
      EXPECT_FALSE(replay.status(piece.connection).ok());
    } else {
      ++answers;
      ASSERT_EQ(absl::BytesToHexString(replay.Receive(piece.connection, piece.bytes.size())),
                absl::BytesToHexString(piece.bytes));
      ASSERT_TRUE(replay.status(piece.connection).ok()) << replay.status(piece.connection);
    }
  }
  EXPECT_GT(answers, 10);
  EXPECT_EQ(replay.Left(), "");
  EXPECT_EQ(replay.wait_count(), 0);
}

TEST(RecordedTcpStoreDialects, Clients_AreTakenForTheReleaseThatTheyAre) {
  for (const auto& [name, dialect] :
       {std::pair("torch-1.13.1-operations", TcpStoreDialect::kTorch1),
        std::pair("torch-2.1.2-operations", TcpStoreDialect::kTorch21),
        std::pair("torch-2.3.1-operations", TcpStoreDialect::kTorch22),
        std::pair("torch-2.15.0-gloo", TcpStoreDialect::kTorch22)}) {
    Replay replay;
    for (const Piece& piece : Read(name)) {
      if (piece.connection != 0 || piece.is_end) continue;
      if (piece.is_from_client) {
        replay.Send(0, piece.bytes);
      } else {
        replay.Receive(0, piece.bytes.size());
      }
    }
    EXPECT_EQ(replay.dialect(0), dialect) << name;
  }
}

}  // namespace
}  // namespace ferry::coord
