// SPDX-License-Identifier: Apache-2.0
// Values from worker to worker: scenarios 46 to 54 and 60 to 64 of the rendezvous reference, and
// what networks and restarts do.
#include "rendezvous/grpc_tensor_fetcher.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"

#include "coord/grpc_raw_service.h"
#include "proto/tf_worker.pb.h"
#include "tensor/tensor_proto.h"
#include "test_worker.h"
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

// A receive under way. Copies are the same one.
class Receiving {
 public:
  RecvCallback Callback() {
    return [state = state_](absl::Status status, Received received) {
      state->status = std::move(status);
      state->received = std::move(received);
      ++state->calls;
      state->done.Notify();
    };
  }
  absl::StatusOr<Received> Wait() const {
    if (!state_->done.WaitForNotificationWithTimeout(coord::kPatience)) {
      return absl::DataLossError("nobody has called back");
    }
    if (!state_->status.ok()) return state_->status;
    return state_->received;
  }
  bool is_done() const { return state_->done.HasBeenNotified(); }

 private:
  struct State {
    absl::Status status;
    Received received;
    std::atomic<int> calls{0};
    absl::Notification done;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

Tensor Counted(DataType dtype, int64_t count) {
  Tensor tensor = *Tensor::Allocate(dtype, *Shape::Create({count}));
  auto* bytes = static_cast<uint8_t*>(tensor.mutable_data());
  for (size_t i = 0; i < tensor.bytes(); ++i) bytes[i] = static_cast<uint8_t>(i * 7 / 5);
  return tensor;
}

GrpcTensorFetcherOptions Quick() {
  return {.initial_backoff = absl::Milliseconds(5), .max_backoff = absl::Milliseconds(50)};
}

// Task 0 sends, task 1 receives.
class Pair {
 public:
  explicit Pair(TestWorkerOptions source = {}, GrpcTensorFetcherOptions fetcher = Quick())
      : source(book, std::move(source)), sink(book, {.task = 1, .fetcher = std::move(fetcher)}) {}

  Receiving Recv(const RendezvousKey& key, RecvArgs args = {}) {
    Receiving receiving;
    sink.Begin(1)->RecvAsync(key, std::move(args), receiving.Callback());
    return receiving;
  }
  Receiving Recv(absl::string_view edge, RecvArgs args = {}) {
    return Recv(Edge(edge), std::move(args));
  }
  void Send(absl::string_view edge, Tensor tensor, bool is_dead = false) {
    ASSERT_TRUE(source.Begin(1)->Send(Edge(edge), std::move(tensor), is_dead).ok());
  }

  AddressBook book;
  TestWorker source;
  TestWorker sink;
};

// By the stream, by TensorFlow's call, and from a worker that knows only that.
struct Form {
  const char* name;
  bool source_streams;
  bool sink_streams;
};

class Forms : public ::testing::TestWithParam<Form> {
 protected:
  static TestWorkerOptions Source(TensorSourceOptions source = {}) {
    return {.source = source,
            .service = {.has_streams = GetParam().source_streams, .frame_bytes = 1000}};
  }
  static GrpcTensorFetcherOptions Sink() {
    GrpcTensorFetcherOptions options = Quick();
    options.use_streams = GetParam().sink_streams;
    return options;
  }
  Pair pair_{Source(), Sink()};
};

INSTANTIATE_TEST_SUITE_P(, Forms,
                         ::testing::Values(Form{"Stream", true, true}, Form{"Unary", true, false},
                                           Form{"FallingBack", false, true}),
                         [](const ::testing::TestParamInfo<Form>& i) { return i.param.name; });

// Scenario 60.
TEST_P(Forms, EveryTypeArrives) {
  for (int number = 1; number < 64; ++number) {
    const std::optional<DataType> dtype = DataTypeOfNumber(number);
    if (!dtype.has_value() || !IsFixedSize(*dtype)) continue;
    for (const int64_t count : {0, 1, 2500}) {
      const std::string edge = absl::StrCat("e", number, "_", count);
      const Tensor tensor = Counted(*dtype, count);
      pair_.Send(edge, tensor);
      const absl::StatusOr<Received> received = pair_.Recv(edge).Wait();
      ASSERT_THAT(received, IsOk());
      EXPECT_TRUE(IsEqual(received->tensor, tensor)) << ToString(tensor);
      EXPECT_FALSE(received->is_dead);
    }
  }
}

// Scenario 61.
TEST_P(Forms, StringsAndTheDeadArrive) {
  const Tensor strings =
      *Tensor::OfStrings(*Shape::Create({3}), {"", std::string(5000, 'x'), "abc"});
  pair_.Send("s", strings);
  EXPECT_TRUE(IsEqual(pair_.Recv("s").Wait()->tensor, strings));
  pair_.Send("d", Tensor(), /*is_dead=*/true);
  const absl::StatusOr<Received> dead = pair_.Recv("d").Wait();
  ASSERT_THAT(dead, IsOk());
  EXPECT_TRUE(dead->is_dead);
}

TEST_P(Forms, ManyThatWaitEachGetTheirOwn) {
  std::vector<Receiving> receiving;
  for (int i = 0; i < 300; ++i) receiving.push_back(pair_.Recv(absl::StrCat("e", i)));
  ASSERT_TRUE(pair_.source.WaitUntilPending(300));
  for (int i = 0; i < 300; ++i) pair_.Send(absl::StrCat("e", i), Counted(DataType::kInt32, i * 10));
  for (int i = 0; i < 300; ++i) {
    const absl::StatusOr<Received> received = receiving[i].Wait();
    ASSERT_THAT(received, IsOk());
    EXPECT_EQ(received->tensor.shape().dim(0), i * 10);
  }
}

TEST_P(Forms, TheDestinationIsFilledWhereItLies) {
  const Tensor tensor = Counted(DataType::kFloat, 100'000);
  const Tensor destination = *Tensor::Allocate(DataType::kFloat, *Shape::Create({100'000}));
  pair_.Send("e", tensor);
  RecvArgs args;
  args.destination = destination;
  const absl::StatusOr<Received> received = pair_.Recv("e", args).Wait();
  ASSERT_THAT(received, IsOk());
  EXPECT_EQ(received->tensor.data(), destination.data());
  EXPECT_TRUE(IsEqual(destination, tensor));

  pair_.Send("f", Counted(DataType::kFloat, 99'999));
  EXPECT_THAT(pair_.Recv("f", args).Wait(),
              Fails(StatusCode::kInvalidArgument, HasSubstr("the destination is float[100000]")));
}

// Scenario 47; the value is left to whoever asks next.
TEST_P(Forms, ACancelledReceiveCallsItsRequestOff) {
  Cancellation cancellation;
  const Receiving receiving = pair_.Recv("e", {.cancellation = &cancellation});
  ASSERT_TRUE(pair_.source.WaitUntilPending(1));
  cancellation.Cancel();
  EXPECT_THAT(receiving.Wait(),
              Fails(StatusCode::kCancelled, "[_Derived_]RecvFromRemoteAsync is cancelled."));
  ASSERT_TRUE(pair_.source.WaitUntilPending(0));
  pair_.Send("e", Value("v"));
  EXPECT_EQ(pair_.Recv("e").Wait()->tensor.strings()[0], "v");
}

// Scenarios 48 and 53.
TEST_P(Forms, AnAbortCallsEveryRequestOffAndNoneFollows) {
  std::vector<Receiving> receiving;
  for (int i = 0; i < 3; ++i) receiving.push_back(pair_.Recv(absl::StrCat("e", i)));
  ASSERT_TRUE(pair_.source.WaitUntilPending(3));
  pair_.sink.Begin(1)->StartAbort(absl::AbortedError("gone"));
  for (const Receiving& each : receiving) {
    EXPECT_THAT(each.Wait(), Fails(StatusCode::kAborted, "[_Derived_]gone"));
  }
  EXPECT_EQ(pair_.sink.Begin(1)->fetch_count(), 0u);
  ASSERT_TRUE(pair_.source.WaitUntilPending(0));
  EXPECT_THAT(pair_.Recv("e").Wait(), Fails(StatusCode::kAborted));
  EXPECT_EQ(pair_.source.pending(), 0u);
}

TEST_P(Forms, TheDeadlineIsTheRequests) {
  RecvArgs args;
  args.deadline = SteadyClock().Now() + absl::Milliseconds(200);
  EXPECT_THAT(pair_.Recv("e", args).Wait(),
              Fails(StatusCode::kDeadlineExceeded,
                    AllOf(HasSubstr("/job:worker/replica:0/task:0"), HasSubstr(EdgeText("e")))));
  ASSERT_TRUE(pair_.source.WaitUntilPending(0));
}

// Scenario 54, as it happens.
TEST_P(Forms, ARestartedWorkerIsNotTheOneThatWasMeant) {
  EXPECT_THAT(pair_.Recv(Edge("e", /*incarnation=*/7)).Wait(),
              Fails(StatusCode::kAborted,
                    StartsWith("RecvTensor expects a different device incarnation: 7 vs. 1.")));
}

TEST_P(Forms, WhatIsKeptIsAcknowledged) {
  Pair pair(Source({.keep_responses = true}), Sink());
  pair.Send("e", Counted(DataType::kInt8, 5000));
  EXPECT_THAT(pair.Recv("e").Wait(), IsOk());
  EXPECT_TRUE(Eventually([&pair] { return pair.source.source().cache().entry_count() == 0; }));
}

// RemoteFetcher's contract, which RemoteRendezvous builds on.
TEST_P(Forms, DoneRunsOnceAndNeverInsideFetch) {
  GrpcTensorFetcher& fetcher = pair_.sink.fetcher();
  const RendezvousKey unknown =
      *RendezvousKey::Parse(RendezvousKey::Text("/job:worker/replica:0/task:9/device:CPU:0", 1,
                                                "/job:worker/replica:0/task:1/device:CPU:0", "e"));
  for (int i = 0; i < 50; ++i) {
    pair_.Send("e", Value("v"));
    for (const RendezvousKey& key : {Edge("e"), unknown}) {
      const auto calls = std::make_shared<std::atomic<int>>(0);
      const auto thread = std::make_shared<std::thread::id>();
      auto fetch = fetcher.Fetch(1, key, {}, [calls, thread](absl::Status, Received) {
        *thread = std::this_thread::get_id();
        ++*calls;
      });
      if (i % 3 == 0) fetch->Cancel();
      ASSERT_TRUE(Eventually([&calls] { return *calls == 1; }));
      EXPECT_NE(*thread, std::this_thread::get_id());
      fetch->Cancel();
      EXPECT_EQ(*calls, 1);
    }
  }
}

// A request that waits is not lost with its connection.
TEST_P(Forms, AConnectionThatIsCutWhileItWaitsIsMadeAgain) {
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
TEST_P(Forms, AValueLostOnItsWayIsSentAgainIfItIsKept) {
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
      EXPECT_THAT(receiving.Wait(),
                  Fails(StatusCode::kUnavailable, HasSubstr("The value had been sent and is lost")));
    }
  }
}

TEST_P(Forms, AWorkerThatComesLateIsFound) {
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

// In the same place, with other devices.
TEST_P(Forms, AWorkerThatRestartsWhileItIsAskedIsNotTheOneThatWasMeant) {
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

// Scenario 49.
TEST(Fetcher, AnAbortWhileTheRequestIsBeingIssuedEndsIt) {
  Pair pair;
  pair.book.while_resolving = [&pair] {
    pair.sink.Begin(1)->StartAbort(absl::AbortedError("gone"));
  };
  EXPECT_THAT(pair.Recv("e").Wait(), Fails(StatusCode::kAborted, "[_Derived_]gone"));
  EXPECT_EQ(pair.sink.Begin(1)->fetch_count(), 0u);
  // It may have arrived before it was called off.
  ASSERT_TRUE(pair.source.WaitUntilPending(0));
}

// Scenario 46.
TEST(Fetcher, AnUnknownWorkerIsAnError) {
  Pair pair;
  const RendezvousKey key =
      *RendezvousKey::Parse(RendezvousKey::Text("/job:worker/replica:0/task:9/device:CPU:0", 1,
                                                "/job:worker/replica:0/task:1/device:CPU:0", "e"));
  EXPECT_THAT(
      pair.Recv(key).Wait(),
      Fails(StatusCode::kInternal, StartsWith("No worker known as /job:worker/replica:0/task:9")));
}

TEST(Fetcher, ADeadWorkerIsAnErrorThatNamesIt) {
  Pair pair;
  pair.source.server().Stop();
  EXPECT_THAT(pair.Recv("e").Wait(),
              Fails(StatusCode::kUnavailable,
                    AllOf(HasSubstr("asked /job:worker/replica:0/task:0 at 127.0.0.1:"),
                          HasSubstr("10 times again"))));
}

TEST(Fetcher, ACancelEndsTheWaitForARetry) {
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

TEST(Fetcher, AForgottenTaskIsResolvedAnew) {
  Pair pair;
  pair.Send("a", Value("old"));
  EXPECT_EQ(pair.Recv("a").Wait()->tensor.strings()[0], "old");
  TestWorker moved(pair.book, {.incarnation = 2});
  ASSERT_TRUE(moved.Begin(1)->Send(Edge("b", 2), Value("new")).ok());
  EXPECT_THAT(pair.Recv(Edge("b", 2)).Wait(), Fails(StatusCode::kAborted));
  pair.sink.fetcher().Forget(TaskOf(0));
  EXPECT_EQ(pair.Recv(Edge("b", 2)).Wait()->tensor.strings()[0], "new");
}

// Scenario 64, in small: what a unary answer cannot hold goes by the stream.
TEST(Fetcher, WhatIsTooLargeForOneMessageGoesInFrames) {
  Pair pair({.service = {.max_unary_bytes = 1000, .frame_bytes = 1 << 16}});
  const Tensor tensor = Counted(DataType::kDouble, 500'000);
  pair.Send("e", tensor);
  const absl::StatusOr<Received> received = pair.Recv("e").Wait();
  ASSERT_THAT(received, IsOk());
  EXPECT_TRUE(IsEqual(received->tensor, tensor));
}

// 64 MiB of memory under many addresses: `bytes` of them, in which position and position + 64 MiB
// are the same byte.
std::shared_ptr<Buffer> Repeated(size_t bytes) {
  constexpr size_t kPeriod = size_t{64} << 20;
  const size_t mapped = (bytes + kPeriod - 1) / kPeriod * kPeriod;
  const int memory = memfd_create("repeated", 0);
  EXPECT_EQ(ftruncate(memory, kPeriod), 0);
  void* const base = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (size_t at = 0; at < mapped; at += kPeriod) {
    void* const here = static_cast<char*>(base) + at;
    EXPECT_EQ(mmap(here, kPeriod, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory, 0), here);
  }
  close(memory);
  return WrapForeignBuffer(base, bytes, [base, mapped] { munmap(base, mapped); });
}

// Scenario 64: more than any one message holds.
TEST(Fetcher, ThreeGibibytesArrive) {
  const size_t bytes = (size_t{3} << 30) + 5;
  const Shape shape = *Shape::Create({static_cast<int64_t>(bytes)});
  Tensor tensor = *Tensor::Create(DataType::kUint8, shape, Repeated(bytes));
  auto* elements = static_cast<uint8_t*>(tensor.mutable_data());
  for (size_t i = 0; i < size_t{64} << 20; ++i) elements[i] = static_cast<uint8_t>(i * 31 >> 7);
  RecvArgs args;
  args.destination = *Tensor::Create(DataType::kUint8, shape, Repeated(bytes));
  Pair pair;
  pair.Send("e", tensor);
  const absl::StatusOr<Received> received = pair.Recv("e", args).Wait();
  ASSERT_THAT(received, IsOk());
  EXPECT_EQ(received->tensor.bytes(), bytes);
  EXPECT_EQ(std::memcmp(args.destination.data(), tensor.data(), size_t{64} << 20), 0);

  // And not by the unary call, which says so.
  Pair unary({.service = {.has_streams = false}});
  unary.Send("e", tensor);
  EXPECT_THAT(unary.Recv("e", args).Wait(),
              Fails(StatusCode::kInvalidArgument, HasSubstr("has 3221225477 bytes")));
}

// A client that goes in the middle of a stream.
TEST(Fetcher, ACancelInTheMiddleOfAStreamLeavesNothingBehind) {
  Pair pair;
  const Tensor tensor = Counted(DataType::kUint8, 64 << 20);
  for (int i = 0; i < 10; ++i) {
    pair.Send("e", tensor);
    Receiving receiving;
    RecvArgs args;
    args.destination = *Tensor::Allocate(DataType::kUint8, tensor.shape());
    auto fetch = pair.sink.fetcher().Fetch(1, Edge("e"), args, receiving.Callback());
    // Not a guess of how long something takes: each round is called off at another moment.
    absl::SleepFor(absl::Milliseconds(i * 4));
    fetch->Cancel();
    // Nothing is written from now on.
    std::memset(args.destination.mutable_data(), 0, tensor.bytes());
    const absl::StatusOr<Received> received = receiving.Wait();
    if (!received.ok()) {
      EXPECT_THAT(received, Fails(StatusCode::kCancelled));
    }
    for (const uint8_t byte : args.destination.elements<uint8_t>().subspan(0, 1 << 20)) {
      ASSERT_EQ(byte, 0);
    }
  }
  EXPECT_TRUE(Eventually([&tensor] { return tensor.buffer().use_count() <= 2; }));
}

// Answers with what it is given; knows no streams.
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

// Scenario 62, the other way round: what plain protocol buffers wrote.
TEST(Fetcher, APlainWorkersAnswerIsReadAndItsLackOfStreamsRemembered) {
  const Tensor tensor = Counted(DataType::kBfloat16, 10'000);
  tensorflow::RecvTensorResponse response;
  *response.mutable_tensor() = *TensorToProto(tensor);
  response.mutable_transport_options()->set_type_url("type.googleapis.com/some.Extra");
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

TEST(Fetcher, TenThousandFetchesWait) {
  constexpr int kCalls = 10'000;
  Pair pair;
  std::vector<Receiving> receiving;
  for (int i = 0; i < kCalls; ++i) receiving.push_back(pair.Recv(absl::StrCat("e", i)));
  ASSERT_TRUE(pair.source.WaitUntilPending(kCalls));
  for (int i = 0; i < kCalls; ++i) pair.Send(absl::StrCat("e", i), Value(absl::StrCat(i)));
  for (int i = 0; i < kCalls; ++i) {
    const absl::StatusOr<Received> received = receiving[i].Wait();
    ASSERT_THAT(received, IsOk());
    EXPECT_EQ(received->tensor.strings()[0], absl::StrCat(i));
  }
}

}  // namespace
}  // namespace ferry
