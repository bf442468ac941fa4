#include "sim_trainer.h"

#include <algorithm>

#include "sim_controller.h"
#include "train/trainer/progress_memory.h"
#include "train/trainer/saved_stop.h"

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
// As TrainerActor has them.
constexpr auto kMeetTimeout = std::chrono::seconds(60);
constexpr auto kMeetNewcomersTimeout = std::chrono::seconds(20);
constexpr std::uint64_t kGarbage = 0xDEADDEADDEADDEAD;

UpdateLog::Layout log_layout(const Layout& layout) {
  return {.chunks = kChunks,
          .chunk_bytes_max = layout.chunk_size_max() * sizeof(std::uint64_t),
          .undo_slots = 2};
}

std::string memory_name(int world, int rank) { return rank_memory(world, rank) + "/state"; }

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

StateMemory::StateMemory(const Layout& layout)
    : marks(words_for(log_layout(layout).marks_bytes())),
      undo(words_for(log_layout(layout).undo_bytes())) {}

RankMemory::RankMemory(const Layout& of, std::size_t values)
    : layout(of), own(of), kept(of), published(values, kGarbage) {}

Trainer::Held::Held(StateMemory& of, const Layout& layout_of_it, int number)
    : memory(of),
      layout(layout_of_it),
      rank(number),
      transaction(of.state),
      update_log(log_layout(layout), aligned(of.marks), aligned(of.undo)) {}

Trainer::Holding::Holding(std::string named, std::shared_ptr<RankMemory> of, const Layout& layout,
                          int rank)
    : name(std::move(named)), memory(std::move(of)), own(memory->own, layout, rank) {
  if (const int owner = own.transaction.keeps(); owner >= 0)
    kept.emplace(memory->kept, layout, owner);
}

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
  if (meeting_ && !cluster_.died_silently(place().node)) meeting_->leave(rank());
  meeting_.reset();
  suspended_ = {};
  task_ = {};
  memory_.reset();
  former_.clear();
}

void Trainer::asked_to_stop(Duration) {
  later(world_.between(1, 50), [this] { cluster_.kill(*this, "its node ends it"); });
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
                              .step = memory_ ? memory_->own.transaction.position().step : 0});
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
    const Reached reached = memory_ && loaded_step_
                                ? reached_from(*loaded_step_, memory_->own.transaction.position())
                                : Reached::kNoStep;
    loaded_step_.reset();
    const GenerationQueue::Departure departure =
        generations_.leave(std::move(ended), true, reached);
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
  later(plan.tries_newcomers ? kMeetNewcomersTimeout : kMeetTimeout, [this, late] {
    *late = true;
    wake();
  });
  enter_world(plan);
  if (!cancelled()) run_.meetings.arrive(plan.generation, rank(), layout_->ranks(), *this);
  while (!meeting_ && !cancelled() && !*late) co_await Suspended{*this};
  if (!meeting_) co_return lost();
  tell(TrainerFormed{rank(), plan.generation});
  if (!memory_) TROUPE_CO_RETURN_IF_ERROR(co_await take_rank());
  TROUPE_CO_RETURN_IF_ERROR(co_await open_former(plan));
  TROUPE_CO_RETURN_IF_ERROR(co_await recover());
  while (memory_->own.transaction.position().step < run_.options.steps)
    TROUPE_CO_RETURN_IF_ERROR(co_await step());
  doing_ = "writes the final model";
  const Gathered all = co_await gather({});
  if (!all) co_return lost();
  co_return Status();
}

void Trainer::enter_world(const GenerationPlan& plan) {
  layout_ = &run_.layout(static_cast<int>(plan.ranks.size()));
  if (world_number_ == plan.world.number) return;
  world_number_ = plan.world.number;
  memory_.reset();
}

Task<Status> Trainer::attach(std::string name, const Layout& layout,
                             std::shared_ptr<RankMemory>& memory) {
  doing_ = "attaches memory";
  attach_answer_.reset();
  const wire::HostAttachSegment request{++attaching_, name, 20'000};
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
  if (attach_answer_->code() == Code::kNotFound) {
    run_.memory_missing(name, {place().node, cluster_.memory_life(place().node)});
    co_return Status();
  }
  TROUPE_CO_RETURN_IF_ERROR(Status(*attach_answer_));
  memory = std::dynamic_pointer_cast<RankMemory>(attached_memory_);
  require(memory != nullptr, "{} gets no memory with its segment", label());
  Process* before = cluster_.find(memory->owner);
  require(before == nullptr || before == this || !before->alive(),
          "{} gets the memory {} while {} lives", label(), name,
          before == nullptr ? "" : before->label());
  memory->owner = place().pid;
  run_.memory_taken(name, StepTransaction(memory->own.state).generation());
  // Of another world with that number, which a controller without memory did not know of.
  if (&memory->layout != &layout) memory.reset();
  co_return Status();
}

Task<Status> Trainer::take_rank() {
  const std::string name = memory_name(world_number_, rank());
  std::shared_ptr<RankMemory> memory;
  TROUPE_CO_RETURN_IF_ERROR(co_await attach(name, *layout_, memory));
  if (!memory) {
    memory = std::make_shared<RankMemory>(*layout_, run_.oracle.parameters(0).size());
    memory->owner = place().pid;
    cluster_.tell_node(*this, wire::HostKeepSegment{name, false}, memory);
  }
  memory_ = std::make_unique<Holding>(name, std::move(memory), *layout_, rank());
  co_return Status();
}

Task<Status> Trainer::open_former(const GenerationPlan& plan) {
  former_.clear();
  for (const train::World& before : plan.former) {
    Former former{before.number, run_.layout(static_cast<int>(before.trainers.size())),
                  ranks_there(before, plan.world), nullptr};
    if (const int own = former.ranks[static_cast<std::size_t>(rank())]; own >= 0) {
      const std::string name = memory_name(before.number, own);
      std::shared_ptr<RankMemory> memory;
      TROUPE_CO_RETURN_IF_ERROR(co_await attach(name, former.layout, memory));
      if (memory) former.here = std::make_unique<Holding>(name, memory, former.layout, own);
    }
    former_.push_back(std::move(former));
  }
  co_return Status();
}

void Trainer::attached(std::uint64_t request_id, const Status& status, MemoryPtr memory) {
  if (attach_answer_ || request_id != attaching_) return;
  attach_answer_ = status;
  attached_memory_ = std::move(memory);
  wake();
}

// --- recovery ------------------------------------------------------------------------------------

Task<Status> Trainer::recover() {
  using Next = RecoverySession::Next;
  StepTransaction& transaction = memory_->own.transaction;
  RecoverySession session(transaction, rank(), memory_->kept_transaction());
  TROUPE_CO_RETURN_IF_ERROR(session.join(generation()));
  run_.memory_joins(memory_->name, generation());
  while (session.next() != Next::kDone) {
    switch (session.next()) {
      case Next::kMeet:
        TROUPE_CO_RETURN_IF_ERROR(co_await meet(session));
        break;
      case Next::kShareRecord:
        TROUPE_CO_RETURN_IF_ERROR(co_await share_record(session));
        break;
      case Next::kUpdateKept:
        co_await optimizer_phase(*memory_->kept);
        session.kept_updated();
        break;
      case Next::kUpdate:
        co_await optimizer_phase(memory_->own);
        session.updated();
        break;
      case Next::kCopy:
        TROUPE_CO_RETURN_IF_ERROR(co_await copy(session));
        break;
      case Next::kLoad:
        TROUPE_CO_RETURN_IF_ERROR(co_await load(session));
        break;
      case Next::kForgetUpdates:
        memory_->own.update_log.forget();
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
  if (cluster_.keeps(place().node, place().spec.job_id, memory_->name))
    run_.memory_found(memory_->name, {place().node, cluster_.memory_life(place().node)});
  const bool from_memory = session.decision().kind != RecoveryDecision::Kind::kLoad;
  // All ranks have published, so all have loaded their checkpoint.
  if (!from_memory) run_.all_loaded();
  const std::int64_t at = transaction.position().step;
  require(transaction.record().cursor == run_.oracle.record(at).cursor,
          "rank {} is elsewhere in its data after step {}", rank(), at);
  loaded_step_ = at;
  tell(TrainerLoaded{rank(), generation(), at,
                     !from_memory && !took_over_ ? LoadedFrom::kCheckpoint
                     : session.copies_from() < 0 ? LoadedFrom::kMemory
                                                 : LoadedFrom::kReplica});
  co_return Status();
}

Task<Status> Trainer::meet(RecoverySession& session) {
  doing_ = "gathers positions";
  Payload mine;
  mine.position = session.position();
  if (memory_->kept) mine.kept = {memory_->kept->rank, memory_->kept->transaction.position()};
  mine.machine = static_cast<std::uint64_t>(place().node);
  mine.memory_life = cluster_.memory_life(place().node);
  const Gathered all = co_await gather(std::move(mine));
  if (!all) co_return lost();
  std::vector<RankPosition> positions;
  std::vector<KeptPosition> kept;
  std::vector<std::uint64_t> machines;
  places_.clear();
  for (const Payload& payload : *all) {
    positions.push_back(payload.position);
    kept.push_back(payload.kept);
    machines.push_back(payload.machine);
    places_.push_back({static_cast<int>(payload.machine), payload.memory_life});
  }
  buddies_ = run_.buddies ? BuddyPlan::make(layout_->states(), machines) : BuddyPlan();
  session.met({.positions = positions, .states = layout_->states(), .kept = kept}, buddies_.kept());
  const RecoveryDecision& decision = session.decision();
  if (rank() == 0) {
    world_.note("generation {}: {}, step {}{}{}", generation(), decision_name(decision.kind),
                decision.step, decision.broken.empty() ? "" : ": ", decision.broken);
    ++run_.result.generations;
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
  StateMemory& own = memory_->memory->own;
  if (session.copies_from() < 0) {
    mine.words = own.values;
    mine.record = memory_->own.transaction.record();
  }
  if (memory_->kept) mine.kept_words = memory_->memory->kept.values;
  const Gathered all = co_await gather(std::move(mine));
  if (!all) co_return lost();
  CommitRecord record;
  if (session.copies_from() >= 0) {
    const Payload& source = (*all)[static_cast<std::size_t>(session.copies_from())];
    co_await overwrite(own, session.copies_kept() ? source.kept_words : source.words);
    record = source.record;
    run_.copied(rank(), record.step, session.copies_kept());
  }
  session.copied(record);
  co_return Status();
}

Task<Trainer::Nothing> Trainer::take_own_of(const std::vector<std::uint64_t>& model) {
  const Layout::Range own = layout_->values(rank());
  const auto from = model.begin() + static_cast<std::ptrdiff_t>(own.begin);
  co_await overwrite(memory_->memory->own, {from, from + static_cast<std::ptrdiff_t>(own.size)});
  co_return Nothing{};
}

// It may be killed before all is written.
Task<Trainer::Nothing> Trainer::overwrite(StateMemory& memory, std::vector<std::uint64_t> values) {
  memory.values.assign(values.size(), kGarbage);
  co_await pause(world_.between(0, 5));
  memory.values = std::move(values);
  co_return Nothing{};
}

Task<Status> Trainer::load(RecoverySession& session) {
  took_over_ = false;
  for (Former& former : former_) {
    std::optional<CommitRecord> record;
    TROUPE_CO_RETURN_IF_ERROR(co_await hand_over(former, record));
    if (!record) continue;
    took_over_ = true;
    run_.handed_over(rank(), record->step, *layout_, memory_->memory->own.values, is_kept());
    session.loaded(*record);
    if (run_.options.mistake == Mistake::kDropsWhenTaken) drop_former();
    co_return Status();
  }
  run_.steps_lost(is_kept());
  co_return co_await load_checkpoint(session);
}

Task<Status> Trainer::load_checkpoint(RecoverySession& session) {
  doing_ = "loads a checkpoint";
  if (rank() == 0) ++run_.result.loads;
  Payload source;
  if (rank() == 0) source.words = {static_cast<std::uint64_t>(run_.checkpoint)};
  const Gathered all = co_await gather(std::move(source));
  if (!all) co_return lost();
  const auto step = static_cast<std::int64_t>(all->front().words.front());
  co_await take_own_of(run_.oracle.parameters(step));
  co_await pause(world_.between(1, 7));
  run_.loaded(rank(), step);
  session.loaded(run_.oracle.record(step));
  co_return Status();
}

Task<Status> Trainer::renew(RecoverySession& session) {
  doing_ = "gives its state to its buddy";
  Payload mine;
  mine.words = memory_->memory->own.values;
  const Gathered all = co_await gather(std::move(mine));
  if (!all) co_return lost();
  if (!session.renews()[static_cast<std::size_t>(rank())]) {
    session.renewed(nullptr);
    co_return Status();
  }
  const int owner = buddies_.kept_by(rank());
  memory_->own.transaction.set_keeps(owner);
  memory_->kept.emplace(memory_->memory->kept, *layout_, owner);
  memory_->kept->transaction.unload();
  memory_->kept->update_log.forget();
  co_await overwrite(memory_->memory->kept, (*all)[static_cast<std::size_t>(owner)].words);
  session.renewed(&memory_->kept->transaction);
  co_return Status();
}

Task<Status> Trainer::publish() {
  doing_ = "publishes its parameters";
  Payload mine;
  mine.words = memory_->memory->own.values;
  const Gathered all = co_await gather(std::move(mine));
  if (!all) co_return lost();
  for (int rank = 0; rank < layout_->ranks(); ++rank) {
    const auto& words = (*all)[static_cast<std::size_t>(rank)].words;
    std::ranges::copy(words, memory_->memory->published.begin() +
                                 static_cast<std::ptrdiff_t>(layout_->values(rank).begin));
  }
  co_return Status();
}

// --- worlds before -------------------------------------------------------------------------------

Task<Status> Trainer::hand_over(Former& former, std::optional<CommitRecord>& handed) {
  using Next = HandOverSession::Next;
  Holding* here = former.here.get();
  HandOverSession session(former.ranks, former.layout.states(), rank(),
                          here ? &here->own.transaction : nullptr,
                          here ? here->kept_transaction() : nullptr);
  CommitRecord record;
  while (session.next() != Next::kDone) {
    switch (session.next()) {
      case Next::kMeet:
        TROUPE_CO_RETURN_IF_ERROR(co_await meet(session));
        break;
      case Next::kShareRecord:
        TROUPE_CO_RETURN_IF_ERROR(co_await share_record(session));
        break;
      case Next::kUpdateKept:
        co_await optimizer_phase(*here->kept);
        session.kept_updated();
        break;
      case Next::kUpdate:
        co_await optimizer_phase(here->own);
        session.updated();
        break;
      case Next::kTake:
        TROUPE_CO_RETURN_IF_ERROR(co_await take_states(former, session, record));
        session.taken();
        break;
      case Next::kDone:
        break;
    }
  }
  if (session.found()) handed = record;
  co_return Status();
}

Task<Status> Trainer::meet(HandOverSession& session) {
  doing_ = "gathers positions in a world before";
  Payload mine;
  mine.position = session.position();
  mine.kept = session.kept_position();
  const Gathered all = co_await gather(std::move(mine));
  if (!all) co_return lost();
  std::vector<RankPosition> positions;
  std::vector<KeptPosition> kept;
  for (const Payload& payload : *all) {
    positions.push_back(payload.position);
    kept.push_back(payload.kept);
  }
  session.met(positions, kept);
  if (rank() == 0) {
    world_.note("of a world before: {}, step {}", decision_name(session.decision().kind),
                session.decision().step);
  }
  co_await pause(world_.between(0, 2));
  co_return Status();
}

Task<Status> Trainer::share_record(HandOverSession& session) {
  Payload mine;
  if (rank() == session.record_from()) mine.record = session.record();
  const Gathered all = co_await gather(std::move(mine));
  if (!all) co_return lost();
  const CommitRecord& decided = (*all)[static_cast<std::size_t>(session.record_from())].record;
  run_.finished_for_the_lost(decided.step, generation(),
                             run_.plan(run_.oracle.record(decided.step - 1).cursor));
  session.shared(decided);
  co_return Status();
}

Task<Status> Trainer::take_states(Former& former, HandOverSession& session, CommitRecord& record) {
  doing_ = "takes states of a world before";
  Payload mine;
  if (former.here) {
    mine.words = former.here->memory->own.values;
    mine.kept_words = former.here->memory->kept.values;
    if (session.leader() == rank()) mine.record = former.here->own.transaction.record();
  }
  const Gathered all = co_await gather(std::move(mine));
  if (!all) co_return lost();
  std::vector<std::uint64_t> model(memory_->memory->published.size(), kGarbage);
  for (const HandOverSession::Giver& giver : session.givers()) {
    const Payload& gives = (*all)[static_cast<std::size_t>(giver.member)];
    const Layout::Range range = former.layout.values(giver.former_rank);
    std::ranges::copy(giver.kept ? gives.kept_words : gives.words,
                      model.begin() + static_cast<std::ptrdiff_t>(range.begin));
  }
  record = (*all)[static_cast<std::size_t>(session.leader())].record;
  co_await take_own_of(model);
  co_return Status();
}

void Trainer::drop_former() {
  for (const Former& former : std::exchange(former_, {})) {
    if (!former.here) continue;
    run_.memory_dropped(former.here->name, former.number);
    cluster_.tell_node(*this, wire::HostKeepSegment{former.here->name, true});
  }
}

Run::IsKept Trainer::is_kept() const {
  return [this](const Run::Where& at) { return cluster_.has_memory(at.node, at.memory_life); };
}

Run::Holders Trainer::holders() const {
  Run::Holders holders;
  const auto holds = [&](int of, int at) {
    const auto state = static_cast<std::size_t>(layout_->states()[static_cast<std::size_t>(of)]);
    const Run::Where& where = places_[static_cast<std::size_t>(at)];
    const bool kept =
        cluster_.keeps(where.node, place().spec.job_id, memory_name(world_number_, at));
    if (holders.size() <= state) holders.resize(state + 1);
    if (kept) holders[state].insert(where);
  };
  for (int rank = 0; rank < layout_->ranks(); ++rank) {
    holds(rank, rank);
    if (const int owner = buddies_.kept_by(rank); owner >= 0) holds(owner, rank);
  }
  return holders;
}

// --- a step --------------------------------------------------------------------------------------

Task<Status> Trainer::step() {
  using Next = StepSession::Next;
  const StepPlan& plan = run_.plan(memory_->own.transaction.record().cursor);
  if (buddies_.none()) memory_->kept.reset();
  StepSession session(memory_->own.transaction, generation(), memory_->kept_transaction());
  while (session.next() != Next::kDone) {
    switch (session.next()) {
      case Next::kCompute:
        TROUPE_CO_RETURN_IF_ERROR(co_await compute(session, plan));
        break;
      case Next::kVote:
        TROUPE_CO_RETURN_IF_ERROR(co_await vote(session, plan));
        break;
      case Next::kUpdateKept:
        co_await optimizer_phase(*memory_->kept);
        session.kept_updated();
        break;
      case Next::kUpdate:
        co_await optimizer_phase(memory_->own);
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
  // All ranks have voted: nobody needs the memory of the world before any more.
  drop_former();
  const std::int64_t number = memory_->own.transaction.position().step;
  if (number % kCheckpointEvery == 0) TROUPE_CO_RETURN_IF_ERROR(co_await save_checkpoint());
  if (rank() == 0) {
    world_.note("step {} is finished in generation {}", number, generation());
    tell(StepReport{.generation = generation(), .step = number});
  }
  if (pauses_ && number < run_.options.steps) co_return paused_after(number);
  co_return Status();
}

Task<Status> Trainer::compute(StepSession& session, const StepPlan& plan) {
  doing_ = "computes";
  CommitRecord record = memory_->own.transaction.record();
  StateMemory& own = memory_->memory->own;
  co_await pause(world_.between(10, 30));
  const std::uint64_t digest = digest_of(memory_->memory->published);
  require(digest == run_.oracle.digest(record.step),
          "rank {} computes step {} with other parameters than those after step {}", rank(),
          record.step + 1, record.step);
  ++record.step;
  // Micro-batches are dealt out in turn.
  const std::size_t ranks = static_cast<std::size_t>(layout_->ranks());
  Payload gradients;
  for (std::size_t number = static_cast<std::size_t>(rank()); number < plan.batches.size();
       number += ranks)
    gradients.words.push_back(gradient_of(digest, plan.batches[number], record.step));
  doing_ = "reduces gradients";
  const Gathered reduced = co_await gather(std::move(gradients));
  if (!reduced) co_return lost();
  std::vector<std::uint64_t> parts;
  for (std::size_t number = 0; number < plan.batches.size(); ++number)
    parts.push_back((*reduced)[number % ranks].words[number / ranks]);
  const std::uint64_t parts_digest = digest_of(parts);
  const Layout::Range range = layout_->values(rank());
  own.reduced.clear();
  for (std::size_t i = 0; i < range.size; ++i)
    own.reduced.push_back(reduced_of(parts_digest, range.begin + i));
  doing_ = "gathers the norm";
  Payload norm;
  norm.words = {norm_part(own.reduced, range.begin)};
  norm.pauses = pause_ == generation();
  const Gathered norms = co_await gather(std::move(norm));
  if (!norms) co_return lost();
  pauses_ = norms->front().pauses;
  record.cursor = plan.after;
  record.grad_norm = norm_of(norm_of_states(*norms));
  if (!buddies_.none()) {
    doing_ = "gives its gradients to its buddy";
    Payload mine;
    mine.words = own.reduced;
    const Gathered all = co_await gather(std::move(mine));
    if (!all) co_return lost();
    memory_->memory->kept.reduced = (*all)[static_cast<std::size_t>(memory_->kept->rank)].words;
    co_await pause(world_.between(0, 1));
  }
  session.computed(record);
  co_await pause(world_.between(0, 1));
  co_return Status();
}

// Of each state once, whoever holds it.
std::uint64_t Trainer::norm_of_states(const std::vector<Payload>& by_rank) const {
  std::vector<bool> counted(by_rank.size());
  std::uint64_t sum = 0;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    const auto state = static_cast<std::size_t>(layout_->states()[rank]);
    if (!counted[state]) sum += by_rank[rank].words.front();
    counted[state] = true;
  }
  return sum;
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
  if (run_.votes_complete(rank(), generation(), mine.vote.step, plan) && run_.options.elastic)
    run_.stands(world_number_, holders());
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
  if (rank() == 0)
    run_.checkpoint = std::max(run_.checkpoint, memory_->own.transaction.position().step);
  co_return Status();
}

// --- the optimizer phase -------------------------------------------------------------------------

void Trainer::moment() {
  if (dies_in_chunk_ && world_.chance(6)) throw Killed{};
}

std::span<std::uint64_t> Trainer::chunk_of(Held& held, std::int64_t chunk) {
  const Layout::Range range = held.layout.chunk(held.rank, static_cast<int>(chunk));
  return std::span(held.memory.values).subspan(range.begin, range.size);
}

// Chunk `chunk` in its slot; while it is half written, the other thread updates `other`, −1: none.
void Trainer::update(Held& held, int slot, int chunk, int other) {
  const std::span<std::uint64_t> values = chunk_of(held, chunk);
  const std::span<std::byte> part = std::as_writable_bytes(values);
  const CommitRecord& step = held.transaction.committed();
  const std::uint64_t* reduced =
      held.memory.reduced.data() + held.layout.chunk(held.rank, chunk).begin;
  held.update_log.run(
      step.step, slot, chunk, std::span(&part, 1),
      [&] {
        std::vector<std::uint64_t> after;
        for (std::size_t i = 0; i < values.size(); ++i)
          after.push_back(updated(values[i], reduced[i], step.grad_norm, step.step));
        std::ranges::fill(values, kGarbage);
        moment();
        if (other >= 0) update(held, 1 - slot, other, -1);
        std::ranges::copy(after, values.begin());
      },
      [&](std::string_view) { moment(); });
}

Task<Trainer::Nothing> Trainer::optimizer_phase(Held& held) {
  const bool is_own = &held == &memory_->own;
  doing_ = is_own ? "updates parameters" : "updates what it keeps";
  const std::int64_t step = held.transaction.committed().step;
  if (run_.options.mistake != Mistake::kRedoWithoutUndo) {
    held.update_log.restore(step, [&held](std::int64_t chunk) {
      return std::vector<std::span<std::byte>>{std::as_writable_bytes(chunk_of(held, chunk))};
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
  if (is_own)
    run_.finished(rank(), place().pid, step, held.layout, held.memory.values);
  else
    run_.kept_finished(held.rank, step, held.layout, held.memory.values);
  co_return Nothing{};
}

}  // namespace troupe::simulation
