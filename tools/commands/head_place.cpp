#include "tools/commands/head_place.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <memory>

#include "scheduler/client/cluster_record.h"

namespace troupe::tools {
namespace {

constexpr int kPortAttempts = 32;
constexpr const char* kJournal = "journal";

// Binds a TCP socket to the address and lets it go again: the port it got. kAlreadyExists where
// `port` is taken.
Result<std::uint16_t> probe_port(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int failed =
          ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found)) {
    return error(Code::kInvalidArgument, "{} is not a numeric address: {}", host,
                 ::gai_strerror(failed));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  const UniqueFd socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return errno_status(errno, "make a socket for", host);
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      (port != 0 && ::listen(socket.get(), 1) != 0)) {
    if (errno == EADDRINUSE) {
      return error(Code::kAlreadyExists,
                   "port {} of {} is taken by another program: give another --port (or "
                   "MASTER_PORT), or none to have a free one found",
                   port, host);
    }
    return errno_status(errno, "listen on", scheduler::format_address(host, port));
  }
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    return errno_status(errno, "name the socket of", host);
  }
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
}

}  // namespace

Result<StateDirectory> StateDirectory::take(FileSystem& files, const std::string& path) {
  TROUPE_RETURN_IF_ERROR(files.create_directories(path, 0700));
  UniqueFd lock(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock.get() < 0) return errno_status(errno, "open the state directory", path);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return error(Code::kAlreadyExists,
                   "the state directory {} is used by a head that runs: stop it with 'troupe "
                   "stop', or give another --state-dir",
                   path);
    }
    return errno_status(errno, "lock the state directory", path);
  }
  return StateDirectory(path, std::move(lock));
}

std::string StateDirectory::journal_path() const { return join_path(path_, kJournal); }

void StateDirectory::remove(FileSystem& files) {
  (void)files.remove(journal_path());
  (void)files.remove(path_);  // fails where there is something else in it: then it stays
}

Result<HeadPlace> take_head_place(CommandContext& context, const std::string& host,
                                  std::optional<std::uint16_t> port,
                                  const std::optional<std::string>& state_dir) {
  const auto directory_of = [&](std::uint16_t p) -> Result<std::string> {
    if (state_dir) return *state_dir;
    return join_path(TROUPE_TRY(scheduler::troupe_directory(context.environment)),
                     fmt::format("head-{}", p));
  };
  if (port && *port != 0) {
    TROUPE_RETURN_IF_ERROR(probe_port(host, *port));
    auto state = TROUPE_TRY(StateDirectory::take(context.files, TROUPE_TRY(directory_of(*port))));
    return HeadPlace{*port, std::move(state)};
  }
  for (int attempt = 0; attempt < kPortAttempts; ++attempt) {
    const auto found = TROUPE_TRY(probe_port(host, 0));
    const auto path = TROUPE_TRY(directory_of(found));
    if (!state_dir && context.files.exists(path)) continue;
    return HeadPlace{found, TROUPE_TRY(StateDirectory::take(context.files, path))};
  }
  return error(Code::kResourceExhausted,
               "{} free ports in a row have a state directory of an earlier head: remove those of "
               "~/.troupe/head-* that are not needed any more, or give --port or --state-dir",
               kPortAttempts);
}

std::vector<std::uint16_t> killed_heads(CommandContext& context, std::size_t count) {
  constexpr std::string_view kPrefix = "head-";
  std::vector<std::uint16_t> ports;
  const auto folder = scheduler::troupe_directory(context.environment);
  if (!folder.ok()) return ports;
  const auto entries = context.files.list(*folder);
  if (!entries.ok()) return ports;
  for (const DirectoryEntry& entry : *entries) {
    const std::string_view name = entry.name;
    if (!entry.is_directory || !name.starts_with(kPrefix)) continue;
    std::uint16_t port = 0;
    const auto [end, failed] =
        std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), port);
    if (failed != std::errc() || end != name.data() + name.size()) continue;
    const std::string path = join_path(*folder, entry.name);
    if (!context.files.exists(join_path(path, kJournal))) continue;
    // Taken for a moment: a head that runs has it.
    if (StateDirectory::take(context.files, path).ok()) ports.push_back(port);
  }
  std::sort(ports.begin(), ports.end());
  if (ports.size() > count) ports.resize(count);
  return ports;
}

Result<std::optional<std::uint16_t>> master_port(const Environment& environment) {
  const auto text = environment.get("MASTER_PORT");
  if (!text || text->empty()) return std::optional<std::uint16_t>();
  unsigned port = 0;
  const char* const end = text->data() + text->size();
  const auto [stopped, failed] = std::from_chars(text->data(), end, port);
  if (failed != std::errc() || stopped != end || port > 65535) {
    return error(Code::kInvalidArgument, "MASTER_PORT is '{}', which is no port (1 to 65535)",
                 *text);
  }
  return std::optional(static_cast<std::uint16_t>(port));
}

}  // namespace troupe::tools
