// SPDX-License-Identifier: Apache-2.0
// Messages that are larger than they look.
#include "tensorflow/graph/request_size.h"

#include <algorithm>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/message.h>
#include <google/protobuf/stubs/logging.h>

#include "proto/tf_master.pb.h"
#include "proto/tf_worker.pb.h"
#include "tests/tensorflow/graph/graph_fixture.h"

namespace ferry::graph {
namespace {

using tensorflow::CreateSessionRequest;
using ::testing::HasSubstr;

RequestSize Measure(const google::protobuf::Descriptor* type, const std::string& bytes,
                    int piece = -1) {
  google::protobuf::io::ArrayInputStream wire(bytes.data(), static_cast<int>(bytes.size()), piece);
  return MeasureRequest(*type, wire);
}

absl::Status Check(const std::string& bytes, const RequestLimits& limits) {
  google::protobuf::io::ArrayInputStream wire(bytes.data(), static_cast<int>(bytes.size()));
  return CheckRequestSize(*CreateSessionRequest::descriptor(), wire, bytes.size(), limits);
}

// `times` empty messages in field `number`, inside fields `outer`.
std::string Empties(int number, size_t times, const std::vector<int>& outer = {}) {
  std::string bytes;
  for (size_t i = 0; i < times; ++i) bytes += std::string{static_cast<char>(number << 3 | 2), '\0'};
  for (auto field = outer.rbegin(); field != outer.rend(); ++field) {
    std::string whole(1, static_cast<char>(*field << 3 | 2));
    size_t length = bytes.size();
    for (; length > 127; length >>= 7) whole += static_cast<char>(0x80 | (length & 127));
    whole += static_cast<char>(length);
    bytes = whole + bytes;
  }
  return bytes;
}

// The estimate must never be less than the memory that is used.
void ExpectEnough(const google::protobuf::Message& message) {
  const std::string bytes = message.SerializeAsString();
  for (const int piece : {-1, 1, 7}) {
    const RequestSize size = Measure(message.GetDescriptor(), bytes, piece);
    EXPECT_TRUE(size.is_message);
    EXPECT_GE(size.bytes + message.New()->SpaceUsedLong(), message.SpaceUsedLong() * 9 / 10);
    EXPECT_LE(size.bytes, bytes.size() * kMaxExpansion);
  }
}

TEST(RequestSize, CountsNodesAndMemory) {
  CreateSessionRequest request;
  GraphWriter writer;
  for (int i = 0; i < 1000; ++i) writer.Const(std::string(i % 50, 'x') + std::to_string(i));
  *request.mutable_graph_def() = writer.def();
  auto& function = *request.mutable_graph_def()->mutable_library()->add_function();
  function.mutable_signature()->set_name("f");
  function.add_node_def()->set_name("inside");
  ExpectEnough(request);
  EXPECT_EQ(Measure(request.GetDescriptor(), request.SerializeAsString()).nodes, 1001u);

  tensorflow::RunGraphRequest run;
  for (int i = 0; i < 100; ++i) {
    tensorflow::TensorProto& tensor = *run.add_send()->mutable_tensor();
    for (int k = 0; k < i; ++k) {
      tensor.add_int64_val(k);
      tensor.add_bool_val(true);
      tensor.add_float_val(1);
      tensor.add_string_val("s");
    }
    tensor.mutable_tensor_shape()->add_dim()->set_size(i);
  }
  ExpectEnough(run);
}

// Two bytes each, for every list of messages there is.
TEST(RequestSize, EmptyMessagesAreLarge) {
  const std::string nodes = Empties(1, 100'000, {1});
  CreateSessionRequest parsed;
  ASSERT_TRUE(parsed.ParseFromString(nodes));
  ASSERT_EQ(parsed.graph_def().node_size(), 100'000);
  ExpectEnough(parsed);
  EXPECT_GT(Measure(parsed.GetDescriptor(), nodes).bytes, nodes.size() * 50);

  tensorflow::RunCallableRequest feeds;
  ASSERT_TRUE(feeds.ParseFromString(Empties(3, 10'000)));
  ASSERT_EQ(feeds.feed_size(), 10'000);
  ExpectEnough(feeds);
}

TEST(RequestSize, RefusesNamingTheRequest) {
  RequestLimits limits;
  limits.max_nodes = 1000;
  EXPECT_THAT(Check(Empties(1, 1000, {1}), limits), ::testing::Property(&absl::Status::ok, true));
  EXPECT_THAT(Check(Empties(1, 1001, {1}), limits),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("max_graph_nodes is 1000")));
  // Inside functions as well.
  EXPECT_THAT(Check(Empties(3, 1001, {1, 2, 1}), limits),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("max_graph_nodes")));
  limits = {};
  limits.max_bytes = 1 << 20;
  EXPECT_THAT(Check(Empties(1, 100'000, {1}), limits),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("max_request_bytes is")));
  // Many bytes that do not expand.
  CreateSessionRequest plain;
  plain.set_target(std::string(900'000, 'x'));
  EXPECT_THAT(Check(plain.SerializeAsString(), limits),
              ::testing::Property(&absl::Status::ok, true));
}

// Groups that no field has are walked too, to the depth at which the parser gives up.
TEST(RequestSize, NestedUnknownGroups_AreRefusedAtTheParsersDepth) {
  const auto groups = [](size_t depth) {
    // Field 15 begins and ends a group.
    return std::string(depth, static_cast<char>(15 << 3 | 3)) +
           std::string(depth, static_cast<char>(15 << 3 | 4));
  };
  const auto is_message = [&](size_t depth) {
    return Measure(CreateSessionRequest::descriptor(), groups(depth)).is_message;
  };
  EXPECT_TRUE(is_message(1));
  EXPECT_TRUE(is_message(99));
  EXPECT_FALSE(is_message(101));
  EXPECT_FALSE(is_message(1'000'000));
  CreateSessionRequest parsed;
  EXPECT_TRUE(parsed.ParseFromString(groups(99)));
  const google::protobuf::LogSilencer silencer;
  EXPECT_FALSE(parsed.ParseFromString(groups(101)));
}

TEST(RequestSize, SurvivesArbitraryBytes) {
  const google::protobuf::LogSilencer silence;
  std::mt19937 dice(5);
  CreateSessionRequest request;
  GraphWriter writer;
  for (int i = 0; i < 5; ++i) writer.Const("n" + std::to_string(i));
  *request.mutable_graph_def() = writer.def();
  const std::string good = request.SerializeAsString();
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = good;
    for (int k = 0; k < 1 + i % 4; ++k) bytes[dice() % bytes.size()] = static_cast<char>(dice());
    bytes.resize(dice() % (bytes.size() + 1));
    const RequestSize size = Measure(CreateSessionRequest::descriptor(), bytes);
    // Everything that the parser accepts must have been counted to the end.
    CreateSessionRequest parsed;
    if (size.is_message || !parsed.ParseFromString(bytes)) continue;
    ADD_FAILURE() << "parsed, and not walked: round " << i;
  }
  // At any depth: the parser refuses it too.
  std::string deep;
  for (int i = 0; i < 3000; ++i) deep = Empties(1, 0, {1}) + deep;
  EXPECT_LE(Measure(CreateSessionRequest::descriptor(), deep).bytes, deep.size() * kMaxExpansion);
}

}  // namespace
}  // namespace ferry::graph
