// SPDX-License-Identifier: Apache-2.0
// A libnccl.so.2 that is too old for Ferry.
extern "C" int ncclGetVersion(int* version) {
  *version = 21703;
  return 0;
}
