// SPDX-License-Identifier: Apache-2.0
// The baseline of bare sockets: it exists, or both ends report why not.
#include "bench/raw_tcp.h"

#include <poll.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"

#include "base/thread.h"
#include "net/sockets.h"
#include "tests/coord/wire/test_server.h"

namespace ferry::cli {
namespace {

using ::testing::HasSubstr;

constexpr char kAt[] = "bench/raw-tcp/at";
constexpr char kIs[] = "bench/raw-tcp/is";

// One node, which is either end; the other one is played by hand, through the store.
class RawTcpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    NodeOptions options;
    options.coordinator = server_.address();
    options.node_id = 0;
    options.num_nodes = 1;
    absl::StatusOr<std::unique_ptr<Node>> node = Node::Join(options);
    ASSERT_TRUE(node.ok()) << node.status();
    node_ = *std::move(node);
  }
  BenchParticipants Party(int rank) {
    return {.node = *node_, .rank = rank, .nodes = {0, 0}, .timeout = coord::kTimeout};
  }

  coord::TestServer server_{1};
  std::unique_ptr<Node> node_;
};

TEST_F(RawTcpTest, BothHaveTheSockets) {
  const BenchParticipants first = Party(0);
  const BenchParticipants second = Party(1);
  constexpr size_t kBytes = size_t{2} << 20;
  std::vector<char> there(kBytes, 1);
  std::vector<char> here(kBytes, 2);
  absl::Status answered = absl::UnknownError("not run");
  absl::Duration once;
  absl::Duration stream;
  {
    const Thread other("other", [&second, &there, &answered] {
      auto raw = RawTcp::Create(second, 2);
      answered = raw.status();
      if (!raw.ok()) return;
      answered = (*raw)->MeasurePingPong(there.data(), kBytes, 3, false).status();
      answered.Update((*raw)->MeasureStream(there.data(), kBytes, 4, 3).status());
    });
    auto raw = RawTcp::Create(first, 2);
    ASSERT_TRUE(raw.ok()) << raw.status();
    const auto ping = (*raw)->MeasurePingPong(here.data(), kBytes, 3, false);
    const auto all = (*raw)->MeasureStream(here.data(), kBytes, 4, 3);
    ASSERT_TRUE(ping.ok() && all.ok()) << ping.status() << all.status();
    once = *ping;
    stream = *all;
    EXPECT_TRUE((*raw)->CleanUp().ok());
  }
  EXPECT_TRUE(answered.ok()) << answered;
  EXPECT_GT(once, absl::ZeroDuration());
  EXPECT_GT(stream, absl::ZeroDuration());
  // The data that comes back is the data that was sent.
  EXPECT_EQ(here, there);
  EXPECT_TRUE(absl::IsNotFound(node_->agent().TryGet(kAt).status()));
}

// A firewall, or an address of something between the two: the bench continues without the baseline.
TEST_F(RawTcpTest, RefusedConnection_NamesTheAddress) {
  std::string closed;
  {
    const absl::StatusOr<ListeningSocket> listener = ListenTcp("127.0.0.1:0");
    ASSERT_TRUE(listener.ok()) << listener.status();
    closed = absl::StrCat("127.0.0.1:", listener->port);
  }
  ASSERT_TRUE(node_->agent().Set(kAt, absl::StrCat("7 ", closed)).ok());
  const BenchParticipants second = Party(1);
  const absl::Status refused = RawTcp::Create(second, 2).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(closed));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("refused"));
  // So that the first one does not wait for sockets.
  EXPECT_EQ(node_->agent().TryGet(kIs).value_or("nothing"), refused.message());
}

TEST_F(RawTcpTest, Listener_IsNotifiedOfTheRefusal) {
  ASSERT_TRUE(node_->agent().Set(kIs, "10.0.0.7:1234: Connection refused").ok());
  const BenchParticipants first = Party(0);
  const absl::Status status = RawTcp::Create(first, 2).status();
  EXPECT_EQ(status, absl::UnavailableError("10.0.0.7:1234: Connection refused"));
}

TEST_F(RawTcpTest, FailedListener_IsReportedToThePeer) {
  ASSERT_TRUE(node_->agent().Set(kAt, "7").ok());
  const BenchParticipants second = Party(1);
  const absl::Status status = RawTcp::Create(second, 2).status();
  EXPECT_EQ(status, absl::UnavailableError("the other process listens nowhere"));
}

// If another process listens there is no baseline, and the next address is tried.
TEST_F(RawTcpTest, UnrelatedListener_IsNotMeasured) {
  absl::StatusOr<ListeningSocket> stranger = ListenTcp("127.0.0.1:0");
  ASSERT_TRUE(stranger.ok()) << stranger.status();
  const std::string address = absl::StrCat("127.0.0.1:", stranger->port);
  ASSERT_TRUE(node_->agent().Set(kAt, absl::StrCat("7 ", address)).ok());
  absl::Status status;
  {
    const BenchParticipants second = Party(1);
    const Thread other("other",
                       [&second, &status] { status = RawTcp::Create(second, 1).status(); });
    // It answers, but without the right number.
    pollfd readable = {stranger->fd.get(), POLLIN, 0};
    ASSERT_EQ(poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(coord::kTimeout))), 1);
    const UniqueFd greeted(accept4(stranger->fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ASSERT_TRUE(greeted.valid());
    constexpr char kWrong[16] = {};
    ASSERT_EQ(send(greeted.get(), kWrong, sizeof(kWrong), MSG_NOSIGNAL), 16);
    // Until it is read.
    char greeting[16];
    ASSERT_EQ(recv(greeted.get(), greeting, sizeof(greeting), MSG_WAITALL), 16);
  }
  EXPECT_EQ(status, absl::UnavailableError(absl::StrCat(address, " is another process")));
}

}  // namespace
}  // namespace ferry::cli
