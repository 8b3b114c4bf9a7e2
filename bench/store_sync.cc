// SPDX-License-Identifier: Apache-2.0
// Proposals, signals and result lines through the store.
#include "bench/store_sync.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"

#include "base/clock.h"
#include "base/ranges.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "bench/gone_node.h"
#include "bench/processes.h"
#include "bench/rounds.h"

namespace ferry::cli {
namespace {

using Json = nlohmann::ordered_json;

// Extra time for the coordinator's own timeout error, which names the missing nodes, to arrive
// first.
constexpr absl::Duration kCoordinatorGrace = absl::Seconds(10);
// Interval for checking that the nodes with proposals are still present.
constexpr absl::Duration kOffersLook = absl::Seconds(1);
// Interval for re-checking after a proposal of an earlier incarnation.
constexpr absl::Duration kStaleLook = absl::Milliseconds(50);
// A node's death is detected within this time after the first node that noticed its loss.
constexpr absl::Duration kTellingTimeout = absl::Milliseconds(300);
constexpr size_t kNodesTextBytes = 200;

std::string NodesText(const std::vector<int>& nodes) {
  return absl::StrCat(nodes.size() == 1 ? "node " : "nodes ", FormatRanges(nodes, kNodesTextBytes));
}

}  // namespace

struct StoreSync::Shared {
  absl::Mutex mu;
  // The latest proposal of each node.
  std::map<int, absl::StatusOr<BenchProposal>> offers ABSL_GUARDED_BY(mu);
  bool is_stopped ABSL_GUARDED_BY(mu) = false;
  // Nodes that have passed the final barrier may leave, and rejoin for something else.
  bool is_ending ABSL_GUARDED_BY(mu) = false;
  // Acquired before `mu`. `meeting` is null once destroyed: a watch may still call back.
  absl::Mutex meeting_mu;
  StoreSync* meeting ABSL_GUARDED_BY(meeting_mu) = nullptr;
};

StoreSync::StoreSync(Node& node, BenchProposal own, std::vector<int> nodes, absl::Duration timeout,
                     BenchStage& stage)
    : own_(std::move(own)),
      stage_(stage),
      party_{.node = node, .nodes = std::move(nodes), .timeout = timeout, .stop = &stop_},
      shared_(std::make_shared<Shared>()) {
  const auto self = std::find(party_.nodes.begin(), party_.nodes.end(), node.node_id());
  party_.rank = static_cast<int>(self - party_.nodes.begin());
  absl::MutexLock lock(&shared_->meeting_mu);
  shared_->meeting = this;
}

StoreSync::~StoreSync() {
  absl::MutexLock lock(&shared_->meeting_mu);
  shared_->meeting = nullptr;
}

void StoreSync::Stop(const absl::Status& why) {
  if (!stop_.Cancel(why)) return;
  {
    absl::MutexLock lock(&shared_->mu);
    shared_->is_stopped = true;
  }
  // Wakes threads that wait for tensors, to check for the stop.
  party_.node.transfer_engine().loop().Wake();
}

absl::Status StoreSync::Await(const std::function<void(coord::Agent::StatusCallback)>& call) {
  auto result = std::make_shared<std::optional<absl::Status>>();
  call([shared = shared_, result](absl::Status status) {
    absl::MutexLock lock(&shared->mu);
    *result = std::move(status);
  });
  absl::MutexLock lock(&shared_->mu);
  const auto is_over = [this, &result]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mu) {
    return result->has_value() || shared_->is_stopped;
  };
  if (!shared_->mu.AwaitWithTimeout(absl::Condition(&is_over),
                                    party_.timeout + kCoordinatorGrace)) {
    return absl::DeadlineExceededError("the coordinator does not answer");
  }
  // A completed call counts, even if the bench was stopped meanwhile.
  if (result->has_value() && (*result)->ok()) return absl::OkStatus();
  return shared_->is_stopped ? stop_.status() : **result;
}

absl::Status StoreSync::Missing(const std::vector<int>& nodes) const {
  return absl::DeadlineExceededError(absl::StrCat(
      NodesText(nodes), " did not come to the bench of nodes ",
      FormatRanges(party_.nodes, kNodesTextBytes), " within ", absl::FormatDuration(party_.timeout),
      ": start ferry bench there with the same flags, or say who takes part with --node-list"));
}

// Checks for differing proposals first, then for missing nodes.
absl::Status StoreSync::CheckOffers() {
  shared_->mu.AssertHeld();
  std::vector<int> missing;
  for (const int node : party_.nodes) {
    if (node == own_.node) continue;
    const auto found = shared_->offers.find(node);
    if (found == shared_->offers.end()) {
      missing.push_back(node);
      continue;
    }
    FERRY_RETURN_IF_ERROR(found->second.status());
    FERRY_RETURN_IF_ERROR(own_.node < node ? CheckSameOffer(own_, *found->second)
                                           : CheckSameOffer(*found->second, own_));
  }
  return missing.empty() ? absl::OkStatus() : Missing(missing);
}

// Ignores the proposal of an incarnation that was replaced, or had ended before this node came. A
// node with a differing proposal is kept: it may have left because of the difference.
bool StoreSync::DropStaleOffers(const std::vector<coord::TaskStatus>& tasks, bool differ) {
  shared_->mu.AssertHeld();
  bool is_stale = false;
  for (const coord::TaskStatus& task : tasks) {
    const auto found = shared_->offers.find(task.node_id);
    const bool takes_part =
        task.node_id != own_.node && absl::c_linear_search(party_.nodes, task.node_id);
    if (!takes_part || found == shared_->offers.end() || !found->second.ok()) continue;
    const uint64_t life = found->second->incarnation;
    if (task.incarnation == life && task.state == coord::TaskState::kConnected) {
      lives_[task.node_id] = life;
    } else if (task.incarnation != life || (!differ && !lives_.contains(task.node_id))) {
      lives_.erase(task.node_id);
      shared_->offers.erase(found);
      is_stale = true;
    }
  }
  return is_stale;
}

absl::Status StoreSync::AwaitOffers() {
  const absl::Time deadline = SteadyClock().Now() + party_.timeout;
  while (true) {
    absl::Status status;
    {
      absl::MutexLock lock(&shared_->mu);
      const auto is_over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mu) {
        return shared_->is_stopped || !absl::IsDeadlineExceeded(CheckOffers());
      };
      shared_->mu.AwaitWithTimeout(absl::Condition(&is_over),
                                   std::min(deadline - SteadyClock().Now(), kOffersLook));
      if (shared_->is_stopped) return stop_.status();
      status = CheckOffers();
    }
    FERRY_ASSIGN_OR_RETURN(const coord::JobStatus job, party_.node.agent().Status());
    absl::MutexLock lock(&shared_->mu);
    const bool differ = !status.ok() && !absl::IsDeadlineExceeded(status);
    const bool is_stale = DropStaleOffers(job.tasks, differ);
    if (differ && !is_stale) return status;
    status = CheckOffers();
    if (absl::IsDeadlineExceeded(status) && SteadyClock().Now() >= deadline) {
      return absl::Status(status.code(), absl::StrCat(status.message(), MissingNodes(job.tasks)));
    }
    FERRY_RETURN_IF_ERROR(CheckAllAlive(lives_, job.tasks, stage_.Get()));
    if (status.ok() && !is_stale) return status;
    // The proposal may be newer than the known status of the node.
    if (is_stale) {
      shared_->mu.AwaitWithTimeout(absl::Condition(&shared_->is_stopped), kStaleLook);
    }
  }
}

absl::Status StoreSync::Gather() {
  stage_.Set(absl::StrCat("waiting for nodes ", FormatRanges(party_.nodes, kNodesTextBytes),
                          " to come to the bench"));
  coord::Agent& agent = party_.node.agent();
  const std::string own_key = BenchOfferKey(own_.node);
  // Watch before publishing the own proposal: a node that sees it may withdraw its own at once.
  FERRY_ASSIGN_OR_RETURN(
      offers_watch_,
      agent.Watch(kBenchOfferPrefix, [shared = shared_](const coord::KeyChange& change) {
        int node = 0;
        const absl::string_view key = change.entry.key;
        const absl::string_view digits = absl::StripPrefix(key, kBenchOfferPrefix);
        if (change.deleted || !absl::SimpleAtoi(digits, &node)) return;
        absl::MutexLock lock(&shared->mu);
        shared->offers.insert_or_assign(node, DecodeBenchOffer(change.entry.value, node));
      }));
  FERRY_RETURN_IF_ERROR(Await([&](coord::Agent::StatusCallback done) {
    agent.SetAllAsync({{own_key, EncodeBenchOffer(own_)}}, /*overwrite=*/true, std::move(done));
  }));
  const absl::Status agreed = AwaitOffers();
  const absl::Status deleted = agent.Delete(own_key);
  FERRY_RETURN_IF_ERROR(agreed);
  FERRY_RETURN_IF_ERROR(deleted);
  uint64_t run = own_.incarnation;
  if (!party_.is_first()) {
    absl::MutexLock lock(&shared_->mu);
    run = shared_->offers.at(party_.NodeOf(0))->incarnation;
  }
  prefix_ = absl::StrCat("ferry-bench/", run);
  party_.store_prefix = prefix_;
  WatchFailures();
  WatchMembers(-1);
  const int64_t first_step = FirstStepOfBench(run);
  FERRY_ASSIGN_OR_RETURN(words_, party_.node.OpenStep(first_step));
  party_.first_step = first_step + 1;
  stage_.Set("starting the bench");
  return AwaitAll();
}

void StoreSync::WatchFailures() {
  const std::string failures = absl::StrCat(prefix_, "/failed/");
  absl::StatusOr<std::unique_ptr<coord::AgentWatch>> watch =
      party_.node.agent().Watch(failures, [shared = shared_](const coord::KeyChange& change) {
        if (change.deleted) return;
        absl::MutexLock lock(&shared->meeting_mu);
        if (shared->meeting == nullptr) return;
        shared->meeting->Stop(absl::UnavailableError(change.entry.value));
      });
  // Without the watch, other nodes' errors are noticed only by their absence.
  if (watch.ok()) failures_watch_ = *std::move(watch);
}

// Re-arms itself; the agent's destruction ends it.
void StoreSync::WatchMembers(int64_t version) {
  party_.node.agent().WatchTasksAsync(
      version, [shared = shared_](const absl::StatusOr<coord::NodeTable>& table) {
        if (!table.ok()) return;
        absl::MutexLock lock(&shared->meeting_mu);
        if (shared->meeting != nullptr) shared->meeting->OnMembers(*table);
      });
}

void StoreSync::OnMembers(const coord::NodeTable& table) {
  std::vector<coord::TaskStatus> tasks = table.tasks;
  {
    absl::MutexLock lock(&shared_->mu);
    if (shared_->is_ending) {
      std::erase_if(tasks, [](const coord::TaskStatus& task) {
        return task.state != coord::TaskState::kError;
      });
    }
  }
  const absl::Status gone = CheckAllAlive(lives_, tasks, stage_.Get());
  if (!gone.ok()) return Stop(gone);
  WatchMembers(table.version);
}

absl::Status StoreSync::Finish(absl::Status result) {
  coord::Agent& agent = party_.node.agent();
  if (result.ok()) {
    {
      absl::MutexLock lock(&shared_->mu);
      shared_->is_ending = true;
    }
    stage_.Set("waiting for all nodes to be through");
    result = AwaitAll();
  }
  if (result.ok()) {
    failures_watch_ = nullptr;
    offers_watch_ = nullptr;
    return result;
  }
  if (!prefix_.empty()) {
    // A death is noticed by all nodes, and some know more about it: wait for their report.
    {
      absl::MutexLock lock(&shared_->mu);
      shared_->mu.AwaitWithTimeout(absl::Condition(&shared_->is_stopped), kTellingTimeout);
    }
    if (stop_.is_cancelled()) result = stop_.status();
    agent
        .Set(absl::StrCat(prefix_, "/failed/", party_.rank),
             absl::StrCat("node ", own_.node, " has ended the bench: ", result.message()))
        .IgnoreError();
    agent.Delete(prefix_, /*subtree=*/true).IgnoreError();
  }
  failures_watch_ = nullptr;
  offers_watch_ = nullptr;
  return result;
}

absl::StatusOr<const RendezvousKey*> StoreSync::WordKey(int from, int to) {
  const auto found = word_keys_.find({from, to});
  if (found != word_keys_.end()) return &found->second;
  FERRY_ASSIGN_OR_RETURN(RendezvousKey key, party_.Key("bench-word", from, to));
  return &word_keys_.emplace(std::pair(from, to), std::move(key)).first->second;
}

absl::Status StoreSync::Signal(int rank) {
  FERRY_ASSIGN_OR_RETURN(const RendezvousKey* const key, WordKey(party_.rank, rank));
  return SendWord(*words_, *key);
}

absl::Status StoreSync::AwaitSignal(int rank) {
  FERRY_ASSIGN_OR_RETURN(const RendezvousKey* const key, WordKey(rank, party_.rank));
  return AwaitWord(party_, rank, *words_, *key);
}

absl::Status StoreSync::SignalAll(const BenchRoundMembers& members) {
  for (const int rank : members.ranks) {
    if (rank != party_.rank) FERRY_RETURN_IF_ERROR(Signal(rank));
  }
  return absl::OkStatus();
}

absl::Status StoreSync::AwaitAllSignals(const BenchRoundMembers& members) {
  for (const int rank : members.ranks) {
    if (rank != party_.rank) FERRY_RETURN_IF_ERROR(AwaitSignal(rank));
  }
  return absl::OkStatus();
}

// Two exchanges, as in ShmSync, so that no process has just woken up. A round trip needs no start
// signal: its first message is one.
absl::StatusOr<BenchStart> StoreSync::Begin(const BenchRoundMembers& members) {
  const int first = members.ranks[0];
  if (first == party_.rank) {
    FERRY_RETURN_IF_ERROR(AwaitAllSignals(members));
    FERRY_RETURN_IF_ERROR(SignalAll(members));
    FERRY_RETURN_IF_ERROR(AwaitAllSignals(members));
    const double cpu_s = OwnCpuSeconds();
    const absl::Time start = SteadyClock().Now();
    if (!members.is_round_trip) FERRY_RETURN_IF_ERROR(SignalAll(members));
    return BenchStart{cpu_s, start};
  }
  FERRY_RETURN_IF_ERROR(Signal(first));
  FERRY_RETURN_IF_ERROR(AwaitSignal(first));
  FERRY_RETURN_IF_ERROR(Signal(first));
  if (!members.is_round_trip) FERRY_RETURN_IF_ERROR(AwaitSignal(first));
  const double cpu_s = OwnCpuSeconds();
  return BenchStart{cpu_s, SteadyClock().Now()};
}

absl::StatusOr<absl::Time> StoreSync::End(const BenchRoundMembers& members) {
  const int first = members.ranks[0];
  absl::Time end = SteadyClock().Now();
  if (first == party_.rank) {
    FERRY_RETURN_IF_ERROR(AwaitAllSignals(members));
    if (!members.is_round_trip) end = SteadyClock().Now();
    FERRY_RETURN_IF_ERROR(SignalAll(members));
    return end;
  }
  FERRY_RETURN_IF_ERROR(Signal(first));
  FERRY_RETURN_IF_ERROR(AwaitSignal(first));
  return end;
}

absl::Status StoreSync::AwaitAll() {
  const absl::Status status = Await([this](coord::Agent::StatusCallback done) {
    party_.node.agent().BarrierAsync(absl::StrCat(prefix_, "/cases"), party_.timeout, party_.nodes,
                                     std::move(done));
  });
  if (status.ok() || stop_.is_cancelled()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat("not all nodes came to the next part of the bench: ", status.message()));
}

std::string StoreSync::LineKey(int rank) const {
  return absl::StrCat(prefix_, "/told/", told_, "/", rank);
}

absl::Status StoreSync::Tell(const Json& line) {
  coord::Agent& agent = party_.node.agent();
  ++told_;
  if (!party_.is_first()) {
    stage_.Set(absl::StrCat("measuring part ", told_ + 1));
    return Await([&](coord::Agent::StatusCallback done) {
      agent.SetAllAsync(
          {{LineKey(party_.rank), line.dump(-1, ' ', false, Json::error_handler_t::replace)}},
          /*overwrite=*/false, std::move(done));
    });
  }
  std::vector<std::string> keys;
  for (int rank = 1; rank < party_.size(); ++rank) keys.push_back(LineKey(rank));
  auto texts = std::make_shared<std::vector<std::string>>();
  FERRY_RETURN_IF_ERROR(Await([&](coord::Agent::StatusCallback done) {
    agent.GetAllAsync(
        keys, party_.timeout,
        [texts, done = std::move(done)](absl::StatusOr<std::vector<std::string>> found) mutable {
          const absl::Status status = found.status();
          if (found.ok()) *texts = *std::move(found);
          std::move(done)(status);
        });
  }));
  std::vector<Json> all = {line};
  for (const std::string& text : *texts) {
    all.push_back(Json::parse(text, nullptr, /*allow_exceptions=*/false));
  }
  lines_.push_back(std::move(all));
  stage_.Set(absl::StrCat("measuring part ", lines_.size() + 1));
  return agent.Delete(absl::StrCat(prefix_, "/told/", told_), /*subtree=*/true);
}

}  // namespace ferry::cli
