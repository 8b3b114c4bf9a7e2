// SPDX-License-Identifier: Apache-2.0
// Where NCCL lies when the loader does not know it: in the wheels of a Python environment, beside a
// CUDA toolkit. No Python is run.
#ifndef FERRY_GPU_NCCL_NCCL_SEARCH_H_
#define FERRY_GPU_NCCL_NCCL_SEARCH_H_

#include <string>
#include <vector>

namespace ferry::nccl {

// What the search goes by: values of environment variables, empty where they are not set.
struct NcclPlaces {
  std::string virtual_env;   // VIRTUAL_ENV
  std::string conda_prefix;  // CONDA_PREFIX
  std::string python_path;   // PYTHONPATH, folders separated by colons
  std::string path;          // PATH; the first python3 in it tells its environment
  std::string home;          // HOME; what pip installs for one user
  std::string cuda_home;     // CUDA_HOME
  // Where the system's own Pythons have their packages; tests have another.
  std::string system_root = "/usr";

  static NcclPlaces OfThisProcess();
};

struct NcclSearch {
  std::vector<std::string> found;    // files, most specific environment first
  std::vector<std::string> folders;  // that were looked into, for messages
};

// Looks for libnccl.so.2. Reads folders only.
NcclSearch SearchNccl(const NcclPlaces& places);

}  // namespace ferry::nccl

#endif  // FERRY_GPU_NCCL_NCCL_SEARCH_H_
