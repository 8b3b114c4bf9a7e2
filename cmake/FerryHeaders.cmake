# SPDX-License-Identifier: Apache-2.0
# ferry_headers: the third-party headers that most files begin with, compiled once.

if(FERRY_UNITY)
  # They are taken only where code is made in the same way: for programs as for libraries.
  set(CMAKE_CXX_COMPILE_OPTIONS_PIE -fPIC)
  add_library(ferry_headers OBJECT ${PROJECT_SOURCE_DIR}/cmake/no_code.cc)
  target_link_libraries(ferry_headers PRIVATE absl::strings protobuf::libprotobuf gRPC::grpc++
                                              Threads::Threads)
  target_compile_options(ferry_headers PRIVATE -pthread)
  target_precompile_headers(ferry_headers PRIVATE
    <algorithm> <array> <atomic> <cerrno> <chrono> <cstdint> <cstdio> <cstring> <deque>
    <functional> <limits> <map> <memory> <mutex> <optional> <random> <set> <string> <thread>
    <utility> <variant> <vector>
    <absl/container/btree_map.h> <absl/container/btree_set.h> <absl/container/flat_hash_map.h>
    <absl/container/flat_hash_set.h> <absl/container/inlined_vector.h>
    <absl/functional/any_invocable.h> <absl/functional/function_ref.h> <absl/status/statusor.h>
    <absl/strings/escaping.h> <absl/strings/match.h> <absl/strings/numbers.h>
    <absl/strings/str_cat.h> <absl/strings/str_format.h> <absl/strings/str_join.h>
    <absl/strings/str_split.h> <absl/synchronization/mutex.h> <absl/synchronization/notification.h>
    <absl/time/clock.h> <absl/time/time.h> <absl/types/span.h>
    <fmt/core.h>
    <google/protobuf/extension_set.h> <google/protobuf/generated_enum_reflection.h>
    <google/protobuf/generated_message_reflection.h> <google/protobuf/map.h>
    <google/protobuf/map_entry.h> <google/protobuf/map_field_inl.h> <google/protobuf/message.h>
    <google/protobuf/unknown_field_set.h>
    <grpcpp/generic/async_generic_service.h> <grpcpp/generic/generic_stub.h> <grpcpp/grpcpp.h>
    <grpcpp/impl/codegen/client_callback.h> <grpcpp/impl/codegen/server_callback_handlers.h>)
endif()

# Lets `target` begin with them.
function(ferry_use_headers target)
  if(FERRY_UNITY)
    target_compile_options(${target} PRIVATE -pthread)
    target_precompile_headers(${target} REUSE_FROM ferry_headers)
  endif()
endfunction()
