// SPDX-License-Identifier: Apache-2.0
// The agent's calls of the store, each a request and the reading of its reply.
#include <utility>

#include "absl/strings/numbers.h"

#include "base/status_macros.h"
#include "coord/grpc_agent_impl.h"

namespace ferry::coord {
namespace {

// "key \"a\"" or "3 keys, first \"a\"", for messages of the agent itself.
std::string DescribeKeys(const std::vector<std::string>& keys) {
  if (keys.empty()) return "no keys";
  if (keys.size() == 1) return absl::StrCat("key ", Quoted(keys[0]));
  return absl::StrCat(keys.size(), " keys, first ", Quoted(keys[0]));
}

// ABORTED with the present entry is an answer here, not an error.
absl::StatusOr<CompareAndSetResult> CompareAndSetResultOf(const absl::StatusOr<v1::Reply>& reply) {
  if (!reply.ok()) return reply.status();
  CompareAndSetResult result;
  result.was_set = reply->code() == 0;
  if (!result.was_set && reply->code() != static_cast<int>(absl::StatusCode::kAborted)) {
    return StatusOf(*reply);
  }
  if (reply->entries_size() > 0) result.value = reply->entries(0).value();
  return result;
}

absl::StatusOr<int64_t> NumberOf(const absl::StatusOr<v1::Reply>& reply) {
  if (!reply.ok()) return reply.status();
  int64_t number = 0;
  if (reply->entries_size() != 1 || !absl::SimpleAtoi(reply->entries(0).value(), &number)) {
    return absl::InternalError("the coordinator answered an increment without a number");
  }
  return number;
}

}  // namespace

absl::StatusOr<std::string> Agent::Get(absl::string_view key, absl::Duration timeout) {
  FERRY_ASSIGN_OR_RETURN(std::vector<std::string> values, GetAll({std::string(key)}, timeout));
  return std::move(values[0]);
}

absl::StatusOr<std::vector<std::string>> Agent::GetAll(std::vector<std::string> keys,
                                                       absl::Duration timeout) {
  absl::Notification answered;
  absl::StatusOr<std::vector<std::string>> values;
  GetAllAsync(std::move(keys), timeout, [&](absl::StatusOr<std::vector<std::string>> result) {
    values = std::move(result);
    answered.Notify();
  });
  answered.WaitForNotification();
  return values;
}

void Agent::GetAllAsync(std::vector<std::string> keys, absl::Duration timeout,
                        Callback<std::vector<std::string>> done) {
  std::string what = DescribeKeys(keys);
  v1::Request request;
  request.mutable_get()->set_timeout_ms(Milliseconds(timeout));
  for (std::string& key : keys) request.mutable_get()->add_keys(std::move(key));
  impl_->link().Call(std::move(request), std::min(timeout, kLongestWait), std::move(what),
                     [done = std::move(done)](absl::StatusOr<v1::Reply> reply) mutable {
                       reply = Checked(std::move(reply));
                       if (!reply.ok()) return std::move(done)(reply.status());
                       std::vector<std::string> values;
                       for (v1::KeyValue& entry : *reply->mutable_entries()) {
                         values.push_back(std::move(*entry.mutable_value()));
                       }
                       std::move(done)(std::move(values));
                     });
}

absl::StatusOr<std::string> Agent::TryGet(absl::string_view key) {
  return Get(key, absl::ZeroDuration());
}

absl::Status Agent::Set(absl::string_view key, absl::string_view value, bool overwrite) {
  return SetAll({{std::string(key), std::string(value)}}, overwrite);
}

absl::Status Agent::SetAll(std::vector<std::pair<std::string, std::string>> entries,
                           bool overwrite) {
  absl::Notification answered;
  absl::Status status;
  SetAllAsync(std::move(entries), overwrite, [&](absl::Status result) {
    status = std::move(result);
    answered.Notify();
  });
  answered.WaitForNotification();
  return status;
}

void Agent::SetAllAsync(std::vector<std::pair<std::string, std::string>> entries, bool overwrite,
                        StatusCallback done) {
  v1::Request request;
  request.mutable_put()->set_overwrite(overwrite);
  for (auto& [key, value] : entries) {
    v1::KeyValue& entry = *request.mutable_put()->add_entries();
    entry.set_key(std::move(key));
    entry.set_value(std::move(value));
  }
  const absl::Duration timeout = impl_->AnswerTimeout(request.ByteSizeLong());
  impl_->link().Call(
      std::move(request), timeout, "a set to be confirmed",
      [done = std::move(done)](absl::StatusOr<v1::Reply> reply) mutable {
        std::move(done)(Checked(std::move(reply)).status());
      },
      /*keeps_time=*/true);
}

absl::Status Agent::Delete(absl::string_view key, bool subtree) {
  v1::Request request;
  request.mutable_delete_()->add_keys(std::string(key));
  request.mutable_delete_()->set_recursive(subtree);
  return impl_->AskQuickly(std::move(request), "a delete to be confirmed").status();
}

absl::StatusOr<int64_t> Agent::Increment(absl::string_view key, int64_t increment) {
  absl::Notification answered;
  absl::StatusOr<int64_t> number = absl::UnknownError("no answer");
  IncrementAsync(key, increment, [&](absl::StatusOr<int64_t> answer) {
    number = std::move(answer);
    answered.Notify();
  });
  answered.WaitForNotification();
  return number;
}

void Agent::IncrementAsync(absl::string_view key, int64_t increment, Callback<int64_t> done) {
  v1::Request request;
  request.mutable_increment()->set_key(std::string(key));
  request.mutable_increment()->set_increment(increment);
  const absl::Duration timeout = impl_->AnswerTimeout(request.ByteSizeLong());
  impl_->link().Call(
      std::move(request), timeout, "an increment to be confirmed",
      [done = std::move(done)](absl::StatusOr<v1::Reply> reply) mutable {
        std::move(done)(NumberOf(Checked(std::move(reply))));
      },
      /*keeps_time=*/true);
}

absl::StatusOr<CompareAndSetResult> Agent::CompareAndSet(absl::string_view key,
                                                         const std::optional<std::string>& expected,
                                                         absl::string_view desired) {
  absl::Notification answered;
  absl::StatusOr<CompareAndSetResult> result = absl::UnknownError("no answer");
  CompareAndSetAsync(key, expected, desired, [&](absl::StatusOr<CompareAndSetResult> answer) {
    result = std::move(answer);
    answered.Notify();
  });
  answered.WaitForNotification();
  return result;
}

void Agent::CompareAndSetAsync(absl::string_view key, const std::optional<std::string>& expected,
                               absl::string_view desired, Callback<CompareAndSetResult> done) {
  v1::Request request;
  v1::CompareAndSet& cas = *request.mutable_compare_and_set();
  cas.set_key(std::string(key));
  cas.set_expect_absent(!expected.has_value());
  if (expected.has_value()) cas.set_expected(*expected);
  cas.set_desired(std::string(desired));
  const absl::Duration timeout = impl_->AnswerTimeout(request.ByteSizeLong());
  impl_->link().Call(
      std::move(request), timeout, "a compare-and-set to be confirmed",
      [done = std::move(done)](absl::StatusOr<v1::Reply> reply) mutable {
        std::move(done)(CompareAndSetResultOf(reply));
      },
      /*keeps_time=*/true);
}

absl::StatusOr<std::vector<KeyValue>> Agent::List(absl::string_view prefix, bool keys_only) {
  v1::Request request;
  request.mutable_list()->set_prefix(std::string(prefix));
  request.mutable_list()->set_keys_only(keys_only);
  FERRY_ASSIGN_OR_RETURN(v1::Reply reply, impl_->AskQuickly(std::move(request), "a listing"));
  std::vector<KeyValue> entries;
  for (v1::KeyValue& entry : *reply.mutable_entries()) {
    entries.push_back(
        {std::move(*entry.mutable_key()), std::move(*entry.mutable_value()), entry.revision()});
  }
  return entries;
}

namespace {

class AgentWatchImpl final : public AgentWatch {
 public:
  AgentWatchImpl(AgentLink& link, uint64_t id) : link_(link), id_(id) {}
  ~AgentWatchImpl() override { link_.Unsubscribe(id_); }

 private:
  AgentLink& link_;
  const uint64_t id_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<AgentWatch>> Agent::Watch(
    absl::string_view prefix, std::function<void(const KeyChange&)> on_change) {
  v1::Request request;
  request.mutable_watch()->set_prefix(std::string(prefix));
  request.mutable_watch()->set_with_existing(true);
  const uint64_t id = impl_->link().Subscribe(
      std::move(request), [on_change = std::move(on_change)](const v1::Event& event) {
        KeyChange change;
        change.deleted = event.kind() == v1::Event::KEY_DELETED;
        change.entry = {event.entry().key(), event.entry().value(), event.entry().revision()};
        on_change(change);
      });
  return std::make_unique<AgentWatchImpl>(impl_->link(), id);
}

}  // namespace ferry::coord
