# SPDX-License-Identifier: Apache-2.0
# cmake --install: the tool, the public headers, libraries and a package config for find_package(ferry),
# whose target ferry::ferry is the public API.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(ferry_targets GLOBAL PROPERTY FERRY_INSTALL_TARGETS)
install(TARGETS ${ferry_targets} EXPORT ferry ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET ferry)
  install(TARGETS ferry RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ferry DESTINATION include FILES_MATCHING PATTERN "*.h")
install(DIRECTORY ${PROJECT_SOURCE_DIR}/proto DESTINATION share/ferry FILES_MATCHING PATTERN "*.proto")

set(ferry_config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ferry)
install(EXPORT ferry NAMESPACE ferry:: DESTINATION ${ferry_config_dir} FILE ferryTargets.cmake)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/ferryConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/ferryConfig.cmake
                              INSTALL_DESTINATION ${ferry_config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ferryConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ferryConfig.cmake
              ${PROJECT_BINARY_DIR}/ferryConfigVersion.cmake
        DESTINATION ${ferry_config_dir})
