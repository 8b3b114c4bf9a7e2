// SPDX-License-Identifier: Apache-2.0
// Checks of the NCCL library: loading it, reading its versions, and judging them.
#include "doctor/nccl_checks.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/clock.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "gpu/cuda/cuda_api.h"

namespace ferry::doctor {
namespace {

// The version that gpu/nccl/nccl_types.h declares.
constexpr int kKnownVersion = 22809;
// As the library contains it: "NCCL version 2.28.9+cuda13.0".
constexpr absl::string_view kVersionMark = "NCCL version ";
constexpr absl::string_view kCudaMark = "+cuda";
// Maximum size of the text after the first mark.
constexpr size_t kVersionBytes = 64;

// Searches the file in pieces.
int CudaOfFile(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return 0;
  constexpr size_t kPiece = size_t{4} << 20;
  // The end of the last piece is searched again, in case the text spans two pieces.
  constexpr size_t kOverlap = 128;
  std::string piece(kPiece + kOverlap, '\0');
  size_t kept = 0;
  while (true) {
    const ssize_t got = read(fd.get(), piece.data() + kept, kPiece);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return 0;
    const size_t size = kept + static_cast<size_t>(got);
    const int cuda = CudaOfNccl(absl::string_view(piece).substr(0, size));
    if (cuda != 0) return cuda;
    kept = std::min(kOverlap, size);
    std::memmove(piece.data(), piece.data() + size - kept, kept);
  }
}

std::string DriverFor(int cuda_major) {
  // Source: CUDA Toolkit release notes, "CUDA Toolkit and Corresponding Driver Versions".
  switch (cuda_major) {
    case 11:
      return "450";
    case 12:
      return "525";
    case 13:
      return "580";
    default:
      return absl::StrCat("that of CUDA ", cuda_major);
  }
}

}  // namespace

int CudaOfNccl(absl::string_view bytes) {
  for (size_t at = bytes.find(kVersionMark); at != absl::string_view::npos;
       at = bytes.find(kVersionMark, at + 1)) {
    absl::string_view text = bytes.substr(at + kVersionMark.size(), kVersionBytes);
    text = text.substr(0, text.find('\0'));
    const size_t cuda = text.find(kCudaMark);
    if (cuda == absl::string_view::npos) continue;
    text = text.substr(cuda + kCudaMark.size());
    const size_t dot = text.find('.');
    if (dot == absl::string_view::npos) continue;
    const absl::string_view minor = text.substr(dot + 1);
    int major_number = 0;
    int minor_number = 0;
    if (absl::SimpleAtoi(text.substr(0, dot), &major_number) &&
        absl::SimpleAtoi(minor.substr(0, minor.find_first_not_of("0123456789")), &minor_number)) {
      return major_number * 1000 + minor_number * 10;
    }
  }
  return 0;
}

absl::StatusOr<std::pair<std::string, bool>> AddressOfId(const nccl::UniqueId& id) {
  constexpr size_t kOffset = 8;
  sa_family_t family = 0;
  std::memcpy(&family, id.bytes + kOffset, sizeof(family));
  char text[INET6_ADDRSTRLEN] = "";
  if (family == AF_INET) {
    sockaddr_in address = {};
    std::memcpy(&address, id.bytes + kOffset, sizeof(address));
    inet_ntop(AF_INET, &address.sin_addr, text, sizeof(text));
    return std::pair{absl::StrCat(text, ":", ntohs(address.sin_port)),
                     ntohl(address.sin_addr.s_addr) >> 24 == 127};
  }
  if (family == AF_INET6) {
    sockaddr_in6 address = {};
    std::memcpy(&address, id.bytes + kOffset, sizeof(address));
    inet_ntop(AF_INET6, &address.sin6_addr, text, sizeof(text));
    return std::pair{absl::StrCat("[", text, "]:", ntohs(address.sin6_port)),
                     IN6_IS_ADDR_LOOPBACK(&address.sin6_addr) != 0};
  }
  return absl::NotFoundError("the id holds no address");
}

NcclFacts ReadNcclFacts(const HostReader& host, std::unique_ptr<nccl::NcclApi>& api) {
  NcclFacts facts;
  facts.is_named = !host.Environment("FERRY_NCCL_LIBRARY").value_or("").empty();
  absl::StatusOr<std::unique_ptr<nccl::NcclApi>> loaded = nccl::NcclApi::Load();
  facts.loaded = loaded.status();
  if (!loaded.ok()) return facts;
  api = *std::move(loaded);
  facts.version = api->version();
  facts.path = api->path();
  const nccl::NcclTable& table = api->table();
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(table.get_version), &info) != 0 &&
      info.dli_fname != nullptr) {
    facts.path = info.dli_fname;
  }
  facts.built_with_cuda = CudaOfFile(facts.path);
  const auto need = [&facts](bool is_there, const char* what) {
    if (!is_there) facts.lacking.emplace_back(what);
  };
  need(table.init_rank_scalable != nullptr, "several ids for over 128 ranks (2.23)");
  need(table.shrink != nullptr, "shrinking (2.27)");
  need(table.revoke != nullptr, "revoking (2.28.7)");
  return facts;
}

NcclIdFacts TryNcclId(const HostReader& host, const nccl::NcclApi& api) {
  NcclIdFacts facts;
  facts.comm_id = host.Environment("NCCL_COMM_ID");
  facts.blocking = host.Environment("NCCL_COMM_BLOCKING");
  nccl::UniqueId id = {};
  const absl::Time start = SteadyClock().Now();
  facts.made = api.Check(api.table().get_unique_id(&id), "ncclGetUniqueId");
  facts.taken = SteadyClock().Now() - start;
  if (!facts.made.ok()) return facts;
  const auto address = AddressOfId(id);
  if (address.ok()) {
    facts.address = address->first;
    facts.is_loopback = address->second;
  }
  return facts;
}

Finding JudgeNccl(const NcclFacts& facts, int gpu_count, int cuda_version) {
  if (!facts.loaded.ok()) {
    const std::string why(facts.loaded.message());
    if (facts.is_named) {
      return Wrong("nccl", why,
                   "set FERRY_NCCL_LIBRARY to a libnccl.so.2 from 2.19.1 on, or unset it");
    }
    if (gpu_count == 0) return Skipped("nccl", absl::StrCat("no GPU needs it; ", why));
    return Wrong("nccl", why,
                 absl::StrCat("pip install nvidia-nccl-cu", cuda_version >= 13000 ? "13" : "12",
                              ", or the package libnccl2; until then there are no communicators"));
  }
  std::string seen = absl::StrCat(nccl::VersionText(facts.version));
  if (facts.built_with_cuda != 0) {
    absl::StrAppend(&seen, " for CUDA ", cuda::VersionText(facts.built_with_cuda));
  }
  absl::StrAppend(&seen, ", ", facts.path,
                  facts.is_named ? " (FERRY_NCCL_LIBRARY)" : ", the first that fits");
  const int needed = facts.built_with_cuda / 1000;
  const int driver = cuda_version / 1000;
  if (needed != 0 && driver != 0 && needed > driver) {
    return Wrong("nccl",
                 absl::StrCat(seen, ", but the driver runs CUDA ", cuda::VersionText(cuda_version),
                              " at most"),
                 absl::StrCat("install driver ", DriverFor(needed), " or newer, or NCCL for CUDA ",
                              driver, " (nvidia-nccl-cu", driver, ")"));
  }
  if (facts.version > kKnownVersion) {
    absl::StrAppend(&seen, "; newer than ", nccl::VersionText(kKnownVersion),
                    ", which Ferry's declarations are of");
  }
  if (!facts.lacking.empty()) {
    return Warning("nccl", absl::StrCat(seen, "; lacks ", absl::StrJoin(facts.lacking, ", ")),
                   absl::StrCat("install ", nccl::VersionText(kKnownVersion),
                                " or newer, the same on every machine"));
  }
  return Ok("nccl", std::move(seen));
}

Finding JudgeNcclId(const NcclIdFacts& facts) {
  if (!facts.made.ok()) {
    return Wrong("nccl id", std::string(facts.made.message()),
                 "see the line of the interfaces; NCCL_DEBUG=INFO says more");
  }
  if (facts.comm_id && !facts.comm_id->empty()) {
    return Warning("nccl id",
                   absl::StrCat("NCCL_COMM_ID=", Quoted(*facts.comm_id), ": every id is that one"),
                   "unset it: ids go through Ferry's store, and each is used once");
  }
  if (facts.blocking && !facts.blocking->empty() && *facts.blocking != "0") {
    return Wrong("nccl id",
                 absl::StrCat("NCCL_COMM_BLOCKING=", Quoted(*facts.blocking),
                              ": calls of NCCL's would block, and Ferry refuses to make them"),
                 "unset it");
  }
  const std::string seen = facts.address.empty()
                               ? absl::StrCat("made in ", ShortDuration(facts.taken),
                                              "; it does not tell where ranks "
                                              "would meet")
                               : absl::StrCat("made in ", ShortDuration(facts.taken),
                                              "; ranks would meet at ", facts.address);
  if (facts.is_loopback) {
    return Warning("nccl id", absl::StrCat(seen, ", which no other machine reaches"),
                   "for jobs of several machines set NCCL_SOCKET_IFNAME");
  }
  return Ok("nccl id", seen);
}

}  // namespace ferry::doctor
