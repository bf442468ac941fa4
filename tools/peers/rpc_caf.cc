// Calls between actors of the C++ Actor Framework over its middleman, which has TCP and, by its
// OpenSSL module, TLS. See rpc_measure.h.

#include <caf/all.hpp>
#include <caf/io/all.hpp>
#include <caf/openssl/all.hpp>

#include "rpc_measure.h"

namespace {

using namespace rpc_measure;

using AddAtom = caf::atom_constant<caf::atom("add")>;
using LookAtom = caf::atom_constant<caf::atom("look")>;

struct Config : caf::actor_system_config {
  explicit Config(const Plan& plan) {
    load<caf::io::middleman>();
    if (plan.way != "tls") return;
    load<caf::openssl::manager>();
    openssl_certificate = plan.folder + "/cert.pem";
    openssl_key = plan.folder + "/key.pem";
    openssl_cafile = openssl_certificate;
  }
};

caf::behavior server_actor(caf::event_based_actor*) {
  return {[](AddAtom, std::int32_t n) { return n + 1; },
          [](LookAtom, const std::string& bytes) { return look(bytes.data(), bytes.size()); }};
}

template <typename Ready>
void serve(const Plan& plan, Ready ready) {
  Config config(plan);
  caf::actor_system system(config);
  const auto server = system.spawn(server_actor);
  const auto port = plan.way == "tls" ? caf::openssl::publish(server, 0, "127.0.0.1")
                                      : system.middleman().publish(server, 0, "127.0.0.1");
  if (!port) fail("CAF: " + system.render(port.error()));
  ready(*port);
  system.await_all_actors_done();
}

double async_rate(const Plan& plan, caf::scoped_actor& self, const caf::actor& server) {
  for (std::size_t i = 0; i < plan.window; ++i) self->send(server, AddAtom::value, std::int32_t{1});
  Rate rate(plan);
  bool over = false;
  for (std::size_t on_their_way = plan.window; on_their_way > 0;) {
    self->receive([&](std::int32_t n) {
      if (n != 2) fail("another answer");
      over = over || !rate.go_on();
      if (over) {
        --on_their_way;
      } else {
        self->send(server, AddAtom::value, std::int32_t{1});
      }
    });
  }
  return rate.rate();
}

void call(const Plan& plan) {
  Config config(plan);
  caf::actor_system system(config);
  const auto port = static_cast<std::uint16_t>(plan.port);
  const auto server = plan.way == "tls" ? caf::openssl::remote_actor(system, "127.0.0.1", port)
                                        : system.middleman().remote_actor("127.0.0.1", port);
  if (!server) fail("CAF: " + system.render(server.error()));
  caf::scoped_actor self(system);
  const auto failed = [&](const caf::error& why) { fail("CAF: " + system.render(why)); };
  sync_calls(plan, "sync", [&] {
    self->request(*server, caf::infinite, AddAtom::value, std::int32_t{1})
        .receive(
            [](std::int32_t n) {
              if (n != 2) fail("another answer");
            },
            failed);
  });
  row("async", async_rate(plan, self, *server), "1/s");
  for (const auto& [name, bytes] : {std::pair{"1 MiB", kMiB}, std::pair{"64 MiB", 64 * kMiB}}) {
    const auto message = caf::make_message(LookAtom::value, argument(bytes));
    large_calls(plan, name, bytes, [&, size = bytes] {
      self->request(*server, caf::infinite, message)
          .receive([&](std::uint64_t sum) { check_look(sum, size); }, failed);
    });
  }
}

}  // namespace

int main(int argc, char** argv) {
  return run(
      argc, argv, [](const auto& plan, auto ready) { serve(plan, ready); }, call);
}
