// SPDX-License-Identifier: Apache-2.0
// Files that are written by senders, read by receivers, and removed by senders.
#include "tests/support/file_transport.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"

#include "base/byte_reader.h"
#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/unique_fd.h"

namespace ferry {
namespace {

// A file's open, write and close, and the same to read it; a copy each way through the page cache.
constexpr absl::Duration kLatency = absl::Microseconds(100);
constexpr double kBytesPerSecond = 1e9;

// The body of a transfer descriptor. The name is made of numbers, so that a peer can name files of
// this transport and no others.
struct FileName {
  uint64_t owner = 0;
  uint64_t nonce = 0;
};

std::string EncodeFileName(const FileName& name) {
  char room[16];
  ByteWriter writer(room, sizeof(room));
  writer.Put(name.owner);
  writer.Put(name.nonce);
  return std::string(writer.view());
}

absl::StatusOr<FileName> DecodeFileName(absl::string_view body) {
  ByteReader reader(body);
  FileName name;
  name.owner = reader.Get<uint64_t>();
  name.nonce = reader.Get<uint64_t>();
  if (!reader.is_short() && reader.rest().empty()) return name;
  return absl::InvalidArgumentError(
      absl::StrCat("a transfer descriptor of ", body.size(), " bytes, and not of 16"));
}

std::string PathOfFile(absl::string_view directory, const FileName& name) {
  return absl::StrFormat("%s/ferry-%016x-%016x", directory, name.owner, name.nonce);
}

absl::Status FileError(absl::string_view call, const std::string& path) {
  const int error = errno;
  const std::string text = absl::StrCat(call, " ", path, ": ", std::strerror(error));
  if (error == ENOSPC || error == EDQUOT || error == EMFILE || error == ENFILE) {
    return absl::ResourceExhaustedError(text);
  }
  return absl::InternalError(text);
}

absl::Status WriteFile(const std::string& path, const Tensor& tensor) {
  UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid()) return FileError("open", path);
  const char* at = static_cast<const char*>(tensor.data());
  for (size_t left = tensor.bytes(); left > 0;) {
    const ssize_t written = write(file.get(), at, left);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FileError("write", path);
    at += written;
    left -= static_cast<size_t>(written);
  }
  return absl::OkStatus();
}

// Reads exactly `bytes` bytes. Nothing that the peer has said was checked before.
absl::StatusOr<UniqueFd> OpenFile(const std::string& path, size_t bytes) {
  // A link would lead elsewhere, and the open of a pipe would block.
  UniqueFd file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid() && errno == ENOENT) {
    return absl::InvalidArgumentError(absl::StrCat("there is no file ", path));
  }
  if (!file.valid()) return FileError("open", path);
  struct stat about = {};
  if (fstat(file.get(), &about) != 0) return FileError("fstat", path);
  if (S_ISREG(about.st_mode) && static_cast<uint64_t>(about.st_size) == bytes) return file;
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is no file of ", bytes, " bytes, as the tensor's header says"));
}

absl::Status ReadFile(const UniqueFd& file, const std::string& path, Tensor& tensor) {
  char* at = static_cast<char*>(tensor.mutable_data());
  for (size_t left = tensor.bytes(); left > 0;) {
    const ssize_t got = read(file.get(), at, left);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError("read", path);
    if (got == 0) return absl::InvalidArgumentError(absl::StrCat(path, " has become shorter"));
    at += got;
    left -= static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

class FileSender final : public TransportSender {
 public:
  explicit FileSender(std::string directory) : directory_(std::move(directory)) {}
  ~FileSender() override { RemoveAll(absl::CancelledError("this process is leaving")); }

  void Expose(uint64_t id, const Tensor& tensor, const TensorLocation& to,
              ExposeCallback done) override ABSL_LOCKS_EXCLUDED(mu_) {
    const FileName name = {.owner = owner_, .nonce = RandomId()};
    const std::string path = PathOfFile(directory_, name);
    absl::Status status = aborted();
    if (status.ok()) status = WriteFile(path, tensor);
    if (status.ok()) {
      absl::MutexLock lock(&mu_);
      status = aborted_;
      if (status.ok()) files_.emplace(id, path);
    }
    if (status.ok()) return std::move(done)(TransferDescriptor{.body = EncodeFileName(name)});
    // Written in part, or aborted meanwhile.
    unlink(path.c_str());
    std::move(done)(status);
  }

  void Release(uint64_t id) override ABSL_LOCKS_EXCLUDED(mu_) {
    std::string path;
    {
      absl::MutexLock lock(&mu_);
      const auto found = files_.find(id);
      if (found == files_.end()) return;
      path = std::move(found->second);
      files_.erase(found);
    }
    unlink(path.c_str());
  }

  void Abort(const absl::Status& why) override { RemoveAll(why); }

 private:
  absl::Status aborted() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return aborted_;
  }
  void RemoveAll(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::flat_hash_map<uint64_t, std::string> files;
    {
      absl::MutexLock lock(&mu_);
      if (aborted_.ok()) aborted_ = why;
      files.swap(files_);
    }
    for (const auto& [id, path] : files) unlink(path.c_str());
  }

  const std::string directory_;
  const uint64_t owner_ = RandomId();
  absl::Mutex mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  // Exposed and not released.
  absl::flat_hash_map<uint64_t, std::string> files_ ABSL_GUARDED_BY(mu_);
};

class FileReceiver final : public TransportReceiver {
 public:
  explicit FileReceiver(std::string directory) : directory_(std::move(directory)) {}

  void Fetch(uint64_t id, const TensorHeader& header, absl::string_view body,
             absl::Span<UniqueFd> descriptors, const Tensor& destination,
             FetchCallback done) override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::StatusOr<Tensor> tensor = Read(header, body, destination);
    std::move(done)(std::move(tensor), /*later=*/false);
  }
  // A Fetch is over when it returns, so that one of another thread is waited for.
  void Cancel(uint64_t id) override ABSL_LOCKS_EXCLUDED(mu_) { absl::MutexLock lock(&mu_); }
  // The file is removed by the sender when it is acknowledged.
  void Discard(uint64_t id, const TensorHeader& header, absl::string_view body,
               absl::Span<UniqueFd> descriptors) override {}
  void Abort(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (aborted_.ok()) aborted_ = why;
  }

 private:
  absl::StatusOr<Tensor> Read(const TensorHeader& header, absl::string_view body,
                              const Tensor& destination) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (!aborted_.ok()) return aborted_;
    FERRY_ASSIGN_OR_RETURN(const FileName name, DecodeFileName(body));
    const std::string path = PathOfFile(directory_, name);
    // Before any memory is allocated: the header is untrusted too.
    FERRY_ASSIGN_OR_RETURN(const UniqueFd file, OpenFile(path, header.bytes));
    Tensor tensor = destination;
    if (!tensor.is_valid()) {
      FERRY_ASSIGN_OR_RETURN(tensor, Tensor::Allocate(header.dtype, header.shape));
    }
    FERRY_RETURN_IF_ERROR(ReadFile(file, path, tensor));
    return tensor;
  }

  const std::string directory_;
  // Held while a file is read.
  absl::Mutex mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<PathCost> FileTransport::Cost(const PathQuery& query) const {
  if (query.source->boot_id.empty() || query.source->boot_id != query.destination->boot_id) {
    return absl::UnavailableError("they are on two machines");
  }
  const absl::string_view source = DescriptorOf(*query.source);
  const absl::string_view destination = DescriptorOf(*query.destination);
  for (const absl::string_view each : {source, destination}) {
    if (each.size() > kMaxDirectoryBytes || !absl::StartsWith(each, "/")) {
      return absl::UnavailableError(absl::StrCat("one of them describes itself by ",
                                                 Quoted(each.substr(0, 32)),
                                                 ", which is no directory"));
    }
  }
  if (source != destination) {
    return absl::UnavailableError(
        absl::StrCat("they use two directories, ", Quoted(source), " and ", Quoted(destination)));
  }
  return PathCost{kLatency, kBytesPerSecond};
}

std::shared_ptr<TransportSender> FileTransport::CreateSender(const Endpoint& peer) {
  return std::make_shared<FileSender>(directory_);
}

std::shared_ptr<TransportReceiver> FileTransport::CreateReceiver(const Endpoint& peer,
                                                                 ReleaseCallback release) {
  return std::make_shared<FileReceiver>(directory_);
}

TransportFactory FileTransportFactory(std::string directory) {
  return {.info = FileTransport::kInfo,
          .make = [directory = std::move(directory)](
                      const TransportEnvironment&) -> absl::StatusOr<std::unique_ptr<Transport>> {
            if (!absl::StartsWith(directory, "/") ||
                directory.size() > FileTransport::kMaxDirectoryBytes) {
              return absl::InvalidArgumentError(
                  absl::StrCat(Quoted(directory), " is not the absolute path of a directory"));
            }
            return std::make_unique<FileTransport>(directory);
          }};
}

}  // namespace ferry
