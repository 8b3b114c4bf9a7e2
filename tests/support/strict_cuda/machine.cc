// SPDX-License-Identifier: Apache-2.0
// The shared tables, and which processes are alive.
#include "tests/support/strict_cuda/machine.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace strict_cuda {
namespace {

constexpr uint64_t kMagic = 0x5354524943540001;

[[noreturn]] void Die(const char* what, const std::string& path) {
  std::fprintf(stderr, "strict_cuda: %s %s: %s\n", what, path.c_str(), std::strerror(errno));
  std::abort();
}

// State letter and start time of a process; '\0' if there is none.
char ReadStat(pid_t pid, uint64_t& start) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/stat", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return '\0';
  char text[1024];
  const ssize_t bytes = read(fd, text, sizeof(text) - 1);
  close(fd);
  if (bytes <= 0) return '\0';
  text[bytes] = '\0';
  // The name in parentheses may hold anything.
  const char* at = std::strrchr(text, ')');
  if (at == nullptr) return '\0';
  const char state = at[2];
  at += 3;
  // Field 22 of the line; the state is field 3.
  for (int field = 3; field < 21 && at != nullptr; ++field) at = std::strchr(at + 1, ' ');
  start = at == nullptr ? 0 : std::strtoull(at, nullptr, 10);
  return state;
}

void Initialize(Machine& machine) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&machine.mu, &attributes);
  pthread_mutexattr_destroy(&attributes);
  machine.next_id = 1;
  machine.magic = kMagic;
}

Machine* MapMachine() {
  const std::string& session = GetConfig().session;
  const std::string path = session.empty() ? "(memory)" : session + "/machine";
  int fd = -1;
  if (session.empty()) {
    fd = memfd_create("strict_cuda machine", MFD_CLOEXEC);
  } else {
    mkdir(session.c_str(), 0777);
    fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  }
  if (fd < 0) Die("cannot open", path);
  flock(fd, LOCK_EX);
  struct stat status = {};
  if (fstat(fd, &status) != 0) Die("cannot stat", path);
  const bool fresh = status.st_size == 0;
  if (fresh && ftruncate(fd, sizeof(Machine)) != 0) Die("cannot size", path);
  void* const at = mmap(nullptr, sizeof(Machine), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) Die("cannot map", path);
  auto* const machine = static_cast<Machine*>(at);
  if (fresh) Initialize(*machine);
  if (machine->magic != kMagic) Die("is of another version:", path);
  flock(fd, LOCK_UN);
  close(fd);
  return machine;
}

ProcessSlot* MySlot() {
  ProcessSlot* free_slot = nullptr;
  for (ProcessSlot& slot : TheMachine().processes) {
    if (slot.process == Self()) return &slot;
    if (free_slot == nullptr && (slot.process.pid == 0 || !IsAlive(slot.process))) {
      free_slot = &slot;
    }
  }
  if (free_slot == nullptr) return nullptr;
  *free_slot = ProcessSlot{};
  free_slot->process = Self();
  return free_slot;
}

// One that was never used, or whose owner and importers have released it. Dead processes are looked
// for only when there is no other.
template <typename Entry, size_t kCount>
Entry* FreeEntry(Entry (&entries)[kCount]) {
  for (Entry& entry : entries) {
    if (entry.id == 0) return &entry;
  }
  for (Entry& entry : entries) {
    if ((entry.gone || !IsAlive(entry.owner)) && entry.importers.OtherThan(ProcessId{}) == 0) {
      return &entry;
    }
  }
  return nullptr;
}

}  // namespace

ProcessId Self() {
  static thread_local ProcessId self = {};
  if (self.pid != getpid()) {
    self.pid = getpid();
    ReadStat(self.pid, self.start);
  }
  return self;
}

bool IsAlive(const ProcessId& process) {
  uint64_t start = 0;
  const char state = ReadStat(process.pid, start);
  return state != '\0' && state != 'Z' && state != 'X' && start == process.start;
}

bool Importers::Add(const ProcessId& process) {
  Importer* place = nullptr;
  for (Importer& entry : entries) {
    if (entry.count > 0 && entry.process == process) {
      ++entry.count;
      return true;
    }
    if (place == nullptr && (entry.count == 0 || !IsAlive(entry.process))) place = &entry;
  }
  if (place == nullptr) return false;
  *place = Importer{process, 1};
  return true;
}

void Importers::Remove(const ProcessId& process) {
  for (Importer& entry : entries) {
    if (entry.count > 0 && entry.process == process) {
      --entry.count;
      return;
    }
  }
}

int32_t Importers::OtherThan(const ProcessId& process) const {
  for (const Importer& entry : entries) {
    if (entry.count > 0 && !(entry.process == process) && IsAlive(entry.process)) {
      return entry.process.pid;
    }
  }
  return 0;
}

Machine& TheMachine() {
  static Machine* const machine = MapMachine();
  return *machine;
}

MachineLock::MachineLock() {
  const int result = pthread_mutex_lock(&TheMachine().mu);
  if (result == EOWNERDEAD) pthread_mutex_consistent(&TheMachine().mu);
}

MachineLock::~MachineLock() { pthread_mutex_unlock(&TheMachine().mu); }

uint64_t NextId() { return TheMachine().next_id++; }

Export* NewExport() {
  Export* const entry = FreeEntry(TheMachine().exports);
  if (entry == nullptr) return nullptr;
  *entry = Export{};
  entry->id = NextId();
  entry->owner = Self();
  return entry;
}

Export* FindExport(uint64_t id) {
  if (id == 0) return nullptr;
  for (Export& entry : TheMachine().exports) {
    if (entry.id == id) return &entry;
  }
  return nullptr;
}

SharedEvent* NewSharedEvent() {
  SharedEvent* const entry = FreeEntry(TheMachine().events);
  if (entry == nullptr) return nullptr;
  std::memset(static_cast<void*>(entry), 0, sizeof(*entry));
  entry->id = NextId();
  entry->owner = Self();
  return entry;
}

SharedEvent* FindSharedEvent(uint64_t id) {
  if (id == 0) return nullptr;
  for (SharedEvent& entry : TheMachine().events) {
    if (entry.id == id) return &entry;
  }
  return nullptr;
}

size_t FreeMemory(int physical) {
  uint64_t used = 0;
  for (const ProcessSlot& slot : TheMachine().processes) {
    if (slot.used_bytes[physical] == 0 || !IsAlive(slot.process)) continue;
    used += slot.used_bytes[physical];
  }
  const size_t total = GetConfig().memory_bytes;
  return used >= total ? 0 : total - used;
}

bool HasOtherContext(int physical) {
  for (const ProcessSlot& slot : TheMachine().processes) {
    if ((slot.contexts >> physical & 1u) == 0 || slot.process == Self()) continue;
    if (IsAlive(slot.process)) return true;
  }
  return false;
}

void NoteContext(int physical, bool has) {
  ProcessSlot* const slot = MySlot();
  if (slot == nullptr) return;
  const uint32_t bit = 1u << physical;
  slot->contexts = has ? slot->contexts | bit : slot->contexts & ~bit;
}

bool TakeMemory(int physical, size_t bytes) {
  ProcessSlot* const slot = MySlot();
  if (slot == nullptr || FreeMemory(physical) < bytes) return false;
  slot->used_bytes[physical] += bytes;
  return true;
}

void GiveMemory(int physical, size_t bytes) {
  ProcessSlot* const slot = MySlot();
  if (slot != nullptr) slot->used_bytes[physical] -= bytes;
}

}  // namespace strict_cuda
