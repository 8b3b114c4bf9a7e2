// SPDX-License-Identifier: Apache-2.0
// The simulation of workers with control channels, and its contract.
#include "tests/rendezvous/simulation_eager.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/table_sizes.h"
#include "rendezvous/peer/peer_protocol.h"

namespace ferry::simulation {
namespace {

TaskName TaskOf(int node) { return {.job = "worker", .replica = 0, .task = node}; }

uint16_t TypeOf(PeerMessageType type) { return static_cast<uint16_t>(type); }

// Both sides have sent HELLO.
bool WasUsed(const FaultyWire& wire) {
  for (uint16_t type = 0; type <= TypeOf(PeerMessageType::kWatch); ++type) {
    if (type == TypeOf(PeerMessageType::kHello) || type == TypeOf(PeerMessageType::kError))
      continue;
    if (wire.sent(type) > 0) return true;
  }
  return false;
}

}  // namespace

EagerSimulation::EagerSimulation(uint64_t seed, int64_t events) : dice_(seed), events_(events) {
  Start();
}

EagerSimulation::~EagerSimulation() {
  // After a violation things are still under way.
  is_stopping_ = true;
  is_over_ = true;
  for (auto& process : processes_) process->manager->CleanupAll();
  wires_.clear();
  processes_.clear();
  gone_.clear();
}

Report EagerSimulation::Run() {
  while (ledger_.report().events < events_ && !ledger_.is_violated()) {
    ++ledger_.report().events;
    DoEvent();
    ForgetEnded();
  }
  if (!ledger_.is_violated()) Stop();
  is_stopping_ = true;
  return ledger_.Finish();
}

// --- The world

void EagerSimulation::Start() {
  state_ = std::make_shared<FaultyTransportState>(static_cast<uint64_t>(dice_.Roll(1 << 30)),
                                                  TransportFaults{.later = 300});
  limits_ = {};
  if (dice_.Chance(60)) limits_.step_values = 1 + static_cast<uint32_t>(dice_.Roll(4));
  if (dice_.Chance(40)) limits_.step_bytes = 20 + static_cast<uint32_t>(dice_.Roll(200));
  if (dice_.Chance(40)) limits_.peer_values = 1 + static_cast<uint32_t>(dice_.Roll(8));
  if (dice_.Chance(30)) limits_.peer_bytes = 20 + static_cast<uint32_t>(dice_.Roll(400));
  if (dice_.Chance(50)) limits_.names = 1 + static_cast<uint32_t>(dice_.Roll(4));
  if (dice_.Chance(20)) limits_.name_bytes = 100 + static_cast<uint32_t>(dice_.Roll(300));
  wire_faults_ = {};
  if (dice_.Chance(40)) wire_faults_.backlog_frames = 2 + static_cast<size_t>(dice_.Roll(8));
  if (dice_.Chance(70)) wire_faults_.together = 100 + static_cast<int>(dice_.Roll(900));
  options_ = {};
  if (dice_.Chance(10)) options_.limits.max_pending_ops = 4 + static_cast<size_t>(dice_.Roll(10));
  edge_count_ = 1 + dice_.Roll(5);
  is_calm_ = dice_.Chance(30);
  processes_.resize(2 + static_cast<size_t>(dice_.Roll(3)));
  for (size_t i = 0; i < processes_.size(); ++i) StartProcess(static_cast<int>(i + 1));
  step_ids_.resize(3);
  for (int64_t& step_id : step_ids_) step_id = ++last_step_id_;
  cancellations_.resize(3);
  for (auto& each : cancellations_) each = std::make_shared<CancellationToken>();
  Log(absl::StrCat("start with ", processes_.size(), " workers"));
}

void EagerSimulation::StartProcess(int node) {
  auto process = std::make_unique<Process>();
  process->transports.push_back(MakeFaultyTransport(state_, "views", true));
  process->transports.push_back(MakeFaultyTransport(state_, "copies", false));
  TransferContext& context = process->context;
  context.self.peer = {node, ++last_incarnation_};
  context.self.transports = DescribeTransports(process->transports);
  context.transports = &process->transports;
  context.clock = &clock_;
  process->eager = std::make_unique<EagerPeers>(context, limits_);
  // Some do not know the protocol.
  if (dice_.Chance(90)) context.eager = process->eager.get();
  process->fetcher =
      std::make_unique<PeerFetcher>(context, [this](int32_t wanted, ResolveCallback done) {
        Endpoint endpoint;
        endpoint.peer = Of(wanted).context.self.peer;
        std::move(done)(std::move(endpoint));
      });
  process->fetcher->set_connector(&process->connector);
  process->manager = std::make_unique<RendezvousManager>(clock_, *process->fetcher, options_);
  context.manager = process->manager.get();
  auto& slot = processes_[static_cast<size_t>(node - 1)];
  if (slot != nullptr) gone_.push_back(std::move(slot));
  slot = std::move(process);
}

void EagerSimulation::Stop() {
  Log("stop");
  Settle();
  if (ledger_.is_violated()) return;
  CheckQuiet();
  is_stopping_ = true;
  for (auto& process : processes_) {
    std::vector<int64_t> open;
    for (const auto& [step_id, state] : process->steps) open.push_back(step_id);
    // Steps that only a peer has mentioned, too.
    for (const auto& step : process->manager->Steps()) open.push_back(step->step_id());
    for (const int64_t step_id : open) End(*process, step_id, /*is_abort=*/false);
    if (dice_.Chance(50)) Settle();
  }
  Settle();
  // Steps that values have opened meanwhile.
  for (auto& process : processes_) process->manager->CleanupAll();
  Settle();
  for (auto& process : processes_) {
    const std::string tables = NonEmptyTables(process->eager->InnerTableSizes(),
                                              {"eager_sender.names", "eager_receiver.names"});
    ledger_.Expect(tables.empty(), absl::StrCat("of steps that are over there is left at node ",
                                                process->node(), ": ", tables));
    const std::string steps =
        NonEmptyTables(process->manager->InnerTableSizes(), {"manager.finished"});
    ledger_.Expect(steps.empty(), absl::StrCat("a worker without steps has ", steps));
  }
  ledger_.Expect(open_.empty(), "a receive has outlived its step");
  for (auto& process : processes_) {
    process->fetcher->Close(absl::CancelledError("this process is leaving"));
  }
  Settle();
  for (auto& process : processes_) {
    ledger_.Expect(process->fetcher->connection_count() == 0, "a connection is left");
  }
  ledger_.Expect(wires_.empty(), "a control channel is left");
  ledger_.Expect(state_->lent.empty(), "a tensor is still lent");
  for (const auto& each : cancellations_) {
    ledger_.Expect(each->registered_count() == 0, "a cancellation is still watched");
  }
}

void EagerSimulation::DoEvent() {
  const int roll = dice_.Roll(1000);
  if (roll < 4) return End(Any(), dice_.Pick(step_ids_), /*is_abort=*/dice_.Chance(25));
  if (roll < 14) return StartFlush(Any());
  if (roll < 20) {
    Process& process = Any();
    return CheckFlushes(process, /*is_quiet=*/false);
  }
  if (roll < 30) return MoveClock();
  if (roll < 45) return Cancel();
  if (roll < 48) {
    Settle();
    return ledger_.is_violated() ? void() : CheckQuiet();
  }
  if (roll < 52) {
    if (is_calm_ || wires_.empty()) return;
    Wire& wire = wires_[static_cast<size_t>(dice_.Roll(static_cast<int>(wires_.size())))];
    Log(absl::StrCat("the control channel of ", wire.opener.node_id, " and ", wire.other.node_id,
                     " breaks"));
    OnEnded(wire);
    return wire.wire->Break();
  }
  if (roll < 53) return is_calm_ ? void() : Restart(Any().node(), /*is_killed=*/true);
  if (roll < 54) return is_calm_ ? void() : Restart(Any().node(), /*is_killed=*/false);
  if (roll < 60) return HearOfRestart();
  if (roll < 80) {
    Process& process = Any();
    if (StepState* const step = Find(process, dice_.Pick(step_ids_)); step != nullptr) {
      Log(absl::StrCat(process.node(), " begins step ", step->real->step_id()));
      step->is_initialized = true;
      const auto real = step->real;
      ledger_.Expect(real->Initialize(TaskOf(process.node())).ok(), "a step does not begin");
    }
    return;
  }
  if (roll < 90) {
    for (auto& process : processes_) process->connector.Advance(absl::Milliseconds(dice_.Roll(4)));
    return;
  }
  if (roll < 270) return Send(Any());
  if (roll < 440) return Recv(Any());
  if (roll < 450) return RecvLocal(Any());
  StepNetwork(/*may_fail=*/!is_calm_);
}

// --- Steps

EagerSimulation::StepState* EagerSimulation::Find(Process& process, int64_t step_id) {
  StepState& state = process.steps[step_id];
  auto found = process.manager->Find(step_id);
  if (!found.ok()) {
    ledger_.Expect(state.is_over, absl::StrCat("a step is not found: ", found.status().ToString()));
    return nullptr;
  }
  if (state.is_over) return nullptr;
  state.real = *std::move(found);
  return &state;
}

EagerSimulation::StepState* EagerSimulation::AnyStep(Process& process) {
  StepState* const state = Find(process, dice_.Pick(step_ids_));
  if (state != nullptr && dice_.Chance(80)) {
    state->is_initialized = true;
    const auto real = state->real;
    ledger_.Expect(real->Initialize(TaskOf(process.node())).ok(), "a step does not begin");
    if (state->is_over) return nullptr;
  }
  return state;
}

void EagerSimulation::End(Process& process, int64_t step_id, bool is_abort) {
  Log(absl::StrCat(process.node(), is_abort ? " aborts" : " ends", " step ", step_id));
  StepState& state = process.steps[step_id];
  const bool was_stopping = std::exchange(is_stopping_, true);
  const auto real = state.real != nullptr ? state.real : process.manager->FindOpen(step_id);
  state.is_over = true;
  state.real = nullptr;
  if (is_abort && real != nullptr) real->StartAbort(absl::InternalError("aborted"));
  // A step that was aborted may stay open for a while.
  if (!is_abort || real == nullptr || dice_.Chance(50)) process.manager->Cleanup(step_id);
  is_stopping_ = was_stopping;
  for (int64_t& each : step_ids_) {
    if (each == step_id && dice_.Chance(60)) each = ++last_step_id_;
  }
}

void EagerSimulation::StartFlush(Process& process) {
  StepState* const state = Find(process, dice_.Pick(step_ids_));
  if (state == nullptr) return;
  Log(absl::StrCat(process.node(), " flushes step ", state->real->step_id()));
  ++ledger_.report().flushes;
  state->is_closing = true;
  state->real->TrackQueuedSends();
  state->real->StartFlush();
  // As a flush that gives up. Acknowledgements come later then.
  if (dice_.Chance(50)) state->real->EndFlush();
}

void EagerSimulation::CheckFlushes(Process& process, bool is_quiet) {
  for (auto& [step_id, state] : process.steps) {
    if (!state.is_closing || state.is_over || state.real == nullptr) continue;
    size_t missing = 0;
    size_t excuses = 0;
    for (const auto& [id, stream] : streams_) {
      if (id.first != step_id || stream.source != process.incarnation()) continue;
      missing += stream.values.size() - stream.received;
      excuses += stream.excuses;
    }
    const int64_t count = static_cast<int64_t>(state.real->operations().count());
    if (!is_quiet) continue;
    if (count == 0) {
      ledger_.Expect(missing <= excuses || state.has_excuse || !state.real->send_status().ok(),
                     absl::StrCat("step ", step_id, " of node ", process.node(),
                                  " is flushed, but ", missing, " values were not received"));
    }
    if (missing == 0) {
      ledger_.Expect(count == 0,
                     absl::StrCat("all values of step ", step_id, " of node ", process.node(),
                                  " were received, but ", count, " operations are outstanding"));
    }
  }
}

// --- Values

RendezvousKey EagerSimulation::RandomKey(const Process& source, int consumer) {
  const auto device = [](int node) {
    return absl::StrCat("/job:worker/replica:0/task:", node, "/device:CPU:0");
  };
  // Sometimes one that there is not.
  const uint64_t incarnation = source.incarnation() + (dice_.Chance(1) ? 1'000'000 : 0);
  return *RendezvousKey::Parse(RendezvousKey::Text(device(source.node()), incarnation,
                                                   device(consumer),
                                                   absl::StrCat("edge", dice_.Roll(edge_count_))));
}

void EagerSimulation::Send(Process& process) {
  StepState* const state = AnyStep(process);
  if (state == nullptr) return;
  const auto real = state->real;
  const bool is_batch = dice_.Chance(20);
  const int count = is_batch ? 1 + dice_.Roll(6) : 1;
  std::vector<RendezvousKey> keys;
  std::vector<SendItem> items;
  std::vector<int64_t> numbers;
  bool is_dead = false;
  keys.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    int consumer = 1 + dice_.Roll(static_cast<int>(processes_.size()) - 1);
    if (consumer >= process.node()) ++consumer;
    const RendezvousKey& key = keys.emplace_back(RandomKey(process, consumer));
    Stream::Value value;
    value.number = ++last_number_;
    value.is_dead = is_dead = !is_batch && dice_.Chance(6);
    value.bytes = dice_.Chance(12) ? 17'000 : 8 + 8 * static_cast<size_t>(dice_.Roll(8));
    Tensor tensor;
    if (!value.is_dead) {
      tensor =
          *Tensor::Allocate(DataType::kUint8, *Shape::Create({static_cast<int64_t>(value.bytes)}));
      std::memcpy(tensor.mutable_data(), &value.number, sizeof(value.number));
    }
    Log(absl::StrCat(process.node(), " sends ", value.number, value.is_dead ? " (dead)" : "",
                     is_batch ? " (batch)" : "", " of ", value.bytes, " bytes in step ",
                     real->step_id(), " ", key.text()));
    if (IsEnding(process.node(), consumer)) process.steps[real->step_id()].has_excuse = true;
    // Before: a receive that waits gets it inside the call.
    Stream& stream = StreamOf({real->step_id(), key.text()});
    stream.source = process.incarnation();
    stream.values.push_back(value);
    numbers.push_back(value.number);
    items.push_back({.key = &key, .tensor = std::move(tensor)});
  }
  if (is_batch) {
    real->SendMany(absl::MakeSpan(items));
  } else {
    items[0].status = real->Send(keys[0], std::move(items[0].tensor), is_dead);
  }
  for (size_t i = 0; i < items.size(); ++i) {
    const absl::Status& sent = items[i].status;
    if (sent.ok()) continue;
    auto& values = StreamOf({real->step_id(), keys[i].text()}).values;
    values.erase(std::find_if(values.begin(), values.end(), [&](const Stream::Value& value) {
      return value.number == numbers[i];
    }));
    ledger_.Expect(
        !process.steps[real->step_id()].is_initialized || absl::IsResourceExhausted(sent),
        absl::StrCat("a send failed: ", sent.ToString()));
  }
}

void EagerSimulation::Recv(Process& process) {
  StepState* const state = AnyStep(process);
  if (state == nullptr) return;
  int source = 1 + dice_.Roll(static_cast<int>(processes_.size()) - 1);
  if (source >= process.node()) ++source;
  const auto make = [&] {
    const auto receive =
        std::make_shared<Receive>(Receive{.key = RandomKey(Of(source), process.node())});
    receive->is_refusable =
        !state->is_initialized || receive->key.src_incarnation() != Of(source).incarnation();
    receive->breaks_before =
        Breaks(source, process.node()) - (IsEnding(source, process.node()) ? 1 : 0);
    receive->consumer = process.context.self.peer;
    receive->step_id = state->real->step_id();
    return receive;
  };
  const auto real = state->real;
  if (!dice_.Chance(20)) {
    Post(make(), [real](const RendezvousKey& key, RecvArgs args, RecvCallback done) {
      real->RecvAsync(key, std::move(args), std::move(done));
    });
    return;
  }
  std::vector<ReceivePtr> receives(static_cast<size_t>(1 + dice_.Roll(6)));
  std::vector<RecvItem> items;
  for (ReceivePtr& each : receives) {
    each = make();
    Post(each, [&items](const RendezvousKey& key, RecvArgs args, RecvCallback done) {
      items.push_back({.key = &key, .args = std::move(args), .done = std::move(done)});
    });
  }
  real->RecvMany(absl::MakeSpan(items));
}

// As a consumer of another protocol does.
void EagerSimulation::RecvLocal(Process& process) {
  StepState* const state = AnyStep(process);
  if (state == nullptr) return;
  int consumer = 1 + dice_.Roll(static_cast<int>(processes_.size()) - 1);
  if (consumer >= process.node()) ++consumer;
  const auto receive = std::make_shared<Receive>(Receive{.key = RandomKey(process, consumer)});
  receive->is_local = true;
  receive->consumer = process.context.self.peer;
  receive->step_id = state->real->step_id();
  // One that waits for long would take all the values of its key.
  Post(receive, [real = state->real](const RendezvousKey& key, RecvArgs args, RecvCallback done) {
    real->RecvLocalAsync(key, std::move(args), std::move(done));
  });
}

void EagerSimulation::Post(
    const ReceivePtr& receive,
    const std::function<void(const RendezvousKey&, RecvArgs, RecvCallback)>& post) {
  ++ledger_.report().receives;
  receive->id = ++last_number_;
  receive->stream = {receive->step_id, receive->key.text()};
  if (dice_.Chance(25) || receive->is_local) receive->cancellation = dice_.Pick(cancellations_);
  if (dice_.Chance(25)) receive->deadline = clock_.Now() + absl::Milliseconds(dice_.Roll(8000));
  if (!receive->is_local && dice_.Chance(10)) {
    receive->destination =
        *Tensor::Allocate(DataType::kUint8, *Shape::Create({8 + 8 * dice_.Roll(3)}));
  }
  Log(absl::StrCat(receive->consumer.node_id, receive->is_local ? " is asked as " : " receives as ",
                   receive->id, " in step ", receive->step_id, " ", receive->key.text()));
  open_.emplace(receive->id, receive);
  const RecvArgs args = {.cancellation = receive->cancellation.get(),
                         .deadline = receive->deadline,
                         .destination = receive->destination};
  post(receive->key, args, [this, receive](const absl::Status& status, const Received& received) {
    ledger_.Expect(!receive->is_done, absl::StrCat("receive ", receive->id, " ends twice"));
    receive->is_done = true;
    open_.erase(receive->id);
    if (is_over_) return;
    if (status.ok()) {
      OnReceived(*receive, received);
    } else {
      OnFailed(*receive, status);
    }
    if (is_stopping_ || ledger_.is_violated() || !dice_.Chance(10)) return;
    Process* const process = Alive(receive->consumer);
    if (process != nullptr) dice_.Chance(50) ? Send(*process) : Recv(*process);
  });
}

void EagerSimulation::OnReceived(Receive& receive, const Received& received) {
  ++ledger_.report().values;
  if (!receive.is_local) {
    ++(received.path == "eager" ? ledger_.report().pushed : ledger_.report().pulled);
  }
  const std::string name = absl::StrCat("receive ", receive.id);
  Stream& stream = StreamOf(receive.stream);
  auto& order = stream.order[receive.is_local ? 0 : receive.consumer.incarnation];
  const auto after = order.lower_bound(receive.id);
  if (received.is_dead) {
    // Dead values look alike, so that their order cannot be checked.
    const auto dead = std::count_if(stream.values.begin(), stream.values.end(),
                                    [](const Stream::Value& value) { return value.is_dead; });
    ledger_.Expect(++stream.dead_received <= static_cast<size_t>(dead),
                   name + " got a value dead that was not");
    ++stream.received;
    return;
  }
  int64_t number = 0;
  if (received.tensor.bytes() >= sizeof(number)) {
    std::memcpy(&number, received.tensor.data(), sizeof(number));
  }
  size_t position = 0;
  while (position < stream.values.size() && stream.values[position].number != number) ++position;
  Log(absl::StrCat(name, " gets ", number, " by ", received.path));
  ledger_.Expect(position == stream.values.size() || after == order.begin() ||
                     position > std::prev(after)->second,
                 absl::StrCat(name, " got value ", number, " after a later one"));
  if (position >= stream.values.size()) {
    return ledger_.Expect(false, name + " got a value that was not sent");
  }
  Stream::Value& value = stream.values[position];
  ledger_.Expect(!value.is_received, absl::StrCat("value ", value.number, " was received twice"));
  ledger_.Expect(after == order.end() || position < after->second,
                 absl::StrCat(name, " got value ", value.number, " after an earlier one"));
  ledger_.Expect(!value.is_dead, name + " got a value that was dead");
  ledger_.Expect(received.tensor.bytes() == value.bytes, name + " got a tensor of another size");
  ledger_.Expect(!receive.destination.is_valid() || receive.destination.bytes() == value.bytes,
                 name + " got a value that does not fit");
  value.is_received = true;
  ++stream.received;
  order.emplace(receive.id, position);
}

void EagerSimulation::OnFailed(Receive& receive, const absl::Status& status) {
  ++ledger_.report().errors;
  Log(absl::StrCat("receive ", receive.id, " ends with ", status.ToString()));
  ++StreamOf(receive.stream).excuses;
  ledger_.Expect(IsRight(receive, status),
                 absl::StrCat("receive ", receive.id, " ended with ", status.ToString()));
}

bool EagerSimulation::IsRight(const Receive& receive, const absl::Status& status) {
  Process* const consumer = Alive(receive.consumer);
  if (consumer == nullptr || consumer->steps[receive.step_id].is_over) return true;
  if (receive.is_refusable) return true;
  if (absl::IsCancelled(status) && receive.cancellation != nullptr &&
      receive.cancellation->is_cancelled()) {
    return true;
  }
  if (absl::IsDeadlineExceeded(status) && receive.deadline <= clock_.Now()) return true;
  if (absl::IsInvalidArgument(status) && receive.destination.is_valid()) return true;
  if (absl::IsResourceExhausted(status) &&
      options_.limits.max_pending_ops != RendezvousLimits().max_pending_ops) {
    return true;
  }
  // By the news of a restart.
  if (receive.is_local) return absl::IsUnavailable(status);
  const auto source = static_cast<int>(receive.key.src().task.task);
  if (Breaks(source, receive.consumer.node_id) > receive.breaks_before) return true;
  Process* const producer = Alive({source, receive.key.src_incarnation()});
  return producer == nullptr || producer->steps[receive.step_id].is_over;
}

// --- The network

bool EagerSimulation::Connect(Process& process, bool may_fail) {
  if (process.connector.attempts.empty()) return false;
  const auto [id, attempt] = *process.connector.attempts.begin();
  const int node = attempt.peer.node_id;
  if (!(attempt.peer == Of(node).context.self.peer) || (may_fail && dice_.Chance(10))) {
    CountBreak(process.node(), node);
    process.connector.Fail(id, absl::UnavailableError("Connection refused"));
    return true;
  }
  wires_.push_back(
      {std::make_unique<FaultyWire>(static_cast<uint64_t>(dice_.Roll(1 << 30)), wire_faults_),
       process.context.self.peer, attempt.peer});
  const auto handler = process.connector.Take(id);
  wires_.back().wire->Open(handler, process.context.self.peer,
                           Of(node).fetcher->Serve(process.context.self.peer), attempt.peer,
                           /*is_late=*/true);
  return true;
}

bool EagerSimulation::StepNetwork(bool may_fail) {
  ForgetEnded();
  const size_t able = wires_.size() * 3 + processes_.size() * 2 + gone_.size() + 1;
  const auto first = static_cast<size_t>(dice_.Roll(static_cast<int>(able)));
  for (size_t i = 0; i < able; ++i) {
    size_t which = (first + i) % able;
    if (which < wires_.size() * 3) {
      if (wires_[which / 3].wire->Step()) return true;
      continue;
    }
    which -= wires_.size() * 3;
    if (which < processes_.size()) {
      if (processes_[which]->connector.Step()) return true;
      continue;
    }
    which -= processes_.size();
    if (which < processes_.size()) {
      if (Connect(*processes_[which], may_fail)) return true;
      continue;
    }
    which -= processes_.size();
    if (which < gone_.size()) {
      if (gone_[which]->connector.Step()) return true;
      continue;
    }
    if (state_->Step()) return true;
  }
  return false;
}

void EagerSimulation::OnEnded(Wire& wire) {
  if (std::exchange(wire.is_counted, true)) return;
  CountBreak(wire.opener.node_id, wire.other.node_id);
}

bool EagerSimulation::IsEnding(int a, int b) const {
  return std::any_of(wires_.begin(), wires_.end(), [a, b](const Wire& wire) {
    return wire.is_counted &&
           std::minmax(wire.opener.node_id, wire.other.node_id) == std::minmax(a, b);
  });
}

void EagerSimulation::CountBreak(int a, int b) {
  ++Breaks(a, b);
  ++ledger_.report().breaks;
  for (const int node : {a, b}) {
    for (auto& [step_id, state] : Of(node).steps) state.has_excuse = true;
  }
}

void EagerSimulation::ForgetEnded() {
  for (Wire& wire : wires_) {
    const absl::Status& violation = wire.wire->violation();
    ledger_.Expect(!absl::IsInvalidArgument(violation),
                   absl::StrCat("a control channel of ", wire.opener.node_id, " and ",
                                wire.other.node_id, " ends: ", violation.ToString()));
    // One of two that were opened at the same time carries nothing.
    if (wire.wire->is_ending() && WasUsed(*wire.wire)) OnEnded(wire);
    if (!wire.wire->is_over()) continue;
    Report& report = ledger_.report();
    report.refused_steps += wire.wire->sent(TypeOf(PeerMessageType::kStepRefused));
    for (const PeerMessageType type : {PeerMessageType::kRequest, PeerMessageType::kNamedRequest}) {
      report.converted +=
          wire.wire->sent_while_handling(TypeOf(type), TypeOf(PeerMessageType::kEagerPull));
      report.fetches += wire.wire->sent(TypeOf(type));
    }
  }
  std::erase_if(wires_, [](const Wire& wire) { return wire.wire->is_over(); });
}

// --- Faults

void EagerSimulation::Cancel() {
  auto& cancellation = cancellations_[static_cast<size_t>(dice_.Roll(3))];
  const auto cancelled = cancellation;
  cancellation = std::make_shared<CancellationToken>();
  Log("cancel");
  const bool was_stopping = std::exchange(is_stopping_, true);
  cancelled->Cancel();
  is_stopping_ = was_stopping;
  for (const auto& [id, receive] : open_) {
    ledger_.Expect(receive->cancellation != cancelled, "a cancelled receive waits");
  }
}

void EagerSimulation::MoveClock() {
  clock_.Advance(absl::Milliseconds(dice_.Chance(5) ? -dice_.Roll(1000) : dice_.Roll(2000)));
  Log("the clock moves");
  const bool was_stopping = std::exchange(is_stopping_, true);
  for (auto& process : processes_) {
    process->manager->Expire();
    ledger_.Expect(process->manager->NextDeadline() > clock_.Now(),
                   "a deadline that is over is still kept");
  }
  is_stopping_ = was_stopping;
  for (const auto& [id, receive] : open_) {
    ledger_.Expect(receive->deadline > clock_.Now() || Alive(receive->consumer) == nullptr,
                   "a receive outlives its deadline");
  }
}

void EagerSimulation::Restart(int node, bool is_killed) {
  Log(absl::StrCat(node, is_killed ? " is killed" : " leaves", ", and comes back"));
  ++ledger_.report().deaths;
  Process& process = Of(node);
  const bool was_stopping = std::exchange(is_stopping_, true);
  for (int other = 1; other <= static_cast<int>(processes_.size()); ++other) {
    if (other != node) CountBreak(node, other);
  }
  for (auto& [step_id, state] : process.steps) {
    state.is_over = true;
    state.real = nullptr;
  }
  for (Wire& wire : wires_) {
    const bool is_opener = wire.opener == process.context.self.peer;
    if (!is_opener && !(wire.other == process.context.self.peer)) continue;
    wire.is_counted = true;
    if (is_killed) wire.wire->Kill(is_opener);
  }
  process.manager->CleanupAll();
  process.fetcher->Close(absl::CancelledError("this process is leaving"));
  while (!process.connector.attempts.empty()) {
    process.connector.Fail(process.connector.attempts.begin()->first,
                           absl::CancelledError("this process is leaving"));
  }
  StartProcess(node);
  is_stopping_ = was_stopping;
  for (int other = 1; other <= static_cast<int>(processes_.size()); ++other) {
    if (other != node) news_.emplace_back(other, node);
  }
}

void EagerSimulation::HearOfRestart() {
  if (news_.empty()) return;
  const auto which = dice_.Roll(static_cast<int>(news_.size()));
  const auto [observer, dead] = news_[static_cast<size_t>(which)];
  news_.erase(news_.begin() + which);
  Log(absl::StrCat(observer, " hears that ", dead, " was restarted"));
  Process& process = Of(observer);
  const bool was_stopping = std::exchange(is_stopping_, true);
  CountBreak(observer, dead);
  const absl::Status why = absl::UnavailableError(absl::StrCat("node ", dead, " has died"));
  process.manager->FailTask(TaskOf(dead), why);
  process.fetcher->Forget(dead, why, Of(dead).incarnation());
  is_stopping_ = was_stopping;
}

EagerSimulation::Process* EagerSimulation::Alive(const PeerId& peer) {
  Process& process = Of(peer.node_id);
  return process.context.self.peer == peer ? &process : nullptr;
}

void EagerSimulation::Settle() {
  Log("wait until nothing is under way");
  const bool was_stopping = std::exchange(is_stopping_, true);
  int64_t steps = 0;
  for (int quiet = 0; quiet < 20 && !ledger_.is_violated();) {
    if (StepNetwork(/*may_fail=*/false)) {
      quiet = 0;
      if (++steps > 200'000) return ledger_.Expect(false, "it never ends");
      continue;
    }
    ++quiet;
    for (auto& process : processes_) process->connector.Advance(EagerInbox::kMaxAckDelay);
    for (auto& process : gone_) process->connector.Advance(EagerInbox::kMaxAckDelay);
  }
  ForgetEnded();
  is_stopping_ = was_stopping;
}

void EagerSimulation::CheckQuiet() {
  ++ledger_.report().quiet;
  // Values that each incarnation has in its tables, or has sent without an acknowledgement.
  std::map<StreamId, size_t> queued;
  std::map<StreamId, size_t> unacknowledged;
  for (auto& process : processes_) {
    const auto see = [&](const PendingStepOp& op) {
      ledger_.Expect(!op.key.is_step_end(), "a watch is listed as pending");
      if (op.side == PendingStepOp::Side::kSend) ++queued[{op.step_id, op.key.text()}];
      if (op.side == PendingStepOp::Side::kTransfer) ++unacknowledged[{op.step_id, op.key.text()}];
    };
    process->manager->ForEachPending(-absl::InfiniteDuration(), see);
    process->fetcher->ForEachTransfer(-absl::InfiniteDuration(), see);
    CheckFlushes(*process, /*is_quiet=*/true);
  }
  for (const auto& [id, receive] : open_) {
    Process* const consumer = Alive(receive->consumer);
    if (consumer == nullptr) {
      ledger_.Expect(false, absl::StrCat("receive ", id, " outlives its process"));
      continue;
    }
    const auto source = static_cast<int>(receive->key.src().task.task);
    Process* const producer = Alive({source, receive->key.src_incarnation()});
    if (producer == nullptr) continue;
    if (!receive->is_local && producer->steps[receive->step_id].is_over) {
      ledger_.Expect(
          false, absl::StrCat("receive ", id, " waits, though its step is over at node ", source));
    }
    ledger_.Expect(queued[receive->stream] == 0,
                   absl::StrCat("receive ", id, " waits, and its value at node ", source, " too"));
    ledger_.Expect(receive->is_local || unacknowledged[receive->stream] == 0,
                   absl::StrCat("receive ", id, " waits, though node ", source, " has sent it"));
  }
  for (const auto& [id, stream] : streams_) {
    const auto owner =
        std::find_if(processes_.begin(), processes_.end(), [&stream = stream](const auto& process) {
          return process->incarnation() == stream.source;
        });
    if (owner == processes_.end()) continue;
    const StepState& state = (*owner)->steps[id.first];
    if (state.is_over) continue;
    const size_t known = stream.received + queued[id] + unacknowledged[id];
    ledger_.Expect(known <= stream.values.size(),
                   absl::StrCat("a value of ", id.second, " is there twice"));
    if (state.has_excuse) continue;
    ledger_.Expect(
        known + stream.excuses >= stream.values.size(),
        absl::StrCat(stream.values.size(), " values of ", id.second, " in step ", id.first,
                     " were sent; ", stream.received, " were received, ", queued[id],
                     " are queued, ", unacknowledged[id], " not acknowledged, the others lost"));
  }
}

Report RunEagerWorkers(uint64_t seed, int64_t events) {
  return EagerSimulation(seed, events).Run();
}

}  // namespace ferry::simulation
