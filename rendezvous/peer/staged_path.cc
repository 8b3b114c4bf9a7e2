// SPDX-License-Identifier: Apache-2.0
// A table of the names, which is never destroyed.
#include "rendezvous/peer/staged_path.h"

#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"

#include "base/spin_lock.h"

namespace ferry {
namespace {

struct Names {
  SpinLock mu;
  // A map keeps the texts where they are.
  std::map<std::string, std::string, std::less<>> staged ABSL_GUARDED_BY(mu);
};

}  // namespace

absl::string_view StagedPath(absl::string_view path) {
  static Names* const names = new Names;
  SpinLockHolder lock(&names->mu);
  std::string& staged = names->staged[std::string(path)];
  if (staged.empty()) staged = absl::StrCat(path, ", staged");
  return staged;
}

}  // namespace ferry
