#include "sim_trainer.h"

#include <algorithm>

#include "sim_controller.h"

namespace troupe::simulation {

using namespace train;

namespace {

constexpr std::int64_t kCheckpointEvery = 6;
constexpr std::uint64_t kGarbage = 0xDEADDEADDEADDEAD;

UpdateLog::Layout log_layout() {
  return {.chunks = kChunks, .chunk_bytes_max = sizeof(std::uint64_t), .undo_slots = 2};
}

// In words, with room to align to a line.
std::size_t words_for(std::size_t bytes) { return bytes / sizeof(std::uint64_t) + 8; }

std::span<std::byte> aligned(std::vector<std::uint64_t>& words) {
  const auto at = reinterpret_cast<std::uintptr_t>(words.data());
  const std::size_t skip = (64 - at % 64) % 64;
  return std::as_writable_bytes(std::span(words)).subspan(skip, words.size() * 8 - 64);
}

}  // namespace

RankMemory::RankMemory(int ranks)
    : marks(words_for(log_layout().marks_bytes())),
      undo(words_for(log_layout().undo_bytes())),
      chunks(kChunks, kGarbage),
      reduced(kChunks, kGarbage),
      everybody(static_cast<std::size_t>(ranks * kChunks), kGarbage) {}

StepTransaction RankMemory::transaction() { return StepTransaction(state); }

UpdateLog RankMemory::update_log() { return {log_layout(), aligned(marks), aligned(undo)}; }

// --- the actor -----------------------------------------------------------------------------------

void Trainer::start(MemoryPtr) {
  later(world_.between(3, 40), [this] {
    become_ready();
    task_ = loop();
    suspended_ = task_.handle();
    resume();
  });
}

void Trainer::on_death() {
  run_.process_gone(place().pid);
  run_.meetings.withdraw(*this);
  if (meeting_) meeting_->leave(rank_);
  meeting_.reset();
  suspended_ = {};
  task_ = {};
  transaction_.reset();
  update_log_.reset();
  memory_.reset();
}

// Events reach the process one by one, never inside each other.
void Trainer::resume() {
  if (!suspended_) return;
  std::exchange(suspended_, {}).resume();
  if (const auto failure = task_.failure()) {
    try {
      std::rethrow_exception(failure);
    } catch (const Killed&) {
      cluster_.kill(*this, "inside a chunk");
    }
  }
}

void Trainer::wake() {
  if (std::exchange(wake_asked_, true)) return;
  later(Duration::zero(), [this] {
    wake_asked_ = false;
    resume();
  });
}

void Trainer::take_bundle() {
  has_bundle_ = true;
  wake();
}

void Trainer::begin(Plan plan) {
  // A controller that took the run over says again what the one before may have said.
  if (plan.generation <= newest_) return;
  newest_ = plan.generation;
  plans_.push_back(std::move(plan));
  wake();
}

void Trainer::abort(std::uint64_t generation) {
  // A controller that took the run over may not know what was told to the one before.
  if (newest_ == generation && running_ == 0 && plans_.empty()) {
    tell(TrainerStopped{rank_, generation, Status(Code::kAborted, "it has left")});
  }
  if (generation <= aborted_) return;
  aborted_ = generation;
  if (running_ != 0 && running_ <= aborted_) {
    cancelled_ = true;
    if (meeting_) meeting_->leave(rank_);
    broken_ = true;
  }
  wake();
}

TrainerFound Trainer::status(int number) const {
  TrainerFound found;
  found.trainer = number;
  found.incarnation = place().incarnation;
  found.node = fmt::format("node-{}", place().node);
  found.generation = newest_;
  found.rank = newest_ == 0 ? -1 : rank_;
  found.in_generation = running_ != 0 || !plans_.empty();
  found.step = memory_ ? memory_->transaction().position().step : 0;
  return found;
}

void Trainer::tell(RunInput message) {
  cluster_.call(
      *this, run_.controller,
      {.what = [message](Process& process) { dynamic_cast<Controller&>(process).report(message); },
       .repeats = true,
       .timeout = std::chrono::hours(1),
       .failed = {}});
}

// --- meetings ------------------------------------------------------------------------------------

void Trainer::met(const MeetingPtr& meeting, int rank) {
  later(world_.delay(), [this, meeting, rank] {
    // It left before it knew that all were there.
    if (running_ != meeting->generation() || cancelled_ || meeting_) return meeting->leave(rank);
    meeting_ = meeting;
    broken_ = false;
    next_collective_ = 0;
    wake();
  });
}

void Trainer::collective_done(const Meeting& meeting, std::uint64_t number,
                              const Gathered& result) {
  if (&meeting != meeting_.get() || broken_ || number != next_collective_) return;
  gathered_ = result;
  wake();
}

void Trainer::meeting_broken(const Meeting& meeting) {
  if (&meeting != meeting_.get()) return;
  broken_ = true;
  wake();
}

Task<Gathered> Trainer::gather(Payload payload, bool votes) {
  gathered_.reset();
  if (broken_ || cancelled_) co_return nullptr;
  meeting_->give(rank_, std::move(payload), votes);
  while (!gathered_ && !broken_ && !cancelled_) co_await Suspended{*this};
  ++next_collective_;
  // Complete and broken: either may be seen first.
  co_return std::exchange(gathered_, nullptr);
}

Task<Trainer::Nothing> Trainer::pause(Duration time) {
  bool over = false;
  later(time, [this, &over] {
    over = true;
    resume();
  });
  while (!over) co_await Suspended{*this};
  co_return Nothing{};
}

// --- the loop ------------------------------------------------------------------------------------

Task<Trainer::Nothing> Trainer::loop() {
  for (;;) {
    doing_ = "waits for a generation";
    while (plans_.empty() || !has_bundle_) co_await Suspended{*this};
    Plan plan = std::move(plans_.front());
    plans_.pop_front();
    const std::uint64_t generation = plan.generation;
    running_ = generation;
    cancelled_ = generation <= aborted_;
    const auto own = std::find(plan.ranks.begin(), plan.ranks.end(), place().spec.actor_id);
    rank_ = static_cast<int>(own - plan.ranks.begin());
    const bool done = co_await train(std::move(plan));
    running_ = 0;
    run_.meetings.withdraw(*this);
    if (done) {
      meeting_.reset();
      tell(TrainerFinished{rank_, generation});
    } else {
      // The others must not wait for a rank that gave up.
      if (meeting_) meeting_->leave(rank_);
      meeting_.reset();
      tell(TrainerStopped{rank_, generation, Status(Code::kAborted, "the generation was lost")});
    }
  }
}

Task<bool> Trainer::train(Plan plan) {
  doing_ = "meets the others";
  const auto late = std::make_shared<bool>(false);
  later(std::chrono::seconds(60), [this, late] {
    *late = true;
    wake();
  });
  if (!cancelled_) {
    run_.meetings.arrive(plan.generation, rank_, run_.ranks, *this);
  }
  while (!meeting_ && !cancelled_ && !*late) co_await Suspended{*this};
  if (!meeting_) co_return false;
  tell(TrainerFormed{rank_, plan.generation});
  if (!memory_ && !co_await take_rank()) co_return false;
  if (!co_await recover()) co_return false;
  while (transaction_->position().step < run_.options.steps) {
    if (!co_await step()) co_return false;
  }
  doing_ = "writes the final model";
  const Gathered all = co_await gather({});
  co_return all != nullptr;
}

Task<bool> Trainer::take_rank() {
  doing_ = "attaches its memory";
  attach_answer_.reset();
  wire::HostAttachSegment request{1, fmt::format("rank-{}/state", rank_), 20'000};
  cluster_.tell_node(*this, request);
  TimePoint ask_again = world_.timeline.now() + std::chrono::seconds(1);
  while (!attach_answer_) {
    co_await pause(std::chrono::milliseconds(2));
    // A daemon that died may have heard it or not.
    if (!attach_answer_ && world_.timeline.now() >= ask_again) {
      cluster_.tell_node(*this, request);
      ask_again = world_.timeline.now() + std::chrono::seconds(1);
    }
  }
  const std::uint64_t life = cluster_.memory_life(place().node);
  if (attach_answer_->code() == Code::kNotFound) {
    run_.memory_missing(rank_, place().node, life);
    memory_ = std::make_shared<RankMemory>(run_.ranks);
    cluster_.tell_node(*this, wire::HostKeepSegment{request.name, false}, memory_);
  } else if (attach_answer_->ok()) {
    memory_ = std::dynamic_pointer_cast<RankMemory>(attached_memory_);
    require(memory_ != nullptr, "{} gets no memory with its segment", label());
    Process* before = cluster_.find(memory_->owner);
    require(before == nullptr || before == this || !before->alive(),
            "{} gets the memory of rank {} while {} lives", label(), rank_,
            before == nullptr ? "" : before->label());
  } else {
    tell(TrainerFailed{rank_, running_, *attach_answer_});
    co_return false;
  }
  memory_->owner = place().pid;
  transaction_.emplace(memory_->transaction());
  update_log_.emplace(memory_->update_log());
  co_return true;
}

void Trainer::attached(std::uint64_t, const Status& status, MemoryPtr memory) {
  if (attach_answer_) return;
  attach_answer_ = status;
  attached_memory_ = std::move(memory);
  wake();
}

// --- recovery ------------------------------------------------------------------------------------

Task<bool> Trainer::recover() {
  doing_ = "gathers positions";
  if (run_.options.mistake == Mistake::kDecidesAlone &&
      transaction_->position().phase == CommitPhase::kPrepared) {
    transaction_->discard();
  }
  // The others may have acted on the position that an earlier process of the rank gave in it.
  if (transaction_->generation() >= running_) co_return false;
  transaction_->begin_generation(running_);
  Payload mine;
  mine.position = transaction_->position();
  const Gathered all = co_await gather(std::move(mine));
  if (!all) co_return false;
  std::vector<RankPosition> positions;
  for (const Payload& payload : *all) positions.push_back(payload.position);
  const RecoveryDecision decision = decide_recovery(positions);
  if (rank_ == 0) {
    world_.note("generation {}: {}, step {}{}{}", running_,
                decision.kind == RecoveryDecision::Kind::kLoad      ? "load"
                : decision.kind == RecoveryDecision::Kind::kDiscard ? "discard"
                                                                    : "finish",
                decision.step, decision.broken.empty() ? "" : ": ", decision.broken);
    ++run_.result.generations;
    if (decision.kind == RecoveryDecision::Kind::kLoad) ++run_.result.loads;
    if (decision.kind == RecoveryDecision::Kind::kFinish) ++run_.result.finishes;
    if (decision.kind == RecoveryDecision::Kind::kDiscard && decision.recomputes != 0) {
      ++run_.result.discards;
    }
  }
  if (decision.kind == RecoveryDecision::Kind::kLoad) {
    run_.load_decided(!decision.broken.empty());
  }
  co_await pause(world_.between(0, 2));
  LoadedFrom from = LoadedFrom::kMemory;
  if (decision.kind == RecoveryDecision::Kind::kLoad) {
    if (!co_await load()) co_return false;
    from = LoadedFrom::kCheckpoint;
  } else {
    if (decision.kind == RecoveryDecision::Kind::kFinish) {
      doing_ = "gets the record of a decided step";
      Payload record;
      if (rank_ == decision.record_rank) {
        const bool ahead = transaction_->position().step > decision.step;
        record.record = ahead ? transaction_->record() : transaction_->committed();
      }
      const Gathered records = co_await gather(std::move(record));
      if (!records) co_return false;
      if (is_behind(decision, transaction_->position())) {
        run_.commits(place().pid, running_);
        transaction_->commit((*records)[static_cast<std::size_t>(decision.record_rank)].record);
        co_await optimizer_phase();
      }
    }
    if (transaction_->position().phase == CommitPhase::kPrepared) transaction_->discard();
  }
  if (run_.options.mistake != Mistake::kPublishOnce || from != LoadedFrom::kMemory) {
    if (!co_await publish()) co_return false;
  }
  // A daemon that died between hearing of the memory and keeping it has lost it: see README.md.
  if (cluster_.keeps(place().node, place().spec.job_id, fmt::format("rank-{}/state", rank_))) {
    run_.memory_found(rank_, place().node, cluster_.memory_life(place().node));
  }
  // Publishing was everybody's: all have loaded what they load.
  if (from != LoadedFrom::kMemory) run_.all_loaded();
  const std::int64_t at = transaction_->position().step;
  require(transaction_->record().cursor == run_.oracle.record(at).cursor,
          "rank {} is elsewhere in its data after step {}", rank_, at);
  tell(TrainerLoaded{rank_, running_, at, from});
  co_return true;
}

Task<bool> Trainer::load() {
  doing_ = "loads a checkpoint";
  transaction_->unload();
  Payload source;
  if (rank_ == 0) source.words = {static_cast<std::uint64_t>(run_.checkpoint)};
  const Gathered all = co_await gather(std::move(source));
  if (!all) co_return false;
  const auto step = static_cast<std::int64_t>(all->front().words.front());
  std::fill(memory_->chunks.begin(), memory_->chunks.end(), kGarbage);
  co_await pause(world_.between(1, 10));
  const auto& parameters = run_.oracle.parameters(step);
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    memory_->chunks[static_cast<std::size_t>(chunk)] =
        parameters[static_cast<std::size_t>(rank_ * kChunks + chunk)];
  }
  co_await pause(world_.between(0, 2));
  run_.loaded(rank_, step);
  update_log_->forget();
  transaction_->load(run_.oracle.record(step));
  co_return true;
}

Task<bool> Trainer::publish() {
  doing_ = "publishes its parameters";
  Payload mine;
  mine.words = memory_->chunks;
  const Gathered all = co_await gather(std::move(mine));
  if (!all) co_return false;
  for (std::size_t rank = 0; rank < all->size(); ++rank) {
    std::copy((*all)[rank].words.begin(), (*all)[rank].words.end(),
              memory_->everybody.begin() + static_cast<std::ptrdiff_t>(rank * kChunks));
  }
  co_return true;
}

// --- a step --------------------------------------------------------------------------------------

Task<bool> Trainer::step() {
  doing_ = "computes";
  transaction_->begin_step();
  const CommitRecord& before = transaction_->record();
  const std::int64_t number = before.step + 1;
  const StepPlan& plan = run_.plan(before.cursor);
  co_await pause(world_.between(10, 30));
  const std::uint64_t digest = digest_of(memory_->everybody);
  require(digest == run_.oracle.digest(before.step),
          "rank {} computes step {} with other parameters than those after step {}", rank_, number,
          before.step);
  Payload gradient;
  gradient.words = {gradient_of(digest, plan, rank_, number)};
  doing_ = "reduces gradients";
  const Gathered gradients = co_await gather(std::move(gradient));
  if (!gradients) co_return false;
  std::vector<std::uint64_t> parts;
  for (const Payload& payload : *gradients) parts.push_back(payload.words.front());
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    memory_->reduced[static_cast<std::size_t>(chunk)] = reduced_of(parts, rank_, chunk);
  }
  transaction_->prepare();
  co_await pause(world_.between(0, 1));
  doing_ = "votes";
  Payload vote;
  vote.words = {norm_part(memory_->reduced), static_cast<std::uint64_t>(number)};
  const Gathered votes = co_await gather(std::move(vote), true);
  if (!votes) co_return false;
  std::vector<std::uint64_t> norms;
  for (const Payload& payload : *votes) {
    const bool same =
        payload.words.size() == 2 && payload.words[1] == static_cast<std::uint64_t>(number);
    require(same || run_.options.mistake == Mistake::kVoteWithoutAll,
            "rank {} votes on step {} with others that do not", rank_, number);
    norms.push_back(payload.words.empty() ? 0 : payload.words.front());
  }
  CommitRecord record = before;
  record.step = number;
  record.cursor = plan.after;
  record.grad_norm = norm_of(norms);
  co_await pause(world_.between(0, 1));
  run_.votes_complete(rank_, running_, number, plan);
  run_.commits(place().pid, running_);
  transaction_->commit(record);
  co_await optimizer_phase();
  if (!co_await publish()) co_return false;
  if (number % kCheckpointEvery == 0) {
    doing_ = "saves a checkpoint";
    if (!co_await gather({})) co_return false;
    if (rank_ == 0) run_.checkpoint = std::max(run_.checkpoint, number);
  }
  if (rank_ == 0) {
    world_.note("step {} is finished in generation {}", number, running_);
    tell(StepFinished{running_, number});
  }
  co_return true;
}

// --- the optimizer phase -------------------------------------------------------------------------

void Trainer::moment() {
  if (dies_in_chunk_ && world_.chance(6)) throw Killed{};
}

// Chunk `chunk` in its slot; while it is half written, the other thread updates `other`, −1: none.
void Trainer::update(int slot, int chunk, int other) {
  std::uint64_t& value = memory_->chunks[static_cast<std::size_t>(chunk)];
  const std::span<std::byte> part = std::as_writable_bytes(std::span(&value, 1));
  update_log_->run(
      transaction_->committed().step, slot, chunk, std::span(&part, 1),
      [&] {
        const std::uint64_t after =
            updated(value, memory_->reduced[static_cast<std::size_t>(chunk)],
                    transaction_->committed().grad_norm, transaction_->committed().step);
        value = kGarbage;
        moment();
        if (other >= 0) update(1 - slot, other, -1);
        value = after;
      },
      [&](std::string_view) { moment(); });
}

Task<Trainer::Nothing> Trainer::optimizer_phase() {
  doing_ = "updates parameters";
  if (run_.options.mistake != Mistake::kRedoWithoutUndo) {
    update_log_->restore(transaction_->committed().step, [this](std::int64_t chunk) {
      return std::vector<std::span<std::byte>>{
          std::as_writable_bytes(std::span(&memory_->chunks[static_cast<std::size_t>(chunk)], 1))};
    });
  }
  co_await pause(world_.between(0, 0.5));
  // What is left, two at a time, by either thread.
  for (;;) {
    std::vector<int> left;
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (!update_log_->done(transaction_->committed().step, chunk)) left.push_back(chunk);
    }
    if (left.empty()) break;
    const int slot = static_cast<int>(world_.random.below(2));
    const bool both = left.size() > 1 && world_.chance(2);
    update(slot, left[0], both ? left[1] : -1);
    co_await pause(world_.between(0, 0.5));
  }
  const std::int64_t number = transaction_->committed().step;
  run_.finished(rank_, place().pid, number, memory_->chunks);
  transaction_->finish();
  co_return Nothing{};
}

}  // namespace troupe::simulation
