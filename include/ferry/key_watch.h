// SPDX-License-Identifier: Apache-2.0
// KeyWatch: a watch of the coordinator's keys under a prefix.
#ifndef FERRY_INCLUDE_FERRY_KEY_WATCH_H_
#define FERRY_INCLUDE_FERRY_KEY_WATCH_H_

#include <cstdint>
#include <memory>
#include <string>

#include <ferry/namespace.h>

namespace ferry {
FERRY_NAMESPACE_BEGIN

struct KeyValue {
  std::string key;
  std::string value;
  // Grows with every change of the store.
  int64_t revision = 0;
};

struct KeyChange {
  // The key was deleted; its value is then empty.
  bool is_deleted = false;
  KeyValue entry;
};

// Reports changes until it is destroyed, which waits for a callback in progress unless it is called
// inside that callback. Move-only; made by CoordinatorClient::Watch, which must outlive it.
class KeyWatch {
 public:
  // Watches nothing.
  KeyWatch();
  KeyWatch(KeyWatch&& other) noexcept;
  KeyWatch& operator=(KeyWatch&& other) noexcept;
  ~KeyWatch();

 private:
  class Impl;
  friend class ApiAccess;

  std::unique_ptr<Impl> impl_;
};

FERRY_NAMESPACE_END
}  // namespace ferry

#endif  // FERRY_INCLUDE_FERRY_KEY_WATCH_H_
