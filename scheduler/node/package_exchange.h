#pragma once
// How packages come to a node and go to others: on the node's port (target "packages"), by a thread
// of its own, since files of any size are written, hashed and unpacked there.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/net/transport.h"
#include "runtime/wire/types.h"
#include "scheduler/node/package_cache.h"
#include "troupe/byte_stream.h"
#include "troupe/log.h"

namespace troupe::scheduler {

inline constexpr const char* kPackagesTarget = "packages";

class PackageExchange {
 public:
  // On the exchange's thread.
  struct Handlers {
    // All that are here, by hash, after a change.
    std::function<void(std::vector<std::string> sha256s)> on_change;
    // A fetch has brought nothing. (One that has is a change.)
    std::function<void(const wire::Package&, Status why)> on_failed;
  };
  static Result<std::unique_ptr<PackageExchange>> start(std::unique_ptr<PackageCache> cache,
                                                        net::Token token, Logger log,
                                                        Handlers handlers);
  ~PackageExchange();  // no handler is called after it
  PackageExchange(const PackageExchange&) = delete;
  PackageExchange& operator=(const PackageExchange&) = delete;

  PackageCache& cache();
  // What a daemon before left of packages, in a moment: each one is a change. Any thread.
  void take_up();
  // Answers ReadPackage and WritePackage until the peer goes. Any thread.
  void serve(ByteStream socket, const std::string& peer);
  // Once, whoever asks for it meanwhile. `from` is not empty. Any thread.
  void fetch(const wire::Package& package, std::vector<net::Address> from);

 private:
  struct State;
  explicit PackageExchange(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace troupe::scheduler
