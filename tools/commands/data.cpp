#include "tools/commands/data.h"

#include <charconv>
#include <memory>

#include "runtime/base/text.h"
#include "tools/commands/data_samples.h"
#include "tools/commands/plan.h"
#include "tools/commands/train_flags.h"
#include "train/data/sampler.h"
#include "train/report/format.h"
#include "train/trainer/prepare.h"
#include "train/trainer/run_samples.h"
#include "train/trainer/sharding_setup.h"

namespace troupe::tools {
namespace {

void print_sets(const char* what, const train::EncodeReport& report, std::ostream& out) {
  for (const train::DataSetCount& set : report.sets) {
    out << fmt::format("{}{}: {} read, {} kept, {} dropped\n", what, set.name,
                       count_of(set.rows, "row"), count_of(set.samples, "sample"), set.dropped);
  }
}

void print_samples(const char* what, const train::TokenDataset& data, std::ostream& out) {
  out << fmt::format("{}: {} of {}\n", what, count_of(data.size(), "sample"),
                     count_of(data.token_count(), "token"));
}

// The micro-batches that the training samples of the first epoch are packed into, of all ranks.
Result<std::int64_t> packed_batches(const train::LoadedConfig& loaded,
                                    const train::TokenDataset& data) {
  const auto sampler = TROUPE_TRY(train::Sampler::make(train::sampler_options(
      loaded.config, data.size(), static_cast<int>(loaded.world_size.value), &data)));
  return sampler.packed_batches().value_or(0);
}

json::Array json_of(const train::EncodeReport& report) {
  json::Array sets;
  for (const train::DataSetCount& set : report.sets) {
    sets.push_back(json::Object{{"name", set.name},
                                {"rows", set.rows},
                                {"samples", set.samples},
                                {"dropped", set.dropped}});
  }
  return sets;
}

json::Object json_of(const train::EncodeReport& report, const train::TokenDataset& data) {
  return {{"data_sets", json_of(report)}, {"samples", data.size()}, {"tokens", data.token_count()}};
}

constexpr const char* kNothingWritten =
    "nothing is written: a training makes its samples of the files when it starts\n";

// Takes --samples N or --samples=N out of the arguments. Nothing where it is not given.
Result<std::optional<std::int64_t>> take_samples(std::vector<std::string>& arguments) {
  const std::string flag = train_flags::kSamples.name;
  std::optional<std::int64_t> out;
  for (auto at = arguments.begin(); at != arguments.end();) {
    std::string value;
    auto end = at + 1;
    if (at->starts_with(flag + "=")) {
      value = at->substr(flag.size() + 1);
    } else if (*at != flag) {
      ++at;
      continue;
    } else if (end != arguments.end()) {
      value = *end++;
    }
    std::int64_t count = 0;
    const char* last = value.data() + value.size();
    const auto [read, failed] = std::from_chars(value.data(), last, count);
    if (failed != std::errc() || read != last || count < 0)
      return error(Code::kInvalidArgument, "{} takes a number of samples, not '{}'", flag, value);
    out = count;
    at = arguments.erase(at, end);
  }
  return out;
}

// The data set whose samples are shown.
Result<const train::TokenDataset*> shown_set(const train::DatasetModule& module, bool eval) {
  if (!eval) return &module.train;
  if (module.eval) return &*module.eval;
  return error(Code::kInvalidArgument,
               "--eval: there are no data for evaluation; give eval_dataset "
               "or val_size");
}

Status data(std::vector<std::string> arguments, CommandContext& context) {
  TROUPE_RETURN_IF_ERROR(check_flags(arguments, "data", train_flags::kData));
  const bool json_wanted = take(arguments, train_flags::kSampleLines);
  bool eval = take(arguments, train_flags::kEval);
  const auto samples = TROUPE_TRY(take_samples(arguments));
  const auto run = TROUPE_TRY(load_run(arguments, context));
  for (const std::string& warning : run.loaded.warnings)
    context.err << "warning: " << warning << "\n";
  for (const std::string& notice : run.loaded.notices) context.err << "notice: " << notice << "\n";
  train::DataOptions options = train::data_options(run.loaded.config);
  if (!run.loaded.config.trains()) {
    context.err << "notice: do_predict alone: these are the rows of eval_dataset, and what is "
                   "before their last answer is the prompt\n";
    options.dataset = std::move(options.eval_dataset);
    options.eval_dataset.clear();
    eval = false;
  }
  if (!run.contents.tokenizer) {
    train::EncodeReport report;
    const auto rows = TROUPE_TRY(train::load_training_rows(context.files, options, report));
    if (json_wanted) {
      context.out << json::write(json::Object{
                         {"train", json::Object{{"data_sets", json_of(report)},
                                                {"rows", static_cast<std::int64_t>(rows.size())}}}})
                  << "\n";
      return {};
    }
    print_sets("", report, context.out);
    context.out << fmt::format(
        "training: {} rows; how many tokens is known when the tokenizer is trained\n{}",
        rows.size(), kNothingWritten);
    return {};
  }
  const auto module =
      TROUPE_TRY(train::build_dataset(context.files, options, *run.contents.tokenizer));
  const auto* shown = TROUPE_TRY(shown_set(module, eval));
  const std::int64_t count = std::min(samples.value_or(json_wanted ? 0 : 1), shown->size());
  const bool colours =
      context.out_is_terminal && context.environment.get("NO_COLOR").value_or("").empty();
  for (std::int64_t i = 0; i < count; ++i) {
    if (json_wanted) {
      context.out << json::write(json_of_sample(*shown, i, module.tokenizer)) << "\n";
    } else {
      print_sample(*shown, i, module.tokenizer, colours, context.out);
    }
  }
  const auto packing = train::packing_of(run.loaded.config);
  // Where it cannot be done, that is said behind the counts, which show why.
  const auto packed = packing ? packed_batches(run.loaded, module.train) : Result<std::int64_t>(0);
  if (json_wanted) {
    json::Object answer{{"train", json_of(module.train_report, module.train)}};
    if (packing && packed.ok()) answer["train"].as_object()["packed_micro_batches"] = *packed;
    if (module.eval) answer["eval"] = json_of(module.eval_report, *module.eval);
    json::Array notes;
    for (const std::string& note : module.notes) notes.emplace_back(note);
    for (const std::string& warning : module.eval_report.warnings) notes.emplace_back(warning);
    answer["notes"] = std::move(notes);
    if (module.held_out) answer["held_out"] = json_of(module.held_out_report, *module.held_out);
    context.out << json::write(answer) << "\n";
    return packed.status();
  }
  const auto& sets = (eval ? module.eval_report : module.train_report).sets;
  const bool in_order = options.mix_strategy == "concat" && options.val_size <= 0 &&
                        options.held_out <= 0 && !train::packs(options);
  if (sets.size() > 1 && count > 0 && in_order) {
    context.out << fmt::format("(in their order: of {} first; {}=NAME shows another one's)\n",
                               sets.front().name, eval ? "eval_dataset" : "dataset");
  }
  print_sets("", module.train_report, context.out);
  print_sets("evaluation, ", module.eval_report, context.out);
  print_samples("training", module.train, context.out);
  if (packing && packed.ok()) {
    context.out << fmt::format(
        "packed in the first epoch into {} micro-batch{} of at most {} tokens\n", *packed,
        *packed == 1 ? "" : "es", packing->capacity * packing->batch_bins);
  }
  if (module.eval) print_samples("evaluation", *module.eval, context.out);
  if (module.held_out) print_samples("held out", *module.held_out, context.out);
  print_lengths(*shown, context.out);
  for (const std::string& note : module.notes) context.out << note << "\n";
  for (const std::string& warning : module.eval_report.warnings)
    context.out << "evaluation, " << warning << "\n";
  context.out << kNothingWritten;
  return packed.status();
}

}  // namespace

void add_data_command(CLI::App& app, CommandContext& context) {
  auto arguments = std::make_shared<std::vector<std::string>>();
  Command(app, context, "data",
          "Shows what a model will see of a training's data sets, and counts rows, samples and "
          "tokens; trains nothing.")
      .pass_through(*arguments, "[CONFIG] [KEY=VALUE]...")
      .example("troupe data x.yaml")
      .example("troupe data x.yaml --samples 5 --eval")
      .example("troupe data x.yaml cutoff_len=1024 --json")
      .flags_help(train_flags_help(train_flags::kData))
      .note("Files, key=value and --key value are those of 'troupe train'.")
      .run([arguments, &context] { return data(*arguments, context); });
}

}  // namespace troupe::tools
