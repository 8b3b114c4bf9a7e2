// SPDX-License-Identifier: Apache-2.0
// The rendezvous of PyTorch's nodes on the coordinator's port, in lines of JSON.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "agent_fixture.h"
#include "base/unique_fd.h"
#include "reserved_descriptors.h"
#include "test_server.h"

namespace ferry::coord {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kPatienceMs = 30'000;

// A client that is bytes in and out.
class LineClient {
 public:
  explicit LineClient(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    EXPECT_EQ(connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  void Send(absl::string_view bytes) {
    EXPECT_EQ(send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // Returns the next line, or "end" if the connection has ended.
  std::string Line() {
    size_t end;
    while ((end = received_.find('\n')) == std::string::npos) {
      pollfd wait = {fd_.get(), POLLIN, 0};
      char bytes[4096];
      if (poll(&wait, 1, kPatienceMs) != 1) return "no line came in time";
      const ssize_t got = recv(fd_.get(), bytes, sizeof(bytes), 0);
      if (got <= 0) return "end";
      received_.append(bytes, static_cast<size_t>(got));
    }
    std::string line = received_.substr(0, end);
    received_.erase(0, end + 1);
    return line;
  }
  std::string Ask(absl::string_view request) {
    Send(absl::StrCat(request, "\n"));
    return Line();
  }

 private:
  UniqueFd fd_;
  std::string received_;
};

std::string AgentText(absl::string_view name) {
  return absl::StrCat(R"({"run_id":"job","agent_id":")", name, R"("})");
}

std::string Join(int id, absl::string_view name, int nodes, double timeout_s = 60) {
  return absl::StrCat(R"({"id":)", id, R"(,"join":{"agent":)", AgentText(name), R"(,"host":"host-)",
                      name, R"(","attempt":1,"min_nodes":)", nodes, R"(,"max_nodes":)", nodes,
                      R"(,"last_call_timeout_s":30,"join_timeout_s":)", timeout_s,
                      R"(,"heartbeat_timeout_s":60}})");
}

std::string Call(int id, absl::string_view call, absl::string_view name) {
  return absl::StrCat(R"({"id":)", id, R"(,")", call, R"(":{"agent":)", AgentText(name), "}}");
}

class ElasticWire : public ::testing::Test {
 protected:
  static ServerOptions Options() {
    ServerOptions options = TestOptions(1);
    options.elastic.reconnect_grace = absl::Milliseconds(50);
    options.elastic.closed_linger = absl::ZeroDuration();
    return options;
  }

  TestServer server_{Options()};
};

TEST_F(ElasticWire, TwoNodesJoin_HaveRanksAndOneStore) {
  LineClient a(server_->port());
  LineClient b(server_->port());
  b.Send(Join(7, "b", 2) + "\n");
  const std::string of_a = a.Ask(Join(1, "a", 2));
  EXPECT_THAT(of_a, AllOf(HasSubstr(R"("id":1)"), HasSubstr(R"("rank":0)"),
                          HasSubstr(R"("nodes":2)"), HasSubstr(R"("error":"")")));
  EXPECT_THAT(b.Line(), AllOf(HasSubstr(R"("id":7)"), HasSubstr(R"("rank":1)")));
  const auto scopes = server_->tcp_store().Report(0);
  ASSERT_THAT(scopes, SizeIs(1));
  EXPECT_THAT(of_a, HasSubstr(absl::StrCat(R"("port":)", scopes[0].port)));
  // The store is there.
  EXPECT_GT(scopes[0].port, 0);
  LineClient torch(scopes[0].port);
  torch.Send(std::string("\x00\xCE\xF7\x85\x3C\x0D\x01\x02\x03\n", 10));
  EXPECT_EQ(torch.Line(), "\x01\x02\x03");
}

TEST_F(ElasticWire, RequestsComeByteByByteAndTogether_AreAnsweredInOrder) {
  LineClient a(server_->port());
  for (const char byte : Join(1, "a", 1) + "\n") a.Send(absl::string_view(&byte, 1));
  EXPECT_THAT(a.Line(), HasSubstr(R"("rank":0)"));
  a.Send(absl::StrCat(Call(2, "keep_alive", "a"), "\n", Call(3, "keep_alive", "x"), "\n"));
  EXPECT_THAT(a.Line(), AllOf(HasSubstr(R"("id":2)"), HasSubstr(R"("is_known":true)")));
  EXPECT_THAT(a.Line(), AllOf(HasSubstr(R"("id":3)"), HasSubstr(R"("is_known":false)")));
}

TEST_F(ElasticWire, ConnectionEnds_OtherNodeLearnsIt) {
  LineClient a(server_->port());
  auto b = std::make_unique<LineClient>(server_->port());
  b->Send(Join(1, "b", 2) + "\n");
  a.Ask(Join(1, "a", 2));
  b->Line();
  b.reset();
  EXPECT_TRUE(Eventually([&a] {
    return a.Ask(Call(2, "keep_alive", "a")).find(R"("waiting":1)") != std::string::npos;
  }));
}

TEST_F(ElasticWire, NodeIsMissing_ErrorComesAtTheDeadline) {
  LineClient a(server_->port());
  EXPECT_THAT(a.Ask(Join(1, "a", 2, 0.05)), AllOf(HasSubstr(R"("error":"DEADLINE_EXCEEDED")"),
                                                  HasSubstr("1 of 2 nodes"), HasSubstr("host-a")));
}

TEST_F(ElasticWire, RunIsClosedAndLeft_IdIsFree) {
  LineClient a(server_->port());
  a.Ask(Join(1, "a", 1));
  EXPECT_THAT(a.Ask(Call(2, "close", "a")), HasSubstr(R"("error":"")"));
  EXPECT_THAT(a.Ask(Join(3, "c", 1)), HasSubstr(R"("error":"FAILED_PRECONDITION")"));
  a.Ask(Call(4, "leave", "a"));
  EXPECT_TRUE(Eventually([this] { return server_->elastic().Report().empty(); }));
  EXPECT_THAT(server_->tcp_store().Report(0), IsEmpty());
  EXPECT_THAT(a.Ask(Join(5, "c", 1)), HasSubstr(R"("round":0)"));
}

TEST_F(ElasticWire, RanksMeet_HaveTheRanksThatTheyAskFor) {
  LineClient a(server_->port());
  std::string join = Join(1, "a", 1);
  join.replace(join.find(R"("run_id")"), 0, R"("is_group":true,)");
  EXPECT_THAT(a.Ask(join), HasSubstr(R"("rank":0)"));
  EXPECT_TRUE(server_->elastic().Report()[0].id.is_group);
}

TEST_F(ElasticWire, LineIsNoRequest_ConnectionEndsWithAReason) {
  for (const absl::string_view line : {"{]", "{\"id\":\"x\"}", "{\"join\":7}", "{\xff}"}) {
    LineClient client(server_->port());
    EXPECT_THAT(client.Ask(line), HasSubstr("INVALID_ARGUMENT")) << line;
    EXPECT_EQ(client.Line(), "end") << line;
  }
}

TEST_F(ElasticWire, NestingIsDeep_ConnectionEnds) {
  LineClient client(server_->port());
  EXPECT_THAT(client.Ask(absl::StrCat(R"({"x":)", std::string(15'000, '['))),
              HasSubstr("INVALID_ARGUMENT"));
}

TEST_F(ElasticWire, LineHasNoEnd_ConnectionEnds) {
  LineClient client(server_->port());
  client.Send("{" + std::string(ElasticServer::kMaxLineBytes, ' '));
  EXPECT_THAT(client.Line(), HasSubstr("bytes"));
  EXPECT_EQ(client.Line(), "end");
}

TEST_F(ElasticWire, UnknownRequestsAndFields_AreSkippedOrRejected) {
  LineClient client(server_->port());
  EXPECT_THAT(client.Ask(R"({"id":4,"dance":{}})"),
              AllOf(HasSubstr(R"("id":4)"), HasSubstr("UNIMPLEMENTED")));
  EXPECT_THAT(client.Ask(R"({"id":5,"keep_alive":{"agent":{"run_id":"r","shoe_size":43}}})"),
              HasSubstr(R"("is_known":false)"));
}

TEST_F(ElasticWire, NumbersAreOutOfRange_AreRefused) {
  LineClient client(server_->port());
  for (const absl::string_view timeout : {"\"NaN\"", "-1", "1e300", "\"Infinity\""}) {
    std::string join = Join(1, "a", 1);
    const std::string field = R"("join_timeout_s":60)";
    join.replace(join.find(field), field.size(), absl::StrCat(R"("join_timeout_s":)", timeout));
    EXPECT_THAT(client.Ask(join), HasSubstr("INVALID_ARGUMENT")) << timeout;
  }
  std::string join = Join(1, "a", 1);
  join.replace(join.find(R"("max_nodes":1)"), 13, R"("max_nodes":4294967295)");
  EXPECT_THAT(client.Ask(join), HasSubstr("INVALID_ARGUMENT"));
  EXPECT_THAT(server_->elastic().Report(), IsEmpty());
}

TEST_F(ElasticWire, ConnectionSpeaksForManyAgents_IsLimited) {
  LineClient client(server_->port());
  std::string last;
  for (int i = 0; i <= 64; ++i) last = client.Ask(Call(1, "keep_alive", absl::StrCat("agent", i)));
  EXPECT_THAT(last, HasSubstr("RESOURCE_EXHAUSTED"));
}

TEST_F(ElasticWire, CoordinatorStops_ConnectionEnds) {
  LineClient client(server_->port());
  client.Send(Join(1, "a", 2) + "\n");
  ASSERT_TRUE(Eventually([this] { return !server_->elastic().Report().empty(); }));
  server_->Stop();
  // No answer: the node asks the coordinator that comes next.
  EXPECT_EQ(client.Line(), "end");
}

TEST_F(ElasticWire, RequestComesAfterTheStop_BeginsNoRun) {
  LineClient client(server_->port());
  EXPECT_THAT(client.Ask(Call(1, "keep_alive", "a")), HasSubstr("run_state"));
  server_->elastic().Stop();
  client.Send(Join(2, "a", 1) + "\n");
  server_->Stop();
  EXPECT_EQ(client.Line(), "end");
  EXPECT_THAT(server_->elastic().Report(), IsEmpty());
}

TEST_F(ElasticWire, AgentsHaveLeft_ConnectionMaySpeakForOthers) {
  LineClient client(server_->port());
  std::string last;
  for (int i = 0; i <= 64; ++i) {
    const std::string name = absl::StrCat("agent", i);
    last = client.Ask(Call(1, "keep_alive", name));
    client.Ask(Call(2, "leave", name));
  }
  EXPECT_THAT(last, HasSubstr("run_state"));
}

TEST_F(ElasticWire, NamesAreTooLong_AreNotKept) {
  LineClient client(server_->port());
  std::string last;
  for (int i = 0; i <= 64; ++i) {
    last = client.Ask(Call(1, "keep_alive", absl::StrCat(std::string(1000, 'x'), i)));
  }
  EXPECT_THAT(last, HasSubstr(R"("is_known":false)"));
}

TEST(ElasticLimits, RequestDoesNotEnd_ConnectionEnds) {
  ServerOptions options = TestOptions(1);
  options.hello_timeout = absl::Milliseconds(50);
  TestServer server(options);
  LineClient quiet(server->port());
  EXPECT_THAT(quiet.Ask(Call(1, "keep_alive", "a")), HasSubstr("run_state"));
  LineClient client(server->port());
  client.Send(R"({"id":1,)");
  EXPECT_EQ(client.Line(), "end");
  // One with a request may be silent for longer.
  EXPECT_THAT(quiet.Ask(Call(2, "keep_alive", "a")), HasSubstr("run_state"));
}

TEST(ElasticLimits, OnlyReservedDescriptorsAreLeft_NoStoreIsOpened) {
  TestServer server(1);
  LineClient client(server->port());
  EXPECT_THAT(client.Ask(Call(1, "keep_alive", "a")), HasSubstr("run_state"));
  {
    const OnlyReservedDescriptorsLeft few;
    EXPECT_THAT(client.Ask(Join(2, "a", 1)),
                AllOf(HasSubstr("RESOURCE_EXHAUSTED"), HasSubstr("are for other clients: raise")));
  }
  std::string again = Join(3, "a", 1);
  again.replace(again.find(R"("attempt":1)"), 11, R"("attempt":2)");
  EXPECT_THAT(client.Ask(again), HasSubstr(R"("error":"")"));
}

TEST(ElasticLimits, ConnectionWithAReservedDescriptor_IsClosed) {
  TestServer server(1);
  {
    const OnlyReservedDescriptorsLeft few;
    LineClient client(server->port());
    EXPECT_EQ(client.Ask(Call(1, "keep_alive", "a")), "end");
  }
  LineClient client(server->port());
  EXPECT_THAT(client.Ask(Call(1, "keep_alive", "a")), HasSubstr("run_state"))
      << "there are enough descriptors";
}

TEST_F(ElasticWire, Status_HasRuns) {
  LineClient a(server_->port());
  a.Send(Join(1, "a", 2) + "\n");
  ASSERT_TRUE(Eventually([this] { return !server_->elastic().Report().empty(); }));
  auto tool = Agent::Connect(ToolOptions(server_.address()));
  ASSERT_THAT(tool, IsOk());
  const auto status = (*tool)->Status();
  ASSERT_THAT(status, IsOk());
  ASSERT_THAT(status->elastic_runs, SizeIs(1));
  EXPECT_EQ(status->elastic_runs[0].run_id, "job");
  EXPECT_EQ(status->elastic_runs[0].max_nodes, 2);
  EXPECT_EQ(status->elastic_runs[0].round, -1);
  ASSERT_THAT(status->elastic_runs[0].agents, SizeIs(1));
  EXPECT_EQ(status->elastic_runs[0].agents[0].host, "host-a");
  EXPECT_TRUE(status->elastic_runs[0].agents[0].is_waiting);
}

}  // namespace
}  // namespace ferry::coord
