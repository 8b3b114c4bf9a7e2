// SPDX-License-Identifier: Apache-2.0
// Every method of tensorflow.MasterService over gRPC, under both of its names.
#include <string>

#include <grpcpp/generic/generic_stub.h>

#include "absl/synchronization/notification.h"

#include "proto/tf_grpc_master_service.grpc.pb.h"
#include "tests/tensorflow/master/wire_fixture.h"

namespace ferry::master {
namespace {

using ::testing::HasSubstr;

// The stubs of both names have the same methods, of classes that have nothing to do with each
// other.
template <typename Service>
class MethodsTest : public WireTest {
 protected:
  using Stub = typename Service::Stub;
  template <typename Request, typename Response>
  using Method = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Response*);

  template <typename Request, typename Response>
  grpc::Status Call(Method<Request, Response> method, const Request& request, Response& response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    return ((*named_).*method)(&context, request, &response);
  }
  template <typename Response, typename Request>
  Response CallOk(Method<Request, Response> method, const Request& request) {
    Response response;
    const grpc::Status status = Call(method, request, response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  const std::unique_ptr<Stub> named_ = Service::NewStub(channel_);
};

using Names = ::testing::Types<tensorflow::MasterService, tensorflow::grpc::MasterService>;
TYPED_TEST_SUITE(MethodsTest, Names);

TYPED_TEST(MethodsTest, ServesEachMethodOfASession) {
  using Stub = typename TypeParam::Stub;
  this->JoinAll();
  tensorflow::CreateSessionRequest create;
  *create.mutable_graph_def() = Graph().def();
  const std::string session = this->CallOk(&Stub::CreateSession, create).session_handle();
  ASSERT_FALSE(session.empty());

  tensorflow::ListDevicesRequest list;
  list.set_session_handle(session);
  EXPECT_EQ(this->CallOk(&Stub::ListDevices, list).local_device_size(), 2);

  tensorflow::ExtendSessionRequest extend;
  extend.set_session_handle(session);
  GraphWriter more;
  more.AddFloat("b", "Identity", {"a"});
  *extend.mutable_graph_def() = more.def();
  EXPECT_EQ(this->CallOk(&Stub::ExtendSession, extend).new_graph_version(), 1);
  tensorflow::ExtendSessionResponse extended;
  EXPECT_EQ(this->Call(&Stub::ExtendSession, extend, extended).error_code(),
            grpc::StatusCode::ABORTED);

  tensorflow::RunStepRequest run;
  run.set_session_handle(session);
  AddFeed(run);
  run.add_fetch("b:0");
  const auto ran = this->CallOk(&Stub::RunStep, run);
  ASSERT_EQ(ran.tensor_size(), 1);
  EXPECT_EQ(ran.tensor(0).name(), "b:0");

  tensorflow::PartialRunSetupRequest setup;
  setup.set_session_handle(session);
  setup.add_feed("x:0");
  setup.add_fetch("a:0");
  setup.add_fetch("b:0");
  run.set_partial_run_handle(this->CallOk(&Stub::PartialRunSetup, setup).partial_run_handle());
  EXPECT_EQ(this->CallOk(&Stub::RunStep, run).tensor_size(), 1);
  run.clear_feed();
  run.set_fetch(0, "a:0");
  EXPECT_EQ(this->CallOk(&Stub::RunStep, run).tensor(0).name(), "a:0");

  tensorflow::MakeCallableRequest make;
  make.set_session_handle(session);
  make.mutable_options()->add_feed("x:0");
  make.mutable_options()->add_fetch("a:0");
  tensorflow::RunCallableRequest call;
  call.set_session_handle(session);
  call.set_handle(this->CallOk(&Stub::MakeCallable, make).handle());
  *call.add_feed() = FloatFeed(4);
  ASSERT_EQ(this->CallOk(&Stub::RunCallable, call).fetch_size(), 1);
  tensorflow::ReleaseCallableRequest release;
  release.set_session_handle(session);
  release.set_handle(call.handle());
  this->CallOk(&Stub::ReleaseCallable, release);
  tensorflow::RunCallableResponse called;
  const grpc::Status released = this->Call(&Stub::RunCallable, call, called);
  EXPECT_EQ(released.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(released.error_message(), HasSubstr("Attempted to run callable after"));

  tensorflow::CloseSessionRequest close;
  close.set_session_handle(session);
  this->CallOk(&Stub::CloseSession, close);
  EXPECT_EQ(this->workers_[0]->sessions, 0);

  this->CallOk(&Stub::CreateSession, create);
  tensorflow::ResetRequest reset;
  reset.add_container("box");
  this->CallOk(&Stub::Reset, reset);
  EXPECT_EQ(this->workers_[0]->sessions, 0);
  EXPECT_EQ(this->workers_[0]->cleared(), "box");
}

// Every declared method is served: an empty request is refused for its content, not as an unknown
// method.
TEST_F(WireTest, NoMethodIsMissing) {
  JoinAll();
  grpc::GenericStub stub(channel_);
  const auto* const service = tensorflow::RunStepRequest::descriptor()->file()->service(0);
  ASSERT_EQ(service->method_count(), 10);
  for (const std::string name : {"tensorflow.MasterService", "tensorflow.grpc.MasterService"}) {
    for (int i = 0; i < service->method_count(); ++i) {
      grpc::ClientContext context;
      const grpc::Slice nothing("", 0);
      const grpc::ByteBuffer request(&nothing, 1);
      grpc::ByteBuffer response;
      grpc::Status status;
      absl::Notification done;
      stub.UnaryCall(&context, absl::StrCat("/", name, "/", service->method(i)->name()), {},
                     &request, &response, [&](grpc::Status result) {
                       status = std::move(result);
                       done.Notify();
                     });
      done.WaitForNotification();
      EXPECT_NE(status.error_code(), grpc::StatusCode::UNIMPLEMENTED)
          << name << "/" << service->method(i)->name();
    }
  }
}

}  // namespace
}  // namespace ferry::master
