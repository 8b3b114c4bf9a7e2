// SPDX-License-Identifier: Apache-2.0
// Every field of TensorFlow's messages has its number and its type here, and nothing else has.
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "proto/tf_master.pb.h"
#include "proto/tf_worker.pb.h"

namespace ferry {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::ServiceDescriptor;
using ::testing::ElementsAre;

const DescriptorPool& Pool() {
  // Mentioning one message of a file brings the file, and what it imports, into the pool.
  tensorflow::RunStepRequest::descriptor();
  tensorflow::RunGraphRequest::descriptor();
  return *DescriptorPool::generated_pool();
}

std::vector<std::vector<std::string>> ReadTable(const std::string& name) {
  std::ifstream file(absl::StrCat(FERRY_SOURCE_DIR, "/tests/proto/", name));
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    rows.push_back(absl::StrSplit(line, ' '));
  }
  return rows;
}

// Messages that are never parsed here.
bool IsCarriedUnread(const std::string& type) {
  static const auto* const kTypes = new std::set<std::string>{
      "google.protobuf.Any", "RewriterConfig", "CoordinationServiceConfig"};
  return kTypes->count(type) != 0;
}

// "bytes" stands for strings as well, and for messages that are carried unparsed: on the wire they
// are the same.
std::string WireType(std::string type) {
  return type == "string" || IsCarriedUnread(type) ? "bytes" : type;
}

std::string TypeOf(const FieldDescriptor& field) {
  std::string type = field.type_name();
  if (field.type() == FieldDescriptor::TYPE_MESSAGE) type = field.message_type()->full_name();
  if (field.type() == FieldDescriptor::TYPE_ENUM) type = field.enum_type()->full_name();
  return std::string(absl::StripPrefix(type, "tensorflow."));
}

// A wrong number causes no visible error: the field is just never set.
TEST(TensorFlowProto, HasEveryFieldWithItsNumberAndType) {
  // Contents that cannot be sent.
  const std::set<std::string> left_out = {"TensorProto.resource_handle_val",
                                          "TensorProto.variant_val"};
  int checked = 0;
  for (const std::vector<std::string>& row : ReadTable("tensorflow_fields.txt")) {
    const Descriptor* message = Pool().FindMessageTypeByName(absl::StrCat("tensorflow.", row[0]));
    ASSERT_NE(message, nullptr) << row[0];
    if (row.size() == 1) {
      EXPECT_EQ(message->field_count(), 0) << row[0];
      continue;
    }
    ASSERT_EQ(row.size(), 4u) << row[0];
    const std::string name = absl::StrCat(row[0], ".", row[2]);
    if (left_out.count(name) != 0) continue;
    int number = 0;
    ASSERT_TRUE(absl::SimpleAtoi(row[1], &number)) << name;
    const FieldDescriptor* field = message->FindFieldByNumber(number);
    ASSERT_NE(field, nullptr) << name;
    EXPECT_EQ(field->name(), row[2]);
    absl::string_view type = row[3];
    EXPECT_EQ(absl::ConsumeSuffix(&type, "*"), field->is_repeated()) << name;
    EXPECT_EQ(WireType(TypeOf(*field)), WireType(std::string(type))) << name;
    // Numbers in a row are in one piece on the wire.
    EXPECT_EQ(field->is_packed(), field->is_repeated() && field->is_packable()) << name;
    ++checked;
  }
  EXPECT_GT(checked, 500);
}

// Fields of other versions of TensorFlow, from its sources.
TEST(TensorFlowProto, HasNoOtherFields) {
  const std::set<std::string> of_others = {
      "ConfigProto.pluggable_device_options",  // since 2.16
      "CompleteGroupRequest.device_name",      // until 2.4
      "CompleteGroupResponse.device_name",
      "CompleteGroupResponse.task_name",
  };
  std::map<std::string, std::set<std::string>> known;
  for (const std::vector<std::string>& row : ReadTable("tensorflow_fields.txt")) {
    std::set<std::string>& fields = known[row[0]];
    if (row.size() > 2) fields.insert(row[2]);
  }
  for (const auto& [name, fields] : known) {
    const Descriptor* message = Pool().FindMessageTypeByName(absl::StrCat("tensorflow.", name));
    ASSERT_NE(message, nullptr) << name;
    for (int i = 0; i < message->field_count(); ++i) {
      const std::string field = message->field(i)->name();
      EXPECT_TRUE(fields.count(field) != 0 || of_others.count(absl::StrCat(name, ".", field)) != 0)
          << name << "." << field;
    }
  }
}

TEST(TensorFlowProto, HasTheNumbersOfEnumerations) {
  int checked = 0;
  for (const std::vector<std::string>& row : ReadTable("tensorflow_enums.txt")) {
    const EnumDescriptor* type = Pool().FindEnumTypeByName(absl::StrCat("tensorflow.", row[0]));
    ASSERT_NE(type, nullptr) << row[0];
    const auto* value = type->FindValueByName(row[1]);
    ASSERT_NE(value, nullptr) << row[1];
    EXPECT_EQ(absl::StrCat(value->number()), row[2]) << row[1];
    ++checked;
  }
  EXPECT_GT(checked, 100);
}

std::vector<std::string> MethodsOf(const ServiceDescriptor& service) {
  std::vector<std::string> methods;
  for (int i = 0; i < service.method_count(); ++i) {
    const auto& method = *service.method(i);
    EXPECT_EQ(method.input_type()->full_name(),
              absl::StrCat("tensorflow.", method.name(), "Request"));
    EXPECT_EQ(method.output_type()->full_name(),
              absl::StrCat("tensorflow.", method.name(), "Response"));
    EXPECT_FALSE(method.client_streaming() || method.server_streaming()) << method.name();
    methods.push_back(method.name());
  }
  return methods;
}

// Clients call the first name; stubs that are generated from TensorFlow's own file call the second.
TEST(TensorFlowProto, HasTheMastersServiceUnderBothNames) {
  for (const char* name : {"tensorflow.MasterService", "tensorflow.grpc.MasterService"}) {
    const ServiceDescriptor* service = Pool().FindServiceByName(name);
    ASSERT_NE(service, nullptr) << name;
    EXPECT_THAT(
        MethodsOf(*service),
        ElementsAre("CreateSession", "ExtendSession", "PartialRunSetup", "RunStep", "CloseSession",
                    "ListDevices", "Reset", "MakeCallable", "RunCallable", "ReleaseCallable"));
  }
}

TEST(TensorFlowProto, HasTheWorkersService) {
  const ServiceDescriptor* service = Pool().FindServiceByName("tensorflow.WorkerService");
  ASSERT_NE(service, nullptr);
  EXPECT_THAT(MethodsOf(*service),
              ElementsAre("GetStatus", "CreateWorkerSession", "DeleteWorkerSession",
                          "RegisterGraph", "DeregisterGraph", "RunGraph", "CleanupGraph",
                          "CleanupAll", "RecvTensor", "MarkRecvFinished", "RecvBuf", "Logging",
                          "Tracing", "CompleteGroup", "CompleteInstance", "GetStepSequence"));
}

}  // namespace
}  // namespace ferry
