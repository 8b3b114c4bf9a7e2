// SPDX-License-Identifier: Apache-2.0
// The pending NCCL operation of each device, in the shared table, and the search for cycles among
// them.
#include <chrono>
#include <map>

#include "tests/support/strict_cuda/nccl_comm.h"
#include "tests/support/strict_cuda/violation.h"

namespace strict_cuda {
namespace {

int NewChannel(int physical) {
  const MachineLock lock;
  for (int i = 0; i < kMaxChannels; ++i) {
    ControlChannel& channel = TheMachine().channels[i];
    if (channel.process.pid != 0 && IsAlive(channel.process)) continue;
    channel = ControlChannel{};
    channel.process = Self();
    channel.device = physical;
    return i;
  }
  return 0;
}

const IdRecord* RecordOf(uint64_t token) {
  for (const IdRecord& record : TheMachine().ids) {
    if (record.token == token) return &record;
  }
  return nullptr;
}

// Whether the operation that `channel` waits for at rank `peer` cannot proceed before the peer's
// own operation ends.
bool WaitsFor(const ControlChannel& channel, int peer, const ControlChannel& other) {
  if (other.comm == 0) return false;  // nothing runs there: it may still come
  const uint64_t at_peer = uint64_t{1} << peer;
  if (other.comm != channel.comm) return true;
  const uint64_t at_self = uint64_t{1} << channel.rank;
  const bool send_waits = (channel.send_mask & at_peer) != 0 && (other.recv_mask & at_self) == 0;
  const bool recv_waits = (channel.recv_mask & at_peer) != 0 && (other.send_mask & at_self) == 0;
  return send_waits || recv_waits;
}

std::string Describe(const ControlChannel& channel) {
  return "process " + std::to_string(channel.process.pid) + " device " +
         std::to_string(channel.device) + " rank " + std::to_string(channel.rank) + " of " +
         std::to_string(channel.comm % 10000) + " (" + std::to_string(channel.progress) + ")";
}

// The cycle through `start`, as text; empty if there is none. REQUIRES: the machine's lock.
bool FindCircle(int at, int start, std::vector<bool>& visited, std::vector<int>& circle,
                std::string& text) {
  const ControlChannel& channel = TheMachine().channels[at];
  const IdRecord* const record = RecordOf(channel.comm);
  if (record == nullptr) return false;
  for (int peer = 0; peer < record->rank_count; ++peer) {
    if (((channel.send_mask | channel.recv_mask) >> peer & 1) == 0) continue;
    const int next = record->channels[peer];
    const ControlChannel& other = TheMachine().channels[next];
    if (!WaitsFor(channel, peer, other) || !IsAlive(other.process)) continue;
    if (next == start || (!visited[next] && (visited[next] = true) &&
                          FindCircle(next, start, visited, circle, text))) {
      circle.push_back(at);
      text = Describe(channel) + " -> " + text;
      return true;
    }
  }
  return false;
}

}  // namespace

int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Device& DeviceOf(const Context& context) {
  static auto* const devices = new std::map<int, Device*>;
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  Device*& device = (*devices)[context.physical];
  if (device == nullptr) {
    device = new Device;
    device->channel = NewChannel(context.physical);
  }
  return *device;
}

void PublishHead(const Comm& comm, uint64_t send_mask, uint64_t recv_mask) {
  const MachineLock lock;
  ControlChannel& channel = TheMachine().channels[comm.device->channel];
  channel.comm = comm.token;
  channel.rank = comm.rank;
  channel.send_mask = send_mask;
  channel.recv_mask = recv_mask;
  channel.is_in_circle = false;
  ++channel.progress;
}

void ClearHead(const Comm& comm) {
  const MachineLock lock;
  ControlChannel& channel = TheMachine().channels[comm.device->channel];
  channel.comm = 0;
  ++channel.progress;
}

void CountProgress(const Comm& comm) {
  const MachineLock lock;
  ++TheMachine().channels[comm.device->channel].progress;
}

// A cycle that does not change for a while is permanent: data in flight would have arrived. The
// first process that is certain notifies the others, since the cycle is gone when it has aborted.
void DeadlockWatch::Look() {
  std::string text;
  {
    const MachineLock lock;
    std::vector<bool> visited(kMaxChannels);
    std::vector<int> circle;
    const int start = comm_.device->channel;
    visited[static_cast<size_t>(start)] = true;
    FindCircle(start, start, visited, circle, text);
    if (text != seen_) {
      seen_ = text;
      since_ms_ = NowMs();
    }
    bool& is_told = TheMachine().channels[start].is_in_circle;
    const bool is_sure = !text.empty() && NowMs() - since_ms_ >= GetConfig().deadlock_ms;
    if (!is_sure && !is_told) return;
    for (const int channel : circle) TheMachine().channels[channel].is_in_circle = true;
    is_told = false;
  }
  if (was_told_) return;
  was_told_ = true;  // once, when violations are recorded
  Violation(Rule::kNcclDeadlock, "ncclGroupEnd", "each waits for the next: %sthe first",
            text.empty() ? "(another process has found it) " : text.c_str());
}

}  // namespace strict_cuda
