// SPDX-License-Identifier: Apache-2.0
// SentWords: tells a process of the same machine that a tensor has been sent, without a message.
#ifndef FERRY_BENCH_SENT_WORDS_H_
#define FERRY_BENCH_SENT_WORDS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "bench/meeting.h"

namespace ferry::cli {

// Two words in one of the bench's shared pages, one written by each of two processes, for receives
// that are posted after the send. Not thread-safe.
class SentWords final {
 public:
  //   file: the bench's pages.
  //   Errors: UNAVAILABLE with the kernel's reason.
  static absl::StatusOr<std::unique_ptr<SentWords>> Map(const std::string& file,
                                                        const BenchParticipants& party);
  ~SentWords();
  SentWords(const SentWords&) = delete;
  SentWords& operator=(const SentWords&) = delete;

  void Tell();
  // Blocks until the other process has called Tell as often as this one has called Await; leads the
  // node's event loop meanwhile, whatever --spin says.
  //   Errors: DEADLINE_EXCEEDED.
  absl::Status Await();

 private:
  struct Words;
  SentWords(const BenchParticipants& party, Words* words) : party_(party), words_(words) {}

  const BenchParticipants& party_;
  Words* const words_;
  int64_t awaited_ = 0;
};

}  // namespace ferry::cli

#endif  // FERRY_BENCH_SENT_WORDS_H_
