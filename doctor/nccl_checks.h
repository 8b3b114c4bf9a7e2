// SPDX-License-Identifier: Apache-2.0
// Checks of NCCL: which library, whether it fits the driver, and the address its ids listen on.
#ifndef FERRY_DOCTOR_NCCL_CHECKS_H_
#define FERRY_DOCTOR_NCCL_CHECKS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "doctor/finding.h"
#include "doctor/host_reader.h"
#include "gpu/nccl/nccl_api.h"

namespace ferry::doctor {

// A value.
struct NcclFacts {
  absl::Status loaded;    // why the library was not loaded; OK if it was
  std::string path;       // the file that was loaded, links resolved
  bool is_named = false;  // by FERRY_NCCL_LIBRARY
  int version = 0;        // 22809 for 2.28.9
  // The CUDA version that it was built with, 13000; 0: unknown.
  int built_with_cuda = 0;
  // Optional functions used by Ferry that this library lacks.
  std::vector<std::string> lacking;
};

// The result of creating an NCCL id.
struct NcclIdFacts {
  absl::Status made;
  absl::Duration taken = absl::ZeroDuration();
  // "10.0.0.7:41235", the address of the ranks' rendezvous; empty: not found in the id.
  std::string address;
  bool is_loopback = false;
  std::optional<std::string> comm_id;   // NCCL_COMM_ID
  std::optional<std::string> blocking;  // NCCL_COMM_BLOCKING
};

// Locates NCCL as Ferry does. Reads the library's file once, some hundred MiB, for its CUDA
// version.
//   api: set if NCCL was loaded.
NcclFacts ReadNcclFacts(const HostReader& host, std::unique_ptr<nccl::NcclApi>& api);
// Creates one id, with a thread and a socket of this process that last until it exits.
NcclIdFacts TryNcclId(const HostReader& host, const nccl::NcclApi& api);

// Returns 13000 for "2.28.9+cuda13.0" anywhere in `bytes`; 0 if there is none.
int CudaOfNccl(absl::string_view bytes);
// Reads an id in NCCL's layout: 8 private bytes, then a socket address.
//   Errors: NOT_FOUND if it contains no address.
absl::StatusOr<std::pair<std::string, bool>> AddressOfId(const nccl::UniqueId& id);

//   gpu_count: 0: NCCL is not needed here. cuda_version: the driver's; 0: unknown.
Finding JudgeNccl(const NcclFacts& facts, int gpu_count, int cuda_version);
Finding JudgeNcclId(const NcclIdFacts& facts);

}  // namespace ferry::doctor

#endif  // FERRY_DOCTOR_NCCL_CHECKS_H_
