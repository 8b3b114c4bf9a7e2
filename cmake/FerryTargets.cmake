# SPDX-License-Identifier: Apache-2.0
# ferry_library, ferry_test: one library per folder whose DEPS must stand to its left in FERRY_LAYERS.

# The linear order of folders. scripts/check_layers reads this very list; it also orders the folders
# within one library (FERRY_INNER_LAYERS), none of which may include one to its right.
set(FERRY_LAYERS base proto topology tensor net coord gpu transport rendezvous node api
                 tensorflow/graph tensorflow/worker tensorflow/master tensorflow/node_worker launch
                 cli doctor bench)
set(FERRY_INNER_LAYERS coord/core coord/tcpstore coord/lighthouse coord/elastic coord/wire coord/client coord/server)

# ferry_library(FOLDER SOURCES a.cc... [DEPS base...] [PRIVATE_DEPS net...] [EXTERNAL absl::status...] [PUBLIC_API])
#   The library is named after the last part of FOLDER. DEPS: others, passed on to users of this one; PRIVATE_DEPS: others that
#   users only link. EXTERNAL: third-party targets. PUBLIC_API: users see the headers in include/ and no others.
function(ferry_library folder)
  cmake_parse_arguments(arg "PUBLIC_API" "" "SOURCES;DEPS;PRIVATE_DEPS;EXTERNAL" ${ARGN})
  list(FIND FERRY_LAYERS ${folder} own_rank)
  if(own_rank EQUAL -1)
    message(FATAL_ERROR "${folder} is not in FERRY_LAYERS (cmake/FerryTargets.cmake)")
  endif()
  list(TRANSFORM FERRY_LAYERS REPLACE "^.*/" "" OUTPUT_VARIABLE names)
  list(GET names ${own_rank} name)
  add_library(ferry_${name} STATIC ${arg_SOURCES})
  add_library(ferry::${name} ALIAS ferry_${name})
  set_target_properties(ferry_${name} PROPERTIES EXPORT_NAME ${name})
  if(arg_PUBLIC_API)
    target_include_directories(ferry_${name} PRIVATE ${PROJECT_SOURCE_DIR}
                                             PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                    $<INSTALL_INTERFACE:include>)
  else()
    # Not installed: programs see the public API only.
    target_include_directories(ferry_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  endif()
  target_compile_features(ferry_${name} PUBLIC cxx_std_20)
  ferry_warnings(ferry_${name})
  ferry_use_headers(ferry_${name})
  foreach(dep IN LISTS arg_DEPS arg_PRIVATE_DEPS)
    list(FIND names ${dep} dep_rank)
    if(dep_rank EQUAL -1 OR dep_rank GREATER_EQUAL own_rank)
      message(FATAL_ERROR "${name} may not depend on ${dep}: see FERRY_LAYERS")
    endif()
  endforeach()
  list(TRANSFORM arg_DEPS PREPEND ferry::)
  list(TRANSFORM arg_PRIVATE_DEPS PREPEND ferry::)
  target_link_libraries(ferry_${name} PUBLIC ${arg_DEPS} PRIVATE ${arg_PRIVATE_DEPS})
  target_link_libraries(ferry_${name} PUBLIC ${arg_EXTERNAL})
  set_property(GLOBAL APPEND PROPERTY FERRY_INSTALL_TARGETS ferry_${name})
endfunction()

# ferry_test(NAME LABEL unit|process|gpu SOURCES a_test.cc... [DEPS coord...] [EXTERNAL ...]
#            [TIMEOUT_S 120] [COST 60] [ARGS ...] [SEPARATE b_test.cc...] [OPTIMISED] [WAITS])
#   One CTest entry per binary; scripts/test reads the skip reasons out of its output.
#   SEPARATE: those of SOURCES that have names in common with others, and are compiled alone.
#   OPTIMISED: it spends its time in its own sources, as a simulation does.
#   WAITS: a process test that takes no more than one core on average, and whose deadlines leave room
#   for another test beside it.
#   COST: seconds, for a test of a minute or more: it starts before others, so that it does not end
#   alone. CTest prefers times that it has measured.
function(ferry_test name)
  cmake_parse_arguments(arg "OPTIMISED;WAITS" "LABEL;TIMEOUT_S;COST" "SOURCES;DEPS;EXTERNAL;ARGS;SEPARATE" ${ARGN})
  if(NOT arg_TIMEOUT_S)
    set(arg_TIMEOUT_S 120)
  endif()
  add_executable(${name} ${arg_SOURCES})
  set_source_files_properties(${arg_SEPARATE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  ferry_warnings(${name})
  if(arg_OPTIMISED)
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O2> $<$<CONFIG:Release>:-g1>)
    ferry_use_headers(${name})
  elseif(FERRY_UNITY)
    target_compile_options(${name} PRIVATE -pthread)
    target_precompile_headers(${name} REUSE_FROM ferry_test_headers)
  endif()
  list(TRANSFORM arg_DEPS PREPEND ferry::)
  target_link_libraries(${name} PRIVATE ${arg_DEPS} ${arg_EXTERNAL} GTest::gmock_main)
  if(TARGET ferry_tsan)
    target_link_libraries(${name} PRIVATE ferry_tsan)
  endif()
  add_test(NAME ${name} COMMAND ${name} ${arg_ARGS})
  set_tests_properties(${name} PROPERTIES LABELS ${arg_LABEL} TIMEOUT ${arg_TIMEOUT_S})
  if(arg_COST)
    set_tests_properties(${name} PROPERTIES COST ${arg_COST})
  endif()
  set(processors 1)
  if(arg_LABEL STREQUAL process AND NOT arg_WAITS)
    # Their peers have deadlines of fractions of a second: not two of them on a small machine.
    set(processors 2)
  endif()
  set_tests_properties(${name} PROPERTIES PROCESSORS ${processors})
  # For further tests with that program.
  set_target_properties(${name} PROPERTIES FERRY_TEST_PROCESSORS ${processors})
endfunction()
