#include "tools/commands/pipelines.h"

#include <memory>
#include <string>
#include <utility>

#include "runtime/base/json.h"
#include "tools/commands/cluster_options.h"
#include "tools/commands/table.h"
#include "tools/commands/work_words.h"

namespace troupe::tools {
namespace {

json::Object pipeline_to_json(const wire::ClientWork& owner, const wire::PipelineWork& pipeline) {
  json::Array stages;
  for (const wire::StageWork& stage : pipeline.stages) {
    stages.push_back(json::Object{{"name", stage.name},
                                  {"actors", stage.actors},
                                  {"bound", stage.bound},
                                  {"items", stage.waiting},
                                  {"respawns", stage.respawns}});
  }
  json::Object object{{"owner", owner.name},
                      {"job_id", owner.job_id.to_string()},
                      {"number", pipeline.number},
                      {"pushed", pipeline.pushed},
                      {"delivered", pipeline.delivered},
                      {"in_flight_max", pipeline.in_flight_max},
                      {"stages", std::move(stages)}};
  const wire::StageWork* slow = pipeline.held_up_by();
  if (slow != nullptr) object["held_up_by"] = slow->name;
  if (!pipeline.why.empty()) object["why"] = pipeline.why;
  return object;
}

Status list_pipelines(CommandContext& context, const ClusterOptions& options) {
  const auto cluster = TROUPE_TRY(connect_cluster(context, options, "troupe pipelines"));
  const auto clients = TROUPE_TRY(cluster->head->work(cluster->deadline));
  json::Array list;
  // A pipeline is so many lines, of which the first one names it.
  Table table({"OF", "PIPELINE", "UNDER WAY", "DONE", "STAGE", "ACTORS", "ITEMS", "RESPAWNS", ""});
  for (const auto& client : clients) {
    for (const wire::PipelineWork& pipeline : client.work.pipelines) {
      if (options.json) {
        list.push_back(pipeline_to_json(client, pipeline));
        continue;
      }
      const wire::StageWork* slow = pipeline.held_up_by();
      for (const wire::StageWork& stage : pipeline.stages) {
        const bool first = &stage == &pipeline.stages.front();
        std::string remark = &stage == slow ? "holds the others up" : "";
        if (stage.bound < stage.actors && pipeline.why.empty()) {
          remark += fmt::format("{}waits for {} of its actors", remark.empty() ? "" : ", ",
                                stage.actors - stage.bound);
        }
        if (first && !pipeline.why.empty()) remark = "it has ended: " + pipeline.why;
        table.add({first ? client.name : "", first ? std::to_string(pipeline.number) : "",
                   first ? fmt::format("{}/{}", pipeline.pushed - pipeline.delivered,
                                       pipeline.in_flight_max)
                         : "",
                   first ? std::to_string(pipeline.delivered) : "", stage.name,
                   fmt::format("{}/{}", stage.bound, stage.actors), std::to_string(stage.waiting),
                   std::to_string(stage.respawns), remark});
      }
    }
  }
  if (options.json) {
    context.out << json::write(json::Object{{"pipelines", std::move(list)}}) << "\n";
  } else if (table.empty()) {
    context.out << "No pipelines.\n";
  } else {
    table.print(context.out);
  }
  return {};
}

}  // namespace

void add_pipelines_command(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<ClusterOptions>();
  Command command(app, context, "pipelines",
                  "Lists pipelines, with their stages and where the items are.");
  declare_cluster_options(command, *options);
  command.example("troupe pipelines")
      .example("troupe pipelines --json")
      .note(
          "A pipeline is what a driver or actor says of its own, up to a second late: how many "
          "items are UNDER WAY of\nthose that may be (PipelineOptions::in_flight), and how many "
          "are DONE. Of each stage: how many of its ACTORS\nare bound, ITEMS that have come to it "
          "and that it has not done, RESPAWNS of its actors' processes. A stage holds\nthe others "
          "up when the pipeline is full and it has most of the items: more actors there make all "
          "of it faster.")
      .run([options, &context] { return list_pipelines(context, *options); });
}

}  // namespace troupe::tools
