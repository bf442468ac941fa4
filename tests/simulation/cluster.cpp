// The head, its journal, the connections, the calls between processes.

#include "cluster.h"

#include <algorithm>

#include "scheduler/policy/resources.h"

namespace troupe::simulation {

using namespace scheduler;
using std::chrono::milliseconds;

Cluster::Cluster(World& world, Factory factory) : world_(world), factory_(std::move(factory)) {
  start_head();
  nodes_.resize(static_cast<std::size_t>(world.options.nodes));
  for (int node = 0; node < world.options.nodes; ++node) boot_node(node);
}

Cluster::~Cluster() = default;

bool Cluster::whole() const {
  return head_ != nullptr && std::all_of(nodes_.begin(), nodes_.end(), [](const Node& node) {
           return node.up && !node.is_cut && node.state != nullptr;
         });
}

// --- the head ------------------------------------------------------------------------------------

void Cluster::start_head() {
  world_.note("head {} starts", ++heads_);
  head_ = std::make_unique<HeadState>(head_config_);
  head_tick_.reset();
  for (const auto& record : journal_) {
    const auto delta = decode_delta(record);
    require(delta.ok(), "the journal does not decode: {}", delta.status().to_string());
    const Status replayed = head_->replay(*delta);
    require(replayed.ok(), "the journal does not replay: {}", replayed.to_string());
  }
  const auto unix_us = std::chrono::duration_cast<std::chrono::microseconds>(
                           world_.timeline.now().time_since_epoch())
                           .count();
  take(head_->resume({world_.timeline.now(), unix_us}));
}

void Cluster::crash_head() {
  if (!head_) return;
  world_.note("the head is killed");
  head_.reset();
  const auto links = std::exchange(links_, {});
  for (const auto& [id, link] : links) {
    link->head_open = false;
    through(link, link->last_to_far, [link] {
      if (std::exchange(link->far_open, false)) link->on_close();
    });
  }
}

void Cluster::feed_head(Event event) {
  if (!head_) return;
  const auto unix_us = std::chrono::duration_cast<std::chrono::microseconds>(
                           world_.timeline.now().time_since_epoch())
                           .count();
  take(head_->apply(std::move(event), {world_.timeline.now(), unix_us}));
}

void Cluster::take(const Outcome& outcome) {
  for (const Delta& delta : outcome.deltas) {
    journal_.push_back(encode_delta(delta));
    if (const auto* logged = std::get_if<EventLogged>(&delta)) {
      world_.note("head: {}", logged->event.text);
    }
  }
  for (const Command& command : outcome.commands) {
    if (const auto* send = std::get_if<SendMessage>(&command)) {
      const auto link = links_.find(send->peer);
      if (link != links_.end()) send_to_far(link->second, send->message);
    } else if (const auto* close = std::get_if<ClosePeer>(&command)) {
      const auto link = links_.find(close->peer);
      if (link != links_.end()) close_from_head(LinkPtr(link->second));
    }
  }
  const auto broken = head_->broken_invariant();
  require(!broken, "the head: {}", broken.value_or(""));
  arm_head();
}

void Cluster::arm_head() {
  const auto due = head_->next_deadline();
  if (!due || (head_tick_ && *head_tick_ <= *due)) return;
  head_tick_ = *due;
  world_.timeline.after(*due - world_.timeline.now(), [this, head = heads_, at = *due] {
    if (!head_ || head != heads_ || head_tick_ != at) return;
    head_tick_.reset();
    feed_head(Tick{});
    const auto next = head_->next_deadline();
    require(!next || *next > world_.timeline.now(), "the head's deadline has passed");
  });
}

// --- connections ---------------------------------------------------------------------------------

LinkPtr Cluster::connect(int node, std::function<void(wire::ControlMessage)> on_message,
                         std::function<void()> on_close) {
  if (!head_ || nodes_[static_cast<std::size_t>(node)].is_cut) return nullptr;
  auto link = std::make_shared<Link>();
  link->id = next_peer_++;
  link->node = node;
  link->on_message = std::move(on_message);
  link->on_close = std::move(on_close);
  links_[link->id] = link;
  auto& ends = nodes_[static_cast<std::size_t>(node)].links;
  std::erase_if(ends, [](const auto& end) { return end.expired(); });
  ends.push_back(link);
  return link;
}

void Cluster::through(const LinkPtr& link, TimePoint& last, std::function<void()> what) {
  const TimePoint at = std::max(last, world_.timeline.now() + world_.delay());
  last = at;
  world_.timeline.after(at - world_.timeline.now(), [this, link, what = std::move(what)] {
    if (nodes_[static_cast<std::size_t>(link->node)].is_cut || !link->held.empty()) {
      link->held.push_back(what);
    } else {
      what();
    }
  });
}

void Cluster::flush(const LinkPtr& link) {
  while (!link->held.empty() && !nodes_[static_cast<std::size_t>(link->node)].is_cut) {
    const auto what = std::move(link->held.front());
    link->held.pop_front();
    what();
  }
}

void Cluster::send_to_head(const LinkPtr& link, wire::ControlMessage message) {
  if (!link || !link->far_open) return;
  through(link, link->last_to_head, [this, link, message = std::move(message)] {
    if (link->head_open && link->far_open) feed_head(MessageArrived{link->id, message});
  });
}

void Cluster::send_to_far(const LinkPtr& link, wire::ControlMessage message) {
  if (!link->head_open) return;
  through(link, link->last_to_far, [link, message = std::move(message)] {
    if (link->far_open) link->on_message(message);
  });
}

void Cluster::close_from_far(const LinkPtr& link) {
  if (!link || !std::exchange(link->far_open, false)) return;
  through(link, link->last_to_head, [this, link] {
    if (!std::exchange(link->head_open, false)) return;
    links_.erase(link->id);
    feed_head(PeerClosed{link->id});
  });
}

void Cluster::close_from_head(const LinkPtr& link) {
  if (!std::exchange(link->head_open, false)) return;
  links_.erase(link->id);
  through(link, link->last_to_far, [link] {
    if (std::exchange(link->far_open, false)) link->on_close();
  });
}

// --- calls ---------------------------------------------------------------------------------------

void Cluster::call(Process& from, ActorId to, Call call) {
  Route& route = routes_[{from.place().pid, to}];
  route.until.push_back(world_.timeline.now() + call.timeout);
  route.calls.push_back(std::move(call));
  if (!std::exchange(route.busy, true)) pump(from.place().pid, to);
}

void Cluster::pump(std::uint64_t from, ActorId to) {
  Process* sender = find(from);
  Route& route = routes_[{from, to}];
  if (sender == nullptr || !sender->alive() || route.calls.empty()) {
    route.busy = false;
    return;
  }
  const auto next = [this, from, to] {
    Route& done = routes_[{from, to}];
    done.calls.pop_front();
    done.until.pop_front();
    pump(from, to);
  };
  world_.timeline.after(world_.delay(), [this, from, to, next] {
    Route& waiting = routes_[{from, to}];
    Call& first = waiting.calls.front();
    Process* target = ready_process(to);
    if (target == nullptr) {
      if (waiting.until.front() > world_.timeline.now()) {
        world_.timeline.after(world_.between(5, 40), [this, from, to] { pump(from, to); });
        return;
      }
      Process* caller = find(from);
      if (first.failed && caller->alive()) caller->later(Duration::zero(), first.failed);
      return next();
    }
    const std::uint64_t pid = target->place().pid;
    target->later(Duration::zero(), [target, what = first.what] { what(*target); });
    if (!first.repeats) return next();
    world_.timeline.after(world_.delay(), [this, from, to, pid, next] {
      // A process that dies before its answer is out may have done it: another one does it again.
      find(pid)->alive() ? next() : pump(from, to);
    });
  });
}

// --- for a report --------------------------------------------------------------------------------

std::string Cluster::describe() const {
  std::string text = head_ ? "head up" : "head down";
  if (head_) {
    for (const auto& [id, actor] : head_->actors()) {
      if (actor.info.state == wire::ActorState::kAlive) continue;
      text += fmt::format("; {} is {} (generation {})", actor.spec.name,
                          wire::actor_state_name(actor.info.state), actor.info.generation);
    }
  }
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (node.up && node.state && !node.is_cut && node.state->registered()) continue;
    text += fmt::format("; node {}:{}{}{}{}", i, node.up ? "" : " down",
                        node.state ? "" : " without daemon", node.is_cut ? " cut" : "",
                        node.state && !node.state->registered() ? " not registered" : "");
  }
  for (const auto& [pid, process] : processes_) {
    if (process->alive() && process->stopped())
      text += fmt::format("; {} stopped", process->label());
  }
  return text;
}

}  // namespace troupe::simulation
