// SPDX-License-Identifier: Apache-2.0
// Stands for libudev where hwloc is linked statically: there is no udev, which hwloc is prepared for.
#include <stddef.h>

void* udev_new(void) { return NULL; }
void* udev_unref(void* udev) { return NULL; }
void* udev_device_new_from_subsystem_sysname(void* udev, const char* subsystem, const char* name) {
  return NULL;
}
const char* udev_device_get_property_value(void* device, const char* key) { return NULL; }
void* udev_device_unref(void* device) { return NULL; }
