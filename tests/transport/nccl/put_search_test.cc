// SPDX-License-Identifier: Apache-2.0
// Every order of events of two devices that put into each other's windows, with a fault at any
// moment.
#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transport/nccl/put_endpoint.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kBlock = PutPool::kAlignment;

enum class Fault { kNone, kCancelAtSource, kCancelAtDestination, kBreak, kDeath, kPause, kLoss };

struct Scenario {
  // Directions of the transfers: true: from device 0 to device 1.
  std::vector<bool> transfers;
  // In blocks, of each device.
  uint64_t pool_blocks = 1;
  Fault fault = Fault::kNone;
  // The device that dies, pauses, notices that the communicator is broken, or loses its puts: then
  // its stream says nothing of them any more.
  int where = 0;
  PutRules rules;
};

class FrozenClock final : public Clock {
 public:
  absl::Time Now() const override { return absl::UnixEpoch(); }
};

const Clock& TheClock() {
  static const FrozenClock* const clock = new FrozenClock;
  return *clock;
}

// A message on a control channel: of the protocol, an offer with its descriptor, or the news that
// the communicator is broken.
struct Letter {
  enum class Kind { kPut, kOffer, kBreak } kind = Kind::kPut;
  PutMessage message;
  CommunicatorName name;

  template <typename H>
  friend H AbslHashValue(H state, const Letter& l) {
    return H::combine(std::move(state), static_cast<int>(l.kind), l.message, l.name);
  }
};

// A put on its stream. It happens after those before it; its end is noticed after that. One that is
// lost may happen all the same.
struct Running {
  IssuePut put;
  bool has_happened = false;
  bool is_lost = false;

  template <typename H>
  friend H AbslHashValue(H state, const Running& r) {
    return H::combine(std::move(state), r.put.key, r.put.destination_offset, r.put.communicator,
                      r.has_happened, r.is_lost);
  }
};

struct Side {
  explicit Side(DeviceId self, const Scenario& scenario)
      : endpoint(self, scenario.pool_blocks * kBlock, TheClock(), scenario.rules) {}

  PutEndpoint endpoint;
  std::deque<Letter> inbox;
  // By generation: each has a stream of its own.
  std::map<uint32_t, std::deque<Running>> streams;
  std::vector<IssueWait> waits;
  // Signals that have come, and that were waited for, by generation.
  std::map<uint32_t, int> signals;
  std::map<uint32_t, int> awaited;
  // The transfer that each block of this device was promised to.
  std::map<uint64_t, TransferKey> promised;
  std::map<TransferKey, std::string> ends;
  uint32_t open = 1;  // the open generation; 0: none
  bool is_alive = true;
  bool knows_of_death = false;
  bool is_paused = false;
  bool is_stuck = false;

  template <typename H>
  friend H AbslHashValue(H state, const Side& s) {
    state = H::combine(std::move(state), s.endpoint, s.inbox, s.streams, s.signals, s.awaited,
                       s.promised, s.ends, s.open, s.is_alive, s.knows_of_death, s.is_paused,
                       s.is_stuck);
    for (const IssueWait& wait : s.waits) state = H::combine(std::move(state), wait.communicator);
    return state;
  }
};

class World {
 public:
  explicit World(const Scenario& scenario)
      : scenario_(&scenario), sides_{Side(DeviceId(0), scenario), Side(DeviceId(1), scenario)} {
    for (int i = 0; i < 2; ++i) {
      sides_[i].endpoint.OpenWindow(DeviceId(1 - i), NameOf(1), scenario.pool_blocks * kBlock, 0);
    }
    for (size_t i = 0; i < scenario.transfers.size(); ++i) {
      const bool is_up = scenario.transfers[i];
      unoffered_.push_back({DeviceId(is_up ? 0 : 1), DeviceId(is_up ? 1 : 0), i + 1});
      all_.push_back(unoffered_.back());
    }
  }

  // The events that can happen now.
  std::vector<std::string> Events() const {
    std::vector<std::string> events;
    for (size_t i = 0; i < unoffered_.size(); ++i) {
      if (Source(unoffered_[i]).is_alive) events.push_back(absl::StrCat("offer ", i));
    }
    for (int i = 0; i < 2; ++i) {
      const Side& side = sides_[i];
      const Side& other = sides_[1 - i];
      if (!side.inbox.empty() && side.is_alive) events.push_back(absl::StrCat("deliver ", i));
      for (const auto& [generation, stream] : side.streams) {
        const std::string of = absl::StrCat(i, " ", generation);
        if (std::any_of(stream.begin(), stream.end(),
                        [](const Running& put) { return !put.has_happened; })) {
          events.push_back(absl::StrCat("put ", of));
        }
        if (!side.is_alive || stream.empty()) continue;
        const bool is_stuck = side.is_stuck && generation == 1;
        if (is_stuck && !stream.back().is_lost) events.push_back(absl::StrCat("lost ", of));
        if (!is_stuck && stream.front().has_happened) {
          events.push_back(absl::StrCat("passed ", of));
        }
      }
      if (!side.is_alive) continue;
      for (size_t w = 0; w < side.waits.size(); ++w) {
        events.push_back(absl::StrCat("waited ", i, " ", w));
      }
      if (!other.is_alive && !side.knows_of_death && side.inbox.empty()) {
        events.push_back(absl::StrCat("death ", i));
      }
      if (side.is_paused) events.push_back(absl::StrCat("resume ", i));
      // The next generation, once both have ended this one.
      if (side.open == 0 && other.open != 1 && other.is_alive) {
        events.push_back(absl::StrCat("open ", i));
      }
    }
    if (!has_failed_ && scenario_->fault != Fault::kNone) events.push_back("fault");
    return events;
  }

  void Do(const std::string& event) {
    const std::string kind = event.substr(0, event.find(' '));
    const int at = event.size() > kind.size() ? event[kind.size() + 1] - '0' : 0;
    PutActions actions;
    if (kind == "offer") {
      const TransferKey key = unoffered_[static_cast<size_t>(at)];
      unoffered_.erase(unoffered_.begin() + at);
      uint64_t offset = 0;
      const auto name = Source(key).endpoint.Offer(key, kBlock, absl::InfiniteFuture(), offset);
      if (name.has_value()) {
        Destination(key).inbox.push_back({Letter::Kind::kOffer, {.key = key}, *name});
      } else {
        EndBoth(key);
      }
      return;
    }
    if (kind == "fault") return Fail();
    Side& side = sides_[at];
    const DeviceId peer(1 - at);
    const uint32_t generation = static_cast<uint32_t>(event.back() - '0');
    if (kind == "deliver") {
      const Letter letter = side.inbox.front();
      side.inbox.pop_front();
      if (side.knows_of_death) return;
      Receive(at, letter);
    } else if (kind == "put") {
      Happen(at, generation);
    } else if (kind == "passed") {
      const Running done = side.streams[generation].front();
      side.streams[generation].pop_front();
      const bool is_open = side.open == done.put.communicator.generation;
      side.endpoint.PutPassed(done.put.key,
                              is_open ? absl::OkStatus() : absl::AbortedError("ended"), actions);
      Perform(at, actions);
    } else if (kind == "lost") {
      std::deque<Running>& stream = side.streams[generation];
      const auto lost = std::find_if(stream.begin(), stream.end(),
                                     [](const Running& put) { return !put.is_lost; });
      lost->is_lost = true;
      side.endpoint.PutLost(lost->put.key, absl::AbortedError("lost"), actions);
      Perform(at, actions);
    } else if (kind == "waited") {
      const size_t which = static_cast<size_t>(event.back() - '0');
      const IssueWait wait = side.waits[which];
      side.waits.erase(side.waits.begin() + static_cast<std::ptrdiff_t>(which));
      const bool is_open = side.open == wait.communicator.generation;
      side.endpoint.WaitPassed(wait.peer, wait.communicator,
                               is_open ? absl::OkStatus() : absl::AbortedError("ended"), actions);
      Perform(at, actions);
    } else if (kind == "death") {
      side.knows_of_death = true;
      side.open = 0;
      side.endpoint.PeerFailed(peer, absl::UnavailableError("killed"), actions);
      Perform(at, actions);
    } else if (kind == "resume") {
      side.is_paused = false;
      side.endpoint.Resume(actions);
      Perform(at, actions);
    } else if (kind == "open") {
      side.open = 2;
      side.endpoint.OpenWindow(peer, NameOf(2), scenario_->pool_blocks * kBlock, 0);
    }
  }

  // Nothing more happens: each transfer is over on each side that lives, and no block is left.
  void CheckEnd() {
    for (int i = 0; i < 2; ++i) {
      const Side& side = sides_[i];
      if (!side.is_alive) continue;
      for (const TransferKey& key : all_) {
        const bool is_offered =
            std::find(unoffered_.begin(), unoffered_.end(), key) == unoffered_.end();
        const bool has_begun = is_offered && (key.source == DeviceId(i) || sides_[1 - i].is_alive);
        if (has_begun && !side.ends.contains(key)) {
          Blame(absl::StrCat(Describe(key), " never ends on device ", i));
        }
      }
      // A block that a lost put may still write to stays promised.
      const bool may_keep = scenario_->fault == Fault::kLoss && scenario_->where != i;
      if ((side.endpoint.transfer_count() > 0 && !may_keep) || !side.endpoint.is_quiet()) {
        Blame(absl::StrCat("device ", i, " keeps a transfer"));
      }
      const PutPool& pool = side.endpoint.pool();
      if (pool.used_bytes() != pool.retired_bytes() + side.endpoint.transfer_count() * kBlock) {
        Blame(absl::StrCat("device ", i, " has lost a block"));
      }
      if (pool.retired_bytes() > 0 && !side.knows_of_death && !side.is_stuck) {
        Blame("a block was retired");
      }
    }
  }

  const std::string& failure() const { return failure_; }

  template <typename H>
  friend H AbslHashValue(H state, const World& w) {
    return H::combine(std::move(state), w.sides_[0], w.sides_[1], w.unoffered_, w.has_failed_);
  }

 private:
  static CommunicatorName NameOf(uint32_t generation) { return {7, generation}; }
  const Side& Source(const TransferKey& key) const { return sides_[key.source.value()]; }
  Side& Source(const TransferKey& key) { return sides_[key.source.value()]; }
  Side& Destination(const TransferKey& key) { return sides_[key.destination.value()]; }

  void Blame(const std::string& text) {
    if (failure_.empty()) failure_ = text;
  }
  void End(int at, const TransferKey& key, const std::string& how) {
    if (!sides_[at].ends.emplace(key, how).second) {
      Blame(absl::StrCat(Describe(key), " ends twice on device ", at));
    }
  }
  void EndBoth(const TransferKey& key) {
    End(0, key, "batch");
    End(1, key, "batch");
  }

  void Fail() {
    has_failed_ = true;
    Side& side = sides_[scenario_->where];
    PutActions actions;
    switch (scenario_->fault) {
      case Fault::kCancelAtSource:
      case Fault::kCancelAtDestination: {
        const TransferKey& key = all_[0];
        const DeviceId device =
            scenario_->fault == Fault::kCancelAtSource ? key.source : key.destination;
        sides_[device.value()].endpoint.Cancel(key, absl::CancelledError("not wanted"), actions);
        return Perform(device.value(), actions);
      }
      case Fault::kBreak:
        return Break(scenario_->where, NameOf(1));
      case Fault::kDeath:
        side.is_alive = false;
        side.inbox.clear();
        // Its work may have been taken from its streams, or not yet.
        return;
      case Fault::kPause:
        side.is_paused = true;
        side.endpoint.Pause();
        return;
      case Fault::kLoss:
        side.is_stuck = true;
        return Break(scenario_->where, NameOf(1));
      case Fault::kNone:
        return;
    }
  }

  void Break(int at, const CommunicatorName& name) {
    Side& side = sides_[at];
    if (side.open != name.generation) return;
    side.open = 0;
    PutActions actions;
    side.endpoint.CommunicatorEnded(name, absl::InternalError("broken"), kNoDevice, actions);
    sides_[1 - at].inbox.push_back({Letter::Kind::kBreak, {}, name});
    Perform(at, actions);
  }

  void Receive(int at, const Letter& letter) {
    Side& side = sides_[at];
    PutActions actions;
    if (letter.kind == Letter::Kind::kBreak) return Break(at, letter.name);
    if (letter.kind == Letter::Kind::kOffer) {
      const TransferKey& key = letter.message.key;
      // It was cancelled before it came.
      if (side.ends.contains(key)) return;
      if (!side.endpoint.Accept(key, letter.name, kBlock, absl::InfiniteFuture(), actions)) {
        PutEndpoint::Refuse(key, actions);
        End(at, key, "batch");
      }
    } else if (const absl::Status status = side.endpoint.OnMessage(letter.message, actions);
               !status.ok()) {
      Blame(absl::StrCat("refused: ", status.message()));
    }
    Perform(at, actions);
  }

  // The next put of the device's stream writes into the other's memory.
  void Happen(int at, uint32_t generation) {
    std::deque<Running>& stream = sides_[at].streams[generation];
    const auto next = std::find_if(stream.begin(), stream.end(),
                                   [](const Running& put) { return !put.has_happened; });
    next->has_happened = true;
    Side& to = sides_[1 - at];
    const auto promised = to.promised.find(next->put.destination_offset);
    if (to.is_alive && (promised == to.promised.end() || promised->second != next->put.key)) {
      Blame(absl::StrCat("a put of ", Describe(next->put.key),
                         " overwrites a block that is not its own"));
    }
    written_.insert(next->put.key);
    ++to.signals[next->put.communicator.generation];
  }

  void Perform(int at, const PutActions& actions) {
    Side& side = sides_[at];
    for (const PutAction& action : actions) {
      if (const auto* const send = std::get_if<SendPutMessage>(&action)) {
        if (send->message.kind == PutMessageKind::kRoom) {
          side.promised[send->message.offset] = send->message.key;
        }
        if (sides_[1 - at].is_alive) {
          sides_[1 - at].inbox.push_back({Letter::Kind::kPut, send->message, {}});
        }
      } else if (const auto* const put = std::get_if<IssuePut>(&action)) {
        if (side.open != put->communicator.generation)
          Blame("a put on a communicator that has ended");
        if (side.is_paused) Blame("a put during a pause");
        side.streams[put->communicator.generation].push_back({*put});
      } else if (const auto* const wait = std::get_if<IssueWait>(&action)) {
        const uint32_t generation = wait->communicator.generation;
        if (side.is_paused) Blame("a wait during a pause");
        side.awaited[generation] += wait->signals;
        if (side.awaited[generation] > side.signals[generation]) {
          Blame("a stream waits for a signal that may never come");
        }
        side.waits.push_back(*wait);
      } else if (const auto* const finish = std::get_if<FinishPut>(&action)) {
        End(at, finish->key, std::string(finish->status.message()));
        if (finish->offset.has_value()) {
          if (!written_.contains(finish->key)) Blame("a tensor is delivered before it has come");
          side.endpoint.ReturnBlock(*finish->offset);
        }
      } else if (const auto* const batch = std::get_if<SendInBatch>(&action)) {
        End(at, batch->key, "batch");
      }
    }
    ForgetFreed(side);
  }

  // Blocks that are free again are promised to nobody.
  static void ForgetFreed(Side& side) {
    for (auto it = side.promised.begin(); it != side.promised.end();) {
      it = side.endpoint.pool().IsTaken(it->first) ? std::next(it) : side.promised.erase(it);
    }
  }

  const Scenario* scenario_;
  Side sides_[2];
  std::vector<TransferKey> unoffered_;
  std::vector<TransferKey> all_;
  std::set<TransferKey> written_;
  std::string failure_;
  bool has_failed_ = false;
};

struct Found {
  size_t states = 0;
  std::string failure;
  std::vector<std::string> path;
};

// Depth first, over states that differ.
class Search {
 public:
  explicit Search(const Scenario& scenario) { Visit(World(scenario)); }
  const Found& found() const { return found_; }

 private:
  void Visit(const World& world) {
    if (!found_.failure.empty() || !seen_.insert(absl::HashOf(world)).second) return;
    ++found_.states;
    const std::vector<std::string> events = world.Events();
    if (events.empty()) {
      World end = world;
      end.CheckEnd();
      Report(end);
    }
    for (const std::string& event : events) {
      World next = world;
      path_.push_back(event);
      next.Do(event);
      Report(next);
      Visit(next);
      path_.pop_back();
      if (!found_.failure.empty()) return;
    }
  }
  void Report(const World& world) {
    if (!found_.failure.empty() || world.failure().empty()) return;
    found_.failure = world.failure();
    found_.path = path_;
  }

  Found found_;
  std::vector<std::string> path_;
  absl::flat_hash_set<size_t> seen_;
};

constexpr Fault kFaults[] = {Fault::kNone,  Fault::kCancelAtSource, Fault::kCancelAtDestination,
                             Fault::kBreak, Fault::kDeath,          Fault::kPause,
                             Fault::kLoss};

TEST(PutSearch, NoOrderOfEventsBreaksARule) {
  size_t states = 0;
  for (const std::vector<bool>& transfers :
       {std::vector<bool>{true}, {true, true}, {true, false}, {true, true, false}}) {
    for (const uint64_t pool_blocks : {1, 2}) {
      for (const Fault fault : kFaults) {
        for (const int where : {0, 1}) {
          const Search search({transfers, pool_blocks, fault, where, {}});
          EXPECT_EQ(search.found().failure, "")
              << ::testing::PrintToString(search.found().path) << transfers.size() << " transfers, "
              << pool_blocks << " blocks, fault " << static_cast<int>(fault) << " at " << where;
          states += search.found().states;
        }
      }
    }
  }
  std::cout << states << " states\n";
  EXPECT_GT(states, 10'000u);
}

// The failure that each rule prevents.
std::string FailureWithout(bool PutRules::*rule, Fault fault, int where) {
  Scenario scenario = {{true, true}, 2, fault, where, {}};
  scenario.rules.*rule = false;
  return Search(scenario).found().failure;
}

TEST(PutSearch, WithoutTheStreamsEndAStreamWaitsForADeadPeer) {
  EXPECT_THAT(FailureWithout(&PutRules::announces_after_stream, Fault::kNone, 0),
              HasSubstr("a stream waits for a signal that may never come"));
}

TEST(PutSearch, WithoutTheAnswerABlockIsUsedTwice) {
  EXPECT_THAT(FailureWithout(&PutRules::keeps_promised_blocks, Fault::kCancelAtDestination, 0),
              HasSubstr("overwrites a block"));
}

TEST(PutSearch, WithoutRetiringADeadPeersPutOverwritesABlock) {
  EXPECT_THAT(FailureWithout(&PutRules::retires_blocks_of_the_dead, Fault::kDeath, 0),
              HasSubstr("overwrites a block"));
}

TEST(PutSearch, WithoutRetiringALostPutOverwritesABlock) {
  EXPECT_THAT(FailureWithout(&PutRules::retires_lost_blocks, Fault::kLoss, 0),
              HasSubstr("overwrites a block"));
}

TEST(PutSearch, WithoutTheGenerationAPutGoesToACommunicatorThatHasEnded) {
  EXPECT_THAT(FailureWithout(&PutRules::checks_communicator, Fault::kBreak, 0),
              HasSubstr("a put on a communicator that has ended"));
}

}  // namespace
}  // namespace ferry
