// The HTTP server as strangers meet it: raw sockets, byte by byte.

#include "scheduler/head/http_server.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <mutex>
#include <optional>
#include <thread>

#include "troupe/unique_fd.h"

using namespace troupe;
using namespace troupe::scheduler;
using namespace std::chrono_literals;

namespace {

class Visitor {
 public:
  explicit Visitor(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    REQUIRE(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  }
  bool say(const std::string& bytes) {
    return ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // What comes until `until` stands in it, or the server closes, or 10 s have passed.
  std::string hear(const std::string& until = "") {
    std::string heard;
    const auto by = Deadline::after(10s);
    while (!by.passed()) {
      pollfd wait{socket_.get(), POLLIN, 0};
      if (::poll(&wait, 1, 50) <= 0) continue;
      char bytes[65536];
      const ssize_t count = ::recv(socket_.get(), bytes, sizeof bytes, 0);
      if (count <= 0) {
        closed_ = true;
        break;
      }
      heard.append(bytes, static_cast<std::size_t>(count));
      if (!until.empty() && heard.find(until) != std::string::npos) break;
    }
    return heard;
  }
  bool closed() {
    hear();
    return closed_;
  }

 private:
  UniqueFd socket_;
  bool closed_ = false;
};

struct Site {
  HttpServerOptions options;
  std::unique_ptr<HttpServer> server;
  explicit Site(HttpServer::Handler handler = nullptr, HttpServerOptions o = {})
      : options(std::move(o)) {
    if (!handler) {
      handler = [](const std::string& path, HttpServer::Answer answer) {
        answer([path] { return HttpPage{.body = "page " + path}; });
      };
    }
    auto started = HttpServer::start(options, std::move(handler));
    REQUIRE_MESSAGE(started.ok(), started.status().to_string());
    server = std::move(*started);
  }
  std::uint16_t port() const { return server->address().port; }
  std::string host() const { return "127.0.0.1:" + std::to_string(port()); }
  std::string ask(const std::string& request) {
    Visitor visitor(port());
    REQUIRE(visitor.say(request));
    return visitor.hear();
  }
  std::string get(const std::string& path, const std::string& headers = "") {
    return ask("GET " + path + " HTTP/1.1\r\nHost: " + host() + "\r\nConnection: close\r\n" +
               headers + "\r\n");
  }
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a page is answered with its type, its length, and no leave to keep or to guess") {
  Site site;
  const std::string answer = site.get("/metrics?x=1");
  CHECK(answer.starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(has(answer, "Content-Type: text/plain; charset=utf-8\r\n"));
  CHECK(has(answer, "Content-Length: 13\r\n"));
  CHECK(has(answer, "Cache-Control: no-store\r\n"));
  CHECK(has(answer, "X-Content-Type-Options: nosniff\r\n"));
  CHECK(answer.ends_with("\r\n\r\npage /metrics"));
}

TEST_CASE("a connection carries several requests") {
  Site site;
  Visitor visitor(site.port());
  for (const std::string path : {"/a", "/b", "/c"}) {
    REQUIRE(visitor.say("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    CHECK(has(visitor.hear("page " + path), "page " + path));
  }
}

TEST_CASE("only GET; the answer says so") {
  Site site;
  for (const std::string method : {"POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE"}) {
    const std::string answer = site.ask(method + " / HTTP/1.1\r\nHost: " + site.host() +
                                        "\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    CHECK_MESSAGE(answer.starts_with("HTTP/1.1 405 "), method);
    CHECK(has(answer, "Allow: GET\r\n"));
  }
  CHECK(site.ask("POST / HTTP/1.1\r\nHost: " + site.host() + "\r\nContent-Length: 5\r\n\r\nhello")
            .starts_with("HTTP/1.1 4"));
}

TEST_CASE("a Host that a foreign page could have made up is refused") {
  HttpServerOptions options;
  options.names = {"machine"};
  Site site(nullptr, options);
  const auto with_host = [&](const std::string& host) {
    return site.ask("GET / HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n");
  };
  for (const std::string host : {"evil.example", "evil.example:80", "localhost.evil.example", "",
                                 "127.0.0.1.evil.example", "[evil]", "machine.evil"}) {
    CHECK_MESSAGE(with_host(host).starts_with("HTTP/1.1 421 "), host);
  }
  for (const std::string host : {"localhost", "LOCALHOST:9090", "127.0.0.1", "[::1]:80", "machine",
                                 "Machine:1", "10.1.2.3"}) {
    CHECK_MESSAGE(with_host(host).starts_with("HTTP/1.1 200 "), host);
  }
  CHECK(site.ask("GET / HTTP/1.1\r\nConnection: close\r\n\r\n").starts_with("HTTP/1.1 421 "));
  CHECK(site.ask("GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\nConnection: close\r\n\r\n")
            .starts_with("HTTP/1.1 421 "));
}

TEST_CASE("a request that another site's page makes is refused") {
  Site site;
  CHECK(site.get("/", "Origin: http://evil.example\r\n").starts_with("HTTP/1.1 403 "));
  CHECK(site.get("/", "Origin: null\r\n").starts_with("HTTP/1.1 403 "));
  CHECK(site.get("/", "Origin: http://" + site.host() + "\r\n").starts_with("HTTP/1.1 200 "));
}

TEST_CASE("what is long, or no request, is refused, and the server lives") {
  Site site;
  CHECK(site.get("/" + std::string(20'000, 'x')).starts_with("HTTP/1.1 431 "));
  CHECK(site.get("/", "X: " + std::string(20'000, 'x') + "\r\n").starts_with("HTTP/1.1 431 "));
  for (const std::string& junk : {std::string("hello\r\n\r\n"), std::string("\0\1\2\3\r\n\r\n", 8),
                                  std::string("GET\r\n\r\n"), std::string("GET / HTTP/9.9\r\n\r\n"),
                                  std::string("\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 11)}) {
    const std::string answer = site.ask(junk);
    const bool refused = answer.empty() || answer.starts_with("HTTP/1.1 400 ");
    CHECK_MESSAGE(refused, answer);
  }
  CHECK(site.ask("GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .starts_with("HTTP/1.1 400 "));
  CHECK(site.get("/").starts_with("HTTP/1.1 200 "));
}

TEST_CASE("slow ones are cut off, and many of them keep nobody out") {
  HttpServerOptions options;
  options.request_timeout = 300ms;
  Site site(nullptr, options);
  std::vector<std::unique_ptr<Visitor>> visitors;
  for (std::size_t i = 0; i < kHttpConnectionsMax + 20; ++i) {
    visitors.push_back(std::make_unique<Visitor>(site.port()));
    (void)visitors.back()->say("GET / HT");
  }
  CHECK(site.get("/").starts_with("HTTP/1.1 200 "));
  for (auto& visitor : visitors) CHECK(visitor->closed());
  CHECK(site.get("/").starts_with("HTTP/1.1 200 "));
}

TEST_CASE(
    "an answer that does not come in time is said to have been none; a late one harms nobody") {
  HttpServerOptions options;
  options.request_timeout = 100ms;
  std::mutex mutex;
  std::vector<HttpServer::Answer> answers;
  auto site = std::make_optional<Site>(
      [&](const std::string&, HttpServer::Answer answer) {
        const std::lock_guard lock(mutex);
        answers.push_back(std::move(answer));
      },
      options);
  CHECK(site->get("/").starts_with("HTTP/1.1 503 "));
  {
    const std::lock_guard lock(mutex);
    REQUIRE(answers.size() == 1);
    answers[0]([] { return HttpPage{}; });
  }
  Visitor visitor(site->port());
  REQUIRE(visitor.say("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  visitor.hear("503");
  site.reset();
  for (const auto& answer : answers) answer([] { return HttpPage{}; });
}

TEST_CASE("answers may come from another thread") {
  std::thread worker;
  {
    Site site([&](const std::string&, HttpServer::Answer answer) {
      worker = std::thread([answer] { answer([] { return HttpPage{.body = "from afar"}; }); });
    });
    CHECK(has(site.get("/"), "from afar"));
  }
  worker.join();
}

TEST_CASE("a taken port and a host that is no address are named") {
  Site site;
  HttpServerOptions options;
  options.port = site.port();
  const auto nobody = [](const std::string&, const HttpServer::Answer&) {};
  const auto taken = HttpServer::start(options, nobody);
  CHECK(taken.status().code() == Code::kAlreadyExists);
  CHECK(has(taken.status().to_string(), std::to_string(site.port())));
  options.host = "localhost";
  CHECK(HttpServer::start(options, nobody).status().code() == Code::kInvalidArgument);
}
