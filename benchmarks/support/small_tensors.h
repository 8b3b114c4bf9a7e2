// SPDX-License-Identifier: Apache-2.0
// Small tensors to the other process of a TransferPeer: streams under many keys, one at a time or
// in batches, and receives that are posted after the send. The receiver verifies every value.
#ifndef FERRY_BENCHMARKS_SUPPORT_SMALL_TENSORS_H_
#define FERRY_BENCHMARKS_SUPPORT_SMALL_TENSORS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "node/step.h"
#include "node/transfer_engine.h"

namespace ferry::bench {

class TransferPeer;

inline constexpr size_t kMaxPathBytes = 16;

// Memory of both processes.
struct SmallTensorsPage {
  // The receiver has posted its first receives.
  alignas(128) std::atomic<int64_t> ready;
  // Unexpected: the round whose value has been sent, and the last one that was received.
  alignas(128) std::atomic<int64_t> sent;
  alignas(128) std::atomic<int64_t> done;
  // By the receiver, before `done` or the last answer: from posting the receive until it was done,
  // and when that was, by the steady clock of both.
  alignas(128) int64_t receive_ns;
  int64_t done_ns;
  // Values that were wrong; allocations of the receiving thread per value; the last value's path.
  int64_t wrong;
  double allocations;
  char path[kMaxPathBytes];
};

struct SmallTensors {
  int64_t step_id = 0;
  // 0: none of this.
  int64_t values = 0;
  uint64_t bytes = 8;
  // Names, used in turns; as many as values: each is used once. All are made before the first send.
  int64_t keys = 1;
  // Values that are sent, and posted, at a time.
  int64_t batch = 1;
  // Values until an answer; two windows are in flight. A multiple of `batch`, and a divisor of
  // `values`.
  int64_t window = 1;
  // Received into a buffer, else as delivered.
  bool into = false;
  // Receives are posted when the page says that the value was sent.
  bool unexpected = false;
  // While it waits for that, the receiver leads its event loop.
  bool leads = false;
};

// The sender's side, in a step of its own. Not thread-safe.
class SmallTensorSender final {
 public:
  // Starts the other process on it, and waits until it has posted its receives. `peer` must outlive
  // it.
  //   plan: without a step.
  SmallTensorSender(TransferPeer& peer, SmallTensors plan);
  // Ends the step.
  ~SmallTensorSender();

  SmallTensorSender(const SmallTensorSender&) = delete;
  SmallTensorSender& operator=(const SmallTensorSender&) = delete;

  // Sends a window, and waits for the answer to the one before.
  void Window();
  // Waits for the last answer.
  void Finish();
  // For plans that are unexpected: sends a value. Returns the seconds from Send until it was
  // received, by the receiver's reading of the clock; in `receive` those from posting the receive.
  double Unexpected(double& receive);

  // Allocations of this thread per value so far.
  double allocations() const;
  // The receiver's results so far.
  const SmallTensorsPage& page() const { return page_; }

 private:
  // An answer to be received.
  struct Answer;

  void Send(int64_t first, int64_t count);
  void AwaitAnswer();

  TransferPeer& peer_;
  EventLoop& loop_;
  SmallTensorsPage& page_;
  SmallTensors plan_;
  std::vector<RendezvousKey> keys_;
  std::vector<Tensor> tensors_;
  std::vector<SendItem> items_;
  std::shared_ptr<RemoteRendezvous> rendezvous_;
  std::unique_ptr<Step> step_;
  std::vector<std::unique_ptr<Answer>> answers_;
  int64_t next_ = 0;
  int64_t answered_ = 0;
  int64_t allocations_before_ = 0;
};

// The receiver's side, until all values have arrived.
void ReceiveSmallTensors(TransferEngine& engine, SmallTensorsPage& page, const SmallTensors& plan);

}  // namespace ferry::bench

#endif  // FERRY_BENCHMARKS_SUPPORT_SMALL_TENSORS_H_
