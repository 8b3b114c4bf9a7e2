# SPDX-License-Identifier: Apache-2.0
# Compiler flags, ccache and the sanitizer build types.
find_program(FERRY_CCACHE ccache)
if(FERRY_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # With what its manual asks for where headers are compiled ahead.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros ${FERRY_CCACHE})
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # GCC frees memory too eagerly for files this large: it takes a tenth of the time.
  add_compile_options(--param=ggc-min-heapsize=400000 --param=ggc-min-expand=100)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  # ccache cannot reuse what was compiled with a precompiled header that holds a time.
  add_compile_options("SHELL:-Xclang -fno-pch-timestamp")
endif()

if(NOT FERRY_STATIC AND NOT FERRY_FUZZ)
  # Half of the usual linker's time, a hundred times over. It comes with Debian's compiler.
  include(CheckLinkerFlag)
  check_linker_flag(CXX -fuse-ld=gold FERRY_HAS_GOLD)
  if(FERRY_HAS_GOLD)
    add_link_options(-fuse-ld=gold)
  endif()
endif()

set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g")
# Objects that are made for their warnings alone (scripts/check).
set(CMAKE_CXX_FLAGS_CHECK "-O0 -g0")
set(CMAKE_CXX_FLAGS_ASAN
    "-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined")
set(CMAKE_EXE_LINKER_FLAGS_ASAN "-fsanitize=address,undefined")
set(CMAKE_CXX_FLAGS_TSAN "-O1 -g1 -fno-omit-frame-pointer -fsanitize=thread")
set(CMAKE_EXE_LINKER_FLAGS_TSAN "-fsanitize=thread")
include_directories(BEFORE SYSTEM $<$<CONFIG:Tsan>:${PROJECT_SOURCE_DIR}/cmake/tsan>)

if(FERRY_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "FERRY_FUZZ needs clang: -DCMAKE_CXX_COMPILER=clang++-14")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=address,undefined)
endif()

# Applied to our own targets only; generated code is compiled with its own, quieter set.
function(ferry_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Werror -Wno-unused-parameter
                         -Wno-missing-field-initializers)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # GCC 12 sees overlaps in std::string::insert that are not there (its bug 105651).
    target_compile_options(${target} PRIVATE -Wno-restrict)
    # Its analysis of uninitialised values takes Abseil's inline vectors for such.
    target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized)
    if(FERRY_UNITY)
      # It forgets of headers that are compiled ahead that they are the system's.
      target_compile_options(${target} PRIVATE -Wno-uninitialized -Wno-stringop-overflow
                             -Wno-stringop-overread -Wno-array-bounds)
    endif()
  endif()
  if(FERRY_THREAD_SAFETY AND CMAKE_CXX_COMPILER_ID MATCHES Clang)
    target_compile_options(${target} PRIVATE -Wthread-safety)
  endif()
endfunction()
