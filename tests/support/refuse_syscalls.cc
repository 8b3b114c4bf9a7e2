// SPDX-License-Identifier: Apache-2.0
// Runs a command to which named system calls fail, as under a container's seccomp profile:
//
//   refuse_syscalls CALL[@FIRST|&BITS][:ERRNO][,...] -- COMMAND [ARGUMENT...]
//
// CALL fails with ERRNO (EPERM unless given) in the command and in everything that it starts. With
// @FIRST only if its first argument is that number (socket@10 is socket(AF_INET6)); with &BITS only
// if its first argument has all these bits (clone&0x10000 makes threads and spares processes).
// Exits with 2 if the command line is wrong, and with 125 if the kernel takes no filter.
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

struct Named {
  const char* name;
  int64_t number;
};

#define FERRY_CALL(name) \
  { #name, SYS_##name }
// The calls that a test has named so far, and their neighbours. Architectures differ in the older
// ones.
constexpr Named kCalls[] = {
    FERRY_CALL(accept4),
    FERRY_CALL(bind),
    FERRY_CALL(clone),
#ifdef SYS_clone3
    FERRY_CALL(clone3),
#endif
    FERRY_CALL(connect),
    FERRY_CALL(epoll_create1),
    FERRY_CALL(eventfd2),
    FERRY_CALL(fallocate),
    FERRY_CALL(ftruncate),
    FERRY_CALL(get_mempolicy),
    FERRY_CALL(getcpu),
    FERRY_CALL(getrandom),
    FERRY_CALL(io_uring_setup),
    FERRY_CALL(kcmp),
    FERRY_CALL(listen),
    FERRY_CALL(madvise),
    FERRY_CALL(mbind),
    FERRY_CALL(membarrier),
    FERRY_CALL(memfd_create),
    FERRY_CALL(mincore),
    FERRY_CALL(mlock),
    FERRY_CALL(mlock2),
    FERRY_CALL(perf_event_open),
    FERRY_CALL(pidfd_getfd),
    FERRY_CALL(pidfd_open),
    FERRY_CALL(prctl),
    FERRY_CALL(prlimit64),
    FERRY_CALL(process_vm_readv),
    FERRY_CALL(process_vm_writev),
    FERRY_CALL(ptrace),
    FERRY_CALL(rseq),
    FERRY_CALL(sched_getaffinity),
    FERRY_CALL(sched_setaffinity),
    FERRY_CALL(sched_setscheduler),
    FERRY_CALL(setsockopt),
    FERRY_CALL(signalfd4),
    FERRY_CALL(socket),
    FERRY_CALL(socketpair),
    FERRY_CALL(timerfd_create),
    FERRY_CALL(userfaultfd),
};
#undef FERRY_CALL

constexpr Named kErrors[] = {
    {"EACCES", EACCES}, {"EAFNOSUPPORT", EAFNOSUPPORT},
    {"EAGAIN", EAGAIN}, {"EINVAL", EINVAL},
    {"EMFILE", EMFILE}, {"ENODEV", ENODEV},
    {"ENOMEM", ENOMEM}, {"ENOSYS", ENOSYS},
    {"EPERM", EPERM},
};

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
#error "unknown architecture"
#endif
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the low word of an argument is first");

[[noreturn]] void Misused(const std::string& why) {
  std::fprintf(stderr,
               "refuse_syscalls: %s\n"
               "usage: refuse_syscalls CALL[@FIRST|&BITS][:ERRNO][,...] -- COMMAND [ARGUMENT...]\n",
               why.c_str());
  std::exit(2);
}

template <size_t kCount>
uint32_t Find(const Named (&all)[kCount], const std::string& name) {
  for (const Named& one : all) {
    if (name == one.name) return static_cast<uint32_t>(one.number);
  }
  Misused("knows no " + name);
}

uint32_t Number(const std::string& text) {
  char* end = nullptr;
  const unsigned long value = std::strtoul(text.c_str(), &end, 0);
  if (text.empty() || *end != '\0' || value > UINT32_MAX) Misused("'" + text + "' is no number");
  return static_cast<uint32_t>(value);
}

sock_filter Load(size_t offset) {
  return {BPF_LD | BPF_W | BPF_ABS, 0, 0, static_cast<uint32_t>(offset)};
}

// Continues with the next instruction if it holds, else skips `otherwise`.
sock_filter If(uint16_t test, uint32_t value, uint8_t otherwise) {
  return {static_cast<uint16_t>(BPF_JMP | test | BPF_K), 0, otherwise, value};
}

sock_filter Return(uint32_t value) { return {BPF_RET | BPF_K, 0, 0, value}; }

// Appends the instructions for one CALL[@FIRST|&BITS][:ERRNO].
void AppendRule(std::string rule, std::vector<sock_filter>& filter) {
  uint32_t error = EPERM;
  if (const size_t colon = rule.find(':'); colon != std::string::npos) {
    error = Find(kErrors, rule.substr(colon + 1));
    rule.resize(colon);
  }
  const size_t mark = rule.find_first_of("@&");
  const uint32_t call = Find(kCalls, rule.substr(0, mark));
  filter.push_back(Load(offsetof(seccomp_data, nr)));
  if (mark == std::string::npos) {
    filter.push_back(If(BPF_JEQ, call, 1));
  } else {
    const uint32_t value = Number(rule.substr(mark + 1));
    const bool exactly = rule[mark] == '@';
    filter.push_back(If(BPF_JEQ, call, exactly ? 3 : 4));
    filter.push_back(Load(offsetof(seccomp_data, args)));
    if (!exactly) filter.push_back({BPF_ALU | BPF_AND | BPF_K, 0, 0, value});
    filter.push_back(If(BPF_JEQ, value, 1));
  }
  filter.push_back(Return(SECCOMP_RET_ERRNO | error));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4 || std::strcmp(argv[2], "--") != 0) Misused("there is no command");
  std::vector<sock_filter> filter = {
      Load(offsetof(seccomp_data, arch)),
      // Calls of another architecture have other numbers, and pass.
      {BPF_JMP | BPF_JEQ | BPF_K, 1, 0, kArchitecture},
      Return(SECCOMP_RET_ALLOW),
  };
  const std::string rules = argv[1];
  for (size_t begin = 0; begin <= rules.size();) {
    const size_t comma = std::min(rules.find(',', begin), rules.size());
    AppendRule(rules.substr(begin, comma - begin), filter);
    begin = comma + 1;
  }
  filter.push_back(Return(SECCOMP_RET_ALLOW));
  if (filter.size() > BPF_MAXINSNS) Misused("too many rules");
  const sock_fprog program = {static_cast<unsigned short>(filter.size()), filter.data()};
  // In this order: without privileges a process may only filter what gains none by exec.
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    std::fprintf(stderr, "refuse_syscalls: the kernel takes no filter: %s\n", std::strerror(errno));
    return 125;
  }
  execvp(argv[3], argv + 3);
  std::fprintf(stderr, "refuse_syscalls: %s: %s\n", argv[3], std::strerror(errno));
  return 127;
}
