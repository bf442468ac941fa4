#include "actors/client.h"

#include "actors/actor_spec.h"
#include "actors/objects/object_client.h"
#include "actors/tasks/task_pool.h"
#include "actors/work_reporter.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "actors/head_answer.h"
#include "runtime/base/limits.h"
#include "runtime/wire/spec_size.h"
#include "scheduler/client/actor_words.h"
#include "scheduler/client/ask_node.h"

namespace troupe::detail {
namespace {

// Before the head is asked again to place an actor.
constexpr Duration kPlaceAgainAfter = std::chrono::milliseconds(100);
constexpr std::size_t kChannelsManyMin = 64;

Status closed_error() {
  return Status(Code::kCancelled, "the cluster object of this process was closed");
}

// A wait for an actor is over before the actor is where it should be.
Status late_error(const wire::ActorInfo& actor, const char* what) {
  const std::string node = actor.node_id.empty() ? "" : actor.node_id.brief();
  Status status =
      error(Code::kDeadlineExceeded, "{}: the actor is {} still: {}", what,
            wire::actor_state_name(actor.state), scheduler::actor_waits_for(actor, node));
  status.with("actor", scheduler::actor_label(actor));
  if (!node.empty()) status.with("node", node);
  return status;
}

// "a, b, c and 5 more"
std::string names_of(const std::vector<wire::ActorSpec>& specs) {
  constexpr std::size_t kNamedMax = 3;
  std::string names;
  for (std::size_t i = 0; i < std::min(specs.size(), kNamedMax); ++i) {
    if (i > 0) names += ", ";
    names += specs[i].name.empty() ? specs[i].type : specs[i].name;
  }
  if (specs.size() > kNamedMax) names += fmt::format(" and {} more", specs.size() - kNamedMax);
  return names;
}

}  // namespace

ActorClient::ActorClient(ClientOptions options)
    : options_(std::move(options)),
      sender_(std::make_shared<ArgumentSender>(options_.environment)),
      objects_(std::make_shared<ObjectClient>(
          ObjectClientOptions{.environment = options_.environment,
                              .client_id = options_.client_id,
                              .job_id = options_.job_id,
                              .name = options_.name,
                              .random = options_.random,
                              .nodes = [this](Deadline deadline) -> Result<std::vector<NodeId>> {
                                std::vector<NodeId> alive;
                                for (const auto& node : TROUPE_TRY(nodes(deadline))) {
                                  if (node.state != wire::NodeState::kDead)
                                    alive.push_back(node.node_id);
                                }
                                return alive;
                              }})),
      tasks_(std::make_shared<TaskPools>()),
      work_(std::make_shared<WorkReporter>(options_.environment)) {}

ActorClient::~ActorClient() {
  if (!forked()) return;
  // Their connections must not be closed here.
  MutexLock lock(mutex_);
  keep_forked(new auto(std::move(channels_)));
  keep_forked(new auto(options_.environment));
  keep_forked(new auto(sender_));
  keep_forked(new auto(objects_));
  keep_forked(new auto(tasks_));
  keep_forked(new auto(work_));
}

std::shared_ptr<ActorChannel> ActorClient::channel(ActorId actor_id,
                                                   const ActorInterface& interface) {
  if (forked()) {
    return std::make_shared<ActorChannel>(options_.environment, actor_id, interface, ClientId());
  }
  MutexLock lock(mutex_);
  if (channels_.size() >= channels_many_) forget_channels_locked();
  auto& channel = channels_[{actor_id, interface.methods.data()}];
  // What has ended stays so for those who hold it. Somebody new asks anew: an actor that the head
  // did not know may have been created since.
  if (!channel || channel->over()) {
    channel = std::make_shared<ActorChannel>(options_.environment, actor_id, interface,
                                             ClientId::make(*options_.random));
    if (closed_) channel->fail(closed_error());
  }
  return channel;
}

// Those of actors that have ended, and those that nobody has used or holds: what became of their
// actors they do not know.
void ActorClient::forget_channels_locked() {
  std::erase_if(channels_, [](const auto& entry) {
    const auto& channel = entry.second;
    return channel->over() || (channel.use_count() == 1 && !channel->used());
  });
  channels_many_ = std::max(kChannelsManyMin, 2 * channels_.size());
}

std::size_t ActorClient::channel_count() {
  MutexLock lock(mutex_);
  forget_channels_locked();
  return channels_.size();
}

FutureOptions ActorClient::future_options(ActorId target) const {
  FutureOptions options;
  options.executor = options_.executor;
  if (options.executor) {
    if (auto own = options.executor->of_running()) options.executor = std::move(own);
  }
  if (target == options_.self) options.fulfilled_by = options_.executor;
  return options;
}

Result<wire::ActorSpec> ActorClient::spec_for(const ActorOptions& options,
                                              const ActorInterface& interface,
                                              wire::Bytes constructor_arguments) {
  if (forked()) return ProcessStamp::forked_error();
  wire::ActorSpec spec = TROUPE_TRY(make_spec(options));
  spec.actor_id = ActorId::make(*options_.random);
  spec.type = interface.type;
  // (Hosts of light actors are alike, and get their actors' arguments in calls.)
  const bool beside = constructor_arguments.size() > limits::kSpecArgumentBytesMax &&
                      options.isolation != Isolation::kShared;
  spec.constructor_arguments =
      with_call_limits({options.max_concurrency, options.max_pending_calls},
                       beside ? wire::Bytes() : std::exchange(constructor_arguments, {}));
  const Ownership owner = ownership(options.owner, options.detached);
  spec.job_id = owner.job_id;
  spec.owner = owner.client;
  spec.owner_actor = owner.actor;
  spec.owner_generation = owner.generation;
  TROUPE_RETURN_IF_ERROR(wire::check_size(spec).with("actor", interface.type));
  MutexLock lock(mutex_);
  if (closed_) return closed_error();
  if (!image_) image_ = TROUPE_TRY(options_.image());
  spec.image = *image_;
  spec.lends_cpus = interface.type == kTaskWorkerType;
  if (beside) TROUPE_RETURN_IF_ERROR(sender_->take(spec, std::move(constructor_arguments)));
  return spec;
}

Result<std::shared_ptr<ActorChannel>> ActorClient::create(const ActorOptions& options,
                                                          const ActorInterface& interface,
                                                          PackedArguments constructor_arguments,
                                                          OnRefused on_refused) {
  TROUPE_RETURN_IF_ERROR(objects_->check_own(constructor_arguments.kept));
  auto spec = TROUPE_TRY(spec_for(options, interface, std::move(constructor_arguments.bytes)));
  sender_->keep(spec.actor_id, std::move(constructor_arguments.kept));
  auto channel = this->channel(spec.actor_id, interface);
  place(std::make_shared<const wire::ActorSpec>(std::move(spec)), channel, std::move(on_refused));
  return channel;
}

// Where the head has been away for too long the calls that wait end, and it is asked again, which
// places the actor once: the head knows it by its id.
void ActorClient::place(std::shared_ptr<const wire::ActorSpec> spec,
                        std::shared_ptr<ActorChannel> channel, OnRefused on_refused) {
  directory().create({*spec}, false, false,
                     [weak = weak_from_this(), spec, channel, on_refused](const Status& status) {
                       const auto self = weak.lock();
                       if (self && status.ok()) return self->sender_->begin(spec->actor_id);
                       if (status.ok()) return;
                       if (self && !head_is_away(status)) self->sender_->forget(spec->actor_id);
                       if (!self || !head_is_away(status)) {
                         channel->fail(status);
                         if (on_refused) on_refused(status);
                         return;
                       }
                       channel->fail_waiting(status);
                       self->loop().call_after(kPlaceAgainAfter, [weak, spec, channel, on_refused] {
                         if (const auto client = weak.lock())
                           client->place(spec, channel, on_refused);
                       });
                     });
}

Ownership ActorClient::ownership(Owner owner, bool detached) const {
  Ownership ownership{options_.job_id, options_.client_id, {}, 0};
  if (options_.self.empty() || owner == Owner::kJob || detached) return ownership;
  ownership.actor = options_.self;
  if (owner == Owner::kProcess) ownership.generation = options_.self_generation;
  return ownership;
}

Result<std::shared_ptr<ActorChannel>> ActorClient::get_or_create(const ActorOptions& options,
                                                                 const ActorInterface& interface,
                                                                 PackedArguments arguments,
                                                                 Deadline deadline) {
  auto spec = TROUPE_TRY(spec_for(options, interface, std::move(arguments.bytes)));
  const ActorId new_id = spec.actor_id;
  sender_->keep(new_id, std::move(arguments.kept));
  const auto id = wait_for_head<ActorId>(deadline, "getting or creating an actor", [&](auto done) {
                    directory().get_or_create(std::move(spec), done);
                  }).with("actor", options.name);
  if (id.ok() && *id == new_id) {
    sender_->begin(new_id);
  } else {
    sender_->forget(new_id);
  }
  return channel(TROUPE_TRY(id), interface);
}

Result<std::vector<std::shared_ptr<ActorChannel>>> ActorClient::create_gang(
    std::vector<PlainMember> members, const ActorInterface& interface, bool no_wait,
    Deadline deadline) {
  if (members.empty()) return error(Code::kInvalidArgument, "spawn_gang of no actors");
  for (const auto& member : members) {
    if (member.options.isolation != Isolation::kShared) continue;
    return error(Code::kInvalidArgument,
                 "spawn_gang of light actors: their hosts are placed one by one (spawn_many)");
  }
  std::vector<wire::ActorSpec> specs;
  std::vector<std::shared_ptr<ActorChannel>> channels;
  for (auto& member : members) {
    auto spec = spec_for(member.options, interface, std::move(member.arguments.bytes));
    if (!spec.ok()) {
      for (const auto& before : specs) sender_->forget(before.actor_id);
      return spec.status();
    }
    sender_->keep(spec->actor_id, std::move(member.arguments.kept));
    specs.push_back(std::move(*spec));
    channels.push_back(channel(specs.back().actor_id, interface));
  }
  const std::string names = names_of(specs);
  const Status created =
      wait_for_head<void>(deadline, "creating actors", [&](auto done) {
        options_.environment->directory->create(std::move(specs), true, no_wait, done);
      }).with("actors", names);
  for (const auto& channel : channels) {
    created.ok() ? sender_->begin(channel->actor_id()) : sender_->forget(channel->actor_id());
  }
  if (!created.ok()) return created;
  return channels;
}

Result<wire::ActorInfo> ActorClient::wait_for_actor(
    ActorId actor_id, const std::string& name, Deadline deadline,
    std::function<bool(const wire::ActorInfo&)> enough, const char* what,
    const std::string& namespace_name) {
  struct Seen {
    Mutex mutex;
    std::optional<wire::ActorInfo> last;
  };
  auto seen = std::make_shared<Seen>();
  Directory::WatchId watch = 0;
  auto promise = std::make_shared<Promise<wire::ActorInfo>>();
  auto future = promise->future();
  auto on_actor = [promise, seen, enough](Result<wire::ActorInfo> info) {
    if (info.ok()) {
      MutexLock lock(seen->mutex);
      seen->last = *info;
    }
    if (!info.ok() || enough(*info)) promise->set(std::move(info));
  };
  watch = namespace_name.empty() ? directory().watch(actor_id, name, std::move(on_actor))
                                 : directory().watch_in(namespace_name, name, std::move(on_actor));
  auto info = future.get(deadline);
  options_.environment->directory->unwatch(watch);
  if (info.status().code() != Code::kDeadlineExceeded) return info;
  MutexLock lock(seen->mutex);
  if (!seen->last) {
    return error(Code::kDeadlineExceeded, "{}: the head has not answered in time", what)
        .with("actor", name.empty() ? actor_id.brief() : name);
  }
  return late_error(*seen->last, what);
}

Result<wire::ActorInfo> ActorClient::find_living(const std::string& name,
                                                 const std::string& namespace_name,
                                                 const ActorInterface& interface,
                                                 Deadline deadline) {
  auto info = TROUPE_TRY(wait_for_actor(
                             {}, name, deadline, [](const wire::ActorInfo&) { return true; },
                             "looking for an actor", namespace_name)
                             .with("actor", name));
  if (info.state == wire::ActorState::kDead) {
    return error(Code::kNotFound, "no living actor has this name").with("actor", name);
  }
  if (info.type != interface.type) {
    return error(Code::kInvalidArgument, "the actor is a {}, not a {}", info.type, interface.type)
        .with("actor", name);
  }
  return info;
}

Result<std::shared_ptr<ActorChannel>> ActorClient::find(const std::string& name,
                                                        const std::string& namespace_name,
                                                        const ActorInterface& interface,
                                                        Deadline deadline) {
  const auto info = TROUPE_TRY(find_living(name, namespace_name, interface, deadline));
  return channel(info.actor_id, interface);
}

Status ActorClient::kill(ActorId actor_id, bool allow_restart, std::int64_t grace_ms,
                         const std::string& reason, Deadline deadline) {
  const auto tell = [&] {
    return wait_for_head<void>(deadline, "ending an actor",
                               [&](auto done) {
                                 options_.environment->directory->kill(actor_id, allow_restart,
                                                                       grace_ms, reason, done);
                               })
        .with("actor", actor_id.brief());
  };
  if (grace_ms > 0) return tell();
  // The head goes on calling it alive until its node says that the process is gone: a call made
  // now could still be answered by that process.
  const auto before = TROUPE_TRY(wait_for_actor(
      actor_id, "", deadline, [](const wire::ActorInfo&) { return true; }, "ending an actor"));
  TROUPE_RETURN_IF_ERROR(tell());
  if (before.state != wire::ActorState::kAlive) return {};
  return wait_for_actor(
             actor_id, "", deadline,
             [generation = before.generation](const wire::ActorInfo& now) {
               return now.state != wire::ActorState::kAlive || now.generation > generation;
             },
             "waiting for the end of an actor's process")
      .status();
}

Result<std::optional<std::size_t>> ActorClient::drain(ActorId actor_id,
                                                      std::chrono::milliseconds grace,
                                                      const std::string& reason,
                                                      Deadline deadline) {
  TROUPE_RETURN_IF_ERROR(wait_for_head<void>(deadline, "stopping an actor", [&](auto done) {
                           directory().drain(actor_id, grace.count(), reason, done);
                         }).with("actor", actor_id.brief()));
  const auto info = TROUPE_TRY(wait_for_actor(
      actor_id, "", deadline,
      [](const wire::ActorInfo& i) { return i.state == wire::ActorState::kDead; },
      "stopping an actor"));
  if (info.calls_dropped < 0) return std::optional<std::size_t>();
  return std::optional<std::size_t>(static_cast<std::size_t>(info.calls_dropped));
}

Status ActorClient::wait_for_death(ActorId actor_id, Deadline deadline) {
  return wait_for_actor(
             actor_id, "", deadline,
             [](const wire::ActorInfo& i) { return i.state == wire::ActorState::kDead; },
             "stopping an actor")
      .status();
}

Result<std::vector<wire::NodeInfo>> ActorClient::nodes(Deadline deadline) {
  return wait_for_head<std::vector<wire::NodeInfo>>(deadline, "listing nodes", [&](auto done) {
    options_.environment->directory->list_nodes(done);
  });
}

Directory::WatchId ActorClient::watch(ActorId actor_id, OnActor on_actor) {
  return options_.environment->directory->watch(
      actor_id, "", [on_actor = std::move(on_actor)](const Result<wire::ActorInfo>& info) {
        if (info.ok()) on_actor(*info);
      });
}

void ActorClient::unwatch(Directory::WatchId watch) {
  options_.environment->directory->unwatch(watch);
}

Result<RawConnection> ActorClient::connect_to(ActorId actor_id, const std::string& purpose,
                                              Deadline deadline) {
  const auto info = TROUPE_TRY(wait_for_actor(
      actor_id, "", deadline,
      [](const wire::ActorInfo& i) {
        return i.state == wire::ActorState::kAlive || i.state == wire::ActorState::kDead;
      },
      "connecting to an actor"));
  if (info.state == wire::ActorState::kDead) {
    return error(Code::kActorDied, "the actor to connect to is dead: {}", info.death.to_string());
  }
  RawConnection connection;
  const net::Address address = options_.environment->address_of(info.node_id, info.endpoint);
  connection.same_node = !address.local_name.empty();
  connection.stream =
      TROUPE_TRY(net::connect_blocking(address, fmt::format("actor/{}/{}", actor_id, purpose),
                                       options_.environment->token, deadline));
  return connection;
}

void ActorClient::connect_to(const wire::ActorInfo& actor, const std::string& purpose,
                             Deadline deadline, std::function<void(Result<RawConnection>)> done) {
  const net::Address address = options_.environment->address_of(actor.node_id, actor.endpoint);
  const bool same_node = !address.local_name.empty();
  net::connect(*options_.environment->loop, address,
               fmt::format("actor/{}/{}", actor.actor_id, purpose), options_.environment->token,
               deadline, [done = std::move(done), same_node](Result<ByteStream> stream) {
                 if (!stream.ok()) return done(stream.status());
                 RawConnection connection;
                 connection.stream = std::move(*stream);
                 connection.same_node = same_node;
                 done(std::move(connection));
               });
}

Result<wire::SegmentBytes> ActorClient::read_segment(ActorId actor_id, const std::string& name,
                                                     std::uint64_t offset, std::size_t bytes_max,
                                                     Deadline deadline) {
  const auto info = TROUPE_TRY(wait_for_actor(
      actor_id, "", deadline,
      [](const wire::ActorInfo& i) {
        return !i.node_id.empty() || i.state == wire::ActorState::kDead;
      },
      "reading a segment"));
  if (info.node_id.empty()) {
    return error(Code::kNotFound, "actor {} never ran: {}", actor_id.brief(),
                 info.death.to_string());
  }
  const net::Address address = options_.environment->address_of(info.node_id, info.endpoint);
  auto answer = TROUPE_TRY(scheduler::ask_node(
      *options_.environment->loop, address, options_.environment->token,
      wire::ReadSegment{1, options_.job_id, name, offset, bytes_max}, deadline));
  auto* piece = get_if<wire::SegmentBytes>(&answer);
  if (piece == nullptr) return error(Code::kProtocol, "the node's answer is no segment");
  TROUPE_RETURN_IF_ERROR(piece->status.with("segment", name));
  return std::move(*piece);
}

void ActorClient::lend_cpus(bool back) {
  if (!forked()) directory().lend_cpus(options_.self, options_.self_generation, back);
}

void ActorClient::tell_of_close(const std::weak_ptr<Closing>& who) {
  bool closed = false;
  {
    MutexLock lock(mutex_);
    std::erase_if(closings_, [](const auto& before) { return before.expired(); });
    closed = closed_;
    if (!closed) closings_.push_back(who);
  }
  const auto alive = closed ? who.lock() : nullptr;
  if (alive) alive->closed(closed_error());
}

void ActorClient::close() {
  if (forked()) return;
  std::vector<std::shared_ptr<ActorChannel>> channels;
  std::vector<std::weak_ptr<Closing>> closings;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    closed_ = true;
    for (auto& [key, channel] : channels_) channels.push_back(std::move(channel));
    channels_.clear();
    closings.swap(closings_);
  }
  work_->close();
  tasks_->close(closed_error());
  for (const auto& channel : channels) channel->close(closed_error());
  objects_->close();
  sender_->close();
  options_.environment->directory->close();
  for (const auto& who : closings) {
    if (const auto alive = who.lock()) alive->closed(closed_error());
  }
}

}  // namespace troupe::detail
