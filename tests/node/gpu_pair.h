// SPDX-License-Identifier: Apache-2.0
// Two processes with GPUs, mostly of the fake driver, each of which runs a part of a test.
#ifndef FERRY_TESTS_NODE_GPU_PAIR_H_
#define FERRY_TESTS_NODE_GPU_PAIR_H_

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "gpu/cuda/ready_tensor.h"
#include "gpu/shared_library.h"
#include "node/endpoint_record.h"
#include "tests/node/directory_store.h"
#include "tests/node/engine_pair.h"
#include "tests/node/peer_process.h"
#include "tests/support/real_gpu.h"
#include "transport/transports.h"

namespace ferry {

// At the beginning of a test.
#define NEEDS_TWO_GPUS() \
  if (*WhyNotTwoGpus() != '\0') GTEST_SKIP() << WhyNotTwoGpus()

// One of the two, in its own process.
class GpuPeer final {
 public:
  GpuPeer(int node, int fd, const TransferEngineOptions& options,
          std::string boot_id = "one machine", NcclJob nccl = {})
      : channel_(fd),
        end_(directory_, node, options, 1000 + node, std::move(boot_id), std::move(nccl)) {
    channel_.Say(EncodeEndpoint(end_.engine->self()));
    other_ = *DecodeEndpoint(channel_.Hear(), node == kHere ? kPeer : kHere);
    directory_.Publish(other_);
  }

  TransferEngine& transfer_engine() { return *end_.engine; }
  // The process stays, its transfer engine ends.
  void Leave() { end_.engine.reset(); }
  // The path of a tensor from a GPU of the other process to one of this one, and why.
  std::string Explain(int from, int to, size_t bytes) {
    const auto path = transfer_engine().PathFrom(
        other_, bytes, /*is_in_arena=*/false, {MemorySpace::kCuda, from}, {MemorySpace::kCuda, to});
    return path.ok() ? ferry::Explain(*path) : std::string(path.status().message());
  }
  Gpus& gpus() { return *transfer_engine().gpus(); }
  Gpu& gpu(int ordinal) {
    const absl::StatusOr<Gpu*> gpu = gpus().Get(ordinal);
    FERRY_CHECK(gpu.ok());
    return **gpu;
  }
  const Endpoint& PeerEndpoint() const { return other_; }
  // Work enqueued on the stream from now on waits until the result is called.
  std::function<void()> PauseDetector(cuda::Stream stream) {
    struct Gate {
      absl::Mutex mu;
      bool is_open = false;
    };
    auto* const gate = new Gate();  // the stream may need it forever
    const auto library = SharedLibrary::Open("", "FERRY_CUDA_LIBRARY");
    FERRY_CHECK(library.ok());
    int (*launch)(cuda::Stream, void (*)(void*), void*) = nullptr;
    FERRY_CHECK(library->Resolve("cuLaunchHostFunc", *&launch).ok());
    const cuda::ScopedCurrent current(*gpu(0).device);
    FERRY_CHECK(launch(
                    stream,
                    [](void* data) {
                      auto* const held = static_cast<Gate*>(data);
                      absl::MutexLock lock(&held->mu);
                      held->mu.Await(absl::Condition(&held->is_open));
                    },
                    gate) == 0);
    return [gate] {
      absl::MutexLock lock(&gate->mu);
      gate->is_open = true;
    };
  }
  // A barrier of both processes.
  void Meet() const {
    channel_.Say("here");
    FERRY_CHECK(channel_.Hear() == "here");
  }

  // From node 0 to node 1.
  static RendezvousKey Key(const std::string& name, const std::string& from,
                           const std::string& to) {
    return *RendezvousKey::Parse(
        RendezvousKey::Text(absl::StrCat("/job:worker/replica:0/task:0/device:", from), 1000,
                            absl::StrCat("/job:worker/replica:0/task:1/device:", to), name));
  }
  class Step Open(int64_t id = 1) {
    auto step = transfer_engine().OpenStep(id);
    FERRY_CHECK(step.ok());
    return *std::move(step);
  }

  // A tensor of bytes that no other has, in host memory; that are elements of `dtype`.
  static Tensor Pattern(size_t bytes, uint32_t seed, DataType dtype = DataType::kUint8) {
    Tensor tensor =
        *Tensor::Allocate(DataType::kUint8, *Shape::Create({static_cast<int64_t>(bytes)}));
    FillPattern(tensor, seed);
    auto* const first = static_cast<uint8_t*>(tensor.mutable_data());
    for (size_t i = 0; dtype == DataType::kBool && i < bytes; ++i) first[i] &= 1;
    return tensor;
  }
  // Enqueues the pattern's copy into `to`, a tensor in a GPU's memory.
  void Write(const Tensor& to, const Tensor& pattern, cuda::Stream stream) {
    Gpu& device = gpu(to.location().ordinal);
    const cuda::ScopedCurrent current(*device.device);
    const auto result = device.device->table().copy_to_device_async(
        cuda::AsDevicePointer(to.data()), pattern.data(), pattern.bytes(), stream);
    FERRY_CHECK(result == cuda::kSuccess);
  }
  // Enqueues the copy out of it, and waits for that.
  std::vector<unsigned char> Read(const Tensor& from, cuda::Stream stream) {
    Gpu& device = gpu(from.location().ordinal);
    const cuda::ScopedCurrent current(*device.device);
    std::vector<unsigned char> bytes(from.bytes());
    const cuda::CudaTable& table = device.device->table();
    FERRY_CHECK(table.copy_to_host_async(bytes.data(), cuda::AsDevicePointer(from.data()),
                                         bytes.size(), stream) == cuda::kSuccess);
    FERRY_CHECK(table.stream_synchronize(stream) == cuda::kSuccess);
    return bytes;
  }
  std::unique_ptr<cuda::CudaStream> NewStream(int ordinal) {
    auto stream = cuda::CudaStream::Create(gpu(ordinal).device);
    FERRY_CHECK(stream.ok());
    return *std::move(stream);
  }
  // The fake driver's.
  template <typename Function>
  Function Control(const char* name) {
    const auto library = SharedLibrary::Open("", "FERRY_CUDA_LIBRARY");
    FERRY_CHECK(library.ok());
    std::remove_pointer_t<Function>* function = nullptr;
    FERRY_CHECK(library->Resolve(name, function).ok());
    return function;
  }

 private:
  const Channel channel_;
  Endpoint other_;
  Directory directory_;
  EngineEnd end_;
};

inline bool Holds(const std::vector<unsigned char>& bytes, const Tensor& pattern) {
  return bytes.size() == pattern.bytes() &&
         std::memcmp(bytes.data(), pattern.data(), bytes.size()) == 0;
}

struct GpuPairOptions {
  TransferEngineOptions transfer;
  // The consumer's GpusOptions::waits_on_device, if it differs from the producer's.
  std::optional<bool> consumer_waits_on_device = std::nullopt;
  // STRICT_CUDA_... of both processes.
  std::map<std::string, std::string> environment;
  // For one process alone.
  std::map<std::string, std::string> producer_environment = {};
  std::map<std::string, std::string> consumer_environment = {};
  // In the consumer's process, before anything else; false: the machine does not let it.
  std::function<bool()> prepare_consumer = {};
  bool consumer_has_gpus = true;
  // They appear to be on two machines, and NCCL's ids are passed through a folder.
  bool is_apart = false;
  bool producer_dies = false;
  bool consumer_dies = false;
};

// Node 0 runs `producer` and node 1 `consumer`, each in a process of its own, whose failures are
// this test's. Returns how many were killed, as the options allow. REQUIRES: this process has one
// thread.
inline int RunGpuPair(const GpuPairOptions& options, const std::function<void(GpuPeer&)>& producer,
                      const std::function<void(GpuPeer&)>& consumer) {
  int sockets[2];
  FERRY_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
  std::string session = absl::StrCat(testing::TempDir(), "/ferry_gpu_pair_XXXXXX");
  FERRY_CHECK(mkdtemp(session.data()) != nullptr);
  pid_t children[2];
  for (int node = 0; node < 2; ++node) {
    children[node] = fork();
    FERRY_CHECK(children[node] >= 0);
    if (children[node] != 0) continue;
    close(sockets[1 - node]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(60);
    if (!OnRealGpu()) {
      setenv("STRICT_CUDA_SESSION", session.c_str(), 1);
      for (const auto& name : {"FERRY_CUDA_LIBRARY", "FERRY_NVML_LIBRARY", "FERRY_NCCL_LIBRARY"}) {
        setenv(name, STRICT_CUDA_LIBRARY, 1);
      }
    }
    for (const auto& [name, value] : options.environment) setenv(name.c_str(), value.c_str(), 1);
    const auto& own = node == 0 ? options.producer_environment : options.consumer_environment;
    for (const auto& [name, value] : own) setenv(name.c_str(), value.c_str(), 1);
    if (node == 1 && options.prepare_consumer) FERRY_CHECK(options.prepare_consumer());
    {
      NcclJob nccl;
      std::string boot_id = "one machine";
      if (options.is_apart) {
        boot_id = absl::StrCat("machine ", node);
        nccl.store = DirectoryStores(absl::StrCat(session, "/store"));
        nccl.device_of = [](int32_t of, int ordinal) { return DeviceId(of * 16 + ordinal); };
      }
      TransferEngineOptions transfer = options.transfer;
      if (node == 1) {
        transfer.gpus.waits_on_device =
            options.consumer_waits_on_device.value_or(transfer.gpus.waits_on_device);
      }
      GpuPeer peer(node, sockets[node], std::move(transfer), std::move(boot_id), std::move(nccl));
      FERRY_CHECK((peer.transfer_engine().gpus() != nullptr) ==
                  (node == 0 || options.consumer_has_gpus));
      (node == 0 ? producer : consumer)(peer);
    }
    std::fflush(nullptr);
    std::_Exit(testing::Test::HasFailure() ? 1 : 0);
  }
  close(sockets[0]);
  close(sockets[1]);
  int killed = 0;
  for (int node = 0; node < 2; ++node) {
    int status = 0;
    waitpid(children[node], &status, 0);
    const bool may_die = node == 0 ? options.producer_dies : options.consumer_dies;
    if (may_die && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
      ++killed;
      continue;
    }
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << (node == 0 ? "the producer" : "the consumer") << " ended with status " << status;
  }
  std::filesystem::remove_all(session);
  return killed;
}

// The timeout of a test's waits, and the size of most tensors.
inline constexpr absl::Duration kTimeout = absl::Seconds(20);
inline constexpr size_t kBytes = 3 * 1000 * 1000 + 7;

inline Tensor OnGpu(GpuPeer& peer, int ordinal, size_t bytes = kBytes) {
  return *peer.gpus().Allocate(ordinal, DataType::kUint8,
                               *Shape::Create({static_cast<int64_t>(bytes)}));
}

inline RendezvousKey KeyOf(int index, const std::string& to = "GPU:0") {
  return GpuPeer::Key(absl::StrCat("t", index), "GPU:0", to);
}

}  // namespace ferry

#endif  // FERRY_TESTS_NODE_GPU_PAIR_H_
