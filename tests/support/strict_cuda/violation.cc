// SPDX-License-Identifier: Apache-2.0
// The texts of the rules, and reporting.
#include "tests/support/strict_cuda/violation.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#include "tests/support/strict_cuda/abi.h"
#include "tests/support/strict_cuda/config.h"
#include "tests/support/strict_cuda/export.h"

namespace strict_cuda {
namespace {

struct RuleText {
  Rule rule;
  const char* name;
  const char* rule_text;
  const char* remedy;
};

constexpr RuleText kRules[] = {
    {Rule::kFork, "fork", "the driver does not survive fork",
     "fork before the driver is loaded, or exec after"},
    {Rule::kHostFunction, "host-function", "a host function of a stream makes no CUDA call",
     "hand over to another thread"},
    {Rule::kIpcSameProcess, "ipc-same-process",
     "a memory handle cannot be opened in the process that made it",
     "within a process use the pointer itself"},
    {Rule::kIpcMemoryKind, "ipc-memory-kind", "legacy handles exist for memory of cuMemAlloc only",
     "ask CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE first; export VMM and pool memory by "
     "their own handles, stage the rest"},
    {Rule::kIpcDoubleClose, "ipc-double-close",
     "each cuIpcOpenMemHandle is closed once, with the pointer that it returned",
     "count references in the import cache; close the base, not base + offset"},
    {Rule::kFreeWhileImported, "free-while-imported",
     "memory is freed by its exporter after every importer has closed it",
     "wait for the peer's release, or for its death, before the free"},
    {Rule::kEventSameProcess, "event-same-process",
     "an event handle cannot be opened in the process that made it",
     "within a process use the event itself"},
    {Rule::kEventDestroyedWhileImported, "event-destroyed-while-imported",
     "an interprocess event outlives its imports", "destroy it after the peer destroyed its own"},
    {Rule::kEventInterprocessTiming, "event-interprocess-timing",
     "CU_EVENT_INTERPROCESS needs CU_EVENT_DISABLE_TIMING", "set both flags"},
    {Rule::kEventNotInterprocess, "event-not-interprocess",
     "only events with CU_EVENT_INTERPROCESS have handles", "create it with that flag"},
    {Rule::kEventReuse, "event-reuse",
     "an interprocess event is recorded again only after the other process has passed its wait",
     "take another event of the pool until the peer has acknowledged"},
    {Rule::kEventWaitBeforeRecord, "event-wait-before-record",
     "a wait for an imported event that was never recorded waits for nothing",
     "record first, then send the message that makes the peer wait"},
    {Rule::kUseAfterFree, "use-after-free", "only memory that is allocated and mapped is used",
     "hold a reference until the stream has passed the last use"},
    {Rule::kUseAfterDestroy, "use-after-destroy", "destroyed objects are not used",
     "keep the owner alive until the last call has returned"},
    {Rule::kUseBeforeReady, "use-before-ready",
     "stream-ordered memory is used after its allocation has run",
     "use it on the stream of the allocation, or wait there for an event recorded behind it"},
    {Rule::kDoubleFree, "double-free", "what is freed was allocated, and is freed once",
     "give each allocation one owner"},
    {Rule::kFreeInUse, "free-in-use", "memory is freed after the last use of it has ended",
     "wait for the streams of other devices too"},
    {Rule::kNoAccess, "no-access",
     "a device touches memory that it has access to: cuMemSetAccess, cuMemPoolSetAccess or "
     "cuCtxEnablePeerAccess",
     "grant the access, or copy by the device that owns the memory"},
    {Rule::kPoolImportedAlloc, "pool-imported-alloc", "an imported pool cannot allocate",
     "allocate in the process that owns the pool"},
    {Rule::kVmm, "vmm",
     "mappings are whole, aligned to the granularity, inside a reservation, and are unmapped "
     "before "
     "it is freed",
     "unmap exactly what was mapped, then free exactly what was reserved"},
    {Rule::kImplicitSync, "implicit-sync-in-flight",
     "nothing that may synchronise the device (alloc, free, map, unmap, open, close, pin) while an "
     "NCCL operation of this process is in flight: it may never end",
     "do it before the grant or after the completion event, or on another occasion"},
    {Rule::kNcclCountMismatch, "nccl-count-mismatch",
     "the operations that match by position have one size, type and kind",
     "put sizes into the grant and compare them before issuing"},
    {Rule::kNcclFirstExchange, "nccl-first-exchange",
     "the first exchange with the peer that is both next and previous (each one in a communicator "
     "of two) is one group with a send and a receive: connection data of both directions travel in "
     "one message",
     "warm the communicator up with a grouped exchange of one element before it is visible"},
    {Rule::kNcclThreads, "nccl-threads",
     "the communicators of one device are driven by one thread at a time",
     "make each NCCL call of a device on its executor"},
    {Rule::kNcclDeadlock, "nccl-deadlock",
     "the NCCL operations of a device run in the order of their launch, which must agree among all "
     "ranks and communicators",
     "agree one order by grants, and group what goes both ways"},
    {Rule::kNcclIdReuse, "nccl-id-reuse", "a unique id makes one communicator, once per rank",
     "mint a new id for each generation"},
    {Rule::kNcclAfterAbort, "nccl-after-abort", "a communicator is gone after abort or destroy",
     "drop the handle in the same step"},
    {Rule::kNcclAfterFinalize, "nccl-after-finalize",
     "a communicator that was finalized or revoked can only be polled, destroyed and aborted",
     "finalize once, when nothing is to be issued any more; revoke only what is not finalized"},
    {Rule::kNcclMixedBlocking, "nccl-mixed-blocking",
     "a group has blocking communicators or non-blocking ones, not both", "make all non-blocking"},
    {Rule::kNcclGroupTooLarge, "nccl-group-too-large",
     "a group of many operations is split, and ranks may split differently",
     "use fewer operations in a group; Ferry uses 32 at most"},
    {Rule::kNcclGroup, "nccl-group", "each ncclGroupEnd ends one ncclGroupStart",
     "pair them on every path"},
    {Rule::kNcclSelf, "nccl-self", "a send to oneself needs its receive in the same group",
     "copy instead"},
    {Rule::kNcclWrongDevice, "nccl-wrong-device",
     "the device of the communicator is current, and stream and buffers are of it",
     "set the context before each NCCL call"},
    {Rule::kNcclDestroyBusy, "nccl-destroy-busy",
     "a communicator is destroyed when its operations have ended",
     "wait for the completion events, or abort"},
    {Rule::kNcclNotReady, "nccl-not-ready",
     "while a non-blocking communicator says ncclInProgress it is only asked, or aborted; its "
     "streams are left alone",
     "poll ncclCommGetAsyncError until it is no longer ncclInProgress"},
    {Rule::kNcclAbortOrder, "nccl-abort-order",
     "abort frees memory, which waits for the device: other communicators that hang there must be "
     "aborted with it",
     "abort all communicators of a device in one group"},
    {Rule::kNcclAbortInCall, "nccl-abort-in-call",
     "no thread is within NCCL on a communicator that is aborted",
     "wait for the device's executor first"},
    {Rule::kNcclAbortUnderPeer, "nccl-abort-under-peer",
     "within a machine all ranks abort: a rank's abort frees memory that kernels of others read",
     "flag the communicator in all ranks, and abort when nothing of it runs"},
    {Rule::kNcclWindow, "nccl-window",
     "a put is from a symmetric window to one that all ranks have registered, in one order, once, "
     "and stays within it",
     "register the pool once for each communicator, check the peer's offset, and keep the window "
     "until the communicator ends"},
    {Rule::kNcclWaitSignal, "nccl-wait-signal",
     "a stream waits only for signals that come whatever happens to their sender: neither its "
     "death nor an abort ends the wait",
     "wait when the sender has said that its put has completed"},
};

const RuleText& TextOf(Rule rule) {
  for (const RuleText& text : kRules) {
    if (text.rule == rule) return text;
  }
  std::abort();
}

struct Counts {
  std::mutex mu;
  std::map<std::string, int> by_rule;
  int all = 0;
  const char* last = "";
};

Counts& TheCounts() {
  static Counts* const counts = new Counts;
  return *counts;
}

void Append(const std::string& text) {
  std::string path = FromEnvironment("STRICT_CUDA_REPORT", "");
  if (path.empty() && !GetConfig().session.empty()) path = GetConfig().session + "/violations.log";
  if (path.empty()) return;
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) return;
  if (write(fd, text.data(), text.size()) < 0) std::perror("strict_cuda: report");
  close(fd);
}

}  // namespace

void Violation(Rule rule, const char* call, const char* format, ...) {
  char what[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(what, sizeof(what), format, arguments);
  va_end(arguments);
  const RuleText& text = TextOf(rule);
  char report[2048];
  std::snprintf(report, sizeof(report),
                "strict_cuda: violation of \"%s\" in %s (process %d, thread %ld)\n"
                "  seen: %s\n  rule: %s\n  do:   %s\n",
                text.name, call, getpid(), syscall(SYS_gettid), what, text.rule_text, text.remedy);
  std::fputs(report, stderr);
  std::fflush(stderr);
  Append(report);
  {
    Counts& counts = TheCounts();
    const std::lock_guard<std::mutex> lock(counts.mu);
    ++counts.all;
    ++counts.by_rule[text.name];
    counts.last = text.name;
  }
  if (FromEnvironment("STRICT_CUDA_ON_BREACH", "abort") != "record") std::abort();
}

extern "C" {

STRICT_CUDA_EXPORT int strict_cuda_violations() {
  const std::lock_guard<std::mutex> lock(TheCounts().mu);
  return TheCounts().all;
}

STRICT_CUDA_EXPORT int strict_cuda_violations_of(const char* rule) {
  const std::lock_guard<std::mutex> lock(TheCounts().mu);
  const auto found = TheCounts().by_rule.find(rule);
  return found == TheCounts().by_rule.end() ? 0 : found->second;
}

STRICT_CUDA_EXPORT const char* strict_cuda_last_violation() {
  const std::lock_guard<std::mutex> lock(TheCounts().mu);
  return TheCounts().last;
}

STRICT_CUDA_EXPORT void strict_cuda_clear_violations() {
  const std::lock_guard<std::mutex> lock(TheCounts().mu);
  TheCounts().all = 0;
  TheCounts().by_rule.clear();
  TheCounts().last = "";
}

}  // extern "C"

}  // namespace strict_cuda
