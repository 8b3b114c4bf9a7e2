// SPDX-License-Identifier: Apache-2.0
// The store requests of ferry.v1.Control.
#include "coord/server/store_requests.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "coord/wire/control_limits.h"

namespace ferry::coord {
namespace {

// Values of at least this size are not copied into answers.
constexpr size_t kSharedValueBytes = size_t{64} << 10;

// Returns the value if it is too large to be copied to `out`.
grpc::Slice FillEntry(const StoreEntry& entry, bool with_value, v1::KeyValue& out) {
  out.set_key(entry.key);
  out.set_revision(entry.revision);
  if (!with_value || entry.value == nullptr) return grpc::Slice();
  if (entry.value->size() < kSharedValueBytes) {
    out.set_value(*entry.value);
    return grpc::Slice();
  }
  auto* keep = new StoreValue(entry.value);
  return grpc::Slice(
      const_cast<char*>(entry.value->data()), entry.value->size(),
      [](void* held) { delete static_cast<StoreValue*>(held); }, keep);
}

void AddEntry(const StoreEntry& entry, bool with_value, v1::Reply& reply, SharedBytes& shared) {
  grpc::Slice value = FillEntry(entry, with_value, *reply.add_entries());
  if (value.size() == 0) return;
  shared.values.resize(static_cast<size_t>(reply.entries_size()));
  shared.values.back() = std::move(value);
}

}  // namespace

size_t FillEntries(const std::vector<StoreEntry>& entries, bool with_values, v1::Reply& reply,
                   SharedBytes& shared) {
  size_t bytes = 0;
  for (const StoreEntry& entry : entries) {
    bytes += entry.key.size() + 64;
    if (with_values && entry.value != nullptr) bytes += entry.value->size();
  }
  if (bytes > kMaxReplyBytes) {
    reply =
        MakeReply(reply.request_id(),
                  absl::ResourceExhaustedError(absl::StrCat(
                      entries.size(), " entries have ", bytes, " bytes; one answer has at most ",
                      kMaxReplyBytes, ": ask for fewer keys at once, or for keys without values")));
    return 0;
  }
  for (const StoreEntry& entry : entries) AddEntry(entry, with_values, reply, shared);
  return bytes + entries.size() * Store::kEntryBytes;
}

bool StoreRequests::Handles(const v1::Request& request) {
  switch (request.op_case()) {
    case v1::Request::kPut:
    case v1::Request::kGet:
    case v1::Request::kList:
    case v1::Request::kDelete:
    case v1::Request::kIncrement:
    case v1::Request::kCompareAndSet:
    case v1::Request::kWatch:
      return true;
    default:
      return false;
  }
}

void StoreRequests::Execute(Coordinator& coordinator, v1::Request& request, RequestResults& out) {
  Store& store = coordinator.store();
  const uint64_t id = request.id();
  v1::Reply reply;
  SharedBytes shared;
  reply.set_request_id(id);
  switch (request.op_case()) {
    case v1::Request::kPut: {
      auto& put = *request.mutable_put();
      std::vector<std::pair<std::string, std::string>> entries;
      entries.reserve(put.entries_size());
      for (v1::KeyValue& entry : *put.mutable_entries()) {
        entries.emplace_back(std::move(*entry.mutable_key()), std::move(*entry.mutable_value()));
      }
      const absl::StatusOr<int64_t> revision = store.Put(std::move(entries), put.overwrite());
      reply = MakeReply(id, revision.status());
      if (revision.ok()) reply.set_revision(*revision);
      break;
    }
    case v1::Request::kGet: {
      auto& get = *request.mutable_get();
      std::vector<std::string> keys;
      keys.reserve(get.keys_size());
      for (std::string& key : *get.mutable_keys()) keys.push_back(std::move(key));
      // Usually they all exist, and no callback is needed.
      if (const auto found = store.FindAll(keys); found.has_value()) {
        out.behind += FillEntries(*found, /*with_values=*/true, reply, shared);
        break;
      }
      const absl::Duration timeout = WaitTime(get.timeout_ms());
      const bool waits = timeout > absl::ZeroDuration();
      const WaitId wait = coordinator.GetKeys(
          std::move(keys), task_, timeout,
          [delivery = delivery_, id, waits](absl::StatusOr<std::vector<StoreEntry>> found) {
            if (!waits && absl::IsDeadlineExceeded(found.status())) {
              found = absl::NotFoundError(found.status().message());
            }
            // For the case that thousands of calls waited for the same key.
            const size_t behind = delivery->behind();
            if (found.ok() && behind > kMostBehindForValues) found = BacklogTooLargeError(behind);
            v1::Reply reply = MakeReply(id, found.status());
            SharedBytes shared;
            if (found.ok()) FillEntries(*found, /*with_values=*/true, reply, shared);
            delivery->Send(std::move(reply), shared.values.empty() ? nullptr : &shared);
          });
      out.waits.emplace_back(id, wait);
      return;
    }
    case v1::Request::kList: {
      const auto& list = request.list();
      const size_t limit = static_cast<size_t>(std::max<int64_t>(list.limit(), 0));
      out.behind += FillEntries(store.List(list.prefix(), limit), !list.keys_only(), reply, shared);
      reply.set_revision(store.revision());
      break;
    }
    case v1::Request::kDelete:
      for (const std::string& key : request.delete_().keys()) {
        store.Delete(key, request.delete_().recursive());
      }
      reply.set_revision(store.revision());
      break;
    case v1::Request::kIncrement: {
      const absl::StatusOr<StoreEntry> entry =
          store.Increment(request.increment().key(), request.increment().increment());
      reply = MakeReply(id, entry.status());
      if (entry.ok()) AddEntry(*entry, /*with_value=*/true, reply, shared);
      break;
    }
    case v1::Request::kCompareAndSet: {
      auto& cas = *request.mutable_compare_and_set();
      std::optional<std::string> expected;
      if (!cas.expect_absent()) expected = std::move(*cas.mutable_expected());
      const auto result =
          store.CompareAndSet(cas.key(), expected, std::move(*cas.mutable_desired()));
      reply = MakeReply(id, result.status());
      if (!result.ok()) break;
      if (!result->first) {
        reply =
            MakeReply(id, absl::AbortedError(result->second.value == nullptr
                                                 ? "the key does not exist"
                                                 : "the key holds another value than expected"));
      }
      if (result->second.value != nullptr) {
        AddEntry(result->second, /*with_value=*/true, reply, shared);
      }
      break;
    }
    case v1::Request::kWatch: {
      const auto& watch = request.watch();
      if (delivery_->watch_count() + out.watches.size() >= kMaxWatches) {
        reply = MakeReply(id, absl::ResourceExhaustedError(absl::StrCat(
                                  "this client has ", kMaxWatches,
                                  " watches, the most that it may have: watch shorter prefixes")));
        break;
      }
      if (watch.with_existing()) out.behind += store.ListBytes(watch.prefix());
      out.watches.emplace_back(
          id, store.AddWatch(watch.prefix(), watch.with_existing(),
                             [weak = delivery_->weak_from_this(), id](const StoreEvent& change) {
                               const auto delivery = weak.lock();
                               if (delivery == nullptr || delivery->is_over()) return;
                               v1::Event event;
                               event.set_kind(change.deleted ? v1::Event::KEY_DELETED
                                                             : v1::Event::KEY_SET);
                               event.set_request_id(id);
                               const grpc::Slice value =
                                   FillEntry(change.entry, !change.deleted, *event.mutable_entry());
                               delivery->Send(std::move(event), value);
                             }));
      // Answered when it is cancelled; until then it sends events.
      return;
    }
    default:
      break;
  }
  if (!shared.values.empty()) out.shared.emplace_back(out.replies.size(), std::move(shared));
  out.replies.push_back(std::move(reply));
}

}  // namespace ferry::coord
