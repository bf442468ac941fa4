#include "troupe/chaos.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "actors/client.h"
#include "runtime/base/check.h"
#include "runtime/base/file_system.h"
#include "runtime/base/random.h"
#include "runtime/base/start_thread.h"
#include "scheduler/client/actor_words.h"
#include "troupe/detail/mutex.h"
#include "troupe/detail/running_call.h"
#include "troupe/unique_fd.h"

namespace troupe {
namespace {

int signal_of(ActorFault fault) {
  switch (fault) {
    case ActorFault::kKill:
      return SIGKILL;
    case ActorFault::kStop:
      return SIGSTOP;
    case ActorFault::kContinue:
      return SIGCONT;
  }
  return 0;
}

// How long the killer waits for the process that follows one which others have ended.
constexpr Duration kReplacedWithin = std::chrono::seconds(10);

// The command line begins as those of actors' processes do (scheduler/node/host_process.h).
bool hosts_an_actor(std::int64_t pid) {
  PosixFileSystem files;
  const auto text = files.read(fmt::format("/proc/{}/cmdline", pid), 1 << 20);
  return text.ok() && text->find(std::string("\0host\0--actor\0", 14)) != std::string::npos;
}

// Whatever watch() says last, for a thread that waits.
struct Seen {
  Mutex mutex;
  CondVar changed;
  wire::ActorInfo info TROUPE_GUARDED_BY(mutex);
  bool any TROUPE_GUARDED_BY(mutex) = false;
};

}  // namespace

std::string_view actor_fault_name(ActorFault fault) {
  constexpr std::string_view kNames[] = {"kill", "stop", "continue"};
  return kNames[static_cast<int>(fault)];
}

namespace detail {

Result<ActorProcess> process_of(const std::shared_ptr<ActorClient>& client, ActorId actor_id,
                                std::uint64_t later_than, Deadline deadline) {
  if (!client) return error(Code::kFailedPrecondition, "an empty ActorHandle has no process");
  const auto seen = std::make_shared<Seen>();
  const auto watch = client->watch(actor_id, [seen](const wire::ActorInfo& info) {
    MutexLock lock(seen->mutex);
    seen->info = info;
    seen->any = true;
    seen->changed.notify_all();
  });
  const auto is_there = [&]() TROUPE_NO_ANALYSIS {
    const bool alive = seen->info.state == wire::ActorState::kAlive &&
                       seen->info.generation > later_than && seen->info.pid > 0;
    return seen->any && (alive || seen->info.state == wire::ActorState::kDead);
  };
  wire::ActorInfo info;
  bool there = false;
  {
    MutexLock lock(seen->mutex);
    there = seen->changed.wait_until(seen->mutex, deadline, is_there);
    info = seen->info;
  }
  client->unwatch(watch);
  const std::string name = info.name.empty() ? info.type : info.name;
  if (!there) {
    return error(Code::kDeadlineExceeded, "no {}process of the actor answers; it is {}: {}",
                 later_than > 0 ? "later " : "", wire::actor_state_name(info.state),
                 scheduler::actor_waits_for(info, info.node_id.brief()))
        .with("actor", name.empty() ? actor_id.brief() : name);
  }
  if (info.state == wire::ActorState::kDead) {
    return error(Code::kActorDied, "the actor {} is dead: {}", name, info.death.to_string());
  }
  return ActorProcess{
      .actor_id = actor_id, .name = name, .pid = info.pid, .generation = info.generation};
}

}  // namespace detail

Status strike(const ActorProcess& process, ActorFault fault) {
  const auto gone = [&](std::string_view why) {
    return error(Code::kNotFound, "cannot {} process {} of the actor {}: {}",
                 actor_fault_name(fault), process.pid, process.name, why);
  };
  // The descriptor first: what is looked at afterwards is this process, whatever its number
  // becomes.
  const UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  if (!fd.valid()) return gone("no such process on this machine");
  if (!hosts_an_actor(process.pid)) return gone("it is not an actor's on this machine");
  if (::syscall(SYS_pidfd_send_signal, fd.get(), signal_of(fault), nullptr, 0) != 0) {
    return gone(errno == ESRCH ? "it has ended" : "not permitted");
  }
  if (fault != ActorFault::kKill) return {};
  // When it returns, the process runs no more.
  pollfd ended{fd.get(), POLLIN, 0};
  ::poll(&ended, 1, 2000);
  return {};
}

int KillerReport::count(ActorFault fault) const {
  return static_cast<int>(std::count_if(strikes.begin(), strikes.end(),
                                        [&](const Strike& s) { return s.fault == fault; }));
}

Duration KillerReport::back_after_quantile(double share) const {
  std::vector<Duration> times;
  for (const Strike& s : strikes) {
    if (s.fault == ActorFault::kKill) times.push_back(s.back_after);
  }
  if (times.empty()) return {};
  std::sort(times.begin(), times.end());
  return times[static_cast<std::size_t>(share * static_cast<double>(times.size() - 1) + 0.5)];
}

std::string KillerReport::to_string() const {
  const auto ms = [](Duration d) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(d).count();
  };
  const int kills = count(ActorFault::kKill), stops = count(ActorFault::kStop);
  std::string text = fmt::format("{} kill{}", kills, kills == 1 ? "" : "s");
  if (stops > 0) text += fmt::format(", {} stop{}", stops, stops == 1 ? "" : "s");
  if (kills == 0) return text;
  return text + fmt::format("; back after {} ms at the median, {} ms at most",
                            ms(back_after_quantile(0.5)), ms(back_after_quantile(1)));
}

struct RandomKiller::State {
  std::shared_ptr<detail::ActorClient> client;
  std::vector<ActorId> victims;
  KillerOptions options;
  SystemClock clock;

  Mutex mutex;
  CondVar changed;
  bool ending TROUPE_GUARDED_BY(mutex) = false;
  bool done TROUPE_GUARDED_BY(mutex) = false;
  Status failed TROUPE_GUARDED_BY(mutex);
  KillerReport report TROUPE_GUARDED_BY(mutex);
  std::thread thread;

  // False: the killer is to end.
  bool pause(Duration duration) {
    MutexLock lock(mutex);
    return !changed.wait_until(mutex, Deadline::after(duration),
                               [&]() TROUPE_NO_ANALYSIS { return ending; });
  }
  Status strike_once(SeededRandom& random, TimePoint began);
  void run();
};

Status RandomKiller::State::strike_once(SeededRandom& random, TimePoint began) {
  const ActorId victim = victims[random.below(victims.size())];
  const auto fault = random.unit() < options.stop_share ? ActorFault::kStop : ActorFault::kKill;
  const Deadline back_by = Deadline::after(options.back_within);
  const auto process = TROUPE_TRY(detail::process_of(client, victim, 0, back_by));
  KillerReport::Strike struck{.victim = process, .fault = fault};
  const TimePoint now = clock.now();
  struck.at = now - began;
  const Status stricken = strike(process, fault);
  if (stricken.code() == Code::kNotFound) {
    // Somebody else was quicker, if there is a later process: then this was no strike.
    const bool replaced =
        detail::process_of(client, victim, process.generation,
                           detail::earlier(back_by, Deadline::after(kReplacedWithin)))
            .ok();
    return replaced ? Status() : stricken;
  }
  TROUPE_RETURN_IF_ERROR(stricken);
  if (fault == ActorFault::kStop) {
    pause(options.stop_for);
    TROUPE_RETURN_IF_ERROR(strike(process, ActorFault::kContinue));
  } else {
    TROUPE_RETURN_IF_ERROR(
        detail::process_of(client, victim, process.generation, back_by).status());
  }
  struck.back_after = clock.now() - now;
  MutexLock lock(mutex);
  report.strikes.push_back(std::move(struck));
  return {};
}

void RandomKiller::State::run() {
  SeededRandom random(options.seed);
  const TimePoint began = clock.now();
  Status status;
  for (int i = 0; i < options.strikes_max && status.ok(); ++i) {
    const double share = 2 * random.unit();
    if (!pause(std::chrono::duration_cast<Duration>(options.pause * share))) break;
    status = strike_once(random, began);
  }
  MutexLock lock(mutex);
  failed = std::move(status);
  done = true;
  changed.notify_all();
}

RandomKiller::RandomKiller(std::shared_ptr<detail::ActorClient> client,
                           std::vector<ActorId> victims, const KillerOptions& options)
    : state_(std::make_unique<State>()) {
  TROUPE_CHECK(!victims.empty(), "a killer without victims");
  state_->client = std::move(client);
  state_->victims = std::move(victims);
  state_->options = options;
  auto thread = start_thread("kill actors at random", [state = state_.get()] { state->run(); });
  if (thread.ok()) {
    state_->thread = std::move(*thread);
    return;
  }
  MutexLock lock(state_->mutex);
  state_->failed = thread.status();
  state_->done = true;
}

RandomKiller::~RandomKiller() {
  {
    MutexLock lock(state_->mutex);
    state_->ending = true;
    state_->changed.notify_all();
  }
  if (state_->thread.joinable()) state_->thread.join();
}

Result<KillerReport> RandomKiller::finish(Deadline deadline) {
  State& state = *state_;
  MutexLock lock(state.mutex);
  const auto is_done = [&]() TROUPE_NO_ANALYSIS { return state.done; };
  if (!state.changed.wait_until(state.mutex, deadline, is_done)) {
    state.ending = true;
    state.changed.notify_all();
    // A strike under way is bounded by itself.
    state.changed.wait_until(state.mutex, Deadline::after(2 * state.options.back_within), is_done);
  }
  if (!state.failed.ok()) return state.failed;
  return state.report;
}

}  // namespace troupe
