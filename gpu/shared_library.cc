// SPDX-License-Identifier: Apache-2.0
// dlopen and dlsym.
#include "gpu/shared_library.h"

#include <dlfcn.h>
#include <elf.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

#include "absl/strings/match.h"

namespace ferry {
namespace {

// Checks that the file is as long as its ELF header says: the loader maps missing parts too, and
// accessing them kills the process. A file that cannot be read, or is not a library, is left for
// the loader to report.
absl::Status CheckWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr head = {};
  if (!file.read(reinterpret_cast<char*>(&head), sizeof(head)) ||
      std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_ident[EI_CLASS] != ELFCLASS64 ||
      head.e_phentsize != sizeof(Elf64_Phdr)) {
    return absl::OkStatus();
  }
  std::vector<Elf64_Phdr> parts(head.e_phnum);
  file.seekg(static_cast<std::streamoff>(head.e_phoff));
  file.read(reinterpret_cast<char*>(parts.data()),
            static_cast<std::streamsize>(parts.size() * sizeof(Elf64_Phdr)));
  uint64_t needed = head.e_phoff + parts.size() * sizeof(Elf64_Phdr);
  if (file) {
    for (const Elf64_Phdr& part : parts) {
      if (part.p_type == PT_LOAD) needed = std::max(needed, part.p_offset + part.p_filesz);
    }
  }
  file.clear();
  file.seekg(0, std::ios::end);
  const auto bytes = static_cast<uint64_t>(file.tellg());
  if (bytes >= needed) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("it is cut short: ", bytes, " of at least ", needed,
                                             " bytes are there; install it again"));
}

}  // namespace

absl::StatusOr<SharedLibrary> SharedLibrary::Open(const std::string& path,
                                                  const char* override_name) {
  const char* const from_environment = std::getenv(override_name);
  const bool overridden = from_environment != nullptr && *from_environment != '\0';
  const std::string chosen = overridden ? from_environment : path;
  const std::string from = overridden ? absl::StrCat(" (", override_name, ")") : "";
  if (absl::StrContains(chosen, '/')) {
    if (const absl::Status whole = CheckWhole(chosen); !whole.ok()) {
      return absl::UnavailableError(
          absl::StrCat("cannot load ", chosen, from, ": ", whole.message()));
    }
  }
  void* const handle = dlopen(chosen.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const text = dlerror();
    return absl::UnavailableError(absl::StrCat("cannot load ", chosen, from, ": ",
                                               text == nullptr ? "no reason given" : text));
  }
  return SharedLibrary(chosen, handle);
}

void* SharedLibrary::Find(const char* symbol) const { return dlsym(handle_, symbol); }

}  // namespace ferry
