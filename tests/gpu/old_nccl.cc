// SPDX-License-Identifier: Apache-2.0
// A libnccl.so.2 that is too old for Ferry: the last release before kMinVersion.
extern "C" int ncclGetVersion(int* version) {
  *version = 21806;
  return 0;
}
