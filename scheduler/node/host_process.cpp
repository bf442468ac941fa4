#include "scheduler/node/host_process.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <utility>

#include "runtime/base/check.h"
#include "runtime/memory/unix_socket.h"
#include "runtime/process/child.h"
#include "runtime/process/output.h"
#include "runtime/process/spawn.h"

namespace troupe::scheduler {
namespace {

constexpr int kHostSocket = 3;
constexpr int kNoRank = -1;
// How often a group that does not end is spoken of.
constexpr Duration kKillPatience = std::chrono::seconds(10);
// What was said before the end has arrived by then; only who left the group keeps a socket open.
constexpr Duration kLastWords = std::chrono::milliseconds(200);
constexpr Duration kEndTimeout = std::chrono::seconds(5);
// Nothing tells when the last of a group has ended that nobody has killed yet.
constexpr Duration kLookAgain = std::chrono::milliseconds(20);

std::vector<std::string> arguments_of(const process::Executable& image,
                                      const wire::ActorSpec& spec) {
  const std::string& path = spec.image.path.empty() ? image.path() : spec.image.path;
  const auto slash = path.rfind('/');
  return {slash == std::string::npos ? path : path.substr(slash + 1),
          "host",
          "--actor",
          spec.type,
          "--run",
          spec.run.empty() ? "-" : spec.run,
          "--rank",
          std::to_string(spec.rank < 0 ? kNoRank : spec.rank)};
}

}  // namespace

struct HostProcess::State : std::enable_shared_from_this<HostProcess::State> {
  State(Place place, Handlers h)
      : loop(place.loop),
        parent(place.parent),
        host(place.host),
        program(place.program),
        logger(std::move(place.logger)),
        handlers(std::move(h)),
        log(std::move(place.log)) {}

  HostParent::OnExit on_exit();
  void run(pid_t process, HostEnds ends);
  void leader_ended(wire::ExitStatus exit);
  void kill();
  void group_empty(const Status& status);
  void look_whether_empty();
  void finish_if_done();
  void finish();

  net::EventLoop& loop;
  HostParent& parent;
  const HostId host;
  const bool program;
  Logger logger;
  Handlers handlers;
  pid_t pid = 0;
  std::unique_ptr<process::HostChannel> channel;
  std::shared_ptr<ActorLog> log;
  std::unique_ptr<LogPipes> pipes;
  bool alive = true;  // the owner is there
  bool leader_gone = false;
  bool killing = false;
  bool empty = false;
  bool channel_ended = false;
  bool finished = false;
};

HostParent::OnExit HostProcess::State::on_exit() {
  return [weak = weak_from_this()](wire::ExitStatus exit) {
    if (auto self = weak.lock(); self && self->alive) self->leader_ended(exit);
  };
}

void HostProcess::State::run(pid_t process, HostEnds ends) {
  pid = process;
  // Taken after it was dealt with: a daemon that is killed meanwhile leaves it to the next one.
  channel = std::make_unique<process::HostChannel>(loop, std::move(ends.channel),
                                                   process::HostChannel::Take::kAfter);
  pipes = std::make_unique<LogPipes>(loop, std::move(ends.out), std::move(ends.err), log);
  const std::weak_ptr<State> weak = weak_from_this();
  channel->set_on_taken([weak](std::size_t left_bytes) {
    auto self = weak.lock();
    if (self && self->alive) self->handlers.on_read(left_bytes);
  });
  channel->start(
      [weak](wire::HostMessage message, UniqueFd fd) {
        auto self = weak.lock();
        if (self && self->alive) self->handlers.on_message(std::move(message), std::move(fd));
      },
      [weak](Status why) {
        auto self = weak.lock();
        if (!self || !self->alive) return;
        self->channel_ended = true;
        self->handlers.on_channel_end(std::move(why));
        self->finish_if_done();
      });
}

void HostProcess::State::leader_ended(wire::ExitStatus exit) {
  leader_gone = true;
  const std::weak_ptr<State> weak = weak_from_this();
  handlers.on_leader_end(exit);
  if (weak.expired() || !alive) return;
  if (program) look_whether_empty();
  finish_if_done();
}

// A program's group may end without being killed. Until it is, then that says so.
void HostProcess::State::look_whether_empty() {
  if (killing || empty) return;
  if (process::group_is_empty(pid)) {
    empty = true;
    return finish_if_done();
  }
  loop.call_after(kLookAgain, [weak = weak_from_this()] {
    if (auto self = weak.lock(); self && self->alive) self->look_whether_empty();
  });
}

void HostProcess::State::kill() {
  if (std::exchange(killing, true)) return;
  process::kill_group_until_empty(loop, pid, Deadline::after(kKillPatience, loop.clock()),
                                  [weak = weak_from_this()](Status status) {
                                    auto self = weak.lock();
                                    if (self && self->alive) self->group_empty(status);
                                  });
}

void HostProcess::State::group_empty(const Status& status) {
  if (!status.ok()) {
    logger.warning("{}", status.to_string());
    killing = false;
    return kill();
  }
  empty = true;
  finish_if_done();
}

void HostProcess::State::finish_if_done() {
  if (!leader_gone || !empty || finished) return;
  // Not from within the channel's or the watch's own callback.
  if (channel_ended) {
    finished = true;
    loop.post([weak = weak_from_this()] {
      if (auto self = weak.lock(); self && self->alive) self->finish();
    });
    return;
  }
  loop.call_after(kLastWords, [weak = weak_from_this()] {
    auto self = weak.lock();
    if (!self || !self->alive || std::exchange(self->finished, true)) return;
    self->finish();
  });
}

void HostProcess::State::finish() {
  pipes->drain();
  pipes.reset();
  channel->stop();
  channel.reset();
  parent.release(host);
  handlers.on_group_gone();
}

// With pipes for its output, and a socket to it where it is no program.
Result<std::unique_ptr<HostProcess>> HostProcess::start(Place place, process::SpawnOptions options,
                                                        Handlers handlers) {
  auto sockets = TROUPE_TRY(memory::socket_pair());
  auto out = TROUPE_TRY(process::make_pipe());
  auto err = TROUPE_TRY(process::make_pipe());
  options.new_session = place.reads_input;
  const bool ours = place.reads_input && ::fcntl(STDIN_FILENO, F_GETFD) >= 0;
  const UniqueFd nothing(ours ? -1 : ::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int input = ours ? STDIN_FILENO : nothing.get();
  if (input >= 0) options.descriptors.push_back({.parent = input, .child = 0});
  options.descriptors.push_back({.parent = out.writer.get(), .child = 1});
  options.descriptors.push_back({.parent = err.writer.get(), .child = 2});
  if (!place.program) {
    options.descriptors.push_back({.parent = sockets.second.get(), .child = kHostSocket});
  }
  HostEnds ends{std::move(sockets.first), std::move(out.reader), std::move(err.reader)};
  auto state = std::make_shared<State>(std::move(place), std::move(handlers));
  const pid_t pid =
      TROUPE_TRY(state->parent.spawn(state->host, std::move(options), ends, state->on_exit()));
  state->run(pid, std::move(ends));
  return std::unique_ptr<HostProcess>(new HostProcess(std::move(state)));
}

Result<std::unique_ptr<HostProcess>> HostProcess::spawn(Place place, process::Executable& image,
                                                        const wire::ActorSpec& spec,
                                                        Handlers handlers,
                                                        const std::string& working_directory) {
  process::SpawnOptions options;
  options.working_directory = working_directory;
  options.path = image.path();
  options.executable_fd = image.fd();
  options.argv = arguments_of(image, spec);
  options.environment = spec.environment;
  return start(std::move(place), std::move(options), std::move(handlers));
}

Result<std::unique_ptr<HostProcess>> HostProcess::spawn_program(Place place,
                                                                process::SpawnOptions program,
                                                                Handlers handlers) {
  TROUPE_CHECK(place.program);
  return start(std::move(place), std::move(program), std::move(handlers));
}

std::unique_ptr<HostProcess> HostProcess::adopt(Place place, pid_t pid, HostEnds ends,
                                                Handlers handlers) {
  auto state = std::make_shared<State>(std::move(place), std::move(handlers));
  state->parent.adopt(state->host, state->on_exit());
  state->run(pid, std::move(ends));
  return std::unique_ptr<HostProcess>(new HostProcess(std::move(state)));
}

HostProcess::~HostProcess() {
  state_->alive = false;
  if (!state_->leader_gone) {
    (void)process::kill_group(state_->pid, SIGKILL);
    (void)state_->parent.wait_exit(state_->host, Deadline::after(kEndTimeout));
  }
  if (!state_->finished) {
    const auto by = Deadline::after(kEndTimeout);
    while (!process::group_is_empty(state_->pid) && !by.passed()) {
      (void)process::kill_group(state_->pid, SIGKILL);
      ::usleep(1000);  // killed ones end by themselves; nothing tells when the last one has
    }
  }
  if (state_->pipes) state_->pipes->drain();
  // The loop watches its socket until it is told not to.
  if (state_->channel) {
    state_->channel->stop();
    state_->parent.release(state_->host);
  }
  state_->channel.reset();
  state_->pipes.reset();
}

pid_t HostProcess::pid() const { return state_->pid; }

Status HostProcess::tell(const wire::HostMessage& message, int fd) {
  if (state_->program) {
    if (holds_alternative<wire::HostStop>(message)) signal_program(SIGTERM);
    return {};
  }
  if (!state_->channel) return Status(Code::kUnavailable, "the process has ended");
  return state_->channel->queue(message, fd);
}

void HostProcess::signal_program(int signal) {
  if (state_->program) (void)process::kill_group(state_->pid, signal);
}

std::size_t HostProcess::unread_bytes() const {
  return state_->channel ? state_->channel->queued_bytes() : 0;
}

std::size_t HostProcess::unread_connections() const {
  return state_->channel ? state_->channel->queued_connections() : 0;
}

void HostProcess::kill_group() { state_->kill(); }

void HostProcess::read_output() {
  if (state_->pipes) state_->pipes->read_now();
}

}  // namespace troupe::scheduler
