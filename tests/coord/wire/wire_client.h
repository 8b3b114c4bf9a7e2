// SPDX-License-Identifier: Apache-2.0
// A coordination client that sends exactly the given messages, in any generation of the protocol.
#ifndef FERRY_TESTS_COORD_WIRE_WIRE_CLIENT_H_
#define FERRY_TESTS_COORD_WIRE_WIRE_CLIENT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <google/protobuf/message.h>
#include <grpcpp/channel.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry::coord {

// The timeout of a test's waits; far beyond what a loaded machine needs.
inline constexpr absl::Duration kTimeout = absl::Seconds(20);

// Polls for at most kTimeout.
bool Eventually(const std::function<bool()>& condition, absl::Duration timeout = kTimeout);

// A connection of its own, shared with no other channel of the process.
std::shared_ptr<grpc::Channel> NewChannel(const std::string& address);

// The response of a call.
struct Answer {
  absl::StatusCode code = absl::StatusCode::kUnknown;
  std::string message;
  // The trailer grpc-status-details-bin.
  std::string details;
  // The response, serialized.
  std::string body;
};
std::ostream& operator<<(std::ostream& out, const Answer& answer);

// The payloads in the details, by type URL; fails the test when they are no payload container.
std::map<std::string, std::string> PayloadsOf(const Answer& answer);
inline constexpr char kCoordinationPayload[] =
    "type.googleapis.com/tensorflow.CoordinationServiceError";
inline constexpr char kBarrierPayload[] = "type.googleapis.com/tensorflow.BarrierError";
inline constexpr char kMismatchPayload[] = "type.googleapis.com/tensorflow.ServiceMismatchError";

inline absl::Status ToStatus(const Answer& answer) {
  return absl::Status(answer.code, answer.message);
}
inline absl::Status ToStatus(const absl::Status& status) { return status; }
template <typename T>
absl::Status ToStatus(const absl::StatusOr<T>& value) {
  return value.status();
}

// For an Answer, a Status or a StatusOr.
MATCHER(IsOk, "") {
  const absl::Status status = ToStatus(arg);
  *result_listener << "which is " << status;
  return status.ok();
}
MATCHER_P(Fails, code, "") {
  const absl::Status status = ToStatus(arg);
  *result_listener << "which is " << status;
  return status.code() == code;
}
MATCHER_P2(Fails, code, message, "") {
  const absl::Status status = ToStatus(arg);
  *result_listener << "which is " << status;
  return status.code() == code &&
         ::testing::ExplainMatchResult(message, std::string(status.message()), result_listener);
}

// A unary call in flight. Copies refer to the same call.
class PendingCall {
 public:
  struct Options {
    bool gzip = false;
    std::vector<std::pair<std::string, std::string>> metadata;
    // gRPC's own deadline; past the tests' timeout, so that a lost answer shows as such.
    absl::Duration deadline = absl::Minutes(2);
  };
  static PendingCall Start(const std::shared_ptr<grpc::Channel>& channel, const std::string& path,
                           const std::string& request, const Options& options);
  static PendingCall Start(const std::shared_ptr<grpc::Channel>& channel, const std::string& path,
                           const std::string& request) {
    return Start(channel, path, request, Options());
  }

  bool done() const;
  // Fails the test when there is no answer within kTimeout.
  Answer Wait() const;
  // Gives up, as a client that calls ClientContext::TryCancel.
  void Cancel() const;

 private:
  struct State;
  explicit PendingCall(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

// The generations of the protocol that have a task in each request.
enum class Dialect {
  kTensorflow,    // G2: tensorflow.CoordinationService
  kNamed,         // G3: the same messages under xla.coordination.CoordinationService
  kNumbered,      // G4: the same numbers, a task is an int32
  kIncarnations,  // G5: as jaxlib 0.10 has it
};
inline constexpr Dialect kDialects[] = {Dialect::kTensorflow, Dialect::kNamed, Dialect::kNumbered,
                                        Dialect::kIncarnations};
std::string DialectName(Dialect dialect);

struct WireTask {
  int task = 0;
  std::string job;
  int state = 0;
  uint64_t incarnation = 0;
  int error_code = 0;
  std::string error_message;
  bool is_reported_error = false;
};
struct WireTable {
  std::vector<WireTask> tasks;
  int64_t version = 0;
};
struct WireAlive {
  std::vector<int> tasks;
  std::vector<uint64_t> incarnations;
};
using Entries = std::vector<std::pair<std::string, std::string>>;

// One task's client. Methods that a dialect lacks (Reset, ReportError, States, WaitForAll in G5) go
// through tensorflow.CoordinationService: it is the same job.
class TaskClient {
 public:
  TaskClient(Dialect dialect, std::shared_ptr<grpc::Channel> channel, int task,
             uint64_t service_incarnation)
      : dialect_(dialect),
        channel_(std::move(channel)),
        task_(task),
        service_incarnation_(service_incarnation) {}

  Dialect dialect() const { return dialect_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  void set_job(std::string job) { job_ = std::move(job); }
  // The service's incarnation in G5 requests.
  void set_service_incarnation(uint64_t incarnation) { service_incarnation_ = incarnation; }

  PendingCall Register(uint64_t incarnation);
  PendingCall Heartbeat(uint64_t incarnation);
  PendingCall Poll();
  PendingCall Shutdown();
  PendingCall Reset();
  PendingCall ReportError(absl::StatusCode code, const std::string& message);
  PendingCall States(const std::vector<int>& tasks);
  // For the named job; empty: the client's.
  PendingCall Watch(int64_t version);
  PendingCall WaitForAll(const std::vector<std::string>& device_infos);
  PendingCall Insert(const std::string& key, const std::string& value, bool overwrite = false);
  PendingCall Get(const std::string& key);
  PendingCall TryGet(const std::string& key);
  PendingCall Increment(const std::string& key, int64_t increment);
  PendingCall List(const std::string& directory);
  PendingCall Delete(const std::string& key);
  PendingCall Barrier(const std::string& id, absl::Duration timeout, int64_t counter = 0,
                      const std::vector<int>& tasks = {});
  PendingCall CancelBarrier(const std::string& id, int64_t counter = 0);
  PendingCall Alive(const std::vector<int>& tasks);

  // The answer to Register or Heartbeat.
  uint64_t ServiceIncarnation(const Answer& answer) const;
  // To a get of any kind, or to Increment.
  std::pair<std::string, std::string> Entry(const std::string& method, const Answer& answer) const;
  Entries Listed(const Answer& answer) const;
  int64_t Counter(const Answer& answer) const;
  WireTable Table(const Answer& answer) const;
  WireAlive AliveTasks(const Answer& answer) const;

  // For requests that the methods above cannot express.
  std::unique_ptr<google::protobuf::Message> New(const std::string& message) const;
  PendingCall Send(const std::string& method, const google::protobuf::Message& request) const;

 private:
  // The same client where the method exists.
  TaskClient ForOldMethods() const;
  void SetTask(google::protobuf::Message& message, const std::string& field, int task) const;

  Dialect dialect_;
  std::shared_ptr<grpc::Channel> channel_;
  int task_;
  std::string job_ = "jax_worker";
  uint64_t service_incarnation_;
  // From the last Register; G5 sends it with every request.
  uint64_t incarnation_ = 0;
};

}  // namespace ferry::coord

#endif  // FERRY_TESTS_COORD_WIRE_WIRE_CLIENT_H_
