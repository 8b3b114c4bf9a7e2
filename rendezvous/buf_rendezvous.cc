// SPDX-License-Identifier: Apache-2.0
// Meeting, and ending badly.
#include "rendezvous/buf_rendezvous.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace ferry {

BufRendezvous::~BufRendezvous() {
  EndAll(absl::InternalError("Delete called on non-empty BufRendezvous"));
}

void BufRendezvous::Provide(const std::string& key, Tensor tensor, ProducerCallback done) {
  absl::Status status;
  ConsumerCallback consumer;
  {
    absl::MutexLock lock(&mu_);
    status = abort_status_;
    if (status.ok()) {
      const auto [found, is_new] = entries_.try_emplace(key);
      if (!is_new && found->second.producer) {
        status = absl::InternalError(
            absl::StrCat("BufRendezvous::ProvideBuf already called for key ", absl::CEscape(key)));
      } else if (is_new) {
        found->second.tensor = std::move(tensor);
        found->second.producer = std::move(done);
        return;
      } else {
        consumer = std::move(found->second.consumer);
        entries_.erase(found);
      }
    }
  }
  if (!status.ok()) return std::move(done)(std::move(status));
  std::move(consumer)(absl::OkStatus(), LentBuffer(std::move(tensor), std::move(done)));
}

void BufRendezvous::Consume(const std::string& key, uint64_t device_incarnation,
                            ConsumerCallback done) {
  absl::Status status;
  Entry entry;
  {
    absl::MutexLock lock(&mu_);
    status = abort_status_;
    if (status.ok() && device_incarnation != device_incarnation_) {
      status = absl::FailedPreconditionError(
          absl::StrCat("RecvBuf expects a different device incarnation: ", device_incarnation,
                       " vs. ", device_incarnation_, ". The producer was probably restarted (key ",
                       absl::CEscape(key), ")"));
    }
    if (status.ok()) {
      const auto [found, is_new] = entries_.try_emplace(key);
      if (!is_new && found->second.consumer) {
        status = absl::InternalError(
            absl::StrCat("Second consumer arrived for key ", absl::CEscape(key)));
      } else if (is_new) {
        found->second.consumer = std::move(done);
        return;
      } else {
        entry = std::move(found->second);
        entries_.erase(found);
      }
    }
  }
  if (!status.ok()) return std::move(done)(std::move(status), LentBuffer());
  std::move(done)(absl::OkStatus(), LentBuffer(std::move(entry.tensor), std::move(entry.producer)));
}

void BufRendezvous::StartAbort(const absl::Status& why) {
  {
    absl::MutexLock lock(&mu_);
    if (!abort_status_.ok()) return;
    abort_status_ = why;
  }
  EndAll(why);
}

void BufRendezvous::EndAll(const absl::Status& why) {
  absl::flat_hash_map<std::string, Entry> entries;
  {
    absl::MutexLock lock(&mu_);
    entries.swap(entries_);
  }
  for (auto& [key, entry] : entries) {
    if (entry.consumer) std::move(entry.consumer)(why, LentBuffer());
    if (entry.producer) std::move(entry.producer)(why);
  }
}

}  // namespace ferry
