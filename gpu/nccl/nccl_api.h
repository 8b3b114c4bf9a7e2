// SPDX-License-Identifier: Apache-2.0
// NcclApi: NCCL, loaded at run time, as one table of functions.
#ifndef FERRY_GPU_NCCL_NCCL_API_H_
#define FERRY_GPU_NCCL_NCCL_API_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "gpu/nccl/nccl_search.h"
#include "gpu/nccl/nccl_types.h"

namespace ferry::nccl {

// 2.19.1: the first version in which another thread than the one that issues operations can abort a
// communicator, as Ferry does when a peer fails; in 2.18 such an abort can hang (NVIDIA/nccl#992).
inline constexpr int kMinVersion = 21901;

// Functions of libnccl.so.2. Those up to deregister_buffer are never null; the others were added
// after kMinVersion and are null in a library that is older than the version noted beside them.
struct NcclTable {
  Result (*get_version)(int* version) = nullptr;
  Result (*get_unique_id)(UniqueId* id) = nullptr;
  const char* (*get_error_string)(Result result) = nullptr;
  const char* (*get_last_error)(Communicator communicator) = nullptr;
  Result (*init_rank_config)(Communicator* communicator, int rank_count, UniqueId id, int rank,
                             Config* config) = nullptr;
  Result (*finalize)(Communicator communicator) = nullptr;
  Result (*destroy)(Communicator communicator) = nullptr;
  Result (*abort)(Communicator communicator) = nullptr;
  Result (*get_async_error)(Communicator communicator, Result* error) = nullptr;
  Result (*count)(Communicator communicator, int* count) = nullptr;
  Result (*cuda_device)(Communicator communicator, int* ordinal) = nullptr;
  Result (*user_rank)(Communicator communicator, int* rank) = nullptr;
  Result (*group_start)() = nullptr;
  Result (*group_end)() = nullptr;
  Result (*send)(const void* buffer, size_t count, DataType type, int peer,
                 Communicator communicator, Stream stream) = nullptr;
  Result (*recv)(void* buffer, size_t count, DataType type, int peer, Communicator communicator,
                 Stream stream) = nullptr;
  Result (*all_reduce)(const void* from, void* to, size_t count, DataType type, int operation,
                       Communicator communicator, Stream stream) = nullptr;
  Result (*broadcast)(const void* from, void* to, size_t count, DataType type, int root,
                      Communicator communicator, Stream stream) = nullptr;
  Result (*all_gather)(const void* from, void* to, size_t count_of_each, DataType type,
                       Communicator communicator, Stream stream) = nullptr;
  Result (*memory_alloc)(void** pointer, size_t bytes) = nullptr;
  Result (*memory_free)(void* pointer) = nullptr;
  Result (*register_buffer)(Communicator communicator, void* buffer, size_t bytes,
                            void** handle) = nullptr;
  Result (*deregister_buffer)(Communicator communicator, void* handle) = nullptr;

  Result (*init_rank_scalable)(Communicator* communicator, int rank_count, int rank, int id_count,
                               UniqueId* ids, Config* config) = nullptr;  // 2.23
  Result (*shrink)(Communicator communicator, int* excluded_ranks, int excluded_count,
                   Communicator* child, Config* config, int flags) = nullptr;  // 2.27
  Result (*register_window)(Communicator communicator, void* buffer, size_t bytes, Window* window,
                            int flags) = nullptr;                                   // 2.27
  Result (*deregister_window)(Communicator communicator, Window window) = nullptr;  // 2.27
  Result (*revoke)(Communicator communicator, int flags) = nullptr;                 // 2.28.7
  // The id with which new ranks join `communicator`, in grow. 2.29.2, both.
  Result (*get_grow_id)(Communicator communicator, UniqueId* id) = nullptr;
  Result (*grow)(Communicator communicator, int rank_count, const UniqueId* id, int rank,
                 Communicator* grown, Config* config) = nullptr;

  // One-sided operations.
  Result (*query_properties)(Communicator communicator,
                             CommunicatorProperties* properties) = nullptr;  // 2.29.2
  Result (*put_signal)(const void* buffer, size_t count, DataType type, int peer,
                       Window window_of_peer, size_t offset, int signal_index, int context,
                       unsigned int flags, Communicator communicator,
                       Stream stream) = nullptr;  // 2.29.2
  Result (*signal)(int peer, int signal_index, int context, unsigned int flags,
                   Communicator communicator, Stream stream) = nullptr;  // 2.29.2
  Result (*wait_signal)(int count, WaitSignalDescriptor* descriptors, Communicator communicator,
                        Stream stream) = nullptr;  // 2.29.2
};

// Loaded once per process. The table is thread-safe; a communicator's calls belong to one thread.
class NcclApi final {
 public:
  // Loads the library named by FERRY_NCCL_LIBRARY, or else the first of these that is recent
  // enough: the libnccl.so.2 that the loader finds, and those in `paths`. Makes no CUDA call.
  // Errors: UNAVAILABLE naming every candidate and its error.
  static absl::StatusOr<std::unique_ptr<NcclApi>> Load(
      const NcclSearchPaths& paths = NcclSearchPaths::OfThisProcess());

  NcclApi(const NcclApi&) = delete;
  NcclApi& operator=(const NcclApi&) = delete;

  const NcclTable& table() const { return table_; }
  int version() const { return version_; }  // 22809 for 2.28.9
  const std::string& path() const { return path_; }

  // Returns OK for success, and for "in progress", with which non-blocking communicators report
  // that an operation has started; else the call, the code, NCCL's error string and its last error:
  // UNAVAILABLE for a remote error and a timeout, INVALID_ARGUMENT, INTERNAL for all others.
  //   communicator: may be null.
  absl::Status Check(Result result, absl::string_view call,
                     Communicator communicator = nullptr) const;

 private:
  NcclApi() = default;

  static absl::StatusOr<std::unique_ptr<NcclApi>> LoadFrom(const std::string& path);

  NcclTable table_;
  int version_ = 0;
  std::string path_;
};

// "2.28.9" for 22809; as NCCL_VERSION of nccl.h.
std::string VersionText(int version);

// The first version that supports several ranks on one GPU, where NCCL_MULTI_RANK_GPU_ENABLE is 1.
// Source: the variable is read by init.cc of 2.30.3, and by no earlier release.
inline constexpr int kMultiRankGpuVersion = 23003;

// Returns whether NCCL `version` accepts two ranks of one GPU in this process's environment: with
// NCCL_MULTI_RANK_GPU_ENABLE=1, or with NCCL_HOSTID, which makes them two machines to every
// version.
bool AllowsSharedGpu(int version);

// Whether the library has one-sided operations, and can say whether a communicator has them. Before
// 2.29.7 it cannot, and a refused operation leaves a non-blocking communicator unusable.
inline constexpr int kPutVersion = 22907;
bool HasPut(const NcclApi& api);

}  // namespace ferry::nccl

#endif  // FERRY_GPU_NCCL_NCCL_API_H_
