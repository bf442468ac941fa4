#include "train/trainer/former_world.h"

#include <algorithm>
#include <map>
#include <utility>

#include "train/sharding/sharded_optimizer.h"
#include "train/trainer/progress_memory.h"
#include "train/trainer/rank_parts.h"
#include "train/trainer/sharding_setup.h"
#include "train/trainer/state_io.h"
#include "train/trainer/surviving_log.h"

namespace troupe::train {
namespace {

struct FormerArrival {
  RankPosition position;
  KeptPosition kept;
  std::int64_t finished_step = -1;
};
static_assert(std::is_trivially_copyable_v<FormerArrival>);

// What is handed over beside tensors and history.
struct Head {
  CommitRecord record;
  Aftermath aftermath;
};
static_assert(std::is_trivially_copyable_v<Head>);

// Parameters, then each slot: the parts of a state that lie side by side.
std::size_t part_count(const StateBuffers& buffers) { return 1 + buffers.slots.size(); }

// `use`: of the last update of the state.
std::span<std::byte> stretch(const StateBuffers& buffers, std::size_t part,
                             const UpdateRange& range, const SlotUse& use) {
  if (part > 0) return buffers.slots[part - 1].part(range, buffers.state, use);
  const std::size_t bytes = dtype_size(buffers.state);
  return buffers.parameters.subspan(static_cast<std::size_t>(range.parameters) * bytes,
                                    static_cast<std::size_t>(range.elements) * bytes);
}

// The same in bytes, of slots as `slots` has them.
std::size_t stretch_bytes(const std::vector<SlotBuffer>& slots, DType state, std::size_t part,
                          const UpdateRange& range, const SlotUse& use) {
  const SlotPlace* place = part > 0 ? slots[part - 1].place.get() : nullptr;
  if (!place) return static_cast<std::size_t>(range.elements) * dtype_size(state);
  return place->is_used(range.slots, use) ? place->bytes_of(range.slots, range.elements) : 0;
}

std::int64_t end_of(const UpdateRange& range) { return range.flat + range.elements; }

// A stretch of what one rank gives, and the ranks that lack it.
struct Handed {
  UpdateRange range;
  std::vector<int> takers;
};

// The given range, cut where others take it. `updated`: ranges by rank, in order; `takers`: of
// those ranks some, in order. What nobody takes is left out.
std::vector<Handed> cut_by_takers(const UpdateRange& given, std::span<const int> takers,
                                  const std::vector<std::vector<UpdateRange>>& updated) {
  // The ranges of a rank that overlap with it.
  const auto within = [&](int rank) {
    const auto& all = updated[static_cast<std::size_t>(rank)];
    const auto begin = std::ranges::partition_point(
        all, [&](const UpdateRange& range) { return end_of(range) <= given.flat; });
    const auto end = std::ranges::partition_point(
        begin, all.end(), [&](const UpdateRange& range) { return range.flat < end_of(given); });
    return std::span(begin, end);
  };
  std::map<std::int64_t, std::vector<int>> cuts{{given.flat, {}}, {end_of(given), {}}};
  for (const int rank : takers) {
    for (const UpdateRange& range : within(rank)) {
      cuts.try_emplace(std::max(range.flat, given.flat));
      cuts.try_emplace(std::min(end_of(range), end_of(given)));
    }
  }
  for (const int rank : takers) {
    for (const UpdateRange& range : within(rank)) {
      const auto end = cuts.find(std::min(end_of(range), end_of(given)));
      for (auto cut = cuts.find(std::max(range.flat, given.flat)); cut != end; ++cut)
        cut->second.push_back(rank);
    }
  }
  std::vector<Handed> handed;
  for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
    if (cut->second.empty()) continue;
    const std::int64_t elements = std::next(cut)->first - cut->first;
    handed.push_back(
        {train::part_of(given, cut->first - given.flat, elements), std::move(cut->second)});
  }
  return handed;
}

// What `bytes`, of the range `given` of a state with such slots, hold of the ranges of `to`.
void scatter(const UpdatedPart& to, std::size_t part, const std::vector<SlotBuffer>& slots,
             const UpdateRange& given, std::span<const std::byte> bytes, const SlotUse& use) {
  for (const UpdateRange& range : to.ranges) {
    const std::int64_t from = std::max(given.flat, range.flat);
    const std::int64_t until = std::min(given.flat + given.elements, range.flat + range.elements);
    if (from >= until) continue;
    const auto target =
        stretch(to.buffers, part, train::part_of(range, from - range.flat, until - from), use);
    const std::size_t before = stretch_bytes(slots, to.buffers.state, part,
                                             train::part_of(given, 0, from - given.flat), use);
    std::ranges::copy(bytes.subspan(before, target.size()), target.begin());
  }
}

}  // namespace

FormerWorld::Own::Own(RankLayout layout_of_it, TrainingState state_of_it,
                      const Optimizer& optimizer, ParallelFor parallel_for)
    : layout(std::move(layout_of_it)),
      state(std::move(state_of_it)),
      part(UpdatedPart::of(layout, state.kept())),
      updates(make_cpu_optimizer_device(OptimizerShard::of(layout, part.buffers, optimizer),
                                        std::move(parallel_for), &state.update_log())) {}

FormerWorld::FormerWorld(RankParts& parts, FormerRanks former, const Mesh& mesh)
    : parts_(parts), former_(std::move(former)), mesh_(mesh), states_(mesh.replicas()) {}

int FormerWorld::rank() const { return former_.ranks[static_cast<std::size_t>(parts_.rank)]; }

RankLayout FormerWorld::layout_of(int former_rank) const {
  return RankLayout(parts_.model->model_layout(), parts_.strategy, mesh_, former_rank);
}

Result<std::unique_ptr<FormerWorld>> FormerWorld::open(RankParts& f, FormerRanks former) {
  const Mesh mesh = TROUPE_TRY(mesh_of(f.config(), former.world_size, f.options.ranks_per_node));
  std::unique_ptr<FormerWorld> world(new FormerWorld(f, std::move(former), mesh));
  const int rank = world->rank();
  if (rank < 0) return world;
  SurvivingMemory& memory = *world->former_.memory;
  RankLayout layout = world->layout_of(rank);
  const StateOptions options{.state = state_dtype(f.config()),
                             .frozen = f.engine_options.compute.frozen,
                             .optimizer = f.optimizer.get(),
                             .threads = f.compute->threads().threads()};
  auto found = TROUPE_TRY(TrainingState::find(layout, options, memory));
  if (!found) return world;
  const int keeps = found->transaction().keeps();
  world->own_ = std::make_unique<Own>(std::move(layout), std::move(*found), *f.optimizer,
                                      parallel_for_on(f.compute->threads()));
  if (keeps < 0) return world;
  const std::string label = fmt::format("troupe-{}-former-rank{}-kept", f.options.run, rank);
  world->kept_ =
      TROUPE_TRY(BuddyState::open(f.buddy_task(world->own_->layout, memory, label), keeps));
  return world;
}

Result<std::vector<std::int64_t>> FormerWorld::meet(RunGeneration& generation,
                                                    HandOverSession& session) {
  FormerArrival mine{.position = session.position()};
  if (own_) mine.finished_step = own_->state.transaction().aftermath().finished_step;
  if (kept_) {
    if (const auto damage = kept_->verify()) {
      kept_->forget();
      generation.observer.warning(*damage);
    }
    mine.kept = session.kept_position();
  }
  const auto present = static_cast<std::size_t>(generation.world.world_size());
  std::vector<FormerArrival> all(present);
  const std::vector<std::size_t> counts(present, sizeof mine);
  TROUPE_RETURN_IF_ERROR(generation.world.all_gather(
      std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), counts));
  std::vector<RankPosition> positions;
  std::vector<KeptPosition> kept;
  std::vector<std::int64_t> finished_steps;
  for (const FormerArrival& arrival : all) {
    positions.push_back(arrival.position);
    kept.push_back(arrival.kept);
    finished_steps.push_back(arrival.finished_step);
  }
  session.met(positions, kept);
  return finished_steps;
}

Status FormerWorld::share_record(RunGeneration& generation, HandOverSession& session,
                                 CommitRecord& record) {
  if (session.record_from() == parts_.rank) record = session.record();
  TROUPE_RETURN_IF_ERROR(generation.world.broadcast(std::as_writable_bytes(std::span(&record, 1)),
                                                    session.record_from()));
  session.shared(record);
  return {};
}

Status FormerWorld::update_kept(RunGeneration& generation, const CommitRecord& record) {
  if (record.skips()) return {};
  const auto damage = kept_->update(update_of(parts_.config(), record), record.step);
  if (!damage) return {};
  kept_->forget();
  generation.observer.warning(*damage);
  return error(Code::kAborted, "{}", *damage);
}

Result<SlotUse> FormerWorld::last_use(RunGeneration& generation, const HandOverSession& session) {
  const int root = session.leader();
  std::int64_t updates = 0;
  if (parts_.rank == root) updates = own_->state.transaction().record().moment_updates;
  TROUPE_RETURN_IF_ERROR(generation.world.broadcast(std::span(&updates, 1), root));
  return SlotUse::in(updates);
}

Status FormerWorld::take_states(RunGeneration& generation, const HandOverSession& session,
                                const SlotUse& use) {
  RankParts& f = parts_;
  static_cast<void>(f.state().take_zeroed());  // it is about to be written
  const int present = generation.world.world_size();
  std::vector<std::vector<UpdateRange>> updated;
  for (int rank = 0; rank < present; ++rank)
    updated.push_back(OptimizerShard::ranges_of(
        RankLayout(f.model->model_layout(), f.strategy, f.layout->mesh(), rank)));
  for (const HandOverSession::Giver& giver : session.givers()) {
    const auto given = OptimizerShard::ranges_of(layout_of(giver.former_rank));
    const int state = states_[static_cast<std::size_t>(giver.former_rank)];
    std::vector<int> takers;
    bool copies_here = false;
    for (int rank = 0; rank < present; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      const int former = former_.ranks[at];
      const bool has =
          rank == giver.member || (!giver.kept && former >= 0 && session.usable(former) &&
                                   states_[static_cast<std::size_t>(former)] == state);
      if (!has)
        takers.push_back(rank);
      else if (rank == f.rank)
        copies_here = true;
    }
    if (copies_here) {
      const UpdatedPart& from = part_of(giver);
      const UpdatedPart to = f.own_part();
      for (const UpdateRange& range : from.ranges) {
        for (std::size_t part = 0; part < part_count(from.buffers); ++part)
          scatter(to, part, from.buffers.slots, range, stretch(from.buffers, part, range, use),
                  use);
      }
    }
    TROUPE_RETURN_IF_ERROR(pass(generation, giver, takers, updated, use));
  }
  return {};
}

Status FormerWorld::pass(RunGeneration& generation, const HandOverSession::Giver& giver,
                         const std::vector<int>& takers,
                         const std::vector<std::vector<UpdateRange>>& updated, const SlotUse& use) {
  RankParts& f = parts_;
  const bool gives = f.rank == giver.member;
  if (!gives && std::ranges::find(takers, f.rank) == takers.end()) return {};
  const UpdatedPart to = f.own_part();
  const std::size_t size = dtype_size(to.buffers.state);
  const auto piece_elements = static_cast<std::int64_t>(HostAccess::kPieceBytes / size);
  std::vector<std::byte> piece;
  const RankLayout given = layout_of(giver.former_rank);
  const auto ranges = gives ? part_of(giver).ranges : OptimizerShard::ranges_of(given);
  const auto slots =
      gives ? part_of(giver).buffers.slots : places_of(given, *f.optimizer, to.buffers.state);
  // By who takes: each stretch goes to those who lack it alone.
  std::map<std::vector<int>, std::unique_ptr<collective::Communicator>> groups;
  for (const UpdateRange& range : ranges) {
    for (const Handed& handed : cut_by_takers(range, takers, updated)) {
      if (!gives && std::ranges::find(handed.takers, f.rank) == handed.takers.end()) continue;
      auto& group = groups[handed.takers];
      if (!group) {
        std::vector<int> members{giver.member};
        members.insert(members.end(), handed.takers.begin(), handed.takers.end());
        group = TROUPE_TRY(generation.world.subgroup(members, "a state of another world"));
      }
      for (std::size_t part = 0; part < part_count(to.buffers); ++part) {
        for (std::int64_t at = 0; at < handed.range.elements; at += piece_elements) {
          const UpdateRange cut = train::part_of(
              handed.range, at, std::min(piece_elements, handed.range.elements - at));
          const std::size_t bytes = stretch_bytes(slots, to.buffers.state, part, cut, use);
          if (bytes == 0) continue;
          if (gives) {
            TROUPE_RETURN_IF_ERROR(
                group->broadcast(stretch(part_of(giver).buffers, part, cut, use), 0));
            continue;
          }
          piece.resize(bytes);
          TROUPE_RETURN_IF_ERROR(group->broadcast(std::span(piece), 0));
          scatter(to, part, slots, cut, piece, use);
        }
      }
    }
  }
  return {};
}

Result<std::optional<HandedOver>> FormerWorld::hand_over(RunGeneration& generation) {
  using Next = HandOverSession::Next;
  HandOverSession session(former_.ranks, states_, parts_.rank,
                          own_ ? &own_->state.transaction() : nullptr,
                          kept_ ? &kept_->transaction() : nullptr);
  std::vector<std::int64_t> finished_steps;
  CommitRecord record;
  while (session.next() != Next::kDone) {
    switch (session.next()) {
      case Next::kMeet:
        finished_steps = TROUPE_TRY(meet(generation, session));
        break;
      case Next::kShareRecord:
        TROUPE_RETURN_IF_ERROR(share_record(generation, session, record));
        break;
      case Next::kUpdateKept:
        TROUPE_RETURN_IF_ERROR(update_kept(generation, record));
        session.kept_updated();
        break;
      case Next::kUpdate:
        if (!record.skips())
          TROUPE_RETURN_IF_ERROR(
              own_->updates->update(update_of(parts_.config(), record), record.step));
        session.updated();
        break;
      case Next::kTake:
        TROUPE_RETURN_IF_ERROR(
            take_states(generation, session, TROUPE_TRY(last_use(generation, session))));
        session.taken();
        break;
      case Next::kDone:
        break;
    }
  }
  if (!session.found()) return std::optional<HandedOver>();
  return std::optional(TROUPE_TRY(what_goes_with_it(generation, session, finished_steps)));
}

Result<HandedOver> FormerWorld::what_goes_with_it(RunGeneration& generation,
                                                  const HandOverSession& session,
                                                  const std::vector<std::int64_t>& finished_steps) {
  HandedOver handed{.finished_by_all = session.step()};
  for (int former = 0; former < former_.world_size; ++former) {
    // As in a recovery: whether a rank that is lost had finished what follows the last step makes
    // no difference but for rank 0's files.
    const std::int64_t lost = handed.finished_by_all - (former == 0 ? 1 : 0);
    const int member = session.member_of(former);
    const std::int64_t by_it = member < 0 ? -1 : finished_steps[static_cast<std::size_t>(member)];
    handed.finished_by_all =
        std::min(handed.finished_by_all, session.usable(former) ? by_it : lost);
  }
  const int root = session.leader();
  Head head;
  if (parts_.rank == root) {
    const StepTransaction& transaction = own_->state.transaction();
    head = {transaction.record(), transaction.aftermath()};
    const auto log = TROUPE_TRY(SurvivingLog::open(*former_.memory, kHistoryName));
    for (const std::string& line : log.lines()) handed.history += line + "\n";
  }
  TROUPE_RETURN_IF_ERROR(
      generation.world.broadcast(std::as_writable_bytes(std::span(&head, 1)), root));
  TROUPE_RETURN_IF_ERROR(broadcast_text(generation.world, handed.history, root));
  handed.record = head.record;
  handed.aftermath = head.aftermath;
  return handed;
}

Status FormerWorld::drop() {
  own_.reset();
  kept_.reset();
  return former_.memory ? drop(*former_.memory) : Status();
}

Status FormerWorld::drop(SurvivingMemory& memory) {
  for (const char* name : {kHistoryName, kProgressName, kProgressBeforeName})
    TROUPE_RETURN_IF_ERROR(memory.forget(name));
  return TrainingState::drop(memory);
}

}  // namespace troupe::train
