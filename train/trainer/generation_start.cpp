#include "train/trainer/generation_start.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include <fmt/ranges.h>

#include "runtime/base/build_options.h"
#include "runtime/base/hash.h"
#include "train/adapters/pissa_convert.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/checkpoint/checkpoint_finder.h"
#include "train/checkpoint/checkpoint_names.h"
#include "train/checkpoint/tensor_reader.h"
#include "train/optimizer/optimizers.h"
#include "train/report/format.h"
#include "train/trainer/sharding_setup.h"

namespace troupe::train {
namespace {

// What rank 0 knows of the source and the others must.
struct Progress {
  CommitRecord record;
  BestModelState best;
  PlateauState plateau;
  std::int64_t evaluated_step = -1;
  std::int64_t checkpoint = 0;
  std::int64_t optimizer = 0;
  std::int64_t end_run = 0;
  std::int64_t high_losses = 0;
};
static_assert(std::is_trivially_copyable_v<Progress>);

// What every rank brings to a new generation.
struct Arrival {
  RankPosition position;
  std::int64_t finished_step = -1;
  double gemm_flops_per_s = 0;
  KeptPosition kept;
  std::uint64_t machine = 0, domain = 0;  // hashes of their names
};
static_assert(std::is_trivially_copyable_v<Arrival>);

template <typename T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

std::string why_not_memory(const RecoveryDecision& decision, std::uint64_t generation,
                           const BuddyPlan& buddies) {
  if (generation <= 1) return {};
  if (!decision.broken.empty())
    return "the ranks' memories do not fit together: " + decision.broken;
  return fmt::format("rank {} found no memory of the process before it on its node{}",
                     decision.empty_rank, buddies.none() ? "" : ", and its buddy keeps no copy");
}

// What goes with the tensors of a state that is copied.
struct CopiedState {
  CommitRecord record;
  Aftermath aftermath;
};
static_assert(std::is_trivially_copyable_v<CopiedState>);

// The same as broadcast_pieces(), in the memory of whatever device.
Status broadcast_buffer(collective::Communicator& group, int root, std::span<std::byte> buffer,
                        HostAccess& access) {
  if (access.in_place()) return broadcast_pieces(group, root, buffer);
  if (group.rank() != root) {
    return access.write(
        buffer, [&](std::size_t, std::span<std::byte> out) { return group.broadcast(out, root); });
  }
  std::vector<std::byte> piece;
  return access.read(buffer, [&](std::size_t, std::span<const std::byte> bytes) {
    piece.assign(bytes.begin(), bytes.end());
    return group.broadcast(std::span(piece), root);
  });
}

}  // namespace

Status GenerationStart::begin(RunGeneration& generation, TrainerLoaded& loaded) {
  using Next = RecoverySession::Next;
  RecoverySession session(parts_.transaction(), parts_.rank, parts_.kept_transaction());
  TROUPE_RETURN_IF_ERROR(session.join(generation.number));
  while (session.next() != Next::kDone) {
    switch (session.next()) {
      case Next::kMeet:
        TROUPE_RETURN_IF_ERROR(meet(generation, session));
        loaded.how = session.copies_from() < 0 ? LoadedFrom::kMemory : LoadedFrom::kReplica;
        if (loaded.how == LoadedFrom::kReplica) {
          loaded.reason = fmt::format("rank {} {}", session.copies_from(),
                                      session.copies_kept() ? "kept a copy" : "holds the same");
        }
        loaded.finished_step = session.finishes_step();
        loaded.recomputes = session.decision().recomputes;
        break;
      case Next::kShareRecord:
        TROUPE_RETURN_IF_ERROR(share_record(generation, session));
        break;
      case Next::kUpdateKept:
        TROUPE_RETURN_IF_ERROR(step_of(parts_, generation, {}).update_kept());
        session.kept_updated();
        break;
      case Next::kUpdate:
        TROUPE_RETURN_IF_ERROR(step_of(parts_, generation, {}).update_committed());
        session.updated();
        break;
      case Next::kCopy:
        session.copied(TROUPE_TRY(copy_states(generation, session)));
        break;
      case Next::kLoad:
        if (const auto record = TROUPE_TRY(take_over(generation, loaded))) {
          session.loaded(*record);
          break;
        }
        loaded.reason = parts_.former.empty()
                            ? why_not_memory(session.decision(), generation.number, parts_.buddies)
                            : "of the world before not every rank's state is left, or a copy of it";
        session.loaded(TROUPE_TRY(load(generation, loaded)));
        break;
      case Next::kForgetUpdates:
        TROUPE_RETURN_IF_ERROR(parts_.rank_compute->updates().forget_updates());
        session.updates_forgotten();
        break;
      case Next::kRenew:
        TROUPE_RETURN_IF_ERROR(renew(generation, session));
        break;
      case Next::kPublish:
        TROUPE_RETURN_IF_ERROR(publish(generation, session));
        session.published();
        break;
      case Next::kDone:
        break;
    }
  }
  // Nobody's gradients will come for it any more.
  const bool keeps_on =
      generation.purpose != GenerationPurpose::kTrain || parts_.buddies.kept_by(parts_.rank) >= 0;
  if (parts_.kept && !keeps_on) TROUPE_RETURN_IF_ERROR(parts_.drop_kept());
  loaded.step = parts_.step();
  return {};
}

Status GenerationStart::meet(RunGeneration& generation, RecoverySession& session) {
  RankParts& f = parts_;
  const Aftermath aftermath = f.transaction().aftermath();
  if (follow_.gemm_flops_per_s_here == 0 && session.position().loaded)
    follow_.gemm_flops_per_s_here = aftermath.gemm_flops_per_s;
  Arrival mine{.position = session.position(),
               .finished_step = aftermath.finished_step,
               .gemm_flops_per_s = follow_.gemm_flops_per_s_here,
               .machine = xxh3_64(std::as_bytes(std::span(f.machine))),
               .domain = xxh3_64(std::as_bytes(std::span(f.domain)))};
  if (f.kept) {
    if (const auto damage = f.kept->verify()) {
      f.kept->forget();
      generation.observer.warning(*damage);
    }
    mine.kept = {f.kept->owner(), f.kept->transaction().position()};
  }
  const auto ranks = static_cast<std::size_t>(generation.world.world_size());
  std::vector<Arrival> all(ranks);
  const std::vector<std::size_t> counts(ranks, sizeof mine);
  TROUPE_RETURN_IF_ERROR(generation.world.all_gather(
      std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), counts));
  std::vector<RankPosition> positions;
  std::vector<KeptPosition> kept;
  std::vector<std::uint64_t> machines, domains;
  f.gemm_flops_per_s = 0;
  const bool rates_known =
      std::ranges::all_of(all, [](const Arrival& a) { return a.gemm_flops_per_s > 0; });
  for (const Arrival& arrival : all) {
    positions.push_back(arrival.position);
    kept.push_back(arrival.kept);
    machines.push_back(arrival.machine);
    domains.push_back(arrival.domain);
    if (rates_known) f.gemm_flops_per_s += arrival.gemm_flops_per_s;
  }
  const std::vector<int> states = f.layout->mesh().replicas();
  TROUPE_RETURN_IF_ERROR(plan_buddies(generation, BuddyPlan::make(states, machines, domains)));
  session.met({.positions = positions, .states = states, .kept = kept}, f.buddies.kept());
  const RecoveryDecision& decision = session.decision();
  if (decision.kind == RecoveryDecision::Kind::kLoad) return {};
  const bool finishes = decision.kind == RecoveryDecision::Kind::kFinish;
  const std::int64_t stands = decision.step + (finishes ? 1 : 0);
  finished_by_all_ = stands;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const bool copies = !decision.copies_from.empty() && decision.copies_from[rank] >= 0;
    // Whether a rank that is lost had finished what follows the last step is not known. But for
    // rank 0's files it makes no difference.
    const std::int64_t by_it = !copies ? all[rank].finished_step : rank == 0 ? stands - 1 : stands;
    finished_by_all_ = std::min(finished_by_all_, by_it);
  }
  if (session.copies_from() < 0) left_ = follow_.take_up(aftermath, finished_by_all_);
  return {};
}

Result<CommitRecord> GenerationStart::copy_states(RunGeneration& generation,
                                                  const RecoverySession& session) {
  RankParts& f = parts_;
  const std::vector<int>& sources = session.decision().copies_from;
  CopiedState copied;
  const std::vector<bool>& from_kept = session.decision().copies_kept;
  for (int source = 0; source < generation.world.world_size(); ++source) {
    std::vector<int> group;
    for (int rank = 0; rank < generation.world.world_size(); ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      if (rank == source || (sources[at] == source && !from_kept[at])) group.push_back(rank);
    }
    const auto root = static_cast<int>(std::ranges::find(group, source) - group.begin());
    if (group.size() < 2 || std::ranges::find(group, f.rank) == group.end()) continue;
    const auto members = TROUPE_TRY(generation.world.subgroup(group, "states that are copied"));
    if (f.rank == source) copied = {f.transaction().record(), f.transaction().aftermath()};
    static_cast<void>(f.state().take_zeroed());  // it is about to be written
    TROUPE_RETURN_IF_ERROR(members->broadcast(bytes_of(copied), root));
    const StateBuffers kept = f.state().kept();
    HostAccess& access = f.rank_compute->kept_access();
    TROUPE_RETURN_IF_ERROR(broadcast_buffer(*members, root, kept.parameters, access));
    for (const SlotBuffer& slot : kept.slots)
      TROUPE_RETURN_IF_ERROR(broadcast_buffer(*members, root, slot.data, access));
    if (f.layout->frozen())
      TROUPE_RETURN_IF_ERROR(broadcast_buffer(*members, root, kept.frozen, access));
    if (follow_.records()) TROUPE_RETURN_IF_ERROR(follow_.share_history(*members, root));
    if (f.rank != source) go_on_as(copied.aftermath);
  }
  if (std::ranges::find(from_kept, true) == from_kept.end()) return copied.record;
  const RankLayout* frozen = f.layout->frozen();
  for (int owner = 0; owner < generation.world.world_size(); ++owner) {
    const auto at = static_cast<std::size_t>(owner);
    if (!from_kept[at] || (f.rank != owner && f.rank != sources[at])) continue;
    const bool gives = f.rank != owner;
    const auto members = TROUPE_TRY(
        generation.world.subgroup(std::array{sources[at], owner}, "a rank and who kept its state"));
    if (gives) copied = {f.kept->transaction().record(), f.transaction().aftermath()};
    static_cast<void>(f.state().take_zeroed());
    TROUPE_RETURN_IF_ERROR(members->broadcast(bytes_of(copied), 0));
    TROUPE_RETURN_IF_ERROR(broadcast_state(*members, 0, gives ? f.kept->part() : f.own_part()));
    if (frozen && !frozen->sharded(Region::kParameters))
      TROUPE_RETURN_IF_ERROR(
          broadcast_buffer(*members, 0, f.state().kept().frozen, f.rank_compute->kept_access()));
    if (owner == 0) TROUPE_RETURN_IF_ERROR(follow_.share_history(*members, 0));
    if (!gives) go_on_as(copied.aftermath);
  }
  // Of what is not trained nobody keeps a copy: a shard of it is read again.
  if (!frozen || !frozen->sharded(Region::kParameters)) return copied.record;
  const BaseSource derived_from = base_source();
  DerivedBase base(f.files, derived_from, f.bundle.model, f.model->model_layout());
  TROUPE_RETURN_IF_ERROR(load_frozen_part(generation, derived_from.is_derived() ? &base : nullptr));
  return copied.record;
}

// Before the state counts that it belongs to: this generation may end at any time.
void GenerationStart::go_on_as(Aftermath other) {
  left_ = follow_.take_up(other, finished_by_all_);
  other.now = left_;
  other.finished_step = finished_by_all_;
  other.gemm_flops_per_s = follow_.gemm_flops_per_s_here;
  parts_.transaction().set_aftermath(other);
}

Status GenerationStart::plan_buddies(RunGeneration& generation, BuddyPlan plan) {
  RankParts& f = parts_;
  f.buddies = {};
  const std::string& wanted = f.config().troupe.replicas;
  if (!kRecovery || wanted == "0" || generation.purpose != GenerationPurpose::kTrain) return {};
  const bool on_cpu = f.options.compute.kind == ComputeKind::kCpu;
  const bool alone = plan.leaves_some_alone() || (!plan.none() && !on_cpu);
  const std::string why = plan.none() ? plan.why_none() : "states on GPUs have no copies yet";
  const bool keeps = !plan.none() && on_cpu;
  const bool safe = keeps || plan.lies_on_several();
  const auto before = f.leads() ? generation.observer.safe_before(safe) : std::optional<bool>();
  if (!keeps) {
    // Where machines come and go there may be copies in the next world.
    if (wanted == "1" && generation.number == 1 && !generation.observer.world_changes())
      return error(Code::kInvalidArgument, "troupe.replicas=1: {}; use auto or 0", why)
          .with("key", "troupe.replicas");
    if (f.leads() && safe && before == false)
      generation.observer.notice(fmt::format(
          "the loss of a machine costs no step from here on: {} (troupe.replicas)", why));
    if (f.leads() && !safe && before.value_or(alone || wanted == "1"))
      generation.observer.notice(fmt::format(
          "the loss of a machine costs the steps since the last checkpoint{}: no state has a copy "
          "on another (troupe.replicas={}): {}",
          before ? " from here on" : "", wanted, why));
    return {};
  }
  f.buddies = std::move(plan);
  generation.buddies = TROUPE_TRY(BuddyLinks::make(generation.world, f.buddies));
  if (f.leads() && !before.value_or(generation.number > 1))
    generation.observer.notice(fmt::format(
        "each rank's state has a copy on another machine{}{}, which takes every step, too: the "
        "loss of a machine costs no step (troupe.replicas)",
        before ? " from here on" : "",
        f.buddies.across_domains()
            ? fmt::format(" with another label '{}'", f.config().troupe.failure_domain)
            : ""));
  return {};
}

Status GenerationStart::renew(RunGeneration& generation, RecoverySession& session) {
  RankParts& f = parts_;
  const std::vector<bool>& renews = session.renews();
  const bool mine = renews[static_cast<std::size_t>(f.rank)];
  if (mine) {
    const int owner = f.buddies.kept_by(f.rank);
    f.kept.reset();
    f.kept = TROUPE_TRY(f.open_kept(owner));
    f.transaction().set_keeps(owner);
    f.kept->forget();
  }
  // Whoever keeps rank 0's state goes on with its history; what is loaded comes to all anyway.
  const bool goes_on = session.decision().kind != RecoveryDecision::Kind::kLoad;
  const auto share = [&](collective::Communicator& group) -> Status {
    Aftermath aftermath = f.transaction().aftermath();
    TROUPE_RETURN_IF_ERROR(group.broadcast(bytes_of(aftermath), 0));
    TROUPE_RETURN_IF_ERROR(follow_.share_history(group, 0));
    if (group.rank() != 0) go_on_as(aftermath);
    return {};
  };
  TROUPE_RETURN_IF_ERROR(generation.buddies->pass(
      [&](collective::Communicator& group) -> Status {
        TROUPE_RETURN_IF_ERROR(broadcast_state(group, 0, f.own_part()));
        return f.rank == 0 && goes_on ? share(group) : Status();
      },
      [&](collective::Communicator& group) -> Status {
        TROUPE_RETURN_IF_ERROR(broadcast_state(group, 0, f.kept->part()));
        return f.kept->owner() == 0 && goes_on ? share(group) : Status();
      },
      renews));
  if (mine) f.kept->written(f.transaction().record());
  session.renewed(mine ? &f.kept->transaction() : nullptr);
  return {};
}

Status GenerationStart::share_record(RunGeneration& generation, RecoverySession& session) {
  const int from = session.decision().record_rank;
  CommitRecord record;
  if (parts_.rank == from) record = session.record();
  TROUPE_RETURN_IF_ERROR(generation.world.broadcast(bytes_of(record), from));
  session.shared(record);
  return {};
}

Status GenerationStart::publish(RunGeneration& generation, const RecoverySession& session) {
  RankParts& f = parts_;
  if (session.decision().kind == RecoveryDecision::Kind::kLoad && !takes_over_)
    return parameters_loaded(generation);
  place(f.transaction().record());
  // Owners' parameters may not have reached all, nor where they are used.
  TROUPE_RETURN_IF_ERROR(f.rank_compute->updates().place_parameters());
  TROUPE_RETURN_IF_ERROR(generation.engine->frozen_loaded());
  TROUPE_RETURN_IF_ERROR(generation.engine->parameters_changed(true));
  if (follow_.records()) TROUPE_RETURN_IF_ERROR(follow_.open_recorder(&left_));
  return saves_.take_up_left(generation);
}

void GenerationStart::place(const CommitRecord& record) {
  RankParts& f = parts_;
  // The length of a stream's epoch is not known: its steps are counted as they are done.
  const std::int64_t here = f.streamed ? record.step : f.sampler.steps_at(record.cursor);
  f.facts = go_on_from(f.planned, f.config().training, record.step, here);
  f.evaluation.schedule = f.facts;
  f.sampler.set_even_batches(f.facts.step_offset == 0);
}

Result<std::optional<CommitRecord>> GenerationStart::take_over(RunGeneration& generation,
                                                               TrainerLoaded& loaded) {
  RankParts& f = parts_;
  takes_over_ = false;
  for (const auto& former : f.former) {
    const auto handed = TROUPE_TRY(former->hand_over(generation));
    if (!handed) continue;
    takes_over_ = true;
    finished_by_all_ = handed->finished_by_all;
    go_on_as(handed->aftermath);
    if (follow_.records()) TROUPE_RETURN_IF_ERROR(follow_.take_history(handed->history));
    if (f.layout->frozen()) {
      const BaseSource derived_from = base_source();
      DerivedBase base(f.files, derived_from, f.bundle.model, f.model->model_layout());
      TROUPE_RETURN_IF_ERROR(
          load_frozen_part(generation, derived_from.is_derived() ? &base : nullptr));
    }
    loaded.how = LoadedFrom::kMemory;
    loaded.reason = "of the world before";
    return std::optional<CommitRecord>(handed->record);
  }
  return std::optional<CommitRecord>();
}

Result<CommitRecord> GenerationStart::load(RunGeneration& generation, TrainerLoaded& loaded) {
  RankParts& f = parts_;
  follow_.recorder.reset();
  follow_.restored = {};
  follow_.best = f.best;
  follow_.plateau = {};
  follow_.evaluated_step.reset();
  follow_.saving_step = -1;
  follow_.final_model = false;
  follow_.end_run = false;
  follow_.high_losses = 0;
  saves_.save_again = false;
  StateSource source;
  CommitRecord record;
  if (f.leads()) source = TROUPE_TRY(choose_source(generation.number, record));
  TROUPE_RETURN_IF_ERROR(agree(generation.world, source, record));
  source.moment_updates = record.moment_updates;
  const BaseSource derived_from = base_source();
  DerivedBase base(f.files, derived_from, f.bundle.model, f.model->model_layout());
  source.base = derived_from.is_derived() ? &base : nullptr;
  place(record);
  if (f.leads() && f.facts.step_offset != 0) {
    generation.observer.notice(fmt::format(
        "the {} steps done so far come to {} of this run's (samples in each: {}): the run ends "
        "after step {}",
        record.step, record.step - f.facts.step_offset, f.facts.effective_batch_size,
        std::max(record.step, parts_.total_steps())));
  }
  const bool zeroed = f.state().take_zeroed();
  const auto seed = static_cast<std::uint64_t>(f.config().training.seed);
  const StateBuffers kept = f.state().kept();
  HostAccess& access = f.rank_compute->kept_access();
  // Before what is trained: magnitudes begin as the norms of weights as they are kept.
  if (f.layout->frozen()) TROUPE_RETURN_IF_ERROR(load_frozen_part(generation, source.base));
  source.has_frozen = f.layout->frozen() != nullptr;
  if (source.path.empty()) {
    TROUPE_RETURN_IF_ERROR(initialize_state(f.bundle.model, seed, *f.layout, kept, access, zeroed,
                                            f.compute->threads()));
  } else {
    TROUPE_RETURN_IF_ERROR(load_state(f.files, source, f.bundle.model, f.model->model_layout(),
                                      seed, *f.layout, kept, access, zeroed, generation.world));
  }
  if (f.leads() && f.config().finetuning.pissa_convert) {
    const AdapterConfig adapter = TROUPE_TRY(
        AdapterConfig::parse(f.bundle.companions[kAdapterConfigFile], kAdapterConfigFile));
    TROUPE_RETURN_IF_ERROR(base.write_start(join_path(f.output_dir(), kPissaInitFolder), adapter));
  }
  TROUPE_RETURN_IF_ERROR(generation.engine->frozen_loaded());
  TROUPE_RETURN_IF_ERROR(open_recorders(generation.world));
  // What the initial parameters are evaluated to is still to be written.
  const bool unevaluated = record.step == 0 && f.evaluation.due_on_start();
  follow_.finished_step = unevaluated ? -1 : record.step;
  follow_.before = follow_.now();
  follow_.note();
  loaded.how = source.checkpoint ? LoadedFrom::kCheckpoint : LoadedFrom::kInitial;
  return record;
}

BaseSource GenerationStart::base_source() const {
  return {.folder = parts_.config().model.model_name_or_path,
          .merged = parts_.bundle.merged_adapters,
          .pissa = parts_.bundle.pissa,
          .grown = parts_.bundle.grown};
}

Status GenerationStart::load_frozen_part(RunGeneration& generation, DerivedBase* derived) {
  RankParts& f = parts_;
  const ModelSection& model = f.config().model;
  const DType type = f.engine_options.compute.frozen;
  const StateBuffers kept = f.state().kept();
  HostAccess& access = f.rank_compute->kept_access();
  if (model.train_from_scratch)
    return initialize_frozen(f.bundle.model, static_cast<std::uint64_t>(f.config().training.seed),
                             *f.layout, kept, type, access, f.compute->threads());
  StateSource reference;
  std::optional<DerivedBase> other;
  if (f.bundle.trainables.reference == Reference::kOther) {
    const MethodSection& method = f.config().method;
    reference.path = *method.ref_model;
    if (!method.ref_model_adapters.empty())
      reference.base = &other.emplace(
          f.files, BaseSource{.folder = *method.ref_model, .merged = method.ref_model_adapters},
          f.bundle.model, f.model->model_layout());
  }
  return load_frozen(f.files, StateSource{.path = model.model_name_or_path, .base = derived},
                     reference, f.bundle.model, f.model->model_layout(), *f.layout, kept, type,
                     access, generation.world);
}

Status GenerationStart::open_recorders(collective::Communicator& world) {
  RankParts& f = parts_;
  std::vector<int> recording;
  for (int rank = 0; rank < world.world_size(); ++rank) {
    if (follow_.records(rank)) recording.push_back(rank);
  }
  if (!follow_.records()) return {};
  if (f.leads()) TROUPE_RETURN_IF_ERROR(follow_.open_recorder(nullptr));
  if (recording.size() < 2) return {};
  const auto group = TROUPE_TRY(world.subgroup(recording, "ranks that keep the history"));
  std::string state;
  Unlogged unlogged;
  if (f.leads()) {
    state = trainer_state_text(follow_.restored);
    unlogged = follow_.recorder->unlogged();
  }
  TROUPE_RETURN_IF_ERROR(broadcast_text(*group, state));
  TROUPE_RETURN_IF_ERROR(group->broadcast(bytes_of(unlogged), 0));
  if (f.leads()) return {};
  follow_.restored = TROUPE_TRY(parse_trainer_state(state, "rank 0's history"));
  return follow_.open_recorder(nullptr, unlogged);
}

Status GenerationStart::parameters_loaded(RunGeneration& generation) {
  TROUPE_RETURN_IF_ERROR(parts_.rank_compute->updates().place_parameters());
  // Of what is offloaded a rank loads no more than it updates.
  return generation.engine->parameters_changed(parts_.state().offload() != Offload::kNothing);
}

Result<StateSource> GenerationStart::choose_source(std::uint64_t generation, CommitRecord& record) {
  RankParts& f = parts_;
  TROUPE_RETURN_IF_ERROR(f.files.create_directories(f.output_dir()));
  std::optional<GoodCheckpoint> from;
  if (generation > 1) {
    std::vector<RefusedCheckpoint> refused;
    from = TROUPE_TRY(
        newest_good_checkpoint(f.files, f.output_dir(), &refused, {.run = f.options.run}));
    if (const auto text = refused_message(refused, from); !text.empty()) f.log.warning("{}", text);
  }
  // Whatever the generation: the first may have ended before it came here.
  if (!from && f.options.resume_path.empty() && f.config().training.overwrite_output_dir)
    TROUPE_RETURN_IF_ERROR(set_checkpoints_aside(f.files, f.output_dir()));
  if (!from && !f.options.resume_path.empty())
    from = TROUPE_TRY(validate_checkpoint(f.files, f.options.resume_path));
  if (from) {
    TROUPE_RETURN_IF_ERROR(read_progress(*from, record));
    return StateSource{.path = from->path, .checkpoint = true, .optimizer = from->has_optimizer};
  }
  if (f.config().model.train_from_scratch) return StateSource{};
  return StateSource{.path = f.config().model.model_name_or_path, .adapter = f.bundle.adapter};
}

Status GenerationStart::read_progress(const GoodCheckpoint& good, CommitRecord& record) {
  RankParts& f = parts_;
  TROUPE_RETURN_IF_ERROR(
      check_optimizer_state(f.files, good, *f.optimizer, f.layout->layout().groups()));
  const auto state = TROUPE_TRY(read_checkpoint_state(f.files, good));
  if (!good.has_optimizer)
    f.log.warning("{} has no optimizer state: the optimizer starts anew", good.path);
  record.step = good.step;
  const bool kept = state.scheduler.is_object();
  const auto number = [&](const char* key, std::int64_t otherwise) {
    return kept ? json::find_integer(state.scheduler, key).value_or(otherwise) : otherwise;
  };
  if (const auto data = json::find_string(state.scheduler, "data_arguments");
      kept && data && data->size() < record.data_arguments.size())
    record.set_data(*data);
  // A run that is begun anew from the checkpoint asks its callbacks again.
  follow_.end_run = good.path != f.options.resume_path && kept &&
                    state.scheduler.as_object().contains("ended_by_callback");
  if (good.path != f.options.resume_path) follow_.high_losses = number("high_losses", 0);
  if (const json::Value* scale = kept ? json::find(state.scheduler, "loss_scale") : nullptr)
    record.loss_scale = {.next = json::find_number(*scale, "next").value_or(0),
                         .clean_steps = json::find_integer(*scale, "clean_steps").value_or(0),
                         .hysteresis = json::find_integer(*scale, "hysteresis").value_or(0)};
  if (const json::Value* plateau = kept ? json::find(state.scheduler, "plateau") : nullptr)
    follow_.plateau = {.learning_rate = json::find_number(*plateau, "learning_rate").value_or(0),
                       .best = json::find_number(*plateau, "best").value_or(0),
                       .has_best = json::find_integer(*plateau, "has_best").value_or(0),
                       .misses = json::find_integer(*plateau, "misses").value_or(0),
                       .cooldown = json::find_integer(*plateau, "cooldown").value_or(0)};
  record.skipped = number("skipped_steps", 0);
  record.skipped_in_a_row = number("skipped_steps_in_a_row", 0);
  // Slots that begin anew are corrected from the begin.
  record.moment_updates = good.has_optimizer ? number("moment_updates", record.updates()) : 0;
  if (!state.cursor.is_null()) {
    record.cursor = TROUPE_TRY(SampleCursor::from_json(state.cursor));
  }
  if (!state.trainer_state.empty())
    follow_.restored = TROUPE_TRY(parse_trainer_state(state.trainer_state, good.path));
  follow_.restored.global_step = good.step;
  if (state.cursor.is_null() && f.streamed)
    return error(Code::kUnsupported,
                 "{} does not say where in its data it stands, and a stream's steps cannot be "
                 "counted; begin anew in another output_dir, or use streaming: false",
                 good.path);
  if (state.cursor.is_null()) record.cursor = cursor_of_epochs(good);
  follow_.best.restore(follow_.restored);
  if (find_eval_log(follow_.restored, good.step)) follow_.evaluated_step = good.step;
  return {};
}

// The position of a checkpoint that has no cursor, such as another program's.
SampleCursor GenerationStart::cursor_of_epochs(const GoodCheckpoint& good) {
  RankParts& f = parts_;
  SampleCursor cursor;
  const double steps = follow_.restored.epoch * static_cast<double>(f.planned.steps_per_epoch);
  const bool told =
      follow_.restored.epoch > 0 && follow_.restored.epoch <= static_cast<double>(kEpochsMax);
  if (told && std::llround(steps) != good.step) {
    // Its steps were not of this run's batch: the share of the samples that it has seen counts.
    const double whole = std::floor(follow_.restored.epoch);
    const auto samples = static_cast<double>(sample_count(f.bundle));
    cursor.epoch = static_cast<std::int64_t>(whole);
    cursor.next_sample = std::llround((follow_.restored.epoch - whole) * samples);
    cursor.consumed_samples = std::llround(follow_.restored.epoch * samples);
    return cursor;
  }
  return f.sampler.cursor_after(good.step);
}

Status GenerationStart::agree(collective::Communicator& world, StateSource& source,
                              CommitRecord& record) {
  Progress progress{.record = record,
                    .best = follow_.best.state(),
                    .plateau = follow_.plateau,
                    .evaluated_step = follow_.evaluated_step.value_or(-1),
                    .checkpoint = source.checkpoint,
                    .optimizer = source.optimizer,
                    .end_run = follow_.end_run,
                    .high_losses = follow_.high_losses};
  TROUPE_RETURN_IF_ERROR(world.broadcast(bytes_of(progress), 0));
  TROUPE_RETURN_IF_ERROR(broadcast_text(world, source.path));
  TROUPE_RETURN_IF_ERROR(broadcast_text(world, source.adapter));
  source.checkpoint = progress.checkpoint != 0;
  source.optimizer = progress.optimizer != 0;
  follow_.end_run = progress.end_run != 0;
  follow_.high_losses = progress.high_losses;
  record = progress.record;
  if (progress.evaluated_step >= 0) follow_.evaluated_step = progress.evaluated_step;
  follow_.best.set_state(progress.best);
  follow_.plateau = progress.plateau;
  return {};
}

}  // namespace troupe::train
