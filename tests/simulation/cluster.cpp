// The connections, the calls between processes.

#include "cluster.h"

#include <algorithm>
#include <type_traits>

namespace troupe::simulation {

using namespace scheduler;
using std::chrono::milliseconds;

namespace {

constexpr std::size_t kDescribedMax = 4000;  // characters, of a report

template <typename Message, typename... Others>
constexpr bool kOneOf = (std::is_same_v<Message, Others> || ...);

// Of a generation or an attempt: hearing it twice is hearing it once.
template <typename Message>
constexpr bool kSaidTwice =
    kOneOf<Message, wire::StartActor, wire::StopActor, wire::PrepareBundles, wire::CommitBundles,
           wire::ReleaseBundles, wire::ActorStarted, wire::ActorReady, wire::ActorExited,
           wire::BundlesPrepared, wire::ActorUpdate, wire::PlacementGroupUpdate>;

}  // namespace

Cluster::Cluster(World& world, ClusterOptions options, Factory factory)
    : world_(world), options_(std::move(options)), factory_(std::move(factory)) {
  nodes_.resize(static_cast<std::size_t>(options_.nodes));
  start_head();
  if (!options_.boots_all) return;
  for (int node = 0; node < options_.nodes; ++node) boot_node(node);
}

Cluster::~Cluster() = default;

bool Cluster::whole() const {
  return head_ != nullptr && !head_frozen_ &&
         std::all_of(nodes_.begin(), nodes_.end(), [](const Node& node) {
           return !node.up || (!node.is_cut && !node.frozen && node.state != nullptr);
         });
}

bool Cluster::node_well(int number) const {
  const Node& node = at(number);
  return node.up && !node.is_cut && !node.frozen && node.state != nullptr;
}

// --- connections ---------------------------------------------------------------------------------

LinkPtr Cluster::connect(int node, std::function<void(wire::ControlMessage)> on_message,
                         std::function<void()> on_close) {
  if (!head_ || head_frozen_ || is_cut(node)) return nullptr;
  auto link = std::make_shared<Link>();
  link->id = next_peer_++;
  link->node = node;
  link->on_message = std::move(on_message);
  link->on_close = std::move(on_close);
  links_[link->id] = link;
  if (node == kOutside) return link;
  auto& ends = nodes_[static_cast<std::size_t>(node)].links;
  std::erase_if(ends, [](const auto& end) { return end.expired(); });
  ends.push_back(link);
  return link;
}

void Cluster::through(const LinkPtr& link, TimePoint& last, std::function<void()> what) {
  const TimePoint at = std::max(last, world_.timeline.now() + world_.delay());
  last = at;
  world_.timeline.after(at - world_.timeline.now(), [this, link, what = std::move(what)] {
    if (is_cut(link->node) || !link->held.empty()) {
      link->held.push_back(what);
    } else {
      what();
    }
  });
}

void Cluster::flush(const LinkPtr& link) {
  while (!link->held.empty() && !is_cut(link->node)) {
    const auto what = std::move(link->held.front());
    link->held.pop_front();
    what();
  }
}

bool Cluster::is_repeated(const wire::ControlMessage& message) {
  const bool can_be =
      visit([](const auto& m) { return kSaidTwice<std::decay_t<decltype(m)>>; }, message);
  return can_be && options_.repeats_one_in != 0 && world_.chance(options_.repeats_one_in);
}

void Cluster::send_to_head(const LinkPtr& link, wire::ControlMessage message) {
  if (!link || !link->far_open) return;
  const int times = is_repeated(message) ? 2 : 1;
  through(link, link->last_to_head, [this, link, times, message = std::move(message)] {
    for (int i = 0; i < times; ++i) {
      const bool arrives = link->far_open || !link->loses;
      if (link->head_open && arrives) feed_head(MessageArrived{link->id, message});
    }
  });
}

void Cluster::send_to_far(const LinkPtr& link, wire::ControlMessage message) {
  if (!link->head_open) return;
  const int times = is_repeated(message) ? 2 : 1;
  through(link, link->last_to_far, [link, times, message = std::move(message)] {
    for (int i = 0; i < times; ++i) {
      if (link->far_open) link->on_message(message);
    }
  });
}

void Cluster::close_from_far(const LinkPtr& link, bool loses) {
  if (!link || !std::exchange(link->far_open, false)) return;
  link->loses = loses;
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

Status Cluster::connect_actor(NodeId id, ActorId actor,
                              std::shared_ptr<CallerConnection> connection) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || !node_well(found->second)) {
    return Status(Code::kUnavailable, "its node does not answer");
  }
  const int number = found->second;
  TROUPE_RETURN_IF_ERROR(at(number).state->check_actor(actor));
  // By the time the caller has shown who it is, all may be different.
  world_.timeline.after(world_.delay(), [this, number, actor, connection = std::move(connection),
                                         daemon = at(number).daemons]() mutable {
    Node& node = at(number);
    if (node.daemons != daemon || !node.state) return;
    const FdHandle fd = hold(node, std::move(connection));
    feed_node(number, node_event::ConnectionArrived{actor, fd, wire::HostConnection{}});
  });
  return {};
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
    Process& caller = *find(from);
    std::uint64_t& newest = callers_[{pid, caller.place().spec.actor_id}];
    if (caller.place().incarnation < newest) {
      return kill(caller, "a process that its successor has called refuses it");
    }
    newest = caller.place().incarnation;
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
  std::string text = head_frozen_ ? "head frozen" : head_ ? "head up" : "head down";
  if (head_) {
    for (const auto& [id, actor] : head_->actors()) {
      if (actor.info.state == wire::ActorState::kAlive || actor.dead()) continue;
      text +=
          fmt::format("; {} {} is {} (generation {})", actor.spec.type, actor.spec.actor_id.brief(),
                      wire::actor_state_name(actor.info.state), actor.info.generation);
      if (text.size() > kDescribedMax) return text + " …";
    }
  }
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (node.up && node.state && !node.is_cut && !node.frozen && node.state->registered()) continue;
    text += fmt::format("; node {}:{}{}{}{}{}", i, node.up ? "" : " down",
                        node.state ? "" : " without daemon", node.is_cut ? " cut" : "",
                        node.frozen ? " frozen" : "",
                        node.state && !node.state->registered() ? " not registered" : "");
    if (text.size() > kDescribedMax) return text + " …";
  }
  for (const auto& [pid, process] : processes_) {
    if (process->alive() && process->stopped())
      text += fmt::format("; {} stopped", process->label());
  }
  return text;
}

}  // namespace troupe::simulation
