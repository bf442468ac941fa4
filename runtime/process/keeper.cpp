#include "runtime/process/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/timing.h"
#include "runtime/process/child.h"
#include "runtime/process/descriptor_limit.h"
#include "runtime/process/packet_socket.h"
#include "runtime/process/spawn.h"
#include "runtime/wire/keeper_messages.h"

namespace troupe::process {
namespace {

constexpr int kListenerFd = 3;
// Packets taken at one wake-up, so that others get their turn.
constexpr int kPacketsPerWakeUp = 64;
// How long what it holds may take to reach a daemon that connects.
constexpr Duration kWelcomeTimeout = std::chrono::seconds(2);
constexpr int kFencePollMs = 2;
// How often it looks at the clock, to know whether it runs itself; and what a daemon gets after a
// pause of both.
constexpr std::int64_t kLookMs = 100;
constexpr Duration kAfterPause = std::chrono::milliseconds(200);
constexpr rlim_t kDescriptorsMost = 1u << 16;

class Keeper {
 public:
  Keeper(UniqueFd listener, Duration hold) : listener_(std::move(listener)), hold_(hold) {}

  int run();

 private:
  struct Held {
    wire::Bytes bytes;
    UniqueFd descriptor;
  };

  bool set_up();
  bool is_alone();
  void wait();
  void reap();
  void take_connection();
  void take_packets();
  void flush();
  void lose_client();
  void fence();
  void tell(const wire::KeeperMessage& message) { out_.push_back(wire::encode(message)); }

  void on(wire::KeeperHello& message, std::vector<UniqueFd>& fds);
  void on(wire::KeeperSpawn& message, std::vector<UniqueFd>& fds);
  void on(wire::KeeperPut& message, std::vector<UniqueFd>& fds);
  void on(wire::KeeperDrop& message, std::vector<UniqueFd>&) { held_.erase(message.key); }
  void on(wire::KeeperForget& message, std::vector<UniqueFd>&) {
    children_.erase(message.child_id);
  }
  void on(wire::KeeperQuit&, std::vector<UniqueFd>&) { ending_ = true; }
  void on(wire::KeeperAlive& message, std::vector<UniqueFd>&) {
    lease_end_ = TimePoint(Duration(message.lease_end_ns));
  }
  // What a keeper is not told.
  template <typename Message>
  void on(Message&, std::vector<UniqueFd>&) {}

  const SystemClock clock_;
  UniqueFd listener_;
  const Duration hold_;
  UniqueFd signals_;
  UniqueFd client_;
  TimePoint heard_ = clock_.now();
  TimePoint looked_ = heard_;
  TimePoint lease_end_{};  // of the node; the clock's begin: it has none
  bool ending_ = false;
  std::map<std::uint64_t, wire::KeeperChild> children_;
  std::map<std::string, Held> held_;
  std::deque<wire::Bytes> out_;
};

bool Keeper::set_up() {
  ::prctl(PR_SET_NAME, "troupe-keeper");
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  allow_descriptors(kDescriptorsMost);
  // Of the terminal; the daemon ends us.
  ::signal(SIGHUP, SIG_IGN);
  ::signal(SIGINT, SIG_IGN);
  sigset_t child;
  ::sigemptyset(&child);
  ::sigaddset(&child, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &child, nullptr);
  signals_ = UniqueFd(::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
  const int flags = ::fcntl(listener_.get(), F_GETFL);
  return signals_.valid() && ::fcntl(listener_.get(), F_SETFL, flags | O_NONBLOCK) == 0 &&
         ::fcntl(listener_.get(), F_SETFD, FD_CLOEXEC) == 0;
}

int Keeper::run() {
  if (!set_up()) {
    std::fprintf(stderr, "troupe keeper: %s\n", std::strerror(errno));
    return 1;
  }
  while (!ending_) wait();
  fence();
  return 0;
}

// Whether nobody was there for the hold time, or is at the end of the lease.
bool Keeper::is_alone() {
  const TimePoint now = clock_.now();
  const Duration since_look = now - std::exchange(looked_, now);
  if (!client_.valid() && lease_end_ != TimePoint{} && lease_end_ <= now) return true;
  if (heard_ + hold_ > now) return false;
  if (!client_.valid()) return true;
  // It may have spoken while nobody here listened: where this process did not run, neither may it.
  take_packets();
  if (heard_ + hold_ > clock_.now()) return false;
  if (since_look < hold_ / 2) return true;
  heard_ = now - hold_ + kAfterPause;
  return false;
}

void Keeper::wait() {
  if (is_alone()) {
    const auto count = std::count_if(children_.begin(), children_.end(),
                                     [](const auto& entry) { return !entry.second.ended; });
    const auto silent_ms = (clock_.now() - heard_) / std::chrono::milliseconds(1);
    const std::string why =
        client_.valid() ? "was not heard of for " + std::to_string(silent_ms) + " ms" : "is gone";
    std::fprintf(stderr, "troupe keeper: the node's daemon %s: its %lld actor processes end\n",
                 why.c_str(), static_cast<long long>(count));
    ending_ = true;
    return;
  }
  const auto left_ms =
      std::chrono::ceil<std::chrono::milliseconds>(heard_ + hold_ - clock_.now()).count();
  std::vector<pollfd> polled{{signals_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
  if (client_.valid()) {
    const short events = out_.empty() ? POLLIN : POLLIN | POLLOUT;
    polled.push_back({client_.get(), events, 0});
  }
  const int ready = ::poll(polled.data(), polled.size(),
                           static_cast<int>(std::clamp<std::int64_t>(left_ms, 0, kLookMs)));
  if (ready <= 0) return;
  if (polled[0].revents != 0) reap();
  // The daemon before has to be seen gone before the next one is looked at.
  if (client_.valid()) take_packets();
  if (client_.valid()) flush();
  if (polled[1].revents != 0 && !ending_) take_connection();
}

void Keeper::reap() {
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof info) > 0) {
  }
  int status = 0;
  while (true) {
    const pid_t pid = ::waitpid(-1, &status, WNOHANG);
    if (pid <= 0) return;
    // Others are what our children left behind.
    for (auto& [id, child] : children_) {
      if (child.pid != pid || child.ended) continue;
      child.ended = true;
      if (WIFSIGNALED(status)) {
        child.exit.signal = WTERMSIG(status);
      } else {
        child.exit.exit_code = WEXITSTATUS(status);
      }
      if (client_.valid()) tell(wire::KeeperExited{id, child.exit});
    }
  }
}

// --- the daemon ----------------------------------------------------------------------------------

void Keeper::take_connection() {
  auto socket = accept_packets(listener_.get());
  if (!socket.ok() || !*socket) return;
  if (client_.valid()) {
    const wire::KeeperWelcome refused{
        error(Code::kAlreadyExists, "a daemon of this node runs already")};
    // Who does not take it sees the connection's end.
    (void)send_packet((*socket)->get(), wire::encode(refused), {},
                      Deadline::after(Duration::zero(), clock_));
    return;
  }
  client_ = std::move(**socket);
  heard_ = clock_.now();
}

void Keeper::take_packets() {
  for (int i = 0; i < kPacketsPerWakeUp && client_.valid() && !ending_; ++i) {
    auto packet = receive_packet(client_.get());
    if (!packet.ok()) return lose_client();
    if (!*packet) return;
    auto message = wire::decode_keeper((*packet)->bytes);
    if (!message.ok()) return lose_client();
    heard_ = clock_.now();
    visit([&](auto& m) { on(m, (*packet)->descriptors); }, *message);
  }
}

void Keeper::flush() {
  while (client_.valid() && !out_.empty()) {
    const Status sent =
        send_packet(client_.get(), out_.front(), {}, Deadline::after(Duration::zero(), clock_));
    if (!sent.ok()) return;  // full; where it is gone, reading says so
    out_.pop_front();
  }
}

void Keeper::lose_client() {
  client_.reset();
  out_.clear();
  heard_ = clock_.now();
}

void Keeper::on(wire::KeeperHello& message, std::vector<UniqueFd>&) {
  const auto deadline = Deadline::after(kWelcomeTimeout, clock_);
  const auto say = [&](const wire::KeeperMessage& m, int fd = -1) {
    const std::vector<int> fds(fd >= 0 ? 1 : 0, fd);
    return send_packet(client_.get(), wire::encode(m), fds, deadline).ok();
  };
  out_.clear();
  if (message.protocol_version != wire::kKeeperProtocolVersion) {
    say(wire::KeeperWelcome{error(Code::kFailedPrecondition,
                                  "the node's keeper is of another version of troupe; end it first "
                                  "(process {})",
                                  ::getpid())});
    return lose_client();
  }
  bool told = true;
  for (const auto& [key, held] : held_) {
    told = told && say(wire::KeeperEntry{key, held.bytes}, held.descriptor.get());
  }
  for (const auto& [id, child] : children_) told = told && say(child);
  if (!told || !say(wire::KeeperWelcome{})) lose_client();
}

void Keeper::on(wire::KeeperSpawn& message, std::vector<UniqueFd>& fds) {
  wire::KeeperSpawned answer;
  answer.child_id = message.child_id;
  const auto fail = [&](Status why) {
    answer.status = std::move(why);
    tell(answer);
  };
  const std::size_t first = message.by_path ? 0 : 1;
  if (fds.size() != message.descriptors.size() + first || children_.contains(message.child_id)) {
    return fail(Status(Code::kProtocol, "a request to the keeper that does not fit together"));
  }
  SpawnOptions options;
  options.path = message.path;
  if (!message.by_path) options.executable_fd = fds.front().get();
  options.working_directory = message.working_directory;
  options.new_session = message.new_session;
  options.argv = message.argv;
  for (const std::string& variable : message.environment) {
    const auto equals = variable.find('=');
    if (equals == std::string::npos) continue;
    options.environment[variable.substr(0, equals)] = variable.substr(equals + 1);
  }
  for (std::size_t i = 0; i < message.descriptors.size(); ++i) {
    options.descriptors.push_back(
        {.parent = fds[i + first].get(), .child = message.descriptors[i]});
  }
  options.parent_death_signal = SIGKILL;
  const auto child = spawn(options);
  if (!child.ok()) return fail(child.status());
  children_[message.child_id] = {message.child_id, child->pid, false, {}};
  answer.pid = child->pid;
  tell(answer);
}

void Keeper::on(wire::KeeperPut& message, std::vector<UniqueFd>& fds) {
  Held& held = held_[message.key];
  held.bytes = std::move(message.bytes);
  if (!fds.empty()) held.descriptor = std::move(fds.front());
}

// --- the end -------------------------------------------------------------------------------------

// Until no process is ours: those of our children's groups, and what they left behind, which has
// become our child.
void Keeper::fence() {
  const auto deadline = Deadline::after(kTiming.keeper_end_timeout, clock_);
  while (!deadline.passed(clock_.now())) {
    for (const auto& [id, child] : children_) {
      if (!child.ended) (void)kill_group(static_cast<pid_t>(child.pid), SIGKILL);
    }
    for (const pid_t pid : children_of(::getpid())) ::kill(pid, SIGKILL);
    reap();
    if (::waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD) return;
    ::poll(nullptr, 0, kFencePollMs);
  }
}

}  // namespace

int run_keeper(UniqueFd listener, Duration hold) { return Keeper(std::move(listener), hold).run(); }

bool is_keeper_command(int argc, char** argv) {
  return argc == 6 && std::strcmp(argv[1], "keeper") == 0 &&
         std::strcmp(argv[2], "--socket-name") == 0 && std::strcmp(argv[4], "--hold-ms") == 0;
}

std::optional<int> keeper_main(int argc, char** argv) {
  if (!is_keeper_command(argc, argv)) return std::nullopt;
  const std::string_view text(argv[5]);
  std::int64_t hold_ms = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), hold_ms);
  if (failed != std::errc() || end != text.data() + text.size() || hold_ms <= 0 ||
      ::fcntl(kListenerFd, F_GETFD) < 0) {
    std::fprintf(stderr,
                 "troupe keeper: started by hand; a node starts its keeper, with a socket as "
                 "descriptor 3\n");
    return 2;
  }
  return run_keeper(UniqueFd(kListenerFd), std::chrono::milliseconds(hold_ms));
}

}  // namespace troupe::process
