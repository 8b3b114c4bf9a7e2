// SPDX-License-Identifier: Apache-2.0
// Searches backwards from a fetch for feeds that are missing.
#include "tensorflow/graph/partial_run.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "base/status_macros.h"
#include "tensorflow/graph/names.h"

namespace ferry::graph {
namespace {

// Canonical spelling of a tensor's name.
std::string Plain(const std::string& name) {
  const InputName parsed = ParseTensorName(name);
  return TensorText(parsed.node, parsed.port);
}

}  // namespace

void PartialRun::Tensors::Announce(const StepTensor& announced) {
  const size_t index = by_plain_name.emplace(Plain(announced.name), all.size()).first->second;
  if (index == all.size()) all.push_back({announced.node, false});
  by_name.emplace(announced.name, index);
}

PartialRun::PartialRun(std::shared_ptr<const StepGraph> step) : step_(std::move(step)) {
  for (const StepTensor& feed : step_->feeds) feeds_.Announce(feed);
  for (const StepTensor& fetch : step_->fetches) fetches_.Announce(fetch);
  left_ = feeds_.all.size() + fetches_.all.size();
}

absl::Status PartialRun::Take(const std::vector<std::string>& feeds,
                              const std::vector<std::string>& fetches) {
  const auto check = [](const Tensors& tensors, const std::string& name, absl::string_view what,
                        absl::string_view done) {
    if (!tensors.by_name.contains(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("The ", what, " ", Shown(name), " was not specified in partial_run_setup."));
    }
    if (tensors.at(name).is_done) {
      return absl::InvalidArgumentError(
          absl::StrCat("The ", what, " ", Shown(name), " has already been ", done, "."));
    }
    return absl::OkStatus();
  };
  absl::flat_hash_set<const Tensor*> fed_now;
  for (const std::string& name : feeds) {
    FERRY_RETURN_IF_ERROR(check(feeds_, name, "feed", "fed"));
    if (!fed_now.insert(&feeds_.at(name)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("The feed ", Shown(name), " has already been fed."));
    }
  }
  for (const std::string& name : fetches) {
    FERRY_RETURN_IF_ERROR(check(fetches_, name, "fetch", "fetched"));
  }
  FERRY_RETURN_IF_ERROR(CheckComputable(fetches, feeds));
  for (const std::string& name : feeds) Finish(feeds_.at(name));
  for (const std::string& name : fetches) Finish(fetches_.at(name));
  return absl::OkStatus();
}

void PartialRun::Finish(Tensor& tensor) {
  if (!tensor.is_done) --left_;
  tensor.is_done = true;
}

absl::Status PartialRun::CheckComputable(const std::vector<std::string>& fetches,
                                         const std::vector<std::string>& fed_now) const {
  std::vector<bool> is_missing(static_cast<size_t>(step_->graph.node_count()), false);
  for (const Tensor& feed : feeds_.all) {
    if (feed.node >= 0 && !feed.is_done) is_missing[static_cast<size_t>(feed.node)] = true;
  }
  for (const std::string& name : fed_now) {
    const int node = feeds_.at(name).node;
    if (node >= 0) is_missing[static_cast<size_t>(node)] = false;
  }
  // Shared by all fetches: nodes checked for one of them need no second visit.
  std::vector<bool> is_seen(is_missing.size(), false);
  for (const std::string& name : fetches) {
    std::vector<int> pending = {fetches_.at(name).node};
    const auto visit = [&is_seen, &pending](int node) {
      if (is_seen[static_cast<size_t>(node)]) return;
      is_seen[static_cast<size_t>(node)] = true;
      pending.push_back(node);
    };
    while (!pending.empty()) {
      const int node = pending.back();
      pending.pop_back();
      if (is_missing[static_cast<size_t>(node)]) {
        return absl::InvalidArgumentError(
            absl::StrCat("Fetch ", Shown(Plain(name)),
                         " can't be computed from the feeds that have been fed so far."));
      }
      for (const Endpoint& input : step_->graph.inputs(node)) visit(input.node);
      for (const int input : step_->graph.control_inputs(node)) visit(input);
    }
  }
  return absl::OkStatus();
}

}  // namespace ferry::graph
