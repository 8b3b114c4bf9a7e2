// SPDX-License-Identifier: Apache-2.0
// Checks of NCCL: which library, whether it fits the driver, and where its ids would listen.
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
  absl::Status loaded;    // why there is none; OK if there is
  std::string path;       // the file that was loaded, links followed
  bool is_named = false;  // by FERRY_NCCL_LIBRARY
  int version = 0;        // 22809 for 2.28.9
  // The CUDA that it was built with, 13000; 0: it does not tell.
  int built_with_cuda = 0;
  // What Ferry uses where it is there, and this library lacks.
  std::vector<std::string> lacking;
};

// NCCL's id, and what became of it.
struct NcclIdFacts {
  absl::Status made;
  absl::Duration taken = absl::ZeroDuration();
  // "10.0.0.7:41235", where ranks would meet; empty: the id does not tell.
  std::string address;
  bool is_loopback = false;
  std::optional<std::string> comm_id;   // NCCL_COMM_ID
  std::optional<std::string> blocking;  // NCCL_COMM_BLOCKING
};

// Looks for it as Ferry does. Reads the library's file once, some hundred MiB, for what it was
// built with.
//   api: set if there is one.
NcclFacts ReadNcclFacts(const HostReader& host, std::unique_ptr<nccl::NcclApi>& api);
// Makes one id: a thread and a socket of this process, until it ends.
NcclIdFacts TryNcclId(const HostReader& host, const nccl::NcclApi& api);

// "2.28.9+cuda13.0" somewhere in `bytes` -> 13000; 0 if it is not there.
int CudaOfNccl(absl::string_view bytes);
// Of an id as NCCL lays it out: 8 bytes of its own, then a socket address.
//   Errors: NOT_FOUND if there is none in it.
absl::StatusOr<std::pair<std::string, bool>> AddressOfId(const nccl::UniqueId& id);

//   gpu_count: 0: nobody needs NCCL here. cuda_version: what the driver runs; 0: not known.
Finding JudgeNccl(const NcclFacts& facts, int gpu_count, int cuda_version);
Finding JudgeNcclId(const NcclIdFacts& facts);

}  // namespace ferry::doctor

#endif  // FERRY_DOCTOR_NCCL_CHECKS_H_
