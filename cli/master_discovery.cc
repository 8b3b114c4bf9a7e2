// SPDX-License-Identifier: Apache-2.0
// Exchanges requests and responses through the coordinator's store.
#include "cli/master_discovery.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "base/clock.h"
#include "base/random_id.h"
#include "base/ranges.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "cli/attempt_failure.h"
#include "cli/progress.h"
#include "launch/master_address.h"
#include "launch/printable.h"

namespace ferry::cli {
namespace {

constexpr char kAsks[] = "ferry/run/asks/";
constexpr char kAnswers[] = "ferry/run/master/";
constexpr char kStores[] = "ferry/run/store/";
// How long to wait for a response before repeating the request.
constexpr absl::Duration kAskAgain = absl::Seconds(2);
// How long a machine that was rejected has to be restarted before the first machine gives up on it.
constexpr absl::Duration kStartAgain = absl::Seconds(10);

void Note(const std::string& text) {
  std::fprintf(stderr, "ferry run: %s\n", Printable(text).c_str());
}

}  // namespace

absl::StatusOr<std::unique_ptr<MasterDiscovery>> MasterDiscovery::Join(
    const std::string& coordinator, absl::Duration timeout) {
  const AttemptFailure failure;
  const Progress progress([&coordinator, &failure] {
    return absl::StrCat("looking for the coordinator at ", coordinator, failure.Text());
  });
  std::unique_ptr<MasterDiscovery> discovery(new MasterDiscovery(coordinator));
  coord::AgentOptions options;
  options.coordinator = coordinator;
  options.connect_timeout = timeout;
  options.on_attempt_failed = failure.Writer();
  FERRY_ASSIGN_OR_RETURN(discovery->agent_, coord::Agent::Connect(std::move(options)));
  discovery->agent_->WatchJoiningAsync([answered = discovery->answered_](const absl::Status& why) {
    // Other errors either end the pending call by themselves, or come from a coordinator that does
    // not know the request.
    if (!absl::IsFailedPrecondition(why)) return;
    absl::MutexLock lock(&answered->mu);
    answered->refusal = why;
  });
  return discovery;
}

absl::Status MasterDiscovery::Refusal(absl::Duration timeout) const {
  absl::MutexLock lock(&answered_->mu);
  answered_->mu.AwaitWithTimeout(
      absl::Condition(
          +[](Answered* answered) ABSL_NO_THREAD_SAFETY_ANALYSIS { return answered->is_refused(); },
          answered_.get()),
      timeout);
  return answered_->refusal;
}

absl::Status MasterDiscovery::AskError() const {
  absl::MutexLock lock(&answered_->mu);
  return answered_->ask_error;
}

absl::Status MasterDiscovery::OpenStore() {
  FERRY_ASSIGN_OR_RETURN(store_, RunStore::Open(*agent_, coordinator_));
  return absl::OkStatus();
}

absl::StatusOr<MasterPlace> MasterDiscovery::Choose(GetEnv get_env, int machine_count) const {
  if (store_ != nullptr) return MasterPlace{store_->address(), store_->run_id()};
  // The address at which the coordinator sees this machine is reachable by other machines of its
  // network. Loopback means the coordinator's own machine; Ask replaces it by that machine's name.
  const std::string own_host = HostOfPeer(agent_->observed_address());
  if (own_host.empty()) {
    return absl::InternalError(absl::StrCat("the coordinator at ", coordinator_,
                                            " does not say where it sees this machine"));
  }
  FERRY_ASSIGN_OR_RETURN(const MasterAddress master,
                         ChooseMaster(ReadMasterWish(get_env), own_host, machine_count,
                                      {.free_port = FreePort, .is_own = IsOwnAddress}));
  for (const std::string& note : master.notes) Note(note);
  return MasterPlace{JoinHostPort(master.host, master.port), ""};
}

absl::StatusOr<MasterPlace> MasterDiscovery::Answer(GetEnv get_env, int machine_count) {
  FERRY_ASSIGN_OR_RETURN(MasterPlace place, Choose(get_env, machine_count));
  {
    absl::MutexLock lock(&answered_->mu);
    answered_->is_done.assign(static_cast<size_t>(machine_count), false);
    answered_->is_done[0] = true;
  }
  FERRY_ASSIGN_OR_RETURN(watch_, agent_->Watch(kAsks, [agent = agent_.get(), answered = answered_,
                                                       place](const coord::KeyChange& change) {
    absl::string_view number = change.entry.key;
    if (change.deleted || !absl::ConsumePrefix(&number, kAsks)) return;
    int machine = 0;
    const bool is_number = absl::SimpleAtoi(change.entry.value, &machine);
    std::vector<std::pair<std::string, std::string>> answer = {
        {absl::StrCat(kAnswers, number), place.address}};
    if (!place.store_run_id.empty()) {
      answer.emplace_back(absl::StrCat(kStores, number), place.store_run_id);
    }
    agent->SetAllAsync(std::move(answer), /*overwrite=*/true,
                       [answered, machine, is_number](const absl::Status& status) {
                         absl::MutexLock lock(&answered->mu);
                         const auto count = static_cast<int>(answered->is_done.size());
                         if (!status.ok() || !is_number || machine < 0 || machine >= count) {
                           return;
                         }
                         answered->is_done[static_cast<size_t>(machine)] = true;
                       });
  }));
  return place;
}

std::string MasterDiscovery::Unanswered() const {
  std::vector<int> machines;
  absl::MutexLock lock(&answered_->mu);
  for (size_t i = 0; i < answered_->is_done.size(); ++i) {
    if (!answered_->is_done[i]) machines.push_back(static_cast<int>(i));
  }
  return absl::StrCat("ferry run of machine", machines.size() == 1 ? " " : "s ",
                      FormatRanges(machines, 200), " to begin");
}

absl::Status MasterDiscovery::WaitUntilAllAnswered(absl::Duration timeout) {
  const Progress progress([this] { return absl::StrCat("waiting for ", Unanswered()); });
  absl::Status refusal;
  {
    absl::MutexLock lock(&answered_->mu);
    answered_->mu.AwaitWithTimeout(
        absl::Condition(
            +[](Answered* answered) ABSL_NO_THREAD_SAFETY_ANALYSIS { return answered->is_over(); },
            answered_.get()),
        timeout);
    const bool are_all = answered_->mu.AwaitWithTimeout(
        absl::Condition(
            +[](Answered* answered) ABSL_NO_THREAD_SAFETY_ANALYSIS { return answered->all(); },
            answered_.get()),
        answered_->is_refused() ? std::min(timeout, kStartAgain) : absl::ZeroDuration());
    if (are_all) return absl::OkStatus();
    refusal = answered_->refusal;
  }
  if (!refusal.ok()) {
    return absl::Status(refusal.code(), absl::StrCat("waited for ", Unanswered(), "; meanwhile ",
                                                     refusal.message()));
  }
  return absl::DeadlineExceededError(
      absl::StrCat("waited ", ShortDuration(timeout), " for ", Unanswered()));
}

absl::StatusOr<MasterPlace> MasterDiscovery::Ask(GetEnv get_env, int machine_index,
                                                 absl::Duration timeout) {
  const Progress progress("waiting for ferry run of the first machine (--node-id=0)");
  const absl::Time deadline = SteadyClock().Now() + timeout;
  const std::string number = absl::StrCat(absl::Hex(RandomId()));
  const std::string ask = absl::StrCat(kAsks, number);
  const std::string answer = absl::StrCat(kAnswers, number);
  const std::string store = absl::StrCat(kStores, number);
  absl::StatusOr<std::string> address;
  do {
    // Not awaited: a coordinator that only reports that the job cannot begin may have ended.
    agent_->SetAllAsync({{ask, absl::StrCat(machine_index)}}, /*overwrite=*/true,
                        [answered = answered_](const absl::Status& status) {
                          if (status.ok()) return;
                          absl::MutexLock lock(&answered->mu);
                          answered->ask_error = status;
                        });
    address = agent_->Get(answer, kAskAgain);
    // CANCELLED: a new job has begun, with an empty store. Check for a refusal only after a running
    // first machine has had time to answer: earlier, it could be an earlier job's.
    if (address.ok() || absl::IsCancelled(address.status())) continue;
    FERRY_RETURN_IF_ERROR(Refusal());
    if (!absl::IsDeadlineExceeded(address.status())) return address.status();
    FERRY_RETURN_IF_ERROR(AskError());
  } while (!address.ok() && SteadyClock().Now() < deadline);
  // Set together with the address, if at all.
  const std::string run_id =
      address.ok() ? agent_->TryGet(store).value_or(std::string()) : std::string();
  for (const std::string& key : {ask, answer, store}) agent_->Delete(key).IgnoreError();
  if (!address.ok()) {
    return absl::DeadlineExceededError(
        absl::StrCat("waited ", ShortDuration(timeout),
                     " for ferry run of the first machine to say where rank "
                     "0 listens: start it there, with --node-id=0 and --coordinator=",
                     coordinator_));
  }
  const size_t colon = address->rfind(':');
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address->substr(colon + 1), &port)) {
    return absl::InternalError(
        absl::StrCat(Quoted(*address), ", the address of rank 0, has no port"));
  }
  std::string host = HostOfPeer(*address);
  // Loopback: rank 0 is on the coordinator's machine. A store is the coordinator's, which the first
  // machine may reach by another name.
  if (IsLoopbackHost(host) || !run_id.empty()) host = HostOfPeer(coordinator_);
  const MasterRequest wish = ReadMasterWish(get_env);
  const bool is_other = (wish.host && *wish.host != host) || (wish.port && *wish.port != port);
  if (is_other) {
    Note(
        absl::StrCat("MASTER_ADDR and MASTER_PORT of this machine's environment are not used: the "
                     "first machine says ",
                     JoinHostPort(host, port)));
  }
  return MasterPlace{JoinHostPort(host, port), run_id};
}

}  // namespace ferry::cli
