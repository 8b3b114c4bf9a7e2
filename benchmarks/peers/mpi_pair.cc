// SPDX-License-Identifier: Apache-2.0
// Two ranks of MPI: mpirun -n 2 mpi_pair pingpong BYTES ROUNDS | stream BYTES ROUNDS WINDOW
//
//   unexpected BYTES ROUNDS          pingpong, each receive posted when a shared word says "sent"
//   tagged BYTES ROUNDS WINDOW     stream, with a tag for each tensor in flight
#include <mpi.h>

#include <atomic>

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

// A word of each rank in memory of both: how often it has sent.
class SentWords final {
 public:
  explicit SentWords(int rank) : rank_(rank) {
    void* memory = nullptr;
    Check(MPI_Win_allocate_shared(rank == 0 ? sizeof(Word[2]) : 0, 1, MPI_INFO_NULL, MPI_COMM_WORLD,
                                  &memory, &window_),
          "MPI_Win_allocate_shared");
    MPI_Aint bytes = 0;
    int unit = 0;
    Check(MPI_Win_shared_query(window_, 0, &bytes, &unit, &memory), "MPI_Win_shared_query");
    words_ = static_cast<Word*>(memory);
    words_[rank].count.store(0);
    MPI_Barrier(MPI_COMM_WORLD);
  }
  ~SentWords() { MPI_Win_free(&window_); }

  void Tell() { words_[rank_].count.fetch_add(1, std::memory_order_release); }
  // Spins until the other rank has sent as often as this one has called it.
  void Await() {
    ++awaited_;
    while (words_[1 - rank_].count.load(std::memory_order_acquire) < awaited_) {
    }
  }

 private:
  struct Word {
    alignas(128) std::atomic<int64_t> count;
  };

  const int rank_;
  MPI_Win window_ = MPI_WIN_NULL;
  Word* words_ = nullptr;
  int64_t awaited_ = 0;
};

// The plan's words, with "pingpong" and "stream" for the two variants.
struct Variant {
  bool is_unexpected = false;
  bool is_tagged = false;

  Variant(int argc, char** argv) {
    static char pingpong[] = "pingpong";
    static char stream[] = "stream";
    if (argc < 2) return;
    is_unexpected = std::strcmp(argv[1], "unexpected") == 0;
    is_tagged = std::strcmp(argv[1], "tagged") == 0;
    if (is_unexpected) argv[1] = pingpong;
    if (is_tagged) argv[1] = stream;
  }
};

void Run(int rank, const Variant& variant, const Plan& plan) {
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
  const auto tag_of = [&variant](size_t i) { return variant.is_tagged ? static_cast<int>(i) : 0; };
  SentWords sent_words(rank);
  const auto post = [&] {
    for (size_t i = 0; i < receives; ++i) {
      Check(MPI_Irecv(received[i].data(), in.count, in.type, 1 - rank, tag_of(i), MPI_COMM_WORLD,
                      &waiting[i]),
            "MPI_Irecv");
    }
  };
  const auto receive = [&] {
    if (variant.is_unexpected) {
      sent_words.Await();
      post();
    }
    MPI_Waitall(static_cast<int>(receives), waiting.data(), MPI_STATUSES_IGNORE);
  };
  std::vector<double> times;
  uint64_t wrong = 0;
  for (size_t round = 0; round < plan.warmups() + plan.rounds; ++round) {
    for (size_t i = 0; i < sends; ++i) peers::Fill(sent[i], me, round, i);
    if (!variant.is_unexpected) post();
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = peers::Now();
    if (rank == 1) receive();
    for (size_t i = 0; i < sends; ++i) {
      // The answer of a stream has the first tag.
      Check(MPI_Isend(sent[i].data(), out.count, out.type, 1 - rank, tag_of(i), MPI_COMM_WORLD,
                      &leaving[i]),
            "MPI_Isend");
    }
    if (variant.is_unexpected) sent_words.Tell();
    MPI_Waitall(static_cast<int>(sends), leaving.data(), MPI_STATUSES_IGNORE);
    if (rank == 0) receive();
    if (round >= plan.warmups()) times.push_back((peers::Now() - start) * plan.share());
    for (size_t i = 0; i < receives; ++i) wrong += peers::WrongBytes(received[i], 1 - me, round, i);
  }
  unsigned long long mine = wrong, all = 0;
  MPI_Reduce(&mine, &all, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) peers::Print("seconds", peers::Median(times), times.size(), all);
}

}  // namespace

int main(int argc, char** argv) {
  Check(MPI_Init(&argc, &argv), "MPI_Init");
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const Variant variant(argc, argv);
  Run(rank, variant, peers::PlanOf(argc - 1, argv + 1));
  MPI_Finalize();
  return 0;
}
