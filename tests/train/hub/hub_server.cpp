#include "tests/train/hub/hub_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <openssl/sha.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>

#include "runtime/base/hash.h"
#include "runtime/base/text.h"

namespace troupe::tests {
namespace {

const std::string kRepository = "acme/tiny";

bool send_all(int fd, std::string_view data) {
  while (!data.empty()) {
    const ssize_t sent = ::send(fd, data.data(), data.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    data.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

}  // namespace

const std::string HubServer::kCommit = std::string(39, 'a') + "1";
const std::string HubServer::kCommit2 = std::string(39, 'b') + "2";

std::string git_sha1(const std::string& content) {
  const std::string whole = fmt::format("blob {}", content.size()) + '\0' + content;
  std::array<std::byte, 20> digest{};
  ::SHA1(reinterpret_cast<const unsigned char*>(whole.data()), whole.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return to_hex(digest);
}

std::string sha256_hex(const std::string& content) { return to_hex(sha256(bytes_of(content))); }

HubServer::HubServer(std::map<std::string, std::string> files, std::vector<std::string> order)
    : files_(std::move(files)), order_(std::move(order)) {
  ::setenv("no_proxy", "127.0.0.1", 1);
  for (int i = 0; i < 2; ++i) {
    listeners_[i] = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listeners_[i].get(), generic, length) != 0 ||
        ::listen(listeners_[i].get(), 64) != 0 ||
        ::getsockname(listeners_[i].get(), generic, &length) != 0)
      std::abort();
    ports_[i] = ntohs(address.sin_port);
  }
  for (int i = 0; i < 2; ++i)
    threads_.emplace_back([this, i] { accept_all(listeners_[i].get(), i == 1); });
}

HubServer::~HubServer() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    for (const int fd : connections_) ::shutdown(fd, SHUT_RDWR);
    for (const auto& listener : listeners_) ::shutdown(listener.get(), SHUT_RDWR);
  }
  for (std::size_t i = 0;; ++i) {
    std::thread thread;
    {
      const std::lock_guard lock(mutex_);
      if (i == threads_.size()) break;
      thread = std::move(threads_[i]);
    }
    thread.join();
  }
}

std::string HubServer::endpoint() const { return fmt::format("http://127.0.0.1:{}", ports_[0]); }
std::string HubServer::second_host() const { return fmt::format("http://127.0.0.1:{}", ports_[1]); }

void HubServer::plan(const std::string& method, const std::string& part, Fault fault, int times) {
  const std::lock_guard lock(mutex_);
  for (int i = 0; i < times; ++i) plan_.push_back({{method, part}, fault});
}

std::vector<HubServer::Seen> HubServer::take_seen() {
  const std::lock_guard lock(mutex_);
  plan_.clear();
  return std::exchange(seen_, {});
}

void HubServer::accept_all(int listener, bool second) {
  for (;;) {
    const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    const std::lock_guard lock(mutex_);
    if (ends_ || fd < 0) {
      if (fd >= 0) ::close(fd);
      return;
    }
    connections_.push_back(fd);
    threads_.emplace_back([this, fd, second] { serve(fd, second); });
  }
}

void HubServer::serve(int fd, bool second) {
  const UniqueFd owned(fd);
  std::string got;
  for (;;) {
    std::size_t end;
    while ((end = got.find("\r\n\r\n")) == std::string::npos) {
      char buffer[4096];
      const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
      if (n <= 0) {
        const std::lock_guard lock(mutex_);
        std::erase(connections_, fd);
        return;
      }
      got.append(buffer, static_cast<std::size_t>(n));
    }
    const std::string head = got.substr(0, end + 2);
    got.erase(0, end + 4);
    Seen seen{.method = head.substr(0, head.find(' ')), .to = second ? "cdn" : "hub"};
    const auto path = head.find(' ') + 1;
    seen.path = head.substr(path, head.find(' ', path) - path);
    for (auto at = head.find("\r\n") + 2; at < head.size(); at = head.find("\r\n", at) + 2) {
      const auto line = head.substr(at, head.find("\r\n", at) - at);
      const auto colon = line.find(": ");
      const auto name = lower_case(line.substr(0, colon));
      if (name == "range") seen.range = line.substr(colon + 2);
      if (name == "authorization") seen.authorization = line.substr(colon + 2);
      if (name == "cookie") seen.cookie = line.substr(colon + 2);
    }
    Answer reply = answer(seen, second);
    if (second && cut_by && !reply.cut_after) reply.cut_after = cut_by();
    seen.status = reply.status;
    {
      const std::lock_guard lock(mutex_);
      seen_.push_back(seen);
    }
    std::string text = fmt::format("HTTP/1.1 {} Said\r\n", reply.status);
    reply.headers.try_emplace("Content-Length", std::to_string(reply.body.size()));
    for (const auto& [name, value] : reply.headers) text += name + ": " + value + "\r\n";
    text += "\r\n";
    if (seen.method != "HEAD") {
      auto body =
          std::string_view(reply.body).substr(0, reply.cut_after.value_or(std::string::npos));
      body_bytes_ += body.size();
      text += body;
    }
    const bool cut = reply.cut_after.has_value() && seen.method != "HEAD" &&
                     *reply.cut_after < reply.body.size();
    if (!send_all(fd, text) || cut) {
      ::shutdown(fd, SHUT_RDWR);
      const std::lock_guard lock(mutex_);
      std::erase(connections_, fd);
      return;
    }
  }
}

std::optional<HubServer::Fault> HubServer::next_fault(const Seen& seen) {
  const std::lock_guard lock(mutex_);
  for (auto it = plan_.begin(); it != plan_.end(); ++it) {
    if (it->first.first != seen.method || seen.path.find(it->first.second) == std::string::npos)
      continue;
    auto fault = it->second;
    plan_.erase(it);
    return fault;
  }
  return std::nullopt;
}

HubServer::Answer HubServer::answer(Seen& seen, bool second) {
  const auto fault = next_fault(seen);
  if (fault && fault->kind == Fault::kStatus)
    return {.status = fault->status, .headers = fault->headers};
  std::string range = seen.range;
  Seen asked = seen;
  if (fault && fault->kind == Fault::kIgnoreRange) asked.range.clear();
  const auto cut = [&](Answer reply) {
    if (fault && fault->kind == Fault::kCut) reply.cut_after = fault->cut_after;
    return reply;
  };
  const auto not_found = [](const char* code, std::string message, std::string commit) {
    Answer reply{.status = 404,
                 .headers = {{"X-Error-Code", code}, {"X-Error-Message", std::move(message)}}};
    if (!commit.empty()) reply.headers["X-Repo-Commit"] = std::move(commit);
    return reply;
  };
  const std::string& path = seen.path;
  if (second) {
    for (const auto& [name, body] : files_) {
      if (path.find(sha256_hex(body)) != std::string::npos)
        return cut(content(asked, body, "cdn-etag-of-its-own"));
    }
    return {.status = 404};
  }
  if (path.starts_with("/api/v1/")) return cut(modelscope(asked));
  if (path.starts_with("/api/")) {
    std::string siblings;
    for (const auto& name : order_)
      siblings += fmt::format("{}{{\"rfilename\": \"{}\"}}", siblings.empty() ? "" : ", ", name);
    const bool v1 = path.find("v1") != std::string::npos;
    return {.headers = {{"Content-Type", "application/json"}},
            .body = fmt::format("{{\"id\": \"{}\", \"sha\": \"{}\", \"siblings\": [{}]}}",
                                kRepository, v1 ? kCommit2 : kCommit, siblings)};
  }
  if (path.starts_with("/acme/old/"))
    return {.status = 307, .headers = {{"Location", "/acme/tiny/" + path.substr(10)}}};
  const auto resolve = path.find("/resolve/");
  const auto rest = resolve == std::string::npos ? "" : path.substr(resolve + 9);
  const auto revision = rest.substr(0, rest.find('/'));
  const auto name = rest.substr(std::min(rest.size(), revision.size() + 1));
  const std::map<std::string, std::string> commits = {{"main", kCommit},
                                                      {kCommit, kCommit},
                                                      {"v1.0", kCommit2},
                                                      {kCommit2, kCommit2},
                                                      {"refs%2Fpr%2F1", kCommit2}};
  const auto commit = commits.find(revision);
  if (commit == commits.end())
    return not_found("RevisionNotFound", "Invalid rev id: " + revision, "");
  const auto file = files_.find(name);
  if (file == files_.end()) return not_found("EntryNotFound", "Entry not found", commit->second);
  if (name.ends_with(".safetensors")) {
    const auto hash = sha256_hex(file->second);
    return {.status = 302,
            .headers = {{"Location", second_host() + "/lfs/" + hash + "?signature=x"},
                        {"X-Repo-Commit", commit->second},
                        {"X-Linked-Size", std::to_string(file->second.size())},
                        {"X-Linked-Etag", '"' + hash + '"'},
                        {"ETag", "\"of-the-pointer\""}}};
  }
  auto reply = content(asked, file->second, git_sha1(file->second));
  reply.headers["X-Repo-Commit"] = commit->second;
  return cut(std::move(reply));
}

HubServer::Answer HubServer::modelscope(const Seen& seen) {
  const auto& path = seen.path;
  const bool model = path.starts_with("/api/v1/models/" + kRepository + "/repo");
  const bool data = path.starts_with("/api/v1/datasets/" + kRepository + "/repo");
  if ((!model && !data) || path.find("Revision=master") == std::string::npos)
    return {.status = 404, .body = R"({"Code": 10010205001, "Success": false})"};
  const auto named = path.find("&FilePath=");
  if (named != std::string::npos) {
    std::string name = path.substr(named + 10);
    for (std::size_t at; (at = name.find("%2F")) != std::string::npos;) name.replace(at, 3, "/");
    const auto file = files_.find(name);
    if (file == files_.end()) return {.status = 404};
    if (name.ends_with(".safetensors"))
      return {.status = 302,
              .headers = {{"Location", second_host() + "/lfs/" + sha256_hex(file->second)}}};
    return content(seen, file->second, "of-modelscope");
  }
  std::string listed = R"({"Path": "sub", "Type": "tree", "Size": 0, "Sha256": ""})";
  for (const auto& name : order_)
    listed += fmt::format(R"(, {{"Path": "{}", "Type": "blob", "Size": {}, "Sha256": "{}"}})", name,
                          files_.at(name).size(), sha256_hex(files_.at(name)));
  return {.body = fmt::format(R"({{"Code": 200, "Data": {{"Files": [{}]}}}})", listed)};
}

HubServer::Answer HubServer::content(const Seen& seen, const std::string& body, std::string etag) {
  Answer reply{.headers = {{"ETag", '"' + etag + '"'}, {"Accept-Ranges", "bytes"}}};
  if (seen.range.empty()) {
    reply.body = body;
    return reply;
  }
  const auto dash = seen.range.find('-');
  const auto begin = parse_integer<std::size_t>(seen.range.substr(6, dash - 6)).value_or(0);
  const auto last =
      parse_integer<std::size_t>(seen.range.substr(dash + 1)).value_or(body.size() - 1);
  if (begin >= body.size()) return {.status = 416};
  reply.status = 206;
  reply.body = body.substr(begin, last - begin + 1);
  reply.headers["Content-Range"] =
      fmt::format("bytes {}-{}/{}", begin, begin + reply.body.size() - 1, body.size());
  return reply;
}

}  // namespace troupe::tests
