// SPDX-License-Identifier: Apache-2.0
// A memory pool: its owner, its device, and the devices with access to its memory.
#ifndef FERRY_TESTS_SUPPORT_STRICT_CUDA_POOLS_H_
#define FERRY_TESTS_SUPPORT_STRICT_CUDA_POOLS_H_

#include <cstdint>

#include "tests/support/strict_cuda/abi.h"
#include "tests/support/strict_cuda/config.h"

namespace strict_cuda {

// Never deleted. Guarded by the process's lock.
struct PoolHandle {
  int physical = 0;
  int handle_types = 0;
  bool is_default = false;
  bool is_imported = false;
  bool destroyed = false;
  uint64_t id = 0;  // of its entry in the machine, once exported; of the exporter's, if imported
  uint64_t release_threshold = 0;
  uint64_t used_bytes = 0;
  uint64_t used_high_bytes = 0;
  int access[kMaxDevices] = {};
};

// REQUIRES: the process's lock.
PoolHandle* NewPool(int physical, int handle_types);
// Whether this process has imported the pool `id` of another one, and not destroyed the import.
// REQUIRES: the process's lock.
bool IsPoolImported(uint64_t id);
// INVALID_VALUE for other pointers; a destroyed pool is a violation.
CUresult CheckPool(CUmemoryPool pool, const char* call);

}  // namespace strict_cuda

#endif  // FERRY_TESTS_SUPPORT_STRICT_CUDA_POOLS_H_
