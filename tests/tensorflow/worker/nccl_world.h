// SPDX-License-Identifier: Apache-2.0
// GPUs with NCCL for collectives of several steps, on one thread: the test decides when launched
// work runs, in the order of its stream, and only together with all its other ranks.
#ifndef FERRY_TESTS_TENSORFLOW_WORKER_NCCL_WORLD_H_
#define FERRY_TESTS_TENSORFLOW_WORKER_NCCL_WORLD_H_

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

#include "tensorflow/worker/collectives/merge.h"
#include "tests/tensorflow/worker/collective_world.h"

namespace ferry::worker {

// One GPU for each worker. Not thread-safe.
class NcclWorld final {
 public:
  //   makes: communicators have to be made; else there is one for any members.
  NcclWorld(int count, bool makes) : makes_(makes) {
    for (int i = 0; i < count; ++i) gpus_.push_back(std::make_unique<FakeGpus>(*this, i));
  }
  ~NcclWorld() {
    for (const auto& gpu : gpus_) {
      EXPECT_EQ(gpu->own.line().size(), 0u) << "a collective is still in a line";
    }
  }

  CollectiveGpus& gpus(int worker) { return *gpus_[static_cast<size_t>(worker)]; }

  size_t choices() const { return tasks_.size() + Makeable().size() + Runnable().size(); }
  void Choose(size_t choice) {
    if (choice < tasks_.size()) {
      absl::AnyInvocable<void()&&> task = std::move(tasks_[choice]);
      tasks_.erase(tasks_.begin() + static_cast<std::ptrdiff_t>(choice));
      return std::move(task)();
    }
    choice -= tasks_.size();
    const std::vector<Members> makeable = Makeable();
    if (choice < makeable.size()) return Make(makeable[choice]);
    Run(Runnable()[choice - makeable.size()]);
  }
  int run_count() const { return run_count_; }
  // How often ranks of different collectives have met.
  int mismatch_count() const { return mismatch_count_; }

 private:
  using Members = std::vector<int>;
  struct Comm {
    Members members;
    uint32_t generation = 0;
    bool operator<(const Comm& other) const {
      return std::tie(members, generation) < std::tie(other.members, other.generation);
    }
  };

  struct FakeRun final : NcclRun {
    explicit FakeRun(NcclWorld& in, int on) : world(in), gpu(on) {}
    void Abort(const absl::Status& why) override { world.Abort(*this, why); }

    NcclWorld& world;
    const int gpu;
    NcclCollective collective;
    CollectiveGpu::Done begun;
    CollectiveGpu::Done over;
    Comm comm;
    absl::Status aborted;
    bool is_on_stream = false;
  };

  struct FakeGpu final : CollectiveGpu {
    FakeGpu(NcclWorld& in, int which) : world(in), number(which) {}

    AsyncFifoLock& line() override { return own_line; }
    void Prepare(const Tensor& input, DataType dtype, const Shape& shape, absl::Time deadline,
                 Prepared done) override {
      world.tasks_.push_back([dtype, shape, done = std::move(done)]() mutable {
        std::move(done)(
            CollectiveWorld::In({MemorySpace::kCuda, 0}, *Tensor::Allocate(dtype, shape)));
      });
    }
    uint32_t Generation(const CollectiveNode& node, const Members& members) override {
      if (!world.makes_) return 1;
      const auto found = comms.find(members);
      return found == comms.end() ? 0 : found->second;
    }
    std::shared_ptr<NcclRun> Launch(NcclCollective collective, Done begun, Done over) override {
      auto run = std::make_shared<FakeRun>(world, number);
      run->collective = std::move(collective);
      run->begun = std::move(begun);
      run->over = std::move(over);
      world.tasks_.push_back([this, run] {
        if (run->collective.is_anew && run->aborted.ok()) {
          comms.erase(run->collective.members);
          making.push_back(run);
        } else {
          world.Enqueue(run);
        }
      });
      return run;
    }
    absl::StatusOr<Tensor> Finish(const CollectiveNode& node, int count, Tensor output) override {
      return output;
    }

    NcclWorld& world;
    const int number;
    AsyncFifoLock own_line;
    // The generation that it has.
    std::map<Members, uint32_t> comms;
    std::vector<std::shared_ptr<FakeRun>> making;
    std::deque<std::shared_ptr<FakeRun>> stream;
  };

  struct FakeGpus final : CollectiveGpus {
    FakeGpus(NcclWorld& world, int which) : own(world, which) {}
    NcclOffer Offer(const CollectiveNode& node) override { return node.nccl; }
    CollectiveGpu& gpu(int ordinal) override { return own; }
    FakeGpu own;
  };

  FakeGpu& gpu(int number) const { return gpus_[static_cast<size_t>(number)]->own; }

  static void End(const std::shared_ptr<FakeRun>& run, const absl::Status& why) {
    if (!run->is_on_stream) std::move(run->begun)(why);
    std::move(run->over)(why);
  }

  // The rank's end of it is there.
  void Enqueue(const std::shared_ptr<FakeRun>& run) {
    FakeGpu& at = gpu(run->gpu);
    const Members& members = run->collective.members;
    if (!run->aborted.ok()) return End(run, run->aborted);
    const uint32_t has = at.Generation(*run->collective.node, members);
    if (has == 0 || (!run->collective.is_anew && has != run->collective.generation)) {
      return End(run, absl::AbortedError("the communicator has ended meanwhile"));
    }
    run->comm = {members, has};
    run->is_on_stream = true;
    at.stream.push_back(run);
    std::move(run->begun)(absl::OkStatus());
  }

  std::shared_ptr<FakeRun> MakingOf(int number, const Members& members) const {
    for (const auto& run : gpu(number).making) {
      if (run->collective.members == members && run->aborted.ok()) return run;
    }
    return nullptr;
  }
  std::vector<Members> Makeable() const {
    std::vector<Members> found;
    for (const auto& each : gpus_) {
      for (const auto& run : each->own.making) {
        const Members& members = run->collective.members;
        const bool is_first = members.front() == each->own.number;
        const bool all = std::all_of(members.begin(), members.end(), [&](int member) {
          return MakingOf(member, members) != nullptr;
        });
        if (is_first && all) found.push_back(members);
      }
    }
    return found;
  }
  void Make(const Members& members) {
    const uint32_t generation = ++generations_[members];
    for (const int member : members) {
      FakeGpu& at = gpu(member);
      const std::shared_ptr<FakeRun> run = MakingOf(member, members);
      at.making.erase(std::find(at.making.begin(), at.making.end(), run));
      at.comms[members] = generation;
      tasks_.push_back([this, run] { Enqueue(run); });
    }
  }

  // Communicators whose ranks are all at the heads of their streams.
  std::vector<Comm> Runnable() const {
    std::vector<Comm> found;
    for (const auto& each : gpus_) {
      if (each->own.stream.empty()) continue;
      const Comm& comm = each->own.stream.front()->comm;
      if (comm.members.front() != each->own.number) continue;
      const bool all = std::all_of(comm.members.begin(), comm.members.end(), [&](int member) {
        const auto& stream = gpu(member).stream;
        return !stream.empty() && !(stream.front()->comm < comm) && !(comm < stream.front()->comm);
      });
      if (all) found.push_back(comm);
    }
    return found;
  }
  void Run(const Comm& comm) {
    ++run_count_;
    std::vector<std::shared_ptr<FakeRun>> ranks;
    for (const int member : comm.members) {
      ranks.push_back(gpu(member).stream.front());
      gpu(member).stream.pop_front();
    }
    std::vector<Tensor> inputs;
    for (const auto& run : ranks) {
      // NCCL does not look: it would merge them.
      if (run->collective.node->name != ranks[0]->collective.node->name) ++mismatch_count_;
      inputs.push_back(run->collective.input.is_valid()
                           ? CollectiveWorld::In({}, run->collective.input)
                           : Tensor());
    }
    if (mismatch_count_ > 0) {
      for (const auto& run : ranks) End(run, absl::InternalError("two collectives in one"));
      return;
    }
    for (const auto& run : ranks) {
      Tensor out = CollectiveWorld::In({}, run->collective.output);
      switch (run->collective.node->kind) {
        case CollectiveKind::kReduce:
          std::memcpy(out.mutable_data(), inputs[0].data(), out.bytes());
          for (size_t i = 1; i < inputs.size(); ++i) {
            Merge(run->collective.node->merge, out, inputs[i], out);
          }
          break;
        case CollectiveKind::kGather:
          for (size_t i = 0; i < inputs.size(); ++i) {
            std::memcpy(static_cast<char*>(out.mutable_data()) + i * inputs[i].bytes(),
                        inputs[i].data(), inputs[i].bytes());
          }
          break;
        case CollectiveKind::kBroadcast:
          std::memcpy(out.mutable_data(),
                      inputs[static_cast<size_t>(run->collective.source_rank)].data(), out.bytes());
          break;
      }
      tasks_.push_back([run] { std::move(run->over)(run->aborted); });
    }
  }

  // Other ranks are not notified: they notice it in their steps, or at their next collective.
  void Abort(FakeRun& run, const absl::Status& why) {
    if (!run.aborted.ok()) return;
    run.aborted = why;
    FakeGpu& at = gpu(run.gpu);
    const auto making = std::find_if(at.making.begin(), at.making.end(),
                                     [&](const auto& each) { return each.get() == &run; });
    if (making != at.making.end()) {
      const std::shared_ptr<FakeRun> ended = *making;
      at.making.erase(making);
      tasks_.push_back([ended] { End(ended, ended->aborted); });
    }
    if (!run.is_on_stream) return;
    if (makes_) {
      const auto has = at.comms.find(run.comm.members);
      if (has != at.comms.end() && has->second == run.comm.generation) at.comms.erase(has);
    }
    std::deque<std::shared_ptr<FakeRun>> stays;
    for (const auto& each : at.stream) {
      if (each->comm < run.comm || run.comm < each->comm) {
        stays.push_back(each);
      } else {
        if (each->aborted.ok()) each->aborted = absl::AbortedError("the communicator was ended");
        tasks_.push_back([each] { std::move(each->over)(each->aborted); });
      }
    }
    at.stream = std::move(stays);
  }

  const bool makes_;
  std::vector<std::unique_ptr<FakeGpus>> gpus_;
  std::map<Members, uint32_t> generations_;
  std::vector<absl::AnyInvocable<void() &&>> tasks_;
  int run_count_ = 0;
  int mismatch_count_ = 0;
};

}  // namespace ferry::worker

#endif  // FERRY_TESTS_TENSORFLOW_WORKER_NCCL_WORLD_H_
