#include "actors/head_directory.h"

#include <chrono>
#include <utility>

#include "runtime/base/random.h"

namespace troupe::detail {
namespace {

constexpr Duration kHeadConnectTimeout = std::chrono::seconds(10);

}  // namespace

HeadDirectory::~HeadDirectory() { close(); }

void HeadDirectory::with_client(Work work) {
  Result<Client> client = error(Code::kCancelled, "the connection to the head was closed");
  {
    MutexLock lock(mutex_);
    if (client_) {
      client = client_;
    } else if (!closed_) {
      waiting_.push_back(std::move(work));
      if (std::exchange(connecting_now_, true)) return;
      if (connecting_.joinable()) connecting_.join();  // the attempt before, which has ended
      connecting_ = std::thread([this] {
        Result<Client> connected = connect_();
        std::vector<Work> waiting;
        {
          MutexLock lock(mutex_);
          connecting_now_ = false;
          if (connected.ok() && !closed_) client_ = *connected;
          waiting.swap(waiting_);
        }
        loop_.post([waiting = std::move(waiting), connected] {
          for (const auto& w : waiting) w(connected);
        });
      });
      return;
    }
  }
  work(client);
}

Directory::WatchId HeadDirectory::watch(ActorId actor_id, const std::string& name,
                                        OnActor on_actor) {
  return begin_watch([=](auto& head) { return head.watch_actor(actor_id, name, on_actor); },
                     on_actor);
}

Directory::WatchId HeadDirectory::watch_in(const std::string& namespace_name,
                                           const std::string& name, OnActor on_actor) {
  return begin_watch(
      [=](auto& head) { return head.watch_actor({}, name, on_actor, namespace_name); }, on_actor);
}

Directory::WatchId HeadDirectory::watch_supervisor(SupervisorId id, OnSupervisor on_supervisor) {
  return begin_watch([=](auto& head) { return head.watch_supervisor(id, on_supervisor); },
                     on_supervisor);
}

Directory::WatchId HeadDirectory::begin_watch(
    std::function<std::uint64_t(scheduler::HeadClient&)> begin,
    std::function<void(Status)> failed) {
  WatchId watch = 0;
  {
    MutexLock lock(mutex_);
    watch = next_watch_++;
    watches_[watch] = {};
  }
  with_client([this, watch, begin = std::move(begin),
               failed = std::move(failed)](const Result<Client>& client) {
    if (!client.ok()) {
      loop_.post([failed, status = client.status()] { failed(status); });
      return;
    }
    {
      MutexLock lock(mutex_);
      if (!watches_.contains(watch)) return;  // ended before it began
    }
    const auto id = begin(**client);
    bool ended = false;
    {
      MutexLock lock(mutex_);
      const auto it = watches_.find(watch);
      ended = it == watches_.end();
      if (!ended) it->second = {true, id};
    }
    if (ended) (*client)->unwatch(id);
  });
  return watch;
}

void HeadDirectory::unwatch(WatchId watch) {
  Client client;
  Watch found;
  {
    MutexLock lock(mutex_);
    const auto it = watches_.find(watch);
    if (it == watches_.end()) return;
    found = it->second;
    watches_.erase(it);
    client = client_;
  }
  if (found.known && client) client->unwatch(found.id);
}

void HeadDirectory::create(std::vector<wire::ActorSpec> specs, bool gang, bool no_wait,
                           OnDone done) {
  with_client([specs = std::move(specs), gang, no_wait, done](const Result<Client>& client) {
    if (!client.ok()) {
      done(client.status());
    } else {
      (*client)->create_actors(specs, gang, no_wait, done);
    }
  });
}

void HeadDirectory::kill(ActorId actor_id, bool allow_restart, std::int64_t grace_ms,
                         const std::string& reason, OnDone done) {
  with_client([=](const Result<Client>& client) {
    if (!client.ok()) {
      done(client.status());
    } else {
      (*client)->kill_actor(actor_id, allow_restart, grace_ms, reason, done);
    }
  });
}

void HeadDirectory::ask(std::function<void(scheduler::HeadClient&, OnDone)> request, OnDone done) {
  with_client([request = std::move(request), done = std::move(done)](const Result<Client>& client) {
    if (!client.ok()) {
      done(client.status());
    } else {
      request(**client, done);
    }
  });
}

void HeadDirectory::get_or_create(wire::ActorSpec spec, OnCreated done) {
  with_client([spec = std::move(spec), done](const Result<Client>& client) {
    if (!client.ok()) {
      done(client.status());
    } else {
      (*client)->get_or_create_actor(spec, done);
    }
  });
}

void HeadDirectory::drain(ActorId actor_id, std::int64_t grace_ms, const std::string& reason,
                          OnDone done) {
  ask([=](auto& head,
          OnDone d) { head.kill_actor(actor_id, false, grace_ms, reason, std::move(d), true); },
      std::move(done));
}

void HeadDirectory::supervise(wire::SupervisorSpec spec, OnDone done) {
  ask([spec = std::move(spec)](auto& head,
                               OnDone d) { head.create_supervisor(spec, std::move(d)); },
      std::move(done));
}

void HeadDirectory::end_supervisor(SupervisorId id, const std::string& reason, OnDone done) {
  ask([=](auto& head, OnDone d) { head.end_supervisor(id, reason, std::move(d)); },
      std::move(done));
}

void HeadDirectory::list_nodes(OnNodes done) {
  with_client([done](const Result<Client>& client) {
    if (!client.ok()) {
      done(client.status());
    } else {
      (*client)->list_nodes(done);
    }
  });
}

void HeadDirectory::close() {
  Client client;
  std::thread connecting;
  std::vector<Work> waiting;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    client = std::move(client_);
    connecting = std::move(connecting_);
    waiting.swap(waiting_);
    watches_.clear();
  }
  if (connecting.joinable()) connecting.join();  // bounded by its own deadline
  for (const auto& work : waiting) {
    work(error(Code::kCancelled, "the connection to the head was closed"));
  }
  if (client) client->close();
}

std::shared_ptr<Directory> make_head_directory(net::EventLoop& loop, const wire::HostStart& start) {
  return std::make_shared<HeadDirectory>(
      loop, [&loop, endpoint = start.head_endpoint,
             token = net::Token(start.token, net::security_from_number(start.security)),
             spec = start.spec] {
        SystemRandom random;
        wire::ClientHello hello;
        hello.client_id = ClientId::make(random);
        hello.job_id = spec.job_id;
        hello.namespace_name = spec.namespace_name;
        hello.name = spec.name.empty() ? spec.type + " " + spec.actor_id.brief() : spec.name;
        hello.kind = "actor";
        return scheduler::HeadClient::connect(loop, net::Address{endpoint.host, endpoint.port, {}},
                                              token, hello, Deadline::after(kHeadConnectTimeout));
      });
}

}  // namespace troupe::detail
