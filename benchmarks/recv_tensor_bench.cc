// SPDX-License-Identifier: Apache-2.0
// Tensors from worker to worker over gRPC, server and client in one process on the loopback.
//   build/release/benchmarks/recv_tensor_bench
//   GB/s = tensor bytes / seconds / 1e9, sender's memory -> receiver's memory
//   place: where the receiver has the elements: 0 the heap, 1 a destination of its own, 2 an arena
// Floor, in the same run: a bare unary call whose answer is a byte buffer of the same size that
// points into memory; with gRPC's default arguments (`tuned:0`) or ours; left in the pieces in
// which it came (`flat:0`), or copied into one (`flat:1`), as a user of the bytes needs it and as
// all rows of ours have it.
// Estimate: a bare call copies twice in the kernel; one more copy of 64 MiB at 8 GB/s is 8 ms, so
// that the unary form stands at 0.8 of the tuned bare one left in pieces and at 1 of the copied
// one, and the streamed form above both, since its copies find the bytes in the caches.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

#include "base/clock.h"
#include "coord/wire/bytes.h"
#include "coord/wire/callback_threads.h"
#include "coord/wire/raw_service.h"
#include "rendezvous/recv_tensor/recv_tensor_service.h"
#include "rendezvous/recv_tensor/tensor_channel.h"
#include "rendezvous/recv_tensor/tensor_fetcher.h"
#include "rendezvous/rendezvous_manager.h"
#include "rendezvous/tensor_source.h"
#include "tensor/host_arena.h"

namespace ferry {
namespace {

constexpr char kBarePath[] = "/ferry.bench.Bare/Get";

Tensor Counted(int64_t bytes) {
  Tensor tensor = *Tensor::Allocate(DataType::kUint8, *Shape::Create({bytes}));
  auto* out = static_cast<uint8_t*>(tensor.mutable_data());
  for (int64_t i = 0; i < bytes; ++i) out[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
  return tensor;
}

// Sends one buffer to every caller.
class BareService final : public coord::RawService {
 public:
  explicit BareService(const Tensor& tensor) {
    const grpc::Slice slice = SliceOf(tensor);
    AddUnary(kBarePath, [bytes = grpc::ByteBuffer(&slice, 1)](grpc::CallbackServerContext* context,
                                                              const grpc::ByteBuffer*,
                                                              grpc::ByteBuffer* response) {
      *response = bytes;
      grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
      reactor->Finish(grpc::Status::OK);
      return reactor;
    });
  }
};

std::unique_ptr<grpc::Server> Serve(grpc::Service& service, bool tuned, std::string& address) {
  grpc::ServerBuilder builder;
  int port = 0;
  if (tuned) {
    PrepareTensorServer(builder);
  } else {
    coord::KeepCallbackThreads();
    builder.SetMaxReceiveMessageSize(-1);
    builder.SetMaxSendMessageSize(-1);
  }
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  address = absl::StrCat("127.0.0.1:", port);
  return server;
}

std::shared_ptr<grpc::Channel> Connect(const std::string& address, bool tuned) {
  if (tuned) return MakeTensorChannel(address);
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

void Report(benchmark::State& state, int64_t bytes, std::vector<double>& seconds) {
  state.SetBytesProcessed(state.iterations() * bytes);
  std::sort(seconds.begin(), seconds.end());
  if (seconds.empty()) return;
  state.counters["p50_us"] = seconds[seconds.size() / 2] * 1e6;
  state.counters["p99_us"] = seconds[seconds.size() * 99 / 100] * 1e6;
}

// Waits for one callback.
template <typename Begin>
double TimedCall(Begin begin) {
  absl::Notification done;
  const absl::Time start = SteadyClock().Now();
  begin([&done] { done.Notify(); });
  done.WaitForNotification();
  return absl::ToDoubleSeconds(SteadyClock().Now() - start);
}

void BM_Bare_Get(benchmark::State& state) {
  const int64_t bytes = state.range(0);
  const bool tuned = state.range(1) != 0;
  const bool flat = state.range(2) != 0;
  const Tensor tensor = Counted(bytes);
  Tensor destination = *Tensor::Allocate(DataType::kUint8, tensor.shape());
  std::memset(destination.mutable_data(), 1, tensor.bytes());
  BareService service(tensor);
  std::string address;
  const std::unique_ptr<grpc::Server> server = Serve(service, tuned, address);
  grpc::GenericStub stub(Connect(address, tuned));
  const grpc::Slice empty;
  bool is_right = true;
  const auto get = [&] {
    grpc::ClientContext context;
    const grpc::ByteBuffer request(&empty, 1);
    grpc::ByteBuffer response;
    std::vector<grpc::Slice> slices;
    const double seconds = TimedCall([&](auto done) {
      stub.UnaryCall(&context, kBarePath, grpc::StubOptions(), &request, &response,
                     [&, done](const grpc::Status& status) {
                       is_right &= status.ok() && response.Length() == tensor.bytes();
                       if (flat && response.Dump(&slices).ok()) {
                         auto* out = static_cast<char*>(destination.mutable_data());
                         for (const grpc::Slice& slice : slices) {
                           std::memcpy(out, slice.begin(), slice.size());
                           out += slice.size();
                         }
                       }
                       done();
                     });
    });
    return seconds;
  };
  get();
  std::vector<double> seconds;
  for (auto _ : state) seconds.push_back(get());
  if (!is_right || (flat && !IsEqual(tensor, destination))) state.SkipWithError("wrong bytes");
  Report(state, bytes, seconds);
}

class Workers {
 public:
  Workers(GrpcTensorFetcherOptions fetcher, RecvTensorServiceOptions service)
      : service_(MakeRecvTensorService(source_, service)),
        server_(Serve(*service_, /*tuned=*/true, address_)),
        fetcher_(
            SteadyClock(), [this](const TaskName&) { return address_; }, std::move(fetcher)) {
    step_ = *manager_.Find(1);
    step_->Initialize({"worker", 0, 0}).IgnoreError();
  }
  ~Workers() {
    manager_.CleanupAll();
    server_->Shutdown();
    server_->Wait();
  }

  // Sent before it is requested.
  double Fetch(const Tensor& tensor, const Tensor& destination, absl::Status& status) {
    RecvArgs args;
    args.destination = destination;
    step_->Send(key_, tensor).IgnoreError();
    return TimedCall([&](auto done) {
      fetcher_.Fetch(1, key_, args, [&status, done](absl::Status why, Received) {
        status = std::move(why);
        done();
      });
    });
  }

 private:
  class NoFetcher final : public RemoteFetcher {
    std::shared_ptr<RemoteFetch> Fetch(int64_t, const RendezvousKey&, const RecvArgs&,
                                       RecvCallback) override {
      return nullptr;
    }
  };

  NoFetcher none_;
  RendezvousManager manager_{SteadyClock(), none_};
  TensorSource source_{manager_, [](const TaskDevice&) { return std::optional<uint64_t>(1); }};
  const std::unique_ptr<grpc::Service> service_;
  std::string address_;
  const std::unique_ptr<grpc::Server> server_;
  GrpcTensorFetcher fetcher_;
  std::shared_ptr<RemoteRendezvous> step_;
  const RendezvousKey key_ =
      *RendezvousKey::Parse(RendezvousKey::Text("/job:worker/replica:0/task:0/device:CPU:0", 1,
                                                "/job:worker/replica:0/task:1/device:CPU:0", "e"));
};

// Where the receiver has its elements.
enum Place { kHeap = 0, kDestination = 1, kArena = 2 };

GrpcTensorFetcherOptions FetcherOptions(int64_t place) {
  GrpcTensorFetcherOptions options;
  if (place != kArena) return options;
  std::shared_ptr<HostArena> arena = *HostArena::Create({});
  options.allocator = [arena](DataType dtype, Shape shape) -> absl::StatusOr<Tensor> {
    absl::StatusOr<size_t> bytes = TensorBytes(dtype, shape);
    if (!bytes.ok()) return bytes.status();
    absl::StatusOr<std::shared_ptr<Buffer>> buffer = arena->Allocate(*bytes);
    if (!buffer.ok()) return buffer.status();
    return Tensor::Create(dtype, std::move(shape), *std::move(buffer));
  };
  return options;
}

void FetchLoop(benchmark::State& state, Workers& workers) {
  const bool has_destination = state.range(1) == kDestination;
  const int64_t bytes = state.range(0);
  const Tensor tensor = Counted(bytes);
  Tensor destination = *Tensor::Allocate(DataType::kUint8, tensor.shape());
  std::memset(destination.mutable_data(), 1, tensor.bytes());
  absl::Status status;
  const Tensor where = has_destination ? destination : Tensor();
  workers.Fetch(tensor, where, status);
  std::vector<double> seconds;
  for (auto _ : state) {
    seconds.push_back(workers.Fetch(tensor, where, status));
    if (!status.ok()) return state.SkipWithError(status.ToString().c_str());
  }
  if (has_destination && !IsEqual(tensor, destination)) state.SkipWithError("wrong bytes");
  Report(state, bytes, seconds);
}

void BM_RecvTensor_Unary(benchmark::State& state) {
  GrpcTensorFetcherOptions options = FetcherOptions(state.range(1));
  options.use_streams = false;
  Workers workers(std::move(options), {});
  FetchLoop(state, workers);
}

void BM_RecvTensor_Stream(benchmark::State& state) {
  Workers workers(FetcherOptions(state.range(1)),
                  {.frame_bytes = static_cast<size_t>(state.range(2))});
  FetchLoop(state, workers);
}

constexpr int64_t kLarge = 64 << 20;

BENCHMARK(BM_Bare_Get)
    ->ArgNames({"bytes", "tuned", "flat"})
    ->Args({kLarge, 1, 0})
    ->Args({kLarge, 0, 0})
    ->Args({kLarge, 1, 1})
    ->Args({kLarge, 0, 1})
    ->Args({1024, 1, 1})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();
BENCHMARK(BM_RecvTensor_Unary)
    ->ArgNames({"bytes", "place"})
    ->Args({kLarge, 1})
    ->Args({kLarge, 2})
    ->Args({kLarge, 0})
    ->Args({1024, 0})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();
BENCHMARK(BM_RecvTensor_Stream)
    ->ArgNames({"bytes", "place", "frame"})
    ->Args({kLarge, 1, kFrameBytes})
    ->Args({kLarge, 2, kFrameBytes})
    ->Args({kLarge, 0, kFrameBytes})
    ->Args({kLarge, 1, 64 << 10})
    ->Args({kLarge, 1, 4 << 20})
    ->Args({1024, 0, kFrameBytes})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

}  // namespace
}  // namespace ferry

BENCHMARK_MAIN();
