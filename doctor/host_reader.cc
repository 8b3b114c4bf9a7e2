// SPDX-License-Identifier: Apache-2.0
// LocalHostReader: reads /proc and /sys, and makes a few system calls.
#include "doctor/host_reader.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "base/address_family.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace ferry::doctor {
namespace {

constexpr size_t kMaxFileBytes = size_t{64} << 10;

absl::Status OsError(absl::string_view path, int error) {
  const std::string message = absl::StrCat(path, ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(message);
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(message);
  return absl::UnavailableError(message);
}

}  // namespace

absl::StatusOr<std::string> LocalHostReader::ReadFile(const std::string& path) const {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return OsError(path, errno);
  std::string text(kMaxFileBytes, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = read(fd.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return OsError(path, errno);
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  text.resize(size);
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

absl::StatusOr<std::vector<std::string>> LocalHostReader::ListFolder(
    const std::string& path) const {
  std::error_code error;
  std::vector<std::string> names;
  std::filesystem::directory_iterator at(path, error);
  while (!error && at != std::filesystem::directory_iterator()) {
    names.push_back(at->path().filename().string());
    at.increment(error);
  }
  if (error) return OsError(path, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<std::string> LocalHostReader::ReadLink(const std::string& path) const {
  char target[PATH_MAX];
  const ssize_t size = readlink(path.c_str(), target, sizeof(target));
  if (size < 0) return OsError(path, errno);
  return std::string(target, static_cast<size_t>(size));
}

absl::Status LocalHostReader::MayReadAndWrite(const std::string& path) const {
  if (access(path.c_str(), R_OK | W_OK) == 0) return absl::OkStatus();
  return OsError(path, errno);
}

absl::StatusOr<FileSystemSpace> LocalHostReader::Space(const std::string& path) const {
  struct statvfs space = {};
  if (statvfs(path.c_str(), &space) != 0) return OsError(path, errno);
  return FileSystemSpace{static_cast<uint64_t>(space.f_blocks) * space.f_frsize,
                         static_cast<uint64_t>(space.f_bavail) * space.f_frsize};
}

absl::StatusOr<ResourceLimit> LocalHostReader::Limit(int resource) const {
  rlimit limit = {};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) {
    return OsError("getrlimit", errno);
  }
  const auto value = [](rlim_t each) {
    return each == RLIM_INFINITY ? kUnlimited : static_cast<uint64_t>(each);
  };
  return ResourceLimit{value(limit.rlim_cur), value(limit.rlim_max)};
}

absl::StatusOr<std::vector<InterfaceAddress>> LocalHostReader::Interfaces() const {
  return ReadInterfaces();
}

bool LocalHostReader::HasFamily(int family) const { return HasAddressFamily(family); }

std::optional<std::string> LocalHostReader::Environment(const std::string& name) const {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

absl::StatusOr<PageKind> LocalHostReader::SharedMemoryPages() const {
  FERRY_RETURN_IF_ERROR(MemorySegment::CheckSupport());
  FERRY_ASSIGN_OR_RETURN(const MemorySegment segment, MemorySegment::Create(size_t{2} << 20, {}));
  return segment.pages();
}

}  // namespace ferry::doctor
