// What a checkpoint at every step takes: "name value unit" lines on standard output. What it costs
// a step is measured in a real run, by `tools/bench checkpoint`.
//
//   bench_checkpoint [DIR [MIB [RANKS]]]
//
// Forked ranks, each on a core, hold equal shards of a state of MIB MiB (180: 15 million parameters
// and their moments in fp32), save it to DIR (.) at every step beside a fixed amount of arithmetic.

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "runtime/collective/cpu_communicator.h"
#include "train/checkpoint/checkpoint_saver.h"

namespace {

using namespace troupe;
using namespace troupe::train;

constexpr int kSteps = 15;
constexpr double kStepSeconds = 0.9;
constexpr int kTensors = 60;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "bench_checkpoint: %s\n", status.to_string().c_str());
  std::_Exit(exit_code(status.code()));
}

double now() {
  return std::chrono::duration<double>(SystemClock().now().time_since_epoch()).count();
}

// What this process's other threads than the calling one have run: the saver's, that is.
double background_seconds() {
  double nanoseconds = 0;
  std::error_code ignored;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", ignored)) {
    if (task.path().filename() == std::to_string(::getpid())) continue;
    double running = 0;
    std::ifstream(task.path() / "schedstat") >> running;
    nanoseconds += running;
  }
  return 1e-9 * nanoseconds;
}

// Arithmetic over an array that stays in the second-level cache, as GEMMs do.
class Work {
 public:
  void run(std::int64_t rounds) {
    for (std::int64_t r = 0; r < rounds; ++r) {
      for (float& value : values_) value = value * 0.999f + 0.001f;
    }
  }
  // The rounds that take this long.
  std::int64_t calibrate(double seconds) {
    run(1000);
    std::vector<double> times;
    for (int i = 0; i < 5; ++i) {
      const double begin = now();
      run(1000);
      times.push_back(now() - begin);
    }
    return static_cast<std::int64_t>(1000 * seconds / median(times));
  }

 private:
  std::vector<float> values_ = std::vector<float>(64 << 10, 1.0f);
};

// One rank's shard as pieces: a third weights, the rest moments.
SaveContents contents(std::int64_t step, int rank, int world, std::vector<float>& shard) {
  SaveContents contents;
  contents.step = step;
  contents.files = {{"config.json", "{}"}, {"trainer_state.json", "{}"}};
  const auto elements = static_cast<std::int64_t>(shard.size()) / (3 * kTensors);
  std::size_t next = 0;
  for (int i = 0; i < 3 * kTensors; ++i) {
    const char* prefix = i % 3 == 0 ? "" : i % 3 == 1 ? "exp_avg." : "exp_avg_sq.";
    TensorPiece piece;
    piece.name = fmt::format("{}layers.{}.weight", prefix, i / 3);
    piece.shape = {elements * world};
    piece.begin = rank * elements;
    piece.end = piece.begin + elements;
    piece.data = std::as_bytes(std::span(shard).subspan(next, static_cast<std::size_t>(elements)));
    next += static_cast<std::size_t>(elements);
    (i % 3 == 0 ? contents.weights : contents.optimizer).push_back(std::move(piece));
  }
  return contents;
}

struct Figures {
  std::vector<double> start, stall, written;
  double processor = 0;  // seconds of the other threads, per step
};

Figures run_steps(collective::Communicator& communicator, Work& work, std::int64_t rounds,
                  std::vector<float>& shard, CheckpointSaver& saver) {
  Figures figures;
  std::int64_t step = 0;
  double processor = 0;
  for (int i = 0; i < kSteps; ++i) {
    if (i == 1) processor = background_seconds();  // the first step plans
    const double begin = now();
    must(saver.start(contents(++step, communicator.rank(), communicator.world_size(), shard)));
    figures.start.push_back(now() - begin);
    work.run(rounds);
    const auto report = saver.seal();
    must(report.status());
    must(report->outcome);
    figures.stall.push_back(report->stall_seconds);
    figures.written.push_back(report->write_seconds);
    must(communicator.barrier());
  }
  figures.processor = (background_seconds() - processor) / (kSteps - 1);
  must(saver.wait(Deadline::after(std::chrono::minutes(1))));
  return figures;
}

void figure(const char* name, double value, const char* unit) {
  std::printf("%-44s %10.2f %s\n", name, value, unit);
}

void run_rank(collective::Communicator& communicator, const std::string& directory,
              std::int64_t mib) {
  Work work;
  const auto rounds = work.calibrate(kStepSeconds);
  std::vector<float> shard(static_cast<std::size_t>((mib << 18) / communicator.world_size()), 1.0f);
  PosixFileSystem files;
  const SystemClock clock;
  Figures with;
  {
    SaverOptions options;
    options.output_dir = directory;
    options.save_total_limit = 2;
    CheckpointSaver saver(files, communicator, clock, options, Logger::to_stderr("bench"));
    with = run_steps(communicator, work, rounds, shard, saver);
  }
  must(communicator.barrier());
  if (communicator.rank() != 0) return;
  figure("start()", 1e3 * median(with.start), "ms");
  figure("waiting in seal()", 1e3 * median(with.stall), "ms");
  figure("processor time of a save, rank 0", 1e3 * with.processor, "ms");
  figure("writing, in the background", 1e3 * median(with.written), "ms");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string directory = std::string(argc > 1 ? argv[1] : ".") + "/bench-checkpoint";
  const std::int64_t mib = argc > 2 ? std::atol(argv[2]) : 180;
  const int world = argc > 3 ? std::atoi(argv[3]) : 2;
  auto links = collective::make_local_links(std::vector<int>(static_cast<std::size_t>(world), 0));
  must(links.status());
  std::vector<pid_t> children;
  for (int rank = 0; rank < world; ++rank) {
    const pid_t child = ::fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    auto mine = std::move((*links)[static_cast<std::size_t>(rank)]);
    links->clear();
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(static_cast<std::size_t>(rank) % std::thread::hardware_concurrency(), &cores);
    ::sched_setaffinity(0, sizeof cores, &cores);
    collective::CommunicatorOptions options;
    options.rank = rank;
    options.world_size = world;
    auto communicator = collective::make_cpu_communicator(options, std::move(mine));
    must(communicator.status());
    run_rank(**communicator, directory, mib);
    std::fflush(stdout);
    std::_Exit(0);
  }
  links->clear();
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    if (status != 0) failed = 1;
  }
  must(PosixFileSystem().remove_tree(directory));
  return failed;
}
