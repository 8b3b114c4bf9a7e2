// SPDX-License-Identifier: Apache-2.0
// The ledger of a simulation: expected and actual results of each receive; live values; the trace.
#ifndef FERRY_TESTS_RENDEZVOUS_SIMULATION_LEDGER_H_
#define FERRY_TESTS_RENDEZVOUS_SIMULATION_LEDGER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "base/cancellation_token.h"
#include "rendezvous/key.h"
#include "rendezvous/value.h"
#include "tests/rendezvous/simulation.h"

namespace ferry::simulation {

// The same on every machine, unlike the standard's distributions.
class Dice final {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  // 0 to sides - 1.
  int Roll(int sides) { return static_cast<int>(engine_() % static_cast<uint64_t>(sides)); }
  bool Chance(int percent) { return Roll(100) < percent; }
  template <typename T>
  const T& Pick(const std::vector<T>& from) {
    return from[static_cast<size_t>(Roll(static_cast<int>(from.size())))];
  }

 private:
  std::mt19937_64 engine_;
};

// A value that was sent. Its unique context tells it from all others, dead ones too.
struct Value {
  size_t bytes = 0;
  bool is_dead = false;
  std::shared_ptr<DeviceContext> context;
};

// How something must end: OK with that value, or with that code and a message that has `text` in
// it.
struct Outcome {
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string text;
  Value value;
};

struct Receive {
  int64_t id = 0;
  RendezvousKey key;
  std::shared_ptr<CancellationToken> cancellation;
  std::shared_ptr<DeviceContext> context;
  absl::Time deadline = absl::InfiniteFuture();
  // Since when it waits where it waits now.
  absl::Time since;
  // Set by the model.
  bool is_over = false;
  Outcome expected;
  // Set by the answer.
  bool is_answered = false;
  // The owner's reaction to the answer.
  std::function<void(const absl::Status&, Received)> then;

  RecvArgs args() const {
    return {.device_context = context, .cancellation = cancellation.get(), .deadline = deadline};
  }
};
using ReceivePtr = std::shared_ptr<Receive>;

// Not thread-safe. Outlives everything that the simulation makes.
class Ledger final {
 public:
  // --- Violations
  void Expect(bool holds, absl::string_view what);
  void ExpectStatus(const absl::Status& status, const Outcome& expected, absl::string_view what);
  bool is_violated() const { return !report_.violation.empty(); }
  void Log(absl::Time now, std::string line);
  // After an event: checks that all due results have arrived.
  void CheckSettled();

  // --- Receives
  ReceivePtr NewReceive(RendezvousKey key);
  // The model expects this result of this receive now.
  void End(const ReceivePtr& receive, Outcome outcome);
  // For the real object.
  RecvCallback Callback(ReceivePtr receive);
  int64_t open_receives() const { return open_receives_; }

  // --- Values
  Value NewValue(size_t bytes, bool is_dead);
  // A tensor of the value's size, whose memory is counted.
  Tensor TensorOf(const Value& value);
  // Tensors' memory that is still referenced.
  int64_t live_buffers() const { return live_buffers_; }

  Report& report() { return report_; }
  // Adds the trace to the violation.
  Report Finish();

 private:
  void CheckAnswer(const Receive& receive, const absl::Status& status, const Received& received);

  Report report_;
  std::deque<std::string> trace_;
  int64_t last_id_ = 0;
  int64_t open_receives_ = 0;
  int64_t due_answers_ = 0;
  int64_t live_buffers_ = 0;
};

}  // namespace ferry::simulation

#endif  // FERRY_TESTS_RENDEZVOUS_SIMULATION_LEDGER_H_
