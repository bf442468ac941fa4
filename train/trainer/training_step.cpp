#include "train/trainer/training_step.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "runtime/base/build_options.h"
#include "train/optimizer/random_rounding.h"
#include "train/progress/abandon.h"
#include "train/progress/observed_units.h"
#include "train/trainer/batch_view.h"
#include "train/trainer/computed_units.h"
#include "train/trainer/gradient_probe.h"
#include "train/trainer/own_data.h"
#include "train/trainer/sharding_setup.h"

namespace troupe::train {
namespace {

// What rank 0 says of the end of a step, beside its losses.
constexpr double kSavesAndStops = 1.0;
constexpr double kPauses = 2.0;

constexpr std::int64_t kSkippedInARowMax = 10;

// Masks of dropout are counted by the epoch and a sample's number in the data set, which a step
// that is done again, by whatever ranks, has in common with the first.
MicroBatch view(const TokenBatch& batch, std::int64_t seed, std::int64_t epoch) {
  MicroBatch out = view_of(batch);
  out.dropout = {.seed = static_cast<std::uint32_t>(seed),
                 .epoch = static_cast<std::uint32_t>(epoch),
                 .samples = batch.samples,
                 .places = batch.places};
  return out;
}

// The last micro-batch of a rank that has none left: it takes part in the collectives of
// the passes and adds nothing.
TokenBatch empty_batch() {
  return {.rows = 1,
          .length = 1,
          .ids = {0},
          .labels = {kIgnoreLabel},
          .position_ids = {},
          .segment_ids = {},
          .samples = {0},
          .places = {0},
          .reference = {},
          .desirable = {}};
}

std::string layer_of(const ParameterLayout& layout, const ParameterInfo& parameter) {
  return layout.units()[static_cast<std::size_t>(parameter.unit)].name;
}

}  // namespace

TrainingStep::TrainingStep(const StepTools& tools)
    : tools_(tools), loss_scale_rule_(loss_scale_rule(tools.config)) {}

template <typename Work>
auto TrainingStep::timed(double& seconds, Work&& work) {
  const TimePoint began = tools_.clock.now();
  auto result = work();
  seconds += std::chrono::duration<double>(tools_.clock.now() - began).count();
  return result;
}

TrainingStep::Batches TrainingStep::batches_of(const StepPlan& plan,
                                               std::int64_t micro_batch) const {
  const auto number =
      static_cast<std::size_t>(tools_.engine.reducer().number_in_step(micro_batch, data_rank()));
  if (number >= plan.batches.size() || plan.batches[number].empty())
    return {empty_batch(), empty_batch()};
  const std::vector<std::uint32_t>& samples = plan.batches[number];
  if (tools_.dataset.kind() == TokenDataset::Kind::kFeedback)
    return {collate_answers(tools_.dataset, samples, Answers::kOwn),
            collate_answers(tools_.dataset, samples, Answers::kOfOthers)};
  Batches batches{collate_ragged(tools_.dataset, samples), {}};
  if (tools_.activations.dropout_samples)
    add_places(tools_.dataset, samples, batches.own, plan.first_sample);
  return batches;
}

Result<Asked> TrainingStep::ask(const StepPlan& plan, const Batches& batches,
                                StepSeconds& seconds) {
  if (!tools_.objective.asks()) return Asked();
  const MicroBatch own = micro_batch(plan, batches.own);
  // The reference was asked before training: no pass is needed.
  if (!tools_.reference && !tools_.objective.asks_drift()) return known_answers(own);
  tools_.engine.units().begin_pass(ShardedUnits::Pass::kForwardOnly);
  ComputedUnits computed(tools_.engine.units(), tools_.compute);
  ObservedUnits units(computed, tools_.progress, device_operators());
  Asked asked = TROUPE_TRY(unless_abandoned([&] {
    return tools_.objective.ask({.model = tools_.model,
                                 .reference = tools_.reference,
                                 .units = units,
                                 .activations = tools_.activations},
                                own, micro_batch(plan, batches.others));
  }));
  TROUPE_RETURN_IF_ERROR(end_pass(seconds));
  return asked;
}

Result<std::vector<Asked>> TrainingStep::ask_all(const StepPlan& plan, StepSeconds& seconds) {
  std::vector<Asked> asked;
  if (!tools_.objective.asks_drift()) return asked;
  const std::int64_t micro_batches = tools_.engine.reducer().micro_batches();
  std::vector<double> mine;  // of each micro-batch: the drift, and whether it has one
  for (std::int64_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
    asked.push_back(TROUPE_TRY(ask(plan, batches_of(plan, micro_batch), seconds)));
    mine.push_back(asked.back().own_drift.value_or(0));
    mine.push_back(asked.back().own_drift ? 1 : 0);
  }
  const std::vector<double> all =
      TROUPE_TRY(timed(seconds.communication, [&] { return gather(mine); }));
  struct Mean {
    double sum = 0, count = 0;
  };
  const auto round_of = [&](std::size_t number) {
    return number / static_cast<std::size_t>(tools_.batch_world);
  };
  std::vector<Mean> rounds(plan.batches.empty() ? 0 : round_of(plan.batches.size() - 1) + 1);
  const auto found = by_number(plan, all, mine.size(), asked.size(), 2);
  for (std::size_t number = 0; number < found.size(); ++number) {
    if (!found[number]) continue;
    Mean& mean = rounds[round_of(number)];
    mean.sum += found[number][0];
    mean.count += found[number][1];
  }
  for (std::size_t micro_batch = 0; micro_batch < asked.size(); ++micro_batch) {
    const auto number = static_cast<std::size_t>(tools_.engine.reducer().number_in_step(
        static_cast<std::int64_t>(micro_batch), data_rank()));
    if (number >= plan.batches.size()) continue;
    const Mean& mean = rounds[round_of(number)];
    asked[micro_batch].drift = mean.count > 0 ? std::max(0.0, mean.sum / mean.count) : 0;
  }
  return asked;
}

Result<Asked> TrainingStep::ask_before(const StepPlan& plan, std::int64_t micro_batch,
                                       const Batches& batches, std::vector<Asked>& asked,
                                       StepSeconds& seconds) {
  if (asked.empty()) return ask(plan, batches, seconds);
  return std::move(asked[static_cast<std::size_t>(micro_batch)]);
}

Result<std::vector<double>> TrainingStep::gather(std::span<const double> mine) const {
  collective::Communicator& world = tools_.engine.communicators().host_world();
  const auto ranks = static_cast<std::size_t>(world.world_size());
  std::vector<double> all(ranks * mine.size());
  const std::vector<std::size_t> counts(ranks, mine.size());
  TROUPE_RETURN_IF_ERROR(world.all_gather(mine, std::span<double>(all), counts));
  return all;
}

std::vector<const double*> TrainingStep::by_number(const StepPlan& plan,
                                                   const std::vector<double>& all,
                                                   std::size_t width, std::size_t micro_batches,
                                                   std::size_t numbers) const {
  std::vector<const double*> found(plan.batches.size(), nullptr);
  for (std::size_t rank = 0; rank < all.size() / width; ++rank) {
    const int data = tools_.layout.mesh().data_rank_of(static_cast<int>(rank));
    for (std::size_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
      const auto number = static_cast<std::size_t>(
          tools_.engine.reducer().number_in_step(static_cast<std::int64_t>(micro_batch), data));
      if (number < found.size()) found[number] = &all[rank * width + micro_batch * numbers];
    }
  }
  return found;
}

Result<ObjectiveSum> TrainingStep::learn(const StepPlan& plan, const TokenBatch& batch,
                                         const Asked& asked, UnitAccess& units,
                                         StepSeconds& seconds) {
  const ObjectiveSum sum = TROUPE_TRY(unless_abandoned([&] {
    return tools_.objective.forward_backward(tools_.model, micro_batch(plan, batch), units, scale_,
                                             tools_.activations, asked);
  }));
  TROUPE_RETURN_IF_ERROR(end_pass(seconds));
  return sum;
}

MicroBatch TrainingStep::micro_batch(const StepPlan& plan, const TokenBatch& batch) const {
  return view(batch, tools_.config.training.seed, plan.epoch);
}

Status TrainingStep::end_pass(StepSeconds& seconds) {
  // Times are of what was computed, not of asking for it.
  TROUPE_RETURN_IF_ERROR(tools_.compute.settle());
  const PassSeconds pass = tools_.engine.units().end_pass();
  seconds.forward += pass.forward;
  seconds.backward += pass.backward;
  seconds.communication += pass.communication_forward + pass.communication_backward;
  return {};
}

Status TrainingStep::pass_over(const StepPlan& plan, StepRecord& record,
                               std::vector<ObjectiveSum>& sums) {
  tools_.engine.begin_step(static_cast<std::int64_t>(plan.batches.size()));
  const std::int64_t micro_batches = tools_.engine.reducer().micro_batches();
  tools_.progress.stage(record.step, Stage::kForward);
  std::vector<Asked> asked_first = TROUPE_TRY(ask_all(plan, record.seconds));
  for (std::int64_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
    tools_.progress.stage(record.step, Stage::kData);
    const Batches batches =
        timed(record.seconds.data, [&] { return batches_of(plan, micro_batch); });
    tools_.progress.stage(record.step, Stage::kForward);
    const Asked asked =
        TROUPE_TRY(ask_before(plan, micro_batch, batches, asked_first, record.seconds));
    tools_.engine.begin_micro_batch(micro_batch);
    ComputedUnits computed(tools_.engine.units(), tools_.compute);
    ObservedUnits units(computed, tools_.progress, device_operators());
    sums.push_back(TROUPE_TRY(learn(plan, batches.own, asked, units, record.seconds)));
  }
  return {};
}

Result<StepOutcome> TrainingStep::run(const StepPlan& plan) {
  const CommitRecord& last = tools_.transaction.record();
  // Many skipped steps before fewer and larger ones may lie before the schedule's begin.
  const std::int64_t position = std::max<std::int64_t>(0, last.updates() - tools_.schedule_offset);
  StepOutcome outcome{
      .record = {.step = last.step + 1, .learning_rate = tools_.schedule.learning_rate(position)}};
  StepRecord& done = outcome.record;
  if (tools_.schedule.plateau() && tools_.plateau.learning_rate > 0)
    done.learning_rate = tools_.plateau.learning_rate;
  if (loss_scale_rule_) {
    // A state may come from a run that was not in fp16.
    loss_scale_ = last.loss_scale.next > 0 ? last.loss_scale : first_loss_scale(*loss_scale_rule_);
  }
  tools_.progress.stage(done.step, Stage::kBegin);
  using Next = StepSession::Next;
  StepSession session(tools_.transaction, tools_.engine.communicators().host_world().generation(),
                      tools_.kept ? &tools_.kept->transaction() : nullptr);
  while (session.next() != Next::kDone) {
    switch (session.next()) {
      case Next::kCompute: {
        outcome = TROUPE_TRY(compute(plan, std::move(done)));
        const CommitRecord next = TROUPE_TRY(decide(plan, done));
        if (tools_.buddies && !next.skips()) TROUPE_RETURN_IF_ERROR(replicate(done));
        TROUPE_RETURN_IF_ERROR(timed(done.seconds.checkpoint, tools_.before_update));
        session.computed(next);
        tools_.progress.stage(done.step, Stage::kPrepared);
        break;
      }
      case Next::kVote:
        TROUPE_RETURN_IF_ERROR(timed(done.seconds.communication, [&] { return vote(session); }));
        tools_.progress.stage(done.step, Stage::kCommitted);
        break;
      case Next::kUpdateKept:
        TROUPE_RETURN_IF_ERROR(timed(done.seconds.optimizer, [&] { return update_kept(); }));
        session.kept_updated();
        break;
      case Next::kUpdate:
        TROUPE_RETURN_IF_ERROR(timed(done.seconds.optimizer, [&] { return update_committed(); }));
        session.updated();
        break;
      case Next::kPublish:
        TROUPE_RETURN_IF_ERROR(publish(done));
        session.published();
        break;
      case Next::kDone:
        break;
    }
  }
  const std::int64_t skipped_in_a_row = tools_.transaction.record().skipped_in_a_row;
  // That is how a loss scale is found.
  const bool falls = loss_scale_rule_ && loss_scale_rule_->is_dynamic &&
                     tools_.transaction.record().loss_scale.next >= 1;
  if (skipped_in_a_row >= kSkippedInARowMax && !falls) {
    return error(Code::kFailedPrecondition,
                 "{} steps in a row were skipped, the last one, {}, because {}; {}lower "
                 "learning_rate, or look for damaged data or weights",
                 skipped_in_a_row, done.step, done.skipped,
                 loss_scale_rule_ && !loss_scale_rule_->is_dynamic
                     ? "lower fp16.loss_scale of the DeepSpeed file, or leave it out (0: it is "
                       "found), "
                     : "");
  }
  return outcome;
}

Result<StepOutcome> TrainingStep::compute(const StepPlan& plan, StepRecord record) {
  for (const auto& samples : plan.batches) record.tokens += real_tokens(tools_.dataset, samples);
  const auto parts = static_cast<double>(divisor(plan));
  scale_ = static_cast<float>((loss_scale_rule_ ? loss_scale_.next : 1.0) / parts);
  std::vector<ObjectiveSum> sums;
  TROUPE_RETURN_IF_ERROR(pass_over(plan, record, sums));
  tools_.progress.stage(record.step, Stage::kCommunication);
  TROUPE_RETURN_IF_ERROR(
      timed(record.seconds.communication, [&] { return tools_.engine.finish_gradients(); }));
  // What a device has not done is not believed.
  TROUPE_RETURN_IF_ERROR(tools_.compute.settle());
  StepOutcome outcome = TROUPE_TRY(sum_up(plan, std::move(record), sums));
  outcome.record.loss /= parts;
  return outcome;
}

// Every rank knows every rank's samples, so the step's counts need no communication.
std::int64_t TrainingStep::divisor(const StepPlan& plan) const {
  std::int64_t count = 0;
  switch (tools_.objective.division()) {
    case Objective::Division::kTargets:
      for (const auto& samples : plan.batches) count += label_count(tools_.dataset, samples);
      break;
    case Objective::Division::kMicroBatches:
      count = std::ranges::count_if(plan.batches, [](const auto& batch) { return !batch.empty(); });
      break;
    case Objective::Division::kRanks:
      count = tools_.batch_world;
      break;
  }
  return std::max<std::int64_t>(1, count);
}

Status TrainingStep::publish(StepRecord& record) {
  tools_.progress.stage(record.step, Stage::kPublish);
  ShardedUnits& units = tools_.engine.units();
  units.take_communication_seconds();
  TROUPE_RETURN_IF_ERROR(
      timed(record.seconds.optimizer, [&] { return tools_.engine.parameters_changed(true); }));
  const double waited = units.take_communication_seconds();
  record.seconds.optimizer -= waited;
  record.seconds.communication += waited;
  return {};
}

// The record that the step will have: the same on all ranks.
Result<CommitRecord> TrainingStep::decide(const StepPlan& plan, StepRecord& record) {
  tools_.progress.stage(record.step, Stage::kNorm);
  GradientNorm norm = TROUPE_TRY(timed(record.seconds.optimizer, [&] {
    return tools_.engine.optimizer().norm(tools_.transaction.record().moment_updates + 1);
  }));
  const bool is_finite = !norm.first_non_finite_tile && std::isfinite(record.loss);
  LossScale loss_scale;
  if (loss_scale_rule_) {
    loss_scale = TROUPE_TRY(loss_scale_after(*loss_scale_rule_, loss_scale_, !is_finite));
    norm.norm /= loss_scale.used;
  }
  record.grad_norm = norm.norm;
  CommitRecord next = tools_.transaction.record();
  next.step = record.step;
  next.loss_scale = loss_scale;
  next.grad_norm = norm.norm;
  next.loss = record.loss;
  next.learning_rate = record.learning_rate;
  next.tokens = record.tokens;
  next.metrics = record.metrics;
  next.last_of_epoch = plan.last_of_epoch ? 1 : 0;
  next.cursor = plan.after;
  if (tools_.own_data) tools_.own_data->note(next);
  next.set_why("");
  if (!is_finite) {
    next.set_why(TROUPE_TRY(why_skipped(plan, record, loss_scale)));
    record.skipped = std::string(next.why());
    ++next.skipped;
    ++next.skipped_in_a_row;
  } else {
    ++next.moment_updates;
    next.skipped_in_a_row = 0;
  }
  return next;
}

Result<std::string> TrainingStep::why_skipped(const StepPlan& plan, const StepRecord& record,
                                              const LossScale& after) {
  if (!loss_scale_rule_) return find_non_finite(plan);
  std::string why = overflow_text(*loss_scale_rule_, loss_scale_, after);
  // A great scale is reason enough, but for a loss, which is not scaled.
  if (after.used > 1 && std::isfinite(record.loss)) return why;
  return fmt::format("{}; {}", why, TROUPE_TRY(find_non_finite(plan)));
}

Status TrainingStep::vote(StepSession& session) {
  const StepVote mine = session.vote();
  if constexpr (!kRecovery) return session.voted(std::span(&mine, 1));
  collective::Communicator& world = tools_.engine.communicators().host_world();
  const auto ranks = static_cast<std::size_t>(world.world_size());
  std::vector<StepVote> all(ranks);
  const std::vector<std::size_t> counts(ranks, sizeof mine);
  tools_.progress.stage(mine.step, Stage::kVote);
  TROUPE_RETURN_IF_ERROR(world.all_gather(std::as_bytes(std::span(&mine, 1)),
                                          std::as_writable_bytes(std::span(all)), counts));
  return session.voted(all);
}

// Losses of all micro-batches, added in the order of the micro-batches: the same bits under every
// strategy and, with equal micro-batches, at every world size.
Result<StepOutcome> TrainingStep::sum_up(const StepPlan& plan, StepRecord record,
                                         const std::vector<ObjectiveSum>& sums) {
  const std::size_t metrics = tools_.objective.metrics().size();
  // A micro-batch's loss, and a sum and a count of each metric.
  const std::size_t numbers = 1 + 2 * metrics;
  const std::size_t width = sums.size() * numbers + 1;
  std::vector<double> mine;
  for (const ObjectiveSum& sum : sums) {
    mine.push_back(sum.loss_sum);
    for (std::size_t i = 0; i < metrics; ++i) {
      mine.push_back(sum.metrics.sums[i]);
      mine.push_back(sum.metrics.counts[i]);
    }
  }
  const bool leads = tools_.engine.communicators().host_world().rank() == 0;
  mine.push_back(leads && tools_.observer.save_and_stop_requested() ? kSavesAndStops
                 : leads && tools_.observer.pause_requested()       ? kPauses
                                                                    : 0.0);
  const std::vector<double> all =
      TROUPE_TRY(timed(record.seconds.communication, [&] { return gather(mine); }));
  for (const double* found : by_number(plan, all, width, sums.size(), numbers)) {
    if (!found) continue;
    record.loss += found[0];
    MetricSums of_batch;
    for (std::size_t i = 0; i < metrics; ++i) of_batch.set(i, found[1 + 2 * i], found[2 + 2 * i]);
    record.metrics.add(of_batch);
  }
  return StepOutcome{.record = std::move(record),
                     .save_and_stop = all[width - 1] == kSavesAndStops,
                     .pause = all[width - 1] == kPauses};
}

Status TrainingStep::update_committed() {
  const CommitRecord& record = tools_.transaction.committed();
  tools_.progress.stage(record.step, Stage::kOptimizer);
  if (record.skips()) return {};
  return tools_.engine.optimizer().update(update_of(tools_.config, record), record.step);
}

Status TrainingStep::update_kept() {
  const CommitRecord& record = tools_.kept->transaction().committed();
  tools_.progress.stage(record.step, Stage::kOptimizer);
  if (record.skips()) return {};
  const auto damage = tools_.kept->update(update_of(tools_.config, record), record.step);
  return damage ? give_up_kept(*damage) : Status();
}

Status TrainingStep::give_up_kept(const std::string& why) {
  tools_.kept->forget();
  tools_.observer.warning(why);
  return error(Code::kAborted, "{}", why);
}

// Both ends of a link take part: the owner tells its sums, its buddy whether they are the copy's.
Status TrainingStep::compare_states(collective::Communicator& group) {
  const bool keeps = group.rank() != 0;
  const UpdatedPart& part = keeps ? tools_.kept->part() : tools_.own_part;
  std::vector<std::uint64_t> sums = keeps
                                        ? std::vector<std::uint64_t>(part.tiles().size())
                                        : part.tile_sums(tools_.transaction.record().moment_updates,
                                                         parallel_for_on(tools_.compute.threads()));
  TROUPE_RETURN_IF_ERROR(group.broadcast(std::as_writable_bytes(std::span(sums)), 0));
  BuddyState::Damage difference;
  if (keeps) difference = tools_.kept->compare(sums);
  std::uint8_t differs = difference ? 1 : 0;
  TROUPE_RETURN_IF_ERROR(group.broadcast(std::span(&differs, 1), 1));
  if (difference) return give_up_kept(*difference);
  if (differs == 0) return {};
  // Nobody can tell which of the two is right.
  tools_.transaction.unload();
  return error(Code::kAborted, "this rank's state and its copy differ");
}

Status TrainingStep::replicate(StepRecord& record) {
  tools_.progress.stage(record.step, Stage::kReplicate);
  return timed(record.seconds.communication, [&] {
    const bool compares = (record.step - 1) % BuddyState::kCompareEvery == 0;
    const auto transfer = [&](const UpdatedPart& part) {
      return [this, compares, &part](collective::Communicator& group) -> Status {
        TROUPE_RETURN_IF_ERROR(broadcast_gradients(group, 0, part));
        return compares ? compare_states(group) : Status();
      };
    };
    return tools_.buddies->pass(transfer(tools_.own_part), transfer(tools_.kept->part()));
  });
}

OptimizerStep update_of(const TrainConfig& config, const CommitRecord& record) {
  const TrainingSection& training = config.training;
  const float clip =
      clip_coefficient(record.grad_norm, updates_layerwise(config) ? 0.0 : training.max_grad_norm);
  const double loss_scale = record.loss_scale.used > 0 ? record.loss_scale.used : 1.0;
  return {.learning_rate = record.learning_rate,
          .updates = record.moment_updates,
          .gradient_scale = static_cast<float>(clip / loss_scale),
          .rounding_key = state_dtype(config) == DType::kBF16 && config.model.rounds_randomly()
                              ? std::optional(rounding_key(
                                    static_cast<std::uint64_t>(training.seed), record.step))
                              : std::nullopt};
}

Result<std::string> TrainingStep::find_non_finite(const StepPlan& plan) {
  const ParameterLayout& layout = tools_.model.layout();
  collective::Communicator& world = tools_.engine.communicators().host_world();
  // What this rank found first: micro-batch, whether its loss is finite, and a parameter or −1.
  std::int64_t finding[3] = {-1, 1, -1};
  tools_.engine.begin_step(static_cast<std::int64_t>(plan.batches.size()));
  StepSeconds ignored;
  std::vector<Asked> asked_first = TROUPE_TRY(ask_all(plan, ignored));
  for (std::int64_t micro_batch = 0; micro_batch < tools_.engine.reducer().micro_batches();
       ++micro_batch) {
    const Batches batches = batches_of(plan, micro_batch);
    const Asked asked = TROUPE_TRY(ask_before(plan, micro_batch, batches, asked_first, ignored));
    tools_.engine.begin_micro_batch(micro_batch);
    GradientProbe probe(tools_.engine, layout, tools_.compute.access());
    const double loss = TROUPE_TRY(learn(plan, batches.own, asked, probe, ignored)).loss_sum;
    const std::int64_t number = tools_.engine.reducer().number_in_step(micro_batch, data_rank());
    if ((std::isfinite(loss) && !probe.found()) || (finding[0] >= 0 && finding[0] < number))
      continue;
    finding[0] = number;
    finding[1] = std::isfinite(loss) ? 1 : 0;
    finding[2] = probe.found().value_or(-1);
  }
  TROUPE_RETURN_IF_ERROR(tools_.engine.finish_gradients());
  const auto ranks = static_cast<std::size_t>(world.world_size());
  std::vector<std::int64_t> all(3 * ranks);
  const std::vector<std::size_t> counts(ranks, 3);
  TROUPE_RETURN_IF_ERROR(world.all_gather(std::span<const std::int64_t>(finding),
                                          std::span<std::int64_t>(all), counts));
  std::size_t first = ranks;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (all[3 * rank] >= 0 && (first == ranks || all[3 * rank] < all[3 * first])) first = rank;
  }
  if (first == ranks) return std::string("the sum of the gradients over the ranks is not finite");
  std::string text;
  if (all[3 * first + 1] == 0) text = "the loss";
  if (all[3 * first + 2] >= 0) {
    const ParameterInfo& parameter =
        layout.parameters()[static_cast<std::size_t>(all[3 * first + 2])];
    text += fmt::format("{}the gradient of {} ({})", text.empty() ? "" : " and ", parameter.name,
                        layer_of(layout, parameter));
  }
  return fmt::format("{} of micro-batch {} on rank {} is not finite", text, all[3 * first], first);
}

}  // namespace troupe::train
