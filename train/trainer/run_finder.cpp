#include "train/trainer/run_finder.h"

#include <sys/stat.h>

#include <algorithm>

#include "train/report/step_log.h"
#include "train/trainer/told_reports.h"

namespace troupe::train {
namespace {

// A head that is away for longer has lost its nodes and their trainers.
constexpr auto kHeadBackTimeout = std::chrono::seconds(60);

// How long ago a file was written last; nothing where it is not there.
std::optional<Duration> since_written(const std::string& path, std::int64_t now_unix_us) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return std::nullopt;
  const std::int64_t at_us =
      static_cast<std::int64_t>(info.st_mtim.tv_sec) * 1'000'000 + info.st_mtim.tv_nsec / 1'000;
  return std::chrono::microseconds(std::max<std::int64_t>(0, now_unix_us - at_us));
}

std::vector<ActorHandle<TrainerActor>> find_trainers(ActorContext& context,
                                                     const std::string& run) {
  std::vector<ActorHandle<TrainerActor>> found;
  // The head may be away, too: only that there is no such actor ends the list.
  const auto head_back_by = Deadline::after(kHeadBackTimeout);
  while (true) {
    auto handle = context.get_actor<TrainerActor>(fmt::format("{}/trainer-{}", run, found.size()),
                                                  kFindTimeout);
    if (handle.ok()) {
      found.push_back(std::move(*handle));
    } else if (handle.status().code() == Code::kNotFound) {
      return found;
    } else if (head_back_by.passed()) {
      context.log().error("looking for the run's trainers: {}", handle.status().to_string());
      return found;
    }
  }
}

}  // namespace

FoundRun find_run(ActorContext& context, const RunSpec& spec, FileSystem& files,
                  const Clock& clock) {
  FoundRun run{.trainers = find_trainers(context, spec.run)};
  std::vector<Future<Sealed<TrainerStatus>>> answers;
  for (auto& trainer : run.trainers) {
    answers.push_back(trainer.with({.timeout = kFindTimeout}).call<&TrainerActor::status>());
  }
  for (auto& answer : answers) {
    auto status = answer.get(kFindTimeout);
    run.known.trainers.push_back(status.ok() ? std::optional(*status->value) : std::nullopt);
  }
  const std::string steps_file = join_path(spec.output_dir, kStepsFile);
  run.known.steps = last_step_in(files, steps_file);
  if (const auto file = read_events(files, join_path(spec.output_dir, kEventsFile)); file.ok()) {
    run.known.generations = generations_told(file->events, spec.run);
    if (spec.elastic()) {
      const World first{0, trainers_of(spec.first_machines, spec.ranks_per_node)};
      run.known.worlds = worlds_told(file->events, first, run.known.steps);
    }
  }
  run.known.silent_for = since_written(steps_file, clock.unix_time_us());
  return run;
}

std::uint64_t generations_told(const std::vector<RunEvent>& events, const std::string& run) {
  std::uint64_t generations = 1;
  for (const RunEvent& event : events) {
    if (event.run != "" && event.run != run) generations = 1;
    generations = std::max(generations, static_cast<std::uint64_t>(event.generation));
  }
  return generations;
}

}  // namespace troupe::train
