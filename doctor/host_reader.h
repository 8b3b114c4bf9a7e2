// SPDX-License-Identifier: Apache-2.0
// HostReader: the system interface of the checks of ferry doctor; tests provide a fake.
#ifndef FERRY_DOCTOR_HOST_READER_H_
#define FERRY_DOCTOR_HOST_READER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "node/host_addresses.h"
#include "tensor/memory_segment.h"

namespace ferry::doctor {

struct FileSystemSpace {
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;  // for users other than root
};

inline constexpr uint64_t kUnlimited = ~uint64_t{0};

struct ResourceLimit {
  uint64_t soft = 0;  // or kUnlimited
  uint64_t hard = 0;
};

// Nothing is cached. Thread-safe.
class HostReader {
 public:
  virtual ~HostReader() = default;

  // Returns the contents, at most 64 KiB, without the last line end.
  //   Errors: NOT_FOUND; PERMISSION_DENIED; UNAVAILABLE with the kernel's reason.
  virtual absl::StatusOr<std::string> ReadFile(const std::string& path) const = 0;
  // Returns the names in a directory, sorted. Errors: as above.
  virtual absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path) const = 0;
  // Returns the target of a symbolic link. Errors: as above.
  virtual absl::StatusOr<std::string> ReadLink(const std::string& path) const = 0;
  // Returns OK if this process may read and write the file. Errors: as above.
  virtual absl::Status MayReadAndWrite(const std::string& path) const = 0;
  //   Errors: as above.
  virtual absl::StatusOr<FileSystemSpace> Space(const std::string& path) const = 0;
  // resource: RLIMIT_... Errors: UNAVAILABLE.
  virtual absl::StatusOr<ResourceLimit> Limit(int resource) const = 0;
  //   Errors: UNAVAILABLE.
  virtual absl::StatusOr<std::vector<InterfaceAddress>> Interfaces() const = 0;
  // Returns true if the kernel supports sockets of this family, AF_INET or AF_INET6.
  virtual bool HasFamily(int family) const = 0;
  virtual std::optional<std::string> Environment(const std::string& name) const = 0;
  // Returns the kind of pages that the kernel gave a 2 MiB memfd mapping.
  //   Errors: UNAVAILABLE or RESOURCE_EXHAUSTED with the reason.
  virtual absl::StatusOr<PageKind> SharedMemoryPages() const = 0;
};

// The machine and process that this runs in.
class LocalHostReader final : public HostReader {
 public:
  absl::StatusOr<std::string> ReadFile(const std::string& path) const override;
  absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path) const override;
  absl::StatusOr<std::string> ReadLink(const std::string& path) const override;
  absl::Status MayReadAndWrite(const std::string& path) const override;
  absl::StatusOr<FileSystemSpace> Space(const std::string& path) const override;
  absl::StatusOr<ResourceLimit> Limit(int resource) const override;
  absl::StatusOr<std::vector<InterfaceAddress>> Interfaces() const override;
  bool HasFamily(int family) const override;
  std::optional<std::string> Environment(const std::string& name) const override;
  absl::StatusOr<PageKind> SharedMemoryPages() const override;
};

}  // namespace ferry::doctor

#endif  // FERRY_DOCTOR_HOST_READER_H_
