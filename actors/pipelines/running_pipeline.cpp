#include "actors/pipelines/running_pipeline.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <set>

#include "actors/call_ring.h"
#include "runtime/base/machine.h"
#include "runtime/base/random.h"
#include "runtime/base/start_thread.h"
#include "runtime/wire/object_messages.h"
#include "troupe/detail/running_call.h"
#include "troupe/serialize.h"

namespace troupe::detail {
namespace {

using std::chrono::milliseconds;

constexpr Duration kConnectTimeout = std::chrono::seconds(5);
constexpr Duration kRebindPause = milliseconds(20);
// For the word that the pipeline is over to get through.
constexpr std::int64_t kFarewellMs = 100;
// How long results may lie that nobody waits for in get(), while somebody did a moment ago.
constexpr Duration kLookPause = std::chrono::microseconds(300);
constexpr Duration kReaderSleepMax = std::chrono::seconds(1);
// Attempts to take the reading from a thread that has it for a moment.
constexpr int kReadingTries = 64;

// That of a stage, which failed with it.
Status failure_of(std::span<const std::byte> bytes) {
  Decoder in(bytes);
  Status why;
  if (!Codec<Status>::decode(in, why)) return in.status();
  return why.ok() ? error(Code::kProtocol, "a stage failed without saying how") : why;
}

bool may_not_wait(const ActorClient& client) {
  const RunningCall* const call = RunningCall::current();
  return client.loop().in_loop_thread() || (call != nullptr && call->asynchronous());
}

// The owner and its stages may spin where there is a core for each of them.
Duration spin_of(std::size_t processes) {
  PosixFileSystem files;
  const auto cpus = std::min(cpus_of_thread().count(),
                             static_cast<std::size_t>(granted_cpu_count(files, 1 << 20)));
  return processes <= cpus ? kRingSpin : Duration::zero();
}

// Whether the other end of a local socket is there.
bool is_there(int socket) {
  pollfd ended{.fd = socket, .events = POLLRDHUP, .revents = 0};
  return ::poll(&ended, 1, 0) == 0;
}

Status check_draft(const PipelineDraft& draft) {
  TROUPE_RETURN_IF_ERROR(draft.client.status());
  TROUPE_RETURN_IF_ERROR(draft.trouble);
  for (const StageDraft& stage : draft.stages) {
    if (stage.light) {
      return error(Code::kUnsupported,
                   "stage '{}' is a light actor: those of a host share one thread. Give it a "
                   "process of its own (Isolation::kProcess)",
                   stage.name);
    }
    if (std::find(stage.actors.begin(), stage.actors.end(), nullptr) != stage.actors.end()) {
      return error(Code::kFailedPrecondition, "stage '{}' has an empty ActorHandle<{}>", stage.name,
                   stage.interface.type);
    }
  }
  return {};
}

}  // namespace

Status empty_pipeline_error() {
  return Status(Code::kFailedPrecondition, "an empty Pipeline: it was moved from");
}

std::uint32_t PipelineDraft::add(StageDraft stage) {
  stages.push_back(std::move(stage));
  return static_cast<std::uint32_t>(stages.size());
}

// --- its life ------------------------------------------------------------------------------------

Result<std::shared_ptr<PipelineCore>> PipelineCore::create(const PipelineDraft& draft,
                                                           std::uint32_t output,
                                                           const PipelineOptions& options) {
  TROUPE_RETURN_IF_ERROR(check_draft(draft));
  PipelinePlan plan{.in_flight = options.in_flight,
                    .item_bytes_max = options.item_bytes_max,
                    .stages = {},
                    .output = output};
  std::set<ActorId> actors;
  for (const StageDraft& stage : draft.stages) {
    plan.stages.push_back(
        {stage.name, static_cast<std::uint32_t>(stage.actors.size()), stage.inputs});
    for (const ChannelPtr& actor : stage.actors) actors.insert(actor->actor_id());
  }
  TROUPE_RETURN_IF_ERROR(plan.check());
  if (options.item_timeout.count() <= 0 || options.build_timeout.count() <= 0 ||
      options.reconnect_timeout.count() <= 0 || options.item_tries == 0) {
    return error(Code::kInvalidArgument, "PipelineOptions: times and tries are more than nothing");
  }
  // (In milliseconds: as nanoseconds the largest ones are others.)
  if (options.reconnect_timeout.count() > kReconnectMax.count()) {
    return error(Code::kInvalidArgument,
                 "PipelineOptions: reconnect_timeout ({} ms) is at most ten minutes",
                 options.reconnect_timeout.count());
  }
  if (may_not_wait(**draft.client)) {
    return error(Code::kFailedPrecondition, "build() of a pipeline waits: not here");
  }
  auto segment =
      TROUPE_TRY(memory::Segment::create("troupe-pipeline", PipelineMemory::bytes(plan)));
  auto* page = reinterpret_cast<PipelinePage*>(segment.data());
  page->magic = kPipelineMagic;
  page->spin_ns = spin_of(1 + actors.size()).count();
  auto pipeline = std::make_shared<RunningPipeline>(*draft.client, std::move(plan), options,
                                                    draft.stages, std::move(segment));
  if (const Status started = pipeline->start(); !started.ok()) {
    pipeline->end();
    return started;
  }
  return std::shared_ptr<PipelineCore>(std::move(pipeline));
}

RunningPipeline::RunningPipeline(ClientPtr client, PipelinePlan plan, PipelineOptions options,
                                 const std::vector<StageDraft>& stages, memory::Segment segment)
    : client_(std::move(client)),
      plan_(std::move(plan)),
      options_(options),
      number_(client_->work().next_pipeline()),
      segment_(std::move(segment)),
      memory_(segment_.data(), plan_),
      source_(plan_),
      under_way_(plan_.in_flight),
      sleeper_(&memory_.page().owner_word),
      nudger_(&memory_.page().owner_word) {
  SystemRandom random;
  takers_.resize(plan_.channels());
  for (std::uint32_t stage = 0; stage < stages.size(); ++stage) {
    std::vector<std::size_t> seats;
    for (std::uint32_t actor = 0; actor < stages[stage].actors.size(); ++actor) {
      seats.push_back(seats_.size());
      seats_.push_back({.stage = stage,
                        .actor = actor,
                        .interface = stages[stage].interface,
                        .method = stages[stage].method,
                        .id = stages[stage].actors[actor]->actor_id(),
                        .caller = ClientId::make(random)});
    }
    const std::set<std::uint32_t> inputs(stages[stage].inputs.begin(), stages[stage].inputs.end());
    for (const std::uint32_t channel : inputs) takers_[channel].push_back(seats);
  }
}

Status RunningPipeline::start() {
  client_->tell_of_close(weak_from_this());
  client_->work().add(weak_from_this());
  thread_ = TROUPE_TRY(start_thread("take a pipeline's results",
                                    [self = shared_from_this()] { self->read_for_nobody(); }));
  std::vector<ActorId> ids;
  {
    MutexLock lock(mutex_);
    for (const Seat& seat : seats_) ids.push_back(seat.id);
  }
  for (std::size_t index = 0; index < ids.size(); ++index) {
    const auto watch = client_->directory().watch(
        ids[index], "", [weak = weak_from_this(), index](const Result<wire::ActorInfo>& info) {
          if (const auto self = weak.lock()) self->on_actor(index, info);
        });
    MutexLock lock(mutex_);
    seats_[index].watch = watch;
  }
  MutexLock lock(mutex_);
  const bool in_time = changed_.wait_until(
      mutex_, Deadline::after(options_.build_timeout), [this]() TROUPE_NO_ANALYSIS {
        return over() ||
               std::all_of(seats_.begin(), seats_.end(), [](const Seat& s) { return s.bound; });
      });
  if (over()) return over_why_;
  if (in_time) return {};
  return error(Code::kDeadlineExceeded, "stages were not bound within build_timeout: {}",
               unbound_locked());
}

Status RunningPipeline::of_stage(Status why, std::uint32_t stage) const {
  return std::move(why).with("stage", plan_.stages[stage].name);
}

std::string RunningPipeline::unbound_locked() const {
  std::string all;
  for (const Seat& seat : seats_) {
    if (seat.bound) continue;
    all += fmt::format("{}'{}' (actor {}: {}{}{})", all.empty() ? "" : ", ",
                       plan_.stages[seat.stage].name, seat.id.brief(),
                       actor_state_name(seat.info.state), seat.info.pending_why.empty() ? "" : "; ",
                       seat.info.pending_why);
    if (!seat.trouble.ok()) all += ": " + seat.trouble.message();
  }
  return all;
}

void RunningPipeline::closed(const Status& why) {
  fail(why);  // its sockets are unwatched by the loop, which is there still
  MutexLock lock(mutex_);
  client_gone_ = true;
}

void RunningPipeline::fail(Status why) {
  std::vector<UnderWay> items;
  Status told;
  {
    MutexLock lock(mutex_);
    if (over_why_.ok()) over_why_ = std::move(why);
    told = over_why_;
    over_.store(true, std::memory_order_release);
    for (std::uint64_t n = source_.first(); n < source_.next(); ++n) {
      items.push_back(std::move(under_way_[n % plan_.in_flight]));
    }
    for (UnderWay& one : under_way_) one = {};
    for (Seat& seat : seats_) unbind_locked(seat);
    changed_.notify_all();
  }
  nudge();
  Continuations later;
  for (UnderWay& one : items) {
    if (one.item) one.item->end(told, {}, &later);
  }
  hand_over(std::move(later));
}

Status RunningPipeline::close(Deadline deadline) {
  if (may_not_wait(*client_)) {
    return error(Code::kFailedPrecondition, "close() of a pipeline waits: not here");
  }
  {
    MutexLock lock(mutex_);
    if (over()) return over_why_;
    closing_ = true;
  }
  bool empty = false;
  read_until(deadline, [&] {
    MutexLock lock(mutex_);
    empty = source_.empty() && !over();
    return source_.empty() || over();
  });
  Status result;
  if (!empty) result = late();
  {
    MutexLock lock(mutex_);
    if (over()) result = over_why_;
  }
  fail(Status(Code::kCancelled, "the pipeline was closed"));
  end();
  return result;
}

void RunningPipeline::end() {
  if (process_.is_forked()) return;
  fail(Status(Code::kCancelled, "the pipeline has gone"));
  std::vector<Directory::WatchId> watches;
  std::thread thread;
  std::thread relay;
  {
    MutexLock lock(mutex_);
    if (std::exchange(ended_, true)) return;
    client_->work().pipeline_ended(source_.first());
    for (Seat& seat : seats_) {
      if (seat.watch != 0 && !client_gone_) watches.push_back(std::exchange(seat.watch, 0));
    }
    thread = std::move(thread_);
    relay = std::move(relay_);
    if (relay_page_) (void)memory::Waker(&relay_page_->page().host_word).wake();
    changed_.notify_all();
  }
  for (const auto watch : watches) client_->directory().unwatch(watch);
  nudge();
  client_->work().changed();
  if (relay.joinable()) relay.join();
  if (!thread.joinable()) return;
  // (A continuation may let go of the pipeline.)
  if (thread.get_id() == std::this_thread::get_id()) {
    thread.detach();
  } else {
    thread.join();
  }
}

// --- binding -------------------------------------------------------------------------------------

void RunningPipeline::on_actor(std::size_t index, const Result<wire::ActorInfo>& info) {
  if (!info.ok() && head_is_away(info.status())) return;
  Status dead;
  {
    MutexLock lock(mutex_);
    if (over()) return;
    Seat& seat = seats_[index];
    if (!info.ok()) {
      dead = info.status();
    } else if (info->state == wire::ActorState::kDead) {
      dead = error(Code::kActorDied,
                   "the actor of stage '{}' is dead for good, and the pipeline ends with it: {}. "
                   "ActorOptions::max_restarts says how often it is started anew",
                   plan_.stages[seat.stage].name, info->death.to_string());
    } else {
      const bool other = info->generation != seat.info.generation;
      // It is bound to that one; a connection to a machine that is lost does not tell.
      const bool ahead =
          other && std::exchange(seat.ahead, false) && info->node_id == seat.info.node_id;
      if (other && !ahead && seat.bound_generation == seat.info.generation) {
        if (seat.bound_generation > 0) ++seat.respawns;
        process_died_locked(seat);
      }
      const bool changed = other || info->state != seat.info.state;
      seat.info = *info;
      if (ahead) seat.bound_generation = info->generation;
      if (other && !ahead) unbind_locked(seat);
      if (changed && !seat.bound && seat.process != 0) give_up_later_locked(seat);
      connect_locked(index);
    }
    if (!dead.ok()) dead = of_stage(std::move(dead), seat.stage);
  }
  client_->work().changed();
  if (!dead.ok()) fail(std::move(dead));
}

void RunningPipeline::connect_locked(std::size_t index) {
  Seat& seat = seats_[index];
  if (over() || seat.bound || seat.connecting || seat.socket.valid() || seat.line ||
      seat.info.state != wire::ActorState::kAlive) {
    return;
  }
  seat.connecting = true;
  client_->connect_to(
      seat.info, kPipelinePurpose, Deadline::after(kConnectTimeout),
      [weak = weak_from_this(), index, attempt = ++seat.attempt](Result<RawConnection> connection) {
        if (const auto self = weak.lock()) {
          self->on_connected(index, attempt, std::move(connection));
        }
      });
}

void RunningPipeline::retry_later_locked(std::size_t index) {
  if (over()) return;
  client_->loop().call_after(kRebindPause, [weak = weak_from_this(), index] {
    const auto self = weak.lock();
    if (!self) return;
    MutexLock lock(self->mutex_);
    self->connect_locked(index);
  });
}

// From now on. It counts while the head says that the actor runs: one that is started anew, or
// waits for a machine, has the time that this takes.
void RunningPipeline::give_up_later_locked(Seat& seat) {
  const auto index = static_cast<std::size_t>(&seat - seats_.data());
  client_->loop().call_after(
      options_.reconnect_timeout, [weak = weak_from_this(), index, absence = ++seat.absence] {
        const auto self = weak.lock();
        if (!self) return;
        Status late;
        {
          MutexLock lock(self->mutex_);
          const Seat& away = self->seats_[index];
          const bool waits = !away.bound && away.absence == absence && !self->over() &&
                             away.info.state == wire::ActorState::kAlive;
          if (waits) late = self->away_too_long_locked(away);
        }
        if (!late.ok()) self->fail(std::move(late));
      });
}

Status RunningPipeline::away_too_long_locked(const Seat& seat) const {
  return of_stage(
      error(Code::kUnavailable,
            "the connection to its actor on node {} was broken for longer than {} ms "
            "(PipelineOptions::reconnect_timeout), and the pipeline ends: what was under way may "
            "have run. Build it anew",
            seat.info.node_id.brief(), options_.reconnect_timeout.count()),
      seat.stage);
}

void RunningPipeline::on_connected(std::size_t index, std::uint64_t attempt,
                                   Result<RawConnection> connection) {
  MutexLock lock(mutex_);
  Seat& seat = seats_[index];
  if (over() || attempt != seat.attempt) return;
  seat.connecting = false;
  if (!connection.ok()) {
    seat.trouble = connection.status();
    return retry_later_locked(index);
  }
  const bool remote = !connection->same_node || connection->stream.encrypted();
  seat.remote = remote;
  seat.trouble = remote ? offer_remote_locked(index, std::move(*connection))
                        : offer_locked(seat, std::move(*connection));
  if (!seat.trouble.ok()) {
    seat.socket.reset();
    seat.line.reset();
    return retry_later_locked(index);
  }
  if (remote) return;
  client_->loop().watch_readable(seat.socket.get(), [weak = weak_from_this(), index, attempt] {
    if (const auto self = weak.lock()) self->on_message(index, attempt);
  });
}

StageBinding RunningPipeline::binding_locked(const Seat& seat) const {
  const auto& method = seat.interface.methods[seat.method];
  wire::Bind bind{.actor_id = seat.id,
                  .type = std::string(seat.interface.type),
                  .caller = seat.caller,
                  .methods = {},
                  .caller_actor = {},
                  .caller_generation = 0,
                  .generation = 0,
                  .attempt = 0};
  bind.methods.push_back({std::string(method.name), method.hash});
  return {.plan = plan_,
          .stage = seat.stage,
          .actor = seat.actor,
          .first = source_.first(),
          .item_timeout_ms = options_.item_timeout.count(),
          .reconnect_timeout_ms = options_.reconnect_timeout.count(),
          .caller = seat.caller,
          .bind = wire::encode(std::move(bind))};
}

Status RunningPipeline::offer_locked(Seat& seat, RawConnection connection) {
  seat.socket = connection.stream.take_socket();
  return send_stage_message(
      seat.socket.get(),
      {.kind = StageMessage::Kind::kBind, .bytes = encode_value(binding_locked(seat))},
      segment_.fd());
}

void RunningPipeline::on_message(std::size_t index, std::uint64_t attempt) {
  Status refused;
  {
    MutexLock lock(mutex_);
    Seat& seat = seats_[index];
    if (attempt != seat.attempt || !seat.socket.valid()) return;
    auto arrived = receive_stage_message(seat.socket.get());
    Status good = arrived.status();
    if (arrived.ok() && arrived->message.kind == StageMessage::Kind::kRefused) {
      refused = of_stage(failure_of(arrived->message.bytes), seat.stage);
    } else if (arrived.ok()) {
      good = bound_locked(seat, std::move(arrived->fd));
    }
    if (!good.ok()) {
      seat.trouble = std::move(good);
      unbind_locked(seat);
      retry_later_locked(index);
    }
  }
  if (!refused.ok()) fail(std::move(refused));
}

// Whoever gives it something learns where it sleeps, and it, where those sleep whom it gives to.
Status RunningPipeline::bound_locked(Seat& seat, UniqueFd page) {
  seat.page = TROUPE_TRY(
      memory::Segment::adopt(std::move(page), kHostPageBytes, memory::Access::kReadWrite));
  seat.waker = memory::Waker(&reinterpret_cast<HostPage*>(seat.page.data())->host_word);
  seat.binding = seat.process = 0;
  introduce_locked(seat);
  return {};
}

void RunningPipeline::introduce_locked(Seat& seat) {
  seat.bound = true;
  seat.bound_generation = seat.info.generation;
  seat.trouble = {};
  const auto gives = [&](const Seat& from, const Seat& to) {
    const auto& inputs = plan_.stages[to.stage].inputs;
    return std::find(inputs.begin(), inputs.end(), from.stage + 1) != inputs.end();
  };
  const auto tell = [this](const Seat& giver, const Seat& taker) TROUPE_NO_ANALYSIS {
    if (giver.line) return;  // this side wakes whom it gives to
    // (Where it fails its connection is at its end, which comes.)
    (void)send_stage_message(
        giver.socket.get(),
        {.kind = StageMessage::Kind::kPage, .stage = taker.stage, .actor = taker.actor},
        taker.line ? relay_page_->fd() : taker.page.fd());
  };
  for (const Seat& other : seats_) {
    if (!other.bound) continue;
    if (gives(other, seat)) tell(other, seat);
    if (&other != &seat && gives(seat, other)) tell(seat, other);
  }
  (void)seat.waker.wake();
  changed_.notify_all();
}

// The seat's first item that was not delivered.
std::uint64_t RunningPipeline::first_of_locked(const Seat& seat) const {
  const std::uint64_t actors = plan_.stages[seat.stage].actors;
  const std::uint64_t first = source_.first();
  return first + (seat.actor + actors - first % actors) % actors;
}

// What it had in hand may be what killed it: it is taken out after a few tries, before the next
// process is bound.
void RunningPipeline::process_died_locked(Seat& seat) {
  const std::uint32_t channel = seat.stage + 1;
  const std::uint64_t actors = plan_.stages[seat.stage].actors;
  std::uint64_t number = first_of_locked(seat);
  while (number < source_.next() &&
         (memory_.given(channel, number) || memory_.offered(channel, number))) {
    number += actors;
  }
  // What is offered may not be held here yet: the next process makes it again.
  for (std::uint64_t n = first_of_locked(seat); n < source_.next(); n += actors) {
    if (!memory_.offered(channel, n)) continue;
    memory_.reject(channel, n);
    offers_.erase({channel, n});
  }
  const bool in_hand = number < source_.next() &&
                       (seat.remote ? number < seat.sent : memory_.begun(channel, number));
  seat.sent = 0;
  seat.died_with = !in_hand                                       ? 0
                   : seat.died_with > 0 && seat.suspect == number ? seat.died_with + 1
                                                                  : 1;
  seat.suspect = number;
  if (seat.died_with < options_.item_tries) return;
  seat.died_with = 0;
  const Status why = of_stage(
      error(Code::kActorDied,
            "{} processes of its actor have died with this item (PipelineOptions::item_tries)",
            options_.item_tries),
      seat.stage);
  memory_.publish(channel, number, true, encode_value(why));
  wake_takers_locked(channel, number);
  if (channel == plan_.output) nudge();
}

void RunningPipeline::unbind_locked(Seat& seat) {
  ++seat.attempt;
  seat.connecting = false;
  if (std::exchange(seat.bound, false) && seat.process != 0 && !over()) give_up_later_locked(seat);
  seat.page = {};
  seat.waker = {};
  if (seat.line) {
    if (over())
      (void)send_stage_frame(*seat.line, {.kind = RemoteStageFrame::Kind::kOver, .number = 0});
    std::exchange(seat.line, nullptr)->close(over() ? kFarewellMs : 0);
  }
  if (!seat.socket.valid()) return;
  // On the loop's thread, which may be about to look at it.
  auto socket = std::make_shared<UniqueFd>(std::move(seat.socket));
  net::EventLoop& loop = client_->loop();
  loop.post([&loop, socket] {
    loop.unwatch(socket->get());
    socket->reset();
  });
}

// --- actors on other nodes -----------------------------------------------------------------------

Status RunningPipeline::offer_remote_locked(std::size_t index, RawConnection connection) {
  Seat& seat = seats_[index];
  if (!relay_page_) relay_page_ = TROUPE_TRY(HostPageSegment::create());
  if (!relay_.joinable()) {
    relay_ = TROUPE_TRY(start_thread("pass a pipeline's items to other nodes",
                                     [self = shared_from_this()] { self->relay(); }));
  }
  const StageBinding binding = binding_locked(seat);
  seat.next = first_of_locked(seat);
  seat.line = make_remote_line(client_->loop(), std::move(connection.stream),
                               "stage '" + plan_.stages[seat.stage].name + "'");
  const std::uint64_t attempt = seat.attempt;
  seat.line->start({.on_frame = nullptr,
                    .on_attached =
                        [weak = weak_from_this(), index, attempt](std::span<const std::byte> frame,
                                                                  net::Attachment&& attachment) {
                          if (const auto self = weak.lock()) {
                            self->on_frame(index, attempt, frame, attachment.bytes);
                          }
                        },
                    .on_close =
                        [weak = weak_from_this(), index, attempt](const Status& why) {
                          const auto self = weak.lock();
                          if (!self) return;
                          MutexLock lock(self->mutex_);
                          Seat& closed = self->seats_[index];
                          if (attempt != closed.attempt) return;
                          closed.trouble = why;
                          self->unbind_locked(closed);
                          self->retry_later_locked(index);
                        },
                    .on_drained = nullptr});
  return send_stage_frame(*seat.line, {.kind = RemoteStageFrame::Kind::kBind},
                          encode_value(binding));
}

void RunningPipeline::on_frame(std::size_t index, std::uint64_t attempt,
                               std::span<const std::byte> encoded,
                               std::span<const std::byte> bytes) {
  using Kind = RemoteStageFrame::Kind;
  Status refused;
  {
    MutexLock lock(mutex_);
    Seat& seat = seats_[index];
    if (over() || attempt != seat.attempt || !seat.line) return;
    const auto frame = decode_stage_frame(encoded);
    Status good = frame.status();
    if (frame.ok() && frame->kind == Kind::kRefused) {
      refused = of_stage(failure_of(bytes), seat.stage);
    } else if (frame.ok() && frame->kind == Kind::kBound && !seat.bound &&
               seat.process == frame->process && seat.binding != frame->number) {
      // The process lives, and has forgotten what it was passed and gave.
      refused = away_too_long_locked(seat);
    } else if (frame.ok() && frame->kind == Kind::kBound && !seat.bound) {
      // The next process may be there before the head has told of it.
      const bool known = seat.process != 0 && seat.bound_generation == seat.info.generation;
      if (known && seat.process != frame->process) {
        ++seat.respawns;
        process_died_locked(seat);
        seat.ahead = true;
      }
      seat.binding = frame->number;
      seat.process = frame->process;
      seat.waker = memory::Waker(&relay_page_->page().host_word);
      introduce_locked(seat);
    } else if (frame.ok()) {
      good = output_locked(seat, *frame, bytes);
    }
    if (!good.ok()) {
      seat.trouble = std::move(good);
      unbind_locked(seat);
      retry_later_locked(index);
    }
  }
  if (!refused.ok()) fail(std::move(refused));
}

Status RunningPipeline::output_locked(const Seat& seat, const RemoteStageFrame& frame,
                                      std::span<const std::byte> bytes) {
  const std::uint64_t number = frame.number;
  if (frame.kind != RemoteStageFrame::Kind::kOutput || !seat.bound || number >= source_.next() ||
      number % plan_.stages[seat.stage].actors != seat.actor ||
      bytes.size() > plan_.item_bytes_max) {
    return error(Code::kProtocol, "an actor of stage '{}' said something out of turn",
                 plan_.stages[seat.stage].name);
  }
  const std::uint32_t channel = seat.stage + 1;
  if (memory_.given(channel, number) || memory_.offered(channel, number)) return {};
  if (const std::uint32_t references = frame.reference_bytes; references > 0) {
    if (frame.failed || references > bytes.size()) {
      return error(Code::kProtocol, "an output that refers to more than it says");
    }
    memory_.offer(channel, number, bytes.first(bytes.size() - references), bytes.last(references));
    nudge();
    return {};
  }
  memory_.publish(channel, number, frame.failed, bytes);
  wake_takers_locked(channel, number);
  if (channel == plan_.output) nudge();
  return {};
}

void RunningPipeline::wake_takers_locked(std::uint32_t channel, std::uint64_t number) {
  for (const auto& seats : takers_[channel]) {
    Seat& seat = seats_[seats[number % seats.size()]];
    if (seat.bound) (void)seat.waker.wake();
  }
}

// What those on other nodes can be sent now, in order. Each item lies where it is until they have
// given what they make of it; one that is sent again they may give at any time.
std::vector<RunningPipeline::Sending> RunningPipeline::to_send_locked() {
  using Kind = RemoteStageFrame::Kind;
  std::vector<Sending> all;
  for (Seat& seat : seats_) {
    if (!seat.line || !seat.bound) continue;
    const PlannedStage& stage = plan_.stages[seat.stage];
    for (; seat.next < source_.next(); seat.next += stage.actors) {
      if (memory_.given(seat.stage + 1, seat.next)) {
        all.push_back({.line = seat.line, .frame = {.kind = Kind::kGiven, .number = seat.next}});
        continue;
      }
      const bool is_there =
          std::all_of(stage.inputs.begin(), stage.inputs.end(),
                      [&](std::uint32_t channel) { return memory_.has(channel, seat.next); });
      if (!is_there) break;
      for (const std::uint32_t channel : stage.inputs) {
        all.push_back({.line = seat.line,
                       .frame = {.kind = Kind::kInput, .channel = channel, .number = seat.next},
                       .again = seat.next < seat.sent});
      }
      seat.sent = std::max(seat.sent, seat.next + 1);
    }
  }
  return all;
}

void RunningPipeline::relay() {
  std::shared_ptr<HostPageSegment> page;
  {
    MutexLock lock(mutex_);
    page = relay_page_;
  }
  memory::Sleeper sleeper(&page->page().host_word);
  const auto send_all = [&] {
    std::vector<Sending> sending;
    {
      MutexLock lock(mutex_);
      if (over()) return true;
      sending = to_send_locked();
    }
    for (Sending& one : sending) {
      std::span<const std::byte> bytes;
      wire::Bytes copy;
      if (one.again) {
        MutexLock lock(mutex_);
        if (!memory_.has(one.frame.channel, one.frame.number)) continue;  // it was delivered
        const PipelineMemory::Item item = memory_.read(one.frame.channel, one.frame.number);
        one.frame.failed = item.failed;
        copy.assign(item.bytes.begin(), item.bytes.end());
        bytes = copy;
      } else if (one.frame.kind == RemoteStageFrame::Kind::kInput) {
        const PipelineMemory::Item item = memory_.read(one.frame.channel, one.frame.number);
        one.frame.failed = item.failed;
        bytes = item.bytes;
      }
      if (send_stage_frame(*one.line, one.frame, bytes).ok()) continue;
      MutexLock lock(mutex_);
      for (std::size_t index = 0; index < seats_.size(); ++index) {
        if (seats_[index].line != one.line) continue;
        unbind_locked(seats_[index]);
        retry_later_locked(index);
      }
    }
    return !sending.empty();
  };
  while (!over()) {
    if (send_all()) continue;
    sleeper.announce(memory::WaitState::kAsleep);
    if (!send_all()) sleeper.sleep(kReaderSleepMax);
    sleeper.awake();
  }
}

// --- items ---------------------------------------------------------------------------------------

Status RunningPipeline::push(PackedArguments value, std::shared_ptr<PipelineItem> item,
                             Deadline deadline) {
  if (process_.is_forked()) return ProcessStamp::forked_error();
  if (value.bytes.size() > plan_.item_bytes_max) {
    return error(Code::kResourceExhausted,
                 "an item of {} bytes, and the pipeline's channels hold {}: set "
                 "PipelineOptions::item_bytes_max, or pass an ObjectRef",
                 value.bytes.size(), plan_.item_bytes_max);
  }
  for (;;) {
    {
      MutexLock lock(mutex_);
      if (over()) return over_why_;
      if (closing_) return Status(Code::kFailedPrecondition, "the pipeline is being closed");
      if (!source_.full()) {
        const std::uint64_t number = source_.push();
        const wire::Bytes bytes = std::move(value.bytes);
        under_way_[number % plan_.in_flight] = {std::move(item), std::move(value)};
        memory_.publish(0, number, false, bytes);
        wake_takers_locked(0, number);
        client_->work().changed();
        return {};
      }
    }
    if (deadline.passed() || may_not_wait(*client_)) break;
    read_until(deadline, [this] {
      MutexLock lock(mutex_);
      return !source_.full() || over();
    });
  }
  return error(Code::kOverloaded, "no room in the pipeline: {}", late().message());
}

RunningPipeline::Seat& RunningPipeline::maker_locked(Output output) {
  const std::uint32_t stage = output.first - 1;
  const std::uint64_t actor = output.second % plan_.stages[stage].actors;
  return *std::find_if(seats_.begin(), seats_.end(), [&](const Seat& seat) {
    return seat.stage == stage && seat.actor == actor;
  });
}

void RunningPipeline::take_offers() {
  if (!has_offer()) return;
  offers_seen_.store(memory_.page().offers.load(std::memory_order_seq_cst),
                     std::memory_order_relaxed);
  struct Offer {
    Output output;
    std::uint64_t number;
    ObjectIntake objects;
  };
  std::vector<Offer> all;
  {
    MutexLock lock(mutex_);
    if (over()) return;
    for (std::uint32_t channel = 1; channel < plan_.channels(); ++channel) {
      for (std::uint64_t n = source_.first(); n < source_.next(); ++n) {
        if (!memory_.offered(channel, n) || memory_.given(channel, n) ||
            offers_.contains({channel, n})) {
          continue;
        }
        Offer& offer = all.emplace_back(Offer{{channel, n}, next_offer_++, {}});
        offers_[offer.output] = offer.number;
        const auto message = wire::decode_object(memory_.references(channel, n));
        const auto* const references =
            message.ok() ? get_if<wire::HoldObjects>(&*message) : nullptr;
        if (references == nullptr) continue;
        for (const wire::ObjectRecord& record : references->objects) {
          (void)client_->objects()->arrived(record, offer.objects);
        }
      }
    }
  }
  for (Offer& offer : all) {
    const auto held = [weak = weak_from_this(), output = offer.output, number = offer.number,
                       objects = offer.objects.objects] {
      if (const auto self = weak.lock()) self->on_held(output, number, objects);
    };
    client_->objects()->hold_all_later(std::move(offer.objects), held);
  }
}

void RunningPipeline::on_held(Output output, std::uint64_t offer,
                              std::vector<HeldObjectPtr> objects) {
  const auto [channel, number] = output;
  MutexLock lock(mutex_);
  const auto found = offers_.find(output);
  if (over() || found == offers_.end() || found->second != offer) return;
  offers_.erase(found);
  if (memory_.given(channel, number)) return;  // (by its next process, from what was saved)
  auto& outputs = under_way_[number % plan_.in_flight].outputs;
  std::move(objects.begin(), objects.end(), std::back_inserter(outputs));
  const Seat& maker = maker_locked(output);
  if (maker.bound && (maker.line || is_there(maker.socket.get()))) {
    memory_.accept(channel, number);
    wake_takers_locked(channel, number);
    if (channel == plan_.output) nudge();
    return;
  }
  // It may have died before they were held here. Either its end comes, and the item is made again,
  // or it is bound again.
  if (client_gone_) return;
  client_->loop().call_after(kRebindPause, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->memory_.page().offers.fetch_add(1, std::memory_order_seq_cst);
    self->nudge();
  });
}

bool RunningPipeline::has_result() const {
  return memory_.has(plan_.output, first_.load(std::memory_order_acquire));
}

// In order; each before its slots may be needed again.
void RunningPipeline::take_results(Continuations* later) {
  take_offers();
  while (!over() && has_result()) {
    const std::uint64_t number = first_.load(std::memory_order_relaxed);
    UnderWay done;
    {
      MutexLock lock(mutex_);
      if (number >= source_.next()) return;  // (Somebody scribbled there.)
      done = std::move(under_way_[number % plan_.in_flight]);
    }
    if (done.item) {
      const PipelineMemory::Item result = memory_.read(plan_.output, number);
      done.item->end(result.failed ? failure_of(result.bytes) : Status(), result.bytes, later);
    }
    MutexLock lock(mutex_);
    source_.delivered();
    first_.store(source_.first(), std::memory_order_release);
    if (waiting_ > 0) changed_.notify_all();
  }
}

template <typename Ended>
void RunningPipeline::wait_for_result(Deadline deadline, Ended ended) {
  const auto found = [&] { return has_result() || has_offer() || over() || ended(); };
  if (found()) return;
  const SystemClock clock;
  const Duration spin(memory_.page().spin_ns.load(std::memory_order_relaxed));
  if (spin > Duration::zero() && adaptive_.worthwhile()) {
    const bool in_time = memory::spin_until(std::min(spin, kRingSpin), clock, found);
    adaptive_.ended(in_time);
    if (in_time) return;
  }
  sleeper_.announce(memory::WaitState::kAsleep);
  if (!found()) sleeper_.sleep(std::min(deadline.remaining(clock.now()), kReaderSleepMax));
  sleeper_.awake();
}

void RunningPipeline::help(Deadline deadline, const std::function<bool()>& ended) {
  if (process_.is_forked()) return;
  helped_.fetch_add(1, std::memory_order_relaxed);
  for (int i = 0; !begin_reading(); ++i) {
    if (i == kReadingTries || ended()) return;
    memory::spin_pause();
  }
  Continuations later;
  for (;;) {
    take_results(&later);
    if (!later.empty()) hand_over(std::exchange(later, {}));
    if (over() || ended() || deadline.passed()) break;
    wait_for_result(deadline, ended);
  }
  end_reading();
}

// Takes results, or waits for another thread that does.
template <typename Ended>
void RunningPipeline::read_until(Deadline deadline, Ended ended) {
  while (!ended() && !over() && !deadline.passed()) {
    help(deadline, ended);
    if (ended() || over()) return;
    MutexLock lock(mutex_);
    ++waiting_;
    const std::uint64_t first = source_.first();
    (void)changed_.wait_until(
        mutex_, earlier(deadline, Deadline::after(milliseconds(1))),
        [&]() TROUPE_NO_ANALYSIS { return over() || source_.first() != first; });
    --waiting_;
  }
}

void RunningPipeline::hand_over(Continuations later) {
  if (later.empty()) return;
  {
    MutexLock lock(mutex_);
    if (!ended_) {
      for (auto& one : later) continuations_.push_back(std::move(one));
      later.clear();
      changed_.notify_all();
    }
  }
  nudge();
  for (const auto& one : later) one();
}

void RunningPipeline::nudge() {
  MutexLock lock(nudge_mutex_);
  (void)nudger_.wake();
}

// Where threads wait in get() time and again they take what comes, and to wake this one besides
// would only take time from them: then it looks by the clock for a while.
void RunningPipeline::read_for_nobody() {
  std::uint64_t helped = 0;
  for (;;) {
    Continuations now;
    const bool looks = std::exchange(helped, helped_.load(std::memory_order_relaxed)) != helped;
    if (begin_reading()) {
      take_results(&now);
      const auto work = [&] {
        MutexLock lock(mutex_);
        return ended_ || !continuations_.empty();
      };
      if (now.empty() && !looks && !over()) {
        wait_for_result(Deadline::after(kReaderSleepMax), work);
        take_results(&now);
      }
      end_reading();
    }
    {
      MutexLock lock(mutex_);
      for (auto& one : std::exchange(continuations_, {})) now.push_back(std::move(one));
      if (ended_ && now.empty()) return;
      if (now.empty() && (looks || over() || reading_.load())) {
        (void)changed_.wait_until(
            mutex_, Deadline::after(over() ? kReaderSleepMax : kLookPause),
            [this]() TROUPE_NO_ANALYSIS { return ended_ || !continuations_.empty(); });
      }
    }
    for (const auto& one : now) one();
  }
}

// --- what it says --------------------------------------------------------------------------------

PipelineStatus RunningPipeline::status() const {
  PipelineStatus status;
  MutexLock lock(mutex_);
  status.pushed = source_.next();
  status.delivered = source_.first();
  status.trouble = over_why_;
  for (std::uint32_t i = 0; i < plan_.stages.size(); ++i) {
    const PlannedStage& stage = plan_.stages[i];
    PipelineStageStatus& of = status.stages.emplace_back();
    of.name = stage.name;
    of.actors = stage.actors;
    for (const Seat& seat : seats_) {
      if (seat.stage != i) continue;
      of.bound += seat.bound ? 1 : 0;
      of.respawns += seat.respawns;
    }
    for (std::uint64_t n = source_.first(); n < source_.next(); ++n) {
      const bool came = std::all_of(stage.inputs.begin(), stage.inputs.end(),
                                    [&](std::uint32_t channel) { return memory_.has(channel, n); });
      const bool has = came && !memory_.given(i + 1, n);
      of.waiting += has ? 1 : 0;
      of.has_oldest = of.has_oldest || (has && n == source_.first());
    }
  }
  return status;
}

bool RunningPipeline::tell(wire::Work& work) const {
  const PipelineStatus now = status();
  {
    MutexLock lock(mutex_);
    if (ended_) return false;
  }
  wire::PipelineWork mine{.number = number_,
                          .pushed = now.pushed,
                          .delivered = now.delivered,
                          .in_flight_max = plan_.in_flight,
                          .stages = {},
                          .why = {}};
  for (const PipelineStageStatus& stage : now.stages) {
    mine.stages.push_back({.name = work_text(stage.name),
                           .actors = stage.actors,
                           .bound = stage.bound,
                           .waiting = stage.waiting,
                           .respawns = stage.respawns,
                           .has_oldest = stage.has_oldest});
  }
  if (!now.trouble.ok()) mine.why = work_text(now.trouble.to_string());
  work.pipelines.push_back(std::move(mine));
  return now.trouble.ok() && now.pushed != now.delivered;
}

Status RunningPipeline::late() const {
  const PipelineStatus now = status();
  std::string where;
  for (const PipelineStageStatus& stage : now.stages) {
    if (stage.waiting == 0) continue;
    where += fmt::format("{}'{}' has {}", where.empty() ? "" : ", ", stage.name, stage.waiting);
    if (stage.bound < stage.actors) {
      where += fmt::format(" ({} of its {} actors are not there)", stage.actors - stage.bound,
                           stage.actors);
    }
  }
  return error(Code::kDeadlineExceeded, "{} items have not come out of the pipeline: {}",
               now.pushed - now.delivered, where.empty() ? "they are on their way" : where);
}

}  // namespace troupe::detail
