// SPDX-License-Identifier: Apache-2.0
// PeerProcess: a node in a process of its own, to be killed, stopped and starved.
#ifndef FERRY_TESTS_NODE_PEER_PROCESS_H_
#define FERRY_TESTS_NODE_PEER_PROCESS_H_

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "base/status_macros.h"
#include "node/endpoint_record.h"
#include "tests/node/engine_pair.h"
#include "tests/support/used_up_descriptors.h"

namespace ferry {

// Nodes: this process, and the one that is forked.
inline constexpr int kHere = 0;
inline constexpr int kPeer = 1;
inline constexpr int64_t kStepId = 5;

// One end of the pipe on which the two processes coordinate the test itself.
class Channel final {
 public:
  explicit Channel(int fd) : fd_(fd) {}
  void Say(const std::string& text) const {
    const uint32_t size = static_cast<uint32_t>(text.size());
    if (write(fd_.get(), &size, sizeof(size)) != sizeof(size) ||
        write(fd_.get(), text.data(), size) != static_cast<ssize_t>(size)) {
      std::_Exit(2);
    }
  }
  std::string Hear() const {
    uint32_t size = 0;
    Read(&size, sizeof(size));
    std::string text(size, '\0');
    Read(text.data(), size);
    return text;
  }

 private:
  void Read(void* to, size_t bytes) const {
    for (size_t at = 0; at < bytes;) {
      const ssize_t got = read(fd_.get(), static_cast<char*>(to) + at, bytes - at);
      FERRY_CHECK(got > 0);
      at += static_cast<size_t>(got);
    }
  }
  const UniqueFd fd_;
};

inline RendezvousKey KeyOf(int from, uint64_t incarnation, int to, absl::string_view name) {
  const auto device = [](int node) {
    return absl::StrCat("/job:worker/replica:0/task:", node, "/device:CPU:0");
  };
  return *RendezvousKey::Parse(
      RendezvousKey::Text(device(from), incarnation, device(to), std::string(name)));
}

// A node in a process of its own that executes commands: "send NAME BYTES", "send_heap NAME BYTES",
// "recv NAME", "into NAME BYTES", "wait" (for all receives; the first error), "limit descriptors
// files N" (RLIMIT_NOFILE, RLIMIT_FSIZE), "unlimit", "use_up" and "give_back" (descriptors).
class PeerProcess final {
 public:
  // Forks. `prepare` is called in the process before anything else. REQUIRES: this process has one
  // thread.
  explicit PeerProcess(std::string transport, uint64_t incarnation = 100,
                       size_t arena_budget = size_t{1} << 30,
                       const std::function<bool()>& prepare = {})
      : incarnation_(incarnation) {
    int sockets[2];
    FERRY_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
    pid_ = fork();
    FERRY_CHECK(pid_ >= 0);
    if (pid_ == 0) {
      close(sockets[0]);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (prepare) FERRY_CHECK(prepare());
      Serve(Channel(sockets[1]), transport, incarnation, arena_budget);
    }
    close(sockets[1]);
    channel_ = std::make_unique<Channel>(sockets[0]);
  }
  ~PeerProcess() { Kill(); }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
  }
  void Stop() const {
    kill(pid_, SIGSTOP);
    int status = 0;
    waitpid(pid_, &status, WUNTRACED);
  }
  void Continue() const { kill(pid_, SIGCONT); }
  // Descriptors that were sent to it by Unix sockets, and that it has not taken.
  int UntakenDescriptors() const {
    int count = 0;
    std::error_code gone;
    for (const auto& each :
         std::filesystem::directory_iterator(absl::StrCat("/proc/", pid_, "/fdinfo"), gone)) {
      std::ifstream about(each.path());
      for (std::string word; about >> word;) {
        int of_socket = 0;
        if (word == "scm_fds:" && about >> of_socket) count += of_socket;
      }
    }
    return count;
  }

  // Each receives the other's address.
  void Meet(Directory& directory, const Endpoint& here) const {
    channel_->Say(EncodeEndpoint(here));
    directory.Publish(*DecodeEndpoint(channel_->Hear(), kPeer));
  }
  void Tell(const std::string& command) const { channel_->Say(command); }
  // Waits until it has been done.
  std::string Ask(const std::string& command) const {
    channel_->Say(command);
    return channel_->Hear();
  }
  RendezvousKey To(absl::string_view name) const { return KeyOf(kHere, 1000, kPeer, name); }
  RendezvousKey From(absl::string_view name) const {
    return KeyOf(kPeer, incarnation_, kHere, name);
  }

 private:
  [[noreturn]] static void Serve(const Channel& channel, const std::string& transport,
                                 uint64_t incarnation, size_t arena_budget) {
    Directory directory;
    TransferEngineOptions options;
    options.require_transport = transport;
    options.arena.budget_bytes = arena_budget;
    EngineEnd end(directory, kPeer, options, incarnation);
    directory.Publish(*DecodeEndpoint(channel.Hear(), kHere));
    channel.Say(EncodeEndpoint(end.engine->self()));
    const auto step = end.Step(kStepId);
    std::vector<Receipt> receipts;
    std::vector<Received> held;
    std::optional<UsedUpDescriptors> used_up;
    while (true) {
      const std::vector<std::string> words = absl::StrSplit(channel.Hear(), ' ');
      std::string answer = "done";
      const auto shape = [&words] { return *Shape::Create({std::stoll(words[2])}); };
      if (words[0] == "send" || words[0] == "send_heap") {
        Tensor tensor = words[0] == "send" ? end.Allocate(DataType::kUint8, shape())
                                           : *Tensor::Allocate(DataType::kUint8, shape());
        FillPattern(tensor, 7);
        answer = step->Send(KeyOf(kPeer, incarnation, kHere, words[1]), tensor).ToString();
      } else if (words[0] == "recv" || words[0] == "into") {
        RecvArgs args;
        if (words[0] == "into") args.destination = *Tensor::Allocate(DataType::kUint8, shape());
        receipts.emplace_back();
        step->RecvAsync(KeyOf(kHere, 1000, kPeer, words[1]), args, receipts.back().callback());
      } else if (words[0] == "wait") {
        for (Receipt& each : receipts) {
          const auto received = each.Wait();
          if (answer == "done" || answer == "OK") answer = received.status().ToString();
          if (received.ok()) held.push_back(*received);
        }
        receipts.clear();
      } else if (words[0] == "limit") {
        Limit(words[1] == "files" ? RLIMIT_FSIZE : RLIMIT_NOFILE,
              static_cast<rlim_t>(std::stoll(words[2])));
      } else if (words[0] == "unlimit") {
        Limit(RLIMIT_FSIZE, RLIM_INFINITY);
        Limit(RLIMIT_NOFILE, RLIM_INFINITY);
      } else if (words[0] == "use_up") {
        used_up.emplace();
      } else if (words[0] == "give_back") {
        used_up.reset();
      }
      channel.Say(answer);
    }
  }

  // As far as permitted.
  static void Limit(int what, rlim_t value) {
    const auto resource = static_cast<__rlimit_resource_t>(what);
    rlimit limit = {};
    FERRY_CHECK(getrlimit(resource, &limit) == 0);
    limit.rlim_cur = std::min(value, limit.rlim_max);
    FERRY_CHECK(setrlimit(resource, &limit) == 0);
  }

  const uint64_t incarnation_;
  pid_t pid_ = 0;
  std::unique_ptr<Channel> channel_;
};

}  // namespace ferry

#endif  // FERRY_TESTS_NODE_PEER_PROCESS_H_
