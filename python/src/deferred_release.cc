// SPDX-License-Identifier: Apache-2.0
// The main thread is asked by Py_AddPendingCall, which any thread may call.
#include "python/src/deferred_release.h"

#include <Python.h>

namespace ferry::python {

DeferredReleases& DeferredReleases::Get() {
  // Never destroyed: threads of nodes may outlive static objects.
  static auto& releases = *new DeferredReleases();
  return releases;
}

void DeferredReleases::Add(Release release, void* context) {
  bool is_first = false;
  {
    absl::MutexLock lock(&mu_);
    is_first = releases_.empty();
    releases_.emplace_back(release, context);
    has_any_.store(true, std::memory_order_release);
  }
  if (!is_first || !Py_IsInitialized()) return;
  // A full queue of pending calls does not matter: other threads look as well.
  Py_AddPendingCall(
      [](void* self) {
        static_cast<DeferredReleases*>(self)->Run();
        return 0;
      },
      this);
}

void DeferredReleases::RunAll() {
  std::vector<std::pair<Release, void*>> releases;
  {
    absl::MutexLock lock(&mu_);
    releases.swap(releases_);
    has_any_.store(false, std::memory_order_release);
  }
  // They run destructors of the program's objects, which may call this module.
  for (const auto& [release, context] : releases) release(context);
}

}  // namespace ferry::python
