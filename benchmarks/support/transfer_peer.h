// SPDX-License-Identifier: Apache-2.0
// Two processes that exchange tensors, and their baselines.
#ifndef FERRY_BENCHMARKS_SUPPORT_TRANSFER_PEER_H_
#define FERRY_BENCHMARKS_SUPPORT_TRANSFER_PEER_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

#include "benchmarks/support/small_tensors.h"
#include "node/transfer_engine.h"

namespace ferry::bench {

// Receives that are posted at a time.
inline constexpr int kBatch = 1;

// The other process's behaviour until it is stopped.
struct EchoCommand {
  int64_t step_id = 0;
  // The size of its answers; of type uint8.
  uint64_t bytes = 0;
  // Its receives have a buffer of their own.
  bool into = false;
  // Its answers are always 8 bytes.
  bool short_answers = false;
  // Values that it receives before it answers.
  int window = 1;
  // Reads a byte of each page of a received tensor.
  bool touches = false;
  // Not 0: so many rounds of RawTcp, or of RawDescriptors, instead.
  int raw_tcp_rounds = 0;
  int raw_descriptor_rounds = 0;
  bool raw_checks = false;
  // A round of RawStreams.
  bool raw_streams = false;
  // Not 0: so many batches of RawBatches, of `bytes` each, `window` of them until an answer.
  int raw_batches = 0;
  // With values: these instead.
  SmallTensors small;
};

// A child process with a TransferEngine of its own (node 1), and this process's (node 0). Each
// sends the values that the other requests. Forks: construct it before there are threads.
class TransferPeer {
 public:
  struct Options {
    std::string transport;
    absl::Duration spin = absl::Microseconds(20);
    int tcp_connections = 2;
    // A core for each process, as UCX's and MPI's benchmarks have it. Without it the kernel puts
    // both on one, and their wake-ups cost nothing.
    bool pin = true;
    // Both processes on one core.
    bool one_core = false;
    // HostArenaOptions::segment_bytes; 0: as it is.
    size_t segment_bytes = 0;
  };
  explicit TransferPeer(const Options& options);
  ~TransferPeer();

  TransferPeer(const TransferPeer&) = delete;
  TransferPeer& operator=(const TransferPeer&) = delete;

  TransferEngine& transfer_engine() { return *engine_; }
  // Begins a round of echoes in a step of its own.
  std::shared_ptr<RemoteRendezvous> Begin(EchoCommand command);
  // Ends it; the other process has stopped when it returns.
  void End();
  // Between the same two processes, on the same cores: seconds of round trips of 8 bytes over a TCP
  // connection of their own, spinning on non-blocking reads.
  std::vector<double> RawTcp(int rounds);
  // Returns that many times, in seconds, from passing a memfd of `bytes` that is unknown to the
  // other process until its report that it has mapped it; spinning, over a Unix socket. `checks`:
  // it checks the memfd's size and seals first.
  std::vector<double> RawDescriptors(int rounds, size_t bytes, bool checks);

  // Between the same two processes, over the connection of RawTcp: seconds until `batches` batches
  // of `bytes` have been answered, each sent by one call, `window` of them until an answer; two
  // windows are in flight. Both spin.
  double RawBatches(int batches, size_t bytes, int window);
  // For SmallTensorSender.
  SmallTensorsPage& small_tensors_page() { return *page_; }
  static RendezvousKey KeyFrom(int from, int to, absl::string_view name);

  // From here to there, and back.
  const RendezvousKey& ping() const { return *ping_; }
  const RendezvousKey& pong() const { return *pong_; }

  // Returns times, in seconds, of `bytes` over as many TCP connections of their own as
  // Options::tcp_connections, until answers on all of them; blocking.
  double RawStreams(size_t bytes);

  // For both processes so far: CPU time, and minor page faults.
  double CpuSeconds() const;
  int64_t PageFaults() const;

 private:
  pid_t child_ = -1;
  int socket_ = -1;
  int raw_tcp_ = -1;
  int raw_unix_ = -1;
  std::vector<int> raw_streams_;
  std::vector<char> raw_data_;
  // Mapped by both.
  SmallTensorsPage* page_ = nullptr;
  std::unique_ptr<TransferEngine> engine_;
  std::unique_ptr<RendezvousKey> ping_;
  std::unique_ptr<RendezvousKey> pong_;
  std::shared_ptr<RemoteRendezvous> step_;
  int64_t last_step_ = 0;
};

// Keeps this thread, and those that it starts, on a core; -1: on any.
void PinTo(int core);

// A receive that is posted early and waited for later; used again and again.
class PostedRecv {
 public:
  void Post(RemoteRendezvous& step, const RendezvousKey& key, const Tensor& destination,
            EventLoop& loop);
  // Waits on this thread. The tensor is dropped by the next Post, or Drop.
  void Wait(EventLoop& loop);
  Tensor& tensor() { return tensor_; }
  bool is_dead() const { return is_dead_; }
  void Drop() { tensor_ = Tensor(); }

 private:
  std::atomic<bool> is_done_{false};
  absl::Status status_;
  Tensor tensor_;
  bool is_dead_ = false;
};

Tensor ArenaTensor(TransferEngine& engine, size_t bytes);

// A descriptor through a Unix socket, spinning. Seconds until the other side has reported that it
// has mapped it; and that other side.
double HandOverDescriptor(int socket, int fd);
void AnswerDescriptor(int socket, size_t bytes, bool checks);

// --- Floors, each between this process and a child of its own ---

// Seconds of one direction, the median: a cache line that both spin on.
double SpinFloor();
// Seconds of a round trip through eventfds, sleeping.
double BlockingFloor();
// Two connected sockets over loopback, without Nagle's delay.
struct TcpPair {
  int here = -1;
  int there = -1;
};
TcpPair ConnectedTcp();
// Receives exactly that many bytes, spinning.
void ReceiveSpinning(int fd, char* to, size_t bytes);
// Blocking sockets, a thread for each, an equal part of the bytes on each, 256 KiB at a time; until
// the receiver has answered on each.
void SendStreams(absl::Span<const int> sockets, const char* from, size_t bytes);
void ReceiveStreams(absl::Span<const int> sockets, char* to, size_t bytes);
// Seconds of two threads that only copy, with non-temporal stores: the limit of memory.
double StreamedCopySeconds(void* to, const void* from, size_t bytes);

}  // namespace ferry::bench

#endif  // FERRY_BENCHMARKS_SUPPORT_TRANSFER_PEER_H_
