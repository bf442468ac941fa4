#include "troupe/cluster.h"

#include <fmt/format.h>

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <mutex>
#include <utility>

#include "actors/actor_spec.h"
#include "actors/client.h"
#include "actors/connect_options.h"
#include "actors/head_directory.h"
#include "actors/host.h"
#include "actors/own_cluster.h"
#include "actors/waiting_notices.h"
#include "runtime/base/process_stamp.h"
#include "runtime/base/random.h"
#include "runtime/process/executable.h"
#include "scheduler/client/output_follower.h"
#include "troupe/actor.h"

namespace troupe {
namespace {

// How long what the actors wrote last may take to arrive when the driver ends.
constexpr Duration kLastOutputTime = std::chrono::seconds(1);
// A head that is gone answers nothing; one that is slow ends the job when it misses the driver.
constexpr auto kEndJobTimeout = std::chrono::seconds(2);
// Whose line it is where no actor has written it.
constexpr const char* kTroupeLabel = "troupe";

// The program that hosts actors, held open: what they run even where it is built anew meanwhile.
std::function<Result<wire::Image>()> image_of(std::shared_ptr<process::Executable> executable) {
  return [executable]() -> Result<wire::Image> {
    return wire::Image{executable->path(), TROUPE_TRY(executable->xxh3())};
  };
}

// What the driver's process has to do with lines of output: one at a time, whichever loop they come
// from.
OnOutput one_at_a_time(OnOutput on_output) {
  if (!on_output) {
    on_output = [](const std::string& actor, std::string_view line) {
      std::fprintf(stderr, "[%s] %.*s\n", actor.c_str(), static_cast<int>(line.size()),
                   line.data());
    };
  }
  return [on_output = std::move(on_output), mutex = std::make_shared<std::mutex>()](
             const std::string& actor, std::string_view line) {
    const std::lock_guard lock(*mutex);
    on_output(actor, line);
  };
}

}  // namespace

struct Cluster::State {
  explicit State(std::unique_ptr<net::LoopThread> t) : thread(std::move(t)) {}
  const ProcessStamp process;
  // Ends in the reverse order: callers first, then head and node, then the loop under all.
  std::unique_ptr<net::LoopThread> thread;
  std::unique_ptr<detail::OwnCluster> own;  // where it is embedded
  net::Address head;
  net::Token token;
  JobId job_id;
  std::string namespace_name;
  ClientId client_id;
  NodeId node_id;
  bool shared = false;  // embedded, and nodes of other machines may have joined
  std::shared_ptr<scheduler::HeadClient> head_client;
  OnOutput on_output;
  std::unique_ptr<scheduler::OutputFollower> follower;
  std::shared_ptr<detail::WaitingNotices> notices;
  std::shared_ptr<detail::ActorClient> client;
  std::atomic<bool> closed{false};
};

Cluster::Cluster(std::unique_ptr<State> state) : state_(std::move(state)) {}
Cluster::Cluster(Cluster&&) noexcept = default;
Cluster& Cluster::operator=(Cluster&& other) noexcept {
  drop();
  state_ = std::move(other.state_);
  return *this;
}
Cluster::~Cluster() { drop(); }

void Cluster::drop() {
  if (!state_) return;
  close();
  if (state_->process.is_forked()) {
    keep_forked(state_.release());
  } else {
    state_.reset();
  }
}

// Joins the head as a driver: the client, and what handles call through.
Status Cluster::join(State& state, NodeId node_id, JobId job_id, const std::string& job_name,
                     const std::string& namespace_name, const std::string& program,
                     Deadline deadline) {
  auto executable = TROUPE_TRY(program.empty() ? process::Executable::self()
                                               : process::Executable::open(program));
  auto random = std::make_shared<SystemRandom>();
  net::EventLoop& loop = state.thread->loop();
  wire::ClientHello hello;
  hello.client_id = state.client_id = ClientId::make(*random);
  hello.job_id = state.job_id = job_id.empty() ? JobId::make(*random) : job_id;
  hello.name = fmt::format("{} {}", job_name, ::getpid());
  hello.kind = "driver";
  hello.namespace_name = state.namespace_name =
      namespace_name.empty() ? wire::namespace_of_job(hello.job_id) : namespace_name;
  state.head_client =
      TROUPE_TRY(scheduler::HeadClient::connect(loop, state.head, state.token, hello, deadline));
  auto environment = std::make_shared<detail::ChannelEnvironment>();
  environment->loop = &loop;
  environment->token = state.token;
  environment->node_id = node_id;
  environment->tries_local = node_id.empty();
  environment->directory = std::make_shared<detail::HeadDirectory>(state.head_client);
  detail::ClientOptions options;
  options.name = job_name;
  options.environment = std::move(environment);
  options.job_id = hello.job_id;
  options.client_id = hello.client_id;
  options.image = image_of(std::move(executable));
  options.random = std::move(random);
  state.client = std::make_shared<detail::ActorClient>(std::move(options));
  return {};
}

// Says by the way of the actors' output which actors have to wait.
void Cluster::tell_of_waiting(State& state, Duration after) {
  state.notices = detail::WaitingNotices::make(
      state.thread->loop(),
      {.patience = after,
       .ask =
           [head = std::weak_ptr(state.head_client)](
               std::function<void(const detail::WaitingNotices::Actors&)> done) {
             if (const auto client = head.lock()) client->list_actors(false, std::move(done));
           },
       .say = [on_output =
                   state.on_output](const std::string& line) { on_output(kTroupeLabel, line); },
       .name_command = state.own == nullptr});
  state.head_client->follow_actors(
      [weak = std::weak_ptr(state.notices)](const wire::ActorInfo& actor) {
        if (const auto notices = weak.lock()) notices->updated(actor);
      });
}

void Cluster::follow_output(State& state) {
  state.follower = std::make_unique<scheduler::OutputFollower>(
      state.thread->loop(), state.head_client, state.token,
      scheduler::OutputFollowerOptions{
          .job_id = state.job_id, .except = state.node_id, .on_line = state.on_output});
}

Result<Cluster> Cluster::start_own(
    const EmbeddedOptions& options,
    const std::function<Result<std::unique_ptr<detail::OwnCluster>>(OnOutput)>& start) {
  TROUPE_RETURN_IF_ERROR(detail::check_may_drive());
  auto state = std::make_unique<State>(TROUPE_TRY(net::LoopThread::start("troupe-driver")));
  state->on_output = one_at_a_time(options.on_output);
  // Who gives a token lets others join, on loopback too.
  state->shared = options.host != EmbeddedOptions().host || !options.token.empty();
  state->own = TROUPE_TRY(start(state->on_output));
  state->head = state->own->head_address();
  state->token = state->own->token();
  state->node_id = state->own->node_id();
  TROUPE_RETURN_IF_ERROR(join(*state, state->node_id, {}, options.job_name, options.namespace_name,
                              options.program, Deadline::after(kControlTimeout)));
  tell_of_waiting(*state, options.tell_waiting_after);
  // This process's own node tells it directly.
  if (state->shared) follow_output(*state);
  return Cluster(std::move(state));
}

Result<Actors::Client> Cluster::usable() const {
  if (!state_) return Status(Code::kFailedPrecondition, "an empty Cluster: it was moved from");
  if (state_->closed) return Status(Code::kFailedPrecondition, "this Cluster was closed");
  return state_->client;
}

void Cluster::close(const std::string& reason) {
  // In a forked child all of it is the parent's.
  if (!state_ || state_->process.is_forked() || state_->closed.exchange(true)) return;
  if (state_->follower) state_->follower->catch_up(kLastOutputTime);
  if (state_->head_client && state_->shared) {
    // The other machines' nodes are told to end, and given the time to.
    static_cast<void>(state_->head_client->stop(reason, Deadline::after(kControlTimeout)));
    state_->own->wait_for_end(kControlTimeout);
  } else if (state_->head_client && !state_->own) {
    // The head would notice the lost connection, after its grace; asked, it ends the actors now.
    auto promise = std::make_shared<Promise<void>>();
    auto ended = promise->future();
    state_->head_client->end_job(state_->job_id, "the driver ended",
                                 [promise](Status status) { promise->set(std::move(status)); });
    (void)ended.get(kEndJobTimeout);
  }
  if (state_->follower) state_->follower->close();
  if (state_->client) state_->client->close();
  if (state_->own) state_->own->stop();
}

Result<Cluster> Cluster::connect(const ConnectOptions& given) {
  TROUPE_RETURN_IF_ERROR(detail::check_may_drive());
  const SystemEnvironment environment;
  PosixFileSystem files;
  const detail::CompleteOptions complete = TROUPE_TRY(detail::complete(
      given, given.environment != nullptr ? *given.environment : environment, files));
  const ConnectOptions& options = complete.options;
  auto state = std::make_unique<State>(TROUPE_TRY(net::LoopThread::start("troupe-driver")));
  state->head = {options.host, options.port, {}};
  state->token = options.token;
  const Status joined = join(*state, {}, options.job_id, options.job_name, options.namespace_name,
                             options.program, Deadline::after(options.timeout));
  if (!joined.ok()) {
    return scheduler::explain_unreached(joined, complete.place, complete.token_file);
  }
  if (options.follow_output) {
    state->on_output = one_at_a_time(options.on_output);
    follow_output(*state);
    tell_of_waiting(*state, options.tell_waiting_after);
  }
  return Cluster(std::move(state));
}

Result<PlacementGroup> Cluster::create_placement_group(const PlacementGroupOptions& options,
                                                       Duration timeout) {
  TROUPE_RETURN_IF_ERROR(usable().status());
  auto spec = TROUPE_TRY(detail::make_group_spec(options));
  SystemRandom random;
  spec.group_id = GroupId::make(random);
  spec.job_id = state_->job_id;
  spec.owner = state_->client_id;
  return PlacementGroup::create(state_->head_client, std::move(spec), Deadline::after(timeout));
}

Result<PlacementGroup> Cluster::get_placement_group(const std::string& name, Duration timeout) {
  TROUPE_RETURN_IF_ERROR(usable().status());
  return PlacementGroup::find(state_->head_client, name, Deadline::after(timeout));
}

Result<std::vector<PlacementGroupInfo>> Cluster::placement_groups(Duration timeout) {
  TROUPE_RETURN_IF_ERROR(usable().status());
  return state_->head_client->groups(true, Deadline::after(timeout));
}

const Cluster::State& Cluster::state() const {
  static const State* const empty = new State(nullptr);
  return state_ ? *state_ : *empty;
}
const net::Address& Cluster::head_address() const { return state().head; }
const net::Token& Cluster::token() const { return state().token; }
const JobId& Cluster::job_id() const { return state().job_id; }
const std::string& Cluster::namespace_name() const { return state().namespace_name; }
const NodeId& Cluster::node_id() const { return state().node_id; }
Actors::Client Cluster::client() const { return state().client; }

}  // namespace troupe
