#include "tools/commands/save.h"

#include <memory>
#include <thread>

#include "runtime/base/json.h"
#include "scheduler/client/cluster_record.h"
#include "tools/commands/cluster_options.h"
#include "train/checkpoint/weights.h"
#include "train/report/run_registry.h"

namespace troupe::tools {
namespace {

constexpr Duration kSaveTimeout = std::chrono::minutes(10);
constexpr Duration kLookForModel = std::chrono::milliseconds(100);

struct SaveOptions {
  std::string run;
  std::string folder;
  std::optional<double> timeout_s;
  bool json = false;
};

Status tell(CommandContext& context, const SaveOptions& options, const train::RunRecord& record,
            const std::string& folder) {
  if (options.json) {
    context.out << json::write(json::Object{{"run", record.run}, {"model", folder}}) << "\n";
  } else {
    context.out << fmt::format("The model of {} is in {}\n", record.run, folder);
  }
  return {};
}

Status save(CommandContext& context, const SaveOptions& options) {
  train::RunRegistry registry(
      context.files, join_path(TROUPE_TRY(scheduler::troupe_directory(context.environment)),
                               train::kRunsDirectory));
  auto record = TROUPE_TRY(registry.find_named(options.run));
  const std::string host = scheduler::host_name();
  if (record.host_name != host && !record.ended()) {
    return error(Code::kFailedPrecondition, "{} runs on {}: save its model there", record.run,
                 record.host_name);
  }
  const Deadline deadline =
      Deadline::after(TROUPE_TRY(seconds_option(options.timeout_s, kSaveTimeout)));
  const std::string folder = train::absolute_path(options.folder);
  if (train::holds_weights(context.files, folder)) {
    return error(
        Code::kAlreadyExists,
        "{} holds a model already, which this one would be written over; name a new folder",
        folder);
  }
  TROUPE_RETURN_IF_ERROR(context.files.create_directories(folder));
  bool asked = false;
  for (;;) {
    record = TROUPE_TRY(registry.find_named(record.run));
    if (train::driver_state(context.files, record, host) != train::DriverState::kRuns) {
      // Room may have come in its own folder before it heard.
      if (asked && record.ended() && record.end.ok())
        return tell(context, options, record,
                    train::holds_weights(context.files, folder) ? folder : record.output_dir);
      return error(Code::kFailedPrecondition,
                   "{} does not run any more, its model is in no memory; 'troupe why {}' tells its "
                   "story",
                   record.run, record.run);
    }
    if (!std::exchange(asked, true)) {
      TROUPE_RETURN_IF_ERROR(registry.ask_to_save(record.run, folder));
    }
    if (deadline.passed()) {
      static_cast<void>(registry.take_save_wish(record.run));
      return error(Code::kDeadlineExceeded,
                   "{} has not written its model to {} in time: either it trains on and holds no "
                   "finished model, or there is no room either; 'troupe why {}' says where it is",
                   record.run, folder, record.run);
    }
    std::this_thread::sleep_for(kLookForModel);
  }
}

}  // namespace

void add_save_command(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<SaveOptions>();
  Command(app, context, "save",
          "Writes a finished model to another folder, when its run's output directory has no room "
          "for it.")
      .argument("run", options->run, "the run's id, or its output directory")
      .argument("dir", options->folder, "the folder for the model; made where it is not there")
      .option("--timeout", options->timeout_s, "SECONDS", "how long to wait (default 600)")
      .flag("--json", options->json, "print one line of JSON instead of text")
      .example("troupe save run-44593e6e /mnt/large/model")
      .run([options, &context] { return save(context, *options); });
}

}  // namespace troupe::tools
