// SPDX-License-Identifier: Apache-2.0
// Maps keys back to the client's names.
#include "tensorflow/master/step_result.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "base/status_macros.h"
#include "tensor/bytes_of_proto.h"
#include "tensor/tensor_proto.h"
#include "tensorflow/graph/names.h"

namespace ferry::master {

tensorflow::ExecutorOpts ExecutorOptsOf(const tensorflow::RunOptions& options) {
  tensorflow::ExecutorOpts result;
  result.set_record_timeline(options.trace_level() == tensorflow::RunOptions::FULL_TRACE);
  result.set_record_partition_graphs(options.output_partition_graphs());
  result.set_report_tensor_allocations_upon_oom(options.report_tensor_allocations_upon_oom());
  return result;
}

namespace {

absl::StatusOr<Budget::Share> TakeBytes(size_t bytes, const MasterContext& context) {
  const MasterOptions& options = context.options;
  if (bytes > options.max_feed_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "What is fed takes ", bytes, " bytes, and --max-feed-bytes is ", options.max_feed_bytes));
  }
  Budget::Share share;
  if (context.feeds.Take(bytes, share)) return share;
  return absl::ResourceExhaustedError(absl::StrCat(
      "What is fed takes ", bytes, " bytes, and what other steps feed ", context.feeds.used(),
      ": --max-all-feed-bytes is ", context.feeds.limit(), ", of all steps that run"));
}

}  // namespace

absl::StatusOr<Budget::Share> TakeFeeds(const tensorflow::RunStepRequest& request,
                                        const MasterContext& context) {
  size_t bytes = 0;
  for (const auto& feed : request.feed()) bytes = AddBytes(bytes, DecodedBytes(feed.tensor()));
  return TakeBytes(bytes, context);
}

absl::StatusOr<Budget::Share> TakeFeeds(const tensorflow::RunCallableRequest& request,
                                        const MasterContext& context) {
  size_t bytes = 0;
  for (const auto& feed : request.feed()) bytes = AddBytes(bytes, DecodedBytes(feed));
  return TakeBytes(bytes, context);
}

void FillMetadata(const tensorflow::RunOptions& options, RunningStep::Result& result,
                  tensorflow::RunMetadata& metadata) {
  for (tensorflow::RunGraphResponse& response : result.responses) {
    if (options.trace_level() == tensorflow::RunOptions::FULL_TRACE) {
      for (auto& device : *response.mutable_step_stats()->mutable_dev_stats()) {
        *metadata.mutable_step_stats()->add_dev_stats() = std::move(device);
      }
    }
    if (options.output_partition_graphs()) {
      for (auto& graph : *response.mutable_partition_graph()) {
        *metadata.add_partition_graphs() = std::move(graph);
      }
    }
  }
}

void Fetched::Expect(const std::string& name) {
  if (const std::string* key = result_->registered->FindFetchKey(name)) ++by_key_[*key].uses;
}

absl::Status Fetched::Index() {
  for (tensorflow::RunGraphResponse& response : result_->responses) {
    for (tensorflow::NamedTensorProto& received : *response.mutable_recv()) {
      const auto found = by_key_.find(received.name());
      if (found == by_key_.end()) {
        return absl::InternalError(
            absl::StrCat("Unexpected fetch key: ", graph::Shown(received.name())));
      }
      found->second.tensor = received.mutable_tensor();
    }
  }
  return absl::OkStatus();
}

absl::Status Fetched::Take(const std::string& name, tensorflow::TensorProto& tensor) {
  const std::string* key = result_->registered->FindFetchKey(name);
  const auto found = key == nullptr ? by_key_.end() : by_key_.find(*key);
  if (found == by_key_.end() || found->second.tensor == nullptr) {
    return absl::InternalError(
        absl::StrCat("Worker did not return a value for fetch: ", graph::Shown(name)));
  }
  if (--found->second.uses == 0) {
    tensor = std::move(*found->second.tensor);
  } else {
    tensor = *found->second.tensor;
  }
  return absl::OkStatus();
}

absl::Status CheckFeeds(const RegisteredStep& registered,
                        const tensorflow::RunStepRequest& request) {
  for (int i = 0; i < request.feed_size(); ++i) {
    const tensorflow::NamedTensorProto& feed = request.feed(i);
    const std::string* key = registered.FindFeedKey(feed.name());
    if (key == nullptr || key->empty()) continue;
    if (absl::Status status = CheckTensorProto(feed.tensor()); !status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("Invalid TensorProto for feed value ", i, ", ",
                                       graph::Shown(feed.name()), ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

void FillSpec(const RegisteredStep& registered, tensorflow::RunStepRequest& request,
              RunSpec& spec) {
  for (tensorflow::NamedTensorProto& feed : *request.mutable_feed()) {
    const std::string* key = registered.FindFeedKey(feed.name());
    // Nothing consumes it.
    if (key == nullptr || key->empty()) continue;
    tensorflow::NamedTensorProto& sent = spec.feeds.emplace_back();
    sent.set_name(*key);
    *sent.mutable_tensor() = std::move(*feed.mutable_tensor());
  }
  absl::flat_hash_set<absl::string_view> seen;
  for (const std::string& fetch : request.fetch()) {
    const std::string* key = registered.FindFetchKey(fetch);
    if (key != nullptr && seen.insert(*key).second) spec.fetch_keys.push_back(*key);
  }
}

absl::StatusOr<tensorflow::RunStepResponse> MakeRunStepResponse(
    const tensorflow::RunStepRequest& request, RunningStep::Result& result) {
  tensorflow::RunStepResponse response;
  FERRY_ASSIGN_OR_RETURN(Fetched fetched, Fetched::Create(result, request.fetch()));
  for (const std::string& name : request.fetch()) {
    tensorflow::NamedTensorProto& tensor = *response.add_tensor();
    tensor.set_name(name);
    FERRY_RETURN_IF_ERROR(fetched.Take(name, *tensor.mutable_tensor()));
  }
  FillMetadata(request.options(), result, *response.mutable_metadata());
  return response;
}

}  // namespace ferry::master
