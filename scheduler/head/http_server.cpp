#include "scheduler/head/http_server.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "runtime/net/event_loop.h"
#include "scheduler/head/http_request.h"
#include "troupe/unique_fd.h"

namespace troupe::scheduler {
namespace {

constexpr int kAcceptsPerWakeUp = 64;
// After descriptors ran out, say.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);

// "name:80", "[::1]:80" → the name without port and brackets, in small letters.
std::string host_name_of(std::string_view host) {
  if (host.starts_with('[')) {
    const auto end = host.find(']');
    host = end == std::string_view::npos ? std::string_view() : host.substr(1, end - 1);
  } else {
    host = host.substr(0, host.find(':'));
  }
  std::string name(host);
  std::transform(name.begin(), name.end(), name.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return name;
}

bool is_numeric(const std::string& name) {
  in6_addr ignored{};
  return ::inet_pton(AF_INET, name.c_str(), &ignored) == 1 ||
         ::inet_pton(AF_INET6, name.c_str(), &ignored) == 1;
}

const char* reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 413:
      return "Content Too Large";
    case 421:
      return "Misdirected Request";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "";
  }
}

std::string answer_text(const HttpPage& page, bool keep_alive) {
  return fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nCache-Control: no-store\r\n"
      "X-Content-Type-Options: nosniff\r\n{}{}Content-Length: {}\r\n\r\n{}",
      page.status, reason_of(page.status), page.content_type,
      page.status == 405 ? "Allow: GET\r\n" : "", keep_alive ? "" : "Connection: close\r\n",
      page.body.size(), page.body);
}

// One connection: it reads a request, then it is busy until the answer is sent.
struct Session {
  UniqueFd socket;
  std::string came, answer;
  std::size_t sent = 0;       // of the answer
  std::uint64_t request = 0;  // number of the one that is waited for an answer to; 0: none
  bool busy = false;
  bool keep_alive = false;
  net::TimerId timer = 0;
};
using Place = std::list<Session>::iterator;

class Server final : public HttpServer {
 public:
  Server(HttpServerOptions options, Handler handler)
      : options_(std::move(options)), handler_(std::move(handler)) {}
  ~Server() override {
    {
      const std::lock_guard lock(gate_->mutex);
      gate_->loop = nullptr;
    }
    thread_.reset();  // before the descriptors that it watches
  }

  Status start();
  const net::Address& address() const override { return address_; }

 private:
  // What late answers go through. One may come when the server is gone.
  struct Gate {
    std::mutex mutex;
    net::EventLoop* loop = nullptr;  // null: closed
  };

  net::EventLoop& loop() { return thread_->loop(); }
  // On the loop's thread from here on.
  void accept();
  void make_room();
  void close(Place session);
  void in_time(Place session, Duration time, std::function<void()> late);
  void read(Place session);
  void next_request(Place session);
  // What is wrong with the request; nothing: it may be answered.
  std::optional<HttpPage> refusal(const HttpRequest& request) const;
  bool known_host(const std::string& name) const;
  void ask(Place session, const std::string& target);
  void answered(std::uint64_t request, const std::function<HttpPage()>& make_page);
  void answer(Place session, const HttpPage& page);
  void write(Place session);

  const HttpServerOptions options_;
  const Handler handler_;
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  std::uint64_t requests_ = 0;
  std::list<Session> sessions_;  // oldest first
  UniqueFd listener_;
  net::Address address_;
  std::unique_ptr<net::LoopThread> thread_;
};

Status Server::start() {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(options_.host.c_str(), std::to_string(options_.port).c_str(), &hints, &found) !=
      0)
    return error(Code::kInvalidArgument, "{} is no numeric address to listen on", options_.host);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> at(found, &::freeaddrinfo);
  listener_ = UniqueFd(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  sockaddr_storage taken{};
  socklen_t length = sizeof taken;
  if (!listener_.valid() ||
      ::setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(listener_.get(), at->ai_addr, at->ai_addrlen) != 0 ||
      ::listen(listener_.get(), SOMAXCONN) != 0 ||
      ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&taken), &length) != 0) {
    const int why = errno;
    return error(why == EADDRINUSE ? Code::kAlreadyExists : Code::kUnavailable,
                 "cannot listen on {} port {}: {}", options_.host, options_.port,
                 std::generic_category().message(why));
  }
  const std::uint16_t port = taken.ss_family == AF_INET6
                                 ? reinterpret_cast<const sockaddr_in6&>(taken).sin6_port
                                 : reinterpret_cast<const sockaddr_in&>(taken).sin_port;
  address_ = {options_.host, ntohs(port), {}};
  thread_ = TROUPE_TRY(net::LoopThread::start("troupe-http"));
  gate_->loop = &loop();
  loop().post([this] { loop().watch_readable(listener_.get(), [this] { accept(); }); });
  return {};
}

void Server::accept() {
  for (int i = 0; i < kAcceptsPerWakeUp; ++i) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return;
      loop().unwatch(listener_.get());
      loop().call_after(kAcceptPause,
                        [this] { loop().watch_readable(listener_.get(), [this] { accept(); }); });
      return;
    }
    make_room();
    const Place session = sessions_.emplace(sessions_.end());
    session->socket = std::move(socket);
    in_time(session, options_.request_timeout, [this, session] { close(session); });
    loop().when_readable(session->socket.get(), [this, session] { read(session); });
  }
}

// The oldest that is not being answered goes: whoever holds many open keeps nobody out.
void Server::make_room() {
  if (sessions_.size() < kHttpConnectionsMax) return;
  const auto oldest =
      std::find_if(sessions_.begin(), sessions_.end(), [](const Session& s) { return !s.busy; });
  close(oldest == sessions_.end() ? sessions_.begin() : oldest);
}

void Server::close(Place session) {
  loop().cancel(session->timer);
  loop().unwatch(session->socket.get());
  // What it sent beyond what was read would destroy the answer on its way.
  ::shutdown(session->socket.get(), SHUT_WR);
  char unread[kHttpHeaderBytesMax];
  for (int i = 0; i < 8 && ::recv(session->socket.get(), unread, sizeof unread, 0) > 0; ++i) {
  }
  sessions_.erase(session);
}

void Server::in_time(Place session, Duration time, std::function<void()> late) {
  loop().cancel(session->timer);
  session->timer = loop().call_after(time, std::move(late));
}

void Server::read(Place session) {
  char bytes[kHttpHeaderBytesMax];
  const ssize_t count = ::recv(session->socket.get(), bytes, sizeof bytes, 0);
  if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return close(session);
  if (count > 0) {
    if (session->came.empty())
      in_time(session, options_.request_timeout, [this, session] { close(session); });
    session->came.append(bytes, static_cast<std::size_t>(count));
  }
  next_request(session);
}

void Server::next_request(Place session) {
  HttpReading reading = read_http_request(session->came);
  if (reading.refusal) {
    session->keep_alive = false;
    return answer(session, *reading.refusal);
  }
  if (!reading.request)
    return loop().when_readable(session->socket.get(), [this, session] { read(session); });
  session->came.erase(0, reading.request->bytes);
  session->keep_alive = reading.request->keep_alive;
  if (const auto refused = refusal(*reading.request)) return answer(session, *refused);
  ask(session, reading.request->target);
}

bool Server::known_host(const std::string& name) const {
  return is_numeric(name) || name == "localhost" ||
         std::any_of(options_.names.begin(), options_.names.end(),
                     [&](const std::string& known) { return host_name_of(known) == name; });
}

std::optional<HttpPage> Server::refusal(const HttpRequest& request) const {
  if (request.method != "GET")
    return HttpPage{.status = 405, .body = "Only GET is answered here.\n"};
  if (!request.host || !known_host(host_name_of(*request.host))) {
    return HttpPage{.status = 421,
                    .body =
                        "Ask for this server by its numeric address or as localhost: another "
                        "Host is refused, so that no foreign web page reads what stands here.\n"};
  }
  if (request.origin && *request.origin != "http://" + *request.host)
    return HttpPage{.status = 403,
                    .body = "Requests of other sites' pages are refused (Origin).\n"};
  if (!request.target.starts_with('/'))
    return HttpPage{.status = 400, .body = "The target is no path.\n"};
  return std::nullopt;
}

void Server::ask(Place session, const std::string& target) {
  session->busy = true;
  const std::uint64_t number = session->request = ++requests_;
  in_time(session, options_.request_timeout, [this, session] {
    session->keep_alive = false;
    answer(session, {.status = 503, .body = "There was no answer in time.\n"});
  });
  handler_(target.substr(0, target.find('?')),
           [this, number, gate = gate_](std::function<HttpPage()> make_page) {
             const std::lock_guard lock(gate->mutex);
             if (gate->loop == nullptr) return;
             gate->loop->post(
                 [this, number, make_page = std::move(make_page)] { answered(number, make_page); });
           });
}

void Server::answered(std::uint64_t request, const std::function<HttpPage()>& make_page) {
  const auto session = std::find_if(sessions_.begin(), sessions_.end(),
                                    [&](const Session& s) { return s.request == request; });
  if (session != sessions_.end()) answer(session, make_page());  // else it is too late
}

void Server::answer(Place session, const HttpPage& page) {
  session->busy = true;
  session->request = 0;
  session->answer = answer_text(page, session->keep_alive);
  session->sent = 0;
  in_time(session, options_.request_timeout, [this, session] { close(session); });
  write(session);
}

void Server::write(Place session) {
  while (session->sent < session->answer.size()) {
    const ssize_t count = ::send(session->socket.get(), session->answer.data() + session->sent,
                                 session->answer.size() - session->sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN)
      return loop().when_writable(session->socket.get(), [this, session] { write(session); });
    if (count < 0) return close(session);
    session->sent += static_cast<std::size_t>(count);
  }
  if (!session->keep_alive) return close(session);
  session->busy = false;
  session->answer.clear();
  if (session->came.empty()) {
    in_time(session, options_.idle_timeout, [this, session] { close(session); });
    return loop().when_readable(session->socket.get(), [this, session] { read(session); });
  }
  // In a turn of its own: many requests at once are no deep recursion.
  in_time(session, Duration(0), [this, session] {
    in_time(session, options_.request_timeout, [this, session] { close(session); });
    next_request(session);
  });
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpServerOptions options, Handler handler) {
  auto server = std::make_unique<Server>(std::move(options), std::move(handler));
  TROUPE_RETURN_IF_ERROR(server->start());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace troupe::scheduler
