#include "run.h"

#include <algorithm>

#include "train/sharding/strategy.h"

namespace troupe::simulation {
namespace {

// Every other seed has each state twice, on different nodes.
std::vector<int> shards_of(const Options& options) {
  const int ranks = options.nodes * options.ranks_per_node;
  const bool twice = options.nodes % 2 == 0 && options.seed % 2 == 0;
  const train::Mesh mesh{.dp_replicate = twice ? 2 : 1, .dp_shard = twice ? ranks / 2 : ranks};
  return mesh.replicas();
}

}  // namespace

Run::Run(World& world, const Options& wanted, Result& counts, train::Sampler& all_samples)
    : options(wanted),
      result(counts),
      ranks(wanted.nodes * wanted.ranks_per_node),
      shards(shards_of(wanted)),
      buddies(wanted.seed % 4 != 1),
      oracle(shards, all_samples),
      meetings(world, wanted.canary == "commits-without-all"),
      world_(world),
      sampler_(all_samples),
      memory_at_(static_cast<std::size_t>(ranks)),
      done_(static_cast<std::size_t>(ranks)) {}

const train::StepPlan& Run::plan(const train::SampleCursor& cursor) {
  const auto found = plans_.find(cursor.consumed_samples);
  if (found != plans_.end()) return found->second;
  return plans_.emplace(cursor.consumed_samples, sampler_.next_step(cursor)).first->second;
}

void Run::memory_missing(int rank, int node, std::uint64_t memory_life) const {
  require(memory_at_[static_cast<std::size_t>(rank)] != Where{node, memory_life},
          "the memory of rank {} was lost on node {}, where it was kept", rank, node);
}

void Run::memory_found(int rank, int node, std::uint64_t memory_life) {
  memory_at_[static_cast<std::size_t>(rank)] = {node, memory_life};
}

void Run::load_decided(bool mixed) {
  require(!mixed || loading_,
          "the ranks' memories do not fit together, and no load was interrupted");
  loading_ = true;
}

void Run::votes_complete(int rank, std::uint64_t generation, std::int64_t step,
                         const train::StepPlan& plan) {
  const auto [decided, first] = decided_in_.emplace(step, generation);
  require(decided->second == generation,
          "rank {} sees step {} decided in generation {}, and it was in generation {}", rank, step,
          generation, decided->second);
  if (!first) return;
  auto& samples = samples_[step];
  samples.clear();
  for (const auto& batch : plan.batches) samples.insert(samples.end(), batch.begin(), batch.end());
}

void Run::commits(std::uint64_t pid, std::uint64_t generation) {
  for (const auto& [other, in] : committing_) {
    require(in == generation, "processes {} and {} commit in generations {} and {} at once", pid,
            other, generation, in);
  }
  committing_[pid] = generation;
}

void Run::finished(int rank, std::uint64_t pid, std::int64_t step,
                   const std::vector<std::uint64_t>& chunks) {
  committing_.erase(pid);
  std::int64_t& done = done_[static_cast<std::size_t>(rank)];
  require(step == done + 1, "rank {} finishes step {} after step {}", rank, step, done);
  done = step;
  require(decided_in_.contains(step), "rank {} finishes step {}, which nobody decided", rank, step);
  check_chunks("of", rank, step, chunks);
}

void Run::kept_finished(int rank, std::int64_t step, const std::vector<std::uint64_t>& chunks) {
  require(decided_in_.contains(step), "what is kept of rank {} has step {}, which nobody decided",
          rank, step);
  check_chunks("that is kept of", rank, step, chunks);
}

void Run::check_chunks(const char* what, int rank, std::int64_t step,
                       const std::vector<std::uint64_t>& chunks) {
  const auto& right = oracle.parameters(step);
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    const auto at = static_cast<std::size_t>(rank * kChunks + chunk);
    require(chunks[static_cast<std::size_t>(chunk)] == right[at],
            "chunk {} {} rank {} is wrong after step {}", chunk, what, rank, step);
  }
}

void Run::loaded(int rank, std::int64_t step) {
  done_[static_cast<std::size_t>(rank)] = step;
  // What was decided after it is done again.
  decided_in_.erase(decided_in_.upper_bound(step), decided_in_.end());
}

void Run::goes_on(const std::vector<train::RankPosition>& positions, std::int64_t step) {
  for (std::size_t rank = 0; rank < positions.size(); ++rank)
    done_[rank] = std::max(done_[rank], positions[rank].step);
  for (const auto& [decided, samples] : samples_) {
    if (decided <= step) decided_in_.emplace(decided, 0);
  }
}

void Run::copied(int rank, std::int64_t step, bool from_kept) {
  done_[static_cast<std::size_t>(rank)] = step;
  ++(from_kept ? result.takeovers : result.copies);
}

void Run::finished_for_the_lost(std::int64_t step, std::uint64_t generation,
                                const train::StepPlan& plan) {
  if (!decided_in_.emplace(step, generation).second) return;
  auto& samples = samples_[step];
  samples.clear();
  for (const auto& batch : plan.batches) samples.insert(samples.end(), batch.begin(), batch.end());
}

std::int64_t Run::newest_step() const { return *std::max_element(done_.begin(), done_.end()); }

void Run::check_samples() const {
  std::map<std::int64_t, std::multiset<std::uint32_t>> epochs;
  train::SampleCursor cursor;
  std::set<std::int64_t> whole;
  for (const auto& [step, samples] : samples_) {
    require(decided_in_.contains(step), "samples of step {} were not used", step);
    epochs[cursor.epoch].insert(samples.begin(), samples.end());
    const train::StepPlan plan = sampler_.next_step(cursor);
    if (plan.last_of_epoch) whole.insert(plan.epoch);
    cursor = plan.after;
  }
  for (const std::int64_t epoch : whole) {
    const auto& used = epochs[epoch];
    for (auto it = used.begin(); it != used.end(); ++it) {
      require(used.count(*it) == 1, "sample {} was used {} times in epoch {}", *it, used.count(*it),
              epoch);
    }
  }
}

}  // namespace troupe::simulation
