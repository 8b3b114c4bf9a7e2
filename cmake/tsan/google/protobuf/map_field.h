// SPDX-License-Identifier: Apache-2.0
// Protobuf's header of this name, as Debian's library was compiled with it: under ThreadSanitizer
// it adds members to maps, and what the library and this build call each other with is not the same
// object then (a graph's attributes, when somebody asks how much memory it takes).
#ifndef FERRY_CMAKE_TSAN_GOOGLE_PROTOBUF_MAP_FIELD_H_
#define FERRY_CMAKE_TSAN_GOOGLE_PROTOBUF_MAP_FIELD_H_

// These are to know of the sanitizer.
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#pragma push_macro("__SANITIZE_THREAD__")
#undef __SANITIZE_THREAD__
#include_next <google/protobuf/map_field.h>
#pragma pop_macro("__SANITIZE_THREAD__")

#endif  // FERRY_CMAKE_TSAN_GOOGLE_PROTOBUF_MAP_FIELD_H_
