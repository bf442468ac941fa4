#include "tools/commands/download.h"

#include <memory>

#include "runtime/base/json.h"
#include "runtime/base/suggest.h"
#include "tools/commands/hub_names.h"

namespace troupe::tools {
namespace {

struct DownloadOptions {
  std::string name;
  std::string revision = "main";
  std::string type = "model";
  std::string cache;
  std::vector<std::string> include, exclude;
  bool json = false;
};

Status download(const DownloadOptions& options, CommandContext& context) {
  if (options.type != "model" && options.type != "dataset")
    return error(Code::kInvalidArgument, "--repo-type {}: model or dataset", options.type);
  if (!train::hub::is_repository_name(options.name))
    return error(Code::kInvalidArgument,
                 "'{}' is no name that a hub may have: NAME or OWNER/NAME, as in Qwen/Qwen3-0.6B",
                 options.name);
  auto names = hub_names(context, true);
  names.set_overrides({.cache = options.cache});
  const train::hub::Repository repository{.type = options.type == "model"
                                                      ? train::hub::RepositoryType::kModel
                                                      : train::hub::RepositoryType::kDataset,
                                          .name = options.name,
                                          .revision = options.revision};
  const bool by_patterns = !options.include.empty() || !options.exclude.empty();
  const bool model = repository.type == train::hub::RepositoryType::kModel;
  const auto snapshot = TROUPE_TRY(names.snapshot(
      repository, names.uses_modelscope(),
      [&](const train::hub::Snapshot& found) -> Result<std::vector<std::string>> {
        if (!by_patterns && model) return train::hub::model_files(found.all, {});
        auto wanted = train::hub::matching(found.all, options.include, options.exclude);
        if (wanted.empty() && by_patterns && found.asked_hub)
          return error(Code::kNotFound,
                       "no file of {} matches --include and --exclude; there are {}",
                       repository.shown(), join_words(found.all));
        return wanted;
      }));
  if (!snapshot.asked_hub)
    context.err << "warning: the hub was not asked; the folder holds what was downloaded before, "
                   "which may be a part\n";
  if (options.json) {
    context.out << json::write(json::Object{{"folder", snapshot.folder},
                                            {"commit", snapshot.commit},
                                            {"downloaded", snapshot.downloaded},
                                            {"asked_hub", snapshot.asked_hub}})
                << "\n";
  } else {
    context.out << snapshot.folder << "\n";
  }
  return {};
}

}  // namespace

void add_download_command(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<DownloadOptions>();
  Command(app, context, "download",
          "Fetches a model or a data set from a hub into the cache, and prints its folder.")
      .argument("name", options->name, "as on the hub: Qwen/Qwen3-0.6B")
      .option("--revision", options->revision, "REVISION", "branch, tag or commit (default main)")
      .option("--repo-type", options->type, "TYPE", "model or dataset (default model)")
      .repeated("--include", options->include, "PATTERN",
                "files whose names match, as in *.json; several times: any of them")
      .repeated("--exclude", options->exclude, "PATTERN", "not these files; several times")
      .option("--cache-dir", options->cache, "DIR", "the cache, instead of HF_HUB_CACHE")
      .flag("--json", options->json, "print one line of JSON instead of the folder")
      .example("troupe download Qwen/Qwen3-0.6B")
      .example("troupe download tatsu-lab/alpaca --repo-type dataset")
      .example("troupe download Qwen/Qwen3-0.6B --include '*.json'")
      .note(
          "Without patterns: of a model configuration, tokenizer and weights in safetensors; of a "
          "data\nset everything. The cache is huggingface_hub's (HF_HOME, HF_HUB_CACHE), and so "
          "are\nHF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE. What is interrupted goes on where it "
          "stopped.")
      .run([options, &context] { return download(*options, context); });
}

}  // namespace troupe::tools
