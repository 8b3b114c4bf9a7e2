// SPDX-License-Identifier: Apache-2.0
// SharedLibrary: a library loaded at run time, or the reason why it could not be loaded.
#ifndef FERRY_GPU_SHARED_LIBRARY_H_
#define FERRY_GPU_SHARED_LIBRARY_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace ferry {

// A handle; copyable. The library stays loaded until the process exits: NVIDIA's libraries have
// threads and exit handlers that crash when they are unloaded. Thread-safe.
class SharedLibrary final {
 public:
  // Loads `path`, or the file named by environment variable `override_name` if that is set and not
  // empty. Errors: UNAVAILABLE with the loader's own text, and the origin of the path.
  static absl::StatusOr<SharedLibrary> Open(const std::string& path, const char* override_name);

  const std::string& path() const { return path_; }

  // Sets `function` to the symbol.
  // Errors: UNIMPLEMENTED if the library lacks it: it is older than, or different from, the
  // required one.
  template <typename Function>
  absl::Status Resolve(const char* symbol, Function*& function) const {
    void* const address = Find(symbol);
    if (address == nullptr) {
      return absl::UnimplementedError(absl::StrCat(path_, " has no function ", symbol));
    }
    function = reinterpret_cast<Function*>(address);
    return absl::OkStatus();
  }

  // Sets `function` to the symbol, or to null if the library lacks it.
  template <typename Function>
  void ResolveOptional(const char* symbol, Function*& function) const {
    function = reinterpret_cast<Function*>(Find(symbol));
  }

 private:
  SharedLibrary(std::string path, void* handle) : path_(std::move(path)), handle_(handle) {}

  void* Find(const char* symbol) const;

  std::string path_;
  void* handle_;
};

}  // namespace ferry

#endif  // FERRY_GPU_SHARED_LIBRARY_H_
