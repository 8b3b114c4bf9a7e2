// SPDX-License-Identifier: Apache-2.0
// The PyTorch stores of ferry.v1.Control: who holds them, what is in them, who waits.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

#include "agent_fixture.h"
#include "base/unique_fd.h"
#include "control_stream.h"
#include "test_server.h"

namespace ferry::coord {
namespace {

using absl::StatusCode;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

// A client of PyTorch 2.2 or later, which only sends.
class TorchClient {
 public:
  explicit TorchClient(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    is_connected_ = connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    Send(std::string("\x00\xCE\xF7\x85\x3C", 5));
  }
  bool is_connected() const { return is_connected_; }
  void Set(absl::string_view key, absl::string_view value) {
    Send(absl::StrCat("\x01", Text(key), Text(value)));
  }
  void Wait(absl::string_view key) { Wait(std::vector<std::string>{std::string(key)}); }
  void Wait(const std::vector<std::string>& keys) {
    std::string request = absl::StrCat("\x06", Number(keys.size()));
    for (const std::string& key : keys) request += Text(key);
    Send(request);
  }

 private:
  static std::string Number(uint64_t number) {
    return std::string(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  static std::string Text(absl::string_view text) {
    return absl::StrCat(Number(text.size()), text);
  }
  void Send(const std::string& bytes) {
    if (!is_connected_) return;
    EXPECT_EQ(send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  UniqueFd fd_;
  bool is_connected_ = false;
};

bool CanConnect(int port) {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
}

class ControlStores : public ::testing::Test {
 protected:
  std::unique_ptr<Agent> Tool() {
    auto agent = Agent::Connect(ToolOptions(server_.address()));
    EXPECT_THAT(agent, IsOk());
    return *std::move(agent);
  }
  int Open(Agent& agent, absl::string_view scope) {
    const absl::StatusOr<int> port = agent.OpenStore(scope);
    EXPECT_THAT(port, IsOk());
    return port.value_or(0);
  }
  bool HasScope(absl::string_view name) {
    for (const auto& scope : server_->tcp_store().Report(0)) {
      if (scope.name == name) return true;
    }
    return false;
  }

  TestServer server_{1};
};

TEST_F(ControlStores, Open_ServesClientsAtThePort) {
  const auto tool = Tool();
  const int port = Open(*tool, "run/1");
  TorchClient client(port);
  ASSERT_TRUE(client.is_connected());
  client.Set("/a", "1");
  client.Set("/b", "22");
  ASSERT_TRUE(Eventually([&] { return tool->ListStore("run/1", "/b")->size() == 1; }));
  const auto entries = tool->ListStore("run/1", "/");
  ASSERT_THAT(entries, IsOk());
  ASSERT_THAT(*entries, SizeIs(2));
  EXPECT_EQ((*entries)[0].key, "/a");
  EXPECT_EQ((*entries)[1].value, "22");
  EXPECT_THAT(*tool->ListStore("run/1", "/", /*keys_only=*/false, /*limit=*/1), SizeIs(1));
  EXPECT_EQ(tool->ListStore("run/1", "/b", /*keys_only=*/true)->at(0).value, "");
  // Another scope has none of them.
  Open(*tool, "run/2");
  EXPECT_THAT(*tool->ListStore("run/2", ""), IsEmpty());
}

TEST_F(ControlStores, OpenTwice_IsOnePortAndOneHold) {
  const auto tool = Tool();
  const int port = Open(*tool, "run/1");
  EXPECT_EQ(Open(*tool, "run/1"), port);
  EXPECT_THAT(tool->CloseStore("run/1"), IsOk());
  EXPECT_FALSE(HasScope("run/1"));
  // The loop closes the port soon.
  EXPECT_TRUE(Eventually([&] { return !CanConnect(port); }));
}

TEST_F(ControlStores, CloseByOneOfTwoHolders_KeepsThePort) {
  const auto one = Tool();
  const auto other = Tool();
  const int port = Open(*one, "run/1");
  EXPECT_EQ(Open(*other, "run/1"), port);
  EXPECT_THAT(one->CloseStore("run/1"), IsOk());
  EXPECT_TRUE(TorchClient(port).is_connected());
  EXPECT_THAT(one->CloseStore("run/1"), Fails(StatusCode::kNotFound, HasSubstr("does not hold")));
  EXPECT_THAT(other->CloseStore("run/1"), IsOk());
  EXPECT_TRUE(Eventually([&] { return !HasScope("run/1"); }));
}

TEST_F(ControlStores, ClientIsGone_EndsItsHolds) {
  auto tool = Tool();
  Open(*tool, "run/1");
  Open(*tool, "run/2");
  tool = nullptr;
  EXPECT_TRUE(Eventually([&] { return !HasScope("run/1") && !HasScope("run/2"); }));
}

TEST_F(ControlStores, NamesThatAreNone_AreInvalid) {
  const auto tool = Tool();
  EXPECT_THAT(tool->OpenStore(""), Fails(StatusCode::kInvalidArgument, HasSubstr("name")));
  EXPECT_THAT(tool->OpenStore(std::string(257, 'x')),
              Fails(StatusCode::kInvalidArgument, HasSubstr("257 bytes")));
  EXPECT_THAT(tool->OpenStore(std::string(256, 'x')), IsOk());
  EXPECT_THAT(tool->OpenStore("shared"),
              Fails(StatusCode::kInvalidArgument, HasSubstr("the coordinator's own port")));
  EXPECT_THAT(tool->OpenStore("a\nb"),
              Fails(StatusCode::kInvalidArgument, HasSubstr("control character")));
}

// A name server may take seconds.
TEST_F(ControlStores, PortIsBeingOpened_OthersAreServed) {
  TcpStoreServer& server = server_->tcp_store();
  const auto open = [&] {
    // Would wait for itself if the server's lock were held.
    EXPECT_THAT(server.Report(10), IsEmpty());
    return Listener::OpenTcp("127.0.0.1:0");
  };
  EXPECT_THAT(server.OpenScope("run/1", open), IsOk());
}

TEST_F(ControlStores, TwoOpenAPortAtTheSameTime_ShareTheFirstOne) {
  TcpStoreServer& server = server_->tcp_store();
  const auto open = [] { return Listener::OpenTcp("127.0.0.1:0"); };
  int port_of_other = 0;
  const absl::StatusOr<int> port = server.OpenScope("run/1", [&] {
    port_of_other = server.OpenScope("run/1", open).value_or(0);
    return open();
  });
  ASSERT_THAT(port, IsOk());
  EXPECT_EQ(*port, port_of_other);
  // Both hold it.
  EXPECT_THAT(server.CloseScope("run/1"), IsOk());
  EXPECT_TRUE(CanConnect(*port));
  EXPECT_THAT(server.CloseScope("run/1"), IsOk());
  // The scope lasts until the server has read the end of that connection.
  EXPECT_TRUE(Eventually([&] { return !HasScope("run/1"); }));
}

TEST_F(ControlStores, ListOfAStoreThatIsNotThere_IsNotFound) {
  const auto tool = Tool();
  EXPECT_THAT(tool->ListStore("run/1", ""), Fails(StatusCode::kNotFound, HasSubstr("run/1")));
  EXPECT_THAT(tool->ListStore("", ""),
              Fails(StatusCode::kNotFound, HasSubstr("the coordinator's port")));
  TorchClient client(server_->port());
  client.Set("/own", "1");
  EXPECT_TRUE(Eventually([&] {
    const auto entries = tool->ListStore("", "/own");
    return entries.ok() && entries->size() == 1;
  }));
}

TEST_F(ControlStores, RankMayHoldOne) {
  const auto rank = Agent::Connect(RankOptions(server_.address(), 0));
  ASSERT_THAT(rank, IsOk());
  EXPECT_TRUE(TorchClient(Open(**rank, "run/1")).is_connected());
}

TEST_F(ControlStores, Status_NamesWhoWaitsForWhat) {
  const auto tool = Tool();
  const int port = Open(*tool, "run/1");
  TorchClient zero(port);
  TorchClient one(port);
  zero.Set("/pg/0//cpu//0/0", "address");
  one.Set("/pg/0//cpu//0/1", "address");
  zero.Wait("/pg/0//cpu//0/2");
  one.Wait("/pg/0//cpu//0/2");
  ASSERT_TRUE(Eventually([&] {
    const auto status = tool->Status();
    return status.ok() && status->store_scopes.size() == 1 &&
           status->store_scopes[0].waits.size() == 2;
  }));
  const absl::StatusOr<JobStatus> status = tool->Status();
  ASSERT_THAT(status, IsOk());
  const StoreScopeStatus& scope = status->store_scopes[0];
  EXPECT_EQ(scope.name, "run/1");
  EXPECT_EQ(scope.port, port);
  EXPECT_EQ(scope.clients, 2);
  EXPECT_EQ(scope.keys, 2);
  EXPECT_GE(scope.bytes, 2 * 7);
  EXPECT_THAT(scope.waits[0].peer, StartsWith("ipv4:127.0.0.1:"));
  EXPECT_THAT(scope.waits[0].keys, ElementsAre("/pg/0//cpu//0/2"));
  EXPECT_EQ(scope.waits[0].key_count, 1);
  EXPECT_EQ(scope.wait_count, 2);
  ASSERT_THAT(scope.missing, SizeIs(1));
  EXPECT_EQ(scope.missing[0].key, "/pg/0//cpu//0/2");
  EXPECT_EQ(scope.missing[0].ranks, "2");
  EXPECT_EQ(scope.missing[0].clients, 2);
  EXPECT_GE(scope.missing[0].age, absl::ZeroDuration());
}

// A wait for several keys that are in no group is in the report of each of them.
TEST_F(ControlStores, Status_CountsEachWaitOnce) {
  const auto tool = Tool();
  TorchClient client(Open(*tool, "run/1"));
  client.Wait({"/a", "/b", "/c"});
  ASSERT_TRUE(Eventually([&] {
    const auto status = tool->Status();
    return status.ok() && status->store_scopes.size() == 1 &&
           status->store_scopes[0].missing.size() == 3;
  }));
  const StoreScopeStatus scope = tool->Status()->store_scopes[0];
  EXPECT_EQ(scope.wait_count, 1);
  EXPECT_THAT(scope.waits, SizeIs(1));
  EXPECT_EQ(scope.waits[0].key_count, 3);
}

// Parts of a report are read one by one.
TEST_F(ControlStores, ReportAndListOfMuch_HaveItAll) {
  const auto tool = Tool();
  const int port = Open(*tool, "run/1");
  TorchClient setter(port);
  for (int i = 0; i < 2500; ++i) setter.Set(absl::StrCat("/k", 10000 + i), "v");
  std::vector<std::unique_ptr<TorchClient>> waiters;
  for (int i = 0; i < 100; ++i) {
    waiters.push_back(std::make_unique<TorchClient>(port));
    waiters.back()->Wait("/absent");
  }
  const TcpStoreServer& server = server_->tcp_store();
  ASSERT_TRUE(Eventually([&] {
    const auto reports = server.Report(0);
    return reports[0].keys == 2500 && reports[0].wait_count == 100;
  }));
  const TcpStoreScopeReport report = server.Report(70)[0];
  EXPECT_THAT(report.waits, SizeIs(70));
  EXPECT_THAT(report.waits[69].peer, StartsWith("ipv4:127.0.0.1:"));
  ASSERT_THAT(report.missing, SizeIs(1));
  EXPECT_EQ(report.missing[0].clients, 100u);
  const auto all = server.List("run/1", "/k", /*limit=*/0);
  ASSERT_THAT(all, IsOk());
  ASSERT_THAT(*all, SizeIs(2500));
  EXPECT_EQ(all->back().key, "/k12499");
  EXPECT_THAT(*server.List("run/1", "/k", /*limit=*/1500), SizeIs(1500));
  EXPECT_THAT(*server.List("run/1", "/k110", /*limit=*/0), SizeIs(100));
}

// All in one frame, as an agent sends what was called at the same time.
TEST_F(ControlStores, RequestsOfOneFrame_AreExecutedInOrder) {
  ControlStream stream(server_.Channel());
  stream.Attach();
  std::vector<v1::Request> requests(4);
  for (int i = 0; i < 4; ++i) requests[static_cast<size_t>(i)].set_id(static_cast<uint64_t>(i) + 1);
  requests[0].mutable_open_store()->set_scope("run/1");
  requests[1].mutable_list_store()->set_scope("run/1");
  requests[2].mutable_get_job_status();
  requests[3].mutable_close_store()->set_scope("run/1");
  stream.Send(requests);
  EXPECT_GT(stream.ReplyTo(1).port(), 0);
  EXPECT_EQ(stream.ReplyTo(2).code(), 0);
  EXPECT_EQ(stream.ReplyTo(3).job_status().store_scopes_size(), 1);
  EXPECT_EQ(stream.ReplyTo(4).code(), 0);
  EXPECT_FALSE(HasScope("run/1"));
}

}  // namespace
}  // namespace ferry::coord
