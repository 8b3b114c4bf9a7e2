// SPDX-License-Identifier: Apache-2.0
// Compares each answer with the model's.
#include "tests/rendezvous/simulation_ledger.h"

#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ferry::simulation {
namespace {

constexpr size_t kTraceLines = 60;

// The first bytes of a value's tensor.
class Context final : public DeviceContext {
 public:
  explicit Context(int64_t id) : id(id) {}
  const int64_t id;
};

}  // namespace

void Ledger::Expect(bool holds, absl::string_view what) {
  if (!holds && report_.violation.empty()) report_.violation = std::string(what);
}

void Ledger::ExpectStatus(const absl::Status& status, const Outcome& expected,
                          absl::string_view what) {
  if (status.code() == expected.code && absl::StrContains(status.message(), expected.text)) return;
  Expect(false,
         absl::StrCat(what, " gave ", status.ToString(), " instead of ",
                      absl::StatusCodeToString(expected.code), " with \"", expected.text, "\""));
}

void Ledger::Log(absl::Time now, std::string line) {
  trace_.push_back(absl::StrCat("  ", report_.events, " ",
                                absl::FormatDuration(now - absl::UnixEpoch()), " ", line));
  if (trace_.size() > kTraceLines) trace_.pop_front();
}

void Ledger::CheckSettled() {
  Expect(due_answers_ == 0, absl::StrCat(due_answers_, " receives that are over heard nothing"));
}

ReceivePtr Ledger::NewReceive(RendezvousKey key) {
  auto receive = std::make_shared<Receive>(Receive{.id = ++last_id_, .key = std::move(key)});
  receive->context = std::make_shared<Context>(last_id_);
  ++open_receives_;
  ++report_.receives;
  return receive;
}

void Ledger::End(const ReceivePtr& receive, Outcome outcome) {
  Expect(!receive->is_over, "the model ended a receive twice");
  receive->is_over = true;
  receive->expected = std::move(outcome);
  ++due_answers_;
}

RecvCallback Ledger::Callback(ReceivePtr receive) {
  return [this, receive = std::move(receive)](absl::Status status, Received received) {
    Expect(!receive->is_answered, absl::StrCat("receive ", receive->id, " was answered twice"));
    receive->is_answered = true;
    --open_receives_;
    --due_answers_;
    CheckAnswer(*receive, status, received);
    if (auto then = std::move(receive->then)) then(status, std::move(received));
  };
}

void Ledger::CheckAnswer(const Receive& receive, const absl::Status& status,
                         const Received& received) {
  const std::string name = absl::StrCat("receive ", receive.id);
  if (!receive.is_over) {
    return Expect(false, absl::StrCat(name, " should wait but heard ", status.ToString()));
  }
  ++(status.ok() ? report_.values : report_.errors);
  if (absl::IsResourceExhausted(status)) ++report_.refusals;
  ExpectStatus(status, receive.expected, name);
  if (!status.ok() || is_violated()) return;
  const Value& value = receive.expected.value;
  Expect(received.send_args.device_context == value.context, name + " got another value");
  Expect(received.is_dead == value.is_dead, name + " got a value dead that was not, or not");
  Expect(received.tensor.is_valid() != value.is_dead, name + " got no tensor, or one too many");
  Expect(received.recv_args.device_context == receive.context, name + " lost its own context");
  Expect(received.recv_args.cancellation == receive.cancellation.get() &&
             received.recv_args.deadline == receive.deadline,
         name + " lost its arguments");
  if (value.is_dead || is_violated()) return;
  Expect(received.tensor.bytes() == value.bytes, name + " got a tensor of another size");
  int64_t id = 0;
  std::memcpy(&id, received.tensor.data(), sizeof(id));
  Expect(id == static_cast<const Context&>(*value.context).id, name + " got other bytes");
}

Value Ledger::NewValue(size_t bytes, bool is_dead) {
  return {is_dead ? 0 : bytes + sizeof(int64_t), is_dead, std::make_shared<Context>(++last_id_)};
}

Tensor Ledger::TensorOf(const Value& value) {
  if (value.is_dead) return Tensor();
  auto* const memory = new char[value.bytes]();
  std::memcpy(memory, &static_cast<const Context&>(*value.context).id, sizeof(int64_t));
  ++live_buffers_;
  auto buffer = WrapForeignBuffer(memory, value.bytes, [this, memory] {
    --live_buffers_;
    delete[] memory;
  });
  return *Tensor::Create(DataType::kUint8, *Shape::Create({static_cast<int64_t>(value.bytes)}),
                         std::move(buffer));
}

Report Ledger::Finish() {
  if (is_violated()) {
    absl::StrAppend(&report_.violation, "\nafter event ", report_.events,
                    ", the last of which were:\n", absl::StrJoin(trace_, "\n"));
  }
  return report_;
}

}  // namespace ferry::simulation
