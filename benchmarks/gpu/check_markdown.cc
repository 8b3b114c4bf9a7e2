// SPDX-License-Identifier: Apache-2.0
// Tables of parts, of checks and of figures.
#include "benchmarks/gpu/check_markdown.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace ferry::check {
namespace {

constexpr size_t kMaxCell = 300;

// One cell of a table: on one line, and of limited length.
std::string Cell(const Json& value) {
  std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  text = absl::StrReplaceAll(text, {{"\n", " "}, {"|", "\\|"}});
  if (text.size() > kMaxCell) text = absl::StrCat(text.substr(0, kMaxCell), " ...");
  return text;
}

std::string SizeText(size_t bytes) {
  constexpr size_t kStep = 1024;
  if (bytes < kStep || bytes % kStep != 0) return absl::StrCat(bytes, " B");
  if (bytes < kStep * kStep) return absl::StrCat(bytes / kStep, " KiB");
  if (bytes < kStep * kStep * kStep) return absl::StrCat(bytes / kStep / kStep, " MiB");
  return absl::StrCat(bytes / kStep / kStep / kStep, " GiB");
}

std::string TimeText(const Json& times) {
  if (times.is_null()) return "-";
  const auto number = [&times](const char* name) {
    return absl::StrFormat("%.4g", times[name].get<double>());
  };
  return absl::StrCat(number("median_us"), " (", number("p10_us"), " - ", number("p90_us"), ")");
}

std::string GoalText(const Json& figure) {
  if (figure["goal"].is_null()) return "";
  std::string text = absl::StrFormat(">= %.2f: ", figure["goal"].get<double>());
  if (figure["meets_goal"].is_null()) return absl::StrCat(text, "not judged");
  return absl::StrCat(text, figure["meets_goal"].get<bool>() ? "met" : "**missed**");
}

void WriteFigures(const Json& figures, const std::string& device, bool is_fake_driver,
                  std::string& out) {
  if (figures.empty()) return;
  absl::StrAppend(
      &out,
      is_fake_driver
          ? absl::StrCat("On a fake driver (", device, "): these times mean nothing.\n\n")
          : "",
      "| what | bytes | at a time | processes on the GPU | path | Ferry, us | GB/s | floor | "
      "floor, us | GB/s "
      "| floor / Ferry | goal | wrong bytes |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const Json& each : figures) {
    const bool has_floor = !each["floor"].is_null();
    absl::StrAppend(
        &out, "| ", is_fake_driver ? "[fake driver] " : "", Cell(each["name"]), " | ",
        SizeText(each["bytes"].get<size_t>()), " | ", each["in_flight"].dump(), " | ",
        each["processes_on_gpu"].dump(), " | ", Cell(each["path"]), " | ", TimeText(each["ferry"]),
        " | ", absl::StrFormat("%.4g", each["ferry"]["gb_per_s"].get<double>()), " | ",
        has_floor ? Cell(each["floor"]["name"]) : "-", " | ", TimeText(each["floor"]), " | ",
        has_floor ? absl::StrFormat("%.4g", each["floor"]["gb_per_s"].get<double>()) : "-", " | ",
        has_floor ? absl::StrFormat("%.2f", each["ratio"].get<double>()) : "-", " | ",
        GoalText(each), " | ", each["wrong_bytes"].dump(), " |\n");
  }
  absl::StrAppend(&out, "\n");
}

// All figures with a goal, in one table.
void WriteGoals(const Json& parts, std::string& out) {
  std::string rows;
  for (const Json& part : parts) {
    for (const Json& each : part["figures"]) {
      if (each["goal"].is_null()) continue;
      absl::StrAppend(
          &rows, "| ", Cell(each["name"]), " | ", SizeText(each["bytes"].get<size_t>()), " | ",
          each["in_flight"].dump(), " | ",
          each["ratio"].is_null() ? "-" : absl::StrFormat("%.3f", each["ratio"].get<double>()),
          " | ", GoalText(each), " |\n");
    }
  }
  if (rows.empty()) return;
  absl::StrAppend(&out, "## Goals\n\n| what | bytes | at a time | floor / Ferry | goal |\n",
                  "|---|---|---|---|---|\n", rows, "\n");
}

void WritePart(const Json& part, const std::string& device, bool is_fake_driver, std::string& out) {
  absl::StrAppend(&out, "## ", part["name"].get<std::string>(), ": ",
                  part["title"].get<std::string>(), "\n\n**", part["status"].get<std::string>(),
                  "**, ", absl::StrFormat("%.1f s", part["seconds"].get<double>()));
  if (part["reason"] != "") absl::StrAppend(&out, ": ", Cell(part["reason"]));
  absl::StrAppend(&out, "\n\n");
  for (const Json& note : part["notes"]) {
    absl::StrAppend(&out, "* ", note.get<std::string>(), "\n");
  }
  if (!part["notes"].empty()) absl::StrAppend(&out, "\n");
  if (!part["checks"].empty()) {
    absl::StrAppend(&out, "| check | | |\n|---|---|---|\n");
    for (const Json& check : part["checks"]) {
      const std::string status = check["status"].get<std::string>();
      absl::StrAppend(&out, "| ", Cell(check["name"]), " | ",
                      status == "failed" ? "**failed**" : status, " | ",
                      check.contains("reason")    ? Cell(check["reason"])
                      : check.contains("details") ? Cell(check["details"])
                                                  : "",
                      " |\n");
    }
    absl::StrAppend(&out, "\n");
  }
  WriteFigures(part["figures"], device, is_fake_driver, out);
  for (const auto& [key, value] : part["facts"].items()) {
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump(1);
    if (!text.empty()) absl::StrAppend(&out, key, ":\n\n```\n", text, "\n```\n\n");
  }
  if (part["last_words"] != "") {
    absl::StrAppend(&out, "Its last words:\n\n```\n", part["last_words"].get<std::string>(),
                    "\n```\n\n");
  }
}

}  // namespace

std::string Markdown(const Json& result) {
  const std::string device = result["device"].get<std::string>();
  const bool is_fake_driver = result["is_double"].get<bool>();
  std::string out = "# gpu-check\n\n";
  if (is_fake_driver) {
    absl::StrAppend(&out, "> **NOT A GPU.** This ran on a fake driver, ",
                    result["double_library"].get<std::string>(), ", whose device calls itself \"",
                    device,
                    "\". It shows that the code runs. Its times are times of a CPU that plays a "
                    "GPU: none of them is a figure of any GPU.\n\n");
  } else if (result["gpu_count"] == 0) {
    absl::StrAppend(&out, "> **No GPU**: ", Cell(result["no_gpu_reason"]),
                    ". Nothing was checked, and there are no figures.\n\n");
  }
  absl::StrAppend(&out, "| | |\n|---|---|\n");
  for (const char* const key : {"device", "gpu_count", "mps", "driver_kept_open", "versions",
                                "ferry", "commit", "date", "mode", "seconds", "verdict"}) {
    absl::StrAppend(&out, "| ", key, " | ", Cell(result[key]), " |\n");
  }
  if (result.contains("gpus_of_parts")) {
    absl::StrAppend(&out, "| gpus_of_parts | ", Cell(result["gpus_of_parts"]), " |\n");
  }
  absl::StrAppend(&out,
                  "\n| part | status | s | passed | failed | skipped | figures |\n"
                  "|---|---|---|---|---|---|---|\n");
  for (const Json& part : result["parts"]) {
    const auto count = [&part](const char* status) {
      return std::count_if(part["checks"].begin(), part["checks"].end(),
                           [status](const Json& check) { return check["status"] == status; });
    };
    absl::StrAppend(
        &out, "| ", part["name"].get<std::string>(), " | ", part["status"].get<std::string>(),
        " | ", absl::StrFormat("%.1f", part["seconds"].get<double>()), " | ", count("passed"),
        " | ", count("failed"), " | ", count("skipped"), " | ", part["figures"].size(), " |\n");
  }
  absl::StrAppend(
      &out,
      "\nTimes are medians, with the 10th and the 90th percentile, of one transfer. The "
      "floor is measured in the same processes, in turn with what it is compared to; "
      "floor / Ferry is 1 where Ferry is as fast as the machine. Every transfer is "
      "compared with what was sent, outside of what is timed.\n\n");
  if (result.contains("gpu_sharing")) {
    absl::StrAppend(&out, result["gpu_sharing"].get<std::string>(), "\n\n");
  }
  WriteGoals(result["parts"], out);
  for (const Json& part : result["parts"]) {
    // Parts that lack a GPU have no results.
    const bool is_told = result["gpu_count"] > 0 || !part["facts"].empty() ||
                         !part["checks"].empty() || part["status"] != "skipped";
    if (is_told) WritePart(part, device, is_fake_driver, out);
  }
  return out;
}

}  // namespace ferry::check
