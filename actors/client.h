#pragma once
// What a process needs to create, find and call actors; Cluster (drivers) and ActorContext (actors)
// stand on it.

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/actor_channel.h"
#include "actors/argument_sender.h"
#include "actors/directory.h"
#include "runtime/base/random.h"
#include "runtime/base/status.h"
#include "runtime/net/event_loop.h"
#include "runtime/wire/control_messages.h"
#include "troupe/detail/mutex.h"
#include "troupe/detail/verbs.h"
#include "troupe/executor.h"
#include "troupe/future.h"
#include "troupe/options.h"
#include "troupe/raw_connection.h"
#include "troupe/unique_fd.h"

namespace troupe {

namespace detail {

class ObjectClient;  // objects/object_client.h
class TaskPools;     // tasks/task_pool.h
class WorkReporter;  // work_reporter.h

struct ClientOptions {
  std::shared_ptr<const ChannelEnvironment> environment;
  JobId job_id;
  ClientId client_id;
  // The program that actor processes run; asked at the first spawn.
  std::function<Result<wire::Image>()> image;
  std::string name;  // of the actor or driver, for messages
  // In an actor: its id, the number of this process, and its thread, where continuations run.
  ActorId self;
  std::uint64_t self_generation = 0;
  std::shared_ptr<Executor> executor;
  std::shared_ptr<Random> random;
};

// Whose something is that this process creates.
struct Ownership {
  JobId job_id;
  ClientId client;
  ActorId actor;                 // empty: `client`'s
  std::uint64_t generation = 0;  // of the actor's process, where that is the owner
};

// Thread-safe.
class ActorClient : public std::enable_shared_from_this<ActorClient> {
 public:
  using OnActor = std::function<void(const wire::ActorInfo&)>;

  explicit ActorClient(ClientOptions options);

  ~ActorClient();

  // The channel to an actor; one per actor and interface while the actor may live.
  std::shared_ptr<ActorChannel> channel(ActorId actor_id, const ActorInterface& interface);
  // How futures of calls to `target` behave in this process.
  FutureOptions future_options(ActorId target) const;

  // Places an actor of the class; returns its channel before it runs. A refusal of the head ends
  // its calls, and is told to `on_refused` after that (on the loop's thread).
  using OnRefused = std::function<void(const Status& why)>;
  Result<std::shared_ptr<ActorChannel>> create(const ActorOptions& options,
                                               const ActorInterface& interface,
                                               PackedArguments constructor_arguments,
                                               OnRefused on_refused = nullptr);
  // A process for `count` light actors; `start` is what light_actor.h says. As create().
  Result<std::shared_ptr<ActorChannel>> create_light_host(const ActorOptions& options,
                                                          const ActorInterface& hosts,
                                                          PackedArguments start,
                                                          std::uint32_t count);
  // A light actor in a host of this client's, for the same class and options, that has room; or in
  // a new one.
  Result<LightPlace> create_light(const ActorOptions& options, const ActorInterface& hosts,
                                  PackedArguments constructor_arguments);
  // The host of light actors that has this name, and for how many it has room. As find().
  Result<LightHost> find_light_host(const std::string& name, const std::string& namespace_name,
                                    const ActorInterface& hosts, Deadline deadline);
  // The living actor of options.name, or a new one; waits for the head to say which.
  // kInvalidArgument where that one is of another class or was made with other arguments.
  Result<std::shared_ptr<ActorChannel>> get_or_create(const ActorOptions& options,
                                                      const ActorInterface& interface,
                                                      PackedArguments constructor_arguments,
                                                      Deadline deadline);
  // All are placed or none is; waits until the head has accepted or refused.
  Result<std::vector<std::shared_ptr<ActorChannel>>> create_gang(std::vector<PlainMember> members,
                                                                 const ActorInterface& interface,
                                                                 bool no_wait, Deadline deadline);
  // The living actor called `name`, in this process's namespace where that is empty. kNotFound,
  // kDeadlineExceeded; kInvalidArgument for another class.
  Result<std::shared_ptr<ActorChannel>> find(const std::string& name,
                                             const std::string& namespace_name,
                                             const ActorInterface& interface, Deadline deadline);

  // What KillOptions says. kDeadlineExceeded: the head or the actor's node did not answer in time.
  Status kill(ActorId actor_id, bool allow_restart, std::int64_t grace_ms,
              const std::string& reason, Deadline deadline);
  // Ends the actor for good when it has done what is queued, or after `grace`; waits until it is
  // dead. How many calls it did not get to; nothing where nobody knows.
  Result<std::optional<std::size_t>> drain(ActorId actor_id, std::chrono::milliseconds grace,
                                           const std::string& reason, Deadline deadline);
  // Waits until the actor is dead for good. kDeadlineExceeded.
  Status wait_for_death(ActorId actor_id, Deadline deadline);
  Ownership ownership(Owner owner, bool detached) const;
  SupervisorId new_supervisor_id() const { return SupervisorId::make(*options_.random); }
  Directory& directory() const { return *options_.environment->directory; }
  Result<std::vector<wire::NodeInfo>> nodes(Deadline deadline);
  // Calls `on_actor` now and at each change, on the loop's thread: short, without waiting.
  Directory::WatchId watch(ActorId actor_id, OnActor on_actor);
  void unwatch(Directory::WatchId watch);

  // A stream to the actor's process, for whoever accepts `purpose` there
  // (ActorContext::accept_connections). Waits for the actor to run.
  Result<RawConnection> connect_to(ActorId actor_id, const std::string& purpose, Deadline deadline);

  // The same to a process that runs, without waiting; `done` comes on the loop's thread.
  void connect_to(const wire::ActorInfo& actor, const std::string& purpose, Deadline deadline,
                  std::function<void(Result<RawConnection>)> done);

  // A piece of a segment that the actor's node keeps for this job (ActorContext::read_segment).
  Result<wire::SegmentBytes> read_segment(ActorId actor_id, const std::string& name,
                                          std::uint64_t offset, std::size_t bytes_max,
                                          Deadline deadline);

  // What this process has to do with objects.
  const std::shared_ptr<ObjectClient>& objects() const { return objects_; }
  // What it has to do with tasks: those that it submits, and those that it runs.
  TaskPools& tasks() const { return *tasks_; }
  // Others may have the CPUs of this process, an actor's, which only waits; or it goes on (`back`).
  void lend_cpus(bool back);
  // Tells the head what this process has under way.
  WorkReporter& work() const { return *work_; }
  // Whether this process is a fork of the one whose client it is.
  bool forked() const { return options_.environment->process.is_forked(); }
  // Of this process: callbacks come there.
  net::EventLoop& loop() const { return *options_.environment->loop; }

  // Ends every call with kCancelled; afterwards nothing is called back.
  void close();
  // Who makes calls later, of what it keeps itself: told at the end of close(), once. After that it
  // does not ask for the loop, which may go.
  class Closing {
   public:
    virtual ~Closing() = default;
    virtual void closed(const Status& why) = 0;
  };
  void tell_of_close(const std::weak_ptr<Closing>& who);
  // How many channels it keeps, of actors that may live: for tests.
  std::size_t channel_count();

 private:
  Result<wire::ActorSpec> spec_for(const ActorOptions& options, const ActorInterface& interface,
                                   wire::Bytes constructor_arguments);
  Result<wire::ActorInfo> wait_for_actor(ActorId actor_id, const std::string& name,
                                         Deadline deadline,
                                         std::function<bool(const wire::ActorInfo&)> enough,
                                         const char* what, const std::string& namespace_name = {});
  // find(), whatever its channel.
  Result<wire::ActorInfo> find_living(const std::string& name, const std::string& namespace_name,
                                      const ActorInterface& interface, Deadline deadline);
  void make_light(const std::shared_ptr<ActorChannel>& host, std::uint32_t number,
                  std::shared_ptr<const PackedArguments> constructor_arguments);
  // Asks the head to place the actor, until it has accepted or refused.
  void place(std::shared_ptr<const wire::ActorSpec> spec, std::shared_ptr<ActorChannel> channel,
             OnRefused on_refused = nullptr);
  void forget_channels_locked() TROUPE_REQUIRES(mutex_);

  const ClientOptions options_;
  Mutex light_mutex_;  // before mutex_
  Mutex mutex_;
  // By the actor and its class as the handle knows it: that one's list of methods.
  std::map<std::pair<ActorId, const MethodSignature*>, std::shared_ptr<ActorChannel>> channels_
      TROUPE_GUARDED_BY(mutex_);
  // With so many those that are over are looked for.
  std::size_t channels_many_ TROUPE_GUARDED_BY(mutex_) = 64;
  std::optional<wire::Image> image_ TROUPE_GUARDED_BY(mutex_);
  bool closed_ TROUPE_GUARDED_BY(mutex_) = false;
  std::vector<std::weak_ptr<Closing>> closings_ TROUPE_GUARDED_BY(mutex_);
  // Hosts whose light actors come one by one.
  struct LightRoom {
    wire::ActorSpec like;  // without id and arguments
    std::shared_ptr<ActorChannel> host;
    std::uint32_t taken = 0;
  };
  const std::shared_ptr<ArgumentSender> sender_;
  const std::shared_ptr<ObjectClient> objects_;
  const std::shared_ptr<TaskPools> tasks_;
  const std::shared_ptr<WorkReporter> work_;
  std::vector<LightRoom> light_rooms_ TROUPE_GUARDED_BY(light_mutex_);
};

// A watch of the directory's, of an actor or of a supervisor: it ends with this.
class DirectoryWatching final : public Watching {
 public:
  DirectoryWatching(ClientPtr client, Directory::WatchId id)
      : client_(std::move(client)), id_(id) {}
  ~DirectoryWatching() override { client_->unwatch(id_); }
  DirectoryWatching(const DirectoryWatching&) = delete;
  DirectoryWatching& operator=(const DirectoryWatching&) = delete;

 private:
  const ClientPtr client_;
  const Directory::WatchId id_;
};

}  // namespace detail
}  // namespace troupe
