// SPDX-License-Identifier: Apache-2.0
// The key-value store over the wire.
#include <string>
#include <vector>

#include "test_server.h"

namespace ferry::coord {
namespace {

using absl::StatusCode;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

using StoreWire = WireTest;
FERRY_IN_EVERY_DIALECT(StoreWire);

// The client has not registered.
TEST_P(StoreWire, InsertedValueCanBeRead) {
  TestServer server(2);
  TaskClient task = server.Task(GetParam(), 0);
  ASSERT_THAT(task.Insert("a/b", "v").Wait(), IsOk());
  EXPECT_THAT(task.Entry("TryGetKeyValue", task.TryGet("a/b").Wait()), Pair("a/b", "v"));
}

// Ferry's own records are such values.
TEST_P(StoreWire, ValueMayBeAnyBytes) {
  TestServer server(1);
  TaskClient task = server.Task(GetParam(), 0);
  const std::string value("\x0a\0\xff\xc3\n", 5);
  ASSERT_THAT(task.Insert("a/b", value).Wait(), IsOk());
  EXPECT_THAT(task.Entry("GetKeyValue", task.Get("a/b").Wait()), Pair("a/b", value));
}

// JAX's tests check the text, and that the new wheels get no payload.
TEST_P(StoreWire, KeyIsNotOverwrittenUnlessRequested) {
  TestServer server(1);
  TaskClient task = server.Task(GetParam(), 0);
  ASSERT_THAT(task.Insert("/a//b", "v").Wait(), IsOk());
  EXPECT_THAT(task.Insert("a/b", "w").Wait(),
              Fails(StatusCode::kAlreadyExists, "key a/b already exists."));
  EXPECT_THAT(task.Entry("TryGetKeyValue", task.TryGet("a/b").Wait()), Pair("a/b", "v"));
}

// 58, 59
TEST_P(StoreWire, KeyIsOverwrittenOnRequestWhetherOrNotItExists) {
  TestServer server(1);
  TaskClient task = server.Task(GetParam(), 0);
  ASSERT_THAT(task.Insert("k", "one", true).Wait(), IsOk());
  ASSERT_THAT(task.Insert("k", "two", true).Wait(), IsOk());
  EXPECT_THAT(task.Entry("TryGetKeyValue", task.TryGet("k").Wait()), Pair("k", "two"));
}

// The answer's key is the caller's, not the normalized one; topology code compares it.
TEST_P(StoreWire, GetWaitsForTheKeyAndEchoesItAsRequested) {
  TestServer server(1);
  TaskClient reader = server.Task(GetParam(), 0);
  TaskClient writer = server.Task(GetParam(), 0);
  const PendingCall get = reader.Get("/path//to/key/");
  ASSERT_TRUE(server.WaitUntilParked(1));
  EXPECT_FALSE(get.done());
  ASSERT_THAT(writer.Insert("path/to/key", "v").Wait(), IsOk());
  EXPECT_THAT(reader.Entry("GetKeyValue", get.Wait()), Pair("/path//to/key/", "v"));
  EXPECT_THAT(reader.Entry("TryGetKeyValue", reader.TryGet("//path/to//key").Wait()),
              Pair("//path/to//key", "v"));
}

// 62, 63
TEST_P(StoreWire, DeletingADirectoryMakesGetsUnderItWaitAgain) {
  TestServer server(1);
  TaskClient task = server.Task(GetParam(), 0);
  ASSERT_THAT(task.Insert("path/to/key1", "old").Wait(), IsOk());
  ASSERT_THAT(task.Delete("/path").Wait(), IsOk());
  const PendingCall get = task.Get("path/to/key1");
  ASSERT_TRUE(server.WaitUntilParked(1));
  ASSERT_THAT(task.Insert("path/to/key1", "new").Wait(), IsOk());
  EXPECT_THAT(task.Entry("GetKeyValue", get.Wait()), Pair("path/to/key1", "new"));
}

// Text and payload as jaxlib's own service sends them.
TEST_P(StoreWire, MissingKeyIsNotFoundUnderTheRequestedName) {
  TestServer server(1);
  TaskClient task = server.Task(GetParam(), 0);
  const Answer answer = task.TryGet("/no//such/").Wait();
  EXPECT_THAT(answer, Fails(StatusCode::kNotFound, "Config key /no//such/ not found."));
  EXPECT_THAT(PayloadsOf(answer), ElementsAre(Pair(kCoordinationPayload, "")));
  ASSERT_THAT(task.Insert("k", "v").Wait(), IsOk());
  ASSERT_THAT(task.Delete("k").Wait(), IsOk());
  EXPECT_THAT(task.TryGet("k").Wait(), Fails(StatusCode::kNotFound));
}

// 65
TEST_P(StoreWire, DeletingAMissingKeyIsOk) {
  TestServer server(1);
  EXPECT_THAT(server.Task(GetParam(), 0).Delete("nothing").Wait(), IsOk());
}

// 66, 67, 68, 70, 71
TEST_P(StoreWire, DirectoryListsItsKeysInOrder) {
  TestServer server(1);
  TaskClient task = server.Task(GetParam(), 0);
  EXPECT_THAT(task.Listed(task.List("dir").Wait()), IsEmpty());
  for (const char* key : {"dir/path", "dir/sub_dir/path", "dir/a", "dir", "dir_x/path"}) {
    ASSERT_THAT(task.Insert(key, std::string("at ") + key).Wait(), IsOk());
  }
  const auto expected = ElementsAre(Pair("dir/a", "at dir/a"), Pair("dir/path", "at dir/path"),
                                    Pair("dir/sub_dir/path", "at dir/sub_dir/path"));
  EXPECT_THAT(task.Listed(task.List("dir").Wait()), expected);
  EXPECT_THAT(task.Listed(task.List("/dir/").Wait()), expected);
  ASSERT_THAT(task.Delete("dir/").Wait(), IsOk());
  EXPECT_THAT(task.Listed(task.List("dir").Wait()), IsEmpty());
  EXPECT_THAT(task.TryGet("dir_x/path").Wait(), IsOk());
}

// 72, 73
TEST_P(StoreWire, IncrementsAreDecimalText) {
  TestServer server(1);
  TaskClient task = server.Task(GetParam(), 0);
  ASSERT_THAT(task.Insert("n", "1").Wait(), IsOk());
  const auto add = [&](const std::string& key, int64_t increment) {
    return task.Entry("IncrementKeyValue", task.Increment(key, increment).Wait()).second;
  };
  EXPECT_EQ(add("n", 3), "4");
  EXPECT_EQ(add("fresh", 10), "10");
  EXPECT_EQ(add("n", -6), "-2");
  // Better than upstream (docs/protocols.md): 64 bits.
  EXPECT_EQ(add("big", int64_t{1} << 40), "1099511627776");
  ASSERT_THAT(task.Insert("text", "12 monkeys").Wait(), IsOk());
  EXPECT_THAT(task.Increment("text", 1).Wait(), Fails(StatusCode::kFailedPrecondition));
}

// 75
TEST_P(StoreWire, PendingGetIsCancelledWhenTheServiceStops) {
  TestServer server(1);
  TaskClient task = server.Task(GetParam(), 0);
  const PendingCall get = task.Get("never");
  ASSERT_TRUE(server.WaitUntilParked(1));
  server->Stop();
  EXPECT_THAT(get.Wait(), Fails(StatusCode::kCancelled));
}

// The client times out locally, and the server is notified.
TEST_P(StoreWire, AbandonedGetAffectsNoOtherAndIsCounted) {
  TestServer server(1);
  TaskClient task = server.Task(GetParam(), 0);
  const PendingCall given_up = task.Get("never");
  const PendingCall other = task.Get("later");
  ASSERT_TRUE(server.WaitUntilParked(2));
  given_up.Cancel();
  EXPECT_THAT(given_up.Wait(), Fails(StatusCode::kCancelled));
  ASSERT_TRUE(server.WaitUntilParked(1));
  EXPECT_TRUE(Eventually([&] { return server->frontend().dropped_waits() == 1; }));
  ASSERT_THAT(task.Insert("later", "v").Wait(), IsOk());
  EXPECT_THAT(task.Entry("GetKeyValue", other.Wait()), Pair("later", "v"));
}

// Beyond gRPC's default of 4 MiB.
TEST_P(StoreWire, TenMebibytesFitInOneList) {
  TestServer server(1);
  TaskClient task = server.Task(GetParam(), 0);
  for (int i = 0; i < 10; ++i) {
    ASSERT_THAT(task.Insert("d/" + std::to_string(i), std::string(1 << 20, 'a' + i)).Wait(),
                IsOk());
  }
  const Entries entries = task.Listed(task.List("d").Wait());
  ASSERT_EQ(entries.size(), 10u);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(entries[i].first, "d/" + std::to_string(i));
    EXPECT_TRUE(entries[i].second == std::string(1 << 20, 'a' + i));
  }
}

// NCCL ids are 128 raw bytes.
TEST_P(StoreWire, ValuesAreAnyBytes) {
  TestServer server(1);
  TaskClient task = server.Task(GetParam(), 0);
  std::string all_bytes;
  for (int i = 0; i < 256; ++i) all_bytes.push_back(static_cast<char>(i));
  ASSERT_THAT(task.Insert("nccl", all_bytes).Wait(), IsOk());
  EXPECT_EQ(task.Entry("GetKeyValue", task.Get("nccl").Wait()).second, all_bytes);
  ASSERT_THAT(task.Insert("empty", "").Wait(), IsOk());
  EXPECT_EQ(task.Entry("GetKeyValue", task.Get("empty").Wait()).second, "");
}

// Section 1.6: clique keys grow with the number of processes.
TEST_P(StoreWire, KeysOfTensOfKilobytesWork) {
  TestServer server(1);
  TaskClient task = server.Task(GetParam(), 0);
  std::string key = "cuda:root_process: 0; clique: devices=4096:[0-7, 4094-4095]; incarnations=[";
  while (key.size() < 64 << 10) key += "18446744073709551615, ";
  key += "]";
  ASSERT_THAT(task.Insert(key, "id").Wait(), IsOk());
  EXPECT_THAT(task.Entry("GetKeyValue", task.Get(key).Wait()), Pair(key, "id"));
}

// The 2022 text with a payload belongs to clients that cannot overwrite at all; later clients
// receive it without one. Both kinds use the tensorflow path, so the text is the new one, and
// 0.4.13 accepts either (it only checks the code).
TEST(StoreWireText, AlreadyExistsHasNoCoordinationPayload) {
  TestServer server(1);
  TaskClient task = server.Task(Dialect::kIncarnations, 0);
  ASSERT_THAT(task.Insert("k", "v").Wait(), IsOk());
  const Answer answer = task.Insert("k", "v").Wait();
  EXPECT_THAT(answer, Fails(StatusCode::kAlreadyExists));
  EXPECT_THAT(PayloadsOf(answer), Not(Contains(Key(kCoordinationPayload))));
}

}  // namespace
}  // namespace ferry::coord
