// SPDX-License-Identifier: Apache-2.0
// The trace for a browser: it is well-formed, and its events are consistent.
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/chrome_trace_proto.h"

namespace ferry::cli {
namespace {

using ferry::v1::GetStepsResponse;
using ferry::v1::TraceEvent;
using ferry::v1::TraceLabel;
using ferry::v1::TraceProcess;
using ferry::v1::TraceStep;
using PlainJson = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr char kSource[] = "/job:worker/replica:0/task:0/device:CPU:0";
constexpr char kSink[] = "/job:worker/replica:0/task:1/device:CPU:0";
constexpr int64_t kBegin = 1'700'000'000'000'000'000;

TraceProcess& AddProcess(GetStepsResponse& steps, const std::string& name) {
  TraceProcess& process = *steps.add_processes();
  process.set_name(name);
  process.set_kept(64);
  return process;
}

TraceStep& AddStep(TraceProcess& process, uint64_t id, int64_t start, int64_t end) {
  TraceStep& step = *process.add_steps();
  step.set_step_id(id);
  step.set_start_ns(kBegin + start);
  step.set_end_ns(kBegin + end);
  return step;
}

uint32_t AddLabel(TraceProcess& process, TraceLabel::Kind kind, const std::string& name,
                  const std::string& key = "") {
  TraceLabel& label = *process.add_labels();
  label.set_kind(kind);
  label.set_name(name);
  label.set_op(kind == TraceLabel::COMPUTE ? "Mul" : "_Recv");
  label.set_device(kind == TraceLabel::RECV ? kSink : kSource);
  label.set_key(key);
  label.set_edge("edge_1_" + name);
  label.set_from(kSource);
  label.set_to(kSink);
  return static_cast<uint32_t>(process.labels_size() - 1);
}

void AddEvent(TraceStep& step, uint32_t label, int64_t start, int64_t end, int64_t thread = 7) {
  TraceEvent& event = *step.add_events();
  event.set_label(label);
  event.set_ready_ns(kBegin + start);
  event.set_start_ns(kBegin + start);
  event.set_end_ns(kBegin + end);
  event.set_thread(thread);
  event.set_bytes(8);
  event.set_transport("shm");
}

std::vector<PlainJson> EventsOf(const PlainJson& trace, const std::string& phase) {
  std::vector<PlainJson> events;
  for (const PlainJson& event : trace.at("traceEvents")) {
    if (event.at("ph") == phase) events.push_back(event);
  }
  return events;
}

// A step of two workers with one tensor between them, and a master.
GetStepsResponse OneCrossing() {
  GetStepsResponse steps;
  TraceProcess& master = AddProcess(steps, "master");
  TraceStep& whole = AddStep(master, 5, 0, 100'000);
  whole.add_calls()->set_worker("/job:worker/replica:0/task:0");
  whole.mutable_calls(0)->set_start_ns(kBegin + 1000);
  whole.mutable_calls(0)->set_end_ns(kBegin + 90'000);
  TraceProcess& source = AddProcess(steps, "/job:worker/replica:0/task:0");
  TraceStep& here = AddStep(source, 5, 10'000, 60'000);
  AddEvent(here, AddLabel(source, TraceLabel::COMPUTE, "a"), 11'000, 20'001);
  AddEvent(here, AddLabel(source, TraceLabel::SEND, "s", "key"), 21'000, 22'000);
  TraceProcess& sink = AddProcess(steps, "/job:worker/replica:0/task:1");
  TraceStep& there = AddStep(sink, 5, 12'000, 80'000);
  AddEvent(there, AddLabel(sink, TraceLabel::RECV, "r", "key"), 13'000, 40'500);
  return steps;
}

TEST(ChromeTrace, WithoutEventsIsAnEmptyDocument) {
  const PlainJson trace = PlainJson::parse(ChromeTrace(GetStepsResponse()));
  EXPECT_THAT(trace.at("traceEvents"), IsEmpty());
}

TEST(ChromeTrace, ArrowGoesFromTheSendToItsReceive) {
  const PlainJson trace = PlainJson::parse(ChromeTrace(OneCrossing()));
  const std::vector<PlainJson> begins = EventsOf(trace, "s");
  const std::vector<PlainJson> ends = EventsOf(trace, "f");
  ASSERT_THAT(begins, SizeIs(1));
  ASSERT_THAT(ends, SizeIs(1));
  EXPECT_EQ(begins[0].at("id"), ends[0].at("id"));
  EXPECT_NE(begins[0].at("pid"), ends[0].at("pid"));
  EXPECT_EQ(begins[0].at("ts"), 21.0);
  EXPECT_EQ(ends[0].at("ts"), 40.5);
  EXPECT_EQ(ends[0].at("bp"), "e");
}

TEST(ChromeTrace, NodeHasItsTimesAndAReceiveItsTransport) {
  const PlainJson trace = PlainJson::parse(ChromeTrace(OneCrossing()));
  std::map<std::string, PlainJson> by_name;
  for (const PlainJson& event : EventsOf(trace, "X")) by_name[event.at("name")] = event;
  ASSERT_TRUE(by_name.contains("a") && by_name.contains("receive edge_1_r"));
  EXPECT_EQ(by_name["a"].at("ts"), 11.0);
  EXPECT_EQ(by_name["a"].at("dur"), 9.001);
  const PlainJson& receive = by_name["receive edge_1_r"].at("args");
  EXPECT_EQ(receive.at("transport"), "shm");
  EXPECT_EQ(receive.at("bytes"), 8);
  EXPECT_EQ(receive.at("waited_us"), 27.5);
  EXPECT_EQ(receive.at("from"), kSource);
  EXPECT_EQ(by_name["RunGraph, step 5"].at("dur"), 89.0);
}

TEST(ChromeTrace, UnreceivedSendHasNoArrow) {
  GetStepsResponse steps = OneCrossing();
  // Unchanged, there is one.
  ASSERT_THAT(EventsOf(PlainJson::parse(ChromeTrace(steps)), "s"), SizeIs(1));
  // The same key, in another step.
  steps.mutable_processes(2)->mutable_steps(0)->set_step_id(6);
  const PlainJson trace = PlainJson::parse(ChromeTrace(steps));
  EXPECT_THAT(EventsOf(trace, "s"), IsEmpty());
  EXPECT_THAT(EventsOf(trace, "f"), IsEmpty());
}

TEST(ChromeTrace, TimesAreThoseOfTheCoordinatorsClock) {
  GetStepsResponse steps = OneCrossing();
  steps.mutable_processes(2)->set_offset_ns(-2500);
  steps.mutable_processes(2)->set_error_ns(300);
  const PlainJson trace = PlainJson::parse(ChromeTrace(steps));
  EXPECT_EQ(EventsOf(trace, "f")[0].at("ts"), 38.0);
  const PlainJson& clock = trace.at("otherData").at("clocks").at(2);
  EXPECT_EQ(clock.at("offset_ns"), -2500);
  EXPECT_EQ(clock.at("error_ns"), 300);
  EXPECT_EQ(trace.at("otherData").at("begins_at"), "2023-11-14T22:13:20.000000000Z");
}

TEST(ChromeTrace, HostileNamesAreEscaped) {
  GetStepsResponse steps = OneCrossing();
  static constexpr char kHostile[] = "\"},{\"ph\":\"s\" \\ \n\x01\xff\x00 \xe2\x80\xae";
  const std::string name(kHostile, sizeof(kHostile) - 1);
  steps.mutable_processes(1)->mutable_labels(0)->set_name(name);
  steps.mutable_processes(1)->set_host(name);
  steps.mutable_processes(2)->mutable_labels(0)->set_edge(name);
  steps.mutable_processes(2)->set_missing(name);
  const PlainJson trace = PlainJson::parse(ChromeTrace(steps), nullptr, /*allow_exceptions=*/false);
  ASSERT_FALSE(trace.is_discarded());
  EXPECT_THAT(EventsOf(trace, "s"), SizeIs(1));
}

TEST(ChromeTrace, InvalidNumbersDoNotCrash) {
  GetStepsResponse steps = OneCrossing();
  TraceProcess& process = *steps.mutable_processes(1);
  process.set_offset_ns(INT64_MAX);
  process.mutable_steps(0)->mutable_events(0)->set_label(4'000'000'000);
  // A clock that was set back.
  process.mutable_steps(0)->mutable_events(1)->set_end_ns(kBegin - 1);
  const PlainJson trace = PlainJson::parse(ChromeTrace(steps));
  // The valid events are still drawn.
  ASSERT_THAT(EventsOf(trace, "X"), Not(IsEmpty()));
  for (const PlainJson& event : EventsOf(trace, "X")) {
    EXPECT_GE(event.at("ts").get<double>(), 0);
    EXPECT_GE(event.at("dur").get<double>(), 0);
  }
}

// Overlapping events on one row are drawn wrong, or not at all.
TEST(ChromeTrace, OverlappingReceivesHaveRowsOfTheirOwn) {
  GetStepsResponse steps;
  AddProcess(steps, "master");
  TraceProcess& sink = AddProcess(steps, "/job:worker/replica:0/task:1");
  TraceStep& step = AddStep(sink, 5, 0, 100'000);
  const std::vector<std::pair<int64_t, int64_t>> times = {
      {0, 50'000}, {10'000, 20'000}, {20'000, 30'000}, {15'000, 60'000}, {50'000, 70'000}};
  for (const auto& [start, end] : times) {
    AddEvent(step, AddLabel(sink, TraceLabel::RECV, "r", std::to_string(start)), start, end);
  }
  const PlainJson trace = PlainJson::parse(ChromeTrace(steps));
  std::map<int, double> ends;
  std::set<int> rows;
  for (const PlainJson& event : EventsOf(trace, "X")) {
    if (event.at("cat") != "receive") continue;
    const int row = event.at("tid");
    EXPECT_GE(event.at("ts").get<double>(), ends[row]) << event;
    ends[row] = event.at("ts").get<double>() + event.at("dur").get<double>();
    rows.insert(row);
  }
  // Three are in progress between 15 and 20 us.
  EXPECT_THAT(rows, SizeIs(3));
}

TEST(ChromeTrace, RowsAreNamedAfterDeviceAndThread) {
  GetStepsResponse steps = OneCrossing();
  auto& thread = *steps.mutable_processes(1)->add_threads();
  thread.set_id(7);
  thread.set_name("ferry-op-0");
  const PlainJson trace = PlainJson::parse(ChromeTrace(steps));
  std::vector<std::string> names;
  for (const PlainJson& event : EventsOf(trace, "M")) {
    if (event.at("name") == "thread_name") names.push_back(event.at("args").at("name"));
  }
  EXPECT_THAT(names, ElementsAre("steps", "calls of /job:worker/replica:0/task:0", "steps",
                                 "CPU:0 ferry-op-0", "steps", "CPU:0 receives"));
}

}  // namespace
}  // namespace ferry::cli
