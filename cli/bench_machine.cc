// SPDX-License-Identifier: Apache-2.0
// What this machine says of itself.
#include <sys/utsname.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "cli/bench_html.h"
#include "cli/table.h"
#include "cli/version.h"
#include "gpu/discovery.h"

namespace ferry::cli {

BenchMachine LookAtMachine() {
  LocalDiscovery discovery = DiscoverLocal();
  BenchMachine machine;
  machine.topology = std::move(discovery.topology);
  utsname kernel = {};
  uname(&kernel);
  machine.facts = {
      {"host", kernel.nodename},
      {"kernel", absl::StrCat(kernel.sysname, " ", kernel.release, " ", kernel.machine)},
      {"ferry", kVersion},
      {"date", absl::FormatTime("%Y-%m-%d %H:%M UTC", absl::Now(), absl::UTCTimeZone())}};
  for (const Device& device : machine.topology.devices) {
    std::string text = device.name;
    if (device.core_count > 0) absl::StrAppend(&text, ", ", Count(device.core_count, "core"));
    if (device.memory_bytes > 0) {
      absl::StrAppend(&text, ", ", ShortBytes(static_cast<double>(device.memory_bytes)));
    }
    machine.facts.emplace_back(DeviceName(device), text);
  }
  if (!discovery.cuda_reason.empty()) machine.facts.emplace_back("no GPUs", discovery.cuda_reason);
  return machine;
}

}  // namespace ferry::cli
