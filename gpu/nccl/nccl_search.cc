// SPDX-License-Identifier: Apache-2.0
// Directories in which wheels and toolkits install NCCL.
#include "gpu/nccl/nccl_search.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ferry::nccl {
namespace {

namespace fs = std::filesystem;

constexpr char kFile[] = "libnccl.so.2";

std::string FromEnvironment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Adds each directory once, in the order of the calls.
class Folders final {
 public:
  void Add(const fs::path& folder) {
    std::string text = folder.lexically_normal().string();
    if (std::find(all_.begin(), all_.end(), text) == all_.end()) all_.push_back(std::move(text));
  }

  // The location in a wheel, below a site-packages directory.
  void AddPackages(const fs::path& packages) { Add(packages / "nvidia/nccl/lib"); }

  // PREFIX/lib/python3.X/{site,dist}-packages for every installed X; if there is none, adds the
  // pattern itself, for messages.
  void AddPrefix(const fs::path& prefix) {
    std::error_code ignored;
    bool any = false;
    for (const fs::directory_entry& entry : fs::directory_iterator(prefix / "lib", ignored)) {
      if (!absl::StartsWith(entry.path().filename().string(), "python3")) continue;
      for (const char* packages : {"site-packages", "dist-packages"}) {
        if (!fs::is_directory(entry.path() / packages, ignored)) continue;
        AddPackages(entry.path() / packages);
        any = true;
      }
    }
    if (!any) AddPackages(prefix / "lib/python3*/site-packages");
  }

  std::vector<std::string> Take() && { return std::move(all_); }

 private:
  std::vector<std::string> all_;
};

// Returns the parent of the bin/ that holds the first python3 of PATH; empty if there is none.
fs::path PythonPrefix(const std::string& path, bool resolve_links) {
  std::error_code error;
  for (const absl::string_view folder : absl::StrSplit(path, ':', absl::SkipEmpty())) {
    const fs::path python = fs::path(std::string(folder)) / "python3";
    if (!fs::exists(python, error)) continue;
    const fs::path chosen = resolve_links ? fs::canonical(python, error) : python;
    return error ? fs::path() : chosen.parent_path().parent_path();
  }
  return {};
}

}  // namespace

NcclSearchPaths NcclSearchPaths::OfThisProcess() {
  NcclSearchPaths paths;
  paths.virtual_env = FromEnvironment("VIRTUAL_ENV");
  paths.conda_prefix = FromEnvironment("CONDA_PREFIX");
  paths.python_path = FromEnvironment("PYTHONPATH");
  paths.path = FromEnvironment("PATH");
  paths.home = FromEnvironment("HOME");
  paths.cuda_home = FromEnvironment("CUDA_HOME");
  return paths;
}

NcclSearch SearchNccl(const NcclSearchPaths& paths) {
  Folders folders;
  for (const absl::string_view each : absl::StrSplit(paths.python_path, ':', absl::SkipEmpty())) {
    folders.AddPackages(fs::path(std::string(each)));
  }
  if (!paths.virtual_env.empty()) folders.AddPrefix(paths.virtual_env);
  if (!paths.conda_prefix.empty()) {
    folders.AddPrefix(paths.conda_prefix);
    folders.Add(fs::path(paths.conda_prefix) / "lib");
  }
  // A virtual environment's python3 is a link to its base: try without resolving first.
  for (const bool resolve_links : {false, true}) {
    const fs::path prefix = PythonPrefix(paths.path, resolve_links);
    if (!prefix.empty()) folders.AddPrefix(prefix);
  }
  if (!paths.home.empty()) folders.AddPrefix(fs::path(paths.home) / ".local");
  folders.AddPrefix(fs::path(paths.system_root) / "local");
  folders.AddPackages(fs::path(paths.system_root) / "lib/python3/dist-packages");
  if (!paths.cuda_home.empty()) folders.Add(fs::path(paths.cuda_home) / "lib64");
  folders.Add(fs::path(paths.system_root) / "local/cuda/lib64");

  NcclSearch search;
  search.folders = std::move(folders).Take();
  for (const std::string& folder : search.folders) {
    std::string file = absl::StrCat(folder, "/", kFile);
    std::error_code error;
    if (fs::is_regular_file(file, error)) search.found.push_back(std::move(file));
  }
  return search;
}

}  // namespace ferry::nccl
