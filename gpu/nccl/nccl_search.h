// SPDX-License-Identifier: Apache-2.0
// Search for NCCL where the loader does not find it: in the wheels of a Python environment, beside
// a CUDA toolkit. No Python is run.
#ifndef FERRY_GPU_NCCL_NCCL_SEARCH_H_
#define FERRY_GPU_NCCL_NCCL_SEARCH_H_

#include <string>
#include <vector>

namespace ferry::nccl {

// Inputs of the search: values of environment variables, empty if not set.
struct NcclSearchPaths {
  std::string virtual_env;   // VIRTUAL_ENV
  std::string conda_prefix;  // CONDA_PREFIX
  std::string python_path;   // PYTHONPATH, folders separated by colons
  std::string path;          // PATH; the first python3 in it gives its environment
  std::string home;          // HOME; for pip's user installs
  std::string cuda_home;     // CUDA_HOME
  // Prefix of the system Pythons' packages; tests use another.
  std::string system_root = "/usr";

  static NcclSearchPaths OfThisProcess();
};

struct NcclSearch {
  std::vector<std::string> found;    // files, most specific environment first
  std::vector<std::string> folders;  // searched, for messages
};

// Looks for libnccl.so.2. Only reads directories.
NcclSearch SearchNccl(const NcclSearchPaths& paths);

}  // namespace ferry::nccl

#endif  // FERRY_GPU_NCCL_NCCL_SEARCH_H_
