// SPDX-License-Identifier: Apache-2.0
// Nothing: CMake compiles common headers for the sake of this file (FerryHeaders.cmake).
