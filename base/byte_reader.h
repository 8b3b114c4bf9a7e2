// SPDX-License-Identifier: Apache-2.0
// ByteWriter, ByteReader: bounds-checked little-endian fields of our own wire formats.
#ifndef FERRY_BASE_BYTE_READER_H_
#define FERRY_BASE_BYTE_READER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/strings/string_view.h"

namespace ferry {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "fields travel as they lie in memory");

// Writes into the caller's buffer; what does not fit is dropped and recorded.
class ByteWriter final {
 public:
  ByteWriter(char* room, size_t bytes) : begin_(room), at_(room), end_(room + bytes) {}

  template <typename T>
  void Put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    PutBytes({reinterpret_cast<const char*>(&value), sizeof(value)});
  }
  void PutBytes(absl::string_view bytes) {
    if (bytes.size() > static_cast<size_t>(end_ - at_)) {
      has_overflown_ = true;
      return;
    }
    // An empty view may have no address.
    if (!bytes.empty()) std::memcpy(at_, bytes.data(), bytes.size());
    at_ += bytes.size();
  }
  // Writes the length, then the text, which is cut to 64 KiB.
  void PutText(absl::string_view text) {
    text = text.substr(0, UINT16_MAX);
    Put(static_cast<uint16_t>(text.size()));
    PutBytes(text);
  }

  bool has_overflown() const { return has_overflown_; }
  absl::string_view view() const { return {begin_, static_cast<size_t>(at_ - begin_)}; }

 private:
  char* const begin_;
  char* at_;
  char* const end_;
  bool has_overflown_ = false;
};

// Reads untrusted bytes. Fields beyond the end read as zero, which is recorded.
class ByteReader final {
 public:
  explicit ByteReader(absl::string_view bytes) : rest_(bytes) {}

  template <typename T>
  T Get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const absl::string_view bytes = GetBytes(sizeof(T));
    if (bytes.size() == sizeof(T)) std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  absl::string_view GetBytes(size_t count) {
    if (count > rest_.size()) {
      is_short_ = true;
      rest_ = {};
      return {};
    }
    const absl::string_view bytes = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return bytes;
  }
  absl::string_view GetText() { return GetBytes(Get<uint16_t>()); }

  // True if a read went beyond the end.
  bool is_short() const { return is_short_; }
  absl::string_view rest() const { return rest_; }

 private:
  absl::string_view rest_;
  bool is_short_ = false;
};

}  // namespace ferry

#endif  // FERRY_BASE_BYTE_READER_H_
