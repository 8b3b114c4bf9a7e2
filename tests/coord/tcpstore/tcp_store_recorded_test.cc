// SPDX-License-Identifier: Apache-2.0
// Sessions of PyTorch's own clients with its own server, replayed against ours: the same bytes in
// give the same bytes out. recorded/record.py made them.
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "tests/coord/tcpstore/tcp_store_replay.h"

namespace ferry::coord {
namespace {

// A recording, and whether its requests arrive byte by byte instead of as they did.
class RecordedTcpStore : public testing::TestWithParam<std::tuple<std::string, bool>> {};

INSTANTIATE_TEST_SUITE_P(Torch, RecordedTcpStore,
                         testing::Combine(testing::ValuesIn(kRecordings), testing::Bool()),
                         [](const auto& info) {
                           return absl::StrCat(RecordingTestName(std::get<0>(info.param)),
                                               std::get<1>(info.param) ? "_byte_by_byte" : "");
                         });

// The answers of upstream's server to its client's bytes are the specification; tests with
// composed bytes could share a misunderstanding with the code.
TEST_P(RecordedTcpStore, BytesOfTheClients_AreAnsweredAsByPyTorchsServer) {
  const auto& [name, is_byte_by_byte] = GetParam();
  const std::vector<RecordedPiece> pieces = ReadRecording(name);
  ASSERT_FALSE(pieces.empty());
  TcpStoreReplay replay;
  size_t answers = 0;
  for (const RecordedPiece& piece : pieces) {
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
    TcpStoreReplay replay;
    for (const RecordedPiece& piece : ReadRecording(name)) {
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
