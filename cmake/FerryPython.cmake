# SPDX-License-Identifier: Apache-2.0
# ferry_find_nanobind(VAR REASON): sets VAR to whether the Python module can be built, and REASON to
# why not. Then the targets of Python and the functions of nanobind can be used. nanobind is installed
# from the Python index into the build folder (scripts/get_nanobind), unless nanobind_DIR names one.
option(FERRY_PYTHON "Build the Python module, where Python's headers and nanobind are to be had" ON)

macro(ferry_find_nanobind variable reason)
  set(${variable} FALSE)
  if(NOT FERRY_PYTHON)
    set(${reason} "FERRY_PYTHON is OFF")
  else()
    # The interpreter of the tests. A shim, as of pyenv, has no headers beside it.
    find_package(Python3 COMPONENTS Interpreter QUIET)
    execute_process(COMMAND ${Python3_EXECUTABLE} -c "import sys; print(sys.executable)"
                    OUTPUT_VARIABLE ferry_interpreter OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(NOT Python_EXECUTABLE)
      set(Python_EXECUTABLE ${ferry_interpreter})
    endif()
    find_package(Python 3.10 COMPONENTS Interpreter Development.Module QUIET)
    if(NOT Python_Development.Module_FOUND)
      set(${reason} "${ferry_interpreter} is older than 3.10, or has no headers (python3-dev)")
    else()
      # Tried once for a build folder: each try waits for an index that does not answer.
      if(NOT nanobind_DIR AND NOT FERRY_NO_NANOBIND_FETCHED)
        message(STATUS "Python module: installing nanobind from the Python index into ${PROJECT_BINARY_DIR}/nanobind")
        execute_process(COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/get_nanobind
                                ${PROJECT_BINARY_DIR}/nanobind
                        RESULT_VARIABLE ferry_failed OUTPUT_VARIABLE ferry_folder
                        ERROR_VARIABLE ferry_said OUTPUT_STRIP_TRAILING_WHITESPACE
                        ERROR_STRIP_TRAILING_WHITESPACE)
        if(ferry_failed)
          string(REPLACE "\n" " " ferry_said "${ferry_said}")
          set(FERRY_NO_NANOBIND_FETCHED "${ferry_said}" CACHE INTERNAL "Why scripts/get_nanobind has failed")
        else()
          set(nanobind_DIR ${ferry_folder} CACHE PATH "The folder of nanobind's CMake files")
        endif()
      endif()
      if(NOT nanobind_DIR)
        set(${reason} "${FERRY_NO_NANOBIND_FETCHED}; cmake -UFERRY_NO_NANOBIND_FETCHED tries again")
      else()
        find_package(nanobind CONFIG REQUIRED)
        set(${variable} TRUE)
      endif()
    endif()
  endif()
endmacro()
