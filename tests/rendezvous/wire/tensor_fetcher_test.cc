// SPDX-License-Identifier: Apache-2.0
// Values from worker to worker.
#include "rendezvous/recv_tensor/tensor_fetcher.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fetch_fixture.h"

namespace ferry {
namespace {

using absl::StatusCode;
using coord::Eventually;
using coord::Fails;
using coord::IsOk;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

INSTANTIATE_TEST_SUITE_P(, Forms,
                         ::testing::Values(Form{"Stream", true, true}, Form{"Unary", true, false},
                                           Form{"FallingBack", false, true}),
                         [](const ::testing::TestParamInfo<Form>& i) { return i.param.name; });

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

// A worker whose booleans have bytes other than 0 and 1.
TEST_P(Forms, BooleansThatAreNeither0Nor1_AreRefusedAndNameTheirSender) {
  for (const int64_t count : {4, 2500, 100'000}) {
    Tensor tensor = Counted(DataType::kBool, count);
    static_cast<uint8_t*>(tensor.mutable_data())[count - 2] = 255;
    const std::string edge = absl::StrCat("e", count);
    const std::string element = absl::StrCat("element ", count - 2, " of bool[", count, "] is 255");
    for (const bool is_into_buffer : {false, true}) {
      RecvArgs args;
      if (is_into_buffer) args.destination = *Tensor::Allocate(tensor.dtype(), tensor.shape());
      pair_.Send(edge, tensor);
      EXPECT_THAT(pair_.Recv(edge, args).Wait(),
                  Fails(StatusCode::kInvalidArgument,
                        AllOf(HasSubstr(element), HasSubstr("/job:worker/replica:0/task:0 sent"),
                              HasSubstr(absl::StrCat(";", edge, ";")))));
    }
    // The next value of the key is another one.
    static_cast<uint8_t*>(tensor.mutable_data())[count - 2] = 1;
    pair_.Send(edge, tensor);
    EXPECT_THAT(pair_.Recv(edge).Wait(), IsOk());
  }
}

TEST_P(Forms, StringsAndDeadValuesArrive) {
  const Tensor strings =
      *Tensor::OfStrings(*Shape::Create({3}), {"", std::string(5000, 'x'), "abc"});
  pair_.Send("s", strings);
  EXPECT_TRUE(IsEqual(pair_.Recv("s").Wait()->tensor, strings));
  pair_.Send("d", Tensor(), /*is_dead=*/true);
  const absl::StatusOr<Received> dead = pair_.Recv("d").Wait();
  ASSERT_THAT(dead, IsOk());
  EXPECT_TRUE(dead->is_dead);
}

TEST_P(Forms, ManyPendingFetchesEachGetTheirOwnValue) {
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

TEST_P(Forms, DestinationIsFilledInPlace) {
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

// The value is left to the next request.
TEST_P(Forms, CancelledReceiveCancelsItsRequest) {
  CancellationToken cancellation;
  const Receiving receiving = pair_.Recv("e", {.cancellation = &cancellation});
  ASSERT_TRUE(pair_.source.WaitUntilPending(1));
  cancellation.Cancel();
  EXPECT_THAT(receiving.Wait(),
              Fails(StatusCode::kCancelled, "[_Derived_]RecvFromRemoteAsync is cancelled."));
  ASSERT_TRUE(pair_.source.WaitUntilPending(0));
  pair_.Send("e", Value("v"));
  EXPECT_EQ(pair_.Recv("e").Wait()->tensor.strings()[0], "v");
}

TEST_P(Forms, AbortCancelsEveryRequestAndNoneFollows) {
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

TEST_P(Forms, DeadlineIsThatOfTheRequest) {
  RecvArgs args;
  args.deadline = SteadyClock().Now() + absl::Milliseconds(200);
  EXPECT_THAT(pair_.Recv("e", args).Wait(),
              Fails(StatusCode::kDeadlineExceeded,
                    AllOf(HasSubstr("/job:worker/replica:0/task:0"), HasSubstr(EdgeText("e")))));
  ASSERT_TRUE(pair_.source.WaitUntilPending(0));
}

TEST_P(Forms, KeptValueIsAcknowledged) {
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

TEST(Fetcher, UnknownWorkerIsAnError) {
  Pair pair;
  const RendezvousKey key =
      *RendezvousKey::Parse(RendezvousKey::Text("/job:worker/replica:0/task:9/device:CPU:0", 1,
                                                "/job:worker/replica:0/task:1/device:CPU:0", "e"));
  EXPECT_THAT(
      pair.Recv(key).Wait(),
      Fails(StatusCode::kInternal, StartsWith("No worker known as /job:worker/replica:0/task:9")));
}

// A value that a unary answer cannot hold is sent by the stream.
TEST(Fetcher, ValueThatIsTooLargeForOneMessageIsSentInFrames) {
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

// More than any one message holds.
TEST(Fetcher, ThreeGibibytesArrive) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "each piece that gRPC has written is looked up in vain: it takes minutes";
#endif
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
  EXPECT_EQ(std::memcmp(args.destination->data(), tensor.data(), size_t{64} << 20), 0);

  // And not by the unary call, whose error shows it.
  Pair unary({.service = {.has_streams = false}});
  unary.Send("e", tensor);
  EXPECT_THAT(unary.Recv("e", args).Wait(),
              Fails(StatusCode::kInvalidArgument, HasSubstr("has 3221225477 bytes")));
}

TEST(Fetcher, TenThousandFetchesMayBePending) {
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
