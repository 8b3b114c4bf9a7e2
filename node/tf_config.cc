// SPDX-License-Identifier: Apache-2.0
// TF_CONFIG, parsed as JSON.
#include "node/tf_config.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/text.h"

namespace ferry {
namespace {

using Json = nlohmann::json;

constexpr char kChief[] = "chief";
constexpr char kWorker[] = "worker";

// Returns the addresses of one kind of task; empty if there is none.
Json TasksOf(const Json& cluster, const char* type) {
  const auto found = cluster.find(type);
  return found == cluster.end() ? Json::array() : *found;
}

// Returns true for a cluster that has no tasks but chief and workers.
absl::StatusOr<bool> CheckCluster(const Json& cluster) {
  for (const auto& [type, addresses] : cluster.items()) {
    if (type != kChief && type != kWorker) return false;
    if (!addresses.is_array()) {
      return absl::InvalidArgumentError(absl::StrCat(Quoted(type), " is not a list of addresses"));
    }
  }
  return true;
}

}  // namespace

absl::StatusOr<std::optional<TfConfig>> ParseTfConfig(absl::string_view text) {
  const Json config = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(text, 120), " is not a JSON object"));
  }
  const auto cluster = config.find("cluster");
  const auto task = config.find("task");
  // Both are optional for a program that runs alone.
  if (cluster == config.end() || task == config.end()) return std::nullopt;
  if (!cluster->is_object() || !task->is_object()) {
    return absl::InvalidArgumentError("\"cluster\" and \"task\" must be JSON objects");
  }
  FERRY_ASSIGN_OR_RETURN(const bool is_ours, CheckCluster(*cluster));
  if (!is_ours) return std::nullopt;
  const auto type = task->find("type");
  const auto index = task->find("index");
  if (type == task->end() || !type->is_string() || index == task->end() ||
      !index->is_number_integer()) {
    return absl::InvalidArgumentError("\"task\" needs a \"type\" and a number \"index\"");
  }
  const std::string kind = type->get<std::string>();
  if (kind != kChief && kind != kWorker) return std::nullopt;
  const Json chiefs = TasksOf(*cluster, kChief);
  const Json workers = TasksOf(*cluster, kWorker);
  const size_t count = kind == kChief ? chiefs.size() : workers.size();
  const int64_t number = index->get<int64_t>();
  if (number < 0 || static_cast<uint64_t>(number) >= count) {
    return absl::InvalidArgumentError(absl::StrCat("the index ", number, " is not below ", count,
                                                   ", the number of tasks ", Quoted(kind),
                                                   " in its cluster"));
  }
  const Json& first = chiefs.empty() ? workers[0] : chiefs[0];
  if (!first.is_string()) {
    return absl::InvalidArgumentError("the address of the first task is not a text");
  }
  const std::string address = first.get<std::string>();
  const size_t before = kind == kWorker ? chiefs.size() : 0;
  return TfConfig{.rank = static_cast<int>(before + static_cast<size_t>(number)),
                  .size = static_cast<int>(chiefs.size() + workers.size()),
                  .first_host = address.substr(0, address.rfind(':'))};
}

std::optional<TfConfig> ParseTfCluster(absl::string_view text) {
  const Json config = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return std::nullopt;
  const auto cluster = config.find("cluster");
  if (cluster == config.end() || !cluster->is_object()) return std::nullopt;
  if (const absl::StatusOr<bool> is_ours = CheckCluster(*cluster); !is_ours.ok() || !*is_ours) {
    return std::nullopt;
  }
  const Json chiefs = TasksOf(*cluster, kChief);
  const Json workers = TasksOf(*cluster, kWorker);
  const Json& tasks = chiefs.empty() ? workers : chiefs;
  if (tasks.empty() || !tasks[0].is_string()) return std::nullopt;
  const std::string address = tasks[0].get<std::string>();
  return TfConfig{.rank = -1,
                  .size = static_cast<int>(chiefs.size() + workers.size()),
                  .first_host = address.substr(0, address.rfind(':'))};
}

}  // namespace ferry
