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
  WatchId watch = 0;
  {
    MutexLock lock(mutex_);
    watch = next_watch_++;
    watches_[watch] = {};
  }
  with_client([this, watch, actor_id, name, on_actor](const Result<Client>& client) {
    if (!client.ok()) {
      loop_.post([on_actor, status = client.status()] { on_actor(status); });
      return;
    }
    {
      MutexLock lock(mutex_);
      if (!watches_.contains(watch)) return;  // ended before it began
    }
    const auto id = (*client)->watch_actor(actor_id, name, on_actor);
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
        hello.name = spec.name.empty() ? spec.type + " " + spec.actor_id.brief() : spec.name;
        hello.kind = "actor";
        return scheduler::HeadClient::connect(loop, net::Address{endpoint.host, endpoint.port, {}},
                                              token, hello, Deadline::after(kHeadConnectTimeout));
      });
}

}  // namespace troupe::detail
