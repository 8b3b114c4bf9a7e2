// SPDX-License-Identifier: Apache-2.0
// A store for cliques in a folder: processes of one test meet there without a coordinator.
#ifndef FERRY_TESTS_RUNTIME_DIRECTORY_STORE_H_
#define FERRY_TESTS_RUNTIME_DIRECTORY_STORE_H_

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"

#include "base/thread.h"
#include "gpu/clique/communicator.h"

namespace ferry {

// Each key is a file; one lock for all; a thread that looks every millisecond.
class DirectoryStore final : public CliqueStore {
 public:
  DirectoryStore(std::string folder, std::shared_ptr<CliqueListener> listener)
      : folder_(std::move(folder)), listener_(std::move(listener)) {
    std::filesystem::create_directories(folder_);
  }
  ~DirectoryStore() override { is_stopping_ = true; }

  void Watch(absl::string_view prefix) override {
    watcher_ = std::make_unique<Thread>("test-store", [this, prefix = std::string(prefix)] {
      std::map<std::string, std::string> seen;
      bool has_said = false;
      while (!is_stopping_) {
        {
          const Lock lock(folder_);
          for (const auto& file : std::filesystem::directory_iterator(folder_)) {
            const std::string key =
                absl::StrReplaceAll(file.path().filename().string(), {{"%", "/"}});
            if (!absl::StartsWith(key, prefix)) continue;
            std::string value = Read(key);
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
    const Lock lock(folder_);
    std::ofstream(Path(key), std::ios::binary) << value;
  }
  void CompareAndSet(absl::string_view key, std::optional<std::string> expected,
                     std::string desired) override {
    const Lock lock(folder_);
    const bool exists = std::filesystem::exists(Path(key));
    if (exists != expected.has_value() || (exists && Read(key) != *expected)) return;
    std::ofstream(Path(key), std::ios::binary) << desired;
  }
  void DeletePrefix(absl::string_view prefix) override {
    const Lock lock(folder_);
    for (const auto& file : std::filesystem::directory_iterator(folder_)) {
      const std::string key = absl::StrReplaceAll(file.path().filename().string(), {{"%", "/"}});
      if (absl::StartsWith(key, prefix)) std::filesystem::remove(file.path());
    }
  }

 private:
  class Lock {
   public:
    explicit Lock(const std::string& folder)
        : fd_(open(absl::StrCat(folder, ".lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600)) {
      flock(fd_, LOCK_EX);
    }
    ~Lock() { close(fd_); }

   private:
    const int fd_;
  };
  std::string Path(absl::string_view key) const {
    return absl::StrCat(folder_, "/", absl::StrReplaceAll(key, {{"/", "%"}}));
  }
  std::string Read(absl::string_view key) const {
    std::ifstream file(Path(key), std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  const std::string folder_;
  const std::shared_ptr<CliqueListener> listener_;
  std::atomic<bool> is_stopping_{false};
  std::unique_ptr<Thread> watcher_;
};

inline CliqueStoreFactory DirectoryStores(std::string folder) {
  return [folder = std::move(folder)](std::shared_ptr<CliqueListener> listener) {
    return std::make_unique<DirectoryStore>(folder, std::move(listener));
  };
}

}  // namespace ferry

#endif  // FERRY_TESTS_RUNTIME_DIRECTORY_STORE_H_
