#include "tools/commands/merge.h"

#include <algorithm>
#include <memory>

#include "tools/commands/plan.h"
#include "train/checkpoint/checkpoint_finder.h"
#include "train/checkpoint/merge.h"
#include "train/report/format.h"

namespace troupe::tools {
namespace {

struct MergeOptions {
  std::string directory;
  std::string out;
};

// The checkpoint that `directory` is, or the newest good one in it.
Result<train::GoodCheckpoint> choose(CommandContext& context, const std::string& directory) {
  FileSystem& files = context.files;
  const int threads = cores_here(files);
  if (!files.exists(directory)) return error(Code::kNotFound, "there is no {}", directory);
  if (TROUPE_TRY(train::find_checkpoints(files, directory)).empty()) {
    return train::validate_checkpoint(files, directory, threads);
  }
  std::vector<train::RefusedCheckpoint> refused;
  train::CheckpointSearch search;
  search.threads = threads;
  auto good = TROUPE_TRY(train::newest_good_checkpoint(files, directory, &refused, search));
  if (const auto text = train::refused_message(refused, good); !text.empty()) {
    context.err << text << "\n";
  }
  if (!good) return error(Code::kDataLoss, "no checkpoint in {} is good", directory);
  return std::move(*good);
}

Status merge(const MergeOptions& options, CommandContext& context) {
  const auto checkpoint = TROUPE_TRY(choose(context, options.directory));
  const auto merged = TROUPE_TRY(train::merge_checkpoint(context.files, checkpoint, options.out));
  context.out << fmt::format("{} of step {}: {} tensors, {} in {}\n", checkpoint.path,
                             checkpoint.step, merged.tensor_count,
                             train::format_bytes(merged.size_bytes), options.out);
  return {};
}

}  // namespace

void add_merge_command(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<MergeOptions>();
  Command(app, context, "merge",
          "Writes a checkpoint as a model in Hugging Face form, with configuration and tokenizer.")
      .argument("dir", options->directory,
                "a checkpoint, or an output directory, whose newest good checkpoint is taken")
      .argument("out", options->out, "the folder to write")
      .example("troupe merge runs/a/checkpoint-500 runs/a-merged")
      .example("troupe merge runs/a runs/a-merged")
      .run([options, &context] { return merge(*options, context); });
}

}  // namespace troupe::tools
