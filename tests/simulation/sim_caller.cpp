#include "sim_caller.h"

#include <array>
#include <cstring>

namespace troupe::simulation {

using namespace troupe::detail;

namespace {

constexpr std::array<MethodSignature, 4> kSimMethods = {
    MethodSignature{"add", 1}, MethodSignature{"relay", 2}, MethodSignature{"count", 3},
    MethodSignature{"look", 4}};

template <typename T>
wire::Bytes as_wire_bytes(const T& value) {
  wire::Bytes bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}
template <typename T>
T from_wire_bytes(std::span<const std::byte> bytes) {
  T value;
  require(bytes.size() == sizeof value, "{} bytes arrive in place of {}", bytes.size(),
          sizeof value);
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

}  // namespace

const ActorInterface kSimInterface{"Sim", kSimMethods, false, true};

wire::Bytes to_bytes(const SimArguments& arguments) { return as_wire_bytes(arguments); }
wire::Bytes to_bytes(const SimResult& result) { return as_wire_bytes(result); }
SimArguments arguments_from(std::span<const std::byte> bytes) {
  return from_wire_bytes<SimArguments>(bytes);
}
SimResult result_from(std::span<const std::byte> bytes) {
  return from_wire_bytes<SimResult>(bytes);
}

// A caller's connection on its way through the node to the process: where nobody takes it, it ends.
struct WireToProcess final : CallerConnection {
  explicit WireToProcess(std::shared_ptr<CallWire> w) : wire(std::move(w)) {}
  ~WireToProcess() override {
    if (!taken) wire->die(true, true);
  }
  const std::shared_ptr<CallWire> wire;
  bool taken = false;
};

std::shared_ptr<CallWire> take_wire(const MemoryPtr& memory) {
  auto& arrived = dynamic_cast<WireToProcess&>(*memory);
  arrived.taken = true;
  return arrived.wire;
}

// --- one actor -----------------------------------------------------------------------------------

struct SimCaller::Channel {
  explicit Channel(CallerSession::Config config) : session(config) {}
  CallerSession session;
  scheduler::WatchId watch = 0;
  std::shared_ptr<CallWire> wire;  // the newest
  std::optional<TimePoint> armed;
  std::uint64_t generation = 0;  // the newest that the head has told of
};

class SimCaller::Sink final : public CallSink {
 public:
  Sink(OnEnd on_end, OnItem on_item) : on_end_(std::move(on_end)), on_item_(std::move(on_item)) {}
  void answer(const Status& status, std::span<const std::byte> result, Continuations*) override {
    if (!on_end_) return;
    if (!status.ok()) return on_end_(status);
    on_end_(result_from(result));
  }
  void abandon() override {}
  void item(std::uint64_t index, std::span<const std::byte>) override {
    if (on_item_) on_item_(index);
  }

 private:
  const OnEnd on_end_;
  const OnItem on_item_;
};

SimCaller::SimCaller(Cluster& cluster, SimHeadClient& head, Identity identity,
                     SimHeadClient::After after)
    : cluster_(cluster),
      world_(cluster.world()),
      head_(head),
      identity_(std::move(identity)),
      after_(std::move(after)) {}

SimCaller::~SimCaller() = default;

std::shared_ptr<SimCaller::Channel> SimCaller::channel(ActorId actor) {
  auto& channel = channels_[actor];
  if (!channel) {
    channel =
        std::make_shared<Channel>(CallerSession::Config{.actor_id = actor,
                                                        .interface = kSimInterface,
                                                        .caller = ClientId::make(world_.random),
                                                        .self = identity_.self,
                                                        .self_generation = identity_.generation});
  }
  return channel;
}

void SimCaller::apply(const std::shared_ptr<Channel>& channel,
                      const std::function<void(CallerSession&, CallerOutcome&)>& event) {
  if (dead_) return;
  CallerOutcome out;
  event(channel->session, out);
  carry_out(channel, std::move(out));
  if (!dead_) arm(channel);
}

void SimCaller::arm(const std::shared_ptr<Channel>& channel) {
  const auto due = channel->session.next_time();
  if (!due || (channel->armed && *channel->armed <= *due)) return;
  channel->armed = due;
  after_(std::max(*due - world_.timeline.now(), Duration::zero()), [this, channel, at = *due] {
    if (channel->armed != at) return;
    channel->armed.reset();
    apply(channel, [&](CallerSession& session, CallerOutcome& out) {
      session.on_time(world_.timeline.now(), out);
    });
  });
}

void SimCaller::carry_out(const std::shared_ptr<Channel>& channel, CallerOutcome out) {
  if (out.find) {
    // Not from within what asked, as the directory has it.
    after_(Duration::zero(), [this, channel] {
      channel->watch =
          head_.watch(channel->session.config().actor_id, "",
                      [this, channel](const troupe::Result<wire::ActorInfo>& info, bool) {
                        if (info.ok()) channel->generation = info->generation;
                        apply(channel, [&](CallerSession& session, CallerOutcome& outcome) {
                          session.on_actor(info, world_.timeline.now(), outcome);
                        });
                      });
    });
  }
  if (out.stop_finding && channel->watch != 0) {
    head_.unwatch(std::exchange(channel->watch, 0));
  }
  for (const auto& link : out.closed) link->close();
  if (out.connect) connect(channel, *out.connect);
  if (out.item_sink) out.item_sink->item(out.item.index, out.item.item);
  for (auto& [request, result] : out.ended) {
    request.sink.answer(result.status(), result.ok() ? std::span<const std::byte>(*result)
                                                     : std::span<const std::byte>());
  }
  if (!out.superseded.ok() && on_superseded_) on_superseded_();
}

void SimCaller::connect(const std::shared_ptr<Channel>& channel, const CallerOutcome::Connect& to) {
  // The name of the node is in the port (Cluster::start_daemon).
  const int node = to.endpoint.port - 1000;
  after_(world_.delay(), [this, channel, node, attempt = to.attempt] {
    auto wire = std::make_shared<CallWire>(world_);
    const Status connected =
        cluster_.connect_actor(cluster_.node_id(node), channel->session.config().actor_id,
                               std::make_shared<WireToProcess>(wire));
    // (The channel owns its wires, and these live in them.)
    const auto tell = [this, weak = std::weak_ptr(channel)](auto event) {
      const auto alive = weak.lock();
      if (!alive) return;
      apply(alive, [&](CallerSession& session, CallerOutcome& out) {
        event(session, world_.timeline.now(), out);
      });
    };
    if (!connected.ok()) {
      return tell([&](CallerSession& session, TimePoint now, CallerOutcome& out) {
        static_cast<void>(session.on_connected(attempt, connected, now, out));
      });
    }
    channel->wire = wire;
    auto link = wire->begin(
        {.run = [this](std::function<void()> what) { after_(Duration::zero(), std::move(what)); },
         .on_message =
             [this, tell, attempt, weak = std::weak_ptr(channel),
              of = wire.get()](wire::CallMessage message) {
               const auto alive = weak.lock();
               const auto* back = std::get_if<wire::CallGivenBack>(&message);
               // What arrives on a link that was left before is not heard.
               const bool heard = alive && alive->wire.get() == of && alive->session.link();
               if (back != nullptr && heard) {
                 observer_.on_given_back(arguments_from(back->arguments).call);
               }
               tell([&](CallerSession& session, TimePoint now, CallerOutcome& out) {
                 session.on_message(attempt, std::move(message), std::nullopt, now, out);
               });
             },
         .on_room =
             [tell, attempt] {
               tell([&](CallerSession& session, TimePoint, CallerOutcome& out) {
                 session.on_writable(attempt, out);
               });
             },
         .on_ended =
             [tell, attempt] {
               tell([&](CallerSession& session, TimePoint now, CallerOutcome& out) {
                 session.on_ended(attempt, error(Code::kUnavailable, "it broke"), now, out);
               });
             },
         .on_sent =
             [this](std::span<const std::byte> arguments) {
               observer_.on_sent(arguments_from(arguments).call);
             }});
    bool wanted = false;
    tell([&](CallerSession& session, TimePoint now, CallerOutcome& out) {
      wanted = session.on_connected(attempt, link, now, out);
    });
    if (!wanted) link->close();
  });
}

// --- calls ---------------------------------------------------------------------------------------

std::uint64_t SimCaller::call(Call call) {
  std::uint64_t sequence = 0;
  const std::shared_ptr<Channel> channel = this->channel(call.target);
  // Whoever knows a newer process does not ask the older one.
  OnEnd on_end = [this, generation = channel->generation,
                  on_end = std::move(call.on_end)](const troupe::Result<SimResult>& result) {
    require(!result.ok() || result->generation >= generation,
            "{} is answered by process {} of an actor, and knew process {} when it asked",
            identity_.name, result.ok() ? result->generation : 0, generation);
    if (on_end) on_end(result);
  };
  apply(channel, [&](CallerSession& session, CallerOutcome& out) {
    sequence = session.call(
        {.method = call.method,
         .arguments = to_bytes(call.arguments),
         .deadline = Deadline::at(call.deadline),
         .retry = call.retry,
         .sink = CallSinkRef(std::make_shared<Sink>(std::move(on_end), std::move(call.on_item))),
         .stream_items = call.items},
        out);
  });
  return sequence;
}

void SimCaller::cancel(ActorId target, std::uint64_t sequence) {
  apply(channel(target), [&](CallerSession& session, CallerOutcome&) {
    static_cast<void>(session.cancel(sequence));
  });
}

void SimCaller::allow_items(ActorId target, std::uint64_t sequence, std::uint64_t items) {
  apply(channel(target),
        [&](CallerSession& session, CallerOutcome&) { session.allow_items(sequence, items); });
}

std::shared_ptr<CallWire> SimCaller::any_wire() {
  std::vector<std::shared_ptr<CallWire>> wires;
  for (const auto& [actor, channel] : channels_) {
    if (channel->wire && !channel->wire->over()) wires.push_back(channel->wire);
  }
  return wires.empty() ? nullptr : wires[world_.random.below(wires.size())];
}

void SimCaller::die(bool told) {
  dead_ = true;
  for (const auto& [actor, channel] : channels_) {
    if (channel->wire) channel->wire->die(false, told);
  }
}

}  // namespace troupe::simulation
