// SPDX-License-Identifier: Apache-2.0
// The key-value methods of the coordination service; included only where a generation is compiled.
#ifndef FERRY_COORD_SERVER_COORDINATION_STORE_IMPL_H_
#define FERRY_COORD_SERVER_COORDINATION_STORE_IMPL_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "coord/core/store.h"
#include "coord/server/coordination_call.h"

namespace ferry::coord {

template <typename Gen>
class StoreMethods final : private CoordinationCall<Gen> {
 public:
  StoreMethods(Frontend& frontend, UnaryCall& call, const std::optional<uint64_t>& meant_for)
      : CoordinationCall<Gen>(frontend, call, meant_for) {}

  template <typename Request>
  void InsertKeyValue(Request& request) {
    const std::string key = NormalizeKey(request.kv().key());
    std::string value = std::move(*request.mutable_kv()->mutable_value());
    const auto status = Run([&](Coordinator& coordinator) -> absl::Status {
      if (coordinator.is_stopped()) return Stopped();
      return coordinator.store().Put(key, std::move(value), request.allow_overwrite()).status();
    });
    if (!status.has_value()) return;
    return status->ok() ? call_.Reply(typename Gen::InsertKeyValueResponse()) : Fail(*status);
  }

  template <typename Request>
  void GetKeyValue(Request& request) {
    const std::string key = NormalizeKey(request.key());
    const auto present =
        Run([&](Coordinator& coordinator) { return coordinator.store().Find(key); });
    if (!present.has_value()) return;
    // Usually the key is present: then the call need not outlive its handler.
    if (present->has_value()) {
      typename Gen::GetKeyValueResponse response;
      response.mutable_kv()->set_key(std::move(*request.mutable_key()));
      response.mutable_kv()->set_value(*(*present)->value);
      return call_.Reply(response);
    }
    const TaskId caller = frontend_.CallerAt(call_.peer());
    return Park([&](Coordinator& coordinator, DeferredCall* call) {
      return coordinator.GetKeys(
          {key}, caller, absl::InfiniteDuration(),
          [call, &frontend = frontend_, asked = std::move(*request.mutable_key())](
              absl::StatusOr<std::vector<StoreEntry>> found) {
            if (!found.ok()) return call->Finish(ToWire(frontend, found.status()));
            typename Gen::GetKeyValueResponse response;
            response.mutable_kv()->set_key(asked);
            response.mutable_kv()->set_value(*found->front().value);
            call->Reply(response);
          });
    });
  }

  template <typename Request>
  void TryGetKeyValue(Request& request) {
    const std::string key = NormalizeKey(request.key());
    const auto found = Run([&](Coordinator& coordinator) { return coordinator.store().Find(key); });
    if (!found.has_value()) return;
    if (!found->has_value()) {
      return Fail(CoordinationError(
          absl::NotFoundError(absl::StrCat("Config key ", request.key(), " not found."))));
    }
    typename Gen::TryGetKeyValueResponse response;
    response.mutable_kv()->set_key(std::move(*request.mutable_key()));
    response.mutable_kv()->set_value(*(*found)->value);
    return call_.Reply(response);
  }

  template <typename Request>
  void IncrementKeyValue(Request& request) {
    const std::string key = NormalizeKey(request.key());
    const auto entry = Run([&](Coordinator& coordinator) -> absl::StatusOr<StoreEntry> {
      if (coordinator.is_stopped()) return Stopped();
      return coordinator.store().Increment(key, request.increment());
    });
    if (!entry.has_value()) return;
    if (!entry->ok()) return Fail(CoordinationError(entry->status()));
    typename Gen::IncrementKeyValueResponse response;
    response.mutable_kv()->set_key(std::move(*request.mutable_key()));
    response.mutable_kv()->set_value(*(*entry)->value);
    return call_.Reply(response);
  }

  template <typename Request>
  void GetKeyValueDir(Request& request) {
    const std::string directory = NormalizeKey(request.directory_key());
    const std::string prefix = directory.empty() ? "" : absl::StrCat(directory, "/");
    const auto entries =
        Run([&](Coordinator& coordinator) { return coordinator.store().List(prefix); });
    if (!entries.has_value()) return;
    typename Gen::GetKeyValueDirResponse response;
    for (const StoreEntry& entry : *entries) {
      auto& kv = *response.add_kv();
      kv.set_key(entry.key);
      kv.set_value(*entry.value);
    }
    return call_.Reply(response);
  }

  template <typename Request>
  void DeleteKeyValue(Request& request) {
    const std::string key = NormalizeKey(request.key());
    const auto deleted = Run([&](Coordinator& coordinator) {
      coordinator.store().Delete(key, /*subtree=*/true);
      return true;
    });
    if (!deleted.has_value()) return;
    return call_.Reply(typename Gen::DeleteKeyValueResponse());
  }

 private:
  using Base = CoordinationCall<Gen>;
  using Base::call_;
  using Base::Fail;
  using Base::frontend_;
  using Base::Park;
  using Base::Run;
  using Base::Stopped;
  using Base::ToWire;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_COORDINATION_STORE_IMPL_H_
