#include "sim_trainer.h"

#include <algorithm>

#include "sim_controller.h"

namespace troupe::simulation {

using namespace train;

namespace {

// In a coroutine whose result is a Status. GCC 12 destroys what stands in a condition with a
// co_await twice where the coroutine is destroyed there: results get names of their own.
#define TROUPE_CO_RETURN_IF_ERROR(...)    \
  do {                                    \
    const Status status_ = (__VA_ARGS__); \
    if (!status_.ok()) co_return status_; \
  } while (false)

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

const char* decision_name(RecoveryDecision::Kind kind) {
  switch (kind) {
    case RecoveryDecision::Kind::kLoad:
      return "load";
    case RecoveryDecision::Kind::kDiscard:
      return "discard";
    case RecoveryDecision::Kind::kFinish:
      return "finish";
  }
  return "unknown";
}

}  // namespace

StateMemory::StateMemory()
    : marks(words_for(log_layout().marks_bytes())),
      undo(words_for(log_layout().undo_bytes())),
      chunks(kChunks, kGarbage),
      reduced(kChunks, kGarbage) {}

RankMemory::RankMemory(int ranks)
    : everybody(static_cast<std::size_t>(ranks * kChunks), kGarbage) {}

Trainer::Held::Held(StateMemory& of, int number)
    : memory(of),
      rank(number),
      transaction(of.state),
      update_log(log_layout(), aligned(of.marks), aligned(of.undo)) {}

// --- the actor -----------------------------------------------------------------------------------

Trainer::Trainer(Cluster& cluster, Run& run, Place place)
    : Process(cluster, std::move(place)),
      run_(run),
      generations_(this->place().spec.actor_id, -1) {}

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
  if (meeting_) meeting_->leave(rank());
  meeting_.reset();
  suspended_ = {};
  task_ = {};
  own_.reset();
  kept_.reset();
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

void Trainer::begin(GenerationPlan plan) {
  if (generations_.begin(std::move(plan))) wake();
}

void Trainer::abort(std::uint64_t generation, const Status& reason) {
  const GenerationQueue::Aborted aborted = generations_.abort(generation, reason);
  if (aborted.left_before) tell(*aborted.left_before);
  if (!aborted.leave) return;
  if (meeting_) meeting_->leave(rank());
  broken_ = true;
  wake();
}

TrainerStatus Trainer::status() const {
  return generations_.status({.incarnation = place().incarnation,
                              .node_id = cluster_.node_id(place().node),
                              .has_bundle = has_bundle_,
                              .step = own_ ? own_->transaction.position().step : 0});
}

void Trainer::tell(TrainerMessage message) {
  cluster_.call(
      *this, run_.controller,
      {.what = [rank = rank(), message](
                   Process& process) { dynamic_cast<Controller&>(process).report(rank, message); },
       .repeats = true,
       .timeout = std::chrono::hours(1),
       .failed = {}});
}

// --- meetings ------------------------------------------------------------------------------------

void Trainer::met(const MeetingPtr& meeting, int rank) {
  later(world_.delay(), [this, meeting, rank] {
    // It left before it knew that all were there.
    if (generation() != meeting->generation() || cancelled() || meeting_)
      return meeting->leave(rank);
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
  if (broken_ || cancelled()) co_return nullptr;
  meeting_->give(rank(), std::move(payload), votes);
  while (!gathered_ && !broken_ && !cancelled()) co_await Suspended{*this};
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
  using Peers = GenerationQueue::Departure::Peers;
  for (;;) {
    doing_ = "waits for a generation";
    while (!generations_.waiting() || !has_bundle_) co_await Suspended{*this};
    GenerationPlan plan = generations_.next();
    Status ended = co_await train(std::move(plan));
    const GenerationQueue::Departure departure = generations_.leave(std::move(ended), true);
    run_.meetings.withdraw(*this);
    const MeetingPtr meeting = std::exchange(meeting_, nullptr);
    if (meeting && departure.peers == Peers::kAbortAtOnce) meeting->leave(rank());
    tell(departure.message);
    if (departure.peers != Peers::kAbortOnceTold) continue;
    co_await pause(world_.between(0, 2));
    if (meeting) meeting->leave(rank());
  }
}

Status Trainer::lost() const {
  const Status cancelled = generations_.cancelled();
  return cancelled.ok() ? Status(Code::kAborted, "a peer left the generation") : cancelled;
}

Task<Status> Trainer::train(GenerationPlan plan) {
  doing_ = "meets the others";
  const auto late = std::make_shared<bool>(false);
  later(std::chrono::seconds(60), [this, late] {
    *late = true;
    wake();
  });
  if (!cancelled()) run_.meetings.arrive(plan.generation, rank(), run_.ranks, *this);
  while (!meeting_ && !cancelled() && !*late) co_await Suspended{*this};
  if (!meeting_) co_return lost();
  tell(TrainerFormed{rank(), plan.generation});
  if (!memory_) TROUPE_CO_RETURN_IF_ERROR(co_await take_rank());
  TROUPE_CO_RETURN_IF_ERROR(co_await recover());
  while (own_->transaction.position().step < run_.options.steps)
    TROUPE_CO_RETURN_IF_ERROR(co_await step());
  doing_ = "writes the final model";
  const Gathered all = co_await gather({});
  if (!all) co_return lost();
  co_return Status();
}

Task<Status> Trainer::take_rank() {
  doing_ = "attaches its memory";
  attach_answer_.reset();
  wire::HostAttachSegment request{1, fmt::format("rank-{}/state", rank()), 20'000};
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
    run_.memory_missing(rank(), place().node, life);
    memory_ = std::make_shared<RankMemory>(run_.ranks);
    cluster_.tell_node(*this, wire::HostKeepSegment{request.name, false}, memory_);
  } else if (attach_answer_->ok()) {
    memory_ = std::dynamic_pointer_cast<RankMemory>(attached_memory_);
    require(memory_ != nullptr, "{} gets no memory with its segment", label());
    Process* before = cluster_.find(memory_->owner);
    require(before == nullptr || before == this || !before->alive(),
            "{} gets the memory of rank {} while {} lives", label(), rank(),
            before == nullptr ? "" : before->label());
  } else {
    co_return *attach_answer_;
  }
  memory_->owner = place().pid;
  own_.emplace(memory_->own, rank());
  if (const int of = own_->transaction.keeps(); of >= 0) kept_.emplace(memory_->kept, of);
  co_return Status();
}

void Trainer::attached(std::uint64_t, const Status& status, MemoryPtr memory) {
  if (attach_answer_) return;
  attach_answer_ = status;
  attached_memory_ = std::move(memory);
  wake();
}

// --- recovery ------------------------------------------------------------------------------------

Task<Status> Trainer::recover() {
  using Next = RecoverySession::Next;
  RecoverySession session(own_->transaction, rank(), kept_ ? &kept_->transaction : nullptr);
  TROUPE_CO_RETURN_IF_ERROR(session.join(generation()));
  while (session.next() != Next::kDone) {
    switch (session.next()) {
      case Next::kMeet:
        TROUPE_CO_RETURN_IF_ERROR(co_await meet(session));
        break;
      case Next::kShareRecord:
        TROUPE_CO_RETURN_IF_ERROR(co_await share_record(session));
        break;
      case Next::kUpdateKept:
        co_await optimizer_phase(*kept_);
        session.kept_updated();
        break;
      case Next::kUpdate:
        co_await optimizer_phase(*own_);
        session.updated();
        break;
      case Next::kCopy:
        TROUPE_CO_RETURN_IF_ERROR(co_await copy(session));
        break;
      case Next::kLoad:
        TROUPE_CO_RETURN_IF_ERROR(co_await load(session));
        break;
      case Next::kForgetUpdates:
        own_->update_log.forget();
        session.updates_forgotten();
        break;
      case Next::kRenew:
        TROUPE_CO_RETURN_IF_ERROR(co_await renew(session));
        break;
      case Next::kPublish:
        TROUPE_CO_RETURN_IF_ERROR(co_await publish());
        session.published();
        break;
      case Next::kDone:
        break;
    }
  }
  // A daemon that died between hearing of the memory and keeping it has lost it: see README.md.
  if (cluster_.keeps(place().node, place().spec.job_id, fmt::format("rank-{}/state", rank()))) {
    run_.memory_found(rank(), place().node, cluster_.memory_life(place().node));
  }
  const bool from_memory = session.decision().kind != RecoveryDecision::Kind::kLoad;
  // All ranks have published, so all have loaded their checkpoint.
  if (!from_memory) run_.all_loaded();
  const std::int64_t at = own_->transaction.position().step;
  require(own_->transaction.record().cursor == run_.oracle.record(at).cursor,
          "rank {} is elsewhere in its data after step {}", rank(), at);
  tell(TrainerLoaded{rank(), generation(), at,
                     !from_memory                ? LoadedFrom::kCheckpoint
                     : session.copies_from() < 0 ? LoadedFrom::kMemory
                                                 : LoadedFrom::kReplica});
  co_return Status();
}

Task<Status> Trainer::meet(RecoverySession& session) {
  doing_ = "gathers positions";
  Payload mine;
  mine.position = session.position();
  if (kept_) mine.kept = {kept_->rank, kept_->transaction.position()};
  mine.machine = static_cast<std::uint64_t>(place().node);
  const Gathered all = co_await gather(std::move(mine));
  if (!all) co_return lost();
  std::vector<RankPosition> positions;
  std::vector<KeptPosition> kept;
  std::vector<std::uint64_t> machines;
  for (const Payload& payload : *all) {
    positions.push_back(payload.position);
    kept.push_back(payload.kept);
    machines.push_back(payload.machine);
  }
  buddies_ = run_.buddies ? BuddyPlan::make(run_.shards, machines) : BuddyPlan();
  session.met({.positions = positions, .states = run_.shards, .kept = kept}, buddies_.kept());
  const RecoveryDecision& decision = session.decision();
  if (rank() == 0) {
    world_.note("generation {}: {}, step {}{}{}", generation(), decision_name(decision.kind),
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
  } else {
    const bool finishes = decision.kind == RecoveryDecision::Kind::kFinish;
    run_.goes_on(positions, decision.step + (finishes ? 1 : 0));
  }
  co_await pause(world_.between(0, 2));
  co_return Status();
}

Task<Status> Trainer::share_record(RecoverySession& session) {
  doing_ = "gets the record of a decided step";
  const int from = session.decision().record_rank;
  Payload record;
  if (rank() == from) record.record = session.record();
  const Gathered records = co_await gather(std::move(record));
  if (!records) co_return lost();
  const CommitRecord& decided = (*records)[static_cast<std::size_t>(from)].record;
  if (session.finishes_step()) {
    if (!session.decision().copies_from.empty())
      run_.finished_for_the_lost(decided.step, generation(),
                                 run_.plan(run_.oracle.record(decided.step - 1).cursor));
    run_.commits(place().pid, generation());
  }
  session.shared(decided);
  co_return Status();
}

Task<Status> Trainer::copy(RecoverySession& session) {
  doing_ = "copies states";
  Payload mine;
  if (session.copies_from() < 0) {
    mine.words = memory_->own.chunks;
    mine.record = own_->transaction.record();
  }
  if (kept_) mine.kept_words = memory_->kept.chunks;
  const Gathered all = co_await gather(std::move(mine));
  if (!all) co_return lost();
  CommitRecord record;
  if (session.copies_from() >= 0) {
    const Payload& source = (*all)[static_cast<std::size_t>(session.copies_from())];
    std::vector<std::uint64_t>& chunks = memory_->own.chunks;
    std::fill(chunks.begin(), chunks.end(), kGarbage);
    co_await pause(world_.between(0, 5));
    chunks = session.copies_kept() ? source.kept_words : source.words;
    record = source.record;
    run_.copied(rank(), record.step, session.copies_kept());
  }
  session.copied(record);
  co_return Status();
}

Task<Status> Trainer::load(RecoverySession& session) {
  doing_ = "loads a checkpoint";
  Payload source;
  if (rank() == 0) source.words = {static_cast<std::uint64_t>(run_.checkpoint)};
  const Gathered all = co_await gather(std::move(source));
  if (!all) co_return lost();
  const auto step = static_cast<std::int64_t>(all->front().words.front());
  std::vector<std::uint64_t>& chunks = memory_->own.chunks;
  std::fill(chunks.begin(), chunks.end(), kGarbage);
  co_await pause(world_.between(1, 10));
  const auto& parameters = run_.oracle.parameters(step);
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    chunks[static_cast<std::size_t>(chunk)] =
        parameters[static_cast<std::size_t>(rank() * kChunks + chunk)];
  }
  co_await pause(world_.between(0, 2));
  run_.loaded(rank(), step);
  session.loaded(run_.oracle.record(step));
  co_return Status();
}

Task<Status> Trainer::renew(RecoverySession& session) {
  doing_ = "gives its state to its buddy";
  Payload mine;
  mine.words = memory_->own.chunks;
  const Gathered all = co_await gather(std::move(mine));
  if (!all) co_return lost();
  if (!session.renews()[static_cast<std::size_t>(rank())]) {
    session.renewed(nullptr);
    co_return Status();
  }
  const int owner = buddies_.kept_by(rank());
  own_->transaction.set_keeps(owner);
  kept_.emplace(memory_->kept, owner);
  kept_->transaction.unload();
  kept_->update_log.forget();
  std::vector<std::uint64_t>& chunks = memory_->kept.chunks;
  std::fill(chunks.begin(), chunks.end(), kGarbage);
  co_await pause(world_.between(0, 5));
  chunks = (*all)[static_cast<std::size_t>(owner)].words;
  session.renewed(&kept_->transaction);
  co_return Status();
}

Task<Status> Trainer::publish() {
  doing_ = "publishes its parameters";
  Payload mine;
  mine.words = memory_->own.chunks;
  const Gathered all = co_await gather(std::move(mine));
  if (!all) co_return lost();
  for (std::size_t rank = 0; rank < all->size(); ++rank) {
    std::copy((*all)[rank].words.begin(), (*all)[rank].words.end(),
              memory_->everybody.begin() + static_cast<std::ptrdiff_t>(rank * kChunks));
  }
  co_return Status();
}

// --- a step --------------------------------------------------------------------------------------

Task<Status> Trainer::step() {
  using Next = StepSession::Next;
  const StepPlan& plan = run_.plan(own_->transaction.record().cursor);
  if (buddies_.none()) kept_.reset();
  StepSession session(own_->transaction, generation(), kept_ ? &kept_->transaction : nullptr);
  while (session.next() != Next::kDone) {
    switch (session.next()) {
      case Next::kCompute:
        TROUPE_CO_RETURN_IF_ERROR(co_await compute(session, plan));
        break;
      case Next::kVote:
        TROUPE_CO_RETURN_IF_ERROR(co_await vote(session, plan));
        break;
      case Next::kUpdateKept:
        co_await optimizer_phase(*kept_);
        session.kept_updated();
        break;
      case Next::kUpdate:
        co_await optimizer_phase(*own_);
        session.updated();
        break;
      case Next::kPublish:
        TROUPE_CO_RETURN_IF_ERROR(co_await publish());
        session.published();
        break;
      case Next::kDone:
        break;
    }
  }
  const std::int64_t number = own_->transaction.position().step;
  if (number % kCheckpointEvery == 0) TROUPE_CO_RETURN_IF_ERROR(co_await save_checkpoint());
  if (rank() == 0) {
    world_.note("step {} is finished in generation {}", number, generation());
    tell(StepReport{.generation = generation(), .step = number});
  }
  co_return Status();
}

Task<Status> Trainer::compute(StepSession& session, const StepPlan& plan) {
  doing_ = "computes";
  CommitRecord record = own_->transaction.record();
  co_await pause(world_.between(10, 30));
  const std::uint64_t digest = digest_of(memory_->everybody);
  require(digest == run_.oracle.digest(record.step),
          "rank {} computes step {} with other parameters than those after step {}", rank(),
          record.step + 1, record.step);
  ++record.step;
  Payload gradient;
  gradient.words = {gradient_of(digest, plan, rank(), record.step)};
  doing_ = "reduces gradients";
  const Gathered gradients = co_await gather(std::move(gradient));
  if (!gradients) co_return lost();
  std::vector<std::uint64_t> parts;
  for (const Payload& payload : *gradients) parts.push_back(payload.words.front());
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    memory_->own.reduced[static_cast<std::size_t>(chunk)] = reduced_of(parts, shard(), chunk);
  }
  doing_ = "gathers the norm";
  Payload norm;
  norm.words = {norm_part(memory_->own.reduced)};
  const Gathered norms = co_await gather(std::move(norm));
  if (!norms) co_return lost();
  parts.clear();
  for (const Payload& payload : *norms) parts.push_back(payload.words.front());
  record.cursor = plan.after;
  record.grad_norm = norm_of(parts);
  if (!buddies_.none()) {
    doing_ = "gives its gradients to its buddy";
    Payload mine;
    mine.words = memory_->own.reduced;
    const Gathered all = co_await gather(std::move(mine));
    if (!all) co_return lost();
    memory_->kept.reduced = (*all)[static_cast<std::size_t>(kept_->rank)].words;
    co_await pause(world_.between(0, 1));
  }
  session.computed(record);
  co_await pause(world_.between(0, 1));
  co_return Status();
}

Task<Status> Trainer::vote(StepSession& session, const StepPlan& plan) {
  doing_ = "votes";
  Payload mine;
  mine.vote = session.vote();
  const Gathered all = co_await gather(mine, true);
  if (!all) co_return lost();
  std::vector<StepVote> votes;
  for (const Payload& payload : *all) votes.push_back(payload.vote);
  co_await pause(world_.between(0, 1));
  run_.votes_complete(rank(), generation(), mine.vote.step, plan);
  run_.commits(place().pid, generation());
  const Status same = session.voted(votes);
  require(same.ok(), "rank {} does not commit step {}: {}", rank(), mine.vote.step, same.message());
  if (run_.when_committed) std::exchange(run_.when_committed, nullptr)(place().node);
  co_return Status();
}

Task<Status> Trainer::save_checkpoint() {
  doing_ = "saves a checkpoint";
  const Gathered all = co_await gather({});
  if (!all) co_return lost();
  if (rank() == 0) run_.checkpoint = std::max(run_.checkpoint, own_->transaction.position().step);
  co_return Status();
}

// --- the optimizer phase -------------------------------------------------------------------------

void Trainer::moment() {
  if (dies_in_chunk_ && world_.chance(6)) throw Killed{};
}

// Chunk `chunk` in its slot; while it is half written, the other thread updates `other`, −1: none.
void Trainer::update(Held& held, int slot, int chunk, int other) {
  std::uint64_t& value = held.memory.chunks[static_cast<std::size_t>(chunk)];
  const std::span<std::byte> part = std::as_writable_bytes(std::span(&value, 1));
  const CommitRecord& step = held.transaction.committed();
  held.update_log.run(
      step.step, slot, chunk, std::span(&part, 1),
      [&] {
        const std::uint64_t after = updated(
            value, held.memory.reduced[static_cast<std::size_t>(chunk)], step.grad_norm, step.step);
        value = kGarbage;
        moment();
        if (other >= 0) update(held, 1 - slot, other, -1);
        value = after;
      },
      [&](std::string_view) { moment(); });
}

Task<Trainer::Nothing> Trainer::optimizer_phase(Held& held) {
  doing_ = &held == &*own_ ? "updates parameters" : "updates what it keeps";
  const std::int64_t step = held.transaction.committed().step;
  if (run_.options.mistake != Mistake::kRedoWithoutUndo) {
    held.update_log.restore(step, [&held](std::int64_t chunk) {
      return std::vector<std::span<std::byte>>{std::as_writable_bytes(
          std::span(&held.memory.chunks[static_cast<std::size_t>(chunk)], 1))};
    });
  }
  co_await pause(world_.between(0, 0.5));
  // What is left, two at a time, by either thread.
  for (;;) {
    std::vector<int> left;
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (!held.update_log.done(step, chunk)) left.push_back(chunk);
    }
    if (left.empty()) break;
    const int slot = static_cast<int>(world_.random.below(2));
    const bool both = left.size() > 1 && world_.chance(2);
    update(held, slot, left[0], both ? left[1] : -1);
    co_await pause(world_.between(0, 0.5));
  }
  if (&held == &*own_)
    run_.finished(rank(), place().pid, step, held.memory.chunks);
  else
    run_.kept_finished(held.rank, step, held.memory.chunks);
  co_return Nothing{};
}

}  // namespace troupe::simulation
