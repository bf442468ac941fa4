#pragma once
// What a process asks of the hosts of light actors besides their methods: ends and watches.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "actors/client.h"
#include "troupe/detail/light_actor.h"
#include "troupe/detail/mutex.h"
#include "troupe/future.h"

namespace troupe::detail {

// Ends a light actor; returns when it has ended. From a light actor of the same host, which it
// would wait for in vain: at once, and it ends after the method that runs.
Status end_light(const std::shared_ptr<ActorClient>& client,
                 const std::shared_ptr<ActorChannel>& host, std::uint32_t number,
                 const std::string& reason, Deadline deadline);

// The changes of a light actor: those of its host, and its own end.
class LightWatch : public std::enable_shared_from_this<LightWatch> {
 public:
  using OnChange = std::function<void(const wire::ActorInfo&)>;
  // Calls `on_change` as ActorClient::watch does, until stop().
  static std::shared_ptr<LightWatch> start(const std::shared_ptr<ActorClient>& client,
                                           std::shared_ptr<ActorChannel> host, std::uint32_t number,
                                           OnChange on_change);
  void stop();

 private:
  LightWatch(std::weak_ptr<ActorClient> client, std::shared_ptr<ActorChannel> host,
             std::uint32_t number, OnChange on_change)
      : client_(std::move(client)),
        host_(std::move(host)),
        number_(number),
        on_change_(std::move(on_change)) {}
  void ask(const std::shared_ptr<ActorClient>& client);
  static void ask_again(const std::shared_ptr<LightWatch>& self);
  void on_host(const wire::ActorInfo& info);
  void on_end(Result<std::string> why);

  const std::weak_ptr<ActorClient> client_;
  const std::shared_ptr<ActorChannel> host_;
  const std::uint32_t number_;
  const OnChange on_change_;
  Mutex mutex_;
  bool ended_ TROUPE_GUARDED_BY(mutex_) = false;
  wire::ActorInfo last_ TROUPE_GUARDED_BY(mutex_);
  Directory::WatchId watch_ TROUPE_GUARDED_BY(mutex_) = 0;
  std::optional<Future<void>> asked_ TROUPE_GUARDED_BY(mutex_);
};

}  // namespace troupe::detail
