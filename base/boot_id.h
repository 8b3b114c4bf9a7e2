// SPDX-License-Identifier: Apache-2.0
// BootId: by which processes see that they are on one machine.
#ifndef FERRY_BASE_BOOT_ID_H_
#define FERRY_BASE_BOOT_ID_H_

#include <string>

namespace ferry {

// The same for all processes of a machine, from when it starts to when it stops; "" if the kernel
// does not tell.
std::string BootId();

}  // namespace ferry

#endif  // FERRY_BASE_BOOT_ID_H_
