// SPDX-License-Identifier: Apache-2.0
// A store for communicators in a folder: processes of one test find each other without a
// coordinator.
#ifndef FERRY_TESTS_NODE_DIRECTORY_STORE_H_
#define FERRY_TESTS_NODE_DIRECTORY_STORE_H_

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"

#include "base/thread.h"
#include "gpu/communicator/communicator.h"
#include "gpu/communicator/communicator_use_record.h"

namespace ferry {

// Each key is a file, of a number that grows with each write and the value; one lock for all, whose
// file has the last number.
class DirectoryFiles final {
 public:
  class Lock {
   public:
    explicit Lock(const DirectoryFiles& files)
        : fd_(open(absl::StrCat(files.folder_, ".lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC,
                   0600)) {
      flock(fd_, LOCK_EX);
    }
    ~Lock() { close(fd_); }

   private:
    const int fd_;
  };

  explicit DirectoryFiles(std::string folder) : folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_);
  }

  // REQUIRES: the lock, for these.
  // In the order in which they were written.
  std::vector<std::string> KeysUnder(absl::string_view prefix) const {
    std::map<uint64_t, std::string> keys;
    for (const auto& file : std::filesystem::directory_iterator(folder_)) {
      std::string key = absl::StrReplaceAll(file.path().filename().string(), {{"%", "/"}});
      if (absl::StartsWith(key, prefix)) keys.emplace(Load(Path(key)).first, key);
    }
    std::vector<std::string> ordered;
    for (auto& [number, key] : keys) ordered.push_back(std::move(key));
    return ordered;
  }
  bool Has(absl::string_view key) const { return std::filesystem::exists(Path(key)); }
  std::string Read(absl::string_view key) const { return Load(Path(key)).second; }
  void Write(absl::string_view key, absl::string_view value) const {
    const std::string counter = absl::StrCat(folder_, ".lock");
    const uint64_t number = Load(counter).first + 1;
    std::ofstream(counter) << number << '\n';
    std::ofstream(Path(key), std::ios::binary) << number << '\n' << value;
  }
  void Erase(absl::string_view key) const { std::filesystem::remove(Path(key)); }
  bool Replace(absl::string_view key, const std::optional<std::string>& expected,
               absl::string_view desired) const {
    const bool exists = Has(key);
    if (exists != expected.has_value() || (exists && Read(key) != *expected)) return false;
    Write(key, desired);
    return true;
  }

 private:
  static std::pair<uint64_t, std::string> Load(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    uint64_t number = 0;
    file >> number;
    file.get();
    std::stringstream text;
    text << file.rdbuf();
    return {number, text.str()};
  }
  std::string Path(absl::string_view key) const {
    return absl::StrCat(folder_, "/", absl::StrReplaceAll(key, {{"/", "%"}}));
  }

  const std::string folder_;
};

// With a thread that looks every millisecond.
class DirectoryStore final : public BootstrapStore {
 public:
  DirectoryStore(std::string folder, std::shared_ptr<BootstrapStoreListener> listener)
      : files_(std::move(folder)), listener_(std::move(listener)) {}
  ~DirectoryStore() override { is_stopping_ = true; }

  void Watch(absl::string_view prefix) override {
    watcher_ = std::make_unique<Thread>("test-store", [this, prefix = std::string(prefix)] {
      std::map<std::string, std::string> seen;
      bool has_said = false;
      while (!is_stopping_) {
        {
          const DirectoryFiles::Lock lock(files_);
          for (const std::string& key : files_.KeysUnder(prefix)) {
            std::string value = files_.Read(key);
            if (seen.contains(key) && seen[key] == value) continue;
            seen[key] = value;
            listener_->Entry(key, std::move(value));
          }
        }
        if (!std::exchange(has_said, true)) listener_->Watching();
        absl::SleepFor(absl::Milliseconds(1));
      }
    });
  }
  void Set(absl::string_view key, std::string value) override {
    const DirectoryFiles::Lock lock(files_);
    files_.Write(key, value);
  }
  void CompareAndSet(absl::string_view key, std::optional<std::string> expected,
                     std::string desired) override {
    const DirectoryFiles::Lock lock(files_);
    files_.Replace(key, expected, desired);
  }
  void DeletePrefix(absl::string_view prefix) override {
    const DirectoryFiles::Lock lock(files_);
    for (const std::string& key : files_.KeysUnder(prefix)) files_.Erase(key);
  }

 private:
  const DirectoryFiles files_;
  const std::shared_ptr<BootstrapStoreListener> listener_;
  std::atomic<bool> is_stopping_{false};
  std::unique_ptr<Thread> watcher_;
};

// The same folder as use records need it.
class DirectoryUseRecordStore : public UseRecordStore {
 public:
  explicit DirectoryUseRecordStore(std::string folder) : files_(std::move(folder)) {}

  absl::Status Put(const std::string& key, absl::string_view value) override {
    const DirectoryFiles::Lock lock(files_);
    files_.Write(key, value);
    return absl::OkStatus();
  }
  absl::Status Erase(const std::string& key) override {
    const DirectoryFiles::Lock lock(files_);
    files_.Erase(key);
    return absl::OkStatus();
  }
  absl::StatusOr<std::optional<std::string>> Get(const std::string& key) override {
    const DirectoryFiles::Lock lock(files_);
    if (!files_.Has(key)) return std::nullopt;
    return files_.Read(key);
  }
  absl::StatusOr<std::vector<std::string>> KeysUnder(const std::string& prefix) override {
    const DirectoryFiles::Lock lock(files_);
    return files_.KeysUnder(prefix);
  }
  absl::StatusOr<bool> CompareAndSet(const std::string& key,
                                     const std::optional<std::string>& expected,
                                     absl::string_view desired) override {
    const DirectoryFiles::Lock lock(files_);
    return files_.Replace(key, expected, desired);
  }

 private:
  const DirectoryFiles files_;
};

inline BootstrapStoreFactory DirectoryStores(std::string folder) {
  return [folder = std::move(folder)](std::shared_ptr<BootstrapStoreListener> listener) {
    return std::make_unique<DirectoryStore>(folder, std::move(listener));
  };
}

}  // namespace ferry

#endif  // FERRY_TESTS_NODE_DIRECTORY_STORE_H_
