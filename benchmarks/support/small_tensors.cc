// SPDX-License-Identifier: Apache-2.0
// Keys and values of both sides, and their loops.
#include "benchmarks/support/small_tensors.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "benchmarks/support/allocation_count.h"
#include "benchmarks/support/transfer_peer.h"

namespace ferry::bench {
namespace {

// Values that differ from each other.
constexpr int64_t kValues = 1024;
constexpr int64_t kWindowsInFlight = 2;
// Windows for which receives are posted: an answer allows the next one.
constexpr int64_t kPostedWindows = kWindowsInFlight + 1;

void ExpectOk(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "small tensors: %s\n", status.ToString().c_str());
  std::_Exit(1);
}

uint64_t WordOf(int64_t value) {
  return static_cast<uint64_t>(value % kValues + 1) * 0x9E3779B97F4A7C15u;
}

std::vector<RendezvousKey> KeysOf(const SmallTensors& plan) {
  std::vector<RendezvousKey> keys;
  keys.reserve(static_cast<size_t>(plan.keys));
  for (int64_t i = 0; i < plan.keys; ++i) {
    keys.push_back(TransferPeer::KeyFrom(0, 1, absl::StrCat("small/", i)));
  }
  return keys;
}

RendezvousKey AnswerKey() { return TransferPeer::KeyFrom(1, 0, "small/answer"); }

int64_t NowNanoseconds() {
  return absl::ToInt64Nanoseconds(SteadyClock().Now() - absl::UnixEpoch());
}

void WaitFor(EventLoop& loop, absl::FunctionRef<bool()> is_done) {
  if (is_done()) return;
  if (!loop.WaitUntil(is_done, SteadyClock().Now() + absl::Seconds(60))) {
    ExpectOk(absl::DeadlineExceededError("the other process does not answer"));
  }
}

// A receive; used again and again.
class Slot final {
 public:
  // The receive that fills it; to be posted.
  RecvItem Begin(const RendezvousKey& key, const Tensor& destination, EventLoop& loop) {
    is_done_.store(false, std::memory_order_relaxed);
    RecvItem item;
    item.key = &key;
    item.args.destination = destination;
    item.done = [this, &loop](absl::Status status, Received received) {
      status_ = std::move(status);
      tensor_ = std::move(received.tensor);
      path_ = received.path;
      is_done_.store(true, std::memory_order_release);
      loop.Wake();
    };
    return item;
  }
  void Wait(EventLoop& loop) {
    WaitFor(loop, [this] { return is_done_.load(std::memory_order_acquire); });
    ExpectOk(status_);
  }
  // Releases the tensor. Returns false if it is not that value.
  bool Take(int64_t value, uint64_t bytes) {
    const uint64_t word = WordOf(value);
    const bool is_right =
        tensor_.bytes() == bytes && std::memcmp(tensor_.data(), &word, sizeof(word)) == 0;
    tensor_ = Tensor();
    return is_right;
  }
  absl::string_view path() const { return path_; }

 private:
  std::atomic<bool> is_done_{false};
  absl::Status status_;
  Tensor tensor_;
  absl::string_view path_;
};

// The receiver's loops, and what they have in common.
class Receiver final {
 public:
  Receiver(TransferEngine& engine, SmallTensorsPage& page, const SmallTensors& plan)
      : engine_(engine),
        page_(page),
        plan_(plan),
        step_(*engine.OpenStep(plan.step_id)),
        keys_(KeysOf(plan)),
        slots_(static_cast<size_t>(plan.unexpected ? 1 : kPostedWindows * plan.window)),
        buffers_(slots_.size()) {
    for (size_t i = 0; plan.into && i < buffers_.size(); ++i) {
      buffers_[i] = ArenaTensor(engine, plan.bytes);
    }
  }

  void Run() {
    const auto posted = static_cast<int64_t>(slots_.size());
    const Tensor answer = ArenaTensor(engine_, 8);
    const RendezvousKey answer_key = AnswerKey();
    Post(0, std::min(posted, plan_.values));
    page_.ready.store(1, std::memory_order_release);
    const int64_t before = AllocationsOfThisThread();
    for (int64_t i = 0; i < plan_.values; ++i) {
      Slot& slot = SlotOf(i);
      slot.Wait(engine_.loop());
      Take(slot, i);
      if ((i + 1) % plan_.batch == 0) {
        const int64_t first = i + 1 - plan_.batch + posted;
        Post(first, std::min(plan_.batch, std::max(plan_.values - first, int64_t{0})));
      }
      if ((i + 1) % plan_.window != 0) continue;
      Report(slot, before, i + 1);
      ExpectOk(step_.Send(answer_key, answer));
    }
  }

  void RunUnexpected() {
    page_.ready.store(1, std::memory_order_release);
    const int64_t before = AllocationsOfThisThread();
    for (int64_t i = 0; i < plan_.values; ++i) {
      const auto is_sent = [this, i] { return page_.sent.load(std::memory_order_acquire) > i; };
      while (!plan_.leads && !is_sent()) {
      }
      if (plan_.leads) WaitFor(engine_.loop(), is_sent);
      Slot& slot = SlotOf(0);
      const int64_t start = NowNanoseconds();
      Post(i, 1);
      slot.Wait(engine_.loop());
      page_.done_ns = NowNanoseconds();
      page_.receive_ns = page_.done_ns - start;
      Take(slot, i);
      Report(slot, before, i + 1);
      page_.done.store(i + 1, std::memory_order_release);
    }
  }

 private:
  Slot& SlotOf(int64_t value) { return slots_[static_cast<size_t>(value) % slots_.size()]; }

  void Post(int64_t first, int64_t count) {
    items_.clear();
    for (int64_t i = first; i < first + count; ++i) {
      items_.push_back(SlotOf(i).Begin(keys_[static_cast<size_t>(i % plan_.keys)],
                                       buffers_[static_cast<size_t>(i) % slots_.size()],
                                       engine_.loop()));
      if (plan_.batch > 1) continue;
      RecvItem& item = items_.back();
      step_.RecvAsync(*item.key, std::move(item.args), std::move(item.done));
      items_.clear();
    }
    step_.RecvManyAsync(absl::MakeSpan(items_));
  }

  void Take(Slot& slot, int64_t value) {
    if (!slot.Take(value, plan_.bytes)) ++page_.wrong;
  }

  void Report(const Slot& slot, int64_t allocations_before, int64_t values) {
    page_.allocations = static_cast<double>(AllocationsOfThisThread() - allocations_before) /
                        static_cast<double>(values);
    const size_t length = std::min(slot.path().size(), kMaxPathBytes - 1);
    std::memcpy(page_.path, slot.path().data(), length);
    page_.path[length] = '\0';
  }

  TransferEngine& engine_;
  SmallTensorsPage& page_;
  const SmallTensors plan_;
  Step step_;
  const std::vector<RendezvousKey> keys_;
  std::vector<Slot> slots_;
  std::vector<Tensor> buffers_;
  std::vector<RecvItem> items_;
};

}  // namespace

struct SmallTensorSender::Answer {
  RendezvousKey key = AnswerKey();
  PostedRecv receive;
};

SmallTensorSender::SmallTensorSender(TransferPeer& peer, SmallTensors plan)
    : peer_(peer),
      loop_(peer.transfer_engine().loop()),
      page_(peer.small_tensors_page()),
      plan_(plan),
      keys_(KeysOf(plan)) {
  for (int64_t i = 0; i < kValues; ++i) {
    Tensor tensor = ArenaTensor(peer.transfer_engine(), plan.bytes);
    const uint64_t word = WordOf(i);
    std::memcpy(tensor.mutable_data(), &word, sizeof(word));
    tensors_.push_back(std::move(tensor));
  }
  page_.ready.store(0);
  page_.sent.store(0);
  page_.done.store(0);
  page_.wrong = 0;
  rendezvous_ = peer.Begin({.small = plan});
  step_ = std::make_unique<Step>(peer.transfer_engine(), rendezvous_);
  for (int i = 0; !plan.unexpected && i < kWindowsInFlight; ++i) {
    answers_.push_back(std::make_unique<Answer>());
    answers_.back()->receive.Post(*rendezvous_, answers_.back()->key, Tensor(), loop_);
  }
  WaitFor(loop_, [this] { return page_.ready.load(std::memory_order_acquire) != 0; });
  allocations_before_ = AllocationsOfThisThread();
}

SmallTensorSender::~SmallTensorSender() { peer_.End(); }

void SmallTensorSender::Send(int64_t first, int64_t count) {
  if (count > 1) {
    items_.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      items_[static_cast<size_t>(i)] = {
          .key = &keys_[static_cast<size_t>((first + i) % plan_.keys)],
          .tensor = tensors_[static_cast<size_t>((first + i) % kValues)]};
    }
    step_->SendMany(absl::MakeSpan(items_));
    for (const SendItem& item : items_) ExpectOk(item.status);
    return;
  }
  for (int64_t i = first; i < first + count; ++i) {
    ExpectOk(step_->Send(keys_[static_cast<size_t>(i % plan_.keys)],
                         tensors_[static_cast<size_t>(i % kValues)]));
  }
}

void SmallTensorSender::AwaitAnswer() {
  Answer& answer = *answers_[static_cast<size_t>(answered_) % answers_.size()];
  answer.receive.Wait(loop_);
  answer.receive.Drop();
  answer.receive.Post(*rendezvous_, answer.key, Tensor(), loop_);
  ++answered_;
}

void SmallTensorSender::Window() {
  for (int64_t i = 0; i < plan_.window; i += plan_.batch) Send(next_ + i, plan_.batch);
  next_ += plan_.window;
  if (next_ / plan_.window - answered_ == kWindowsInFlight) AwaitAnswer();
}

void SmallTensorSender::Finish() {
  while (answered_ < next_ / plan_.window) AwaitAnswer();
}

double SmallTensorSender::Unexpected(double& receive) {
  const int64_t start = NowNanoseconds();
  Send(next_, 1);
  page_.sent.store(++next_, std::memory_order_release);
  WaitFor(loop_, [this] { return page_.done.load(std::memory_order_acquire) == next_; });
  receive = static_cast<double>(page_.receive_ns) / 1e9;
  return static_cast<double>(page_.done_ns - start) / 1e9;
}

double SmallTensorSender::allocations() const {
  return static_cast<double>(AllocationsOfThisThread() - allocations_before_) /
         static_cast<double>(std::max(next_, int64_t{1}));
}

void ReceiveSmallTensors(TransferEngine& engine, SmallTensorsPage& page, const SmallTensors& plan) {
  Receiver receiver(engine, page, plan);
  if (plan.unexpected) {
    receiver.RunUnexpected();
  } else {
    receiver.Run();
  }
}

}  // namespace ferry::bench
