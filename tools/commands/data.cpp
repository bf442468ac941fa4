#include "tools/commands/data.h"

#include <memory>

#include "tools/commands/plan.h"
#include "tools/commands/train_flags.h"
#include "train/report/format.h"
#include "train/trainer/prepare.h"

namespace troupe::tools {
namespace {

void print_sets(const char* what, const train::EncodeReport& report, std::ostream& out) {
  for (const train::DataSetCount& set : report.sets) {
    out << fmt::format("{}{}: {} rows read, {} samples kept, {} dropped\n", what, set.name,
                       set.rows, set.samples, set.dropped);
  }
}

void print_samples(const char* what, const train::TokenDataset& data, std::ostream& out) {
  out << fmt::format("{}: {} samples of {} tokens\n", what, data.size(), data.token_count());
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

Status data(std::vector<std::string> arguments, CommandContext& context) {
  const bool json_wanted = take(arguments, train_flags::kJson);
  const auto run = TROUPE_TRY(load_run(arguments, context));
  for (const std::string& warning : run.loaded.warnings)
    context.err << "warning: " << warning << "\n";
  for (const std::string& notice : run.loaded.notices) context.err << "notice: " << notice << "\n";
  const train::DataOptions options = train::data_options(run.loaded.config);
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
  if (json_wanted) {
    json::Object answer{{"train", json_of(module.train_report, module.train)}};
    if (module.eval) answer["eval"] = json_of(module.eval_report, *module.eval);
    if (module.held_out) answer["held_out"] = json_of(module.held_out_report, *module.held_out);
    context.out << json::write(answer) << "\n";
    return {};
  }
  print_sets("", module.train_report, context.out);
  print_sets("evaluation, ", module.eval_report, context.out);
  print_samples("training", module.train, context.out);
  if (module.eval) print_samples("evaluation", *module.eval, context.out);
  if (module.held_out) print_samples("held out", *module.held_out, context.out);
  for (const std::string& note : module.notes) context.out << note << "\n";
  context.out << kNothingWritten;
  return {};
}

}  // namespace

void add_data_command(CLI::App& app, CommandContext& context) {
  auto arguments = std::make_shared<std::vector<std::string>>();
  Command(app, context, "data",
          "Says what becomes of the data sets of a training: samples, tokens.")
      .pass_through(*arguments)
      .example("troupe data x.yaml")
      .example("troupe data x.yaml cutoff_len=1024 --json")
      .note("Files, key=value and --key value are those of 'troupe train'; --json prints JSON.")
      .run([arguments, &context] { return data(*arguments, context); });
}

}  // namespace troupe::tools
