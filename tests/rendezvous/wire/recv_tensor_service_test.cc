// SPDX-License-Identifier: Apache-2.0
// The service against plain protocol buffers.
#include "rendezvous/recv_tensor/recv_tensor_service.h"

#include <dirent.h>

#include <string>
#include <vector>

#include "proto/ferry_tensor_stream.pb.h"
#include "proto/tf_worker.pb.h"
#include "tensor/tensor_proto.h"
#include "test_worker.h"

namespace ferry {
namespace {

using absl::StatusCode;
using coord::Answer;
using coord::Fails;
using coord::IsOk;
using coord::PendingCall;
using ::testing::HasSubstr;
using ::testing::StartsWith;

int ThreadCount() {
  DIR* const tasks = opendir("/proc/self/task");
  int count = -2;  // "." and ".."
  while (readdir(tasks) != nullptr) ++count;
  closedir(tasks);
  return count;
}

class Service : public ::testing::Test {
 protected:
  explicit Service(TestWorkerOptions options = {}) : worker_(book_, options) {}

  PendingCall Recv(const std::string& key, int64_t request_id, PendingCall::Options options = {}) {
    tensorflow::RecvTensorRequest request;
    request.set_step_id(1);
    request.set_rendezvous_key(key);
    request.set_request_id(request_id);
    request.mutable_client_locality()->set_bus_id(3);
    return PendingCall::Start(channel_, kRecvTensorPath, request.SerializeAsString(), options);
  }
  void MarkFinished(int64_t request_id) {
    tensorflow::MarkRecvFinishedRequest request;
    request.set_request_id(request_id);
    EXPECT_THAT(
        PendingCall::Start(channel_, kMarkRecvFinishedPath, request.SerializeAsString()).Wait(),
        IsOk());
  }
  void Send(absl::string_view edge, Tensor tensor, bool is_dead = false) {
    ASSERT_TRUE(worker_.Begin(1)->Send(Edge(edge), std::move(tensor), is_dead).ok());
  }
  static std::string StringOf(const Answer& answer) {
    EXPECT_THAT(answer, IsOk());
    tensorflow::RecvTensorResponse response;
    EXPECT_TRUE(response.ParseFromString(answer.body));
    return response.tensor().string_val_size() == 1 ? response.tensor().string_val(0) : "none";
  }

  AddressBook book_;
  TestWorker worker_;
  const std::shared_ptr<grpc::Channel> channel_ = coord::NewChannel(worker_.address());
};

class KeepingService : public Service {
 protected:
  KeepingService() : Service({.source = {.keep_responses = true}}) {}
};

TEST_F(Service, PlainClientGetsTheValueSentBeforeOrAfterItsRequest) {
  const PendingCall early = Recv(EdgeText("a"), 1);
  ASSERT_TRUE(worker_.WaitUntilPending(1));
  Tensor tensor = *Tensor::Allocate(DataType::kFloat, *Shape::Create({2, 5000}));
  for (int i = 0; i < 10'000; ++i) static_cast<float*>(tensor.mutable_data())[i] = i;
  Send("a", tensor);
  Send("b", Value("v"));
  tensorflow::RecvTensorResponse response;
  ASSERT_TRUE(response.ParseFromString(early.Wait().body));
  EXPECT_TRUE(IsEqual(*TensorFromProto(response.tensor()), tensor));
  EXPECT_FALSE(response.is_dead());
  EXPECT_FALSE(response.require_ack());
  EXPECT_GT(response.send_start_micros(), 1'000'000'000'000'000);
  EXPECT_EQ(StringOf(Recv(EdgeText("b"), 2).Wait()), "v");
}

TEST_F(Service, DeadValueIsMarked) {
  Send("a", Tensor(), /*is_dead=*/true);
  tensorflow::RecvTensorResponse response;
  ASSERT_TRUE(response.ParseFromString(Recv(EdgeText("a"), 1).Wait().body));
  EXPECT_TRUE(response.is_dead());
}

TEST_F(Service, CompressingClientIsUnderstood) {
  Send("a", Value("v"));
  EXPECT_EQ(StringOf(Recv(EdgeText("a"), 1, {.gzip = true}).Wait()), "v");
}

TEST_F(Service, RefusalsMatchTensorFlows) {
  EXPECT_THAT(Recv(EdgeText("a", 9), 1).Wait(),
              Fails(StatusCode::kAborted,
                    StartsWith("RecvTensor expects a different device incarnation: 9 vs. 1.")));
  ::testing::internal::CaptureStderr();
  EXPECT_THAT(Recv("no\xff key", 9).Wait(),
              Fails(StatusCode::kInvalidArgument, HasSubstr("no\\377 key")));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_THAT(Recv("no key", 2).Wait(),
              Fails(StatusCode::kInvalidArgument, StartsWith("Invalid  rendezvous key: no key")));
  EXPECT_THAT(Recv(EdgeText("a", 1, "GPU:0"), 3).Wait(),
              Fails(StatusCode::kInvalidArgument, HasSubstr("unknown device.")));
  for (int i = 0; i < 4; ++i) Send("a", Value("v"));
  EXPECT_EQ(StringOf(Recv(EdgeText("a"), 0).Wait()), "v");
  EXPECT_EQ(StringOf(Recv(EdgeText("a"), 0).Wait()), "v");
  EXPECT_EQ(StringOf(Recv(EdgeText("a"), 4).Wait()), "v");
  EXPECT_THAT(Recv(EdgeText("a"), 4).Wait(),
              Fails(StatusCode::kAborted, HasSubstr("request was received twice")));
  EXPECT_THAT(PendingCall::Start(channel_, kRecvTensorPath, "\xff\xff garbage").Wait(),
              Fails(StatusCode::kInvalidArgument, HasSubstr("no such message")));
  EXPECT_THAT(PendingCall::Start(channel_, kMarkRecvFinishedPath, "\xff\xff garbage").Wait(),
              Fails(StatusCode::kInvalidArgument, HasSubstr("no MarkRecvFinishedRequest")));
}

TEST_F(Service, FinishedStepIsRefused) {
  const PendingCall waiting = Recv(EdgeText("a"), 1);
  ASSERT_TRUE(worker_.WaitUntilPending(1));
  worker_.manager().Cleanup(1);
  EXPECT_THAT(waiting.Wait(), Fails(StatusCode::kAborted, "[_Derived_]Cleanup 1"));
  EXPECT_THAT(Recv(EdgeText("a"), 2).Wait(),
              Fails(StatusCode::kAborted, "[_Derived_]step 1 is over"));
}

// In TensorFlow either consumes the value.
TEST_F(Service, DisconnectedOrLateClientLeavesTheValue) {
  const PendingCall gone = Recv(EdgeText("a"), 1);
  const PendingCall late = Recv(EdgeText("a"), 2, {.deadline = absl::Milliseconds(300)});
  ASSERT_TRUE(worker_.WaitUntilPending(2));
  gone.Cancel();
  EXPECT_THAT(gone.Wait(), Fails(StatusCode::kCancelled));
  EXPECT_THAT(late.Wait(), Fails(StatusCode::kDeadlineExceeded));
  ASSERT_TRUE(worker_.WaitUntilPending(0));
  Send("a", Value("v"));
  EXPECT_EQ(StringOf(Recv(EdgeText("a"), 1).Wait()), "v");
}

// With a smaller limit than gRPC's.
TEST(ServiceLimits, UnaryAnswerThatIsTooLargeNamesTheSize) {
  AddressBook book;
  TestWorker worker(book, {.service = {.max_unary_bytes = 1000}});
  ASSERT_TRUE(worker.Begin(1)->Send(Edge("a"), Bytes(1001)).ok());
  tensorflow::RecvTensorRequest request;
  request.set_step_id(1);
  request.set_rendezvous_key(EdgeText("a"));
  EXPECT_THAT(PendingCall::Start(coord::NewChannel(worker.address()), kRecvTensorPath,
                                 request.SerializeAsString())
                  .Wait(),
              Fails(StatusCode::kInvalidArgument,
                    HasSubstr("1001 bytes; a RecvTensorResponse holds 1000. Larger ones go by "
                              "/ferry.v1.TensorStream/Recv")));
  // The value is lost, and its sender must not take it for received.
  EXPECT_THAT(std::string(worker.Begin(1)->send_status().message()),
              ::testing::AllOf(HasSubstr("1001 bytes; a RecvTensorResponse holds 1000"),
                               HasSubstr("step 1 was sending " + EdgeText("a"))));
}

// It is kept for a retry, which would be as large.
TEST(ServiceLimits, UnaryAnswerThatIsTooLargeAndKept_IsLostToo) {
  AddressBook book;
  TestWorker worker(book,
                    {.source = {.keep_responses = true}, .service = {.max_unary_bytes = 1000}});
  for (const int64_t bytes : {1000, 1001}) {
    const bool fits = bytes == 1000;
    const int64_t step_id = fits ? 1 : 2;
    ASSERT_TRUE(worker.Begin(step_id)->Send(Edge("a"), Bytes(bytes)).ok());
    tensorflow::RecvTensorRequest request;
    request.set_step_id(step_id);
    request.set_rendezvous_key(EdgeText("a"));
    request.set_request_id(bytes);
    const Answer answer = PendingCall::Start(coord::NewChannel(worker.address()), kRecvTensorPath,
                                             request.SerializeAsString())
                              .Wait();
    EXPECT_EQ(answer.code == StatusCode::kOk, fits);
    EXPECT_EQ(worker.Begin(step_id)->send_status().ok(), fits)
        << worker.Begin(step_id)->send_status();
  }
}

TEST(ServiceLimits, UnauthenticatedCallsAreCounted) {
  std::atomic<int64_t> refused{0};
  AddressBook book;
  TestWorker worker(book, {.service = {.auth = {"token", true}, .refused = &refused}});
  tensorflow::RecvTensorRequest request;
  request.set_step_id(1);
  request.set_rendezvous_key(EdgeText("a"));
  EXPECT_THAT(PendingCall::Start(coord::NewChannel(worker.address()), kRecvTensorPath,
                                 request.SerializeAsString())
                  .Wait(),
              Fails(StatusCode::kUnauthenticated, HasSubstr("not authenticated")));
  EXPECT_EQ(refused.load(), 1);
  tensorflow::MarkRecvFinishedRequest finished;
  finished.set_request_id(7);
  EXPECT_THAT(PendingCall::Start(coord::NewChannel(worker.address()), kMarkRecvFinishedPath,
                                 finished.SerializeAsString())
                  .Wait(),
              Fails(StatusCode::kUnauthenticated, HasSubstr("not authenticated")));
  EXPECT_EQ(refused.load(), 2);
}

TEST_F(KeepingService, RepeatedRequestGetsTheSameBytes) {
  const PendingCall first = Recv(EdgeText("a"), 1);
  const PendingCall second = Recv(EdgeText("a"), 1);
  ASSERT_TRUE(worker_.WaitUntilPending(1));
  Send("a", Value("v"));
  Send("a", Value("another"));
  const Answer answer = first.Wait();
  EXPECT_EQ(StringOf(answer), "v");
  EXPECT_EQ(second.Wait().body, answer.body);
  EXPECT_EQ(Recv(EdgeText("a"), 1).Wait().body, answer.body);
  tensorflow::RecvTensorResponse response;
  ASSERT_TRUE(response.ParseFromString(answer.body));
  EXPECT_TRUE(response.require_ack());
  EXPECT_EQ(worker_.source().cache().entry_count(), 1u);
  MarkFinished(1);
  EXPECT_EQ(worker_.source().cache().entry_count(), 0u);
  EXPECT_EQ(StringOf(Recv(EdgeText("a"), 2).Wait()), "another");
  worker_.manager().Cleanup(1);
  worker_.source().CleanupStep(1);
  EXPECT_EQ(worker_.source().cache().entry_count(), 0u);
}

TEST_F(KeepingService, DisconnectedClientFindsItsValueLater) {
  const PendingCall gone = Recv(EdgeText("a"), 1);
  ASSERT_TRUE(worker_.WaitUntilPending(1));
  gone.Cancel();
  EXPECT_THAT(gone.Wait(), Fails(StatusCode::kCancelled));
  Send("a", Value("v"));
  EXPECT_EQ(StringOf(Recv(EdgeText("a"), 1).Wait()), "v");
}

// TensorFlow pre-posts 1000 calls; here each is pending, and none has a thread.
TEST_F(Service, TenThousandCallsWaitWithoutThreads) {
  constexpr int kCalls = 10'000;
  Send("warm", Value("v"));
  EXPECT_EQ(StringOf(Recv(EdgeText("warm"), 0).Wait()), "v");
  const int threads = ThreadCount();
  std::vector<PendingCall> calls;
  for (int i = 0; i < kCalls; ++i) calls.push_back(Recv(EdgeText(absl::StrCat("e", i)), i + 1));
  ASSERT_TRUE(worker_.WaitUntilPending(kCalls));
  EXPECT_LE(ThreadCount(), threads + 8);
  const auto step = worker_.Begin(1);
  for (int i = 0; i < kCalls; ++i) {
    ASSERT_TRUE(step->Send(Edge(absl::StrCat("e", i)), Value(absl::StrCat("v", i))).ok());
  }
  for (int i = 0; i < kCalls; ++i) EXPECT_EQ(StringOf(calls[i].Wait()), absl::StrCat("v", i));
}

TEST_F(Service, PendingCallsEndWithTheServer) {
  std::vector<PendingCall> calls;
  for (int i = 0; i < 100; ++i) calls.push_back(Recv(EdgeText("a"), i + 1));
  ASSERT_TRUE(worker_.WaitUntilPending(100));
  worker_.server().Stop();
  for (const PendingCall& call : calls) EXPECT_FALSE(call.Wait().code == StatusCode::kOk);
  EXPECT_EQ(worker_.pending(), 0u);
}

}  // namespace
}  // namespace ferry
