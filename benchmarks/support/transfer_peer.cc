// SPDX-License-Identifier: Apache-2.0
// Forking, echoing, and counting CPU time.
#include "benchmarks/support/transfer_peer.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "node/endpoint_record.h"
#include "tensor/memory_segment.h"

namespace ferry::bench {
namespace {

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "exchange bench: %s\n", status.ToString().c_str());
  std::_Exit(1);
}

void WriteAll(int fd, const void* data, size_t bytes) {
  if (write(fd, data, bytes) != static_cast<ssize_t>(bytes)) std::_Exit(0);
}

void ReadAll(int fd, void* data, size_t bytes) {
  auto* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = read(fd, to, bytes);
    // The other process has ended, and with it the benchmark.
    if (got <= 0) std::_Exit(0);
    to += got;
    bytes -= static_cast<size_t>(got);
  }
}

void SendText(int fd, const std::string& text) {
  const uint64_t size = text.size();
  WriteAll(fd, &size, sizeof(size));
  WriteAll(fd, text.data(), text.size());
}

std::string ReceiveText(int fd) {
  uint64_t size = 0;
  ReadAll(fd, &size, sizeof(size));
  std::string text(size, '\0');
  ReadAll(fd, text.data(), size);
  return text;
}

std::string DeviceOf(int node) {
  return absl::StrCat("/job:worker/replica:0/task:", node, "/device:CPU:0");
}

std::unique_ptr<TransferEngine> StartNode(int node, int socket,
                                          const TransferPeer::Options& options) {
  TransferEngineOptions engine;
  engine.require_transport = options.transport;
  engine.spin = options.spin;
  engine.listen = "127.0.0.1:0";
  engine.token = "bench";
  engine.transports.tcp.connections = options.tcp_connections;
  engine.arena.budget_bytes = size_t{12} << 30;
  if (options.segment_bytes > 0) engine.arena.segment_bytes = options.segment_bytes;
  Endpoint self;
  self.peer = {node, 100u + static_cast<unsigned>(node)};
  self.boot_id = "here";
  auto other = std::make_shared<Endpoint>();
  auto started = TransferEngine::Start(
      engine, self, [other](int32_t, ResolveCallback done) { std::move(done)(*other); });
  Check(started.status());
  SendText(socket, EncodeEndpoint((*started)->self()));
  auto peer = DecodeEndpoint(ReceiveText(socket), 1 - node);
  Check(peer.status());
  *other = *std::move(peer);
  return *std::move(started);
}

std::shared_ptr<RemoteRendezvous> OpenStep(TransferEngine& engine, int64_t id) {
  auto step = engine.rendezvous().Find(id);
  Check(step.status());
  Check((*step)->Initialize(engine.task()));
  return *std::move(step);
}

void Touch(const Tensor& tensor) {
  const auto* bytes = static_cast<const volatile char*>(tensor.data());
  for (size_t i = 0; i < tensor.bytes(); i += 4096) bytes[i];
}

void Echo(TransferEngine& engine, const EchoCommand& command) {
  const RendezvousKey ping = TransferPeer::KeyFrom(0, 1, "ping");
  const RendezvousKey pong = TransferPeer::KeyFrom(1, 0, "pong");
  const auto step = OpenStep(engine, command.step_id);
  const Tensor answer = ArenaTensor(engine, command.short_answers ? 8 : command.bytes);
  const int window = command.window;
  // Receives are posted in batches, ahead of the sends, as those of a step are. Two batches: one is
  // open while the other is answered.
  const int batch = std::max(window, command.into ? 1 : kBatch);
  const int depth = 2 * batch;
  std::vector<PostedRecv> posted(static_cast<size_t>(depth));
  std::vector<Tensor> buffers(static_cast<size_t>(depth));
  for (int i = 0; i < depth; ++i) {
    if (command.into) buffers[i] = ArenaTensor(engine, command.bytes);
    posted[i].Post(*step, ping, buffers[i], engine.loop());
  }
  int since_answer = 0;
  for (int next = 0;; next = (next + 1) % depth) {
    PostedRecv& each = posted[next];
    each.Wait(engine.loop());
    if (command.touches && !each.is_dead()) Touch(each.tensor());
    // The end.
    if (each.is_dead()) {
      step->StartAbort(absl::CancelledError("over"));
      return;
    }
    each.Drop();
    if (++since_answer == window) {
      since_answer = 0;
      Check(step->Send(pong, answer));
    }
    if ((next + 1) % batch != 0) continue;
    for (int i = next + 1 - batch; i <= next; ++i) {
      posted[i].Post(*step, ping, buffers[i], engine.loop());
    }
  }
}

constexpr char kRawAnswer[8] = {};

// Ends of connections for floors.
struct FloorSockets {
  int tcp = -1;
  int unix_socket = -1;
  std::vector<int> streams;
};

[[noreturn]] void RunChild(int socket, const FloorSockets& floors, SmallTensorsPage& page,
                           const TransferPeer::Options& options) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (options.pin) PinTo(options.one_core ? 0 : 1);
  const std::unique_ptr<TransferEngine> engine = StartNode(1, socket, options);
  std::vector<char> raw_data;
  while (true) {
    EchoCommand command;
    ReadAll(socket, &command, sizeof(command));
    if (command.raw_tcp_rounds > 0) {
      char bytes[8];
      for (int i = 0; i < command.raw_tcp_rounds; ++i) {
        ReceiveSpinning(floors.tcp, bytes, sizeof(bytes));
        WriteAll(floors.tcp, bytes, sizeof(bytes));
      }
      continue;
    }
    if (command.raw_descriptor_rounds > 0) {
      for (int i = 0; i < command.raw_descriptor_rounds; ++i) {
        AnswerDescriptor(floors.unix_socket, command.bytes, command.raw_checks);
      }
      continue;
    }
    if (command.raw_streams) {
      raw_data.resize(command.bytes);
      WriteAll(socket, "", 1);
      ReceiveStreams(floors.streams, raw_data.data(), raw_data.size());
      continue;
    }
    if (command.raw_batches > 0) {
      raw_data.resize(command.bytes);
      for (int i = 1; i <= command.raw_batches; ++i) {
        ReceiveSpinning(floors.tcp, raw_data.data(), raw_data.size());
        if (i % command.window == 0) WriteAll(floors.tcp, kRawAnswer, sizeof(kRawAnswer));
      }
      continue;
    }
    if (command.small.values > 0) {
      command.small.step_id = command.step_id;
      ReceiveSmallTensors(*engine, page, command.small);
      continue;
    }
    if (command.window == -1) {
      engine->rendezvous().Cleanup(command.step_id);
      WriteAll(socket, "", 1);
      continue;
    }
    Echo(*engine, command);
  }
}

}  // namespace

RendezvousKey TransferPeer::KeyFrom(int from, int to, absl::string_view name) {
  return *RendezvousKey::Parse(
      RendezvousKey::Text(DeviceOf(from), 100u + static_cast<unsigned>(from), DeviceOf(to), name));
}

void PinTo(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int count = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  for (int i = 0; i < count; ++i) {
    if (core < 0 || i == core % count) CPU_SET(i, &set);
  }
  sched_setaffinity(0, sizeof(set), &set);
}

Tensor ArenaTensor(TransferEngine& engine, size_t bytes) {
  auto buffer = engine.arena().Allocate(bytes);
  Check(buffer.status());
  std::memset((*buffer)->data(), 1, bytes);
  return *Tensor::Create(DataType::kUint8, *Shape::Create({static_cast<int64_t>(bytes)}),
                         *std::move(buffer));
}

void PostedRecv::Post(RemoteRendezvous& step, const RendezvousKey& key, const Tensor& destination,
                      EventLoop& loop) {
  is_done_.store(false, std::memory_order_relaxed);
  RecvArgs args;
  args.destination = destination;
  step.RecvAsync(key, std::move(args), [this, &loop](absl::Status status, Received received) {
    status_ = std::move(status);
    tensor_ = std::move(received.tensor);
    is_dead_ = received.is_dead;
    is_done_.store(true, std::memory_order_release);
    loop.Wake();
  });
}

void PostedRecv::Wait(EventLoop& loop) {
  if (is_done_.load(std::memory_order_acquire)) return Check(status_);
  if (!loop.WaitUntil([this] { return is_done_.load(std::memory_order_acquire); },
                      SteadyClock().Now() + absl::Seconds(60))) {
    Check(absl::DeadlineExceededError("the other process does not answer"));
  }
  Check(status_);
}

TransferPeer::TransferPeer(const Options& options) {
  int sockets[2];
  FERRY_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
  const TcpPair raw = ConnectedTcp();
  int raw_unix[2];
  FERRY_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, raw_unix) == 0);
  std::vector<int> streams_there;
  for (int i = 0; i < options.tcp_connections; ++i) {
    const TcpPair stream = ConnectedTcp();
    raw_streams_.push_back(stream.here);
    streams_there.push_back(stream.there);
  }
  void* const page = mmap(nullptr, sizeof(SmallTensorsPage), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  FERRY_CHECK(page != MAP_FAILED);
  page_ = static_cast<SmallTensorsPage*>(page);
  child_ = fork();
  FERRY_CHECK(child_ >= 0);
  if (child_ == 0) {
    close(sockets[0]);
    close(raw.here);
    close(raw_unix[0]);
    for (const int fd : raw_streams_) close(fd);
    RunChild(sockets[1], {raw.there, raw_unix[1], streams_there}, *page_, options);
  }
  for (const int fd : streams_there) close(fd);
  close(raw.there);
  close(raw_unix[1]);
  raw_tcp_ = raw.here;
  raw_unix_ = raw_unix[0];
  close(sockets[1]);
  socket_ = sockets[0];
  if (options.pin) PinTo(0);
  engine_ = StartNode(0, socket_, options);
  ping_ = std::make_unique<RendezvousKey>(KeyFrom(0, 1, "ping"));
  pong_ = std::make_unique<RendezvousKey>(KeyFrom(1, 0, "pong"));
}

TransferPeer::~TransferPeer() {
  kill(child_, SIGKILL);
  waitpid(child_, nullptr, 0);
  engine_.reset();
  close(raw_tcp_);
  close(raw_unix_);
  for (const int fd : raw_streams_) close(fd);
  close(socket_);
  munmap(page_, sizeof(SmallTensorsPage));
  PinTo(-1);
}

std::shared_ptr<RemoteRendezvous> TransferPeer::Begin(EchoCommand command) {
  command.step_id = ++last_step_;
  step_ = OpenStep(*engine_, command.step_id);
  WriteAll(socket_, &command, sizeof(command));
  return step_;
}

void TransferPeer::End() {
  Check(step_->Send(*ping_, Tensor(), /*is_dead=*/true));
  EchoCommand over;
  over.window = -1;
  over.step_id = last_step_;
  // Read when the echo has returned.
  WriteAll(socket_, &over, sizeof(over));
  char byte;
  // This thread handles incoming data meanwhile.
  while (recv(socket_, &byte, 1, MSG_DONTWAIT) != 1) {
    engine_->loop().WaitUntil([] { return false; }, SteadyClock().Now() + absl::Microseconds(100));
  }
  engine_->rendezvous().Cleanup(last_step_);
  step_ = nullptr;
}

std::vector<double> TransferPeer::RawTcp(int rounds) {
  EchoCommand command;
  command.raw_tcp_rounds = rounds;
  WriteAll(socket_, &command, sizeof(command));
  char bytes[8] = {};
  std::vector<double> samples;
  for (int i = 0; i < rounds; ++i) {
    const absl::Time start = SteadyClock().Now();
    WriteAll(raw_tcp_, bytes, sizeof(bytes));
    ReceiveSpinning(raw_tcp_, bytes, sizeof(bytes));
    samples.push_back(absl::ToDoubleSeconds(SteadyClock().Now() - start));
  }
  return samples;
}

std::vector<double> TransferPeer::RawDescriptors(int rounds, size_t bytes, bool checks) {
  EchoCommand command;
  command.raw_descriptor_rounds = rounds;
  command.raw_checks = checks;
  command.bytes = bytes;
  WriteAll(socket_, &command, sizeof(command));
  std::vector<double> samples;
  for (int i = 0; i < rounds; ++i) {
    const auto memory = MemorySegment::Create(bytes, {});
    Check(memory.status());
    samples.push_back(HandOverDescriptor(raw_unix_, memory->fd()));
  }
  return samples;
}

double TransferPeer::RawStreams(size_t bytes) {
  raw_data_.resize(bytes, 1);
  EchoCommand command;
  command.raw_streams = true;
  command.bytes = bytes;
  WriteAll(socket_, &command, sizeof(command));
  char byte;
  ReadAll(socket_, &byte, 1);
  const absl::Time start = SteadyClock().Now();
  SendStreams(raw_streams_, raw_data_.data(), bytes);
  return absl::ToDoubleSeconds(SteadyClock().Now() - start);
}

double TransferPeer::RawBatches(int batches, size_t bytes, int window) {
  raw_data_.resize(std::max(raw_data_.size(), bytes), 1);
  EchoCommand command;
  command.raw_batches = batches;
  command.bytes = bytes;
  command.window = window;
  WriteAll(socket_, &command, sizeof(command));
  char answer[sizeof(kRawAnswer)];
  const absl::Time start = SteadyClock().Now();
  for (int i = 1; i <= batches; ++i) {
    WriteAll(raw_tcp_, raw_data_.data(), bytes);
    if (i % window == 0 && i > window) ReceiveSpinning(raw_tcp_, answer, sizeof(answer));
  }
  ReceiveSpinning(raw_tcp_, answer, sizeof(answer));
  return absl::ToDoubleSeconds(SteadyClock().Now() - start);
}

double TransferPeer::CpuSeconds() const {
  clockid_t child = 0;
  FERRY_CHECK(clock_getcpuclockid(child_, &child) == 0);
  double seconds = 0;
  for (const clockid_t clock : {child, CLOCK_PROCESS_CPUTIME_ID}) {
    timespec time = {};
    FERRY_CHECK(clock_gettime(clock, &time) == 0);
    seconds += static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
  }
  return seconds;
}

int64_t TransferPeer::PageFaults() const {
  int64_t faults = 0;
  for (const pid_t process : {child_, getpid()}) {
    std::FILE* const file = std::fopen(absl::StrCat("/proc/", process, "/stat").c_str(), "r");
    FERRY_CHECK(file != nullptr);
    // Source: proc(5); the tenth field. The second has no blanks here.
    long long count = 0;
    FERRY_CHECK(std::fscanf(file, "%*s %*s %*s %*s %*s %*s %*s %*s %*s %lld", &count) == 1);
    std::fclose(file);
    faults += count;
  }
  return faults;
}

}  // namespace ferry::bench
