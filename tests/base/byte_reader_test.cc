// SPDX-License-Identifier: Apache-2.0
// Fields at the very end, and beyond it.
#include "base/byte_reader.h"

#include <cstdint>
#include <string>

#include <gtest/gtest.h>

namespace ferry {
namespace {

TEST(ByteReader, ReadsToItsEnd) {
  ByteReader reader(absl::string_view("\x01\x02\x00\x03\x00hey", 8));
  EXPECT_EQ(reader.Get<uint8_t>(), 1);
  EXPECT_EQ(reader.Get<uint16_t>(), 2);
  EXPECT_EQ(reader.GetText(), "hey");
  EXPECT_TRUE(reader.rest().empty());
  EXPECT_EQ(reader.GetBytes(0), "");
  EXPECT_FALSE(reader.is_short());
}

// A partial field is missing, and so are the fields after it.
TEST(ByteReader, MissingField_ReadsAsZeroAndIsRemembered) {
  ByteReader reader(absl::string_view("\xff\xff\xff", 3));
  EXPECT_EQ(reader.Get<uint32_t>(), 0u);
  EXPECT_TRUE(reader.is_short());
  EXPECT_EQ(reader.Get<uint8_t>(), 0);
  EXPECT_TRUE(reader.rest().empty());
}

TEST(ByteReader, TextLongerThanTheRest_IsEmpty) {
  ByteReader reader(absl::string_view("\x04\x00hey", 5));
  EXPECT_EQ(reader.GetText(), "");
  EXPECT_TRUE(reader.is_short());
  ByteReader most(absl::string_view("abc", 3));
  EXPECT_EQ(most.GetBytes(SIZE_MAX), "");
  EXPECT_TRUE(most.is_short());
}

TEST(ByteWriter, FillsItsRoomAndNoMore) {
  char room[4] = {'-', '-', '-', '-'};
  ByteWriter writer(room, 3);
  writer.Put(uint8_t{1});
  writer.Put(uint16_t{2});
  EXPECT_FALSE(writer.has_overflown());
  EXPECT_EQ(writer.view(), absl::string_view("\x01\x02\x00", 3));
  writer.PutBytes("");
  EXPECT_FALSE(writer.has_overflown());
  writer.Put(uint8_t{3});
  EXPECT_TRUE(writer.has_overflown());
  EXPECT_EQ(writer.view().size(), 3u);
  EXPECT_EQ(room[3], '-');
}

// A field that does not fit is left out as a whole.
TEST(ByteWriter, DoesNotBeginAFieldThatDoesNotFit) {
  char room[4] = {'-', '-', '-', '-'};
  ByteWriter writer(room, sizeof(room));
  writer.Put(uint8_t{1});
  writer.Put(uint32_t{2});
  EXPECT_TRUE(writer.has_overflown());
  EXPECT_EQ(writer.view().size(), 1u);
  EXPECT_EQ(room[1], '-');
}

// Its length has two bytes.
TEST(ByteWriter, TextIsCutAtTheLimitOfItsLength) {
  std::string room(70'000, '-');
  for (const size_t bytes : {size_t{65'535}, size_t{65'536}}) {
    ByteWriter writer(room.data(), room.size());
    writer.PutText(std::string(bytes, 'x'));
    EXPECT_FALSE(writer.has_overflown());
    ByteReader reader(writer.view());
    EXPECT_EQ(reader.GetText().size(), 65'535u);
    EXPECT_TRUE(reader.rest().empty());
  }
}

}  // namespace
}  // namespace ferry
