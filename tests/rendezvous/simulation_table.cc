// SPDX-License-Identifier: Apache-2.0
// The simulation of one table: the exact effect of each call is known.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "rendezvous/local_rendezvous.h"
#include "tests/rendezvous/simulation_ledger.h"
#include "tests/rendezvous/simulation_model.h"

namespace ferry::simulation {
namespace {

// Not thread-safe. Every choice follows from the seed.
class TableSimulation final {
 public:
  TableSimulation(uint64_t seed, int64_t events) : dice_(seed), events_(events) { Start(); }

  Report Run() {
    while (ledger_.report().events < events_ && !ledger_.is_violated()) {
      ++ledger_.report().events;
      DoEvent();
      Check();
    }
    if (!ledger_.is_violated()) Stop();
    may_nest_ = false;
    return ledger_.Finish();
  }

 private:
  void Start();
  void Stop();
  void DoEvent();
  void Check();
  void CheckPending();

  void Send(const RendezvousKey& key, std::optional<Value> value = std::nullopt);
  // `links`: so many callbacks, each of which sends to the next.
  void Recv(const RendezvousKey& key, int links);
  // A callback that does more than to take its value.
  void Nest(int links);
  void Cancel();
  void MoveClock();
  void Fail();
  void Abort();

  void Log(std::string line) { ledger_.Log(clock_.Now(), std::move(line)); }

  Dice dice_;
  const int64_t events_;
  FakeClock clock_;
  Ledger ledger_;
  RendezvousLimits limits_;
  std::vector<RendezvousKey> keys_;
  int send_percent_ = 50;
  // Deadlines are far away, so that those of receives that were met pile up.
  bool is_patient_ = false;
  std::vector<std::shared_ptr<CancellationToken>> cancellations_;
  std::unique_ptr<TableModel> model_;
  std::unique_ptr<LocalRendezvous> table_;
  // Calls that end several receives do so in an order of their own, so the effects of a callback
  // that makes further calls cannot be predicted.
  bool may_nest_ = true;
};

void TableSimulation::Start() {
  limits_ = {};
  if (dice_.Chance(30)) limits_.max_pending_ops = 1 + static_cast<size_t>(dice_.Roll(100));
  if (dice_.Chance(30)) limits_.max_queued_bytes = static_cast<size_t>(dice_.Roll(5000));
  const int key_count = dice_.Chance(10) ? 1500 : 1 + dice_.Roll(30);
  send_percent_ = key_count > 1000 ? (dice_.Chance(50) ? 80 : 20) : 40 + dice_.Roll(21);
  is_patient_ = dice_.Chance(30);
  keys_.clear();
  for (int i = 0; i < key_count; ++i) {
    keys_.push_back(*RendezvousKey::Parse(RendezvousKey::Text(
        absl::StrCat("/job:worker/task:", i % 3, "/cpu:0"), static_cast<uint64_t>(i % 2),
        "/job:worker/task:0/gpu:0", absl::StrCat("edge", i / 2), 0, static_cast<uint64_t>(i % 5))));
  }
  cancellations_.resize(4);
  for (auto& each : cancellations_) each = std::make_shared<CancellationToken>();
  model_ = std::make_unique<TableModel>(ledger_, limits_);
  table_ = std::make_unique<LocalRendezvous>(clock_, limits_);
  Log(absl::StrCat("a table: ", key_count, " keys, at most ", limits_.max_pending_ops, " items, ",
                   limits_.max_queued_bytes, " bytes"));
}

void TableSimulation::Stop() {
  Log("the table goes");
  model_->Abort(Error(absl::StatusCode::kCancelled, "LocalRendezvousImpl deleted"));
  may_nest_ = false;
  table_.reset();
  may_nest_ = true;
  ledger_.CheckSettled();
  ledger_.Expect(ledger_.open_receives() == 0, "receives outlived their table");
  ledger_.Expect(ledger_.live_buffers() == 0, "tensors outlived their table");
  for (const auto& each : cancellations_) {
    ledger_.Expect(each->registered_count() == 0, "a cancellation is still watched");
  }
}

void TableSimulation::DoEvent() {
  const int roll = dice_.Roll(1000);
  if (roll < 8) return Recv(dice_.Pick(keys_), 1 + dice_.Roll(60));
  if (roll < 50) return Cancel();
  if (roll < 130) return MoveClock();
  if (roll < 140) return Fail();
  if (roll < 142) return Abort();
  if (roll < (model_->aborted().has_value() ? 192 : 143)) {
    Stop();
    return Start();
  }
  if (roll < 150) return CheckPending();
  if (dice_.Chance(send_percent_)) return Send(dice_.Pick(keys_));
  Recv(dice_.Pick(keys_), 0);
}

void TableSimulation::Check() {
  ledger_.CheckSettled();
  ledger_.Expect(table_->waiting_count() == model_->waiting_count(), "the count of items is wrong");
  ledger_.Expect(table_->queued_bytes() == model_->queued_bytes(), "the count of bytes is wrong");
  ledger_.Expect(ledger_.live_buffers() == model_->queued_tensors(), "a tensor leaked, or died");
  if (ledger_.report().events % 16 != 0) return;
  TableSizes sizes = table_->InnerTableSizes();
  ledger_.Expect(sizes["table.chained"] == sizes["table.items"], "an item is lost, or not counted");
  ledger_.Expect(sizes["table.chained_bytes"] == sizes["table.queued_bytes"],
                 "bytes of a send are lost, or not counted");
  ledger_.Expect(sizes["table.items"] > 0 || sizes["table.shards_over_share"] == 0,
                 "an empty shard is over its share");
  if (!model_->aborted().has_value()) return;
  const std::string left = NonEmptyTables(sizes);
  ledger_.Expect(left.empty(), absl::StrCat("an aborted table has ", left));
}

void TableSimulation::CheckPending() {
  PendingLines expected;
  model_->AddPending("", clock_.Now(), expected);
  PendingLines actual;
  table_->ForEachPending(-absl::InfiniteDuration(), [&actual](const PendingOp& op) {
    actual.push_back(PendingLine("", op.key, op.is_send ? "send" : "recv", op.bytes, op.age));
  });
  // The received values show the order within a key.
  std::sort(expected.begin(), expected.end());
  std::sort(actual.begin(), actual.end());
  ledger_.Expect(expected == actual, "the list of what waits is wrong");
}

void TableSimulation::Send(const RendezvousKey& key, std::optional<Value> given) {
  const Value value = given.has_value()
                          ? *std::move(given)
                          : ledger_.NewValue(static_cast<size_t>(dice_.Roll(120)), dice_.Chance(8));
  Log(absl::StrCat("send ", value.bytes, " bytes to ", key.text()));
  const Outcome expected = model_->Send(key, value, clock_.Now());
  if (expected.code == absl::StatusCode::kResourceExhausted) ++ledger_.report().refusals;
  ledger_.ExpectStatus(
      table_->Send(key, ledger_.TensorOf(value), value.is_dead, {.device_context = value.context}),
      expected, "a send");
}

void TableSimulation::Recv(const RendezvousKey& key, int links) {
  const ReceivePtr receive = ledger_.NewReceive(key);
  if (dice_.Chance(30)) receive->cancellation = dice_.Pick(cancellations_);
  if (dice_.Chance(30)) {
    receive->deadline =
        clock_.Now() + absl::Milliseconds(dice_.Roll(5000) - 100) * (is_patient_ ? 1000 : 1);
  }
  Log(absl::StrCat("receive ", receive->id, " of ", key.text(),
                   receive->cancellation != nullptr ? ", can be cancelled" : "",
                   links > 0 ? absl::StrCat(", ", links, " links") : ""));
  receive->then = [this, links](const absl::Status&, Received) { Nest(links); };
  model_->Recv(receive, clock_.Now());
  table_->RecvAsync(key, receive->args(), ledger_.Callback(receive));
  // The first link of a chain; a pending receive takes it.
  if (links > 0) Send(key);
}

void TableSimulation::Nest(int links) {
  if (!may_nest_) return;
  if (links > 0) return Recv(dice_.Pick(keys_), links - 1);
  if (dice_.Chance(10)) return Send(dice_.Pick(keys_));
  if (dice_.Chance(10)) Recv(dice_.Pick(keys_), 0);
}

void TableSimulation::Cancel() {
  auto& cancellation = cancellations_[static_cast<size_t>(dice_.Roll(4))];
  Log("cancel");
  may_nest_ = false;
  model_->Cancel(*cancellation);
  cancellation->Cancel();
  may_nest_ = true;
  // A few receives use a cancellation that has been used.
  if (dice_.Chance(60)) cancellation = std::make_shared<CancellationToken>();
}

void TableSimulation::MoveClock() {
  clock_.Advance(absl::Milliseconds(dice_.Chance(5) ? -dice_.Roll(1000) : dice_.Roll(1500)));
  if (is_patient_ && dice_.Chance(1)) clock_.Advance(absl::Seconds(dice_.Roll(5000)));
  Log("the clock moves");
  may_nest_ = false;
  ledger_.Expect(table_->NextDeadline() <= model_->FirstDeadline(), "a deadline is kept too late");
  model_->Expire(clock_.Now());
  table_->Expire();
  may_nest_ = true;
  // Otherwise a timer would fire again and again.
  ledger_.Expect(table_->NextDeadline() > clock_.Now(), "a deadline that is over is still kept");
}

void TableSimulation::Fail() {
  const int64_t task = dice_.Roll(3);
  Log(absl::StrCat("task ", task, " fails"));
  const size_t expected = model_->Fail([task](const RendezvousKey& key) -> std::optional<Outcome> {
    if (key.src().task.task != task) return std::nullopt;
    return Error(absl::StatusCode::kUnavailable, absl::StrCat("lost ", key.text()));
  });
  const size_t actual = table_->Fail([task](const RendezvousKey& key) {
    if (key.src().task.task != task) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("lost ", key.text()));
  });
  ledger_.Expect(actual == expected, "Fail ended too many, or too few");
}

void TableSimulation::Abort() {
  const std::string why = absl::StrCat("abort ", ledger_.report().events);
  Log(why);
  model_->Abort(Error(absl::StatusCode::kAborted, why));
  table_->StartAbort(absl::AbortedError(why));
}

}  // namespace

Report RunTable(uint64_t seed, int64_t events) { return TableSimulation(seed, events).Run(); }

}  // namespace ferry::simulation
