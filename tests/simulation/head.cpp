// The simulated head's daemon, as scheduler/head has it: what is decided together is kept with one
// append to the journal, and only then do its commands leave. It may be killed between any two.

#include <algorithm>

#include "cluster.h"
#include "scheduler/control/journal_bytes.h"

namespace troupe::simulation {

using namespace scheduler;

namespace {

constexpr const char* kJournalPath = "journal";
// The head's invariants are looked at after every event where it knows no more nodes, actors and
// groups than this. Where it knows more, once in so many events that about kLookedAtEach of them
// are looked at for each event: that costs about as much as deciding.
constexpr std::size_t kCheckedEachTime = 100;
constexpr std::size_t kLookedAtEach = 20;

}  // namespace

Moment Cluster::moment() const {
  const auto unix_us = std::chrono::duration_cast<std::chrono::microseconds>(
                           world_.timeline.now().time_since_epoch())
                           .count();
  return {world_.timeline.now(), unix_us};
}

void Cluster::start_head() {
  world_.note("head {} starts", ++heads_);
  head_ = std::make_unique<HeadState>(options_.head);
  head_tick_.reset();
  head_dies_in_flush_ = false;
  journal_ = std::make_unique<FileJournal>(disk_, kJournalPath);
  const Status replayed = journal_->replay([this](Delta delta) -> Status {
    const auto* changed = get_if<ActorChanged>(&delta);
    const bool leases = changed != nullptr && changed->lease_generation != 0;
    if (leases && options_.forgets_leases && world_.chance(20)) return {};
    return head_->replay(std::move(delta));
  });
  require(replayed.ok(), "the journal does not replay: {}", replayed.to_string());
  const Status rewritten = journal_->rewrite(head_->snapshot());
  require(rewritten.ok(), "the journal cannot be rewritten: {}", rewritten.to_string());
  if (options_.on_head_start) options_.on_head_start();
  take(head_->resume(moment()));
}

void Cluster::crash_head() {
  if (!head_) return;
  world_.note("the head is killed");
  head_.reset();
  head_frozen_ = false;
  head_later_.clear();
  head_deltas_.clear();
  head_commands_.clear();
  flush_posted_ = false;
  head_dies_in_flush_ = false;
  const auto links = std::exchange(links_, {});
  for (const auto& [id, link] : links) {
    link->head_open = false;
    through(link, link->last_to_far, [link = link] {
      if (std::exchange(link->far_open, false)) link->on_close();
    });
  }
}

void Cluster::freeze_head() {
  if (!head_ || head_frozen_) return;
  world_.note("the head stands still");
  head_frozen_ = true;
}

void Cluster::thaw_head() {
  if (!head_frozen_) return;
  world_.note("the head goes on");
  head_frozen_ = false;
  // Its timers are late, and may be seen before what waits in its sockets.
  if (world_.chance(2)) feed_head(Tick{});
  auto later = std::exchange(head_later_, {});
  while (!later.empty() && head_ && !head_frozen_) {
    const auto what = std::move(later.front());
    later.pop_front();
    what();
  }
  if (head_) head_later_.insert(head_later_.begin(), later.begin(), later.end());
}

void Cluster::when_head_runs(std::function<void()> what) {
  if (head_frozen_) {
    head_later_.push_back(std::move(what));
  } else {
    what();
  }
}

void Cluster::feed_head(Event event) {
  if (!head_) return;
  if (head_frozen_) {
    head_later_.push_back([this, event = std::move(event)] { feed_head(event); });
    return;
  }
  take(head_->apply(std::move(event), moment()));
}

void Cluster::take(Outcome outcome) {
  for (const Delta& delta : outcome.deltas) {
    if (const auto* logged = get_if<EventLogged>(&delta)) {
      world_.note("head: {}", logged->event.text);
      const bool lost = logged->event.kind == "node_died" || logged->event.kind == "node_left";
      if (lost) declared_lost_[logged->event.node_id] = world_.timeline.now();
    }
  }
  check_head();
  if (options_.on_decisions) options_.on_decisions(outcome.deltas);
  std::move(outcome.deltas.begin(), outcome.deltas.end(), std::back_inserter(head_deltas_));
  for (Command& command : outcome.commands) {
    const auto* send = get_if<SendMessage>(&command);
    if (send != nullptr && send->at_once) {
      carry_out(command);
    } else {
      head_commands_.push_back(std::move(command));
    }
  }
  arm_head();
  if (head_deltas_.empty() && head_commands_.empty()) return;
  if (std::exchange(flush_posted_, true)) return;
  // A sync, and what arrives meanwhile is decided with it.
  const Duration takes = world_.chance(40) ? world_.between(1, 30) : world_.between(0.02, 0.3);
  world_.timeline.after(takes, [this, head = heads_] {
    when_head_runs([this, head] {
      if (head_ && heads_ == head) flush_head();
    });
  });
}

void Cluster::check_head() {
  const std::size_t size = head_->nodes().size() + head_->actors().size() + head_->groups().size();
  if (++unchecked_ * kLookedAtEach < size && size > kCheckedEachTime) return;
  unchecked_ = 0;
  const auto broken = head_->broken_invariant();
  require(!broken, "the head: {}", broken.value_or(""));
}

// False: it died in doing so.
bool Cluster::keep_decisions(const std::vector<Delta>& deltas) {
  if (options_.journals_one_by_one && head_dies_in_flush_) {
    for (std::size_t i = 0; i < deltas.size(); ++i) {
      if (world_.random.below(deltas.size()) == 0) return false;
      require(journal_->append(std::span(&deltas[i], 1)).ok(), "the journal is not written");
    }
    return !world_.chance(2);
  }
  const bool tears = head_dies_in_flush_ && world_.chance(2);
  if (tears) disk_.tear_next_append(world_.random);
  const Status kept = journal_->wants_rewrite(journal_bytes(deltas))
                          ? journal_->rewrite(head_->snapshot())
                          : journal_->append(deltas);
  if (tears) return false;
  require(kept.ok(), "the journal is not written: {}", kept.to_string());
  return true;
}

void Cluster::flush_head() {
  flush_posted_ = false;
  const auto deltas = std::exchange(head_deltas_, {});
  auto commands = std::exchange(head_commands_, {});
  if (options_.sends_before_journal && head_dies_in_flush_) return crash_head_after(commands);
  if (!deltas.empty() && !keep_decisions(deltas)) {
    world_.note("the head dies in keeping {} decisions", deltas.size());
    return crash_head();
  }
  for (Command& command : commands) {
    if (head_dies_in_flush_ && world_.chance(2)) return crash_head();
    carry_out(command);
  }
  // What killed it between two commands found none.
  if (head_dies_in_flush_) crash_head();
}

// A planted mistake: what was decided is heard of and was not kept.
void Cluster::crash_head_after(std::vector<Command>& commands) {
  for (Command& command : commands) carry_out(command);
  crash_head();
}

// Planted mistakes.
bool Cluster::is_lost(const wire::ControlMessage& message) {
  if (options_.loses_one_in != 0 && world_.chance(options_.loses_one_in)) return true;
  const bool release = holds_alternative<wire::ReleaseBundles>(message);
  return release && options_.loses_releases && world_.chance(10);
}

void Cluster::carry_out(Command& command) {
  if (auto* send = get_if<SendMessage>(&command)) {
    const auto link = links_.find(send->peer);
    if (link == links_.end() || is_lost(send->message)) return;
    if (const auto* start = get_if<wire::StartActor>(&send->message)) {
      const int node = link->second->node;
      asked_[{start->spec.actor_id, start->generation}] = {
          node == kOutside ? NodeId() : at(node).id, world_.timeline.now(),
          start->spec.on_head_loss};
    }
    const bool answer = holds_alternative<wire::Reply>(send->message);
    if (answer && options_.answers_twice && world_.chance(50)) {
      send_to_far(link->second, send->message);
    }
    send_to_far(link->second, std::move(send->message));
  } else if (const auto* close = get_if<ClosePeer>(&command)) {
    const auto link = links_.find(close->peer);
    if (link == links_.end()) return;
    const PeerId peer = close->peer;
    close_from_head(LinkPtr(link->second));
    feed_head(PeerClosed{peer});
  }
}

void Cluster::arm_head() {
  const auto due = head_->next_deadline();
  if (!due || (head_tick_ && *head_tick_ <= *due)) return;
  head_tick_ = *due;
  const auto run = [this, head = heads_, at = *due] {
    if (!head_ || head != heads_ || head_tick_ != at) return;
    head_tick_.reset();
    feed_head(Tick{});
    const auto next = head_->next_deadline();
    require(!next || *next > world_.timeline.now(), "the head's deadline has passed");
  };
  world_.timeline.after(*due - world_.timeline.now(), [this, run] { when_head_runs(run); });
}

}  // namespace troupe::simulation
