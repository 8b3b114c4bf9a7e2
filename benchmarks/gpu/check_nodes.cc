// SPDX-License-Identifier: Apache-2.0
// Processes that are nodes: starting them, joining, meeting, ending.
#include "benchmarks/gpu/check_nodes.h"

#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "cli/pattern.h"
#include "coord/server/server.h"

namespace ferry::check {
namespace {

// Time for a measurement beyond the previous one; and for leaving.
constexpr int kGrowth = 6;
constexpr absl::Duration kEnding = absl::Seconds(5);
// The rest of the part's time, for reporting which node did not end.
constexpr absl::Duration kReserve = absl::Seconds(1);
// A node whose partner has failed would wait for it: it has this long to report an error.
constexpr absl::Duration kGrace = absl::Seconds(3);
constexpr size_t kMaxWords = 4096;
// For peers to close the imports of a control channel.
constexpr absl::Duration kClosing = absl::Milliseconds(100);

absl::StatusOr<std::unique_ptr<Node>> Join(int id, int count, const std::string& coordinator,
                                           const TransferEngineOptions& transfer) {
  NodeOptions options;
  options.node_id = id;
  options.num_nodes = count;
  options.coordinator = coordinator;
  options.connect_timeout = kTimeout;
  options.enumerate_timeout = kTimeout;
  options.transfer = transfer;
  options.transfer.listen = "127.0.0.1:0";
  options.share_gpus = true;
  return Node::Join(std::move(options));
}

[[noreturn]] void End(PartContext& context, const NodesOptions& options, int id,
                      const absl::Status& status) {
  if (!status.ok()) context.report.Check(absl::StrCat(options.name, ": node ", id), status);
  std::fflush(nullptr);
  std::_Exit(status.ok() ? 0 : 1);
}

// Runs in the process of node `id`.
absl::Status RunBody(PartContext& context, const NodesOptions& options, int id, int count, int wire,
                     SharedPage* page, const NodeBody& body) {
  std::unique_ptr<coord::CoordinatorServer> server;
  std::string address;
  if (id == 0) {
    coord::ServerOptions server_options;
    server_options.listen = "127.0.0.1:0";
    server_options.coordinator.jobs = {{"jax_worker", count}};
    server_options.coordinator.shutdown_timeout = kTimeout;
    FERRY_ASSIGN_OR_RETURN(server, coord::CoordinatorServer::Create(std::move(server_options)));
    address = server->address();
    if (count > 1 && send(wire, address.data(), address.size(), MSG_NOSIGNAL) < 0) {
      return absl::InternalError("node 1 is not there");
    }
  } else {
    address.resize(kMaxWords);
    const ssize_t got = recv(wire, address.data(), address.size(), 0);
    if (got <= 0) return absl::InternalError("node 0 has no coordinator");
    address.resize(static_cast<size_t>(got));
  }
  FERRY_ASSIGN_OR_RETURN(std::unique_ptr<Node> node, Join(id, count, address, options.transfer));
  if (node->transfer_engine().gpus() == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("this process uses no GPUs: ", node->transfer_engine().why_no_gpus()));
  }
  CheckNode self(context, std::move(node), count, page, wire);
  const absl::Status status = body(self);
  if (status.ok()) return self.Leave();
  // Destructors free memory of the GPU, which waits for its streams: after a failure one of them
  // may never end, and the report would be lost.
  End(context, options, id, status);
}

}  // namespace

absl::StatusOr<CheckGpu*> CheckNode::gpu(int ordinal) {
  auto& slot = gpus_[ordinal];
  if (slot == nullptr) {
    FERRY_ASSIGN_OR_RETURN(Gpu* const gpu, node_->transfer_engine().gpus()->Get(ordinal));
    FERRY_ASSIGN_OR_RETURN(slot, CheckGpu::Create(*gpu));
  }
  return slot.get();
}

absl::StatusOr<Tensor> CheckNode::Empty(size_t bytes, int ordinal) {
  FERRY_ASSIGN_OR_RETURN(const Shape shape, Shape::Create({static_cast<int64_t>(bytes)}));
  return node_->Allocate(absl::StrCat("gpu:", ordinal), DataType::kUint8, shape);
}

absl::StatusOr<Tensor> CheckNode::Pattern(size_t bytes, uint64_t seed, int ordinal) {
  FERRY_ASSIGN_OR_RETURN(CheckGpu* const on, gpu(ordinal));
  FERRY_ASSIGN_OR_RETURN(Tensor tensor, Empty(bytes, ordinal));
  FERRY_RETURN_IF_ERROR(on->Fill(tensor.data(), bytes, seed, on->stream()));
  FERRY_RETURN_IF_ERROR(on->Wait(on->stream()));
  return tensor;
}

absl::StatusOr<uint64_t> CheckNode::CountWrong(const Tensor& tensor, uint64_t seed) {
  if (tensor.is_on_host()) return cli::CountPatternErrors(tensor.data(), tensor.bytes(), seed);
  FERRY_ASSIGN_OR_RETURN(CheckGpu* const on, gpu(tensor.location().ordinal));
  FERRY_RETURN_IF_ERROR(on->EnqueueWait(tensor, on->stream()));
  return on->CountWrong(tensor.data(), tensor.bytes(), seed, on->stream());
}

absl::Status CheckNode::Verify(const Tensor& tensor, size_t bytes, uint64_t seed) {
  if (tensor.bytes() != bytes) {
    return absl::InternalError(
        absl::StrCat("there are ", tensor.bytes(), " bytes, and not ", bytes));
  }
  FERRY_ASSIGN_OR_RETURN(const uint64_t wrong, CountWrong(tensor, seed));
  if (wrong == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(wrong, " of ", bytes, " bytes are not what was sent"));
}

absl::StatusOr<RendezvousKey> CheckNode::Key(absl::string_view name, int from,
                                             absl::string_view from_device,
                                             absl::string_view to_device) {
  return node_->Key(name, from, 1 - from, from_device, to_device);
}

absl::Status CheckNode::Meet() {
  if (count_ == 1) return absl::OkStatus();
  ++meetings_;
  page_->arrived.fetch_add(1, std::memory_order_acq_rel);
  const uint32_t wanted = meetings_ * 2;
  const absl::Time give_up = std::min(SteadyClock().Now() + kTimeout, deadline());
  for (uint64_t turn = 1; page_->arrived.load(std::memory_order_acquire) < wanted; ++turn) {
    if (turn % 1024 != 0) continue;
    if (SteadyClock().Now() > give_up) {
      return absl::DeadlineExceededError("the other node does not come");
    }
    sched_yield();
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> CheckNode::MeetInTime() {
  if (id() == 0 && page_->last_meeting.load() == 0 && SteadyClock().Now() > deadline() - kEnding) {
    page_->last_meeting.store(meetings_ + 1);
  }
  FERRY_RETURN_IF_ERROR(Meet());
  const uint32_t last = page_->last_meeting.load();
  return last == 0 || meetings_ < last;
}

absl::Status CheckNode::Tell(const Figure& figure, int rounds) {
  const auto count = static_cast<int>(figure.ferry.count());
  if (count < rounds) {
    report().Note(absl::StrCat(figure.name, ", ", figure.bytes, " bytes, ", figure.in_flight,
                               " at once: ", count, " of ", rounds, " rounds, for want of time"));
  }
  if (count > 0) {
    report().Figure(FigureJson(figure));
  } else if (figure.wrong_bytes > 0) {
    return absl::DataLossError(
        absl::StrCat(figure.name, ": ", figure.wrong_bytes, " bytes are not what was sent"));
  }
  return absl::OkStatus();
}

absl::Status CheckNode::Say(absl::string_view text) {
  if (send(wire_, text.data(), text.size(), MSG_NOSIGNAL) < 0) {
    return absl::UnavailableError("the other node has ended");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> CheckNode::Hear(absl::Duration timeout) {
  pollfd polled = {wire_, POLLIN, 0};
  if (poll(&polled, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout))) <= 0) {
    return absl::DeadlineExceededError("the other node says nothing");
  }
  std::string text(kMaxWords, '\0');
  const ssize_t got = recv(wire_, text.data(), text.size(), 0);
  if (got <= 0) return absl::UnavailableError("the other node has ended");
  text.resize(static_cast<size_t>(got));
  return text;
}

absl::StatusOr<bool> CheckNode::HasTimeFor(absl::string_view what) {
  if (id() != 0) {
    FERRY_ASSIGN_OR_RETURN(const std::string answer, Hear());
    return answer == "yes";
  }
  const absl::Time now = SteadyClock().Now();
  const absl::Duration last = std::max(now - last_measured_, absl::ZeroDuration());
  const bool has_time = now + kGrowth * last < deadline() - kEnding;
  // A skipped measurement takes no time, and predicts nothing about the next one.
  if (has_time) last_measured_ = now;
  if (!has_time) report().Note(absl::StrCat(what, ": left out, for want of time"));
  FERRY_RETURN_IF_ERROR(Say(has_time ? "yes" : "no"));
  return has_time;
}

absl::Duration CheckNode::Timeout() const {
  return std::clamp(deadline() - kEnding - SteadyClock().Now(), absl::ZeroDuration(), kTimeout);
}

absl::Status CheckNode::Leave() {
  gpus_.clear();
  FERRY_RETURN_IF_ERROR(Meet());
  FERRY_RETURN_IF_ERROR(node_->Shutdown());
  if (count_ > 1) {
    // A process that leaves does not wait until its peer has closed its imports
    // (docs/transports.md), which CUDA requires: so the control channels end first, on both sides.
    node_->transfer_engine().FailNode(1 - id(), absl::UnavailableError("it leaves"));
    FERRY_RETURN_IF_ERROR(Meet());
    absl::SleepFor(kClosing);
  }
  node_.reset();
  return absl::OkStatus();
}

TransferEngineOptions TransferOptionsFor(const Machine& machine, const std::string& require) {
  constexpr size_t kLargeGpu = size_t{24} << 30;
  TransferEngineOptions options;
  options.require_transport = require;
  // Two processes share the GPU.
  options.gpus.arena.budget_bytes =
      machine.gpu_bytes >= kLargeGpu ? size_t{8} << 30 : machine.gpu_bytes / 4;
  return options;
}

size_t MostBytesInFlight(const Machine& machine) {
  return TransferOptionsFor(machine).gpus.arena.budget_bytes / 4;
}

absl::StatusOr<bool> RunNodes(PartContext& context, const NodesOptions& options,
                              const std::vector<NodeBody>& bodies) {
  const int count = static_cast<int>(bodies.size());
  int wires[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, wires) != 0) {
    return absl::ErrnoToStatus(errno, "socketpair");
  }
  const UniqueFd ends[2] = {UniqueFd(wires[0]), UniqueFd(wires[1])};
  void* const memory =
      mmap(nullptr, sizeof(SharedPage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return absl::ErrnoToStatus(errno, "mmap");
  auto* const page = new (memory) SharedPage;
  std::vector<pid_t> children;
  std::fflush(nullptr);
  for (int id = 0; id < count; ++id) {
    const pid_t child = fork();
    if (child < 0) return absl::ErrnoToStatus(errno, "fork");
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(wires[1 - id]);
      if (static_cast<size_t>(id) < options.environments.size()) {
        for (const auto& [name, value] : options.environments[static_cast<size_t>(id)]) {
          setenv(name.c_str(), value.c_str(), 1);
        }
      }
      const absl::Status status =
          RunBody(context, options, id, count, wires[id], page, bodies[static_cast<size_t>(id)]);
      End(context, options, id, status);
    }
    children.push_back(child);
  }
  bool all_well = true;
  absl::Time give_up = context.deadline - kReserve;
  std::vector<bool> has_ended(children.size());
  for (size_t left = children.size(); left > 0;) {
    for (size_t i = 0; i < children.size(); ++i) {
      int status = 0;
      if (has_ended[i]) continue;
      const bool is_late = SteadyClock().Now() >= give_up;
      if (is_late) kill(children[i], SIGKILL);
      if (waitpid(children[i], &status, is_late ? 0 : WNOHANG) != children[i]) continue;
      has_ended[i] = true;
      --left;
      const bool was_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
      if (static_cast<int>(i) == options.dying_node && was_killed && !is_late) continue;
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
      all_well = false;
      if (is_late && was_killed && !options.excuse.empty()) {
        context.report.SkipCheck(absl::StrCat(options.name, ": node ", i),
                                 absl::StrCat("it did not end, and was killed: ", options.excuse));
      } else if (!WIFEXITED(status)) {
        context.report.Check(
            absl::StrCat(options.name, ": node ", i),
            absl::InternalError(is_late ? "it did not end, and was killed"
                                        : absl::StrCat("it died of signal ", WTERMSIG(status))));
      }
      give_up = std::min(give_up, SteadyClock().Now() + kGrace);
    }
    absl::SleepFor(absl::Milliseconds(2));
  }
  munmap(memory, sizeof(SharedPage));
  return all_well;
}

}  // namespace ferry::check
