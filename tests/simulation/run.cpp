#include "run.h"

#include <algorithm>

#include "train/sharding/strategy.h"

namespace troupe::simulation {
namespace {

// Every other seed has each state several times, on different nodes.
train::Mesh mesh_of(const Options& options, int ranks) {
  const bool replicated = options.seed % 2 == 0;
  if (options.elastic) {
    const auto strategy = replicated ? train::Strategy::kHybridShard : train::Strategy::kZero3;
    return *train::make_mesh(strategy, ranks, options.ranks_per_node, 0, 0);
  }
  const bool twice = options.nodes % 2 == 0 && replicated;
  return {.dp_replicate = twice ? 2 : 1, .dp_shard = twice ? ranks / 2 : ranks};
}

int ranks_of(const Options& options) { return options.nodes * options.ranks_per_node; }

std::size_t values_of(const Options& options) {
  return static_cast<std::size_t>(ranks_of(options) * kChunks);
}

// Inclusive.
int number_between(World& world, int least, int most) {
  return least + static_cast<int>(world.random.below(static_cast<std::uint64_t>(most - least + 1)));
}

}  // namespace

Run::Run(World& world, const Options& wanted, Result& counts, train::Sampler& all_samples)
    : options(wanted),
      result(counts),
      ranks(ranks_of(wanted)),
      buddies(wanted.elastic || wanted.seed % 4 != 1),
      machines_min(wanted.elastic ? number_between(world, 1, std::max(1, wanted.nodes / 2))
                                  : wanted.nodes),
      first_machines(wanted.elastic ? number_between(world, machines_min, wanted.nodes)
                                    : wanted.nodes),
      oracle(values_of(wanted), all_samples),
      meetings(world, wanted.canary == "commits-without-all"),
      world_(world),
      sampler_(all_samples),
      done_(static_cast<std::size_t>(ranks)) {}

const Layout& Run::layout(int of_ranks) {
  const auto found = layouts_.find(of_ranks);
  if (found != layouts_.end()) return found->second;
  return layouts_
      .emplace(of_ranks, Layout(mesh_of(options, of_ranks).replicas(), values_of(options)))
      .first->second;
}

const train::StepPlan& Run::plan(const train::SampleCursor& cursor) {
  const auto found = plans_.find(cursor.consumed_samples);
  if (found != plans_.end()) return found->second;
  return plans_.emplace(cursor.consumed_samples, sampler_.next_step(cursor)).first->second;
}

void Run::memory_missing(const std::string& name, const Where& at) const {
  const auto kept = memory_at_.find(name);
  require(kept == memory_at_.end() || kept->second != at,
          "the memory {} was lost on node {}, where it was kept", name, at.node);
}

void Run::memory_taken(const std::string& name, std::uint64_t generation) {
  loading_ = loading_ || generation < joined_[name];
}

void Run::memory_dropped(const std::string& name, int of_world) {
  require(of_world < stands_in_, "the memory {} is dropped before a step stands in a later world",
          name);
  memory_at_.erase(name);
}

void Run::load_decided(bool mixed) {
  require(!mixed || loading_,
          "the ranks' memories do not fit together, and no load was interrupted");
  loading_ = true;
}

bool Run::votes_complete(int rank, std::uint64_t generation, std::int64_t step,
                         const train::StepPlan& plan) {
  const bool first = decide(step, generation, plan);
  require(decided_in_.at(step) == generation,
          "rank {} sees step {} decided in generation {}, and it was in generation {}", rank, step,
          generation, decided_in_.at(step));
  return first;
}

bool Run::decide(std::int64_t step, std::uint64_t generation, const train::StepPlan& plan) {
  if (!decided_in_.emplace(step, generation).second) return false;
  auto& samples = samples_[step];
  samples.clear();
  for (const auto& batch : plan.batches) samples.insert(samples.end(), batch.begin(), batch.end());
  return true;
}

void Run::stands(int in_world, Holders holders) {
  stands_in_ = in_world;
  holders_ = std::move(holders);
  were_cut_off_ = cut_off_;
  may_lose_steps_ = false;
}

void Run::cut_off(int node) {
  cut_off_.insert(node);
  were_cut_off_.insert(node);
}

// With none or one of those that a step stood with lost, the others have its state.
void Run::steps_lost(const IsKept& is_kept) const {
  const auto reached = [&](const Where& at) {
    return is_kept(at) && !were_cut_off_.contains(at.node);
  };
  const bool some_lost = std::ranges::any_of(
      holders_, [&](const auto& holders) { return std::ranges::none_of(holders, reached); });
  require(holders_.empty() || some_lost || may_lose_steps_,
          "steps are lost, though of each state somebody is left who held it");
}

void Run::let_go(int node, const IsKept& is_kept) const {
  for (const auto& holders : holders_) {
    const auto held_by = [&](bool here) {
      return std::ranges::any_of(
          holders, [&](const Where& at) { return (at.node == node) == here && is_kept(at); });
    };
    require(!held_by(true) || held_by(false) || may_lose_steps_,
            "machine {} is let go with a state that nobody else has", node);
  }
}

void Run::commits(std::uint64_t pid, std::uint64_t generation) {
  for (const auto& [other, in] : committing_) {
    require(in == generation, "processes {} and {} commit in generations {} and {} at once", pid,
            other, generation, in);
  }
  committing_[pid] = generation;
}

void Run::finished(int rank, std::uint64_t pid, std::int64_t step, const Layout& layout,
                   const std::vector<std::uint64_t>& values) {
  committing_.erase(pid);
  std::int64_t& done = done_[static_cast<std::size_t>(rank)];
  require(step == done + 1, "rank {} finishes step {} after step {}", rank, step, done);
  done = step;
  require(decided_in_.contains(step), "rank {} finishes step {}, which nobody decided", rank, step);
  check_values("of", rank, step, layout, values);
}

void Run::kept_finished(int rank, std::int64_t step, const Layout& layout,
                        const std::vector<std::uint64_t>& values) {
  require(decided_in_.contains(step), "what is kept of rank {} has step {}, which nobody decided",
          rank, step);
  check_values("that is kept of", rank, step, layout, values);
}

void Run::check_values(const char* what, int rank, std::int64_t step, const Layout& layout,
                       const std::vector<std::uint64_t>& values) {
  const auto& right = oracle.parameters(step);
  const Layout::Range own = layout.values(rank);
  for (std::size_t i = 0; i < own.size; ++i) {
    require(values[i] == right[own.begin + i], "value {} {} rank {} is wrong after step {}", i,
            what, rank, step);
  }
}

void Run::handed_over(int rank, std::int64_t step, const Layout& layout,
                      const std::vector<std::uint64_t>& values, const IsKept& is_kept) {
  if (decided_in_.contains(step + 1)) {
    steps_lost(is_kept);
    loaded(rank, step);
  }
  // All may have loaded a checkpoint meanwhile, and done without those whom they met then.
  goes_on({}, step);
  check_values("handed to", rank, step, layout, values);
  done_[static_cast<std::size_t>(rank)] = step;
  ++result.hand_overs;
}

void Run::loaded(int rank, std::int64_t step) {
  done_[static_cast<std::size_t>(rank)] = step;
  // What was decided after it is done again.
  decided_in_.erase(decided_in_.upper_bound(step), decided_in_.end());
  holders_.clear();
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
  decide(step, generation, plan);
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
