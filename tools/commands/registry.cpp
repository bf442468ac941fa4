#include "tools/commands/registry.h"

#include <CLI/CLI.hpp>

#include "tools/commands/actors.h"
#include "tools/commands/chaos.h"
#include "tools/commands/chat.h"
#include "tools/commands/data.h"
#include "tools/commands/download.h"
#include "tools/commands/drain.h"
#include "tools/commands/env.h"
#include "tools/commands/events.h"
#include "tools/commands/export.h"
#include "tools/commands/generate.h"
#include "tools/commands/groups.h"
#include "tools/commands/head.h"
#include "tools/commands/help.h"
#include "tools/commands/jobs.h"
#include "tools/commands/logs.h"
#include "tools/commands/merge.h"
#include "tools/commands/new_project.h"
#include "tools/commands/nodes.h"
#include "tools/commands/objects.h"
#include "tools/commands/pipelines.h"
#include "tools/commands/plan.h"
#include "tools/commands/run.h"
#include "tools/commands/save.h"
#include "tools/commands/slurm.h"
#include "tools/commands/status.h"
#include "tools/commands/stop.h"
#include "tools/commands/submit.h"
#include "tools/commands/tasks.h"
#include "tools/commands/timeline.h"
#include "tools/commands/tokenizer.h"
#include "tools/commands/train.h"
#include "tools/commands/verify.h"
#include "tools/commands/version.h"
#include "tools/commands/why.h"
#include "tools/commands/worker.h"

namespace troupe::tools {
namespace {

void declare(CLI::App& app, CommandContext& context) {
  app.set_version_flag("--version", version_line());
  app.footer("'troupe COMMAND --help' explains a command, with examples.");
  app.get_formatter()->column_width(32);
  app.require_subcommand(0, 1);

  // In the order in which --help shows them. A new command: its file, and a line here.
  add_new_command(app, context);
  add_train_command(app, context);
  add_run_command(app, context);
  add_slurm_command(app, context);
  add_why_command(app, context);
  add_plan_command(app, context);
  add_data_command(app, context);
  add_chaos_command(app, context);
  add_download_command(app, context);
  add_generate_command(app, context);
  add_chat_command(app, context);
  add_tokenizer_command(app, context);
  add_export_command(app, context);
  add_merge_command(app, context);
  add_verify_command(app, context);
  add_save_command(app, context);
  add_submit_command(app, context);
  add_jobs_command(app, context);
  add_head_command(app, context);
  add_worker_command(app, context);
  add_status_command(app, context);
  add_nodes_command(app, context);
  add_drain_command(app, context);
  add_actors_command(app, context);
  add_groups_command(app, context);
  add_objects_command(app, context);
  add_tasks_command(app, context);
  add_pipelines_command(app, context);
  add_events_command(app, context);
  add_logs_command(app, context);
  add_timeline_command(app, context);
  add_stop_command(app, context);
  add_env_command(app, context);
  add_version_command(app, context);
  add_help_command(app, context);
}

constexpr const char* kSummary =
    "Troupe: actors across processes and machines, and distributed training on them.";

}  // namespace

std::optional<int> check_arguments(CommandContext& context, std::vector<std::string> arguments) {
  CLI::App app(kSummary, "troupe");
  declare(app, context);
  return parse_command_line(app, context, std::move(arguments));
}

int troupe_main(CommandContext& context, std::vector<std::string> arguments) {
  CLI::App app(kSummary, "troupe");
  declare(app, context);
  return run_command_line(app, context, std::move(arguments));
}

}  // namespace troupe::tools
