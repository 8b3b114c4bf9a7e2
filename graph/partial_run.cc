// SPDX-License-Identifier: Apache-2.0
// Looks from a fetch backwards for feeds that are missing.
#include "graph/partial_run.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "base/status_macros.h"
#include "graph/names.h"

namespace ferry::graph {
namespace {

// One spelling of all.
std::string Plain(const std::string& name) {
  const InputName parsed = ParseTensorName(name);
  return TensorText(parsed.node, parsed.port);
}

}  // namespace

PartialRun::PartialRun(std::shared_ptr<const StepGraph> step) : step_(std::move(step)) {
  for (const StepTensor& feed : step_->feeds) feeds_[Plain(feed.name)].node = feed.node;
  for (const StepTensor& fetch : step_->fetches) fetches_[Plain(fetch.name)].node = fetch.node;
  left_ = feeds_.size() + fetches_.size();
}

absl::Status PartialRun::Take(const std::vector<std::string>& feeds,
                              const std::vector<std::string>& fetches) {
  const auto check = [](const Tensors& tensors, const std::vector<std::string>& names,
                        absl::string_view what, absl::string_view done) {
    absl::flat_hash_set<std::string> seen;
    for (const std::string& name : names) {
      const auto found = tensors.find(Plain(name));
      if (found == tensors.end()) {
        return absl::InvalidArgumentError(absl::StrCat("The ", what, " ", Shown(name),
                                                       " was not specified in partial_run_setup."));
      }
      if (found->second.is_done || !seen.insert(found->first).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("The ", what, " ", Shown(name), " has already been ", done, "."));
      }
    }
    return absl::OkStatus();
  };
  FERRY_RETURN_IF_ERROR(check(feeds_, feeds, "feed", "fed"));
  FERRY_RETURN_IF_ERROR(check(fetches_, fetches, "fetch", "fetched"));
  FERRY_RETURN_IF_ERROR(CheckComputable(fetches, feeds));
  for (const std::string& name : feeds) feeds_[Plain(name)].is_done = true;
  for (const std::string& name : fetches) fetches_[Plain(name)].is_done = true;
  left_ -= feeds.size() + fetches.size();
  return absl::OkStatus();
}

absl::Status PartialRun::CheckComputable(const std::vector<std::string>& fetches,
                                         const std::vector<std::string>& fed_now) const {
  std::vector<bool> is_missing(static_cast<size_t>(step_->graph.node_count()), false);
  for (const auto& [name, feed] : feeds_) {
    if (feed.node >= 0 && !feed.is_done) is_missing[static_cast<size_t>(feed.node)] = true;
  }
  for (const std::string& name : fed_now) {
    const int node = feeds_.at(Plain(name)).node;
    if (node >= 0) is_missing[static_cast<size_t>(node)] = false;
  }
  // Of all fetches together: what one of them can be computed from need not be looked at again.
  std::vector<bool> is_seen(is_missing.size(), false);
  for (const std::string& name : fetches) {
    std::vector<int> pending = {fetches_.at(Plain(name)).node};
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
