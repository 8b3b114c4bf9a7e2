// SPDX-License-Identifier: Apache-2.0
// Writes events one by one, so that a large trace is not held twice.
#include "cli/chrome_trace_proto.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace ferry::cli {
namespace {

using ferry::v1::TraceEvent;
using ferry::v1::TraceLabel;
using ferry::v1::TraceProcess;
using ferry::v1::TraceStep;
using Json = nlohmann::ordered_json;

// A time interval on a row.
struct Slice {
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  std::string name;
  const char* category = "";
  Json arguments;
  // For a send or receive: the id of the arrow that starts or ends here.
  int64_t flow = 0;
  bool begins_flow = false;
};

// Slices of one row; they may overlap unless they belong to one thread.
struct Row {
  std::string name;
  bool may_overlap = false;
  std::vector<Slice> slices;
};

// Serialises JSON, replacing bytes that are not UTF-8.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Extracts "CPU:0" from "/job:worker/replica:0/task:1/device:CPU:0".
std::string ShortDevice(const std::string& device) {
  const std::string mark = "/device:";
  const size_t at = device.rfind(mark);
  return at == std::string::npos ? device : device.substr(at + mark.size());
}

class Writer {
 public:
  explicit Writer(const ferry::v1::GetStepsResponse& steps) : steps_(steps) {}

  std::string Write() {
    FindStart();
    FindFlows();
    text_ = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";
    for (int i = 0; i < steps_.processes_size(); ++i) WriteProcess(i + 1, steps_.processes(i));
    absl::StrAppend(&text_, "\n],\"otherData\":", Dump(Metadata()), "}\n");
    return std::move(text_);
  }

 private:
  using FlowKey = std::pair<uint64_t, std::string>;

  // Checks for overflow: processes may report any number.
  static int64_t Shift(const TraceProcess& process, int64_t ns) {
    int64_t shifted = 0;
    return __builtin_add_overflow(ns, process.offset_ns(), &shifted) ? ns : shifted;
  }
  // Returns `b` - `a`; 0 on overflow.
  static int64_t Between(int64_t a, int64_t b) {
    int64_t ns = 0;
    return __builtin_sub_overflow(b, a, &ns) ? 0 : std::max<int64_t>(0, ns);
  }

  void FindStart() {
    start_ns_ = INT64_MAX;
    for (const TraceProcess& process : steps_.processes()) {
      for (const TraceStep& step : process.steps()) {
        start_ns_ = std::min(start_ns_, Shift(process, step.start_ns()));
        for (const TraceEvent& event : step.events()) {
          start_ns_ = std::min(start_ns_, Shift(process, event.start_ns()));
        }
      }
    }
    if (start_ns_ == INT64_MAX) start_ns_ = 0;
  }

  // Only transfers with both a send and a receive get an arrow.
  void FindFlows() {
    std::map<FlowKey, int> ends;
    ForEachEvent([&ends](const TraceStep& step, const TraceLabel& label) {
      if (label.kind() == TraceLabel::COMPUTE) return;
      ends[{step.step_id(), label.key()}] |= label.kind() == TraceLabel::SEND ? 1 : 2;
    });
    int64_t last = 0;
    for (const auto& [key, seen] : ends) {
      if (seen == 3) flows_[key] = ++last;
    }
  }

  template <typename Function>
  void ForEachEvent(Function function) {
    for (const TraceProcess& process : steps_.processes()) {
      for (const TraceStep& step : process.steps()) {
        for (const TraceEvent& event : step.events()) {
          function(step, LabelOf(process, event));
        }
      }
    }
  }

  static const TraceLabel& LabelOf(const TraceProcess& process, const TraceEvent& event) {
    const auto index = static_cast<int>(event.label());
    return index >= 0 && index < process.labels_size() ? process.labels(index)
                                                       : TraceLabel::default_instance();
  }

  Slice SliceOf(const TraceProcess& process, int64_t start_ns, int64_t end_ns) const {
    Slice slice;
    slice.start_ns = Between(start_ns_, Shift(process, start_ns));
    // A clock may have been set back in the meantime.
    slice.end_ns = std::max(slice.start_ns, Between(start_ns_, Shift(process, end_ns)));
    return slice;
  }

  Slice StepSlice(const TraceProcess& process, const TraceStep& step) const {
    Slice slice = SliceOf(process, step.start_ns(), step.end_ns());
    slice.name = absl::StrFormat("step %x", step.step_id());
    slice.category = "step";
    slice.arguments = {
        {"step_id", absl::StrCat(step.step_id())},
        {"status", absl::StatusCodeToString(static_cast<absl::StatusCode>(step.code()))}};
    return slice;
  }

  Slice EventSlice(const TraceProcess& process, const TraceStep& step,
                   const TraceEvent& event) const {
    const TraceLabel& label = LabelOf(process, event);
    Slice slice = SliceOf(process, event.start_ns(), event.end_ns());
    slice.arguments = {{"step_id", absl::StrCat(step.step_id())},
                       {"node", label.name()},
                       {"op", label.op()},
                       {"device", label.device()}};
    if (event.ready_ns() > 0) {
      slice.arguments["ready_for_us"] =
          static_cast<double>(Between(event.ready_ns(), event.start_ns())) / 1e3;
    }
    if (label.kind() == TraceLabel::COMPUTE) {
      slice.name = label.name();
      slice.category = "compute";
      return slice;
    }
    const bool is_send = label.kind() == TraceLabel::SEND;
    slice.name = absl::StrCat(is_send ? "send " : "receive ", label.edge());
    slice.category = is_send ? "send" : "receive";
    slice.arguments["from"] = label.from();
    slice.arguments["to"] = label.to();
    slice.arguments["bytes"] = event.bytes();
    if (!is_send) {
      slice.arguments["transport"] = event.transport();
      slice.arguments["waited_us"] = static_cast<double>(slice.end_ns - slice.start_ns) / 1e3;
    }
    if (const auto found = flows_.find({step.step_id(), label.key()}); found != flows_.end()) {
      slice.flow = found->second;
      slice.begins_flow = is_send;
    }
    return slice;
  }

  std::vector<Row> RowsOf(const TraceProcess& process) const {
    std::map<int64_t, std::string> threads;
    for (const auto& thread : process.threads()) threads[thread.id()] = thread.name();
    Row steps{"steps", /*may_overlap=*/true, {}};
    std::map<std::string, Row> calls;
    std::map<std::pair<std::string, int64_t>, Row> nodes;
    std::map<std::string, Row> receives;
    for (const TraceStep& step : process.steps()) {
      steps.slices.push_back(StepSlice(process, step));
      for (const ferry::v1::TraceCall& call : step.calls()) {
        Slice slice = SliceOf(process, call.start_ns(), call.end_ns());
        slice.name = absl::StrFormat("RunGraph, step %x", step.step_id());
        slice.category = "call";
        slice.arguments = {{"step_id", absl::StrCat(step.step_id())}, {"worker", call.worker()}};
        Row& row = calls[call.worker()];
        row.name = absl::StrCat("calls of ", call.worker());
        row.may_overlap = true;
        row.slices.push_back(std::move(slice));
      }
      for (const TraceEvent& event : step.events()) {
        const TraceLabel& label = LabelOf(process, event);
        const std::string device = ShortDevice(label.device());
        if (label.kind() == TraceLabel::RECV) {
          // A receive waits without a thread, so it goes to a row of its device.
          Row& row = receives[device];
          row.name = absl::StrCat(device, " receives");
          row.may_overlap = true;
          row.slices.push_back(EventSlice(process, step, event));
          continue;
        }
        Row& row = nodes[{device, event.thread()}];
        const auto thread = threads.find(event.thread());
        row.name = absl::StrCat(
            device, " ",
            thread == threads.end() ? absl::StrCat("thread ", event.thread()) : thread->second);
        row.slices.push_back(EventSlice(process, step, event));
      }
    }
    std::vector<Row> rows;
    rows.push_back(std::move(steps));
    for (auto& [name, row] : calls) rows.push_back(std::move(row));
    for (auto& [name, row] : nodes) rows.push_back(std::move(row));
    for (auto& [name, row] : receives) rows.push_back(std::move(row));
    return rows;
  }

  // Splits a row so that the slices of each do not overlap.
  static std::vector<Row> Spread(Row row) {
    std::stable_sort(row.slices.begin(), row.slices.end(), [](const Slice& a, const Slice& b) {
      // An enclosing slice sorts before what it contains.
      return std::pair(a.start_ns, -a.end_ns) < std::pair(b.start_ns, -b.end_ns);
    });
    std::vector<Row> rows;
    if (!row.may_overlap) {
      rows.push_back(std::move(row));
      return rows;
    }
    // Rows by the time at which they become free.
    std::multimap<int64_t, size_t> free;
    for (Slice& slice : row.slices) {
      size_t index = rows.size();
      if (!free.empty() && free.begin()->first <= slice.start_ns) {
        index = free.begin()->second;
        free.erase(free.begin());
      } else {
        rows.push_back({index == 0 ? row.name : absl::StrCat(row.name, " ", index + 1), true, {}});
      }
      free.emplace(slice.end_ns, index);
      rows[index].slices.push_back(std::move(slice));
    }
    return rows;
  }

  void WriteProcess(int pid, const TraceProcess& process) {
    const std::string name = process.host().empty()
                                 ? process.name()
                                 : absl::StrCat(process.name(), " on ", process.host());
    Event({{"ph", "M"},
           {"pid", pid},
           {"tid", 0},
           {"name", "process_name"},
           {"args", {{"name", name}}}});
    Event({{"ph", "M"},
           {"pid", pid},
           {"tid", 0},
           {"name", "process_sort_index"},
           {"args", {{"sort_index", pid}}}});
    int tid = 0;
    for (Row& each : RowsOf(process)) {
      for (const Row& row : Spread(std::move(each))) {
        ++tid;
        Event({{"ph", "M"},
               {"pid", pid},
               {"tid", tid},
               {"name", "thread_name"},
               {"args", {{"name", row.name}}}});
        Event({{"ph", "M"},
               {"pid", pid},
               {"tid", tid},
               {"name", "thread_sort_index"},
               {"args", {{"sort_index", tid}}}});
        for (const Slice& slice : row.slices) WriteSlice(pid, tid, slice);
      }
    }
  }

  void WriteSlice(int pid, int tid, const Slice& slice) {
    Event({{"ph", "X"},
           {"pid", pid},
           {"tid", tid},
           {"name", slice.name},
           {"cat", slice.category},
           {"args", slice.arguments}},
          slice.start_ns, slice.end_ns - slice.start_ns);
    if (slice.flow == 0) return;
    Json arrow = {{"ph", slice.begins_flow ? "s" : "f"},
                  {"pid", pid},
                  {"tid", tid},
                  {"name", "tensor"},
                  {"cat", "tensor"},
                  {"id", slice.flow}};
    // Bind to the enclosing slice instead of the next one.
    if (!slice.begins_flow) arrow["bp"] = "e";
    Event(arrow, slice.begins_flow ? slice.start_ns : slice.end_ns);
  }

  // Appends the times as text, because a double cannot represent them exactly.
  void Event(const Json& json, int64_t ts_ns = -1, int64_t duration_ns = -1) {
    std::string event = Dump(json);
    event.pop_back();
    const auto add = [&event](const char* key, int64_t ns) {
      if (ns >= 0) {
        absl::StrAppend(&event, ",\"", key, "\":", ns / 1000, ".",
                        absl::StrFormat("%03d", ns % 1000));
      }
    };
    add("ts", ts_ns);
    add("dur", duration_ns);
    absl::StrAppend(&text_, is_first_ ? "\n" : ",\n", event, "}");
    is_first_ = false;
  }

  Json Metadata() const {
    Json clocks = Json::array();
    for (const TraceProcess& process : steps_.processes()) {
      Json clock = {{"process", process.name()}, {"host", process.host()}};
      if (!process.missing().empty()) {
        clock["missing"] = process.missing();
      } else {
        clock["offset_ns"] = process.offset_ns();
        clock["error_ns"] = process.error_ns();
        clock["steps_kept"] = process.kept();
      }
      clocks.push_back(std::move(clock));
    }
    return {{"from", "ferry trace"},
            {"begins_at", absl::FormatTime("%Y-%m-%dT%H:%M:%E9SZ", absl::FromUnixNanos(start_ns_),
                                           absl::UTCTimeZone())},
            {"begins_at_unix_ns", absl::StrCat(start_ns_)},
            {"time", "the coordinator's: offset_ns was added to each process's own times"},
            {"offset",
             "the coordinator's time at the middle of the shortest of five round trips, less "
             "what the worker's clock said; wrong by at most error_ns, half of that trip; 0 on "
             "the coordinator's machine"},
            {"clocks", std::move(clocks)}};
  }

  const ferry::v1::GetStepsResponse& steps_;
  int64_t start_ns_ = 0;
  std::map<FlowKey, int64_t> flows_;
  std::string text_;
  bool is_first_ = true;
};

}  // namespace

std::string ChromeTrace(const ferry::v1::GetStepsResponse& steps) { return Writer(steps).Write(); }

}  // namespace ferry::cli
