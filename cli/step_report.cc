// SPDX-License-Identifier: Apache-2.0
// Formats the report as text and JSON.
#include "cli/step_report.h"

#include <algorithm>
#include <cstdint>

#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

#include "cli/table.h"
#include "cli/tensor_text.h"
#include "launch/printable.h"

namespace ferry::cli {
namespace {

using Json = nlohmann::ordered_json;

// Elements shown per fetch, in text and JSON.
constexpr int64_t kShownElements = 24;
constexpr int64_t kToldElements = 1000;
constexpr size_t kShownCrossings = 16;

std::string Micros(absl::Duration time) {
  const double us = absl::ToDoubleMicroseconds(time);
  return absl::StrFormat("%.*f us", us < 100 ? 1 : 0, us);
}

// Returns "task 1 CPU:0" from "/job:worker/replica:0/task:1/device:CPU:0".
std::string ShortDevice(absl::string_view device) {
  absl::string_view rest = device;
  if (!absl::ConsumePrefix(&rest, "/job:worker/replica:0/task:")) return Printable(device);
  const size_t slash = rest.find("/device:");
  if (slash == absl::string_view::npos) return Printable(device);
  return Printable(absl::StrCat("task ", rest.substr(0, slash), " ", rest.substr(slash + 8)));
}

Json TellElement(const Tensor& tensor, int64_t index) {
  if (tensor.dtype() == DataType::kString) return tensor.strings()[static_cast<size_t>(index)];
  const std::string text = ElementText(tensor, index);
  // Numbers are written as JSON numbers; what JSON cannot represent, as text.
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_discarded() ? Json(text) : json;
}

Json TellTensor(const std::string& name, const Tensor& tensor) {
  Json dims = Json::array();
  for (const int64_t dim : tensor.shape().dims()) dims.push_back(dim);
  Json values = Json::array();
  const int64_t count = tensor.shape().element_count();
  for (int64_t i = 0; i < std::min(count, kToldElements); ++i) {
    values.push_back(TellElement(tensor, i));
  }
  return {{"name", name},
          {"dtype", std::string(DataTypeName(tensor.dtype()))},
          {"shape", std::move(dims)},
          {"values", std::move(values)},
          {"values_left_out", std::max<int64_t>(0, count - kToldElements)}};
}

double Us(absl::Duration time) { return absl::ToDoubleMicroseconds(time); }

}  // namespace

size_t TracedStep::crossing_bytes() const {
  size_t bytes = 0;
  for (const Crossing& crossing : crossings) bytes += crossing.bytes;
  return bytes;
}

StepTimes SummarizeStepTimes(std::vector<absl::Duration> samples) {
  std::sort(samples.begin(), samples.end());
  const auto at = [&samples](double share) {
    const auto index = static_cast<size_t>(share * static_cast<double>(samples.size()));
    return samples[std::min(index, samples.size() - 1)];
  };
  return {at(0.5), at(0.99)};
}

std::string FormatStepText(const StepReport& report) {
  const TracedStep& first = report.first;
  std::vector<std::string> places;
  int ran = 0;
  for (const auto& [device, count] : first.node_counts) {
    places.push_back(absl::StrCat(ShortDevice(device), ": ", count));
    ran += count;
  }
  std::string text =
      absl::StrCat("ferry step: ", Count(report.nodes_in_graph, "node"), " in the graph, ", ran,
                   " in a step with what sends and receives (", absl::StrJoin(places, ", "), ")\n");
  for (const auto& [name, tensor] : first.fetched) {
    absl::StrAppend(&text, Printable(name), " = ", TensorText(tensor, kShownElements), "\n");
  }
  absl::StrAppend(&text, "crossings: ", first.crossings.size(), ", ", first.crossing_bytes(),
                  " bytes per step\n");
  for (size_t i = 0; i < std::min(first.crossings.size(), kShownCrossings); ++i) {
    const Crossing& each = first.crossings[i];
    absl::StrAppend(&text, "  ", Printable(each.edge), ": ", ShortDevice(each.from), " -> ",
                    ShortDevice(each.to), ", ", each.bytes, " bytes by ", Printable(each.transport),
                    "\n");
  }
  if (first.crossings.size() > kShownCrossings) {
    absl::StrAppend(&text, "  and ", first.crossings.size() - kShownCrossings, " more\n");
  }
  absl::StrAppend(
      &text, Count(report.count, "step"),
      report.concurrency > 1 ? absl::StrCat(", ", report.concurrency, " at a time") : "", ": p50 ",
      Micros(report.step.p50), ", p99 ", Micros(report.step.p99), "; ",
      absl::StrFormat("%.0f", report.steps_per_s), " steps/s\n");
  if (report.ping.p50 > absl::ZeroDuration()) {
    absl::StrAppend(&text, "an empty call of the same server, in turns: p50 ",
                    Micros(report.ping.p50), ", p99 ", Micros(report.ping.p99),
                    absl::StrFormat("; a step is %.1f of them\n",
                                    absl::FDivDuration(report.step.p50, report.ping.p50)));
  }
  return text;
}

std::string FormatStepJson(const StepReport& report) {
  Json crossings = Json::array();
  for (const Crossing& each : report.first.crossings) {
    crossings.push_back({{"edge", each.edge},
                         {"from", each.from},
                         {"to", each.to},
                         {"transport", each.transport},
                         {"bytes", each.bytes},
                         {"wait_us", Us(each.wait)}});
  }
  Json fetches = Json::array();
  for (const auto& [name, tensor] : report.first.fetched)
    fetches.push_back(TellTensor(name, tensor));
  Json nodes = Json::object();
  for (const auto& [device, count] : report.first.node_counts) nodes[device] = count;
  Json document = {{"coordinator", report.coordinator},
                   {"nodes_in_graph", report.nodes_in_graph},
                   {"nodes_in_step", std::move(nodes)},
                   {"fetches", std::move(fetches)},
                   {"crossings", std::move(crossings)},
                   {"bytes_per_step", report.first.crossing_bytes()},
                   {"count", report.count},
                   {"concurrency", report.concurrency},
                   {"step_p50_us", Us(report.step.p50)},
                   {"step_p99_us", Us(report.step.p99)},
                   {"steps_per_s", report.steps_per_s}};
  if (report.ping.p50 > absl::ZeroDuration()) {
    document["empty_call_p50_us"] = Us(report.ping.p50);
    document["empty_call_p99_us"] = Us(report.ping.p99);
  }
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace ferry::cli
