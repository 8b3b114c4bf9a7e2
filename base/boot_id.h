// SPDX-License-Identifier: Apache-2.0
// BootId: lets processes detect that they run on the same machine.
#ifndef FERRY_BASE_BOOT_ID_H_
#define FERRY_BASE_BOOT_ID_H_

#include <string>

namespace ferry {

// Returns an id that is the same for all processes of a machine from boot to shutdown; "" if the
// kernel does not report one.
std::string BootId();

}  // namespace ferry

#endif  // FERRY_BASE_BOOT_ID_H_
