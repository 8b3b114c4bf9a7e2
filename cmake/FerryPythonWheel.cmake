# SPDX-License-Identifier: Apache-2.0
# The component python: the contents of a wheel besides Python files, when scikit-build-core builds it from this tree
# (`pip install ./python`). scripts/wheel builds those that go to other machines (cmake/wheel).
if(NOT TARGET ferry_python)
  message(FATAL_ERROR "the Python module cannot be built; the line \"Python module: none\" above says why")
endif()
install(TARGETS ferry_python LIBRARY DESTINATION ferry COMPONENT python)
install(TARGETS ferry RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT python)
