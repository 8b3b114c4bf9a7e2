// SPDX-License-Identifier: Apache-2.0
// Messages as bytes that were written by hand, and fields that are unknown here.
#include <string>

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "proto/tf_master.pb.h"
#include "proto/tf_worker.pb.h"

namespace ferry {
namespace {

std::string Bytes(std::initializer_list<int> bytes) {
  std::string text;
  for (const int byte : bytes) text.push_back(static_cast<char>(byte));
  return text;
}

// Field 4: the numbers below it are not used, and must not be.
TEST(TensorFlowWire, NewGraphVersionIsFieldFour) {
  tensorflow::ExtendSessionResponse response;
  response.set_new_graph_version(1);
  EXPECT_EQ(response.SerializeAsString(), Bytes({0x20, 1}));
}

TEST(TensorFlowWire, RunStepMatchesAClientsBytes) {
  tensorflow::RunStepRequest request;
  request.set_session_handle("h");
  auto& feed = *request.add_feed();
  feed.set_name("x:0");
  feed.mutable_tensor()->set_dtype(tensorflow::DT_FLOAT);
  feed.mutable_tensor()->mutable_tensor_shape();
  feed.mutable_tensor()->set_tensor_content(std::string("\0\0\x80\x3f", 4));
  request.add_fetch("y:0");
  request.add_target("n");
  request.mutable_options()->set_timeout_in_ms(300);
  request.set_store_errors_in_response_body(true);
  EXPECT_EQ(request.SerializeAsString(), Bytes({0x0a, 1,  'h',              // 1: the handle
                                                0x12, 17,                   // 2: a feed
                                                0x0a, 3,  'x',  ':',  '0',  //   1: its name
                                                0x12, 10,                   //   2: its tensor
                                                0x08, 1,                    //     1: float
                                                0x12, 0,                    //     2: a scalar
                                                0x22, 4,  0,    0,    0x80, 0x3f,  //     4: 1.0
                                                0x1a, 3,  'y',  ':',  '0',         // 3: a fetch
                                                0x22, 1,  'n',                     // 4: a target
                                                0x2a, 3,  0x10, 0xac, 2,  // 5: options, 2: 300 ms
                                                0x38, 1}));               // 7: errors in the body
}

TEST(TensorFlowWire, AttributesAreMapEntries) {
  tensorflow::NodeDef node;
  node.set_name("a");
  node.set_op("Const");
  node.add_input("^b");
  node.set_device("/d");
  (*node.mutable_attr())["T"].set_type(tensorflow::DT_INT64);
  EXPECT_EQ(node.SerializeAsString(),
            Bytes({0x0a, 1, 'a', 0x12, 5,    'C', 'o',  'n', 's', 't',  0x1a, 2,    '^', 'b',
                   0x22, 2, '/', 'd',  0x2a, 7,   0x0a, 1,   'T', 0x12, 2,    0x30, 9}));
}

TEST(TensorFlowWire, IncarnationsAreFixed) {
  tensorflow::DeviceAttributes device;
  device.set_incarnation(0x0102030405060708);
  EXPECT_EQ(device.SerializeAsString(), Bytes({0x31, 8, 7, 6, 5, 4, 3, 2, 1}));
}

// Clients are newer than their servers.
TEST(TensorFlowWire, UnknownFieldsAreKept) {
  // Field 1000, a varint; and field 27 of ConfigProto.Experimental (16).
  const std::string unknown = Bytes({0xc0, 0x3e, 7});
  const std::string nested = Bytes({0x12, 6, 0x82, 1, 3, 0xd8, 1, 5});
  tensorflow::CreateSessionRequest request;
  ASSERT_TRUE(request.ParseFromString(nested + unknown));
  EXPECT_EQ(request.SerializeAsString(), nested + unknown);
}

// Names that are not valid text must reach the code that can refuse them with a reason.
TEST(TensorFlowWire, NamesNeedNotBeUtf8) {
  const std::string bytes = Bytes({0x0a, 2, 0xff, 0xfe});
  tensorflow::NodeDef node;
  ASSERT_TRUE(node.ParseFromString(bytes));
  EXPECT_EQ(node.name(), Bytes({0xff, 0xfe}));
  EXPECT_EQ(node.SerializeAsString(), bytes);
}

// An unknown type is returned as its number.
TEST(TensorFlowWire, UnknownTypesKeepTheirNumbers) {
  tensorflow::TensorProto tensor;
  ASSERT_TRUE(tensor.ParseFromString(Bytes({0x08, 0xe8, 7})));
  EXPECT_EQ(static_cast<int>(tensor.dtype()), 1000);
}

// In the text format.
TEST(TensorFlowWire, GraphsAreParsedFromText) {
  tensorflow::GraphDef graph;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "node { name: 'a' op: 'Const' attr { key: 'dtype' value { type: DT_FLOAT } }"
      "       attr { key: 'value' value { tensor { dtype: DT_FLOAT tensor_shape {} "
      "float_val: 1 } } } } versions { producer: 1395 }",
      &graph));
  EXPECT_EQ(graph.node(0).attr().at("value").tensor().dtype(), tensorflow::DT_FLOAT);
  EXPECT_EQ(graph.versions().producer(), 1395);
}

}  // namespace
}  // namespace ferry
