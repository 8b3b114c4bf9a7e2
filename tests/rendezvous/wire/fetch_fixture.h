// SPDX-License-Identifier: Apache-2.0
// A worker that sends and one that receives, in every form that values take between them.
#ifndef FERRY_TESTS_RENDEZVOUS_WIRE_FETCH_FIXTURE_H_
#define FERRY_TESTS_RENDEZVOUS_WIRE_FETCH_FIXTURE_H_

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/synchronization/notification.h"

#include "rendezvous/recv_tensor/tensor_fetcher.h"
#include "test_worker.h"

namespace ferry {

// A receive in progress. Copies refer to the same one.
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
    if (!state_->done.WaitForNotificationWithTimeout(coord::kTimeout)) {
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

inline Tensor Counted(DataType dtype, int64_t count) {
  Tensor tensor = *Tensor::Allocate(dtype, *Shape::Create({count}));
  auto* bytes = static_cast<uint8_t*>(tensor.mutable_data());
  for (size_t i = 0; i < tensor.bytes(); ++i) bytes[i] = static_cast<uint8_t>(i * 7 / 5);
  // Any bits are an element, but of booleans.
  for (size_t i = 0; dtype == DataType::kBool && i < tensor.bytes(); ++i) bytes[i] &= 1;
  return tensor;
}

inline GrpcTensorFetcherOptions Quick() {
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

}  // namespace ferry

#endif  // FERRY_TESTS_RENDEZVOUS_WIRE_FETCH_FIXTURE_H_
