#include "tools/commands/export.h"

#include <algorithm>
#include <memory>

#include "runtime/base/text.h"
#include "tools/commands/hub_names.h"
#include "tools/commands/plan.h"
#include "tools/commands/trained_before.h"
#include "train/config/load.h"
#include "train/report/format.h"
#include "train/tensor/dtype.h"
#include "train/trainer/export_model.h"

namespace troupe::tools {
namespace {

std::string counted(std::size_t adapters) {
  if (adapters == 0) return "";
  return " with " + count_of(adapters, "adapter");
}

Status export_folder(const std::vector<std::string>& arguments, CommandContext& context) {
  auto names = hub_names(context, true);
  const auto loaded = TROUPE_TRY(train::load_train_config(
      arguments, context.environment, context.files,
      {.purpose = train::LoadPurpose::kExport, .locate = locating(names)}));
  for (const std::string& warning : loaded.warnings) context.err << "warning: " << warning << "\n";
  context.err << trained_before(context.files, loaded);
  auto request = TROUPE_TRY(train::export_request(loaded.config));
  request.threads = cores_here(context.files);
  if (!request.dtype) {
    const auto gpus = gpus_here(context.environment);
    request.has_gpu = gpus.ok() && gpus->count > 0;
  }
  request.say = [&](const std::string& line) { context.err << line << "\n" << std::flush; };
  const auto exported = TROUPE_TRY(train::export_model(context.files, request));
  for (const std::string& note : exported.notes) context.err << "notice: " << note << "\n";
  context.out << fmt::format("{}{}: {} tensors in {}, {} in {}\n", request.base,
                             counted(request.adapters.size()), exported.written.tensor_count,
                             train::torch_name(exported.dtype),
                             train::format_bytes(exported.written.size_bytes), request.out);
  if (exported.unties_head)
    context.out << "embedding and head were trained apart: tie_word_embeddings is false now\n";
  if (exported.logit_difference)
    context.out << fmt::format(
        "largest |Δlogit| on a probe text, merged against base + adapter: {:.2g}\n",
        *exported.logit_difference);
  if (!exported.no_probe.empty())
    context.out << "not compared with base + adapter: " << exported.no_probe << "\n";
  return {};
}

}  // namespace

void add_export_command(CLI::App& app, CommandContext& context) {
  auto arguments = std::make_shared<std::vector<std::string>>();
  Command(app, context, "export",
          "Merges adapters into their base model, and writes it in Hugging Face form.")
      .pass_through(*arguments, "[CONFIG] [KEY=VALUE]...")
      .example("troupe export merge.yaml")
      .example("troupe export merge.yaml infer_dtype=bfloat16 export_size=2")
      .example(
          "troupe export --model_name_or_path BASE --adapter_name_or_path A,B --export_dir OUT")
      .note(
          "Keys are those of `llamafactory-cli export`: model_name_or_path; adapter_name_or_path,\n"
          "one or several, merged in this order (none: the model in another type, or in other\n"
          "files); adapter_folder; template; export_dir; export_size, the largest file in GB;\n"
          "infer_dtype: auto takes the type that config.json names, and bfloat16 instead of "
          "float32\n"
          "where this machine has a GPU. Everything is computed on the CPU, whatever "
          "export_device\n"
          "says.")
      .note(
          "What was written is compared with the base and the adapters beside it, on a short\n"
          "text: the largest difference of a logit is printed; in float32 more than 0.001 fails.")
      .run([arguments, &context] { return export_folder(*arguments, context); });
}

}  // namespace troupe::tools
