// The only source that includes Boost.Beast, which reads and writes the messages.

#include "scheduler/head/http_server.h"

#include <pthread.h>

#include <algorithm>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <cctype>
#include <list>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/base/start_thread.h"

namespace troupe::scheduler {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
using tcp = boost::asio::ip::tcp;

// "name:80", "[::1]:80" → the name without port and brackets, in small letters.
std::string host_name_of(std::string_view host) {
  if (host.starts_with('[')) {
    const auto end = host.find(']');
    host = end == std::string_view::npos ? std::string_view() : host.substr(1, end - 1);
  } else {
    host = host.substr(0, host.find(':'));
  }
  std::string name(host);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

// What the server's sessions and late answers share. An answer may come when the server is gone.
struct Gate {
  std::mutex mutex;
  asio::io_context* io = nullptr;  // null: closed
};

struct Shared {
  HttpServerOptions options;
  HttpServer::Handler handler;
  std::shared_ptr<Gate> gate;
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket socket, const Shared& shared, std::function<void()> on_end)
      : stream_(std::move(socket)),
        timer_(stream_.get_executor()),
        shared_(shared),
        on_end_(std::move(on_end)) {}

  void start() { read(shared_.options.request_timeout); }
  bool busy() const { return busy_; }
  void close() {
    if (std::exchange(closed_, true)) return;
    timer_.cancel();
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
    stream_.close();
    if (on_end_) std::exchange(on_end_, nullptr)();
  }

 private:
  void read(Duration timeout);
  void took(error_code ec);
  // What is wrong with the request; nothing: it may be answered.
  std::optional<HttpPage> refusal(const http::request<http::empty_body>& request) const;
  bool known_host(const std::string& name) const;
  void ask(std::string path);
  void answer(HttpPage page);

  beast::tcp_stream stream_;
  asio::steady_timer timer_;
  const Shared& shared_;
  std::function<void()> on_end_;
  beast::flat_buffer buffer_{kHttpHeaderBytesMax};
  std::optional<http::request_parser<http::empty_body>> parser_;
  std::optional<http::response<http::string_body>> response_;
  std::uint64_t request_ = 0;  // number of the present one
  bool busy_ = false;          // it is being answered
  bool keep_alive_ = false;
  bool closed_ = false;
};

void Session::read(Duration timeout) {
  busy_ = false;
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(kHttpHeaderBytesMax));
  parser_->body_limit(0);
  stream_.expires_after(std::chrono::duration_cast<std::chrono::milliseconds>(timeout));
  http::async_read(stream_, buffer_, *parser_,
                   [self = shared_from_this()](error_code ec, std::size_t) { self->took(ec); });
}

void Session::took(error_code ec) {
  if (closed_) return;
  busy_ = true;
  ++request_;
  if (ec == http::error::header_limit || ec == http::error::buffer_overflow) {
    keep_alive_ = false;
    return answer(
        {431, "text/plain; charset=utf-8",
         fmt::format("The request's headers are longer than {} bytes.\n", kHttpHeaderBytesMax)});
  }
  if (ec == http::error::body_limit || ec == http::error::unexpected_body) {
    keep_alive_ = false;
    return answer({413, "text/plain; charset=utf-8", "A request here has no body.\n"});
  }
  const bool malformed =
      ec && ec.category() == http::make_error_code(http::error::bad_version).category() &&
      ec != http::error::end_of_stream && ec != http::error::partial_message;
  if (malformed) {
    keep_alive_ = false;
    return answer({400, "text/plain; charset=utf-8", "This is no HTTP/1.1 request.\n"});
  }
  if (ec) return close();  // ended, or too slow
  const auto& request = parser_->get();
  keep_alive_ = request.keep_alive();
  if (auto refused = refusal(request)) return answer(std::move(*refused));
  const auto target = request.target();
  ask(std::string(target.substr(0, target.find('?'))));
}

bool Session::known_host(const std::string& name) const {
  error_code ec;
  (void)asio::ip::make_address(name, ec);
  if (!ec || name == "localhost") return true;
  return std::any_of(shared_.options.names.begin(), shared_.options.names.end(),
                     [&](const std::string& known) { return host_name_of(known) == name; });
}

std::optional<HttpPage> Session::refusal(const http::request<http::empty_body>& request) const {
  const std::string type = HttpPage().content_type;
  if (request.method() != http::verb::get) {
    return HttpPage{405, type, "Only GET is answered here.\n"};
  }
  const std::string_view host = request[http::field::host];
  if (request.count(http::field::host) != 1 || !known_host(host_name_of(host))) {
    return HttpPage{421, type,
                    "Ask for this server by its numeric address or as localhost: another Host is "
                    "refused, so that no foreign web page reads what stands here.\n"};
  }
  const auto origin = request.find(http::field::origin);
  if (origin != request.end() && origin->value() != "http://" + std::string(host)) {
    return HttpPage{403, type, "Requests of other sites' pages are refused (Origin).\n"};
  }
  if (!request.target().starts_with('/')) {
    return HttpPage{400, type, "The target is no path.\n"};
  }
  return std::nullopt;
}

void Session::ask(std::string path) {
  const std::uint64_t number = request_;
  timer_.expires_after(
      std::chrono::duration_cast<std::chrono::milliseconds>(shared_.options.request_timeout));
  // The timer holds the session while nothing else does.
  timer_.async_wait([self = shared_from_this(), number](error_code ec) {
    if (ec || !self->busy_ || self->request_ != number) return;
    self->keep_alive_ = false;
    self->answer({503, "text/plain; charset=utf-8", "There was no answer in time.\n"});
  });
  shared_.handler(path, [weak = weak_from_this(), number,
                         gate = shared_.gate](std::function<HttpPage()> make_page) {
    const std::lock_guard lock(gate->mutex);
    if (gate->io == nullptr) return;
    asio::post(*gate->io, [weak, number, make_page = std::move(make_page)] {
      const auto self = weak.lock();
      if (!self || !self->busy_ || self->request_ != number || self->response_) return;
      self->timer_.cancel();
      self->answer(make_page());
    });
  });
}

void Session::answer(HttpPage page) {
  if (closed_ || response_) return;
  auto& response = response_.emplace(static_cast<http::status>(page.status), 11);
  response.set(http::field::content_type, page.content_type);
  response.set(http::field::cache_control, "no-store");
  response.set("X-Content-Type-Options", "nosniff");
  if (page.status == 405) response.set(http::field::allow, "GET");
  response.keep_alive(keep_alive_);
  response.body() = std::move(page.body);
  response.prepare_payload();
  stream_.expires_after(
      std::chrono::duration_cast<std::chrono::milliseconds>(shared_.options.request_timeout));
  http::async_write(stream_, response, [self = shared_from_this()](error_code ec, std::size_t) {
    self->response_.reset();
    if (ec || !self->keep_alive_) return self->close();
    self->read(self->shared_.options.idle_timeout);
  });
}

class Server final : public HttpServer {
 public:
  Server(HttpServerOptions options, Handler handler)
      : shared_{std::move(options), std::move(handler), std::make_shared<Gate>()} {}
  ~Server() override {
    {
      const std::lock_guard lock(shared_.gate->mutex);
      shared_.gate->io = nullptr;
    }
    io_.stop();
    if (thread_.joinable()) thread_.join();
    // Sessions are held by what waits in io_, and end with it.
  }

  Status start();
  const net::Address& address() const override { return address_; }

 private:
  void accept();
  void make_room();

  Shared shared_;
  std::list<std::weak_ptr<Session>> sessions_;  // oldest first
  asio::io_context io_{1};
  tcp::acceptor acceptor_{io_};
  net::Address address_;
  std::thread thread_;
};

Status Server::start() {
  error_code ec;
  const auto ip = asio::ip::make_address(shared_.options.host, ec);
  if (ec) {
    return error(Code::kInvalidArgument, "{} is no numeric address to listen on",
                 shared_.options.host);
  }
  const tcp::endpoint endpoint(ip, shared_.options.port);
  acceptor_.open(endpoint.protocol(), ec);
  if (!ec) acceptor_.set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec) acceptor_.bind(endpoint, ec);
  if (!ec) acceptor_.listen(asio::socket_base::max_listen_connections, ec);
  if (ec) {
    const bool taken = ec == asio::error::address_in_use;
    return error(taken ? Code::kAlreadyExists : Code::kUnavailable,
                 "cannot listen on {} port {}: {}", shared_.options.host, shared_.options.port,
                 ec.message());
  }
  address_ = {shared_.options.host, acceptor_.local_endpoint(ec).port(), {}};
  shared_.gate->io = &io_;
  accept();
  thread_ = TROUPE_TRY(start_thread("serve HTTP", [this] {
    pthread_setname_np(pthread_self(), "troupe-http");
    io_.run();
  }));
  return {};
}

// The oldest that is not being answered goes: whoever holds many open keeps nobody out.
void Server::make_room() {
  if (sessions_.size() < kHttpConnectionsMax) return;
  auto oldest = std::find_if(sessions_.begin(), sessions_.end(), [](const auto& weak) {
    const auto session = weak.lock();
    return !session || !session->busy();
  });
  if (oldest == sessions_.end()) oldest = sessions_.begin();
  if (const auto session = oldest->lock()) {
    session->close();  // erases itself
  } else {
    sessions_.erase(oldest);
  }
}

void Server::accept() {
  acceptor_.async_accept([this](error_code ec, tcp::socket socket) {
    if (ec == asio::error::operation_aborted) return;
    if (!ec) {
      make_room();
      const auto place = sessions_.emplace(sessions_.end());
      const auto session = std::make_shared<Session>(std::move(socket), shared_,
                                                     [this, place] { sessions_.erase(place); });
      *place = session;
      session->start();
      return accept();
    }
    // Out of descriptors, say: not again at once.
    auto timer = std::make_shared<asio::steady_timer>(io_, std::chrono::milliseconds(100));
    timer->async_wait([this, timer](error_code) { accept(); });
  });
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpServerOptions options, Handler handler) {
  auto server = std::make_unique<Server>(std::move(options), std::move(handler));
  TROUPE_RETURN_IF_ERROR(server->start());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace troupe::scheduler
