// SPDX-License-Identifier: Apache-2.0
// Endpoints, as published in the store.
#include "node/endpoint_record.h"

#include <functional>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/peer_record_rules.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

Endpoint FullEndpoint() {
  Endpoint endpoint;
  endpoint.peer = {3, 0xfedcba9876543210u};
  endpoint.boot_id = "0e4b";
  endpoint.host_name = "h\xc3\xb6st \xff";
  endpoint.channels.unix_name = "ferry-00ff";
  endpoint.channels.tcp = {"10.0.0.3:4000", "[fe80::1%eth0]:4000"};
  endpoint.grpc_address = "10.0.0.3:5000,[::1]:5000";
  endpoint.gpus = {"GPU-1", "", "GPU-2"};
  endpoint.transports = {{"shm", ""}, {"nccl", std::string("\0\xff\n", 3)}};
  endpoint.has_gpu_kernels = true;
  return endpoint;
}

void ExpectRoundTrip(const Endpoint& endpoint) {
  const absl::StatusOr<Endpoint> read = DecodeEndpoint(EncodeEndpoint(endpoint), 3);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->peer, endpoint.peer);
  EXPECT_EQ(read->boot_id, endpoint.boot_id);
  EXPECT_EQ(read->host_name, endpoint.host_name);
  EXPECT_EQ(read->channels.unix_name, endpoint.channels.unix_name);
  EXPECT_EQ(read->channels.tcp, endpoint.channels.tcp);
  EXPECT_EQ(read->grpc_address, endpoint.grpc_address);
  EXPECT_EQ(read->gpus, endpoint.gpus);
  EXPECT_EQ(read->transports, endpoint.transports);
  EXPECT_EQ(read->has_gpu_kernels, endpoint.has_gpu_kernels);
}

TEST(EndpointRecord, RoundTripsEveryField) {
  ExpectRoundTrip(FullEndpoint());
  ExpectRoundTrip({});
  Endpoint largest;
  largest.peer = {std::numeric_limits<int32_t>::max(), std::numeric_limits<uint64_t>::max()};
  largest.channels.tcp.assign(kMaxEndpointItems, "10.0.0.3:4000");
  for (size_t i = 0; i < kMaxTransports; ++i) {
    largest.transports.push_back(
        {absl::StrCat("t", i), std::string(kMaxTransportDescriptorBytes, 'd')});
  }
  largest.gpus.assign(kMaxEndpointItems, "GPU-00000000-0000-0000-0000-000000000000");
  ExpectRoundTrip(largest);
}

TEST(EndpointRecord, FollowsTheRulesOfRecords) {
  Endpoint endpoint = FullEndpoint();
  // The last field is then a text.
  endpoint.transports.clear();
  endpoint.has_gpu_kernels = false;
  ExpectRules(
      {.kind = "endpoint record",
       .key = "ferry/exchange/3",
       .bytes = EncodeEndpoint(endpoint),
       .decode = [](absl::string_view bytes) { return DecodeEndpoint(bytes, 3).status(); }});
}

TEST(EndpointRecord, AtAnotherKey_ErrorsNameThatKey) {
  EXPECT_THAT(std::string(DecodeEndpoint("x", 3, "demo/tcp/3").status().message()),
              HasSubstr("node 3 publishes no valid endpoint record at demo/tcp/3: "));
}

// Any client can write to the store.
TEST(EndpointRecord, OutsideItsBounds_IsRefused) {
  using Record = peer::v1::EndpointRecord;
  const std::pair<std::function<void(Record&)>, const char*> kBad[] = {
      {[](Record& record) { record.clear_node_id(); }, "does not say whose it is"},
      {[](Record& record) { record.clear_incarnation(); }, "does not say whose it is"},
      {[](Record& record) { record.set_node_id(-1); }, "its node_id is -1"},
      {[](Record& record) { record.set_boot_id("a\nb"); }, "in its boot_id"},
      {[](Record& record) { record.set_host_name(std::string("a\0b", 3)); }, "in its host_name"},
      {[](Record& record) { record.set_unix_name("a\x1b[2J"); }, "in its unix_name"},
      {[](Record& record) { record.set_grpc_address("a:1\n"); }, "in its grpc_address"},
      {[](Record& record) { record.set_tcp_addresses(1, "\x7f"); }, "in its tcp_addresses"},
      {[](Record& record) { record.add_gpu_uuids("\t"); }, "in its gpu_uuids"},
      {[](Record& record) {
         while (record.tcp_addresses_size() <= kMaxEndpointItems) record.add_tcp_addresses("a:1");
       },
       "it has 1025 tcp_addresses, over the limit of 1024"},
      {[](Record& record) {
         while (record.gpu_uuids_size() <= kMaxEndpointItems) record.add_gpu_uuids("");
       },
       "it has 1025 gpu_uuids, over the limit of 1024"},
      {[](Record& record) { record.mutable_transports(0)->set_name("a b"); },
       "a transport called \"a b\""},
      {[](Record& record) { record.mutable_transports(0)->set_name("nccl"); },
       "two transports are called nccl"},
      {[](Record& record) {
         record.mutable_transports(0)->set_local_descriptor(std::string(1025, 'x'));
       },
       "the descriptor of transport shm has 1025 bytes"},
      {[](Record& record) {
         for (size_t i = 0; i < kMaxTransports; ++i) {
           record.add_transports()->set_name(absl::StrCat("t", i));
         }
       },
       "34 transports; a process has at most 32"},
      {[](Record& record) { record.set_host_name(std::string(size_t{256} << 10, 'x')); },
       "over the limit of 262144"},
  };
  for (const auto& [change, why] : kBad) {
    Record record;
    ASSERT_TRUE(record.ParseFromString(EncodeEndpoint(FullEndpoint())));
    change(record);
    const absl::Status status = DecodeEndpoint(record.SerializeAsString(), 3).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << why;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }
}

}  // namespace
}  // namespace ferry
