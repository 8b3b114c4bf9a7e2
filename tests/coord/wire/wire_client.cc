// SPDX-License-Identifier: Apache-2.0
// The messages of wire_client.h. By reflection, for the generations differ in where a task is a
// message and where a number, but not in the names that our .proto files give to the fields.
#include "wire_client.h"

#include <google/protobuf/descriptor.h>

#include "proto/tsl_coordination.pb.h"
#include "proto/xla_coordination.pb.h"
#include "proto/xla_coordination_numbered.pb.h"

namespace ferry::coord {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

const FieldDescriptor* Field(const Message& message, const std::string& name) {
  const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(name);
  if (field == nullptr) {
    ADD_FAILURE() << message.GetDescriptor()->full_name() << " has no " << name;
    std::abort();  // a mistake in the test itself
  }
  return field;
}

void SetText(Message& message, const std::string& name, const std::string& value) {
  message.GetReflection()->SetString(&message, Field(message, name), value);
}
void SetNumber(Message& message, const std::string& name, int64_t value) {
  const FieldDescriptor* field = Field(message, name);
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return message.GetReflection()->SetInt32(&message, field, static_cast<int32_t>(value));
    case FieldDescriptor::CPPTYPE_BOOL:
      return message.GetReflection()->SetBool(&message, field, value != 0);
    case FieldDescriptor::CPPTYPE_UINT64:
      return message.GetReflection()->SetUInt64(&message, field, static_cast<uint64_t>(value));
    default:
      return message.GetReflection()->SetInt64(&message, field, value);
  }
}
int64_t Number(const Message& message, const std::string& name) {
  const FieldDescriptor* field = Field(message, name);
  const google::protobuf::Reflection* reflection = message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection->GetInt32(message, field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection->GetEnumValue(message, field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->GetBool(message, field) ? 1 : 0;
    case FieldDescriptor::CPPTYPE_UINT64:
      return static_cast<int64_t>(reflection->GetUInt64(message, field));
    default:
      return reflection->GetInt64(message, field);
  }
}
std::string Text(const Message& message, const std::string& name) {
  return message.GetReflection()->GetString(message, Field(message, name));
}

std::unique_ptr<Message> NewByName(const std::string& full_name) {
  const google::protobuf::Descriptor* type =
      google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName(full_name);
  if (type == nullptr) return nullptr;
  return std::unique_ptr<Message>(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
}

std::unique_ptr<Message> Parse(std::unique_ptr<Message> message, const Answer& answer) {
  EXPECT_EQ(answer.code, absl::StatusCode::kOk) << answer;
  EXPECT_TRUE(message->ParseFromString(answer.body)) << message->GetTypeName();
  // A field that the message does not have would mean another generation's layout.
  EXPECT_EQ(message->GetReflection()->GetUnknownFields(*message).field_count(), 0)
      << message->GetTypeName();
  return message;
}

// The task in a field that is a CoordinatedTask or a number.
std::pair<int, std::string> TaskIn(const Message& message, const FieldDescriptor* field,
                                   int index) {
  const google::protobuf::Reflection* reflection = message.GetReflection();
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
    return {field->is_repeated() ? reflection->GetRepeatedInt32(message, field, index)
                                 : reflection->GetInt32(message, field),
            ""};
  }
  const Message& task = field->is_repeated() ? reflection->GetRepeatedMessage(message, field, index)
                                             : reflection->GetMessage(message, field);
  return {static_cast<int>(Number(task, "task_id")), Text(task, "job_name")};
}

}  // namespace

std::string DialectName(Dialect dialect) {
  switch (dialect) {
    case Dialect::kTensorflow:
      return "Tensorflow";
    case Dialect::kNamed:
      return "Named";
    case Dialect::kNumbered:
      return "Numbered";
    case Dialect::kIncarnations:
      return "Incarnations";
  }
  return "";
}

std::unique_ptr<Message> TaskClient::New(const std::string& message) const {
  std::unique_ptr<Message> made;
  if (dialect_ == Dialect::kIncarnations) {
    made = NewByName("xla.coordination." + message);
  } else {
    // Messages without a task are the same in G2, G3 and G4.
    if (dialect_ == Dialect::kNumbered) made = NewByName("ferry.numbered." + message);
    if (made == nullptr) made = NewByName("tensorflow." + message);
  }
  if (made == nullptr) {
    ADD_FAILURE() << "no message " << message << " in " << DialectName(dialect_);
    std::abort();  // a mistake in the test itself
  }
  const FieldDescriptor* incarnations = made->GetDescriptor()->FindFieldByName("incarnations");
  if (dialect_ == Dialect::kIncarnations && incarnations != nullptr &&
      incarnations->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    Message* field = made->GetReflection()->MutableMessage(made.get(), incarnations);
    SetNumber(*field, "task_incarnation", static_cast<int64_t>(incarnation_));
    SetNumber(*field, "service_incarnation", static_cast<int64_t>(service_incarnation_));
  }
  return made;
}

PendingCall TaskClient::Send(const std::string& method, const Message& request) const {
  const char* service = dialect_ == Dialect::kTensorflow ? "/tensorflow.CoordinationService/"
                                                         : "/xla.coordination.CoordinationService/";
  return PendingCall::Start(channel_, service + method, request.SerializeAsString());
}

TaskClient TaskClient::ForOldMethods() const {
  TaskClient client = *this;
  if (dialect_ == Dialect::kIncarnations) client.dialect_ = Dialect::kTensorflow;
  return client;
}

void TaskClient::SetTask(Message& message, const std::string& name, int task) const {
  const FieldDescriptor* field = Field(message, name);
  const google::protobuf::Reflection* reflection = message.GetReflection();
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
    if (field->is_repeated()) return reflection->AddInt32(&message, field, task);
    return reflection->SetInt32(&message, field, task);
  }
  Message* named = field->is_repeated() ? reflection->AddMessage(&message, field)
                                        : reflection->MutableMessage(&message, field);
  SetText(*named, "job_name", job_);
  SetNumber(*named, "task_id", task);
}

PendingCall TaskClient::Register(uint64_t incarnation) {
  incarnation_ = incarnation;
  auto request = New("RegisterTaskRequest");
  SetNumber(*request, "incarnation", static_cast<int64_t>(incarnation));
  SetTask(*request, "source_task", task_);
  return Send("RegisterTask", *request);
}

PendingCall TaskClient::Heartbeat(uint64_t incarnation) {
  auto request = New("HeartbeatRequest");
  SetNumber(*request, "incarnation", static_cast<int64_t>(incarnation));
  SetTask(*request, "source_task", task_);
  return Send("Heartbeat", *request);
}

PendingCall TaskClient::Poll() {
  auto request = New("PollForErrorRequest");
  SetTask(*request, "source_task", task_);
  return Send("PollForError", *request);
}

PendingCall TaskClient::Shutdown() {
  auto request = New("ShutdownTaskRequest");
  SetTask(*request, "source_task", task_);
  return Send("ShutdownTask", *request);
}

PendingCall TaskClient::Reset() {
  const TaskClient old = ForOldMethods();
  auto request = old.New("ResetTaskRequest");
  SetTask(*request, "source_task", task_);
  return old.Send("ResetTask", *request);
}

PendingCall TaskClient::ReportError(absl::StatusCode code, const std::string& message) {
  const TaskClient old = ForOldMethods();
  auto request = old.New("ReportErrorToServiceRequest");
  SetNumber(*request, "error_code", static_cast<int>(code));
  SetText(*request, "error_message", message);
  SetTask(*request, "error_origin", task_);
  return old.Send("ReportErrorToService", *request);
}

PendingCall TaskClient::States(const std::vector<int>& tasks) {
  const TaskClient old = ForOldMethods();
  auto request = old.New("GetTaskStateRequest");
  for (const int task : tasks) SetTask(*request, "source_task", task);
  return old.Send("GetTaskState", *request);
}

PendingCall TaskClient::Watch(int64_t version) {
  if (dialect_ == Dialect::kIncarnations) {
    auto request = New("WatchTasksRequest");
    SetNumber(*request, "version_number", version);
    return Send("WatchTasks", *request);
  }
  auto request = New("WatchJobStateRequest");
  SetNumber(*request, "version_number", version);
  // In G4 the field is reserved.
  if (dialect_ != Dialect::kNumbered) SetText(*request, "job_name", job_);
  return Send("WatchJobState", *request);
}

PendingCall TaskClient::WaitForAll(const std::vector<std::string>& device_infos) {
  const TaskClient old = ForOldMethods();
  auto request = old.New("WaitForAllTasksRequest");
  SetTask(*request, "source_task", task_);
  Message* info =
      request->GetReflection()->MutableMessage(request.get(), Field(*request, "device_info"));
  for (const std::string& device : device_infos) {
    info->GetReflection()->AddString(info, Field(*info, "device"), device);
  }
  return old.Send("WaitForAllTasks", *request);
}

PendingCall TaskClient::Insert(const std::string& key, const std::string& value, bool overwrite) {
  auto request = New("InsertKeyValueRequest");
  Message* entry = request->GetReflection()->MutableMessage(request.get(), Field(*request, "kv"));
  SetText(*entry, "key", key);
  SetText(*entry, "value", value);
  if (overwrite) SetNumber(*request, "allow_overwrite", 1);
  return Send("InsertKeyValue", *request);
}

PendingCall TaskClient::Get(const std::string& key) {
  auto request = New("GetKeyValueRequest");
  SetText(*request, "key", key);
  return Send("GetKeyValue", *request);
}

PendingCall TaskClient::TryGet(const std::string& key) {
  auto request = New("TryGetKeyValueRequest");
  SetText(*request, "key", key);
  return Send("TryGetKeyValue", *request);
}

PendingCall TaskClient::Increment(const std::string& key, int64_t increment) {
  auto request = New("IncrementKeyValueRequest");
  SetText(*request, "key", key);
  SetNumber(*request, "increment", increment);
  return Send("IncrementKeyValue", *request);
}

PendingCall TaskClient::List(const std::string& directory) {
  auto request = New("GetKeyValueDirRequest");
  SetText(*request, "directory_key", directory);
  return Send("GetKeyValueDir", *request);
}

PendingCall TaskClient::Delete(const std::string& key) {
  auto request = New("DeleteKeyValueRequest");
  SetText(*request, "key", key);
  SetNumber(*request, "is_directory", 1);
  return Send("DeleteKeyValue", *request);
}

PendingCall TaskClient::Barrier(const std::string& id, absl::Duration timeout, int64_t counter,
                                const std::vector<int>& tasks) {
  auto request = New("BarrierRequest");
  SetText(*request, "barrier_id", id);
  SetNumber(*request, "barrier_timeout_in_ms", absl::ToInt64Milliseconds(timeout));
  for (const int task : tasks) SetTask(*request, "tasks", task);
  SetTask(*request, "source_task", task_);
  SetNumber(*request, "counter", counter);
  return Send("Barrier", *request);
}

PendingCall TaskClient::CancelBarrier(const std::string& id, int64_t counter) {
  auto request = New("CancelBarrierRequest");
  SetText(*request, "barrier_id", id);
  SetTask(*request, "source_task", task_);
  SetNumber(*request, "counter", counter);
  return Send("CancelBarrier", *request);
}

PendingCall TaskClient::Alive(const std::vector<int>& tasks) {
  auto request = New("GetAliveTasksRequest");
  SetTask(*request, "requesting_task", task_);
  for (const int task : tasks) SetTask(*request, "tasks", task);
  return Send("GetAliveTasks", *request);
}

uint64_t TaskClient::ServiceIncarnation(const Answer& answer) const {
  const auto response = Parse(New("HeartbeatResponse"), answer);
  return static_cast<uint64_t>(Number(*response, "leader_incarnation"));
}

std::pair<std::string, std::string> TaskClient::Entry(const std::string& method,
                                                      const Answer& answer) const {
  const auto response = Parse(New(method + "Response"), answer);
  const Message& entry = response->GetReflection()->GetMessage(*response, Field(*response, "kv"));
  return {Text(entry, "key"), Text(entry, "value")};
}

Entries TaskClient::Listed(const Answer& answer) const {
  const auto response = Parse(New("GetKeyValueDirResponse"), answer);
  const FieldDescriptor* field = Field(*response, "kv");
  Entries entries;
  for (int i = 0; i < response->GetReflection()->FieldSize(*response, field); ++i) {
    const Message& entry = response->GetReflection()->GetRepeatedMessage(*response, field, i);
    entries.emplace_back(Text(entry, "key"), Text(entry, "value"));
  }
  return entries;
}

int64_t TaskClient::Counter(const Answer& answer) const {
  return Number(*Parse(New("BarrierResponse"), answer), "counter");
}

WireTable TaskClient::Table(const Answer& answer) const {
  const auto response = Parse(
      New(dialect_ == Dialect::kIncarnations ? "WatchTasksResponse" : "WatchJobStateResponse"),
      answer);
  WireTable table;
  table.version = Number(*response, "version_number");
  const FieldDescriptor* field = Field(*response, "task_state");
  for (int i = 0; i < response->GetReflection()->FieldSize(*response, field); ++i) {
    const Message& info = response->GetReflection()->GetRepeatedMessage(*response, field, i);
    WireTask task;
    std::tie(task.task, task.job) = TaskIn(info, Field(info, "task"), 0);
    task.state = static_cast<int>(Number(info, "state"));
    task.incarnation = static_cast<uint64_t>(Number(info, "incarnation"));
    task.error_code = static_cast<int>(Number(info, "error_code"));
    task.error_message = Text(info, "error_message");
    const Message& payload = info.GetReflection()->GetMessage(info, Field(info, "error_payload"));
    task.is_reported_error = Number(payload, "is_reported_error") != 0;
    table.tasks.push_back(std::move(task));
  }
  return table;
}

WireAlive TaskClient::AliveTasks(const Answer& answer) const {
  const auto response = Parse(New("GetAliveTasksResponse"), answer);
  const google::protobuf::Reflection* reflection = response->GetReflection();
  const FieldDescriptor* tasks = Field(*response, "alive_tasks");
  const FieldDescriptor* incarnations = Field(*response, "incarnations");
  WireAlive alive;
  for (int i = 0; i < reflection->FieldSize(*response, tasks); ++i) {
    alive.tasks.push_back(TaskIn(*response, tasks, i).first);
  }
  for (int i = 0; i < reflection->FieldSize(*response, incarnations); ++i) {
    alive.incarnations.push_back(reflection->GetRepeatedUInt64(*response, incarnations, i));
  }
  return alive;
}

}  // namespace ferry::coord
