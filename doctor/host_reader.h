// SPDX-License-Identifier: Apache-2.0
// HostReader: what the checks of ferry doctor may ask the machine; tests make machines up.
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

// Each call asks anew. Thread-safe.
class HostReader {
 public:
  virtual ~HostReader() = default;

  // The contents, at most 64 KiB, of which the last line end is left out.
  //   Errors: NOT_FOUND; PERMISSION_DENIED; UNAVAILABLE with the kernel's reason.
  virtual absl::StatusOr<std::string> ReadFile(const std::string& path) const = 0;
  // Names in a folder, sorted. Errors: as above.
  virtual absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path) const = 0;
  // Where a symbolic link leads. Errors: as above.
  virtual absl::StatusOr<std::string> ReadLink(const std::string& path) const = 0;
  // Whether this process may read and write the file. Errors: as above.
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
  // The pages of memory that processes share by a descriptor: what a piece of 2 MiB got.
  //   Errors: UNAVAILABLE or RESOURCE_EXHAUSTED with the reason.
  virtual absl::StatusOr<PageKind> SharedMemoryPages() const = 0;
};

// The machine and the process that this runs in.
class ThisHost final : public HostReader {
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
