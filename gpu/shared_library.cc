// SPDX-License-Identifier: Apache-2.0
// dlopen and dlsym.
#include "gpu/shared_library.h"

#include <dlfcn.h>

#include <cstdlib>

namespace ferry {

absl::StatusOr<SharedLibrary> SharedLibrary::Open(const std::string& path,
                                                  const char* override_name) {
  const char* const from_environment = std::getenv(override_name);
  const bool overridden = from_environment != nullptr && *from_environment != '\0';
  const std::string chosen = overridden ? from_environment : path;
  void* const handle = dlopen(chosen.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const text = dlerror();
    return absl::UnavailableError(absl::StrCat(
        "cannot load ", chosen, overridden ? absl::StrCat(" (", override_name, ")") : "", ": ",
        text == nullptr ? "no reason given" : text));
  }
  return SharedLibrary(chosen, handle);
}

void* SharedLibrary::Find(const char* symbol) const { return dlsym(handle_, symbol); }

}  // namespace ferry
