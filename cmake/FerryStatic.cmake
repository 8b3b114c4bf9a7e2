# SPDX-License-Identifier: Apache-2.0
# FERRY_STATIC: programs that need nothing of a machine but its C library. The packages' CMake files
# name shared libraries only; their static ones lie beside them, and are taken instead.
if(NOT FERRY_STATIC)
  return()
endif()

set(FERRY_STATIC_FOLDER /usr/lib/${CMAKE_CXX_LIBRARY_ARCHITECTURE})

# Lets every imported shared library of `folder` be the archive of the same name.
function(ferry_use_archives)
  get_property(targets DIRECTORY PROPERTY IMPORTED_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(NOT type MATCHES "SHARED_LIBRARY|UNKNOWN_LIBRARY")
      continue()
    endif()
    get_target_property(configurations ${target} IMPORTED_CONFIGURATIONS)
    set(properties IMPORTED_LOCATION)
    foreach(configuration IN LISTS configurations)
      list(APPEND properties IMPORTED_LOCATION_${configuration})
    endforeach()
    foreach(property IN LISTS properties)
      get_target_property(location ${target} ${property})
      if(location MATCHES "\\.so")
        string(REGEX REPLACE "\\.so[.0-9]*$" ".a" archive "${location}")
        if(NOT EXISTS ${archive})
          message(STATUS "FERRY_STATIC: ${target} has no archive ${archive}: not for programs that are packed")
          continue()
        endif()
        set_target_properties(${target} PROPERTIES ${property} ${archive})
      endif()
    endforeach()
  endforeach()
endfunction()
ferry_use_archives()

# hwloc, by pkg-config; without udev, of which there is no archive and which it can do without.
add_library(ferry_no_udev STATIC ${PROJECT_SOURCE_DIR}/cmake/no_udev.c)
set_property(TARGET PkgConfig::hwloc PROPERTY INTERFACE_LINK_LIBRARIES
             ${FERRY_STATIC_FOLDER}/libhwloc.a ferry_no_udev)

# re2, by pkg-config too.
if(TARGET re2::re2)
  set_property(TARGET re2::re2 PROPERTY INTERFACE_LINK_LIBRARIES ${FERRY_STATIC_FOLDER}/libre2.a)
endif()

# The C library's arc4random would need glibc 2.36. libstdc++, which uses it, comes after all other
# archives: --undefined takes the definition out of its archive before.
add_library(ferry_arc4random STATIC ${PROJECT_SOURCE_DIR}/cmake/arc4random.c)
set_property(TARGET ferry_arc4random PROPERTY POSITION_INDEPENDENT_CODE ON)
link_libraries(ferry_arc4random)

# The archives depend on each other, in circles that their CMake files do not declare.
file(GLOB absl_archives ${FERRY_STATIC_FOLDER}/libabsl_*.a)
set(archives ${absl_archives})
foreach(name cares re2 z upb address_sorting grpc gpr ssl crypto)
  set(archive ${FERRY_STATIC_FOLDER}/lib${name}.a)
  if(NOT EXISTS ${archive})
    message(FATAL_ERROR "FERRY_STATIC: there is no ${archive}; scripts/setup installs what has it")
  endif()
  list(APPEND archives ${archive})
endforeach()
list(JOIN archives " " archives)
set(CMAKE_CXX_STANDARD_LIBRARIES "-Wl,--start-group ${archives} -Wl,--end-group")
# libgcc_s.so.1 is on every system, and a static one would need glibc 2.35 (_dl_find_object).
string(APPEND CMAKE_EXE_LINKER_FLAGS " -static-libstdc++ -shared-libgcc -Wl,--undefined=arc4random"
                                     " -Wl,--gc-sections -Wl,--as-needed")
# Nobody debugs these; and without the folder's name in them ccache knows them in every folder.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG -ffunction-sections -fdata-sections")
