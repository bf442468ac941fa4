// Calls through Cap'n Proto's two-party RPC, one thread on each side. See rpc_measure.h.

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>
#include <kj/compat/tls.h>

#include <deque>
#include <memory>

#include "rpc_calls.capnp.h"
#include "rpc_measure.h"

namespace {

using namespace rpc_measure;

class Server final : public Calls::Server {
 protected:
  kj::Promise<void> add(AddContext context) override {
    context.getResults().setN(context.getParams().getN() + 1);
    return kj::READY_NOW;
  }
  kj::Promise<void> look(LookContext context) override {
    const auto bytes = context.getParams().getBytes().asChars();
    context.getResults().setSum(rpc_measure::look(bytes.begin(), bytes.size()));
    return kj::READY_NOW;
  }
};

// The default refuses arguments of 64 MiB.
capnp::ReaderOptions large_messages() {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = 1u << 30;
  return options;
}

std::string address_of(const Plan& plan) {
  return plan.way == "unix" ? "unix:" + plan.socket() : "127.0.0.1:" + std::to_string(plan.port);
}

// Null where nothing is to be encrypted.
kj::Own<kj::TlsContext> tls_of(const Plan& plan, bool server) {
  if (plan.way != "tls") return {};
  kj::TlsContext::Options options;
  options.useSystemTrustStore = false;
  const std::string certificate = plan.text_of("cert.pem"), key = plan.text_of("key.pem");
  kj::TlsCertificate trusted(certificate);
  kj::TlsKeypair pair{kj::TlsPrivateKey(key), kj::TlsCertificate(certificate)};
  options.trustedCertificates = kj::arrayPtr(&trusted, 1);
  if (server) options.defaultKeypair = pair;
  return kj::heap<kj::TlsContext>(kj::mv(options));
}

class Accepting final : public kj::TaskSet::ErrorHandler {
 public:
  explicit Accepting(kj::ConnectionReceiver& receiver) : receiver_(receiver), tasks_(*this) {}
  kj::Promise<void> forever() {
    return receiver_.accept().then([this](kj::Own<kj::AsyncIoStream>&& stream) {
      struct Connection {
        explicit Connection(kj::Own<kj::AsyncIoStream>&& s)
            : stream(kj::mv(s)),
              network(*stream, capnp::rpc::twoparty::Side::SERVER, large_messages()),
              rpc(capnp::makeRpcServer(network, kj::heap<Server>())) {}
        kj::Own<kj::AsyncIoStream> stream;
        capnp::TwoPartyVatNetwork network;
        capnp::RpcSystem<capnp::rpc::twoparty::VatId> rpc;
      };
      auto connection = kj::heap<Connection>(kj::mv(stream));
      auto ended = connection->network.onDisconnect();
      tasks_.add(ended.attach(kj::mv(connection)));
      return forever();
    });
  }
  void taskFailed(kj::Exception&&) override {}

 private:
  kj::ConnectionReceiver& receiver_;
  kj::TaskSet tasks_;
};

template <typename Ready>
void serve(const Plan& plan, Ready ready) {
  auto io = kj::setupAsyncIo();
  auto tls = tls_of(plan, true);
  const std::string where = plan.way == "unix" ? address_of(plan) : "127.0.0.1:0";
  auto receiver = io.provider->getNetwork().parseAddress(where).wait(io.waitScope)->listen();
  const int port = plan.way == "unix" ? 0 : static_cast<int>(receiver->getPort());
  if (tls.get() != nullptr) receiver = tls->wrapPort(kj::mv(receiver));
  Accepting accepting(*receiver);
  auto served = accepting.forever();
  ready(port);
  served.wait(io.waitScope);
}

struct Connection {
  Connection(kj::AsyncIoContext& io, kj::TlsContext* tls, const Plan& plan)
      : stream(io.provider->getNetwork()
                   .parseAddress(address_of(plan))
                   .wait(io.waitScope)
                   ->connect()
                   .wait(io.waitScope)) {
    if (tls != nullptr) stream = tls->wrapClient(kj::mv(stream), "localhost").wait(io.waitScope);
    network = kj::heap<capnp::TwoPartyVatNetwork>(*stream, capnp::rpc::twoparty::Side::CLIENT,
                                                  large_messages());
    rpc = std::make_unique<capnp::RpcSystem<capnp::rpc::twoparty::VatId>>(
        capnp::makeRpcClient(*network));
    capnp::MallocMessageBuilder message(8);
    auto server = message.getRoot<capnp::rpc::twoparty::VatId>();
    server.setSide(capnp::rpc::twoparty::Side::SERVER);
    calls = std::make_unique<Calls::Client>(rpc->bootstrap(server).castAs<Calls>());
  }
  auto add() {
    auto request = calls->addRequest();
    request.setN(1);
    return request.send();
  }
  kj::Own<kj::AsyncIoStream> stream;
  kj::Own<capnp::TwoPartyVatNetwork> network;
  std::unique_ptr<capnp::RpcSystem<capnp::rpc::twoparty::VatId>> rpc;
  std::unique_ptr<Calls::Client> calls;
};

double async_rate(const Plan& plan, Connection& connection, kj::WaitScope& wait) {
  using Answer = decltype(connection.add());
  std::deque<Answer> open;
  for (Rate rate(plan);;) {
    while (open.size() < plan.window) open.push_back(connection.add());
    const bool good = open.front().wait(wait).getN() == 2;
    open.pop_front();
    if (!good) fail("another answer");
    if (rate.go_on()) continue;
    while (!open.empty()) {
      (void)open.front().wait(wait);
      open.pop_front();
    }
    return rate.rate();
  }
}

void call(const Plan& plan) {
  auto io = kj::setupAsyncIo();
  auto tls = tls_of(plan, false);
  first_calls(plan, "first", [&] {
    return [&io, connection = std::make_shared<Connection>(io, tls.get(), plan)] {
      if (connection->add().wait(io.waitScope).getN() != 2) fail("another answer");
    };
  });
  Connection connection(io, tls.get(), plan);
  sync_calls(plan, "sync", [&] {
    if (connection.add().wait(io.waitScope).getN() != 2) fail("another answer");
  });
  row("async", async_rate(plan, connection, io.waitScope), "1/s");
  for (const auto& [name, bytes] : {std::pair{"1 MiB", kMiB}, std::pair{"64 MiB", 64 * kMiB}}) {
    const std::string argument = rpc_measure::argument(bytes);
    const capnp::Data::Reader data(reinterpret_cast<const kj::byte*>(argument.data()),
                                   argument.size());
    const capnp::MessageSize size{argument.size() / sizeof(capnp::word) + 16, 0};
    large_calls(plan, name, bytes, [&] {
      auto request = connection.calls->lookRequest(size);
      request.setBytes(data);
      check_look(request.send().wait(io.waitScope).getSum(), data.size());
    });
  }
}

}  // namespace

int main(int argc, char** argv) {
  return run(
      argc, argv, [](const auto& plan, auto ready) { serve(plan, ready); }, call);
}
