// SPDX-License-Identifier: Apache-2.0
// Two ranks of MPI: mpirun -n 2 mpi_pair pingpong BYTES ROUNDS | stream BYTES ROUNDS WINDOW
#include <mpi.h>

#include "pair.h"

using peers::Plan;

namespace {

void Check(int result, const char* what) {
  if (result != MPI_SUCCESS) peers::Fail(std::string(what) + " failed");
}

// A count of MPI is an int: large tensors are counted in 8 bytes.
struct Count {
  int count;
  MPI_Datatype type;
};

Count CountOf(size_t bytes) {
  if (bytes < (size_t{1} << 30)) return {static_cast<int>(bytes), MPI_BYTE};
  if (bytes % 8 != 0) peers::Fail("so many bytes must be a multiple of 8");
  return {static_cast<int>(bytes / 8), MPI_UINT64_T};
}

}  // namespace

int main(int argc, char** argv) {
  Check(MPI_Init(&argc, &argv), "MPI_Init");
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const Plan plan = peers::PlanOf(argc - 1, argv + 1);
  const uint64_t me = static_cast<uint64_t>(rank);
  const size_t sends = rank == 0 ? plan.window : 1;
  const size_t receives = rank == 0 ? 1 : plan.window;
  const Count out = CountOf(rank == 0 ? plan.bytes : plan.answer_bytes());
  const Count in = CountOf(rank == 0 ? plan.answer_bytes() : plan.bytes);
  std::vector<std::vector<char>> sent(
      sends, std::vector<char>(rank == 0 ? plan.bytes : plan.answer_bytes()));
  std::vector<std::vector<char>> received(
      receives, std::vector<char>(rank == 0 ? plan.answer_bytes() : plan.bytes));
  std::vector<MPI_Request> waiting(receives), leaving(sends);
  std::vector<double> times;
  uint64_t wrong = 0;
  for (size_t round = 0; round < plan.warmups() + plan.rounds; ++round) {
    for (size_t i = 0; i < sends; ++i) peers::Fill(sent[i], me, round, i);
    for (size_t i = 0; i < receives; ++i) {
      Check(MPI_Irecv(received[i].data(), in.count, in.type, 1 - rank, 0, MPI_COMM_WORLD,
                      &waiting[i]),
            "MPI_Irecv");
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = peers::Now();
    if (rank == 1) MPI_Waitall(static_cast<int>(receives), waiting.data(), MPI_STATUSES_IGNORE);
    for (size_t i = 0; i < sends; ++i) {
      Check(
          MPI_Isend(sent[i].data(), out.count, out.type, 1 - rank, 0, MPI_COMM_WORLD, &leaving[i]),
          "MPI_Isend");
    }
    MPI_Waitall(static_cast<int>(sends), leaving.data(), MPI_STATUSES_IGNORE);
    if (rank == 0) MPI_Waitall(static_cast<int>(receives), waiting.data(), MPI_STATUSES_IGNORE);
    if (round >= plan.warmups()) times.push_back((peers::Now() - start) * plan.share());
    for (size_t i = 0; i < receives; ++i) wrong += peers::WrongBytes(received[i], 1 - me, round, i);
  }
  unsigned long long mine = wrong, all = 0;
  MPI_Reduce(&mine, &all, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) peers::Print("seconds", peers::Median(times), times.size(), all);
  MPI_Finalize();
  return 0;
}
