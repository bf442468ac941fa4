#include "tools/commands/train.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "tools/commands/plan.h"
#include "tools/commands/train_cluster.h"
#include "train/config/explain.h"
#include "train/config/load.h"
#include "train/trainer/driver.h"

namespace troupe::tools {
namespace {

// Ctrl-C and SIGTERM as something to read, instead of the process's end. Threads started later
// inherit the blocked signals; actor processes are started with none blocked.
class Interrupts {
 public:
  void catch_signals() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
    signals_ = UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  int fd() const { return signals_.get(); }
  train::Interrupt take() {
    signalfd_siginfo info;
    if (::read(fd(), &info, sizeof info) != sizeof info) return train::Interrupt::kNone;
    last_ = static_cast<int>(info.ssi_signo);
    return last_ == SIGTERM ? train::Interrupt::kSaveThenEnd : train::Interrupt::kEnd;
  }
  // What the shell is told of a process that such a signal ended.
  int exit_code() {
    if (last_ == 0) take();  // seen, and not taken yet
    return 128 + (last_ != 0 ? last_ : SIGINT);
  }

 private:
  UniqueFd signals_;
  int last_ = 0;
};

Status train(std::vector<std::string> arguments, CommandContext& context) {
  const auto explain_wanted = std::erase(arguments, "--explain") > 0;
  const auto json_wanted = std::erase(arguments, "--json") > 0;
  const auto loaded =
      TROUPE_TRY(train::load_train_config(arguments, context.environment, context.files));
  if (explain_wanted) {
    const auto rows = train::explain(loaded);
    context.out << (json_wanted ? json::write(train::explain_json(rows)) + "\n"
                                : train::explain_table(rows, false));
    return {};
  }
  if (loaded.launch.node_rank > 0) return join_as_worker(context, loaded);
  const SystemClock clock;
  train::StandardErrorOutput output;
  const auto cores = std::max(1u, std::thread::hardware_concurrency());
  train::DriverEnvironment environment{.files = context.files,
                                       .clock = clock,
                                       .random = context.random,
                                       .output = output,
                                       .cores = cores};
  // On a cluster that runs already, trainers are elsewhere.
  if (!train::resolve_address(loaded.config, loaded.launch)) {
    environment.memory = TROUPE_TRY(memory_here(context.files));
  }
  // Until there is something to take down, Ctrl-C ends the process at once.
  Interrupts interrupts;
  environment.make_cluster = [&](int trainers) {
    interrupts.catch_signals();
    environment.interrupt_fd = interrupts.fd();
    environment.take_interrupt = [&] { return interrupts.take(); };
    return make_training_cluster(context, loaded, trainers, interrupts.fd(), output);
  };
  const auto summary = train::run_training(loaded, environment);
  if (summary.status().code() == Code::kCancelled) context.exit_code = interrupts.exit_code();
  if (!summary.ok()) return summary.status();
  if (json_wanted) {
    context.out << json::write(json::Object{{"output_dir", summary->output_dir},
                                            {"steps", summary->steps},
                                            {"failures", summary->failures},
                                            {"seconds", summary->seconds}})
                << "\n";
  }
  return {};
}

}  // namespace

void add_train_command(CLI::App& app, CommandContext& context) {
  auto arguments = std::make_shared<std::vector<std::string>>();
  Command(app, context, "train", "Trains a model as LLaMA-Factory's YAML file says.")
      .pass_through(*arguments)
      .example("troupe train examples/train/pretrain_tiny.yaml")
      .example("troupe train x.yaml learning_rate=1e-4 troupe.workers=4")
      .example("troupe train x.yaml --chaos 'kill@step=40,rank=1'")
      .example("troupe train x.yaml --address 10.0.0.2:6379    on a running cluster")
      .example(
          "USE_RAY=1 NNODES=2 NODE_RANK=1 MASTER_ADDR=10.0.0.2 MASTER_PORT=6379 \\\n"
          "  troupe train x.yaml                   the second of two machines")
      .example("troupe train x.yaml --explain         what becomes of every key")
      .run([arguments, &context] { return train(*arguments, context); });
}

}  // namespace troupe::tools
