#include "tools/commands/chaos.h"

#include <memory>

#include "runtime/base/suggest.h"
#include "runtime/base/text.h"
#include "tools/commands/chaos_enumerate.h"
#include "tools/commands/chaos_run.h"

namespace troupe::tools {
namespace {

Result<std::uint64_t> count_of_flag(std::string_view flag, std::string_view text) {
  const auto value = parse_integer<std::uint64_t>(text);
  if (!value || *value > 1'000'000) {
    return error(Code::kInvalidArgument, "{}: '{}' is no whole number", flag, text);
  }
  return *value;
}

// "--name=value" or "--name value", cut into both.
struct Word {
  std::string name, value;
  bool has_value = false;
};

class Words {
 public:
  explicit Words(std::vector<std::string> words) : words_(std::move(words)) {}
  bool empty() const { return at_ == words_.size(); }
  Word next() {
    const std::string& text = words_[at_++];
    const auto equals = text.find('=');
    if (!text.starts_with("--") || equals == std::string::npos) return {text, "", false};
    return {text.substr(0, equals), text.substr(equals + 1), true};
  }
  Result<std::string> value_of(const Word& word) {
    if (word.has_value) return word.value;
    if (empty()) return error(Code::kInvalidArgument, "{}: the value is missing", word.name);
    return words_[at_++];
  }

 private:
  std::vector<std::string> words_;
  std::size_t at_ = 0;
};

Status no_such_flag(const Word& word, const std::vector<std::string>& flags) {
  return error(Code::kInvalidArgument, "there is no option '{}'; one of {}{}", word.name,
               join_words(flags), did_you_mean(word.name, flags));
}

Status enumerate(std::vector<std::string> arguments, CommandContext& context) {
  EnumerateFlags flags;
  Words words(std::move(arguments));
  while (!words.empty()) {
    const Word word = words.next();
    if (word.name == "--operators") {
      flags.operators = true;
    } else if (word.name == "--keep") {
      flags.keep = true;
    } else if (word.name == "--json") {
      flags.json = true;
    } else if (word.name == "--jobs") {
      flags.jobs = TROUPE_TRY(count_of_flag(word.name, TROUPE_TRY(words.value_of(word))));
    } else if (word.name == "--points") {
      flags.points_max = TROUPE_TRY(count_of_flag(word.name, TROUPE_TRY(words.value_of(word))));
    } else if (word.name == "--only") {
      flags.only = TROUPE_TRY(words.value_of(word));
    } else if (word.name == "--strategies") {
      flags.strategies = split_words(TROUPE_TRY(words.value_of(word)), ',');
    } else {
      return no_such_flag(word, {"--strategies", "--jobs", "--points", "--only", "--operators",
                                 "--keep", "--json"});
    }
  }
  return chaos_enumerate(flags, context);
}

Status run_scenario(std::vector<std::string> arguments, CommandContext& context) {
  ChaosRunFlags flags;
  std::vector<std::string> positions;
  Words words(std::move(arguments));
  while (!words.empty()) {
    const Word word = words.next();
    if (word.name == "--oracle") {
      flags.oracle = true;
    } else if (word.name == "--json") {
      flags.json = true;
    } else if (word.name == "--chaos") {
      flags.more_faults = TROUPE_TRY(words.value_of(word));
    } else if (word.name.starts_with("--")) {
      return no_such_flag(word, {"--oracle", "--json", "--chaos"});
    } else {
      positions.push_back(word.name);
    }
  }
  if (positions.size() < 2) {
    return error(Code::kInvalidArgument,
                 "a scenario and a configuration are missing: troupe chaos run SCENARIO.yaml "
                 "CONFIG.yaml [key=value…]");
  }
  flags.scenario = positions[0];
  flags.train_arguments.assign(positions.begin() + 1, positions.end());
  return chaos_run(flags, context);
}

Status chaos(std::vector<std::string> arguments, CommandContext& context) {
  const std::vector<std::string> actions = {"run", "enumerate"};
  const std::string action = arguments.empty() ? "" : arguments.front();
  if (!arguments.empty()) arguments.erase(arguments.begin());
  if (action == "run") return run_scenario(std::move(arguments), context);
  if (action == "enumerate") return enumerate(std::move(arguments), context);
  return error(Code::kInvalidArgument, "'{}' is none of {}{}; see 'troupe chaos --help'", action,
               join_words(actions), did_you_mean(action, actions));
}

}  // namespace

void add_chaos_command(CLI::App& app, CommandContext& context) {
  auto arguments = std::make_shared<std::vector<std::string>>();
  Command(app, context, "chaos", "Injects faults into a training and checks that it recovers.")
      .pass_through(*arguments, "run SCENARIO CONFIG [KEY=VALUE]... | enumerate")
      .example(
          "troupe chaos run SCENARIO.yaml CONFIG.yaml [key=value…]   injects a scenario's faults")
      .example("    --oracle   train without faults, too, and compare the weights")
      .example("    --chaos 'kill@step=4;stop@every=10'   faults besides the scenario's")
      .example("    --json     print the report as JSON")
      .example("troupe chaos enumerate    kills a trainer at every point of a tiny training")
      .example(
          "    --strategies ddp,zero3   these of ddp, zero1, zero2, zero3, hsdp, lora-, dora- and "
          "pissa-ddp and -zero3, muon-zero3, 8bit-zero3, dpo-nf4-zero3 (default: all)")
      .example("    --jobs 2   trainings that run at a time")
      .example(
          "    --points 60   so many points of each strategy and rank, from all stages (0: all)")
      .example(
          "    --only TEXT   only the points whose fault contains TEXT, to repeat one that failed")
      .example("    --operators   kill at every operator, too")
      .example("    --keep     keep the output of trainings that failed")
      .example("    --json     print a line of JSON for each point, and a summary")
      .run([arguments, &context] { return chaos(*arguments, context); });
}

}  // namespace troupe::tools
