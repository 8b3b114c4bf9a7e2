// SPDX-License-Identifier: Apache-2.0
// Effects of network faults, restarts and foreign workers on values in flight.
#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "absl/time/clock.h"

#include "coord/wire/bytes.h"
#include "coord/wire/raw_service.h"
#include "fetch_fixture.h"
#include "proto/tf_worker.pb.h"
#include "rendezvous/recv_tensor/tensor_frames.h"
#include "tensor/tensor_proto.h"
#include "tests/support/tcp_proxy.h"

namespace ferry {
namespace {

using absl::StatusCode;
using coord::Eventually;
using coord::Fails;
using coord::IsOk;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A restart of the worker as it really happens.
TEST_P(Forms, RestartedWorkerIsNotTheIntendedOne) {
  EXPECT_THAT(pair_.Recv(Edge("e", /*incarnation=*/7)).Wait(),
              Fails(StatusCode::kAborted,
                    StartsWith("RecvTensor expects a different device incarnation: 7 vs. 1.")));
}

// A request that waits is not lost with its connection.
TEST_P(Forms, ConnectionThatBreaksWhileWaitingIsMadeAgain) {
  TcpProxy proxy(pair_.source.server().port());
  pair_.book.Set(0, proxy.address());
  const Receiving receiving = pair_.Recv("e");
  ASSERT_TRUE(pair_.source.WaitUntilPending(1));
  proxy.Cut();
  // The old one is noticed and the new one has come: at last there is one, on another connection.
  ASSERT_TRUE(Eventually([&] { return proxy.accepted() >= 2 && pair_.source.pending() == 1; }));
  pair_.Send("e", Value("v"));
  const absl::StatusOr<Received> received = receiving.Wait();
  ASSERT_THAT(received, IsOk());
  EXPECT_EQ(received->tensor.strings()[0], "v");
}

// The value has left the worker when the connection breaks.
TEST_P(Forms, ValueLostInFlightIsSentAgainIfItIsKept) {
  for (const bool keeps : {true, false}) {
    Pair pair(Source({.keep_responses = keeps}), Sink());
    TcpProxy proxy(pair.source.server().port());
    pair.book.Set(0, proxy.address());
    const Receiving receiving = pair.Recv("e");
    ASSERT_TRUE(pair.source.WaitUntilPending(1));
    proxy.SetStalled(true);
    pair.Send("e", Value("v"));
    proxy.Cut();
    proxy.SetStalled(false);
    if (keeps) {
      const absl::StatusOr<Received> received = receiving.Wait();
      ASSERT_THAT(received, IsOk());
      EXPECT_EQ(received->tensor.strings()[0], "v");
    } else {
      EXPECT_THAT(receiving.Wait(), Fails(StatusCode::kUnavailable,
                                          HasSubstr("The value had been sent and is lost")));
    }
  }
}

TEST_P(Forms, WorkerThatStartsLateIsFound) {
  const int port = pair_.source.server().port();
  pair_.source.server().Stop();
  AddressBook other;
  const Receiving receiving = pair_.Recv("e");
  TestWorkerOptions options = Source();
  options.port = port;
  TestWorker late(other, options);
  ASSERT_TRUE(late.Begin(1)->Send(Edge("e"), Value("v")).ok());
  EXPECT_THAT(receiving.Wait(), IsOk());
}

// At the same address, with other devices.
TEST_P(Forms, WorkerThatRestartsDuringARequestIsNotTheIntendedOne) {
  AddressBook other;
  TestWorkerOptions options = Source();
  options.incarnation = 2;
  options.port = pair_.source.server().port();
  const Receiving receiving = pair_.Recv("e");
  ASSERT_TRUE(pair_.source.WaitUntilPending(1));
  pair_.source.server().Stop();
  TestWorker restarted(other, options);
  EXPECT_THAT(receiving.Wait(),
              Fails(StatusCode::kAborted,
                    StartsWith("RecvTensor expects a different device incarnation: 1 vs. 2.")));
}

TEST(Fetcher, AbortWhileTheRequestIsBeingIssuedEndsIt) {
  Pair pair;
  pair.book.while_resolving = [&pair] {
    pair.sink.Begin(1)->StartAbort(absl::AbortedError("gone"));
  };
  EXPECT_THAT(pair.Recv("e").Wait(), Fails(StatusCode::kAborted, "[_Derived_]gone"));
  EXPECT_EQ(pair.sink.Begin(1)->fetch_count(), 0u);
  // It may have arrived before it was called off.
  ASSERT_TRUE(pair.source.WaitUntilPending(0));
}

TEST(Fetcher, DeadWorkerIsAnErrorThatNamesIt) {
  Pair pair;
  pair.source.server().Stop();
  EXPECT_THAT(pair.Recv("e").Wait(),
              Fails(StatusCode::kUnavailable,
                    AllOf(HasSubstr("asked /job:worker/replica:0/task:0 at 127.0.0.1:"),
                          HasSubstr("10 times again"))));
}

TEST(Fetcher, CancelEndsTheWaitForARetry) {
  Pair pair({}, {.initial_backoff = absl::Hours(1), .max_backoff = absl::Hours(1)});
  pair.source.server().Stop();
  Receiving receiving;
  auto fetch = pair.sink.fetcher().Fetch(1, Edge("e"), {}, receiving.Callback());
  // It fails at once, and waits for an hour then.
  EXPECT_FALSE(Eventually([&] { return receiving.is_done(); }, absl::Milliseconds(300)));
  fetch->Cancel();
  EXPECT_THAT(receiving.Wait(),
              Fails(StatusCode::kCancelled, "[_Derived_]RecvFromRemoteAsync is cancelled."));
}

TEST(Fetcher, ForgottenTaskIsResolvedAgain) {
  Pair pair;
  pair.Send("a", Value("old"));
  EXPECT_EQ(pair.Recv("a").Wait()->tensor.strings()[0], "old");
  TestWorker moved(pair.book, {.incarnation = 2});
  ASSERT_TRUE(moved.Begin(1)->Send(Edge("b", 2), Value("new")).ok());
  EXPECT_THAT(pair.Recv(Edge("b", 2)).Wait(), Fails(StatusCode::kAborted));
  pair.sink.fetcher().Forget(TaskOf(0));
  EXPECT_EQ(pair.Recv(Edge("b", 2)).Wait()->tensor.strings()[0], "new");
}

// A client that disconnects in the middle of a stream.
TEST(Fetcher, CancelInTheMiddleOfAStreamLeavesNothingBehind) {
  Pair pair;
  const Tensor tensor = Counted(DataType::kUint8, 64 << 20);
  for (int i = 0; i < 10; ++i) {
    pair.Send("e", tensor);
    Receiving receiving;
    RecvArgs args;
    Tensor destination = *Tensor::Allocate(DataType::kUint8, tensor.shape());
    args.destination = destination;
    auto fetch = pair.sink.fetcher().Fetch(1, Edge("e"), args, receiving.Callback());
    // No estimate of how long something takes: each round is cancelled at another moment.
    absl::SleepFor(absl::Milliseconds(i * 4));
    fetch->Cancel();
    // Nothing is written from now on.
    std::memset(destination.mutable_data(), 0, tensor.bytes());
    const absl::StatusOr<Received> received = receiving.Wait();
    if (!received.ok()) {
      EXPECT_THAT(received, Fails(StatusCode::kCancelled));
    }
    for (const uint8_t byte : destination.elements<uint8_t>().subspan(0, 1 << 20)) {
      ASSERT_EQ(byte, 0);
    }
  }
  EXPECT_TRUE(Eventually([&tensor] { return tensor.buffer().use_count() <= 2; }));
}

// Answers with the given bytes; has no streams.
class CannedService final : public coord::RawService {
 public:
  explicit CannedService(std::string answer, bool streams) {
    AddUnary(kRecvTensorPath, [answer, this](grpc::CallbackServerContext* context,
                                             const grpc::ByteBuffer*, grpc::ByteBuffer* response) {
      ++unary_calls;
      const grpc::Slice slice(answer);
      *response = grpc::ByteBuffer(&slice, 1);
      grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
      reactor->Finish(grpc::Status::OK);
      return reactor;
    });
    if (!streams) return;
    AddServerStream(kTensorStreamPath,
                    [answer](grpc::CallbackServerContext*, const grpc::ByteBuffer*) {
                      return new Stream(answer);
                    });
  }

  std::atomic<int> unary_calls{0};

 private:
  class Stream final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
   public:
    explicit Stream(const std::string& answer) {
      const grpc::Slice slice(answer);
      frame_ = grpc::ByteBuffer(&slice, 1);
      StartWriteAndFinish(&frame_, grpc::WriteOptions(), grpc::Status::OK);
    }
    void OnDone() override { delete this; }

   private:
    grpc::ByteBuffer frame_;
  };
};

TEST(Fetcher, GarbageIsAnError) {
  for (const bool streams : {true, false}) {
    for (const std::string& answer : {std::string("\xff\xff\xff garbage"), std::string()}) {
      CannedService service(answer, streams);
      LoopbackServer server(service);
      AddressBook book;
      TestWorker sink(book, {.task = 1, .fetcher = Quick()});
      book.Set(0, server.address());
      Receiving receiving;
      sink.Begin(1)->RecvAsync(Edge("e"), {}, receiving.Callback());
      const absl::StatusOr<Received> received = receiving.Wait();
      EXPECT_FALSE(received.ok());
      EXPECT_FALSE(absl::IsDataLoss(received.status())) << received.status();
    }
  }
}

// As one that another version, or another program, ends without an error.
TEST(Fetcher, StreamThatEndsEarly_IsAnErrorThatNamesTheSender) {
  const ServedValue value{.tensor = Counted(DataType::kUint8, 1000)};
  grpc::ByteBuffer frame = FrameWriter(value, /*frame_bytes=*/600).Next();
  CannedService service(std::string(coord::View(coord::Flatten(frame))), /*streams=*/true);
  LoopbackServer server(service);
  AddressBook book;
  GrpcTensorFetcherOptions options = Quick();
  options.use_streams = true;
  TestWorker sink(book, {.task = 1, .fetcher = options});
  book.Set(0, server.address());
  Receiving receiving;
  sink.Begin(1)->RecvAsync(Edge("e"), {}, receiving.Callback());
  EXPECT_THAT(receiving.Wait(),
              Fails(StatusCode::kInternal,
                    AllOf(HasSubstr("/job:worker/replica:0/task:0"), HasSubstr("of 1000 bytes"))));
}

// Bytes that plain protocol buffers wrote.
TEST(Fetcher, PlainWorkersAnswerIsParsedAndItsLackOfStreamsRemembered) {
  const Tensor tensor = Counted(DataType::kBfloat16, 10'000);
  tensorflow::RecvTensorResponse response;
  *response.mutable_tensor() = *TensorToProto(tensor);
  response.set_transport_options("\n\x1etype.googleapis.com/some.Extra");
  CannedService service(response.SerializeAsString(), /*streams=*/false);
  LoopbackServer server(service);
  AddressBook book;
  TestWorker sink(book, {.task = 1});
  book.Set(0, server.address());
  for (int i = 1; i <= 3; ++i) {
    Receiving receiving;
    sink.Begin(1)->RecvAsync(Edge("e"), {}, receiving.Callback());
    const absl::StatusOr<Received> received = receiving.Wait();
    ASSERT_THAT(received, IsOk());
    EXPECT_TRUE(IsEqual(received->tensor, tensor));
    EXPECT_EQ(service.unary_calls, i);
  }
}

}  // namespace
}  // namespace ferry
