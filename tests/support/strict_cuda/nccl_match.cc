// SPDX-License-Identifier: Apache-2.0
// Moving data between ranks: the receiver reports that it is ready, the sender compares, then
// sends. A stream stays in here until every partner has joined, as a kernel would.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "tests/support/strict_cuda/memory.h"
#include "tests/support/strict_cuda/nccl_comm.h"
#include "tests/support/strict_cuda/nccl_reduce.h"
#include "tests/support/strict_cuda/nccl_transfer.h"
#include "tests/support/strict_cuda/violation.h"

namespace strict_cuda {
namespace {

// How many more bytes this process sends; negative: no end.
std::atomic<int64_t>& SendBudget() {
  static auto* const budget =
      new std::atomic<int64_t>(NumberFromEnvironment("STRICT_CUDA_NCCL_STOP_AFTER", -1));
  return *budget;
}

class Runner final {
 public:
  Runner(Comm& comm, const std::vector<Op>& ops) : comm_(comm), ops_(ops), watch_(comm) {}

  void Run() {
    peers_.resize(static_cast<size_t>(comm_.count));
    for (const Op& op : ops_) {
      if (!Prepare(op)) return;
    }
    CopyToSelf();
    for (PeerTransfers& transfers : peers_) {
      for (const Transfer& recv : transfers.recvs) Announce(transfers, recv.header);
    }
    Publish();
    int64_t quiet_since_ms = NowMs();
    while (!IsFinished()) {
      if (IsStopped(comm_) || comm_.state == ncclRemoteError) return Linger();
      bool moved = false;
      for (int peer = 0; peer < comm_.count; ++peer) moved |= Step(peer);
      if (moved) {
        Publish();
        quiet_since_ms = NowMs();
      } else {
        if (NowMs() - quiet_since_ms > 20) {
          watch_.Look();
          quiet_since_ms = NowMs();
        }
        Wait();
      }
    }
    for (const Collective& collective : collectives_) Finish(collective);
  }

 private:
  struct Collective {
    const Op* op;
    std::string own;                  // this rank's input
    std::vector<std::string> others;  // by rank
  };

  // Null, with the context failed, if the memory is not there.
  Use* TouchFor(CUdeviceptr pointer, size_t bytes, bool is_write) {
    std::unique_ptr<Use> use;
    const CUresult result =
        Touch(pointer, bytes, comm_.context->physical, is_write, "ncclGroupEnd", &use);
    if (result != 0) {
      FailContext(*comm_.context, result);
      return nullptr;
    }
    uses_.push_back(std::move(use));
    return uses_.back().get();
  }

  Transfer& Add(std::deque<Transfer>& queue, const Op& op, uint64_t& sequence) {
    Transfer& transfer = queue.emplace_back();
    transfer.header.kind = op.kind == OpKind::kRecv ? OpKind::kSend : op.kind;
    transfer.header.sequence = sequence++;
    transfer.header.count = op.count;
    transfer.header.data_type = op.type;
    if (op.kind == OpKind::kAllReduce) transfer.header.how = op.reduction;
    if (op.kind == OpKind::kBroadcast) transfer.header.how = op.peer;
    return transfer;
  }

  void SetMemory(Transfer& transfer, const Use& use) {
    for (const Piece& piece : use.pieces()) transfer.spans.push_back({piece.host, piece.bytes});
  }

  bool Prepare(const Op& op) {
    const size_t bytes = op.count * TypeBytes(op.type);
    if (op.kind != OpKind::kSend && op.kind != OpKind::kRecv) return PrepareCollective(op, bytes);
    const bool is_send = op.kind == OpKind::kSend;
    PeerTransfers& transfers = peers_[op.peer];
    Link& link = comm_.links[op.peer];
    Transfer& transfer = is_send ? Add(transfers.sends, op, link.next_send)
                                 : Add(transfers.recvs, op, link.next_recv);
    if (bytes == 0) return true;
    Use* const use = TouchFor(is_send ? op.from : op.to, bytes, !is_send);
    if (use != nullptr) SetMemory(transfer, *use);
    return use != nullptr;
  }

  // All ranks send their own to all others, or the root does.
  bool PrepareCollective(const Op& op, size_t bytes) {
    collectives_.push_back({&op, "", {}});
    Collective& collective = collectives_.back();
    collective.others.resize(static_cast<size_t>(comm_.count));
    const bool has_root = op.kind == OpKind::kBroadcast;
    const bool gives = !has_root || op.peer == comm_.rank;
    if (gives && bytes > 0) {
      const Use* const use = TouchFor(op.from, bytes, false);
      if (use == nullptr) return false;
      for (const Piece& piece : use->pieces()) collective.own.append(piece.host, piece.bytes);
    }
    for (int peer = 0; peer < comm_.count; ++peer) {
      if (peer == comm_.rank) continue;
      Link& link = comm_.links[peer];
      if (gives) {
        Transfer& send = Add(peers_[peer].sends, op, link.next_send);
        if (bytes > 0) send.spans.push_back({collective.own.data(), bytes});
      }
      if (!has_root || op.peer == peer) {
        Transfer& recv = Add(peers_[peer].recvs, op, link.next_recv);
        std::string& other = collective.others[static_cast<size_t>(peer)];
        other.resize(bytes);
        if (bytes > 0) recv.spans.push_back({other.data(), bytes});
      }
    }
    return true;
  }

  void Finish(const Collective& collective) {
    const Op& op = *collective.op;
    std::string result;
    if (op.kind == OpKind::kBroadcast) {
      result = op.peer == comm_.rank ? collective.own : collective.others[op.peer];
    } else if (op.kind == OpKind::kAllGather) {
      for (int rank = 0; rank < comm_.count; ++rank) {
        result += rank == comm_.rank ? collective.own : collective.others[rank];
      }
    } else {
      // In the order of ranks, so that all get the same bits.
      for (int rank = 0; rank < comm_.count; ++rank) {
        const std::string& part = rank == comm_.rank ? collective.own : collective.others[rank];
        if (rank == 0) result = part;
        if (rank > 0) Reduce(op.type, op.reduction, part, result);
      }
      if (op.reduction == ncclAvg) Divide(op.type, comm_.count, result);
    }
    if (result.empty()) return;
    const Use* const use = TouchFor(op.to, result.size(), true);
    if (use == nullptr) return;
    size_t at = 0;
    for (const Piece& piece : use->pieces()) {
      std::memcpy(piece.host, result.data() + at, piece.bytes);
      at += piece.bytes;
    }
  }

  void CopyToSelf() {
    PeerTransfers& self = peers_[comm_.rank];
    for (size_t i = 0; i < std::min(self.sends.size(), self.recvs.size()); ++i) {
      Compare(self.sends[i].header, self.recvs[i].header, comm_.rank);
      std::string bytes;
      for (const Span& span : self.sends[i].spans) bytes.append(span.data, span.bytes);
      size_t at = 0;
      for (const Span& span : self.recvs[i].spans) {
        const size_t here = std::min(span.bytes, bytes.size() - at);
        std::memcpy(span.data, bytes.data() + at, here);
        at += here;
      }
    }
    self = PeerTransfers{};
  }

  // `send` is ours, `recv` the operation that the peer is ready for.
  void Compare(const Header& send, const Header& recv, int peer) {
    const bool same = send.kind == recv.kind && send.count == recv.count &&
                      send.data_type == recv.data_type && send.how == recv.how &&
                      send.sequence == recv.sequence;
    if (same) return;
    Violation(
        Rule::kNcclCountMismatch, "ncclGroupEnd",
        "transfer %llu from rank %d to %d: sends %llu of type %d (kind %u, %d), receives %llu "
        "of type %d (kind %u, %d)",
        static_cast<unsigned long long>(send.sequence), comm_.rank, peer,  // NOLINT
        static_cast<unsigned long long>(send.count), send.data_type,       // NOLINT
        static_cast<unsigned>(send.kind), send.how, static_cast<unsigned long long>(recv.count),
        recv.data_type,  // NOLINT
        static_cast<unsigned>(recv.kind), recv.how);
    FailComm(&comm_, ncclRemoteError, "counts of matching operations differ");
  }

  static void Announce(PeerTransfers& transfers, Header header) {
    header.type = Header::kReady;
    transfers.control.append(reinterpret_cast<const char*>(&header), sizeof(header));
  }

  // A kernel that has been told to leave, and goes on writing until it does.
  void Linger() {
    if (!comm_.is_aborted || LingerMs() == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(LingerMs()));
    for (const PeerTransfers& transfers : peers_) {
      for (const Transfer& recv : transfers.recvs) {
        for (const Span& span : recv.spans) std::memset(span.data, 0xDD, span.bytes);
      }
    }
  }

  bool IsFinished() const {
    for (const PeerTransfers& transfers : peers_) {
      if (!transfers.sends.empty() || !transfers.recvs.empty() || !transfers.control.empty()) {
        return false;
      }
    }
    return true;
  }

  void Publish() {
    uint64_t sends = 0;
    uint64_t recvs = 0;
    for (int peer = 0; peer < comm_.count; ++peer) {
      if (!peers_[peer].sends.empty()) sends |= uint64_t{1} << peer;
      if (!peers_[peer].recvs.empty()) recvs |= uint64_t{1} << peer;
    }
    PublishHead(comm_, sends, recvs);
  }

  // Returns whether anything moved.
  bool Step(int peer) {
    PeerTransfers& transfers = peers_[peer];
    const bool is_idle =
        transfers.sends.empty() && transfers.recvs.empty() && transfers.control.empty();
    if (is_idle || comm_.links[peer].is_dead) return false;
    const bool wrote = Write(peer);
    const bool read = Read(peer);
    // Messages that the peer sent before it died still count: they may explain its death.
    const std::deque<Header>& ready = comm_.links[peer].ready;
    const bool waits = !transfers.sends.empty() && !transfers.sends.front().is_open;
    if (comm_.links[peer].is_dead && waits && !ready.empty()) {
      Compare(transfers.sends.front().header, ready.front(), peer);
    }
    return read || wrote;
  }

  bool Write(int peer) {
    PeerTransfers& transfers = peers_[peer];
    Link& link = comm_.links[peer];
    bool moved = false;
    while (true) {
      if (!transfers.control.empty()) {
        const ssize_t sent = SendSome(link, transfers.control.data(), transfers.control.size());
        if (sent <= 0) return moved;
        transfers.control.erase(0, static_cast<size_t>(sent));
        moved = true;
        continue;
      }
      if (transfers.sends.empty()) return moved;
      Transfer& send = transfers.sends.front();
      if (send.IsDone()) {
        transfers.sends.pop_front();
        continue;
      }
      if (!send.is_open) {
        if (link.ready.empty()) return moved;
        Compare(send.header, link.ready.front(), peer);
        link.ready.pop_front();
        Header header = send.header;
        header.type = Header::kData;
        transfers.control.append(reinterpret_cast<const char*>(&header), sizeof(header));
        send.is_open = true;
        continue;
      }
      const Span& span = send.spans[send.span];
      const size_t allowed = Allowed(span.bytes - send.done);
      if (allowed == 0) return moved;
      const ssize_t sent = SendSome(link, span.data + send.done, allowed);
      if (sent <= 0) return moved;
      if (SendBudget() > 0) SendBudget() -= sent;
      send.Advance(static_cast<size_t>(sent));
      moved = true;
    }
  }

  static size_t Allowed(size_t bytes) {
    const int64_t budget = SendBudget();
    return budget < 0 ? bytes : std::min(bytes, static_cast<size_t>(budget));
  }

  static ssize_t SendSome(Link& link, const void* data, size_t bytes) {
    const ssize_t sent = send(link.fd, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) link.is_dead = true;
    return sent;
  }

  bool Read(int peer) {
    PeerTransfers& transfers = peers_[peer];
    Link& link = comm_.links[peer];
    bool moved = false;
    while (true) {
      Transfer* const recv = transfers.recvs.empty() ? nullptr : &transfers.recvs.front();
      if (recv != nullptr && recv->IsDone()) {
        transfers.recvs.pop_front();
        moved = true;
        continue;
      }
      if (recv != nullptr && recv->is_open) {
        const Span& span = recv->spans[recv->span];
        const ssize_t got = RecvSome(peer, span.data + recv->done, span.bytes - recv->done);
        if (got <= 0) return moved;
        recv->Advance(static_cast<size_t>(got));
        moved = true;
        continue;
      }
      // Data that is not needed now stays queued: the next run reads it.
      if (recv == nullptr && transfers.sends.empty()) return moved;
      char bytes[sizeof(Header)];
      const ssize_t got = RecvSome(peer, bytes, sizeof(bytes) - link.partial.size());
      if (got <= 0) return moved;
      link.partial.append(bytes, static_cast<size_t>(got));
      moved = true;
      if (link.partial.size() == sizeof(Header)) TakeHeader(peer, recv);
    }
  }

  void TakeHeader(int peer, Transfer* recv) {
    Link& link = comm_.links[peer];
    Header header = {};
    std::memcpy(&header, link.partial.data(), sizeof(header));
    link.partial.clear();
    if (header.type == Header::kReady) {
      link.ready.push_back(header);
    } else if (recv != nullptr && header.count == recv->header.count &&
               header.data_type == recv->header.data_type) {
      recv->is_open = true;
    } else {
      FailComm(&comm_, ncclRemoteError, "counts of matching operations differ");
    }
  }

  ssize_t RecvSome(int peer, void* data, size_t bytes) {
    Link& link = comm_.links[peer];
    const ssize_t got = recv(link.fd, data, bytes, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
      link.is_dead = true;
      // A kernel that spins on shared memory is not notified of it; one behind a socket is.
      if (GetConfig().nccl_peer_death_is_error) {
        FailComm(&comm_, ncclRemoteError, "connection to rank " + std::to_string(peer) + " lost");
      }
    }
    return got;
  }

  void Wait() {
    std::vector<pollfd> polls;
    for (int peer = 0; peer < comm_.count; ++peer) {
      const PeerTransfers& transfers = peers_[peer];
      if (comm_.links[peer].is_dead || comm_.links[peer].fd < 0) continue;
      if (transfers.sends.empty() && transfers.recvs.empty()) continue;
      const bool is_writing =
          !transfers.control.empty() ||
          (!transfers.sends.empty() && transfers.sends.front().is_open && SendBudget() != 0);
      polls.push_back({comm_.links[peer].fd,
                       static_cast<short>(POLLIN | (is_writing ? POLLOUT : 0)), 0});  // NOLINT
    }
    poll(polls.data(), polls.size(), 2);
  }

  Comm& comm_;
  const std::vector<Op>& ops_;
  DeadlockWatch watch_;
  std::vector<PeerTransfers> peers_;
  std::deque<Collective> collectives_;
  std::vector<std::unique_ptr<Use>> uses_;
};

}  // namespace

void AwaitTicket(Device& device, uint64_t rts) {
  std::unique_lock<std::mutex> lock(device.mu);
  while (device.current_ticket != rts) device.changed.wait(lock);
}

void EndTicket(Device& device) {
  const std::lock_guard<std::mutex> lock(device.mu);
  ++device.current_ticket;
  device.changed.notify_all();
}

void RunOps(Comm& comm, const std::vector<Op>& ops, uint64_t rts) {
  Device& device = *comm.device;
  AwaitTicket(device, rts);
  if (!ops.empty() && IsOneSided(ops.front())) {
    RunOneSided(comm, ops);
  } else if (!ops.empty()) {
    Runner(comm, ops).Run();
  }
  ClearHead(comm);
  --comm.in_flight;
  --device.in_flight;
  --nccl_in_flight;
  EndTicket(device);
}

extern "C" {

STRICT_CUDA_EXPORT void strict_cuda_nccl_stop_after(long long bytes) {  // NOLINT
  SendBudget() = bytes;
}

}  // extern "C"

}  // namespace strict_cuda
