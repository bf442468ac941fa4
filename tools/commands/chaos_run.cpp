#include "tools/commands/chaos_run.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "runtime/base/clock.h"
#include "runtime/base/json.h"
#include "runtime/base/suggest.h"
#include "runtime/process/child_program.h"
#include "runtime/process/executable.h"
#include "tools/commands/hub_names.h"
#include "tools/commands/outside_strikes.h"
#include "tools/commands/run_result.h"
#include "tools/commands/signals.h"
#include "train/chaos/scenario.h"
#include "train/config/load.h"
#include "train/config/yaml.h"
#include "train/report/run_event.h"
#include "train/report/step_log.h"
#include "troupe/chaos_cluster.h"

namespace troupe::tools {
namespace {

constexpr auto kTick = std::chrono::milliseconds(5);
constexpr auto kClusterTimeout = std::chrono::seconds(30);
// After Ctrl-C the training ends by itself; then it is ended.
constexpr auto kEndTimeout = std::chrono::seconds(15);
constexpr std::uint64_t kScenarioBytesMax = 1u << 20;
constexpr std::uint64_t kLogShownMax = 4u << 20;

class ChaosRun {
 public:
  ChaosRun(const ChaosRunFlags& flags, CommandContext& context)
      : flags_(flags), context_(context) {}
  Status run();

 private:
  Status load();
  Status make_cluster();
  // One training to its end; `strikes` may be null.
  Status train(const std::string& output_dir, const std::string& faults, bool on_cluster,
               OutsideStrikes* strikes, double& seconds);
  void note_strikes();
  Status under_fire();
  Status report();
  json::Object report_json() const;
  std::string report_text() const;

  const ChaosRunFlags& flags_;
  CommandContext& context_;
  SystemClock clock_;
  train::Scenario scenario_;
  std::string output_dir_, oracle_dir_;
  std::int64_t world_size_ = 1, threads_ = 1;
  std::string folder_, mark_;
  std::unique_ptr<ChaosCluster> cluster_;
  std::atomic<int> signal_{0};

  std::vector<OutsideStrike> strikes_;
  std::optional<TrainedRun> struck_, oracle_;
  std::optional<std::string> differs_;
  // Texts of the faults that struck something, one for each time, and of those that never did.
  std::vector<std::string> found_, missed_;
  double seconds_ = 0, oracle_seconds_ = 0;
};

Status ChaosRun::load() {
  const auto text = TROUPE_TRY(context_.files.read(flags_.scenario, kScenarioBytesMax));
  const auto document = TROUPE_TRY(train::parse_yaml(text, flags_.scenario));
  auto more = train::parse_faults(flags_.more_faults);
  if (!more.ok()) return more.status().prefixed("--chaos");
  auto scenario = train::scenario_from_json(document, std::move(*more));
  if (!scenario.ok()) return scenario.status().prefixed(flags_.scenario);
  scenario_ = std::move(*scenario);
  auto names = hub_names(context_, true);
  const auto loaded = TROUPE_TRY(train::load_train_config(
      flags_.train_arguments, context_.environment, context_.files, {.locate = locating(names)}));
  output_dir_ = loaded.config.training.output_dir;
  oracle_dir_ = output_dir_ + "-oracle";
  world_size_ = loaded.world_size.value;
  threads_ = loaded.config.troupe.threads_per_worker.value_or(1);
  return train::check_ranks(scenario_.faults, world_size_);
}

Status ChaosRun::make_cluster() {
  if (!scenario_.loopback) return {};
  const auto ranks_per_node = (world_size_ + scenario_.nodes - 1) / scenario_.nodes;
  const auto own = TROUPE_TRY(process::Executable::self());
  auto cluster =
      ChaosCluster::start({.nodes = static_cast<int>(scenario_.nodes),
                           .cpus_per_node = static_cast<double>(ranks_per_node * threads_),
                           .program = own->path(),
                           .folder = folder_},
                          Deadline::after(kClusterTimeout));
  if (!cluster.ok()) return cluster.status().prefixed("the cluster did not come up");
  cluster_ = std::move(*cluster);
  return {};
}

Status ChaosRun::train(const std::string& output_dir, const std::string& faults, bool on_cluster,
                       OutsideStrikes* strikes, double& seconds) {
  process::ChildOptions child;
  child.arguments = {"train"};
  for (const auto& argument : flags_.train_arguments) child.arguments.push_back(argument);
  child.arguments.push_back("output_dir=" + output_dir);
  child.arguments.push_back("overwrite_output_dir=true");
  child.arguments.push_back("troupe.chaos=" + faults);
  child.environment[chaos::kChaosMark] = mark_;
  if (on_cluster) {
    child.arguments.push_back("troupe.address=" + cluster_->address());
    child.environment["HOME"] = cluster_->home();
  }
  child.output_path = join_path(folder_, strikes ? "train.log" : "oracle.log");
  const TimePoint began = clock_.now();
  StepsSeen steps(output_dir);
  const auto program = TROUPE_TRY(process::ChildProgram::start(child));
  std::optional<Deadline> end_by;
  for (;;) {
    const auto code = program->wait(Deadline::after(kTick));
    if (code.ok()) {
      seconds = std::chrono::duration<double>(clock_.now() - began).count();
      if (signal_ != 0) return error(Code::kCancelled, "interrupted");
      if (*code == 0) return {};
      const auto log = context_.files.read(child.output_path, kLogShownMax);
      const std::string text = log.ok() ? *log : std::string();
      return error(Code::kFailedPrecondition, "the {} ended with exit code {}:\n{}",
                   strikes ? "training under fire" : "undisturbed training", *code,
                   trim(std::string_view(text).substr(text.size() -
                                                      std::min<std::size_t>(2000, text.size()))));
    }
    if (code.status().code() != Code::kDeadlineExceeded) return code.status();
    if (signal_ != 0 && !end_by) {
      program->signal(SIGINT);
      end_by = Deadline::after(kEndTimeout);
    }
    if (end_by && end_by->passed()) return error(Code::kCancelled, "interrupted");
    if (strikes && signal_ == 0) strikes->tick(steps.under_way());
  }
}

// The run itself does not notice that the cluster's own processes end: its story has them from
// here.
void ChaosRun::note_strikes() {
  auto events = train::LineFile::open(context_.files, join_path(output_dir_, train::kEventsFile));
  if (!events.ok()) return;
  for (const OutsideStrike& strike : strikes_) {
    if (!strike.of_cluster || strike.target.empty()) continue;
    static_cast<void>(events->append(train::event_line(
        {.event = train::events::kStruck, .cause = strike.target, .fault = strike.fault},
        strike.unix_time_us)));
  }
}

Status ChaosRun::under_fire() {
  std::vector<train::Fault> inside;
  for (const auto& fault : scenario_.faults) {
    if (train::strikes_at_point(fault)) inside.push_back(fault);
  }
  TROUPE_RETURN_IF_ERROR(make_cluster());
  {
    OutsideStrikes strikes(scenario_.faults, scenario_.seed, mark_, cluster_.get(), clock_);
    const Status trained =
        train(output_dir_, train::faults_text(inside), cluster_ != nullptr, &strikes, seconds_);
    strikes_ = strikes.strikes();
    found_ = strikes.struck();
    note_strikes();
    TROUPE_RETURN_IF_ERROR(trained);
  }
  cluster_.reset();
  struck_ = TROUPE_TRY(read_trained_run(context_.files, output_dir_));
  for (const auto& event : struck_->events) {
    if (event.event == train::events::kFault) found_.push_back(event.fault);
  }
  missed_ = train::never_struck(scenario_.faults, found_);
  if (!flags_.oracle) return {};
  TROUPE_RETURN_IF_ERROR(train(oracle_dir_, "", false, nullptr, oracle_seconds_));
  oracle_ = TROUPE_TRY(read_trained_run(context_.files, oracle_dir_));
  differs_ = difference(*struck_, *oracle_);
  return {};
}

json::Object ChaosRun::report_json() const {
  json::Array faults, strikes, recoveries;
  for (const auto& fault : scenario_.faults) faults.push_back(train::fault_text(fault).c_str());
  for (const auto& strike : strikes_) strikes.push_back(to_json(strike));
  for (const auto& recovery : struck_->recoveries) recoveries.push_back(train::to_json(recovery));
  json::Object report{
      {"output_dir", output_dir_},
      {"seconds", seconds_},
      {"steps", struck_->step_count},
      {"faults", std::move(faults)},
      {"strikes", std::move(strikes)},
      {"never_struck", json::Array(missed_.begin(), missed_.end())},
      {"recoveries", std::move(recoveries)},
      {"summary", train::to_json(train::summarize(struck_->recoveries, seconds_ * 1000))},
      {"weights_sha256", struck_->weights_sha256}};
  if (oracle_) {
    report["oracle"] = json::Object{{"output_dir", oracle_dir_},
                                    {"seconds", oracle_seconds_},
                                    {"weights_sha256", oracle_->weights_sha256},
                                    {"equal", !differs_.has_value()},
                                    {"difference", differs_.value_or("")}};
  }
  return report;
}

std::string ChaosRun::report_text() const {
  std::string text;
  for (const auto& strike : strikes_) {
    text += fmt::format("{:8.2f} s  {}  {}\n", strike.at_s, strike.fault,
                        strike.target.empty() ? "found nothing to strike" : strike.target);
  }
  text += train::recovery_table(struck_->recoveries, seconds_ * 1000);
  if (struck_->recoveries.empty()) text += "no recovery was needed\n";
  text += fmt::format("{} steps in {:.1f} s; the model is in {}\n", struck_->step_count, seconds_,
                      output_dir_);
  if (!oracle_) return text;
  return text + fmt::format("undisturbed: {:.1f} s; {}\n", oracle_seconds_,
                            differs_ ? *differs_ : "weights and steps are equal, bit for bit");
}

Status ChaosRun::report() {
  context_.out << (flags_.json ? json::write(report_json()) + "\n" : report_text());
  if (!missed_.empty()) {
    return error(Code::kFailedPrecondition,
                 "{} never struck: the training ended before it came to that, or there was nothing "
                 "to strike",
                 fmt::join(missed_, ", "));
  }
  if (!differs_) return {};
  return error(Code::kDataLoss, "the result is not that of the undisturbed training: {}",
               *differs_);
}

Status ChaosRun::run() {
  TROUPE_RETURN_IF_ERROR(load());
  folder_ = TROUPE_TRY(
      process::make_folder(context_.environment.get("TMPDIR").value_or("/tmp"), "troupe-chaos-"));
  mark_ = folder_;
  const auto work = [&]() -> Status {
    TROUPE_RETURN_IF_ERROR(under_fire());
    return report();
  };
  const Status status = with_signals([&](int signal) { signal_ = signal; }, work, context_);
  cluster_.reset();
  static_cast<void>(context_.files.remove_tree(folder_));
  return status;
}

}  // namespace

Status chaos_run(const ChaosRunFlags& flags, CommandContext& context) {
  return ChaosRun(flags, context).run();
}

}  // namespace troupe::tools
