#include "train/trainer/rank_trainer.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/gpu_environment.h"
#include "runtime/memory/segment_transfer.h"
#include "scheduler/client/cluster_record.h"
#include "train/parts/arguments_json.h"
#include "train/trainer/cache_delivery.h"
#include "train/trainer/controller.h"
#include "train/trainer/cpu_agreement.h"
#include "train/trainer/device_choice.h"
#include "train/trainer/former_world.h"
#include "train/trainer/gemm_rate.h"
#include "train/trainer/hub_names.h"
#include "train/trainer/numa_binding.h"

namespace troupe::train {
namespace {

// How long the ranks may take to meet.
constexpr auto kMeetTimeout = std::chrono::seconds(60);
// With machines that have just come: without them the others could go on.
constexpr auto kMeetNewcomersTimeout = std::chrono::seconds(20);
// How long a rank spins before it sleeps, where it has a core for itself.
constexpr auto kSpin = std::chrono::microseconds(20);
// How long the peers of a rank that failed wait until the controller has heard why.
constexpr auto kCauseToldTimeout = std::chrono::seconds(5);
constexpr auto kFaultToldTimeout = std::chrono::seconds(10);
// Of a process whose loop threw: EX_SOFTWARE.
constexpr int kExceptionExitCode = 70;
// Of one whose device was lost: EX_OSERR.
constexpr int kDeviceLostExitCode = 71;
// Of a spare that got a rank and cannot serve: EX_UNAVAILABLE.
constexpr int kUnfitExitCode = 69;
// How long a process that takes a dead one's place waits for what that held of a GPU.
constexpr auto kMemoryPatience = std::chrono::seconds(10);
// How long the ranks may take to end their communicators in the good case.
constexpr auto kEndTimeout = std::chrono::seconds(30);
// How many worlds a new process looks back for memory that nobody gave back.
constexpr int kWorldsLookedBack = 4;
constexpr const char* kBootIdFile = "/proc/sys/kernel/random/boot_id";

// Equal for all processes that may share a GPU, whatever nodes they belong to: the machine as it
// was started; the node where that is not known.
std::string machine_name(FileSystem& files, const NodeId& node) {
  const auto boot = files.read(kBootIdFile, 256);
  return boot.ok() && !boot->empty() ? boot->substr(0, boot->find('\n')) : node.to_string();
}

}  // namespace

// Tells the controller, and strikes where a fault is planned.
class RankTrainer::Observer final : public TrainingObserver {
 public:
  Observer(RankTrainer& trainer, const GenerationPlan& plan) : trainer_(trainer), plan_(plan) {}

  void loaded(const TrainerLoaded& loaded) override {
    trainer_.step_ = loaded.step;
    trainer_.loaded_step_ = loaded.step;
    trainer_.tell(loaded);
  }
  void step_done(const StepRecord& record) override { trainer_.step_ = record.step; }
  void step_finished(const StepRecord& record, std::optional<double> logged_loss) override {
    trainer_.tell(StepReport{.generation = plan_.generation,
                             .step = record.step,
                             .total_steps = trainer_.run_->total_steps(),
                             .loss = record.loss,
                             .grad_norm = record.grad_norm,
                             .learning_rate = record.learning_rate,
                             .tokens = record.tokens,
                             .logged = logged_loss.has_value(),
                             .logged_loss = logged_loss.value_or(0),
                             .skipped = record.skipped,
                             .seconds = record.seconds,
                             .rates = record.rates});
  }
  void evaluated(const EvalResult& result, std::int64_t step, bool best) override {
    trainer_.tell(EvaluationReport{.step = step,
                                   .loss = result.loss,
                                   .samples = result.samples,
                                   .seconds = result.seconds,
                                   .best = best,
                                   .data_set = result.data_set});
  }
  void saving(std::int64_t step) override {
    trainer_.tell(TrainerSaving{trainer_.rank(), plan_.generation, step});
  }
  void checkpoint_written(std::int64_t step, const std::string& path) override {
    trainer_.tell(CheckpointReport{step, path});
  }
  void checkpoint_failed(std::int64_t step, const Status& cause) override {
    trainer_.tell(CheckpointFailedReport{step, cause});
  }
  void checkpoint_abandoned(std::int64_t step, const std::string& path) override {
    trainer_.tell(AbandonedReport{step, path});
  }
  void notice(const std::string& text) override { trainer_.tell(NoticeReport{text}); }
  bool world_changes() const override { return !plan_.world.trainers.empty(); }
  std::optional<bool> safe_before(bool safe) override {
    return std::exchange(trainer_.states_safe_, safe);
  }
  void model_held(const std::string& folder, const Status& cause) override {
    trainer_.tell(ModelHeldReport{folder, cause});
  }
  std::optional<std::string> save_to() override {
    MutexLock lock(trainer_.mutex_);
    return std::exchange(trainer_.save_to_, std::nullopt);
  }
  void model_saved(const std::string& folder) override { trainer_.tell(ModelSavedReport{folder}); }
  void warning(const std::string& text) override { trainer_.tell(WarningReport{text}); }
  void between_steps(const TrainingView& view) override { trainer_.between_steps_.do_all(view); }
  std::optional<std::string> data_wish() override { return trainer_.data_changes_.asked(); }
  void data_wish_done(const std::string& arguments, const Status& outcome) override {
    trainer_.data_changes_.done(arguments, outcome);
  }
  bool stop_requested() override { return trainer_.ending_ || trainer_.cancelled_; }
  bool save_and_stop_requested() override { return trainer_.save_and_stop_; }
  bool pause_requested() override { return trainer_.pause_ == plan_.generation; }

 private:
  RankTrainer& trainer_;
  const GenerationPlan& plan_;
};

RankTrainer::RankTrainer(ActorContext& context, ActorHandle<TrainController> controller,
                         RankSetup setup, TrainingParts parts)
    : context_(context),
      controller_(controller.with({.timeout = std::chrono::hours(1),
                                   .retry = true,
                                   // A controller without its memory asks the trainers for it.
                                   .despite_state_loss = true})),
      setup_(std::move(setup)),
      parts_(std::move(parts)),
      gpu_(setup_.on_gpu ? environment_.get(kVisibleGpus).value_or("") : ""),
      links_(context),
      effects_([this](std::int32_t number) {
        // The controller must know before the process is gone, or the fault would strike again.
        const auto may =
            controller_.call<&TrainController::fault_fired>(number).get(kFaultToldTimeout);
        return may.ok() && *may;
      }),
      injector_(effects_, clock_),
      points_(*this),
      recorder_(progress_.record(), &points_, clock_),
      files_(posix_files_),
      beat_(progress_.record()),
      rank_(setup_.rank),
      generations_(context.id(), setup_.rank) {
  files_.observe(&recorder_, &injector_);
  context_.accept_connections(
      kBundlePurpose, [this](ByteStream stream, std::string, bool same_node) {
        // A bundle may take long between nodes: not on the loop's thread.
        auto shared = std::make_shared<ByteStream>(std::move(stream));
        context_.executor().post([this, shared, same_node] {
          auto bundle = memory::receive_segment(*shared, same_node, kBundleBytesMax,
                                                Deadline::after(kBundleTimeout));
          if (!bundle.ok()) {
            context_.log().error("the run's data did not arrive: {}", bundle.status().to_string());
            return;
          }
          // Whoever waits for the data waits for these, too.
          Status samples;
          if (!same_node && !setup_.token_cache.empty()) samples = take_samples(*shared);
          MutexLock lock(mutex_);
          samples_ = std::move(samples);
          bundle_ = std::move(*bundle);
          took_bundle_ = true;
          changed_.notify_all();
        });
      });
  if (!setup_.on_gpu) warmth_ = std::thread(warm_up_products);
  thread_ = std::thread([this] {
    if (setup_.on_gpu) stay_near_device();
    loop();
  });
}

OutputPaths RankTrainer::output_paths() const {
  return {.output_dir = setup_.output_dir,
          .resume_path = setup_.resume_path,
          .locked_by = setup_.output_locked_by};
}

Status RankTrainer::take_samples(ByteStream& stream) {
  const bool shared = setup_.token_cache.starts_with(setup_.output_dir + "/") &&
                      sees_output_dir(posix_files_, output_paths());
  return take_token_cache(posix_files_, stream, setup_.token_cache, shared, context_.log());
}

RankTrainer::~RankTrainer() {
  ending_ = true;
  between_steps_.end(error(Code::kCancelled, "the trainer ends"));
  data_changes_.end();
  abort(~std::uint64_t{0}, error(Code::kCancelled, "the trainer ends"));
  {
    MutexLock lock(mutex_);
    changed_.notify_all();
  }
  thread_.join();
  if (warmth_.joinable()) warmth_.join();
}

void RankTrainer::begin(GenerationPlan plan) {
  MutexLock lock(mutex_);
  if (generations_.begin(std::move(plan))) changed_.notify_all();
}

TrainerStatus RankTrainer::status() const {
  MutexLock lock(mutex_);
  return generations_.status({.incarnation = context_.generation(),
                              .node_id = context_.node_id(),
                              .pid = ::getpid(),
                              .has_bundle = took_bundle_,
                              .step = step_,
                              .gpu = gpu_,
                              .fit = !unfit_});
}

void RankTrainer::abort(std::uint64_t generation, Status reason) {
  std::shared_ptr<collective::Communicator> communicator;
  GenerationQueue::Aborted aborted;
  {
    MutexLock lock(mutex_);
    aborted = generations_.abort(generation, std::move(reason));
    if (aborted.leave) {
      cancelled_ = true;
      communicator = communicator_;
      // Who greets a peer that is dead already would wait for long.
      for (const UniqueFd& link : forming_) ::shutdown(link.get(), SHUT_RDWR);
    }
  }
  if (aborted.left_before) tell(std::move(*aborted.left_before));
  if (aborted.leave) links_.wake();
  if (communicator) communicator->abort(std::move(*aborted.leave));
}

void RankTrainer::save_and_stop() { save_and_stop_ = true; }

void RankTrainer::pause(std::uint64_t generation) { pause_ = generation; }

void RankTrainer::save_to(std::string folder) {
  MutexLock lock(mutex_);
  save_to_ = std::move(folder);
}

Status RankTrainer::between_steps(BetweenSteps::Work work, Duration timeout) {
  if (std::this_thread::get_id() == actor_thread_)
    return error(Code::kFailedPrecondition,
                 "between_steps() on the actor's own thread, which must stay free to leave a lost "
                 "generation: name the method in `static constexpr auto groups = "
                 "troupe::train::trainer_groups<…>`");
  return between_steps_.run(std::move(work), Deadline::after(timeout));
}

Status RankTrainer::change_data(const Arguments& arguments, Duration timeout) {
  const std::string text = json::write(to_json(arguments));
  const Deadline deadline = Deadline::after(timeout);
  Result<bool> stands = false;
  TROUPE_RETURN_IF_ERROR(between_steps(
      [&](const TrainingView& run) { stands = data_changes_.ask(run, text); }, timeout));
  TROUPE_RETURN_IF_ERROR(stands.status());
  return *stands ? Status() : data_changes_.wait(text, deadline);
}

void RankTrainer::answer_ended() {
  between_steps_.end(run_has_ended());
  data_changes_.run_ended();
}

std::optional<GenerationPlan> RankTrainer::next_plan() {
  // A trainer without work is waited for by its controller, not the other way round: it may idle as
  // long as it likes, and looks about now and then.
  for (;;) {
    {
      MutexLock lock(mutex_);
      // A start that failed used the data up: the first generation tells why.
      const auto can_take_part = [&]() TROUPE_NO_ANALYSIS {
        return bundle_ || run_ || given_back_ || !early_failure_.ok();
      };
      const auto has_work = [&]() TROUPE_NO_ANALYSIS {
        return ending_ || (generations_.waiting() && can_take_part()) ||
               (!run_ && !given_back_ && bundle_);
      };
      changed_.wait_until(mutex_, Deadline::after(std::chrono::seconds(5)), has_work);
      if (ending_) return std::nullopt;
      if (generations_.waiting() && can_take_part()) {
        GenerationPlan plan = generations_.next();
        cancelled_ = !generations_.cancelled().ok();
        rank_ = generations_.rank();
        return plan;
      }
      if (!bundle_) continue;
    }
    make_ready();
  }
}

void RankTrainer::make_ready() {
  // A spare is ready for whatever rank, and a rank for its first generation, which tells what
  // fails.
  Status ready = prepare_run();
  if (!ready.ok()) {
    context_.log().warning("{}", ready.to_string());
    early_failure_ = ready;
  } else if (stands_by()) {
    bool waited_for = false;
    {
      MutexLock lock(mutex_);
      waited_for = generations_.waiting();
    }
    if (waited_for) return;
    if (const Status warm = run_->warm_up(); !warm.ok()) {
      context_.log().warning("the first pass will take longer: {}", warm.to_string());
      ready = early_failure_ = run_->alive();
    }
  }
  if (ready.ok() || !stands_by()) return;
  unfit_ = true;
  tell(TrainerUnfit{setup_.trainer, context_.generation(), std::move(ready)});
}

void RankTrainer::stay_near_device() {
  const auto text = environment_.get(kGpuNumaNode).value_or("");
  const auto node = parse_number_list(text);
  if (!node.ok() || node->size() != 1) return;
  const auto bound = bind_to_numa_node(files_, node->front());
  if (!bound.ok()) {
    context_.log().warning("it may run far from its GPU: {}", bound.status().to_string());
  } else if (!bound->empty()) {
    context_.log().info("{}", *bound);
  }
}

void RankTrainer::loop() {
  while (const auto plan = next_plan()) {
    leave(train(*plan));
    recorder_.stage(step_, Stage::kIdle);
  }
}

void RankTrainer::leave(Status ended) {
  using Peers = GenerationQueue::Departure::Peers;
  std::shared_ptr<collective::Communicator> communicator;
  GenerationQueue::Departure departure;
  {
    MutexLock lock(mutex_);
    // A start that failed uses the data up, and no others will come.
    const bool can_begin_again = run_ || given_back_ || (early_failure_.ok() && bundle_);
    const Reached reached = run_ && loaded_step_ ? run_->reached(*loaded_step_) : Reached::kNoStep;
    departure = generations_.leave(std::move(ended), can_begin_again, reached);
    communicator = std::exchange(communicator_, nullptr);
  }
  if (departure.peers == Peers::kAbortAtOnce && communicator) communicator->abort(departure.cause);
  if (departure.peers != Peers::kAbortOnceTold) return tell(std::move(departure.message));
  static_cast<void>(controller_.call<&TrainController::report>(rank(), std::move(departure.message))
                        .get(kCauseToldTimeout));
  if (communicator) communicator->abort(departure.cause);
}

Status RankTrainer::train(const GenerationPlan& plan) {
  std::vector<PlannedFault> faults;
  for (std::size_t i = 0; i < plan.faults.size(); ++i)
    faults.push_back({plan.fault_numbers[i], plan.faults[i]});
  injector_.begin_generation(rank(), plan.generation, std::move(faults));
  recorder_.begin_generation(plan.generation);
  loaded_step_.reset();
  between_steps_.begin();
  Status ended;
  try {
    ended = train_generation(plan);
  } catch (const std::exception& e) {
    // The memory may be in the midst of anything: another process goes on from it.
    context_.log().error("rank {} ends: the loop threw: {}", rank(), e.what());
    ::_exit(kExceptionExitCode);
  }
  if (ended.ok()) {
    answer_ended();
  } else {
    leave_dead_device(ended);
  }
  return ended;
}

Status RankTrainer::prepare(collective::Communicator& communicator) {
  TROUPE_RETURN_IF_ERROR(agree_on_cpu(communicator));
  // Where there is no such folder other things may be missing for the same reason.
  if (rank() == 0) TROUPE_RETURN_IF_ERROR(check_output_paths(files_, output_paths(), node_name()));
  // It was given the rank before the controller heard.
  if (unfit_) leave_unfit_spare(early_failure_);
  TROUPE_RETURN_IF_ERROR(early_failure_);
  if (!run_) TROUPE_RETURN_IF_ERROR(prepare_run());
  if (run_->rank() >= 0) return {};
  const Status taken = run_->take_rank(rank(), *memory_);
  // There may be room without this process.
  if (taken.code() == Code::kOutOfMemory) leave_unfit_spare(taken);
  return taken;
}

void RankTrainer::leave_unfit_spare(const Status& cause) {
  if (setup_.trainer < setup_.world_size) return;
  context_.log().error("rank {} ends: this spare cannot serve it: {}", rank(), cause.to_string());
  ::_exit(kUnfitExitCode);
}

Status RankTrainer::prepare_run() {
  RunBundle bundle = TROUPE_TRY(take_bundle());
  // What came from a hub may lie elsewhere on this machine.
  auto& model = bundle.config.model;
  const auto look = [&](std::string& folder) {
    if (auto here = same_snapshot_here(files_, SystemEnvironment(), model.cache_dir, folder))
      folder = std::move(*here);
  };
  look(model.model_name_or_path);
  look(bundle.adapter);
  if (auto& reference = bundle.config.method.ref_model) look(*reference);
  for (auto& adapter : bundle.config.method.ref_model_adapters) look(adapter);
  for (auto& merged : bundle.merged_adapters) look(merged);
  const std::string node = node_name();
  TROUPE_RETURN_IF_ERROR(
      check_shared_paths(files_, bundle.config, !setup_.resume_path.empty(), node));
  if (bundle.config.data.streaming) {
    const auto stream = TROUPE_TRY(SampleStream::parse(bundle.sample_stream, "the run's stream"));
    TROUPE_RETURN_IF_ERROR(check_stream_files(stream.files, node));
  }
  if (Status mapped = map_samples(files_, bundle); !mapped.ok()) {
    MutexLock lock(mutex_);
    if (!samples_.ok()) mapped = samples_;
    return mapped.prefixed(
        fmt::format("the run's tokenised data ({}) on node {}", bundle.token_cache, node));
  }
  ComputeChoice compute;
  if (setup_.on_gpu)
    compute = {.kind = ComputeKind::kCuda,
               .tf32 = bundle.config.model.tf32.value_or(false),
               .fp8 = bundle.config.model.fp8,
               .graphs = graph_use(bundle.config)};
  run_ = TROUPE_TRY(TrainingRun::create(
      files_, clock_, context_.log(), std::move(bundle),
      {.run = setup_.run,
       .world_size = world_size_ > 0 ? world_size_ : setup_.world_size,
       .batch_world_size = setup_.world_size,
       .ranks_per_node = setup_.ranks_per_node,
       .threads = setup_.threads,
       .overlaps = setup_.overlaps,
       .resume_path = setup_.resume_path,
       .started_unix_us = setup_.started_unix_us,
       .compute = compute,
       .parts = parts_,
       .stands_by = stands_by(),
       .memory_patience = stands_by() ? Duration(kMemoryPatience) : Duration(0)},
      recorder_, std::exchange(carried_, {})));
  return {};
}

std::string RankTrainer::node_name() const {
  return fmt::format("{} ({})", scheduler::host_name(), context_.node_id().brief());
}

void RankTrainer::enter_world(const GenerationPlan& plan) {
  if (world_ == plan.world.number) return;
  const auto size = static_cast<int>(plan.ranks.size());
  const int made_for = world_size_ > 0 ? world_size_ : setup_.world_size;
  if (run_ && (run_->rank() >= 0 || made_for != size)) {
    given_back_ = run_->give_bundle();
    carried_ = run_->carry_over();
    run_.reset();
  }
  world_ = plan.world.number;
  world_size_ = size;
  memory_.reset();
}

std::vector<FormerRanks> RankTrainer::former_ranks(const GenerationPlan& plan) {
  std::vector<FormerRanks> worlds;
  for (const World& former : plan.former) {
    FormerRanks ranks{.world_size = static_cast<int>(former.trainers.size()),
                      .ranks = ranks_there(former, plan.world)};
    if (const int own = ranks.ranks[static_cast<std::size_t>(rank())]; own >= 0) {
      auto& memory = former_memories_[former.number];
      if (!memory)
        memory = std::make_unique<ActorMemory>(context_, rank_memory(former.number, own));
      ranks.memory = memory.get();
    }
    worlds.push_back(std::move(ranks));
  }
  return worlds;
}

Status RankTrainer::forget_past_worlds(const GenerationPlan& plan) {
  if (plan.world.trainers.empty()) return {};
  const int number = plan.world.number;
  // The process before this one may have been killed before it could. Its rank was as many as there
  // were machines with lower numbers.
  if (own_worlds_.empty()) {
    for (int world = std::max(0, number - kWorldsLookedBack); world < number; ++world) {
      for (int rank = setup_.trainer % setup_.ranks_per_node; rank <= setup_.trainer;
           rank += setup_.ranks_per_node)
        own_worlds_.emplace(world, rank);
    }
  }
  own_worlds_.emplace(number, rank());
  const auto needed = [&](int world) {
    return world == number ||
           std::ranges::find(plan.former, world, &World::number) != plan.former.end();
  };
  std::erase_if(former_memories_, [&](const auto& memory) { return !needed(memory.first); });
  for (auto own = own_worlds_.begin(); own != own_worlds_.end();) {
    if (needed(own->first)) {
      ++own;
      continue;
    }
    ActorMemory memory(context_, rank_memory(own->first, own->second));
    TROUPE_RETURN_IF_ERROR(FormerWorld::drop(memory));
    own = own_worlds_.erase(own);
  }
  return {};
}

Status RankTrainer::keep_progress(int world) {
  memory_.emplace(context_, rank_memory(world, rank()));
  // Whoever asks what the process before died of may come later than this.
  if (const auto before = TROUPE_TRY(memory_->take(kProgressName)))
    TROUPE_RETURN_IF_ERROR(memory_->keep(kProgressBeforeName, *before));
  return memory_->keep(kProgressName, progress_.segment());
}

Result<RunBundle> RankTrainer::take_bundle() {
  if (given_back_) return std::move(*std::exchange(given_back_, std::nullopt));
  // Decoding may take long, and abort() needs the lock.
  std::optional<memory::Segment> segment;
  {
    MutexLock lock(mutex_);
    segment = std::exchange(bundle_, std::nullopt);
  }
  TROUPE_CHECK(segment, "a generation began without the run's data");
  return decode_bundle({segment->data(), segment->size()});
}

void RankTrainer::leave_dead_device(const Status& cause) {
  const Status alive = run_ ? run_->alive() : Status();
  if (alive.ok()) return;
  // Nothing can be computed in this process any more. Another one gets a device that works.
  context_.log().error("rank {} ends: its device is lost: {} (the generation ended with: {})",
                       rank(), alive.to_string(), cause.to_string());
  ::_exit(kDeviceLostExitCode);
}

Status RankTrainer::take_over(const std::shared_ptr<collective::Communicator>& communicator) {
  MutexLock lock(mutex_);
  TROUPE_RETURN_IF_ERROR(generations_.cancelled());
  communicator_ = communicator;
  return {};
}

Result<std::shared_ptr<collective::Communicator>> RankTrainer::meet(const GenerationPlan& plan) {
  auto links = TROUPE_TRY(
      links_.form(plan, rank(), cancelled_,
                  Deadline::after(plan.tries_newcomers ? kMeetNewcomersTimeout : kMeetTimeout),
                  [this](const std::string& text) { tell(WarningReport{text}); }));
  {
    MutexLock lock(mutex_);
    TROUPE_RETURN_IF_ERROR(generations_.cancelled());
    for (const auto& link : links)
      forming_.emplace_back(::fcntl(link.stream.fd(), F_DUPFD_CLOEXEC, 0));
  }
  auto made = collective::make_cpu_communicator(
      {.rank = rank(),
       .world_size = static_cast<int>(plan.ranks.size()),
       .generation = plan.generation,
       .name = setup_.run,
       .spin = setup_.own_core ? Duration(kSpin) : Duration(0),
       .default_timeout = std::chrono::milliseconds(setup_.wait_timeout_ms)},
      std::move(links));
  {
    MutexLock lock(mutex_);
    forming_.clear();
    TROUPE_RETURN_IF_ERROR(generations_.cancelled());
  }
  return std::shared_ptr<collective::Communicator>(TROUPE_TRY(std::move(made)));
}

Result<GenerationCompute> RankTrainer::join(
    const std::shared_ptr<collective::Communicator>& world) {
  // All ranks go the same way: one of them says which, once.
  const bool tells = rank() == 0 && !told_transport_;
  GenerationCompute compute =
      TROUPE_TRY(run_->join(world, {.node = machine_name(files_, context_.node_id()),
                                    .machine = context_.node_id().to_string(),
                                    .labels = context_.node_labels(),
                                    .notice = [&](const std::string& text) {
                                      if (tells) context_.log().info("{}", text);
                                    }}));
  if (!compute.device) return compute;
  if (tells && world->world_size() > 1)
    context_.log().info("collectives of GPUs: {}", compute.device->transport());
  told_transport_ = true;
  TROUPE_RETURN_IF_ERROR(take_over(compute.device));
  return compute;
}

Status RankTrainer::train_generation(const GenerationPlan& plan) {
  recorder_.stage(step_, Stage::kForm);
  enter_world(plan);
  if (!memory_) TROUPE_RETURN_IF_ERROR(keep_progress(plan.world.number));
  const auto world = TROUPE_TRY(meet(plan));
  TROUPE_RETURN_IF_ERROR(take_over(world));
  tell(TrainerFormed{rank(), plan.generation});
  Observer observer(*this, plan);
  TROUPE_RETURN_IF_ERROR(prepare(*world));
  if (plan.purpose == GenerationPurpose::kSaveAlone)
    return run_->save_alone(*world, plan.generation, observer);
  TROUPE_RETURN_IF_ERROR(run_->come_from(former_ranks(plan)));
  TROUPE_RETURN_IF_ERROR(forget_past_worlds(plan));
  const GenerationCompute compute = TROUPE_TRY(join(world));
  Status status = run_->run_generation(compute, plan.generation, observer, plan.purpose);
  if (status.ok() && compute.device) {
    // The run is complete, whatever becomes of the library's objects.
    if (const Status ended = compute.device->end(Deadline::after(kEndTimeout)); !ended.ok())
      context_.log().warning("ending the collectives: {}", ended.to_string());
  }
  return status;
}

void RankTrainer::tell(TrainerMessage message) {
  // Nothing waits for the answer: a controller that is gone is restarted or ends the run.
  static_cast<void>(controller_.call<&TrainController::report>(rank(), std::move(message)));
}

}  // namespace troupe::train
