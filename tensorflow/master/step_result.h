// SPDX-License-Identifier: Apache-2.0
// Converts a step's results to the client's response.
#ifndef FERRY_TENSORFLOW_MASTER_STEP_RESULT_H_
#define FERRY_TENSORFLOW_MASTER_STEP_RESULT_H_

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"

#include "proto/tf_config.pb.h"
#include "proto/tf_master.pb.h"
#include "tensorflow/master/master_options.h"
#include "tensorflow/master/running_step.h"

namespace ferry::master {

// Returns what the workers are to record.
tensorflow::ExecutorOpts ExecutorOptsOf(const tensorflow::RunOptions& options);

// Adds the requested metadata from `result`.
void FillMetadata(const tensorflow::RunOptions& options, RunningStep::Result& result,
                  tensorflow::RunMetadata& metadata);

// The fetched tensors. Not thread-safe; `result` must outlive it.
class Fetched final {
 public:
  //   Errors: INTERNAL for a tensor that was not requested.
  //   fetches: the names that will be taken, repeated if taken repeatedly.
  template <typename Names>
  static absl::StatusOr<Fetched> Create(RunningStep::Result& result, const Names& fetches) {
    Fetched fetched(result);
    for (const auto& name : fetches) fetched.Expect(name);
    if (absl::Status status = fetched.Index(); !status.ok()) return status;
    return fetched;
  }

  // Moves the tensor out of the result on its last use, else copies it.
  //   Errors: INTERNAL if no worker returned it.
  absl::Status Take(const std::string& name, tensorflow::TensorProto& tensor);

 private:
  struct Tensor {
    // Uses left, counting aliases: "x", "x:0", and "x" again.
    int uses = 0;
    tensorflow::TensorProto* tensor = nullptr;
  };

  explicit Fetched(RunningStep::Result& result) : result_(&result) {}
  void Expect(const std::string& name);
  absl::Status Index();

  RunningStep::Result* result_;
  absl::flat_hash_map<std::string, Tensor> by_key_;
};

// Reserves the bytes of the feeds, computed from their shapes, for the duration of the call.
//   Errors: RESOURCE_EXHAUSTED naming max_feed_bytes or max_all_feed_bytes.
absl::StatusOr<Budget::Share> TakeFeeds(const tensorflow::RunStepRequest& request,
                                        const MasterContext& context);
absl::StatusOr<Budget::Share> TakeFeeds(const tensorflow::RunCallableRequest& request,
                                        const MasterContext& context);

// Checks that the request's feeds are valid tensors, ignoring unused feeds.
//   Errors: INVALID_ARGUMENT naming the feed, with TensorFlow's text.
// Source: tensorflow/core/distributed_runtime/message_wrappers.cc, FeedValue.
absl::Status CheckFeeds(const RegisteredStep& registered,
                        const tensorflow::RunStepRequest& request);

// Fills in the feeds, moved out of the request, and the fetches.
//   REQUIRES: CheckFeeds is OK.
void FillSpec(const RegisteredStep& registered, tensorflow::RunStepRequest& request, RunSpec& spec);

absl::StatusOr<tensorflow::RunStepResponse> MakeRunStepResponse(
    const tensorflow::RunStepRequest& request, RunningStep::Result& result);

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_STEP_RESULT_H_
