#include "tools/commands/verify.h"

#include <algorithm>
#include <memory>
#include <thread>

#include "runtime/base/json.h"
#include "tools/commands/table.h"
#include "train/checkpoint/checkpoint_finder.h"
#include "train/checkpoint/inspect.h"
#include "train/report/format.h"

namespace troupe::tools {
namespace {

// Tensors named with a damage before "and N more".
constexpr std::size_t kTensorsShownMax = 4;

struct VerifyOptions {
  std::string directory;
  std::uint64_t threads = 0;
  bool json = false;
};

json::Object to_json(const train::CheckpointInspection& inspection) {
  json::Array damage;
  for (const auto& one : inspection.damage) {
    json::Array tensors(one.tensors.begin(), one.tensors.end());
    damage.push_back(json::Object{{"file", one.file},
                                  {"offset", one.offset},
                                  {"size", one.size_bytes},
                                  {"tensors", std::move(tensors)},
                                  {"reason", one.reason.message()}});
  }
  return {{"path", inspection.path},
          {"good", inspection.damage.empty()},
          {"step", inspection.step},
          {"format", inspection.format},
          {"foreign", inspection.foreign},
          {"has_optimizer", inspection.has_optimizer},
          {"world_size", inspection.world_size},
          {"size_bytes", inspection.size_bytes},
          {"damage", std::move(damage)}};
}

void print(CommandContext& context, const train::CheckpointInspection& inspection) {
  const bool good = inspection.damage.empty();
  std::string line = fmt::format("{}: {}", inspection.path, good ? "good" : "damaged");
  if (good) {
    line += inspection.foreign
                ? " as far as can be said: another program's, without hashes"
                : fmt::format(", {} by {} rank{}, {}", inspection.format, inspection.world_size,
                              inspection.world_size == 1 ? "" : "s",
                              inspection.has_optimizer ? "with optimizer state" : "weights only");
    line +=
        fmt::format(", step {}, {}", inspection.step, train::format_bytes(inspection.size_bytes));
  }
  context.out << printable(line) << "\n";
  for (const auto& damage : inspection.damage) {
    std::string where;
    for (std::size_t i = 0; i < std::min(damage.tensors.size(), kTensorsShownMax); ++i) {
      where += (i ? ", " : "; in ") + damage.tensors[i];
    }
    if (damage.tensors.size() > kTensorsShownMax) {
      where += fmt::format(" and {} more", damage.tensors.size() - kTensorsShownMax);
    }
    context.out << "  " << printable(damage.reason.message() + where) << "\n";
  }
}

Status verify(const VerifyOptions& options, CommandContext& context) {
  FileSystem& files = context.files;
  const std::string& directory = options.directory;
  if (!files.exists(directory)) return error(Code::kNotFound, "there is no {}", directory);
  std::vector<std::string> paths;
  for (const auto& name : TROUPE_TRY(train::find_checkpoints(files, directory))) {
    paths.push_back(join_path(directory, name.name));
  }
  if (paths.empty()) paths.push_back(directory);
  const auto threads = options.threads > 0 ? std::min<std::uint64_t>(options.threads, 1024)
                                           : std::max(1u, std::thread::hardware_concurrency());
  json::Array list;
  for (const auto& path : paths) {
    const auto inspection = train::inspect_checkpoint(files, path, static_cast<int>(threads));
    if (!inspection.damage.empty()) context.exit_code = exit_code(Code::kDataLoss);
    if (options.json) {
      list.push_back(to_json(inspection));
    } else {
      print(context, inspection);
    }
  }
  if (options.json) {
    context.out << json::write(json::Object{{"checkpoints", std::move(list)}}) << "\n";
  }
  return {};
}

}  // namespace

void add_verify_command(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<VerifyOptions>();
  Command(app, context, "verify",
          "Checks checkpoints against their hashes, and says what is damaged and where.")
      .argument("dir", options->directory,
                "a checkpoint, or an output directory, all of whose checkpoints are verified")
      .option("--threads", options->threads, "N",
              "parts of files that are read at a time (default: one for each core)")
      .flag("--json", options->json, "print one line of JSON instead of text")
      .example("troupe verify runs/a")
      .example("troupe verify runs/a/checkpoint-500 --json   # exit code 7 where it is damaged")
      .run([options, &context] { return verify(*options, context); });
}

}  // namespace troupe::tools
