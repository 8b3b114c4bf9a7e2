// SPDX-License-Identifier: Apache-2.0
// Loading NCCL and naming its errors.
#include "gpu/nccl/nccl_api.h"

#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

#include "base/file_limit.h"
#include "base/status_macros.h"
#include "gpu/shared_library.h"

namespace ferry::nccl {
namespace {

constexpr char kLibrary[] = "libnccl.so.2";
constexpr char kOverride[] = "FERRY_NCCL_LIBRARY";

absl::Status ResolveNeeded(const SharedLibrary& library, NcclTable& table) {
  FERRY_RETURN_IF_ERROR(library.Resolve("ncclGetUniqueId", table.get_unique_id));
  FERRY_RETURN_IF_ERROR(library.Resolve("ncclGetErrorString", table.get_error_string));
  FERRY_RETURN_IF_ERROR(library.Resolve("ncclGetLastError", table.get_last_error));
  FERRY_RETURN_IF_ERROR(library.Resolve("ncclCommInitRankConfig", table.init_rank_config));
  FERRY_RETURN_IF_ERROR(library.Resolve("ncclCommFinalize", table.finalize));
  FERRY_RETURN_IF_ERROR(library.Resolve("ncclCommDestroy", table.destroy));
  FERRY_RETURN_IF_ERROR(library.Resolve("ncclCommAbort", table.abort));
  FERRY_RETURN_IF_ERROR(library.Resolve("ncclCommGetAsyncError", table.get_async_error));
  FERRY_RETURN_IF_ERROR(library.Resolve("ncclCommCount", table.count));
  FERRY_RETURN_IF_ERROR(library.Resolve("ncclCommCuDevice", table.cuda_device));
  FERRY_RETURN_IF_ERROR(library.Resolve("ncclCommUserRank", table.user_rank));
  FERRY_RETURN_IF_ERROR(library.Resolve("ncclGroupStart", table.group_start));
  FERRY_RETURN_IF_ERROR(library.Resolve("ncclGroupEnd", table.group_end));
  FERRY_RETURN_IF_ERROR(library.Resolve("ncclSend", table.send));
  FERRY_RETURN_IF_ERROR(library.Resolve("ncclRecv", table.recv));
  FERRY_RETURN_IF_ERROR(library.Resolve("ncclAllReduce", table.all_reduce));
  FERRY_RETURN_IF_ERROR(library.Resolve("ncclBroadcast", table.broadcast));
  FERRY_RETURN_IF_ERROR(library.Resolve("ncclAllGather", table.all_gather));
  FERRY_RETURN_IF_ERROR(library.Resolve("ncclMemAlloc", table.memory_alloc));
  FERRY_RETURN_IF_ERROR(library.Resolve("ncclMemFree", table.memory_free));
  FERRY_RETURN_IF_ERROR(library.Resolve("ncclCommRegister", table.register_buffer));
  return library.Resolve("ncclCommDeregister", table.deregister_buffer);
}

void ResolveOptional(const SharedLibrary& library, NcclTable& table) {
  library.ResolveOptional("ncclCommInitRankScalable", table.init_rank_scalable);
  library.ResolveOptional("ncclCommShrink", table.shrink);
  library.ResolveOptional("ncclCommWindowRegister", table.register_window);
  library.ResolveOptional("ncclCommWindowDeregister", table.deregister_window);
  library.ResolveOptional("ncclCommRevoke", table.revoke);
  library.ResolveOptional("ncclCommGetUniqueId", table.get_grow_id);
  library.ResolveOptional("ncclCommGrow", table.grow);
  library.ResolveOptional("ncclCommQueryProperties", table.query_properties);
  library.ResolveOptional("ncclPutSignal", table.put_signal);
  library.ResolveOptional("ncclSignal", table.signal);
  library.ResolveOptional("ncclWaitSignal", table.wait_signal);
}

}  // namespace

absl::StatusOr<std::unique_ptr<NcclApi>> NcclApi::LoadFrom(const std::string& path) {
  FERRY_ASSIGN_OR_RETURN(const SharedLibrary library, SharedLibrary::Open(path, kOverride));
  std::unique_ptr<NcclApi> api = absl::WrapUnique(new NcclApi);
  api->path_ = library.path();
  FERRY_RETURN_IF_ERROR(library.Resolve("ncclGetVersion", api->table_.get_version));
  const Result result = api->table_.get_version(&api->version_);
  if (result != kSuccess) {
    return absl::UnavailableError(
        absl::StrCat("ncclGetVersion of ", library.path(), " failed with code ", result));
  }
  if (api->version_ < kMinVersion) {
    return absl::FailedPreconditionError(absl::StrCat(library.path(), " is NCCL ",
                                                      VersionText(api->version_), ", at least ",
                                                      VersionText(kMinVersion), " is needed"));
  }
  FERRY_RETURN_IF_ERROR(ResolveNeeded(library, api->table_));
  ResolveOptional(library, api->table_);
  return api;
}

absl::StatusOr<std::unique_ptr<NcclApi>> NcclApi::Load(const NcclSearchPaths& paths) {
  const char* const chosen = std::getenv(kOverride);
  std::vector<std::string> problems;
  // A library named by the user is the only candidate.
  if (chosen != nullptr && *chosen != '\0') {
    absl::StatusOr<std::unique_ptr<NcclApi>> api = LoadFrom(chosen);
    if (api.ok()) return api;
    return absl::UnavailableError(absl::StrCat("no NCCL: ", api.status().message()));
  }
  NcclSearch search = SearchNccl(paths);
  search.found.insert(search.found.begin(), kLibrary);
  for (const std::string& file : search.found) {
    absl::StatusOr<std::unique_ptr<NcclApi>> api = LoadFrom(file);
    if (api.ok()) return api;
    problems.push_back(std::string(api.status().message()));
  }
  return absl::UnavailableError(absl::StrCat("no NCCL: ", absl::StrJoin(problems, "; "),
                                             "; looked into ", absl::StrJoin(search.folders, ", "),
                                             ". Install it, or name the file in ", kOverride));
}

absl::Status NcclApi::Check(Result result, absl::string_view call,
                            Communicator communicator) const {
  if (result == kSuccess || result == kInProgress) return absl::OkStatus();
  const char* const text = table_.get_error_string(result);
  const char* const last = table_.get_last_error(communicator);
  const std::string message = absl::StrCat(
      call, " failed with code ", result, text == nullptr ? "" : absl::StrCat(" (", text, ")"),
      last == nullptr || *last == '\0' ? "" : absl::StrCat(": ", last),
      result == kSystemError ? WhyNoDescriptor() : "");
  switch (result) {
    case kRemoteError:
    case kTimeout:
      return absl::UnavailableError(message);
    case kInvalidArgument:
      return absl::InvalidArgumentError(message);
    default:
      return absl::InternalError(message);
  }
}

bool AllowsSharedGpu(int version) {
  const char* const multi_rank = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  if (version >= kMultiRankGpuVersion && multi_rank != nullptr &&
      absl::string_view(multi_rank) == "1") {
    return true;
  }
  return std::getenv("NCCL_HOSTID") != nullptr;
}

bool HasPut(const NcclApi& api) {
  const NcclTable& table = api.table();
  return api.version() >= kPutVersion && table.register_window != nullptr &&
         table.query_properties != nullptr && table.put_signal != nullptr &&
         table.signal != nullptr && table.wait_signal != nullptr;
}

std::string VersionText(int version) {
  return absl::StrCat(version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

}  // namespace ferry::nccl
