// SPDX-License-Identifier: Apache-2.0
// Machines, containers and drivers with restrictions: tensors arrive nonetheless, and the path
// names the reason for the detour.
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>
#include <fstream>
#include <optional>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"

#include "tests/node/gpu_pair.h"
#include "tests/support/try_out.h"
#include "tests/support/used_up_descriptors.h"
#include "transport/cuda_ipc/cuda_ipc_receiver.h"
#include "transport/cuda_ipc/cuda_ipc_transport.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

void SendOne(GpuPeer& peer, int index, const std::string& to) {
  const auto stream = peer.NewStream(0);
  Step step = peer.Open(index + 1);
  const Tensor tensor = *peer.gpus().Allocate(0, DataType::kUint8, *Shape::Create({kBytes}));
  const Tensor pattern = GpuPeer::Pattern(kBytes, static_cast<uint32_t>(index));
  peer.Write(tensor, pattern, stream->get());
  ASSERT_TRUE(step.Send(KeyOf(index, to), tensor, stream->get()).ok());
  const absl::Status closed = step.Close(kTimeout);
  EXPECT_TRUE(closed.ok()) << closed;
}

// Its path; the bytes must be right.
std::string ReceiveOne(GpuPeer& peer, int index, const std::string& to) {
  Step step = peer.Open(index + 1);
  const auto received = step.RecvValue(KeyOf(index, to), kTimeout);
  EXPECT_TRUE(received.ok()) << received.status();
  if (!received.ok()) return "";
  const Tensor pattern = GpuPeer::Pattern(kBytes, static_cast<uint32_t>(index));
  const Tensor& tensor = received->tensor;
  if (tensor.is_on_host()) {
    EXPECT_TRUE(IsEqual(tensor, pattern));
    return std::string(received->path);
  }
  const auto stream = peer.NewStream(tensor.location().ordinal);
  if (const auto ready = cuda::ReadyOf(tensor); ready != nullptr) {
    EXPECT_TRUE(
        ready->EnqueueWait(*peer.gpu(tensor.location().ordinal).device, stream->get()).ok());
  }
  EXPECT_TRUE(Holds(peer.Read(tensor, stream->get()), pattern));
  return std::string(received->path);
}

// One tensor from gpu:0 to `to`: how it arrives. The producer's error when cuda_ipc is required.
void ExpectPath(const GpuPairOptions& options, const std::string& to, const std::string& path) {
  RunGpuPair(
      options,
      [&](GpuPeer& peer) {
        SendOne(peer, 0, to);
        peer.Meet();
      },
      [&](GpuPeer& peer) {
        EXPECT_EQ(ReceiveOne(peer, 0, to), path);
        peer.Meet();
      });
}

void ExpectReason(GpuPairOptions options, const std::string& to, const std::string& reason) {
  options.transfer.require_transport = "cuda_ipc";
  RunGpuPair(
      options,
      [&](GpuPeer& peer) {
        Step step = peer.Open();
        const auto stream = peer.NewStream(0);
        const Tensor tensor = *peer.gpus().Allocate(0, DataType::kUint8, *Shape::Create({kBytes}));
        EXPECT_TRUE(step.Send(KeyOf(0, to), tensor, stream->get()).ok());
        peer.Meet();
      },
      [&](GpuPeer& peer) {
        Step step = peer.Open();
        const auto tensor = step.Recv(KeyOf(0, to), kTimeout);
        EXPECT_TRUE(absl::IsFailedPrecondition(tensor.status())) << tensor.status();
        EXPECT_THAT(std::string(tensor.status().message()), HasSubstr(reason));
        peer.Meet();
      });
}

TEST(GpuMachine, WithoutPeerAccess_IsStaged) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  const GpuPairOptions options = {.environment = {{"STRICT_CUDA_PEERS", "none"}}};
  ExpectPath(options, "GPU:1", "shm, staged");
  ExpectReason(options, "GPU:1", "no peer access");
}

// The same GPU is another number, or not there at all.
TEST(GpuMachine, ProcessesThatSeeDifferentGpus) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  const GpuPairOptions swapped = {.consumer_environment = {{"CUDA_VISIBLE_DEVICES", "1,0"}}};
  ExpectPath(swapped, "GPU:1", "cuda_ipc, view");
  ExpectPath(swapped, "GPU:0", "cuda_ipc, copy");
  const GpuPairOptions hidden = {.consumer_environment = {{"CUDA_VISIBLE_DEVICES", "1"}}};
  ExpectPath(hidden, "GPU:0", "cuda_ipc, copy");
}

// A process sees one instance. Two of one instance are as two of one GPU.
TEST(GpuMachine, BetweenMigInstances_IsStaged) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  GpuPairOptions options = {.environment = {{"STRICT_CUDA_MIG", "1"}}};
  ExpectPath(options, "GPU:0", "cuda_ipc, view");
  options.consumer_environment = {{"CUDA_VISIBLE_DEVICES", "1"}};
  ExpectPath(options, "GPU:0", "shm, staged");
  ExpectReason(options, "GPU:0", "no peer access");
}

TEST(GpuMachine, GpuInExclusiveModeOfAnotherProcess) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  const GpuPairOptions options = {.environment = {{"STRICT_CUDA_ATTRIBUTES", "20=3"}}};
  RunGpuPair(
      options,
      [](GpuPeer& peer) {
        peer.gpu(0);
        peer.Meet();
        Step step = peer.Open();
        const auto stream = peer.NewStream(0);
        const Tensor tensor = *peer.gpus().Allocate(0, DataType::kUint8, *Shape::Create({kBytes}));
        ASSERT_TRUE(step.Send(KeyOf(0, "GPU:0"), tensor, stream->get()).ok());
        peer.Meet();
        SendOne(peer, 1, "CPU:0");
        SendOne(peer, 2, "GPU:1");
        peer.Meet();
      },
      [](GpuPeer& peer) {
        peer.Meet();
        {
          Step step = peer.Open();
          const auto tensor = step.Recv(KeyOf(0, "GPU:0"), kTimeout);
          EXPECT_THAT(std::string(tensor.status().message()), HasSubstr("nvidia-smi -c DEFAULT"));
        }
        peer.Meet();
        EXPECT_EQ(ReceiveOne(peer, 1, "CPU:0"), "shm, staged");
        // This one is the consumer's own.
        EXPECT_EQ(ReceiveOne(peer, 2, "GPU:1"), "cuda_ipc, copy");
        peer.Meet();
      });
}

// As in gVisor and WSL, on either side.
TEST(GpuMachine, DriverWithoutIpc) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  const std::map<std::string, std::string> without = {
      {"FERRY_CUDA_LIBRARY", STRICT_CUDA_WITHOUT_IPC}};
  // Mapped memory needs only events, which the host waits for.
  ExpectPath({.producer_environment = without}, "GPU:0", "cuda_ipc, view");
  ExpectPath({.consumer_environment = without}, "GPU:0", "cuda_ipc, view");
}

TEST(GpuMachine, WithoutADriver_HostMemoryIsUsed) {
  NEEDS_FAKE_DRIVER("can play what this needs");
  RunGpuPair(
      {.consumer_environment = {{"STRICT_CUDA_FAIL", "cuInit:999"}}, .consumer_has_gpus = false},
      [](GpuPeer& peer) {
        SendOne(peer, 0, "CPU:0");
        peer.Meet();
      },
      [](GpuPeer& peer) {
        EXPECT_THAT(peer.transfer_engine().why_no_gpus(), HasSubstr("cuInit failed with code 999"));
        EXPECT_EQ(ReceiveOne(peer, 0, "CPU:0"), "shm, staged");
        EXPECT_THAT(peer.Explain(0, 0, kBytes), HasSubstr("this process uses no GPUs"));
        peer.Meet();
      });
}

TEST(GpuMachine, WithoutAUnixSocket_NoDescriptorsArePassed) {
  GpuPairOptions options;
  options.transfer.unix_socket = false;
  RunGpuPair(
      options,
      [](GpuPeer& peer) {
        SendOne(peer, 0, "GPU:0");
        peer.Meet();
      },
      [](GpuPeer& peer) {
        EXPECT_EQ(ReceiveOne(peer, 0, "GPU:0"), "tcp, staged");
        EXPECT_THAT(peer.Explain(0, 0, kBytes),
                    HasSubstr("not cuda_ipc: descriptors cannot be passed between them"));
        peer.Meet();
      });
}

std::string MapsOfThisProcess() {
  std::stringstream maps;
  maps << std::ifstream("/proc/self/maps").rdbuf();
  return maps.str();
}

// The result for such a process with a real driver is reported there, and not judged.
void JudgeOnFakeDriver(const std::function<void()>& body) {
  if (OnRealGpu()) GTEST_SKIP() << "not judged on a GPU; what was seen: " << TryOut(body);
  body();
}

// Docker has 64 MB of it, others none: nothing is ever put there.
void ExpectNothingInDevShm() {
  const auto expect_none = [] { EXPECT_THAT(MapsOfThisProcess(), Not(HasSubstr("/dev/shm"))); };
  RunGpuPair(
      {.prepare_consumer =
           [] {
             // Where the user has the right to unmount it, there is none at all.
             if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return true;
             return mount("none", "/dev/shm", "tmpfs", MS_RDONLY, "size=4k") == 0 || true;
           }},
      [&](GpuPeer& peer) {
        SendOne(peer, 0, "GPU:0");
        SendOne(peer, 1, "CPU:0");
        expect_none();
        peer.Meet();
      },
      [&](GpuPeer& peer) {
        EXPECT_EQ(ReceiveOne(peer, 0, "GPU:0"), "cuda_ipc, view");
        EXPECT_EQ(ReceiveOne(peer, 1, "CPU:0"), "shm, staged");
        expect_none();
        peer.Meet();
      });
}

TEST(GpuMachine, NothingNeedsDevShm) { JudgeOnFakeDriver(ExpectNothingInDevShm); }

// The rest of this process runs in a pid namespace of its own, and this one ends as that does.
bool EnterPidNamespace() {
  if (unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) return false;
  const pid_t child = fork();
  if (child == 0) return prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getpid() == 1;
  int status = 0;
  waitpid(child, &status, 0);
  std::_Exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
}

// Ferry's own memory is passed by descriptors, which are independent of pids.
TEST(GpuMachine, ProcessesOfDifferentPidNamespaces) {
  const pid_t probe = fork();
  if (probe == 0) std::_Exit(unshare(CLONE_NEWUSER | CLONE_NEWPID) == 0 ? 0 : 1);
  int status = 0;
  waitpid(probe, &status, 0);
  if (status != 0) GTEST_SKIP() << "this machine makes no pid namespaces for users";
  JudgeOnFakeDriver([] {
    ExpectPath({.prepare_consumer = EnterPidNamespace}, "GPU:0", "cuda_ipc, view");
    if (*WhyNotTwoPeers() != '\0') return;
    ExpectPath({.prepare_consumer = EnterPidNamespace}, "GPU:1", "cuda_ipc, copy");
  });
}

// Ends the process at the first call of pidfd_getfd and its like, as containers forbid them.
bool ForbidPidfd() {
  const auto jump = [](uint32_t call) {
    return sock_filter{BPF_JMP | BPF_JEQ | BPF_K, 0, 1, call};
  };
  sock_filter filter[] = {
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      jump(SYS_pidfd_getfd),
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS},
      jump(SYS_pidfd_open),
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS},
      jump(SYS_process_vm_readv),
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS},
      jump(SYS_ptrace),
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  };
  const sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

void ExpectNoPidfd() {
  const int gpus = *WhyNotTwoPeers() == '\0' ? 2 : 1;
  const auto to = [gpus](int i) { return absl::StrCat("GPU:", i % gpus); };
  RunGpuPair(
      {.prepare_consumer = ForbidPidfd},
      [&](GpuPeer& peer) {
        ASSERT_TRUE(ForbidPidfd());
        for (int i = 0; i < 3; ++i) SendOne(peer, i, to(i));
        peer.Meet();
      },
      [&](GpuPeer& peer) {
        for (int i = 0; i < 3; ++i) {
          EXPECT_THAT(ReceiveOne(peer, i, to(i)), HasSubstr("cuda_ipc"));
        }
        peer.Meet();
      });
}

TEST(GpuMachine, NothingNeedsPidfd) {
  // The filter works.
  const pid_t child = fork();
  if (child == 0) {
    if (!ForbidPidfd()) std::_Exit(1);
    syscall(SYS_pidfd_getfd, -1, -1, 0);
    std::_Exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS) << status;
  JudgeOnFakeDriver(ExpectNoPidfd);
}

// The request to probe a pair of GPUs must not end the control channel of a peer that is out of
// descriptors.
TEST(GpuMachine, ProbeWhoseDescriptorWasLost_IsRefused) {
  RunGpuPair(
      {}, [](GpuPeer&) {},
      [](GpuPeer& peer) {
        TransportEnvironment environment;
        environment.gpus = &peer.gpus();
        const auto link = std::make_shared<GpuLink>();
        const auto receiver = std::make_shared<CudaIpcReceiver>(
            environment, Endpoint(),
            [](Gpu&) -> cuda::IpcImportCache& { FERRY_CHECK(false && "nothing is opened"); }, [] {},
            link, [](uint64_t) {});
        std::string answer;
        receiver->SetControlChannel([&answer](absl::string_view body, absl::Span<const int>) {
          answer = std::string(body);
          return absl::OkStatus();
        });
        ASSERT_TRUE(CudaIpcTransport::kInfo.capabilities.fd_optional);
        CudaIpcProbe probe;
        probe.pair = {1, 0};
        probe.seed = 7;
        probe.memory.export_by = cuda::ExportBy::kPosixFd;
        probe.memory.allocation_bytes = probe.memory.bytes = kCudaIpcProbeBytes;
        UniqueFd lost[1];
        EXPECT_TRUE(receiver->OnControlMessage(EncodeCudaIpcProbe(probe), lost).ok());
        const auto refused = DecodeCudaIpcProbed(answer);
        ASSERT_TRUE(refused.ok()) << refused.status();
        EXPECT_EQ(refused->pair, probe.pair);
        EXPECT_EQ(refused->seed, 7u);
        EXPECT_THAT(refused->refusal, HasSubstr("ulimit -n"));
        // The segments that transfer descriptors refer to are indispensable.
        const absl::Status status =
            receiver->OnControlMessage(EncodeCudaIpcSegment(CudaIpcSegment()), lost);
        EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
      });
}

// The limit is named, and only that tensor fails.
TEST(GpuMachine, WithoutDescriptors_TheLimitIsNamed) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "UBSan needs a descriptor of its own to look at an object's type";
#endif
  constexpr size_t kLarge = 40 << 20;
  RunGpuPair(
      {},
      [](GpuPeer& peer) {
        SendOne(peer, 0, "GPU:0");
        const auto stream = peer.NewStream(0);
        // A descriptor in a segment that the consumer does not have.
        const Tensor large = *peer.gpus().Allocate(0, DataType::kUint8, *Shape::Create({kLarge}));
        // It may have some in its hands still.
        absl::Notification is_idle;
        ASSERT_TRUE(peer.gpu(0).executor->Post([&is_idle] { is_idle.Notify(); }).ok());
        ASSERT_TRUE(is_idle.WaitForNotificationWithTimeout(kTimeout));
        std::optional<UsedUpDescriptors> none(std::in_place);
        Step step = peer.Open(10);
        ASSERT_TRUE(step.Send(KeyOf(9, "GPU:0"), large, stream->get()).ok());
        peer.Meet();
        none.reset();
        SendOne(peer, 1, "GPU:0");
        peer.Meet();
      },
      [](GpuPeer& peer) {
        EXPECT_EQ(ReceiveOne(peer, 0, "GPU:0"), "cuda_ipc, view");
        Step step = peer.Open(10);
        const auto none = step.Recv(KeyOf(9, "GPU:0"), kTimeout);
        EXPECT_TRUE(absl::IsResourceExhausted(none.status())) << none.status();
        EXPECT_THAT(std::string(none.status().message()), HasSubstr("ulimit -n"));
        peer.Meet();
        EXPECT_EQ(ReceiveOne(peer, 1, "GPU:0"), "cuda_ipc, view");
        peer.Meet();
      });
}

}  // namespace
}  // namespace ferry
