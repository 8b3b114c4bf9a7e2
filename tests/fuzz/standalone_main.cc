// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target without a fuzzer: its corpus, then mutants of it, from a seed.
//   TARGET_fuzz_test FILE_OR_FOLDER...
// FERRY_FUZZ_SEED replays a run; FERRY_FUZZ_SECONDS is the time for mutants (2). An input that
// crashes the target is printed, and written to fuzz_crash, which can be given as FILE to try it
// again.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// There if a sanitizer is. NOLINTNEXTLINE(bugprone-reserved-identifier): the name is theirs.
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace ferry {
namespace {

using Bytes = std::vector<uint8_t>;

constexpr size_t kMaxBytes = 4096;
constexpr uint64_t kFixedSeed = 1;

// The target's current input, for a crash handler.
const Bytes* current = nullptr;
uint64_t current_seed = 0;

void WriteCurrent() {
  if (current == nullptr) return;
  const int file = open("fuzz_crash", O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  if (file >= 0 && write(file, current->data(), current->size()) >= 0) {
    std::fprintf(stderr, "the input is in fuzz_crash; FERRY_FUZZ_SEED=%llu; its bytes:\n",
                 static_cast<unsigned long long>(current_seed));
  }
  for (const uint8_t byte : *current) std::fprintf(stderr, "%02x", byte);
  std::fprintf(stderr, "\n");
  current = nullptr;
}

void OnSignal(int signal) {
  WriteCurrent();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void Try(const Bytes& input) {
  current = &input;
  // A copy of exactly that size, so that a sanitizer detects reads beyond it.
  const Bytes exact(input.begin(), input.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
  current = nullptr;
}

Bytes ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

std::vector<Bytes> ReadCorpus(int argc, char** argv) {
  std::vector<std::filesystem::path> paths;
  for (int i = 1; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) {
      paths.emplace_back(argv[i]);
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      paths.push_back(entry.path());
    }
  }
  // The order of a folder depends on the file system, and the mutants follow from it.
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> corpus;
  for (const auto& path : paths) corpus.push_back(ReadFile(path));
  return corpus;
}

class Mutator final {
 public:
  Mutator(const std::vector<Bytes>& corpus, uint64_t seed) : corpus_(corpus), engine_(seed) {}

  Bytes Next() {
    Bytes input = Pick();
    for (size_t i = 1 + Roll(6); i > 0; --i) Mutate(input);
    if (input.size() > kMaxBytes) input.resize(kMaxBytes);
    return input;
  }

 private:
  size_t Roll(size_t sides) { return static_cast<size_t>(engine_() % sides); }
  const Bytes& Pick() { return corpus_[Roll(corpus_.size())]; }
  uint8_t Byte() {
    static constexpr uint8_t kOdd[] = {0, 1, 0x7f, 0x80, 0xff, '0', '9', ';', ':', '/'};
    return Roll(2) == 0 ? kOdd[Roll(std::size(kOdd))] : static_cast<uint8_t>(engine_());
  }

  void Mutate(Bytes& input) {
    const size_t at = input.empty() ? 0 : Roll(input.size());
    const auto here = input.begin() + static_cast<std::ptrdiff_t>(at);
    const size_t count = 1 + Roll(std::min<size_t>(16, input.size() - at + 1));
    const auto there =
        input.begin() + static_cast<std::ptrdiff_t>(std::min(input.size(), at + count));
    switch (Roll(6)) {
      case 0:
        if (!input.empty()) *here ^= static_cast<uint8_t>(1 << Roll(8));
        break;
      case 1:
        if (!input.empty()) *here = Byte();
        break;
      case 2:
        input.insert(here, count, Byte());
        break;
      case 3:
        input.erase(here, there);
        break;
      case 4: {
        const Bytes part(here, there);
        const size_t to = Roll(input.size() + 1);
        input.insert(input.begin() + static_cast<std::ptrdiff_t>(to), part.begin(), part.end());
        break;
      }
      default: {
        const Bytes& other = Pick();
        input.erase(here, input.end());
        const size_t from = Roll(other.size() + 1);
        input.insert(input.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
        break;
      }
    }
  }

  const std::vector<Bytes>& corpus_;
  std::mt19937_64 engine_;
};

int64_t TryMutants(const std::vector<Bytes>& corpus, uint64_t seed, double seconds) {
  using RealClock = std::chrono::steady_clock;
  current_seed = seed;
  Mutator mutator(corpus, seed);
  const auto end = RealClock::now() + std::chrono::duration<double>(seconds);
  int64_t count = 0;
  while (RealClock::now() < end) {
    for (int i = 0; i < 64; ++i, ++count) Try(mutator.Next());
  }
  return count;
}

int Main(int argc, char** argv) {
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    std::signal(signal, OnSignal);
  }
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(WriteCurrent);
  std::vector<Bytes> corpus = ReadCorpus(argc, argv);
  if (corpus.empty()) {
    std::cerr << "no corpus: " << argv[0] << " FILE_OR_FOLDER...\n";
    return 2;
  }
  for (const Bytes& input : corpus) Try(input);
  std::cout << corpus.size() << " inputs of the corpus\n";
  const char* const seconds_text = std::getenv("FERRY_FUZZ_SECONDS");
  const double seconds = seconds_text == nullptr ? 2 : std::atof(seconds_text);
  if (const char* const seed_text = std::getenv("FERRY_FUZZ_SEED"); seed_text != nullptr) {
    const uint64_t seed = std::strtoull(seed_text, nullptr, 10);
    std::cout << TryMutants(corpus, seed, seconds) << " mutants from seed " << seed << "\n";
    return 0;
  }
  // Half of them the same every time, and half new ones.
  const auto fresh =
      static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  for (const uint64_t seed : {kFixedSeed, fresh}) {
    std::cout << "seed " << seed << ": " << std::flush << TryMutants(corpus, seed, seconds / 2)
              << " mutants\n";
  }
  return 0;
}

}  // namespace
}  // namespace ferry

int main(int argc, char** argv) { return ferry::Main(argc, argv); }
