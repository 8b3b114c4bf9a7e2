# SPDX-License-Identifier: Apache-2.0
# cmake -DMADE=FILE -DCHECKED_IN=FILE -DREQUIREMENTS=FILE [-DRENEW=ON] -P FerryKernelsPtx.cmake: fails
# unless the PTX of this build is the one that is checked in; with RENEW, copies it there. Compilers
# differ in the PTX that they make, so only that of REQUIREMENTS can say: with another one nothing is
# compared ("SKIP: ").
set(how_to_renew "write it anew with that compiler: scripts/get_nvcc FOLDER prints its path; cmake \
-DFERRY_NVCC=PATH build/release; scripts/build release renew_kernels_ptx; and commit it")

# "13.0.88", as the compiler writes it into its output.
function(compiler_of path variable)
  set(${variable} "unknown" PARENT_SCOPE)
  if(EXISTS ${path})
    file(READ ${path} text LIMIT 2000)
    if(text MATCHES "Cuda compilation tools, release [0-9.]+, V([0-9.]+)")
      set(${variable} ${CMAKE_MATCH_1} PARENT_SCOPE)
    endif()
  endif()
endfunction()

file(READ ${REQUIREMENTS} pins)
if(NOT pins MATCHES "\nnvidia-cuda-nvcc==([0-9.]+)")
  message(FATAL_ERROR "${REQUIREMENTS} does not pin nvidia-cuda-nvcc")
endif()
set(pinned ${CMAKE_MATCH_1})
if(NOT EXISTS ${MADE})
  message(FATAL_ERROR "${MADE} is not there: build the target ferry_gpu first")
endif()
compiler_of(${MADE} maker)
compiler_of(${CHECKED_IN} former_maker)

if(RENEW)
  if(NOT maker STREQUAL pinned)
    message(FATAL_ERROR "This build's nvcc is ${maker}, and not ${pinned}, which ${REQUIREMENTS} pins: ${how_to_renew}")
  endif()
  configure_file(${MADE} ${CHECKED_IN} COPYONLY)
  message(STATUS "${CHECKED_IN} is what this build compiled")
  return()
endif()

if(NOT former_maker STREQUAL pinned)
  message(FATAL_ERROR "${CHECKED_IN} is of nvcc ${former_maker}, and not of ${pinned}, which ${REQUIREMENTS} pins: ${how_to_renew}")
endif()
if(NOT maker STREQUAL pinned)
  message("SKIP: this build's nvcc is ${maker}; the PTX that is checked in is of ${pinned}")
  return()
endif()
file(READ ${MADE} made)
file(READ ${CHECKED_IN} checked_in)
if(NOT made STREQUAL checked_in)
  message(FATAL_ERROR "${CHECKED_IN} is not what nvcc ${pinned} makes of its source: ${how_to_renew}")
endif()
message(STATUS "${CHECKED_IN} is what nvcc ${pinned} makes of its source")
