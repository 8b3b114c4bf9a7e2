// SPDX-License-Identifier: Apache-2.0
// Records of driver calls: the table of calls, the text of a call and its parser, what handles and
// descriptors become in a replay, and what is compared.
#include <cstring>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "benchmarks/gpu/calls/call_comparison.h"
#include "benchmarks/gpu/calls/call_record.h"
#include "benchmarks/gpu/calls/call_writer.h"
#include "benchmarks/gpu/calls/driver_calls.h"
#include "benchmarks/gpu/calls/handle_table.h"
#include "benchmarks/gpu/calls/replay_exports.h"
#include "benchmarks/gpu/calls/replay_machine.h"

namespace ferry::calls {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAreArray;

constexpr char kHeader[] = "ferry-cuda-calls 1\nprocess 7 1 \"program\"\n";

CallRecord Parsed(const std::string& lines) {
  absl::StatusOr<CallRecord> record = CallRecord::Parse("7.calls", kHeader + lines);
  EXPECT_TRUE(record.ok()) << record.status();
  return record.ok() ? *std::move(record) : CallRecord();
}

std::string ErrorOf(const std::string& text) {
  return std::string(CallRecord::Parse("7.calls", text).status().message());
}
std::string ErrorOfLine(const std::string& line) { return ErrorOf(kHeader + line + "\n"); }

RecordedCall Call(const std::string& line) {
  absl::StatusOr<RecordedCall> call = ParseCall(line);
  EXPECT_TRUE(call.ok()) << line << ": " << call.status();
  return call.ok() ? *std::move(call) : RecordedCall{.description = &kDriverCalls[0]};
}

TEST(DriverCalls, HaveEveryFunctionThatFerryResolves) {
  std::ifstream file(FERRY_CUDA_API_SOURCE);
  const std::string source(std::istreambuf_iterator<char>(file), {});
  const std::regex pattern(R"re(resolve\("(cu\w+)", table\.(\w+)\))re");
  std::set<std::pair<std::string, std::string>> resolved;
  for (std::sregex_iterator match(source.begin(), source.end(), pattern), end; match != end;
       ++match) {
    resolved.emplace((*match)[1], (*match)[2]);
  }
  EXPECT_EQ(resolved.size(), sizeof(cuda::CudaTable) / sizeof(cuda::CudaTable::init));

#define NAMES(symbol, member, ...) {#symbol, #member},
#define NO_NAMES(symbol, type, ...)
  const std::set<std::pair<std::string, std::string>> described = {
      FERRY_DRIVER_CALLS(NAMES, NO_NAMES)};
  EXPECT_THAT(described, UnorderedElementsAreArray(resolved));
}

TEST(DriverCalls, NameTheArgumentsThatOthersDependOn) {
  for (const DriverCall& call : kDriverCalls) {
    for (size_t i = 0; i < call.count; ++i) {
      const Argument& argument = call.arguments[i];
      const std::string what = std::string(call.symbol) + " " + argument.name;
      const auto needs = [&](bool is_so, const char* other) {
        EXPECT_TRUE(!is_so || FindArgument(call, other) >= 0) << what << ", " << other;
      };
      needs(argument.kind == Kind::kShareable, "handle_type");
      needs(argument.kind == Kind::kAccess || argument.kind == Kind::kAttributes, "count");
      needs(argument.kind == Kind::kText && argument.is_output, "bytes");
      needs(argument.kind == Kind::kPoolValue, "attribute");
      needs(argument.maps || (argument.creates && argument.kind == Kind::kHost), "bytes");
    }
  }
}

// Each function with arguments of ones, and outputs likewise.
TEST(CallWriter, EveryFunctionIsReadAsItIsWritten) {
  CallWriter writer;
  for (const DriverCall& description : kDriverCalls) {
    std::vector<uint64_t> buffer(64, 1);
    uint64_t attribute = cuda::kPointerMemoryType;
    std::vector<void*> pointers = {buffer.data()};
    char text[] = "a \"text\"\n\\";
    const char* const pointer = text;
    std::vector<uint64_t> words;
    for (size_t i = 0; i < description.count; ++i) {
      const Argument& argument = description.arguments[i];
      const bool is_text = argument.kind == Kind::kText;
      const bool is_value = !argument.is_output &&
                            (argument.kind <= Kind::kHost || argument.kind == Kind::kShareable ||
                             argument.kind == Kind::kIgnored);
      words.push_back(is_value                              ? 1
                      : is_text                             ? reinterpret_cast<uint64_t>(text)
                      : argument.kind == Kind::kTextPointer ? reinterpret_cast<uint64_t>(&pointer)
                      : argument.kind == Kind::kAttributes  ? reinterpret_cast<uint64_t>(&attribute)
                      : argument.kind == Kind::kValues ? reinterpret_cast<uint64_t>(pointers.data())
                                                       : reinterpret_cast<uint64_t>(buffer.data()));
      if (is_text && argument.is_output) words.back() = reinterpret_cast<uint64_t>(text);
    }
    std::string line;
    writer.Append(line, {.description = &description,
                         .words = words.data(),
                         .result = 0,
                         .began_ns = 5,
                         .duration_ns = 3,
                         .thread = 9});
    ASSERT_EQ(line.back(), '\n');
    line.pop_back();
    const absl::StatusOr<RecordedCall> call = ParseCall(line);
    ASSERT_TRUE(call.ok()) << line << ": " << call.status();
    EXPECT_EQ(call->description, &description);
    EXPECT_EQ(call->ended_ns, 8);
    for (size_t i = 0; i < description.count; ++i) {
      const Kind kind = description.arguments[i].kind;
      const bool is_missing = kind == Kind::kIgnored || kind == Kind::kKernelParameters;
      EXPECT_EQ(call->values[i].is_absent, is_missing) << line;
    }
  }
}

TEST(CallWriter, TextsKeepTheirBytes) {
  std::string line = "1 1 cuModuleGetFunction module=module:0x1 name=";
  const std::string name("a b\"\\\n\0\xff", 8);
  CallWriter::AppendQuoted(line, name);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(Call(line + " = 500 1").Find("name")->bytes, name);
}

TEST(CallRecord, CallsAreInTheOrderInWhichTheyBegan) {
  const CallRecord record = Parsed(
      "20 1 cuStreamQuery stream=stream:0x1 = 600 1\n"
      "again 1 12\n"
      "10 2 cuStreamSynchronize stream=stream:0x1 = 0 90\n"
      "gone 15 \"6.calls\"\n"
      "end 200\n");
  EXPECT_THAT(record.gone, ElementsAre(Pair(15, "6.calls")));
  ASSERT_EQ(record.calls.size(), 2u);
  EXPECT_EQ(record.calls[0].line, 5);
  EXPECT_EQ(record.calls[0].ended_ns, 100);
  EXPECT_EQ(record.calls[1].result, 600);
  EXPECT_EQ(record.pid, 7);
  EXPECT_EQ(record.program, "program");
  EXPECT_EQ(record.ended_ns, 200);
  EXPECT_FALSE(record.is_limited);
  EXPECT_TRUE(Parsed("limit 200000\n").is_limited);
}

TEST(CallRecord, WrongHeadersAreNamed) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("7.calls: the record is empty"));
  EXPECT_THAT(ErrorOf("123 456 789 0 cuInit 0\n"), HasSubstr("7.calls:1: the first line is not"));
  EXPECT_THAT(ErrorOf("ferry-cuda-calls 2\nprocess 7 1 \"a\"\n"),
              HasSubstr("version '2' of the format; this program reads 1"));
  EXPECT_THAT(ErrorOf("ferry-cuda-calls 1\n"), HasSubstr("7.calls:2: "));
  EXPECT_THAT(ErrorOf("ferry-cuda-calls 1\nprocess x 1 \"a\"\n"), HasSubstr("process PID PARENT"));
}

TEST(CallRecord, WrongLinesAreNamed) {
  EXPECT_THAT(ErrorOf(std::string(kHeader) + "1 1 cuInit flags=0 = 0 5"),
              HasSubstr("7.calls:3: the line is cut"));
  EXPECT_THAT(ErrorOfLine("1 1 cuInit"),
              HasSubstr("7.calls:3: the line ends where the argument flags"));
  EXPECT_THAT(ErrorOfLine("1 1 cuInit flags=0"), HasSubstr("the line ends where the result"));
  EXPECT_THAT(ErrorOfLine("1 1 cuInit flags=0 = 0"), HasSubstr("the line ends where a duration"));
  EXPECT_THAT(ErrorOfLine("1 1 cuFoo = 0 5"), HasSubstr("'cuFoo' is not a driver function"));
  EXPECT_THAT(ErrorOfLine("x 1 cuInit flags=0 = 0 5"), HasSubstr("'x' is not a time"));
  EXPECT_THAT(ErrorOfLine("1 1 cuInit flags=z = 0 5"),
              HasSubstr("cuInit, flags: 'z' is not a number"));
  EXPECT_THAT(ErrorOfLine("1 1 cuInit flags=99999999999 = 0 5"), HasSubstr("of 32 bits"));
  EXPECT_THAT(ErrorOfLine("1 1 cuInit count=0 = 0 5"), HasSubstr("the argument flags"));
  EXPECT_THAT(ErrorOfLine("1 1 cuInit flags=0 = -1 5"), HasSubstr("'-1' is not a CUresult"));
  EXPECT_THAT(ErrorOfLine("1 1 cuInit flags=0 = 0 -5"), HasSubstr("is not a time and a duration"));
  EXPECT_THAT(ErrorOfLine("1 1 cuInit flags=0 = 0 5 more=1"), HasSubstr("no more arguments"));
  EXPECT_THAT(ErrorOfLine(""), HasSubstr("is not a time"));
  EXPECT_THAT(ErrorOfLine("1 1 cuStreamQuery stream=event:0x1 = 0 5"),
              HasSubstr("'event:0x1' is not stream:0x..."));
  EXPECT_THAT(ErrorOfLine("1 1 cuStreamQuery stream=stream:12 = 0 5"), HasSubstr("hexadecimal"));
  EXPECT_THAT(ErrorOfLine("1 1 cuIpcOpenEventHandle handle=bytes:12 = 201 5"),
              HasSubstr("with 128 digits"));
  EXPECT_THAT(ErrorOfLine("1 1 cuModuleGetFunction module=module:0x1 name=\"a\\x4\" = 0 5"),
              HasSubstr("escapes"));
  EXPECT_THAT(ErrorOfLine("1 1 cuMemPoolCreate properties={type:1} = 1 5"),
              HasSubstr("a struct of 6 fields"));
  EXPECT_THAT(ErrorOfLine("1 1 cuMemPoolSetAccess pool=pool:0x1 access=[] count=9 = 0 5"),
              HasSubstr("count=9, but access has 0 items"));
  EXPECT_THAT(ErrorOfLine("1 1 cuDeviceGetName bytes=99999999 device=0 = 1 5"),
              HasSubstr("bytes=99999999, more than 65536"));
  EXPECT_THAT(ErrorOfLine("again 1"), HasSubstr("how often"));
  EXPECT_THAT(ErrorOfLine("gone 5"), HasSubstr("the name of a record"));
  EXPECT_THAT(ErrorOfLine("end soon"), HasSubstr("the time of the end"));
  EXPECT_THAT(ErrorOfLine(std::string(300'000, 'x')), HasSubstr("at most 256 KiB"));
  std::string many = "1 1 cuMemPoolSetAccess pool=pool:0x1 access=[";
  for (int i = 0; i < 5000; ++i) many += "{},";
  EXPECT_THAT(ErrorOfLine(many + "] count=5001 = 0 5"), HasSubstr("more than 4096"));
}

// None of them may crash; what remains readable is read.
TEST(CallRecord, DamagedLinesAreReadOrRefused) {
  const std::string whole =
      "1 1 cuPointerGetAttributes count=2 attributes=[1,2] pointer=memory:0x10 = 0 5 "
      "values=[context:0x1,2]";
  Call(whole);
  for (size_t i = 0; i < whole.size(); ++i) {
    (void)ParseCall(whole.substr(0, i));
    for (const char c : {' ', '[', ']', '{', '}', ',', '=', '-', '\0', '\xff', '9'}) {
      std::string damaged = whole;
      damaged[i] = c;
      (void)ParseCall(damaged);
    }
  }
}

TEST(HandleTable, HandlesAreOfTheirKind) {
  HandleTable table;
  table.Add(Kind::kStream, 0x10, 0x1010, 1);
  table.Add(Kind::kEvent, 0x10, 0x2020, 2);
  EXPECT_EQ(*table.Find(Kind::kStream, 0x10), 0x1010u);
  EXPECT_EQ(*table.Find(Kind::kEvent, 0x10), 0x2020u);
  const absl::Status unknown = table.Find(Kind::kModule, 0x10).status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(unknown.message(), HasSubstr("module:0x10 comes from no call of this record"));
  // Those of the driver itself.
  EXPECT_EQ(*table.Find(Kind::kStream, 0), 0u);
  EXPECT_EQ(*table.Find(Kind::kStream, 2), 2u);
  EXPECT_FALSE(table.Find(Kind::kEvent, 2).ok());
}

TEST(HandleTable, ValueThatIsGivenAgainBeforeItsEndIsKnown) {
  HandleTable table;
  table.Add(Kind::kStream, 0x10, 0x1010, 1);
  table.Add(Kind::kStream, 0x10, 0x2020, 2);
  EXPECT_EQ(*table.Find(Kind::kStream, 0x10), 0x2020u);
  table.Remove(Kind::kStream, 0x10, 0x1010);
  EXPECT_EQ(*table.Find(Kind::kStream, 0x10), 0x2020u);
  table.Remove(Kind::kStream, 0x10, 0x2020);
  EXPECT_FALSE(table.Find(Kind::kStream, 0x10).ok());
  table.Remove(Kind::kStream, 0x10, 0x2020);  // of which nothing is left
}

TEST(HandleTable, AddressesAreOfWholeRanges) {
  HandleTable table;
  table.Add(Kind::kMemory, 0x1000, 0x91000, 1, 0x100);
  table.Add(Kind::kHost, 0x5000, 0x95000, 2, 0x100);
  table.Add(Kind::kMemory, 0x8000, 0x98000, 3);  // of unknown size
  EXPECT_EQ(*table.Find(Kind::kMemory, 0x10ff), 0x910ffu);
  EXPECT_FALSE(table.Find(Kind::kMemory, 0x1100).ok());
  EXPECT_FALSE(table.Find(Kind::kMemory, 0xfff).ok());
  EXPECT_EQ(*table.Find(Kind::kMemory, 0x5004), 0x95004u);
  EXPECT_EQ(*table.Find(Kind::kHost, 0x1004), 0x91004u);
  EXPECT_EQ(*table.Find(Kind::kMemory, 0x800000), 0x890000u);
  // The host's memory behind it, such as a stack, is not of it.
  EXPECT_FALSE(table.Find(Kind::kHost, 0x800000).ok());
}

TEST(HandleTable, HandlesOfFailedCallsNameTheCall) {
  HandleTable table;
  table.Add(Kind::kMemory, 0x1000, 0x91000, 1, 0x1000);
  table.Add(Kind::kMemory, 0x1000, std::nullopt, 4, 0x100);
  const absl::Status missing = table.Find(Kind::kMemory, 0x1010).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(missing.message(), HasSubstr("memory:0x1010"));
  EXPECT_THAT(missing.message(), HasSubstr("line 4"));
  EXPECT_EQ(*table.Find(Kind::kMemory, 0x1100), 0x91100u);
  table.Remove(Kind::kMemory, 0x1000, std::nullopt);
  EXPECT_EQ(*table.Find(Kind::kMemory, 0x1010), 0x91010u);
}

std::vector<std::string> Compared(const std::string& recorded, const std::string& live,
                                  const HandleTable& table = {}) {
  return Differences(Call("1 1 " + recorded), Call("1 1 " + live), table);
}

TEST(Differences, ResultsAreExact) {
  EXPECT_THAT(Compared("cuInit flags=0 = 0 1", "cuInit flags=0 = 0 9"), IsEmpty());
  EXPECT_THAT(Compared("cuInit flags=0 = 0 1", "cuInit flags=0 = 100 1"),
              ElementsAre("result: recorded 0, replayed 100"));
}

TEST(Differences, PollsMayBeEarlyButNotLate) {
  const std::string poll = "cuStreamQuery stream=stream:0x1 = ";
  EXPECT_THAT(Compared(poll + "600 1", poll + "0 1"), IsEmpty());
  EXPECT_THAT(Compared(poll + "0 1", poll + "600 1"),
              ElementsAre("result: recorded 0, replayed 600"));
  EXPECT_THAT(Compared(poll + "600 1", poll + "700 1"),
              ElementsAre("result: recorded 600, replayed 700"));
  const std::string wait = "cuStreamSynchronize stream=stream:0x1 = ";
  EXPECT_THAT(Compared(wait + "600 1", wait + "0 1"),
              ElementsAre("result: recorded 600, replayed 0"));
}

TEST(Differences, OutputsAreComparedAsTheTableSays) {
  const std::string size = "cuMemGetAllocationGranularity properties=- option=0 = 0 1 granularity=";
  EXPECT_THAT(Compared(size + "2097152", size + "65536"),
              ElementsAre("granularity: recorded 2097152, replayed 65536"));
  const std::string total = "cuDeviceTotalMem_v2 device=0 = 0 1 total=";
  EXPECT_THAT(Compared(total + "5", total + "6"), IsEmpty());
  EXPECT_THAT(Compared(total + "5", total + "-"), ElementsAre("total: recorded 5, replayed -"));
  // How many processors a device has is not of the driver.
  const std::string processors = "cuDeviceGetAttribute attribute=16 device=0 = 0 1 value=";
  EXPECT_THAT(Compared(processors + "132", processors + "114"), IsEmpty());
}

TEST(Differences, HandlesAreThoseOfTheTable) {
  HandleTable table;
  table.Add(Kind::kContext, 0x10, 0x99, 1);
  const std::string current = "cuCtxGetCurrent = 0 1 context=context:";
  EXPECT_THAT(Compared(current + "0x10", current + "0x99", table), IsEmpty());
  EXPECT_THAT(Compared(current + "0x10", current + "0x98", table), testing::SizeIs(1));
  EXPECT_THAT(Compared(current + "0x10", current + "0x0", table), testing::SizeIs(1));
  EXPECT_THAT(Compared(current + "0x11", current + "0x98", table), IsEmpty());
  const std::string made = "cuMemAlloc_v2 bytes=9 = 0 1 pointer=memory:";
  EXPECT_THAT(Compared(made + "0x10", made + "0x98", table), IsEmpty());
}

TEST(Differences, PointerAttributesAreComparedOneByOne) {
  HandleTable table;
  table.Add(Kind::kContext, 0x10, 0x99, 1);
  const std::string call =
      "cuPointerGetAttributes count=4 attributes=[1,2,7,99] pointer=memory:0x50 = 0 1 values=";
  EXPECT_THAT(Compared(call + "[context:0x10,2,77,-]", call + "[context:0x99,2,78,-]", table),
              IsEmpty());
  EXPECT_THAT(Compared(call + "[context:0x10,2,77,-]", call + "[context:0x98,1,78,-]", table),
              ElementsAre("attribute 1: recorded context:0x10, replayed context:0x98",
                          "attribute 2: recorded 2, replayed 1"));
}

TEST(NoteHandles, FollowsTheLifeOfMemory) {
  HandleTable table;
  const uint64_t words[kMaxArguments] = {0x9000};
  const RecordedCall made = Call("1 1 cuMemAlloc_v2 bytes=16 = 0 1 pointer=memory:0x1000");
  NoteHandles(made, Call("1 1 cuMemAlloc_v2 bytes=16 = 0 1 pointer=memory:0x9000"), words, table);
  EXPECT_EQ(*table.Find(Kind::kMemory, 0x100f), 0x900fu);
  const RecordedCall freed = Call("1 1 cuMemFree_v2 pointer=memory:0x1000 = 0 1");
  NoteHandles(freed, Call("1 1 cuMemFree_v2 pointer=memory:0x9000 = 700 1"), words, table);
  EXPECT_TRUE(table.Find(Kind::kMemory, 0x1000).ok());
  NoteHandles(freed, Call("1 1 cuMemFree_v2 pointer=memory:0x9000 = 0 1"), words, table);
  EXPECT_FALSE(table.Find(Kind::kMemory, 0x1000).ok());
  NoteHandles(made, Call("1 1 cuMemAlloc_v2 bytes=16 = 2 1"), words, table);
  EXPECT_EQ(table.Find(Kind::kMemory, 0x1000).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

// Descriptors without files behind them: closing those numbers does nothing.
TEST(ReplayExports, HandlesAndDescriptorsAreFoundInOtherProcesses) {
  ReplayExports exports;
  const std::string handle(128, '7');
  const auto open =
      Call("1 1 cuIpcOpenEventHandle handle=bytes:" + handle + " = 0 1 event=event:0x5");
  EXPECT_FALSE(exports.Find(1, open).has_value());
  exports.Add(0, Call("1 1 cuIpcGetEventHandle event=event:0x1 = 0 1 handle=bytes:" + handle),
              {.bytes = "live"});
  EXPECT_EQ(exports.Find(1, open)->bytes, "live");

  const auto exported = [](int number) {
    return Call(
        "1 1 cuMemExportToShareableHandle allocation=allocation:0x1 handle_type=1 flags=0 "
        "= 0 1 shareable=fd:" +
        std::to_string(number) + "/9/77");
  };
  const auto imported = Call(
      "1 1 cuMemImportFromShareableHandle shareable=fd:4/9/77 handle_type=1 = 0 1 "
      "allocation=allocation:0x2");
  exports.Add(0, exported(3), {.descriptor = 100001});
  exports.Add(0, exported(4), {.descriptor = 100002});
  // By its number in its own process; elsewhere in the order of the exports.
  EXPECT_EQ(exports.Find(0, imported)->descriptor, 100002);
  EXPECT_EQ(exports.Find(1, imported)->descriptor, 100001);
  EXPECT_EQ(exports.Find(1, imported)->descriptor, 100002);
  const auto of_pool = Call(
      "1 1 cuMemPoolImportFromShareableHandle shareable=fd:4/9/77 handle_type=1 flags=0 = 0 1 "
      "pool=pool:0x2");
  EXPECT_FALSE(exports.Find(1, of_pool).has_value());
}

TEST(MachineOf, DevicesAreToldByTheirUuids) {
  const auto record = [](const std::vector<std::string>& uuids) {
    std::string lines = "1 1 cuDeviceGetCount = 0 1 count=" + std::to_string(uuids.size()) + "\n";
    for (size_t i = 0; i < uuids.size(); ++i) {
      lines += "2 1 cuDeviceGetUuid_v2 device=" + std::to_string(i) +
               " = 0 1 uuid=bytes:" + uuids[i] + "\n";
    }
    return Parsed(lines +
                  "3 1 cuDeviceGetAttribute attribute=75 device=0 = 0 1 value=8\n"
                  "3 1 cuDeviceGetAttribute attribute=76 device=0 = 0 1 value=6\n");
  };
  const std::string a(32, 'a'), b(32, 'b'), c(32, 'c');
  const ReplayMachine machine =
      MachineOf({record({c}), record({a, b, c}), record({b, a}), Parsed("")});
  EXPECT_THAT(machine.visible, ElementsAre("2", "0,1,2", "1,0", ""));
  EXPECT_THAT(machine.environment,
              ElementsAre(Pair("STRICT_CUDA_COMPUTE", "8.6"), Pair("STRICT_CUDA_DEVICES", "3")));
}

}  // namespace
}  // namespace ferry::calls
