// SPDX-License-Identifier: Apache-2.0
// Nothing: CMake compiles the headers of tests for the sake of this file.
