// SPDX-License-Identifier: Apache-2.0
// Collects facts about this machine.
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"

#include "bench/html.h"
#include "cli/table.h"
#include "cli/version.h"
#include "gpu/discovery.h"
#include "topology/host_discovery.h"

namespace ferry::cli {

namespace {

// Quotes a word for a shell.
std::string ShellWord(const std::string& word) {
  const bool is_plain =
      !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char letter) {
        return absl::ascii_isalnum(letter) || std::strchr("_-./:=,+@%", letter) != nullptr;
      });
  return is_plain ? word : absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

std::string CommandLine() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(ShellWord(word));
  return absl::StrJoin(words, " ");
}

}  // namespace

std::vector<std::pair<std::string, std::string>> LookAtRun() {
  utsname kernel = {};
  uname(&kernel);
  return {{"host", kernel.nodename},
          {"kernel", absl::StrCat(kernel.sysname, " ", kernel.release, " ", kernel.machine)},
          {"processors", DiscoverHost().device.name},
          {"ferry", kVersion},
          {"date", absl::FormatTime("%Y-%m-%d %H:%M UTC", absl::Now(), absl::UTCTimeZone())},
          {"command", CommandLine()}};
}

BenchMachine LookAtMachine() {
  LocalDiscovery discovery = DiscoverLocal();
  BenchMachine machine;
  machine.topology = std::move(discovery.topology);
  machine.facts = LookAtRun();
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
