// SPDX-License-Identifier: Apache-2.0
// A channel that connects nowhere and is never destroyed.
#include "coord/wire/callback_threads.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include "absl/strings/str_cat.h"

#include "base/file_limit.h"
#include "base/status_macros.h"
#include "base/thread_room.h"
#include "base/unique_fd.h"

namespace ferry::coord {
namespace {

// Descriptors of a coordinator's server: a listening socket, epoll and eventfd of its own threads
// and of gRPC's, and some connections.
constexpr int kServerFiles = 12;

absl::Status CannotWait(const char* call, int error) {
  if (error == EMFILE || error == ENFILE) {
    return absl::ResourceExhaustedError(absl::StrCat(call, ": ", ErrorWithFileLimit(error)));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("gRPC cannot run here: ", call, " is refused (", std::strerror(error),
                   "); allow it in the container's system call filter (seccomp profile)"));
}

// A channel uses the shared completion queue from its first callback call until its destruction.
struct EternalUser {
  EternalUser()
      : channel(grpc::CreateChannel("unix:/nonexistent", grpc::InsecureChannelCredentials())),
        stub(channel),
        request(&empty, 1) {
    context.set_deadline(std::chrono::system_clock::now());
    stub.UnaryCall(&context, "/none/None", grpc::StubOptions(), &request, &response,
                   [](grpc::Status) {});
  }

  const std::shared_ptr<grpc::Channel> channel;
  grpc::GenericStub stub;
  grpc::ClientContext context;
  const grpc::Slice empty;
  grpc::ByteBuffer request;
  grpc::ByteBuffer response;
};

}  // namespace

void KeepCallbackThreads() {
  // Volatile, so that the pointer is really kept and leak checkers see it.
  static EternalUser* volatile user = new EternalUser;
  (void)user;
}

absl::Status CheckServerThreadRoom() {
  // Observed counts: timers, executors, its event engine and a synchronous server for reflection,
  // and threads that wait for calls, half as many as the machine has cores, from 2 to 16.
  const int cores = static_cast<int>(sysconf(_SC_NPROCESSORS_CONF));
  return CheckThreadRoom(8 + std::clamp(cores / 2, 2, 16));
}

absl::Status CheckServerFileRoom() {
  FERRY_RETURN_IF_ERROR(CheckFileRoom(kServerFiles));
  const UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.valid()) return CannotWait("eventfd", errno);
  const UniqueFd poll(epoll_create1(EPOLL_CLOEXEC));
  if (!poll.valid()) return CannotWait("epoll_create1", errno);
  return absl::OkStatus();
}

absl::Status CheckServerRoom() {
  FERRY_RETURN_IF_ERROR(CheckServerFileRoom());
  return CheckServerThreadRoom();
}

}  // namespace ferry::coord
