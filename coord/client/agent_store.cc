// SPDX-License-Identifier: Apache-2.0
// The agent's store calls: each sends a request and reads its reply.
#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"

#include "base/status_macros.h"
#include "coord/client/agent_impl.h"

namespace ferry::coord {
namespace {

// "key \"a\"" or "3 keys, first \"a\"", for messages of the agent itself.
std::string DescribeKeys(const std::vector<std::string>& keys) {
  if (keys.empty()) return "no keys";
  if (keys.size() == 1) return absl::StrCat("key ", Quoted(keys[0]));
  return absl::StrCat(keys.size(), " keys, first ", Quoted(keys[0]));
}

v1::Request GetRequest(std::vector<std::string> keys, absl::Duration timeout) {
  v1::Request request;
  request.mutable_get()->set_timeout_ms(Milliseconds(timeout));
  for (std::string& key : keys) request.mutable_get()->add_keys(std::move(key));
  return request;
}

absl::StatusOr<std::vector<std::string>> ValuesOf(absl::StatusOr<v1::Reply> reply) {
  FERRY_ASSIGN_OR_RETURN(v1::Reply good, Checked(std::move(reply)));
  std::vector<std::string> values;
  for (v1::KeyValue& entry : *good.mutable_entries()) {
    values.push_back(std::move(*entry.mutable_value()));
  }
  return values;
}

v1::Request PutRequest(std::vector<std::pair<std::string, std::string>> entries, bool overwrite) {
  v1::Request request;
  request.mutable_put()->set_overwrite(overwrite);
  for (auto& [key, value] : entries) {
    v1::KeyValue& entry = *request.mutable_put()->add_entries();
    entry.set_key(std::move(key));
    entry.set_value(std::move(value));
  }
  return request;
}

v1::Request IncrementRequest(absl::string_view key, int64_t increment) {
  v1::Request request;
  request.mutable_increment()->set_key(std::string(key));
  request.mutable_increment()->set_increment(increment);
  return request;
}

absl::StatusOr<int64_t> NumberOf(absl::StatusOr<v1::Reply> reply) {
  FERRY_ASSIGN_OR_RETURN(const v1::Reply good, Checked(std::move(reply)));
  int64_t number = 0;
  if (good.entries_size() != 1 || !absl::SimpleAtoi(good.entries(0).value(), &number)) {
    return absl::InternalError("the coordinator answered an increment without a number");
  }
  return number;
}

v1::Request CompareAndSetRequest(absl::string_view key, const std::optional<std::string>& expected,
                                 absl::string_view desired) {
  v1::Request request;
  v1::CompareAndSet& cas = *request.mutable_compare_and_set();
  cas.set_key(std::string(key));
  cas.set_expect_absent(!expected.has_value());
  if (expected.has_value()) cas.set_expected(*expected);
  cas.set_desired(std::string(desired));
  return request;
}

// ABORTED with the current entry is an answer here, not an error.
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

constexpr char kASet[] = "a set to be confirmed";
constexpr char kAnIncrement[] = "an increment to be confirmed";
constexpr char kACompareAndSet[] = "a compare-and-set to be confirmed";

}  // namespace

absl::StatusOr<std::string> Agent::Get(absl::string_view key, absl::Duration timeout) {
  FERRY_ASSIGN_OR_RETURN(std::vector<std::string> values, GetAll({std::string(key)}, timeout));
  return std::move(values[0]);
}

absl::StatusOr<std::vector<std::string>> Agent::GetAll(std::vector<std::string> keys,
                                                       absl::Duration timeout) {
  std::string what = DescribeKeys(keys);
  return ValuesOf(impl_->Ask(GetRequest(std::move(keys), timeout), timeout, std::move(what)));
}

void Agent::GetAllAsync(std::vector<std::string> keys, absl::Duration timeout,
                        Callback<std::vector<std::string>> done) {
  std::string what = DescribeKeys(keys);
  impl_->link().CallAsync(GetRequest(std::move(keys), timeout), std::min(timeout, kLongestWait),
                          std::move(what),
                          [done = std::move(done)](absl::StatusOr<v1::Reply> reply) mutable {
                            std::move(done)(ValuesOf(std::move(reply)));
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
  return impl_->AskQuickly(PutRequest(std::move(entries), overwrite), kASet).status();
}

void Agent::SetAllAsync(std::vector<std::pair<std::string, std::string>> entries, bool overwrite,
                        StatusCallback done) {
  impl_->AskQuicklyAsync(PutRequest(std::move(entries), overwrite), kASet,
                         [done = std::move(done)](absl::StatusOr<v1::Reply> reply) mutable {
                           std::move(done)(Checked(std::move(reply)).status());
                         });
}

absl::Status Agent::Delete(absl::string_view key, bool subtree) {
  v1::Request request;
  request.mutable_delete_()->add_keys(std::string(key));
  request.mutable_delete_()->set_recursive(subtree);
  return impl_->AskQuickly(std::move(request), "a delete to be confirmed").status();
}

absl::StatusOr<int64_t> Agent::Increment(absl::string_view key, int64_t increment) {
  return NumberOf(impl_->AskQuickly(IncrementRequest(key, increment), kAnIncrement));
}

void Agent::IncrementAsync(absl::string_view key, int64_t increment, Callback<int64_t> done) {
  impl_->AskQuicklyAsync(IncrementRequest(key, increment), kAnIncrement,
                         [done = std::move(done)](absl::StatusOr<v1::Reply> reply) mutable {
                           std::move(done)(NumberOf(std::move(reply)));
                         });
}

absl::StatusOr<CompareAndSetResult> Agent::CompareAndSet(absl::string_view key,
                                                         const std::optional<std::string>& expected,
                                                         absl::string_view desired) {
  v1::Request request = CompareAndSetRequest(key, expected, desired);
  const absl::Duration timeout = impl_->AnswerTimeout(request.ByteSizeLong());
  return CompareAndSetResultOf(
      impl_->Begin(std::move(request), timeout, kACompareAndSet, /*keeps_time=*/true)
          ->WaitForAny());
}

void Agent::CompareAndSetAsync(absl::string_view key, const std::optional<std::string>& expected,
                               absl::string_view desired, Callback<CompareAndSetResult> done) {
  impl_->AskQuicklyAsync(CompareAndSetRequest(key, expected, desired), kACompareAndSet,
                         [done = std::move(done)](absl::StatusOr<v1::Reply> reply) mutable {
                           std::move(done)(CompareAndSetResultOf(reply));
                         });
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
