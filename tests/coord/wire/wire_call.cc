// SPDX-License-Identifier: Apache-2.0
// The calls of wire_client.h: bytes out, an Answer back.
#include <atomic>
#include <string>

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/slice.h>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

#include "proto/tsl_payloads.pb.h"
#include "wire_client.h"

namespace ferry::coord {

bool Eventually(const std::function<bool()>& condition, absl::Duration timeout) {
  const absl::Time give_up = absl::Now() + timeout;
  while (!condition()) {
    if (absl::Now() > give_up) return false;
    // No estimate of how long something takes: only the polling interval.
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

std::shared_ptr<grpc::Channel> NewChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, 8 << 10);  // gRPC's default, which JAX keeps
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

std::ostream& operator<<(std::ostream& out, const Answer& answer) {
  return out << ToStatus(answer) << " (" << answer.details.size() << " bytes of details, "
             << answer.body.size() << " of body)";
}

std::map<std::string, std::string> PayloadsOf(const Answer& answer) {
  tensorflow::distributed_runtime::GrpcPayloadContainer container;
  EXPECT_TRUE(container.ParseFromString(answer.details)) << answer;
  return {container.payloads().begin(), container.payloads().end()};
}

struct PendingCall::State {
  explicit State(const std::shared_ptr<grpc::Channel>& channel) : stub(channel) {}

  grpc::GenericStub stub;
  grpc::ClientContext context;
  grpc::ByteBuffer request;
  grpc::ByteBuffer response;
  // Complete when `done` is notified.
  Answer answer;
  absl::Notification done;
};

PendingCall PendingCall::Start(const std::shared_ptr<grpc::Channel>& channel,
                               const std::string& path, const std::string& request,
                               const Options& options) {
  auto state = std::make_shared<State>(channel);
  state->context.set_deadline(absl::ToChronoTime(absl::Now() + options.deadline));
  if (options.gzip) state->context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  for (const auto& [name, value] : options.metadata) state->context.AddMetadata(name, value);
  grpc::Slice slice(request);
  state->request = grpc::ByteBuffer(&slice, 1);
  state->stub.UnaryCall(&state->context, path, grpc::StubOptions(), &state->request,
                        &state->response, [state](grpc::Status status) {
                          state->answer.code = static_cast<absl::StatusCode>(status.error_code());
                          state->answer.message = status.error_message();
                          state->answer.details = status.error_details();
                          std::vector<grpc::Slice> slices;
                          if (status.ok() && state->response.Dump(&slices).ok()) {
                            for (const grpc::Slice& part : slices) {
                              state->answer.body.append(reinterpret_cast<const char*>(part.begin()),
                                                        part.size());
                            }
                          }
                          state->done.Notify();
                        });
  return PendingCall(state);
}

bool PendingCall::done() const { return state_->done.HasBeenNotified(); }

Answer PendingCall::Wait() const {
  if (!state_->done.WaitForNotificationWithTimeout(kTimeout)) {
    ADD_FAILURE() << "a call was not answered";
    Answer none;
    none.message = "not answered within the timeout of the tests";
    return none;
  }
  return state_->answer;
}

void PendingCall::Cancel() const { state_->context.TryCancel(); }

}  // namespace ferry::coord
