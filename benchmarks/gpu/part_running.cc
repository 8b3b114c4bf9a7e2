// SPDX-License-Identifier: Apache-2.0
// A tensor that is sent while the kernel before its bytes still runs, on the GPU that both share:
// Send may not wait for the device, and the received bytes must be those written after the kernel.
// The receive ends with the kernel, or before it where streams wait on the device.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "benchmarks/gpu/check_nodes.h"
#include "benchmarks/gpu/check_transfers.h"
#include "gpu/cuda/ready_tensor.h"

namespace ferry::check {
namespace {

// A send and a receive that do not wait for a device take microseconds.
constexpr absl::Duration kNotWaiting = absl::Seconds(3);
// The sender's request and its answer take less.
constexpr absl::Duration kWhileItRuns = absl::Milliseconds(100);
constexpr size_t kRunningBytes = (size_t{3} << 20) + 8;
constexpr uint64_t kBefore = 5;
constexpr uint64_t kAfter = 77;

absl::Status Warm(CheckNode& self, Step& step) {
  FERRY_ASSIGN_OR_RETURN(const RendezvousKey key, self.Key("warm", 0, kGpu, kGpu));
  if (self.id() == 0) {
    FERRY_ASSIGN_OR_RETURN(const Tensor tensor, self.Pattern(kRunningBytes, kBefore));
    FERRY_RETURN_IF_ERROR(step.Send(key, tensor));
  } else {
    FERRY_ASSIGN_OR_RETURN(const Tensor tensor, step.Recv(key, kTimeout));
    FERRY_RETURN_IF_ERROR(self.Verify(tensor, kRunningBytes, kBefore));
  }
  return self.Meet();
}

absl::Status SendLate(CheckNode& self, const std::string& name) {
  FERRY_ASSIGN_OR_RETURN(CheckGpu* const gpu, self.gpu());
  FERRY_ASSIGN_OR_RETURN(Step step, self.node().OpenStep(1));
  FERRY_RETURN_IF_ERROR(Warm(self, step));
  FERRY_ASSIGN_OR_RETURN(const Tensor tensor, self.Pattern(kRunningBytes, kBefore));
  FERRY_ASSIGN_OR_RETURN(const RendezvousKey key, self.Key("late", 0, kGpu, kGpu));
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<HeldStream> held, HeldStream::Create(*gpu));
  self.report().Note(absl::StrCat(name, ": the stream is held by ", held->holder()));
  FERRY_RETURN_IF_ERROR(gpu->Fill(tensor.data(), kRunningBytes, kAfter, held->get()));
  const absl::Time began = SteadyClock().Now();
  FERRY_RETURN_IF_ERROR(step.Send(key, tensor, held->get()));
  const absl::Duration taken = SteadyClock().Now() - began;
  self.report().Check(absl::StrCat(name, ": Send returns while the kernel runs"),
                      taken < kNotWaiting
                          ? absl::OkStatus()
                          : absl::InternalError("it took " + absl::FormatDuration(taken)),
                      {{"us", absl::ToDoubleMicroseconds(taken)}});
  // The receiver has it in hand, and its stream waits; only then the kernel may end.
  const absl::StatusOr<std::string> word = self.Hear();
  held->Go();
  FERRY_RETURN_IF_ERROR(word.status());
  return step.Close(kTimeout);
}

absl::Status ReceiveLate(CheckNode& self, const std::string& name) {
  FERRY_ASSIGN_OR_RETURN(CheckGpu* const gpu, self.gpu());
  FERRY_ASSIGN_OR_RETURN(Step step, self.node().OpenStep(1));
  FERRY_RETURN_IF_ERROR(Warm(self, step));
  FERRY_ASSIGN_OR_RETURN(const RendezvousKey key, self.Key("late", 0, kGpu, kGpu));
  const absl::Time began = SteadyClock().Now();
  const absl::StatusOr<Tensor> tensor = step.Recv(key, kTimeout, gpu->stream());
  const absl::Duration taken = SteadyClock().Now() - began;
  absl::Status status = tensor.status();
  const auto ready = tensor.ok() ? cuda::ReadyOf(*tensor) : nullptr;
  if (tensor.ok() && ready != nullptr) {
    const absl::StatusOr<bool> is_done = ready->IsDone();
    if (is_done.ok() && *is_done) {
      status =
          absl::InternalError("its event has completed before the kernel that its bytes depend on");
    }
  }
  self.report().Check(absl::StrCat(name, ": Recv returns while the kernel runs"), status,
                      {{"us", absl::ToDoubleMicroseconds(taken)}});
  FERRY_RETURN_IF_ERROR(self.Say("I have it"));
  FERRY_RETURN_IF_ERROR(tensor.status());
  // The stream waits for the sender's, across processes.
  self.report().Check(absl::StrCat(name, ": what the stream reads was written after the kernel"),
                      self.Verify(*tensor, kRunningBytes, kAfter));
  return absl::OkStatus();
}

// By default the host queries the event.
absl::Status ReceiveWhenComplete(CheckNode& self, const std::string& name) {
  FERRY_ASSIGN_OR_RETURN(CheckGpu* const gpu, self.gpu());
  FERRY_ASSIGN_OR_RETURN(Step step, self.node().OpenStep(1));
  FERRY_RETURN_IF_ERROR(Warm(self, step));
  FERRY_ASSIGN_OR_RETURN(const RendezvousKey key, self.Key("late", 0, kGpu, kGpu));
  const PostedPtr posted = Post(self, step, key, Tensor());
  absl::SleepFor(kWhileItRuns);
  absl::Status status;
  if (IsDone(*posted)) {
    status = absl::InternalError("it was delivered before the kernel that its bytes depend on");
  } else {
    const cuda::ScopedCurrent current(gpu->device());
    if (gpu->table().stream_query(gpu->stream()) == cuda::kErrorNotReady) {
      status = absl::InternalError("the receiver's stream waits for the kernel");
    }
  }
  self.report().Check(absl::StrCat(name, ": no stream waits while the kernel runs"), status);
  FERRY_RETURN_IF_ERROR(self.Say("go on"));
  const absl::Time began = SteadyClock().Now();
  FERRY_ASSIGN_OR_RETURN(const Received received, Await(self, *posted));
  self.report().Check(absl::StrCat(name, ": what is received was written after the kernel"),
                      self.Verify(received.tensor, kRunningBytes, kAfter),
                      {{"us", absl::ToDoubleMicroseconds(SteadyClock().Now() - began)}});
  return absl::OkStatus();
}

// The same, but the bytes are copied to the receiver's memory, and staged.
absl::Status ReceiveInto(CheckNode& self, const std::string& name) {
  FERRY_ASSIGN_OR_RETURN(Step step, self.node().OpenStep(1));
  FERRY_RETURN_IF_ERROR(Warm(self, step));
  FERRY_ASSIGN_OR_RETURN(const RendezvousKey key, self.Key("late", 0, kGpu, kGpu));
  FERRY_ASSIGN_OR_RETURN(const Tensor destination, self.Empty(kRunningBytes));
  // RecvInto waits for the bytes: so the kernel is released first.
  FERRY_RETURN_IF_ERROR(self.Say("go on"));
  FERRY_RETURN_IF_ERROR(step.RecvInto(key, destination, kTimeout));
  self.report().Check(absl::StrCat(name, ": RecvInto waits for what the kernel holds up"),
                      self.Verify(destination, kRunningBytes, kAfter));
  return absl::OkStatus();
}

}  // namespace

absl::Status RunRunningPart(PartContext& context) {
  struct Case {
    const char* name;
    const char* require;
    absl::Status (*receive)(CheckNode&, const std::string&);
    bool waits_on_device = false;
  };
  constexpr Case kCases[] = {
      {"into a buffer, by cuda_ipc", "cuda_ipc", ReceiveInto},
      {"into a buffer, staged", "shm", ReceiveInto},
      {"a view", "cuda_ipc", ReceiveWhenComplete},
      {"a view that a stream waits for", "cuda_ipc", ReceiveLate, /*waits_on_device=*/true}};
  for (const Case& each : kCases) {
    NodesOptions options;
    options.name = each.name;
    options.transfer = TransferOptionsFor(context.machine, each.require);
    options.transfer.gpus.waits_on_device = each.waits_on_device;
    const NodeBody send = [&each](CheckNode& self) { return SendLate(self, each.name); };
    const NodeBody receive = [&each](CheckNode& self) { return each.receive(self, each.name); };
    FERRY_RETURN_IF_ERROR(RunNodes(context, options, {send, receive}).status());
  }
  return absl::OkStatus();
}

}  // namespace ferry::check
