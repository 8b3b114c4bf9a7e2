// SPDX-License-Identifier: Apache-2.0
// Requests of real jaxlib wheels, byte for byte as captured, and the bytes that their own service
// answered.
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_replace.h"

#include "test_server.h"

namespace ferry::coord {
namespace {

using absl::StatusCode;

struct CapturedCall {
  const char* method;
  const char* request;
  StatusCode code;
  const char* response;  // or, of an error, the details
  const char* message = "";
};

// 0a 3b 0a 37 <url> 12 00.
constexpr char kPayload[] =
    "0a3b0a37747970652e676f6f676c65617069732e636f6d2f74656e736f72666c6f772e436f6f7264696e6174696f6e"
    "536572766963654572726f721200";

constexpr StatusCode kOk = StatusCode::kOk;

std::string Fixed64(uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}

// Sends each, in order. `replacements`: fields that named the captured service.
void Replay(TestServer& server, const std::string& service, const std::vector<CapturedCall>& calls,
            const std::vector<std::pair<std::string, std::string>>& replacements) {
  auto channel = server.Channel();
  for (const CapturedCall& call : calls) {
    const std::string request =
        absl::StrReplaceAll(absl::HexStringToBytes(call.request), replacements);
    const Answer answer =
        PendingCall::Start(channel, "/" + service + "/" + call.method, request).Wait();
    EXPECT_EQ(answer.code, call.code) << call.method << " " << call.request << answer;
    const std::string expected =
        absl::StrReplaceAll(absl::HexStringToBytes(call.response), replacements);
    EXPECT_EQ(absl::BytesToHexString(call.code == kOk ? answer.body : answer.details),
              absl::BytesToHexString(expected))
        << call.method << " " << call.request;
    EXPECT_EQ(answer.message, call.message) << call.method;
  }
}

TEST(CaptureReplay, Jaxlib0_9) {
  TestServer server(2);
  const std::string theirs = absl::HexStringToBytes("6c225286003cb605");
  Replay(server, "tensorflow.CoordinationService",
         {
             {"RegisterTask", "198f10e767955ba2ac2a0c0a0a6a61785f776f726b6572", kOk,
              "096c225286003cb605"},
             {"RegisterTask", "190fe85f2e8daa2c842a0e0a0a6a61785f776f726b65721001", kOk,
              "096c225286003cb605"},
             {"Heartbeat", "190fe85f2e8daa2c84220e0a0a6a61785f776f726b65721001", kOk,
              "096c225286003cb605"},
             {"InsertKeyValue", "0a0b0a062f612f2f622f120176", kOk, ""},
             {"InsertKeyValue", "0a080a03612f62120177", StatusCode::kAlreadyExists, "",
              "key a/b already exists."},
             {"InsertKeyValue", "0a080a03612f621201771001", kOk, ""},
             {"TryGetKeyValue", "0a03612f62", kOk, "0a080a03612f62120177"},
             {"TryGetKeyValue", "0a0a2f6e6f2f2f737563682f", StatusCode::kNotFound, kPayload,
              "Config key /no//such/ not found."},
             {"IncrementKeyValue", "0a016e1005", kOk, "0a060a016e120135"},
             {"GetKeyValueDir", "0a0161", kOk, "12080a03612f62120177"},
             {"GetKeyValue", "0a03612f62", kOk, "0a080a03612f62120177"},
             {"DeleteKeyValue", "0a01611001", kOk, ""},
             {"GetKeyValueDir", "0a0161", kOk, ""},
         },
         {{theirs, Fixed64(server.incarnation())}});
}

TEST(CaptureReplay, Jaxlib0_9BarrierAnswersWithItsCounter) {
  TestServer server(2);
  auto tasks = server.Registered(Dialect::kTensorflow, 2);
  const char* const kRounds[2][3] = {{"0a03626172108827220e0a0a6a61785f776f726b65721001",
                                      "0a03626172108827220c0a0a6a61785f776f726b6572", ""},
                                     {"0a03626172108827220e0a0a6a61785f776f726b657210012801",
                                      "0a03626172108827220c0a0a6a61785f776f726b65722801", "0801"}};
  for (const auto& round : kRounds) {
    const char* path = "/tensorflow.CoordinationService/Barrier";
    const PendingCall one =
        PendingCall::Start(tasks[1].channel(), path, absl::HexStringToBytes(round[0]));
    const PendingCall other =
        PendingCall::Start(tasks[0].channel(), path, absl::HexStringToBytes(round[1]));
    EXPECT_THAT(one.Wait(), IsOk());
    EXPECT_EQ(absl::BytesToHexString(one.Wait().body), round[2]);
    EXPECT_EQ(absl::BytesToHexString(other.Wait().body), round[2]);
  }
}

TEST(CaptureReplay, Jaxlib0_10) {
  TestServer server(2);
  const std::string theirs = absl::HexStringToBytes("bc642102e077c67d");
  Replay(server, "xla.coordination.CoordinationService",
         {
             {"RegisterTask", "198995234cc698b7a3", kOk, "09bc642102e077c67d"},
             {"RegisterTask", "198b8d75a5368911672801", kOk, "09bc642102e077c67d"},
             {"InsertKeyValue",
              "0a12118995234cc698b7a319bc642102e077c67d120b0a062f612f2f622f120176", kOk, ""},
             {"InsertKeyValue", "0a12118995234cc698b7a319bc642102e077c67d12080a03612f62120177",
              StatusCode::kAlreadyExists, "", "key a/b already exists."},
             {"InsertKeyValue", "0a12118995234cc698b7a319bc642102e077c67d12080a03612f621201771801",
              kOk, ""},
             {"TryGetKeyValue", "0a12118995234cc698b7a319bc642102e077c67d1203612f62", kOk,
              "0a080a03612f62120177"},
             {"TryGetKeyValue", "0a12118995234cc698b7a319bc642102e077c67d120a2f6e6f2f2f737563682f",
              StatusCode::kNotFound, kPayload, "Config key /no//such/ not found."},
             {"IncrementKeyValue", "0a12118995234cc698b7a319bc642102e077c67d12016e1805", kOk,
              "0a060a016e120135"},
             {"GetKeyValueDir", "0a12118995234cc698b7a319bc642102e077c67d120161", kOk,
              "12080a03612f62120177"},
             {"GetKeyValue", "0a12118995234cc698b7a319bc642102e077c67d1203612f62", kOk,
              "0a080a03612f62120177"},
             {"DeleteKeyValue", "0a12118995234cc698b7a319bc642102e077c67d1201611801", kOk, ""},
             {"Heartbeat", "0a12118995234cc698b7a319bc642102e077c67d118995234cc698b7a3", kOk,
              "09bc642102e077c67d"},
             {"Heartbeat", "0a12118b8d75a53689116719bc642102e077c67d118b8d75a5368911671801", kOk,
              "09bc642102e077c67d"},
         },
         {{theirs, Fixed64(server.incarnation())}});
}

// Every request of a client that has outlived its coordinator.
TEST(CaptureReplay, Jaxlib0_10OfAnEarlierServiceIsRefusedByEveryMethod) {
  TestServer server(2);
  auto channel = server.Channel();
  constexpr struct {
    const char* method;
    const char* hex;
  } kRequests[] = {
      {"InsertKeyValue", "0a12118995234cc698b7a319bc642102e077c67d12080a03612f62120177"},
      {"TryGetKeyValue", "0a12118995234cc698b7a319bc642102e077c67d1203612f62"},
      {"GetKeyValue", "0a12118995234cc698b7a319bc642102e077c67d12027a7a"},
      {"DeleteKeyValue", "0a12118995234cc698b7a319bc642102e077c67d1201611801"},
      {"IncrementKeyValue", "0a12118995234cc698b7a319bc642102e077c67d12016e1805"},
      {"GetKeyValueDir", "0a12118995234cc698b7a319bc642102e077c67d120161"},
      {"Barrier", "0a12118995234cc698b7a319bc642102e077c67d1203626172188827"},
      {"CancelBarrier", "0a12118995234cc698b7a319bc642102e077c67d1203626172"},
      {"GetAliveTasks", "0a12118995234cc698b7a319bc642102e077c67d1a020001"},
      {"WatchTasks", "0a12118995234cc698b7a319bc642102e077c67d10ffffffffffffffffff01"},
      {"Heartbeat", "0a12118995234cc698b7a319bc642102e077c67d118995234cc698b7a3"},
      {"PollForError", "0a12118995234cc698b7a319bc642102e077c67d"},
      {"ShutdownTask", "0a12118995234cc698b7a319bc642102e077c67d"},
  };
  // ServiceMismatchError{1: fixed64}.
  const std::string payload = "\x09" + Fixed64(server.incarnation());
  for (const auto& request : kRequests) {
    const Answer answer =
        PendingCall::Start(channel,
                           std::string("/xla.coordination.CoordinationService/") + request.method,
                           absl::HexStringToBytes(request.hex))
            .Wait();
    EXPECT_THAT(answer,
                Fails(StatusCode::kInternal, ::testing::HasSubstr("wrong service incarnation")))
        << request.method;
    EXPECT_EQ(PayloadsOf(answer)[kMismatchPayload], payload) << request.method;
  }
  EXPECT_EQ(server.parked(), 0u);
}

// 0.4.13: no counters; connect is RegisterTask and then a barrier of a fixed name.
TEST(CaptureReplay, Jaxlib0_4ConnectsByItsOwnBarrier) {
  TestServer server(2);
  auto first = server.Channel();
  auto second = server.Channel();
  const std::string path = "/tensorflow.CoordinationService/";
  const auto send = [&](const std::shared_ptr<grpc::Channel>& channel, const char* method,
                        const char* hex) {
    return PendingCall::Start(channel, path + method, absl::HexStringToBytes(hex));
  };
  EXPECT_THAT(send(first, "RegisterTask", "19c5babd78bfb8bf842a0c0a0a6a61785f776f726b6572").Wait(),
              IsOk());
  EXPECT_THAT(
      send(second, "RegisterTask", "1906837c451cd2f0452a0e0a0a6a61785f776f726b65721001").Wait(),
      IsOk());
  const PendingCall one =
      send(second, "Barrier",
           "0a13506a52545f436c69656e745f436f6e6e65637410c0a907220e0a0a6a61785f776f726b65721001");
  EXPECT_THAT(
      send(second, "Heartbeat", "1906837c451cd2f045220e0a0a6a61785f776f726b65721001").Wait(),
      IsOk());
  EXPECT_FALSE(one.done());
  const PendingCall other =
      send(first, "Barrier",
           "0a13506a52545f436c69656e745f436f6e6e65637410c0a907220c0a0a6a61785f776f726b6572");
  EXPECT_THAT(other.Wait(), IsOk());
  EXPECT_EQ(one.Wait().body, "");
  EXPECT_THAT(one.Wait(), IsOk());
}

}  // namespace
}  // namespace ferry::coord
