// SPDX-License-Identifier: Apache-2.0
// The address map of this process: device memory behind addresses that the CPU cannot access, and
// host memory that the driver knows.
#ifndef FERRY_TESTS_SUPPORT_STRICT_CUDA_MEMORY_H_
#define FERRY_TESTS_SUPPORT_STRICT_CUDA_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/strict_cuda/abi.h"
#include "tests/support/strict_cuda/context.h"

namespace strict_cuda {

// Physical memory: a memory file, mapped where only the fake driver finds it.
class Backing final {
 public:
  // Null if the device has not so much left, or the system refuses. REQUIRES: whole granules.
  static std::shared_ptr<Backing> Create(int physical, size_t bytes, const char* what,
                                         int handle_types = 0);
  // Another process's, by a descriptor, which is duplicated. Null if that is something else.
  static std::shared_ptr<Backing> Import(int fd);
  // The same by the other process's number for it. Null if that process has ended.
  static std::shared_ptr<Backing> ImportFrom(int pid, int fd);
  ~Backing();
  Backing(const Backing&) = delete;
  Backing& operator=(const Backing&) = delete;

  char* host() const { return host_; }
  size_t bytes() const { return bytes_; }
  int fd() const { return fd_; }
  int physical() const { return physical_; }
  int handle_types() const { return handle_types_; }  // requested from cuMemCreate
  uint64_t inode() const { return inode_; }

 private:
  Backing() = default;

  char* host_ = nullptr;
  size_t bytes_ = 0;
  int fd_ = -1;
  int physical_ = 0;
  int handle_types_ = 0;
  uint64_t inode_ = 0;
  size_t accounted_bytes_ = 0;
};

enum class Kind {
  kDevice,        // cuMemAlloc
  kPool,          // of a pool of this process
  kVmm,           // a mapping
  kImported,      // by cuIpcOpenMemHandle
  kImportedPool,  // by cuMemPoolImportPointer
  kHost,          // cuMemHostAlloc
  kRegistered,    // cuMemHostRegister
  kManaged,
};

// The attributes of the addresses [base, base + bytes). Guarded by the process's lock, except for
// the atomics.
struct Range {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  Kind kind = Kind::kDevice;
  int physical = 0;                  // the device whose memory it is
  Context* context = nullptr;        // in which it was allocated
  std::shared_ptr<Backing> backing;  // null for host memory
  size_t offset = 0;                 // in the backing
  char* host = nullptr;              // where the fake driver accesses it
  uint64_t buffer_id = 0;
  PoolHandle* pool = nullptr;
  uint64_t export_id = 0;        // of its entry in the machine, once it has been exported
  uint64_t import_id = 0;        // of the exporter's entry
  int open_count = 0;            // of kImported
  int handle_types = 0;          // of kVmm
  bool is_rdma_capable = false;  // of kVmm
  CUmemGenericAllocationHandle handle = 0;  // of kVmm
  CUdeviceptr reservation = 0;              // of kVmm
  size_t reservation_bytes = 0;
  int access[kMaxDevices] = {};  // of kVmm and of pools: CUmemAccess_flags by device
  bool sync_memops = false;
  std::shared_ptr<std::atomic<bool>> ready;  // of stream-ordered memory
  std::atomic<bool> free_pending = false;    // cuMemFreeAsync was called
  std::atomic<int> uses = 0;                 // operations that touch it now
};

// A range of memory that an operation accesses; it stays mapped while this exists.
struct Piece {
  char* host = nullptr;
  size_t bytes = 0;
  std::shared_ptr<Range> range;  // null for memory unknown to the driver
};

class Use final {
 public:
  explicit Use(std::vector<Piece> pieces);
  ~Use();
  Use(Use&&) = default;
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  const std::vector<Piece>& pieces() const { return pieces_; }

 private:
  std::vector<Piece> pieces_;
};

// Addresses for device memory, which nothing else of the process has.
CUdeviceptr TakeAddresses(size_t bytes, size_t alignment, CUdeviceptr wish);
void GiveAddresses(CUdeviceptr base, size_t bytes);
bool IsDeviceAddress(CUdeviceptr pointer);

size_t RoundUp(size_t bytes, size_t to);
// As the driver says it: in units of STRICT_CUDA_SIZE_UNIT. Accesses beyond the requested bytes are
// violations all the same.
size_t ToldBytes(const Range& range);
uint64_t NextBufferId();

// The remaining functions REQUIRE the process's lock, but for Touch.

void Insert(const std::shared_ptr<Range>& range);
void Erase(CUdeviceptr base);
// The range that holds `pointer`, or null.
std::shared_ptr<Range> Find(CUdeviceptr pointer);
// All of one context, or all if null.
std::vector<std::shared_ptr<Range>> RangesOf(const Context* context);

// Whether cuMemAddressReserve has given the address; then also all that it gave with it.
bool IsReserved(CUdeviceptr pointer, CUdeviceptr* base, size_t* bytes);

// Classifies [pointer, pointer + bytes). Memory unknown to the driver is taken for pageable host
// memory, unless only device memory can have such an address: then it is a violation, and
// ILLEGAL_ADDRESS. `by`: the device that accesses it, or -1 for none.
CUresult Resolve(CUdeviceptr pointer, size_t bytes, int by, bool is_write, const char* call,
                 std::vector<Piece>* pieces);

// Resolve for a stream's own thread, which then touches the memory. Checks in addition that
// stream-ordered memory is ready.
CUresult Touch(CUdeviceptr pointer, size_t bytes, int by, bool is_write, const char* call,
               std::unique_ptr<Use>* use);

// Breaks the rule "implicit-sync-in-flight" if an NCCL operation of this process is in flight.
void CheckImplicitSync(const char* call);
// Operations of NCCL that were launched and have not ended.
extern std::atomic<int> nccl_in_flight;
// Calls of CheckImplicitSync.
extern std::atomic<int> implicit_syncs;

// Removes `range` from the map, frees its addresses and ends its export. Checks for violations by
// importers. REQUIRES: no operation uses it; the process's lock.
void Release(const std::shared_ptr<Range>& range, const char* call);
// Frees the memory of a context, when it ends. Takes the lock.
void FreeAllOf(Context& context);

}  // namespace strict_cuda

#endif  // FERRY_TESTS_SUPPORT_STRICT_CUDA_MEMORY_H_
