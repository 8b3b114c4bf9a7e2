// SPDX-License-Identifier: Apache-2.0
// Failures that must end in a defined way: a consumer or a producer that is killed in the middle,
// and a tensor that never arrives.
#include <unistd.h>

#include <csignal>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "benchmarks/gpu/check_nodes.h"
#include "benchmarks/gpu/check_transfers.h"
#include "gpu/cuda/ready_tensor.h"

namespace ferry::check {
namespace {

// Within a machine a dead process is seen at once; its memory is kept two seconds longer.
constexpr absl::Duration kSoon = absl::Seconds(8);
constexpr size_t kFailuresBytes = size_t{5} << 20;

[[noreturn]] void Die() {
  kill(getpid(), SIGKILL);
  std::_Exit(1);
}

// Node 1 has ended and cannot leave with us: this process ends without leaving the job.
[[noreturn]] void EndWithout(CheckNode& self) {
  std::fflush(nullptr);
  std::_Exit(0);
}

absl::Status ConsumerDies(PartContext& context) {
  NodesOptions options;
  options.name = "the consumer is killed with a view in its hands";
  options.transfer = TransferOptionsFor(context.machine, "cuda_ipc");
  options.dying_node = 1;
  return RunNodes(
             context, options,
             {[](CheckNode& self) -> absl::Status {
                FERRY_ASSIGN_OR_RETURN(Step step, self.node().OpenStep(1));
                FERRY_ASSIGN_OR_RETURN(const RendezvousKey key, self.Key("held", 0, kGpu, kGpu));
                FERRY_ASSIGN_OR_RETURN(Tensor tensor, self.Pattern(kFailuresBytes, 1));
                const std::weak_ptr<Buffer> memory = cuda::MemoryOf(tensor);
                FERRY_RETURN_IF_ERROR(step.Send(key, tensor));
                tensor = Tensor();
                FERRY_RETURN_IF_ERROR(self.Hear().status());
                const absl::Time died = SteadyClock().Now();
                while (!memory.expired() && SteadyClock().Now() < died + kSoon) {
                  absl::SleepFor(absl::Milliseconds(5));
                }
                self.report().Check(
                    "a consumer that is killed: the producer has its memory again",
                    memory.expired()
                        ? absl::OkStatus()
                        : absl::DeadlineExceededError("it is kept for a consumer that is dead"),
                    {{"seconds", absl::ToDoubleSeconds(SteadyClock().Now() - died)}});
                // And it works on.
                FERRY_ASSIGN_OR_RETURN(const Tensor next, self.Pattern(kFailuresBytes, 2));
                self.report().Check("a consumer that is killed: the producer's GPU works on",
                                    self.Verify(next, kFailuresBytes, 2));
                EndWithout(self);
              },
              [](CheckNode& self) -> absl::Status {
                FERRY_ASSIGN_OR_RETURN(CheckGpu* const gpu, self.gpu());
                FERRY_ASSIGN_OR_RETURN(Step step, self.node().OpenStep(1));
                FERRY_ASSIGN_OR_RETURN(const RendezvousKey key, self.Key("held", 0, kGpu, kGpu));
                FERRY_ASSIGN_OR_RETURN(const Tensor tensor,
                                       step.Recv(key, kTimeout, gpu->stream()));
                FERRY_RETURN_IF_ERROR(self.Say("I have it"));
                Die();
              }})
      .status();
}

absl::Status ProducerDies(PartContext& context) {
  NodesOptions options;
  options.name = "the producer is killed before it sends";
  options.transfer = TransferOptionsFor(context.machine, "cuda_ipc");
  options.dying_node = 1;
  return RunNodes(
             context, options,
             {[](CheckNode& self) -> absl::Status {
                FERRY_ASSIGN_OR_RETURN(Step step, self.node().OpenStep(1));
                FERRY_ASSIGN_OR_RETURN(const RendezvousKey first, self.Key("first", 1, kGpu, kGpu));
                FERRY_ASSIGN_OR_RETURN(const RendezvousKey second,
                                       self.Key("second", 1, kGpu, kGpu));
                FERRY_ASSIGN_OR_RETURN(const Tensor tensor, step.Recv(first, kTimeout));
                FERRY_RETURN_IF_ERROR(self.Verify(tensor, kFailuresBytes, 3));
                FERRY_RETURN_IF_ERROR(self.Say("die"));
                const absl::Time began = SteadyClock().Now();
                const absl::Status status = step.Recv(second, kTimeout).status();
                const absl::Duration taken = SteadyClock().Now() - began;
                const bool is_right =
                    absl::IsUnavailable(status) && absl::StrContains(status.message(), "1");
                self.report().Check(
                    "a producer that is killed: the receive ends and names it",
                    is_right && taken < kSoon
                        ? absl::OkStatus()
                        : absl::InternalError(absl::StrCat("after ", absl::FormatDuration(taken),
                                                           ": ", status.ToString())),
                    {{"seconds", absl::ToDoubleSeconds(taken)},
                     {"said", std::string(status.message())}});
                EndWithout(self);
              },
              [](CheckNode& self) -> absl::Status {
                FERRY_ASSIGN_OR_RETURN(Step step, self.node().OpenStep(1));
                FERRY_ASSIGN_OR_RETURN(const RendezvousKey first, self.Key("first", 1, kGpu, kGpu));
                FERRY_ASSIGN_OR_RETURN(const Tensor tensor, self.Pattern(kFailuresBytes, 3));
                FERRY_RETURN_IF_ERROR(step.Send(first, tensor));
                FERRY_RETURN_IF_ERROR(self.Hear().status());
                Die();
              }})
      .status();
}

// Sends a tensor that is not complete, and dies.
absl::Status SendLateAndDie(CheckNode& self) {
  FERRY_ASSIGN_OR_RETURN(CheckGpu* const gpu, self.gpu());
  FERRY_ASSIGN_OR_RETURN(Step step, self.node().OpenStep(1));
  FERRY_ASSIGN_OR_RETURN(const RendezvousKey key, self.Key("late", 1, kGpu, kGpu));
  FERRY_ASSIGN_OR_RETURN(const Tensor tensor, self.Pattern(kFailuresBytes, 3));
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<HeldStream> held, HeldStream::Create(*gpu));
  FERRY_RETURN_IF_ERROR(step.Send(key, tensor, held->get()));
  FERRY_RETURN_IF_ERROR(self.Hear().status());
  Die();
}

// The receive fails, and the GPU can be used as before.
absl::Status ProducerDiesMidway(PartContext& context) {
  NodesOptions options;
  options.name = "the producer is killed while its kernel runs";
  options.transfer = TransferOptionsFor(context.machine, "cuda_ipc");
  options.dying_node = 1;
  return RunNodes(
             context, options,
             {[](CheckNode& self) -> absl::Status {
                FERRY_ASSIGN_OR_RETURN(Step step, self.node().OpenStep(1));
                FERRY_ASSIGN_OR_RETURN(const RendezvousKey key, self.Key("late", 1, kGpu, kGpu));
                const PostedPtr posted = Post(self, step, key, Tensor());
                // For the request to reach the producer.
                absl::SleepFor(absl::Milliseconds(100));
                FERRY_RETURN_IF_ERROR(self.Say("die"));
                const absl::Time began = SteadyClock().Now();
                const absl::Status status = Await(self, *posted).status();
                const absl::Duration taken = SteadyClock().Now() - began;
                const bool is_right =
                    absl::IsUnavailable(status) && absl::StrContains(status.message(), "1");
                self.report().Check(
                    "a producer that is killed while its kernel runs: the receive ends and names "
                    "it",
                    is_right && taken < kSoon
                        ? absl::OkStatus()
                        : absl::InternalError(absl::StrCat("after ", absl::FormatDuration(taken),
                                                           ": ", status.ToString())),
                    {{"seconds", absl::ToDoubleSeconds(taken)},
                     {"said", std::string(status.message())}});
                FERRY_ASSIGN_OR_RETURN(const Tensor mine, self.Pattern(kFailuresBytes, 4));
                self.report().Check(
                    "a producer that is killed while its kernel runs: the consumer's GPU works",
                    self.Verify(mine, kFailuresBytes, 4));
                EndWithout(self);
              },
              SendLateAndDie})
      .status();
}

// CUDA does not specify the behaviour of the consumer's stream that waits for an event of a dead
// process; so it is reported, and not judged.
absl::Status ProducerOfAWaitingStreamDies(PartContext& context) {
  NodesOptions options;
  options.name = "the producer is killed while a stream waits for its kernel";
  options.transfer = TransferOptionsFor(context.machine, "cuda_ipc");
  options.transfer.gpus.waits_on_device = true;
  options.dying_node = 1;
  return RunNodes(
             context, options,
             {[](CheckNode& self) -> absl::Status {
                FERRY_ASSIGN_OR_RETURN(CheckGpu* const gpu, self.gpu());
                FERRY_ASSIGN_OR_RETURN(Step step, self.node().OpenStep(1));
                FERRY_ASSIGN_OR_RETURN(const RendezvousKey key, self.Key("late", 1, kGpu, kGpu));
                FERRY_ASSIGN_OR_RETURN(const Tensor tensor,
                                       step.Recv(key, kTimeout, gpu->stream()));
                FERRY_RETURN_IF_ERROR(self.Say("die"));
                const absl::Time began = SteadyClock().Now();
                cuda::Result result = cuda::kErrorNotReady;
                {
                  const cuda::ScopedCurrent current(gpu->device());
                  while (SteadyClock().Now() < began + kSoon && result == cuda::kErrorNotReady) {
                    absl::SleepFor(absl::Milliseconds(5));
                    result = gpu->table().stream_query(gpu->stream());
                  }
                }
                self.report().Check(
                    "a producer that is killed while a stream waits for its kernel: the consumer "
                    "goes on",
                    absl::OkStatus());
                self.report().Fact(
                    "stream_after_the_death_of_its_producer",
                    result == cuda::kErrorNotReady
                        ? std::string("it waits for ever")
                        : absl::StrCat("it ended after ",
                                       absl::FormatDuration(SteadyClock().Now() - began),
                                       " with result ", result));
                EndWithout(self);
              },
              SendLateAndDie})
      .status();
}

absl::Status NothingComes(PartContext& context) {
  NodesOptions options;
  options.name = "a tensor that never comes";
  options.transfer = TransferOptionsFor(context.machine);
  return RunNodes(
             context, options,
             {[](CheckNode& self) -> absl::Status {
                constexpr absl::Duration kTimeout = absl::Milliseconds(300);
                FERRY_ASSIGN_OR_RETURN(Step step, self.node().OpenStep(1));
                FERRY_ASSIGN_OR_RETURN(const RendezvousKey key, self.Key("never", 1, kGpu, kGpu));
                const absl::Time began = SteadyClock().Now();
                const absl::Status status = step.Recv(key, kTimeout).status();
                const absl::Duration taken = SteadyClock().Now() - began;
                const bool is_right = absl::IsDeadlineExceeded(status) &&
                                      absl::StrContains(status.message(), "never") &&
                                      taken >= kTimeout && taken < kTimeout + absl::Seconds(2);
                self.report().Check(
                    "a deadline is kept, and says what was waited for",
                    is_right ? absl::OkStatus()
                             : absl::InternalError(absl::StrCat(
                                   "after ", absl::FormatDuration(taken), ": ", status.ToString())),
                    {{"said", std::string(status.message())}});
                return self.Meet();
              },
              [](CheckNode& self) -> absl::Status { return self.Meet(); }})
      .status();
}

}  // namespace

absl::Status RunFailuresPart(PartContext& context) {
  FERRY_RETURN_IF_ERROR(NothingComes(context));
  FERRY_RETURN_IF_ERROR(ConsumerDies(context));
  FERRY_RETURN_IF_ERROR(ProducerDies(context));
  FERRY_RETURN_IF_ERROR(ProducerDiesMidway(context));
  return ProducerOfAWaitingStreamDies(context);
}

}  // namespace ferry::check
