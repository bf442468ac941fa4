#include "tools/commands/chaos_enumerate.h"

#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "runtime/base/clock.h"
#include "runtime/base/json.h"
#include "runtime/base/suggest.h"
#include "runtime/process/child_program.h"
#include "tools/commands/run_result.h"
#include "tools/commands/signals.h"
#include "tools/commands/tiny_training.h"
#include "train/chaos/point_lines.h"
#include "troupe/detail/mutex.h"

namespace troupe::tools {
namespace {

constexpr auto kRunTimeout = std::chrono::seconds(60);
constexpr auto kLookForSignals = std::chrono::milliseconds(50);
constexpr std::int64_t kStruckStep = 2;  // of the tiny training: with evaluation and checkpoint
constexpr std::uint64_t kPointsBytesMax = 64u << 20;
constexpr const char* kBase = "base";  // folder of the model that adapters are trained over

struct EnumeratedStrategy {
  const char* name;  // the strategy, unless the settings say another
  int ranks;
  std::map<std::string, std::string> settings;
  bool trains_adapters() const { return settings.contains("finetuning_type"); }
};

using Settings = std::map<std::string, std::string>;

// Over the model of kBase, since an adapter is of use beside weights that a file holds.
Settings adapters(const char* strategy, Settings more = {}) {
  more.merge(Settings{{"troupe.strategy", strategy},
                      {"train_from_scratch", ""},
                      {"troupe.train_tokenizer", ""},
                      {"finetuning_type", "lora"},
                      {"lora_rank", "4"},
                      {"lora_dropout", "0.1"}});
  return more;
}

const std::vector<EnumeratedStrategy>& all_strategies() {
  static const Settings kDora{{"use_dora", "true"}}, kPissa{{"pissa_init", "true"}};
  static const std::vector<EnumeratedStrategy> kAll = {
      {"ddp", 2, {}},
      {"zero1", 2, {}},
      {"zero2", 2, {}},
      {"zero3", 2, {}},
      {"hsdp", 4, {{"troupe.mesh", "2,2"}}},
      {"lora-ddp", 2, adapters("ddp")},
      {"lora-zero3", 2, adapters("zero3")},
      {"dora-ddp", 2, adapters("ddp", kDora)},
      {"dora-zero3", 2, adapters("zero3", kDora)},
      {"pissa-ddp", 2, adapters("ddp", kPissa)},
      {"pissa-zero3", 2, adapters("zero3", kPissa)},
      // Optimizers of whole matrices, and of blocks.
      {"muon-zero3", 2, {{"troupe.strategy", "zero3"}, {"use_muon", "true"}}},
      {"8bit-zero3", 2, {{"troupe.strategy", "zero3"}, {"optim", "adamw_8bit"}}},
      // Pairs beside a reference over a base in 4 bits; adapters so wide that their moments have 8.
      {"dpo-nf4-zero3", 2,
       adapters("zero3", {{"stage", "dpo"},
                          {"dataset", "pairs"},
                          {"template", "default"},
                          {"cutoff_len", "64"},
                          {"quantization_bit", "4"},
                          {"lora_rank", "128"},
                          {"optim", "adamw_8bit"}})}};
  return kAll;
}

// One training with faults, and what came of it.
struct EnumeratedRun {
  const EnumeratedStrategy* strategy = nullptr;
  std::vector<train::Fault> faults;  // the last one is the point's
  const TrainedRun* expected = nullptr;
  std::string output;  // folder's name
  // Result.
  bool visited = false;  // the fault struck
  std::string failure;   // empty: everything as it should be
  double seconds = 0;
  std::optional<double> recovery_ms;
};

std::string stage_of(const train::Fault& fault) {
  return fault.stage ? std::string(train::stage_name(*fault.stage)) : std::string();
}

// Every stage, and of the other points so many that there are `count` in all, evenly spread.
std::vector<train::Fault> some_of(std::vector<train::Fault> faults, std::size_t count) {
  const auto is_stage = [](const train::Fault& fault) {
    return fault.point == train::PointKind::kStage;
  };
  const auto stages =
      static_cast<std::size_t>(std::count_if(faults.begin(), faults.end(), is_stage));
  const std::size_t others = faults.size() - stages;
  const std::size_t wanted = std::min(others, count - std::min(count, stages));
  std::vector<train::Fault> some;
  std::size_t seen = 0;
  for (auto& fault : faults) {
    if (is_stage(fault)) {
      some.push_back(std::move(fault));
      continue;
    }
    // The i-th of the others is taken where i · wanted / others passes a whole number.
    const bool taken = (seen + 1) * wanted / others > seen * wanted / others;
    ++seen;
    if (taken) some.push_back(std::move(fault));
  }
  return some;
}

class Enumeration {
 public:
  Enumeration(const EnumerateFlags& flags, CommandContext& context)
      : flags_(flags), context_(context) {}
  Status run();

 private:
  Status choose_strategies();
  // The undisturbed training and its points; the runs that strike them.
  Status record(const EnumeratedStrategy& strategy);
  void add_runs(const EnumeratedStrategy& strategy, int rank,
                const std::vector<train::RecordedPoint>& points, const TrainedRun& expected);
  // Runs everything, so many at a time.
  Status run_all();
  void run_one(EnumeratedRun& run);
  Status train(const EnumeratedStrategy& strategy, const std::string& output,
               const std::string& faults);
  void judge(EnumeratedRun& run);
  void say(const EnumeratedRun& run, std::size_t number);
  Status summarize(double seconds);

  const EnumerateFlags& flags_;
  CommandContext& context_;
  SystemClock clock_;
  std::string folder_;
  std::vector<const EnumeratedStrategy*> strategies_;
  std::map<std::string, TrainedRun> expected_;
  std::set<std::string> recorded_stages_;
  std::vector<EnumeratedRun> runs_;
  std::atomic<bool> stopping_{false};
  Mutex mutex_;  // the output
};

Status Enumeration::choose_strategies() {
  std::vector<std::string> names;
  for (const auto& strategy : all_strategies()) names.push_back(strategy.name);
  for (const auto& wanted : flags_.strategies.empty() ? names : flags_.strategies) {
    const auto it = std::find(names.begin(), names.end(), wanted);
    if (it == names.end()) {
      return error(Code::kInvalidArgument, "--strategies: '{}' is none of {}{}", wanted,
                   join_words(names), did_you_mean(wanted, names));
    }
    strategies_.push_back(&all_strategies()[static_cast<std::size_t>(it - names.begin())]);
  }
  return {};
}

// kCancelled: a signal ends the enumeration. kInternal: the training failed, with its last lines.
Status Enumeration::train(const EnumeratedStrategy& strategy, const std::string& output,
                          const std::string& faults) {
  auto settings = strategy.settings;
  settings.try_emplace("troupe.strategy", strategy.name);
  if (strategy.trains_adapters()) settings["model_name_or_path"] = join_path(folder_, kBase);
  settings["troupe.workers"] = std::to_string(strategy.ranks);
  if (!faults.empty()) settings["troupe.chaos"] = faults;
  process::ChildOptions child;
  child.arguments = {"train"};
  const std::string path = join_path(folder_, output);
  for (auto& argument : tiny_training_arguments(folder_, path, settings)) {
    child.arguments.push_back(std::move(argument));
  }
  child.environment = process::own_environment(join_path(folder_, "home"));
  child.output_path = path + ".log";
  const auto program = TROUPE_TRY(process::ChildProgram::start(child));
  const Deadline deadline = Deadline::after(kRunTimeout);
  while (!stopping_) {
    const auto code = program->wait(Deadline::after(kLookForSignals));
    if (code.ok() && *code == 0) return {};
    if (code.ok()) {
      const auto log = context_.files.read(child.output_path, 16u << 20);
      const auto text = log.ok() ? *log : std::string();
      return error(Code::kFailedPrecondition, "exit code {}: …{}", *code,
                   trim(std::string_view(text).substr(text.size() -
                                                      std::min<std::size_t>(text.size(), 400))));
    }
    if (code.status().code() != Code::kDeadlineExceeded) return code.status();
    if (deadline.passed()) return error(Code::kFailedPrecondition, "did not end within 60 s");
  }
  return error(Code::kCancelled, "interrupted");
}

Status Enumeration::record(const EnumeratedStrategy& strategy) {
  const std::string plain = std::string(strategy.name) + "-undisturbed";
  const std::string recorded = std::string(strategy.name) + "-recorded";
  const std::string points = join_path(folder_, std::string(strategy.name) + "-points");
  TROUPE_RETURN_IF_ERROR(train(strategy, plain, ""));
  TROUPE_RETURN_IF_ERROR(train(strategy, recorded, "record@file=" + points));
  TrainedRun& expected = expected_[strategy.name];
  expected = TROUPE_TRY(read_trained_run(context_.files, join_path(folder_, plain)));
  const auto again = TROUPE_TRY(read_trained_run(context_.files, join_path(folder_, recorded)));
  if (const auto differs = difference(again, expected)) {
    return error(Code::kFailedPrecondition, "{}: two undisturbed runs are not equal: {}",
                 strategy.name, *differs);
  }
  for (const int rank : {0, strategy.ranks - 1}) {
    const std::string path = fmt::format("{}.rank-{}", points, rank);
    const auto text = TROUPE_TRY(context_.files.read(path, kPointsBytesMax));
    auto read = train::read_points(text);
    if (!read.ok()) return read.status().prefixed(path);
    for (const auto& point : *read) recorded_stages_.emplace(train::stage_name(point.stage));
    add_runs(strategy, rank, *read, expected);
  }
  return {};
}

void Enumeration::add_runs(const EnumeratedStrategy& strategy, int rank,
                           const std::vector<train::RecordedPoint>& points,
                           const TrainedRun& expected) {
  auto faults =
      train::faults_at_points(points, {.step = kStruckStep, .operators = flags_.operators}, rank);
  if (flags_.points_max > 0 && flags_.only.empty())
    faults = some_of(std::move(faults), flags_.points_max);
  const auto add = [&](std::vector<train::Fault> all) {
    EnumeratedRun run;
    run.strategy = &strategy;
    run.faults = std::move(all);
    run.expected = &expected;
    run.output = fmt::format("{}-{}", strategy.name, runs_.size());
    runs_.push_back(std::move(run));
  };
  const auto wanted = [&](const train::Fault& fault) {
    return train::fault_text(fault).find(flags_.only) != std::string::npos;
  };
  for (auto& fault : faults) {
    if (wanted(fault)) add({std::move(fault)});
  }
  // A rank idles where another one's death ended its generation: it is killed there, too.
  const int other = rank == 0 ? strategy.ranks - 1 : 0;
  train::Fault first{.step = kStruckStep,
                     .rank = other,
                     .stage = train::Stage::kForward,
                     .point = train::PointKind::kStage};
  train::Fault idle{.rank = rank, .stage = train::Stage::kIdle, .point = train::PointKind::kStage};
  if (wanted(idle)) add({first, idle});
}

void Enumeration::judge(EnumeratedRun& run) {
  const auto trained = read_trained_run(context_.files, join_path(folder_, run.output));
  if (!trained.ok()) {
    run.failure = trained.status().to_string();
    return;
  }
  if (const auto differs = difference(*trained, *run.expected)) {
    run.failure = *differs;
    return;
  }
  std::size_t struck = 0;
  for (const auto& event : trained->events) struck += event.event == train::events::kFault;
  run.visited = struck >= run.faults.size();
  for (const auto& recovery : trained->recoveries) {
    if (recovery.recovery_ms) run.recovery_ms = recovery.recovery_ms;
    const auto lost = recovery.lost_steps.value_or(0);
    const auto again = recovery.recomputed_steps.value_or(0);
    if (lost > 0) run.failure = fmt::format("{} finished steps were lost", lost);
    if (again > 1) run.failure = fmt::format("{} steps were computed again", again);
  }
}

void Enumeration::run_one(EnumeratedRun& run) {
  const TimePoint began = clock_.now();
  const Status trained = train(*run.strategy, run.output, train::faults_text(run.faults));
  run.seconds = std::chrono::duration<double>(clock_.now() - began).count();
  if (trained.code() == Code::kCancelled) return;
  if (trained.ok()) {
    judge(run);
  } else {
    run.failure = trained.message();
  }
  if (run.failure.empty()) {
    static_cast<void>(context_.files.remove_tree(join_path(folder_, run.output)));
    static_cast<void>(context_.files.remove(join_path(folder_, run.output) + ".log"));
  }
}

void Enumeration::say(const EnumeratedRun& run, std::size_t number) {
  const std::string recovery =
      run.recovery_ms ? fmt::format("recovered in {:.0f} ms", *run.recovery_ms) : "";
  const std::string result = !run.failure.empty() ? "FAILED: " + run.failure
                             : run.visited        ? "equal"
                                                  : "not reached";
  if (flags_.json) {
    json::Object line{{"strategy", run.strategy->name},
                      {"faults", train::faults_text(run.faults)},
                      {"visited", run.visited},
                      {"failure", run.failure},
                      {"seconds", run.seconds}};
    if (run.recovery_ms) line["recovery_ms"] = *run.recovery_ms;
    context_.out << json::write(line) << std::endl;
    return;
  }
  context_.out << fmt::format("{:>4}/{}  {:<13}  {:<78}  {}  {}", number, runs_.size(),
                              run.strategy->name, train::faults_text(run.faults), result, recovery)
               << std::endl;
}

Status Enumeration::run_all() {
  std::atomic<std::size_t> next{0};
  std::size_t done = 0;
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < std::max<std::uint64_t>(1, flags_.jobs); ++i) {
    threads.emplace_back([&] {
      for (std::size_t number; (number = next++) < runs_.size() && !stopping_;) {
        run_one(runs_[number]);
        MutexLock lock(mutex_);
        if (!stopping_) say(runs_[number], ++done);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  if (stopping_) return error(Code::kCancelled, "interrupted");
  return {};
}

Status Enumeration::summarize(double seconds) {
  std::set<std::string> stages;
  std::map<std::string, int> kinds;
  int visited = 0, failed = 0, missed = 0;
  std::vector<double> recoveries;
  for (const auto& run : runs_) {
    failed += !run.failure.empty();
    if (!run.visited) {
      missed += run.failure.empty();
      continue;
    }
    ++visited;
    const train::Fault& fault = run.faults.back();
    ++kinds[std::string(train::point_kind_name(fault.point.value_or(train::PointKind::kStage)))];
    if (fault.point == train::PointKind::kStage) stages.insert(stage_of(fault));
    if (run.recovery_ms) recoveries.push_back(*run.recovery_ms);
  }
  std::vector<std::string> missing;
  for (int i = 0; i < train::kStageCount; ++i) {
    const std::string name(train::stage_name(static_cast<train::Stage>(i)));
    // Those that some strategies never come to are of no concern where others were chosen.
    const bool concerns = flags_.strategies.empty() || recorded_stages_.contains(name);
    if (concerns && stages.count(name) == 0) missing.push_back(name);
  }
  std::sort(recoveries.begin(), recoveries.end());
  const auto quantile = [&](double share) {
    if (recoveries.empty()) return 0.0;
    return recoveries[static_cast<std::size_t>(share * static_cast<double>(recoveries.size() - 1))];
  };
  const bool all_stages = missing.empty() || !flags_.only.empty();
  if (flags_.json) {
    context_.out << json::write(json::Object{
                        {"points_visited", visited},
                        {"failed", failed},
                        {"not_reached", missed},
                        {"stages", static_cast<int>(stages.size())},
                        {"stages_missing", json::Array(missing.begin(), missing.end())},
                        {"recovery_p50_ms", quantile(0.5)},
                        {"recovery_max_ms", quantile(1)},
                        {"seconds", seconds}})
                 << std::endl;
  } else {
    std::string by_kind;
    for (const auto& [kind, count] : kinds) {
      by_kind += fmt::format("{}{} {}", by_kind.empty() ? "" : ", ", count, kind);
    }
    context_.out << fmt::format(
        "{} points visited in {:.0f} s ({}); {} of {} stages{}\n"
        "recovered in {:.0f} ms (p50), {:.0f} ms (max); {} failed, {} not reached\n",
        visited, seconds, by_kind, stages.size(), train::kStageCount,
        all_stages ? "" : ", without " + join_words(missing), quantile(0.5), quantile(1), failed,
        missed);
  }
  if (failed == 0 && all_stages && visited > 0) return {};
  return error(Code::kFailedPrecondition, "{} of {} runs failed{}{}", failed, runs_.size(),
               all_stages ? "" : "; no point of the stages " + join_words(missing),
               flags_.keep && failed > 0 ? "; what they left is in " + folder_ : "");
}

Status Enumeration::run() {
  TROUPE_RETURN_IF_ERROR(choose_strategies());
  const auto temporary = context_.environment.get("TMPDIR");
  folder_ = TROUPE_TRY(process::make_folder(temporary.value_or("/tmp"), "troupe-enumerate-"));
  const TimePoint began = clock_.now();
  const auto work = [&]() -> Status {
    TROUPE_RETURN_IF_ERROR(context_.files.create_directories(join_path(folder_, "home")));
    TROUPE_RETURN_IF_ERROR(write_tiny_training(context_.files, folder_));
    if (std::ranges::any_of(strategies_, &EnumeratedStrategy::trains_adapters))
      TROUPE_RETURN_IF_ERROR(train(all_strategies().front(), kBase, ""));
    for (const auto* strategy : strategies_) TROUPE_RETURN_IF_ERROR(record(*strategy));
    TROUPE_RETURN_IF_ERROR(run_all());
    return summarize(std::chrono::duration<double>(clock_.now() - began).count());
  };
  const Status status = with_signals([&](int) { stopping_ = true; }, work, context_);
  if (!flags_.keep) static_cast<void>(context_.files.remove_tree(folder_));
  return status;
}

}  // namespace

Status chaos_enumerate(const EnumerateFlags& flags, CommandContext& context) {
  return Enumeration(flags, context).run();
}

}  // namespace troupe::tools
