// SPDX-License-Identifier: Apache-2.0
// What a step has come to, as the client wants it.
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

// What the workers are to record.
tensorflow::ExecutorOpts ExecutorOptsOf(const tensorflow::RunOptions& options);

// Adds what was asked for, out of `result`.
void FillMetadata(const tensorflow::RunOptions& options, RunningStep::Result& result,
                  tensorflow::RunMetadata& metadata);

// The tensors that were fetched. Not thread-safe; `result` outlives it.
class Fetched final {
 public:
  //   Errors: INTERNAL for a tensor that was not asked for.
  //   fetches: names that will be taken, each as often as it is.
  template <typename Names>
  static absl::StatusOr<Fetched> Create(RunningStep::Result& result, const Names& fetches) {
    Fetched fetched(result);
    for (const auto& name : fetches) fetched.Expect(name);
    if (absl::Status status = fetched.Index(); !status.ok()) return status;
    return fetched;
  }

  // Moved out of the result when its tensor is taken for the last time, else copied.
  //   Errors: INTERNAL if no worker returned it.
  absl::Status Take(const std::string& name, tensorflow::TensorProto& tensor);

 private:
  struct Tensor {
    // Names that are still to be taken: "x", "x:0", and "x" again.
    int uses = 0;
    tensorflow::TensorProto* tensor = nullptr;
  };

  explicit Fetched(RunningStep::Result& result) : result_(&result) {}
  void Expect(const std::string& name);
  absl::Status Index();

  RunningStep::Result* result_;
  absl::flat_hash_map<std::string, Tensor> by_key_;
};

// The bytes of what is fed, as the shapes say, for as long as the call lasts.
//   Errors: RESOURCE_EXHAUSTED naming max_feed_bytes or max_all_feed_bytes.
absl::StatusOr<Budget::Share> TakeFeeds(const tensorflow::RunStepRequest& request,
                                        const MasterContext& context);
absl::StatusOr<Budget::Share> TakeFeeds(const tensorflow::RunCallableRequest& request,
                                        const MasterContext& context);

// Checks that the values that the request feeds are valid tensors, if anything consumes them.
//   Errors: INVALID_ARGUMENT naming the feed, in TensorFlow's words.
// Source: tensorflow/core/distributed_runtime/message_wrappers.cc, FeedValue.
absl::Status CheckFeeds(const RegisteredStep& registered,
                        const tensorflow::RunStepRequest& request);

// Fills in what the request feeds, which is taken out of it, and what it fetches.
//   REQUIRES: CheckFeeds is OK.
void FillSpec(const RegisteredStep& registered, tensorflow::RunStepRequest& request, RunSpec& spec);

absl::StatusOr<tensorflow::RunStepResponse> MakeRunStepResponse(
    const tensorflow::RunStepRequest& request, RunningStep::Result& result);

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_STEP_RESULT_H_
