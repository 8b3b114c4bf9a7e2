// SPDX-License-Identifier: Apache-2.0
// Addresses that a node is given, and those that it advertises; tensors over IPv6.
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <chrono>
#include <string>

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/client_unary_call.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "node/endpoint_record.h"
#include "rendezvous/recv_tensor/tensor_channel.h"
#include "tests/node/engine_pair.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Addresses, CommonSpellingsAreCompleted) {
  const std::pair<const char*, const char*> kGood[] = {
      {"10.0.0.3", "10.0.0.3:70"},
      {"10.0.0.3:5", "10.0.0.3:5"},
      {"worker-3.jobs", "worker-3.jobs:70"},
      {"worker-3:65535", "worker-3:65535"},
      {"::1", "[::1]:70"},
      {"[::1]", "[::1]:70"},
      {"[::1]:5", "[::1]:5"},
      {"2001:db8::7:41", "[2001:db8::7:41]:70"},
      {"fe80::1%eth0", "[fe80::1%eth0]:70"},
      {"[fe80::1%eth0]:5", "[fe80::1%eth0]:5"},
  };
  for (const auto& [written, expected] : kGood) {
    const auto complete = CompleteAddress(written, 70);
    ASSERT_TRUE(complete.ok()) << complete.status();
    EXPECT_EQ(*complete, expected);
  }
  for (const char* written : {"", ":5", "host:", "host:x", "host:0", "host:65536", "host:5:6",
                              "[::1", "[::1]5", "[::1]:", "[host]:5", "::1]:5", "1:2:3"}) {
    const auto complete = CompleteAddress(written, 70);
    EXPECT_EQ(complete.status().code(), absl::StatusCode::kInvalidArgument) << written;
    EXPECT_THAT(std::string(complete.status().message()), HasSubstr("--advertise"));
  }
}

TEST(Addresses, AdvertisedPortIsTheWireProtocols) {
  Directory directory;
  TransferEngineOptions options;
  options.advertise = "10.0.0.3:5";
  options.protocol = WireProtocol::kGrpc;
  EngineEnd grpc(directory, 1, options);
  EXPECT_EQ(grpc.engine->self().grpc_address, "10.0.0.3:5");
  EXPECT_NE(grpc.engine->self().channels.tcp[0], "10.0.0.3:5");
  EXPECT_THAT(grpc.engine->self().channels.tcp[0], HasSubstr("10.0.0.3:"));
  options.protocol = WireProtocol::kNative;
  EngineEnd channel(directory, 2, options);
  EXPECT_EQ(channel.engine->self().channels.tcp[0], "10.0.0.3:5");
  options.advertise = "host:5:6";
  options.token = "token";
  const auto refused = TransferEngine::Start(options, {}, {});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument) << refused.status();
}

// A node's endpoint may be a list of addresses, some of which are not reachable.
TEST(Addresses, GrpcTriesEachOfSeveralAddresses) {
  for (const char* const before : {"127.0.0.1:1", "[::1]:1", "127.0.0.1:1,127.0.0.2:1,[::1]:1"}) {
    Directory directory;
    TransferEngineOptions options;
    options.protocol = WireProtocol::kGrpc;
    EngineEnd source(directory, 1, options);
    EngineEnd sink(directory, 2, options);
    Endpoint told = source.engine->self();
    told.grpc_address = absl::StrCat(before, ",", told.grpc_address);
    directory.Publish(told);
    const Tensor sent = *Tensor::Allocate(DataType::kUint8, *Shape::Create({100'000}));
    const RendezvousKey key = KeyBetween(source, sink, "t");
    Receipt receipt;
    sink.Step(1)->RecvAsync(key, {}, receipt.callback());
    ASSERT_TRUE(source.Step(1)->Send(key, sent).ok());
    EXPECT_TRUE(receipt.Wait().ok()) << before << ": " << receipt.Wait().status();
  }
}

TEST(Addresses, SeveralAddressesAreOneTargetOfGrpc) {
  EXPECT_EQ(TensorTarget("10.0.0.3:5"), "10.0.0.3:5");
  EXPECT_EQ(TensorTarget("[fd00::3]:5"), "[fd00::3]:5");
  EXPECT_EQ(TensorTarget("10.0.0.3:5,[fd00::3]:6"), "ipv6:%5B::ffff:10.0.0.3%5D:5,%5Bfd00::3%5D:6");
}

TEST(Addresses, UnreachableWorker_IsNotReportedAsDead) {
  Directory directory;
  TransferEngineOptions options;
  options.protocol = WireProtocol::kGrpc;
  EngineEnd source(directory, 1, options);
  EngineEnd sink(directory, 2, options);
  Endpoint told = source.engine->self();
  told.grpc_address = "127.0.0.1:1,[::1]:1";
  directory.Publish(told);
  Receipt receipt;
  sink.Step(1)->RecvAsync(KeyBetween(source, sink, "t"), {}, receipt.callback());
  const absl::Status status = receipt.Wait().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("node 1 cannot be reached at 127.0.0.1:1, [::1]:1"),
                    HasSubstr("--advertise=ADDRESS"), Not(HasSubstr("died"))));
}

// A session that is opened at a worker, as TensorFlow's own servers have both at one port.
TEST(Addresses, CoordinatorServiceAtANodesPort_NamesTheCoordinatorsAddress) {
  Directory directory;
  TransferEngineOptions options;
  options.protocol = WireProtocol::kGrpc;
  options.coordinator = "head:9470";
  EngineEnd node(directory, 1, options);
  const auto channel = MakeTensorChannel(node.engine->self().grpc_address);
  for (const char* const path :
       {"/tensorflow.MasterService/CreateSession", "/tensorflow.grpc.MasterService/ListDevices",
        "/tensorflow.CoordinationService/RegisterTask",
        "/xla.coordination.CoordinationService/RegisterTask",
        "/xla.DistributedRuntimeService/Connect", "/ferry.v1.Control/Attach"}) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    const grpc::Slice empty;
    const grpc::ByteBuffer request(&empty, 1);
    grpc::ByteBuffer response;
    const grpc::Status status =
        grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
            channel.get(),
            grpc::internal::RpcMethod(path, grpc::internal::RpcMethod::NORMAL_RPC, channel),
            &context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << path;
    EXPECT_THAT(status.error_message(), AllOf(HasSubstr("this is node 1's worker port"),
                                              HasSubstr("at the coordinator, head:9470")))
        << path;
  }
}

// An interface that is up: "fe80::1%eth0". Empty: there is none.
std::string LinkLocalAddress() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "";
  std::string found;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    char host[NI_MAXHOST];
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET6 ||
        (each->ifa_flags & IFF_UP) == 0 ||
        getnameinfo(each->ifa_addr, sizeof(sockaddr_in6), host, sizeof(host), nullptr, 0,
                    NI_NUMERICHOST) != 0) {
      continue;
    }
    if (absl::StrContains(host, '%')) found = host;
  }
  freeifaddrs(list);
  return found;
}

// Tensors by all paths, through `address` alone.
void ExpectTransfers(const std::string& address, WireProtocol protocol,
                     const std::string& advertise) {
  Directory directory;
  TransferEngineOptions options;
  options.protocol = protocol;
  options.listen = absl::StrCat("[", address, "]:0");
  options.grpc_listen = options.listen;
  options.unix_socket = false;
  options.advertise = advertise;
  if (protocol == WireProtocol::kNative) options.require_transport = "tcp";
  EngineEnd source(directory, 1, options);
  EngineEnd sink(directory, 2, options);
  const Endpoint& self = source.engine->self();
  ASSERT_EQ(self.channels.tcp.size(), 1u);
  EXPECT_THAT(self.channels.tcp[0], HasSubstr(absl::StrCat("[", address, "]:")));
  if (protocol == WireProtocol::kGrpc) {
    EXPECT_THAT(self.grpc_address, HasSubstr(absl::StrCat("[", address, "]:")));
  }
  for (const int64_t bytes : {0, 1, 40'000, 5'000'011}) {
    Tensor sent = *Tensor::Allocate(DataType::kUint8, *Shape::Create({bytes}));
    FillPattern(sent, static_cast<uint32_t>(bytes));
    const RendezvousKey key = KeyBetween(source, sink, absl::StrCat("t", bytes));
    Receipt receipt;
    sink.Step(1)->RecvAsync(key, {}, receipt.callback());
    ASSERT_TRUE(source.Step(1)->Send(key, sent).ok());
    const auto received = receipt.Wait();
    ASSERT_TRUE(received.ok()) << bytes << ": " << received.status();
    EXPECT_TRUE(IsEqual(received->tensor, sent)) << bytes;
  }
}

bool HasIpv6Loopback() {
  Directory directory;
  TransferEngineOptions options;
  options.listen = "[::1]:0";
  options.token = "token";
  return TransferEngine::Start(options, {}, directory.resolver()).ok();
}

TEST(Ipv6, TensorsGoOverTheLoopback) {
  if (!HasIpv6Loopback()) GTEST_SKIP() << "this machine has no ::1";
  // Advertised as it is listened on, and as users write it.
  for (const char* advertise : {"", "::1", "[::1]"}) {
    ExpectTransfers("::1", WireProtocol::kNative, advertise);
    ExpectTransfers("::1", WireProtocol::kGrpc, advertise);
  }
}

// Which gRPC does not connect to.
TEST(Ipv6, TensorsGoOverALinkLocalAddress) {
  const std::string address = LinkLocalAddress();
  if (address.empty()) GTEST_SKIP() << "this machine has no link-local address";
  ExpectTransfers(address, WireProtocol::kNative, "");
  ExpectTransfers(address, WireProtocol::kNative, address);
}

}  // namespace
}  // namespace ferry
