#include "tools/commands/slurm_words.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "runtime/base/text.h"
#include "train/config/config_format.h"

namespace troupe::tools {
namespace {

using Words = std::vector<std::string>;

// sbatch's own options, as it names them.
struct Option {
  const char* name;
  const char* letter;
};
constexpr Option kOptions[] = {{"nodes", "-N"}, {"gpus-per-node", ""}, {"cpus-per-task", "-c"},
                               {"time", "-t"},  {"partition", "-p"},   {"account", "-A"},
                               {"qos", "-q"},   {"job-name", "-J"},    {"mem", ""}};

Result<SlurmDirective> directive_of(const std::string& text) {
  const std::string bare = text.substr(std::min(text.find_first_not_of('-'), text.size()));
  const std::size_t equals = bare.find('=');
  SlurmDirective directive{bare.substr(0, equals),
                           equals == std::string::npos ? "" : bare.substr(equals + 1)};
  if (directive.name.empty() || directive.name.find_first_of(" \t\n") != std::string::npos) {
    return error(Code::kInvalidArgument,
                 "--sbatch '{}': an option of sbatch's is KEY=VALUE, as in --sbatch "
                 "'constraint=a100', or KEY alone, as in --sbatch exclusive",
                 text);
  }
  if (directive.name == "ntasks" || directive.name.starts_with("ntasks-per") ||
      directive.name == "array") {
    return error(Code::kInvalidArgument,
                 "--sbatch {}: the job is one task on each node, which starts that node's "
                 "trainers; --nodes and --gpus-per-node say how many",
                 directive.name);
  }
  return directive;
}

class WordReader {
 public:
  explicit WordReader(Words words) : words_(std::move(words)) {}

  Result<SlurmRequest> read() {
    while (at_ < words_.size()) {
      const std::string& word = words_[at_];
      if (word == "--" || (request_.train.empty() && begins_program(word))) {
        TROUPE_RETURN_IF_ERROR(take_program(word));
        break;
      }
      if (!TROUPE_TRY(take_option())) request_.train.push_back(words_[at_++]);
    }
    if (request_.train.empty() && request_.program.empty()) {
      return Status(Code::kInvalidArgument,
                    "nothing to run: troupe slurm CONFIG.yaml [key=value …], or troupe slurm "
                    "[options] run [troupe run's flags] PROGRAM");
    }
    return std::move(request_);
  }

 private:
  // A word that is neither a configuration nor an override nor a flag.
  static bool begins_program(const std::string& word) {
    return !word.starts_with('-') && !train::is_config_file(word) &&
           word.find('=') == std::string::npos;
  }

  Status take_program(const std::string& word) {
    if (!request_.train.empty()) {
      return error(Code::kInvalidArgument,
                   "'{}' begins a program, and '{}' before it is none of troupe slurm's options",
                   word, request_.train.front());
    }
    if (word == "--" || word == "run") ++at_;
    request_.program.assign(words_.begin() + static_cast<std::ptrdiff_t>(at_), words_.end());
    return {};
  }

  // The option's value, where the word is that option.
  Result<std::optional<std::string>> value_of(std::string_view name, std::string_view letter) {
    const std::string& word = words_[at_];
    const std::string flag = fmt::format("--{}", name);
    if (word.starts_with(flag + "=")) {
      ++at_;
      return std::optional(word.substr(flag.size() + 1));
    }
    if (word != flag && (letter.empty() || word != letter)) return std::optional<std::string>();
    if (at_ + 1 == words_.size()) return error(Code::kInvalidArgument, "{} needs a value", word);
    at_ += 2;
    return std::optional(words_[at_ - 1]);
  }

  Result<bool> take_option() {
    if (words_[at_] == "--submit" || words_[at_] == "--json") {
      (words_[at_] == "--json" ? request_.json : request_.submit) = true;
      ++at_;
      return true;
    }
    if (const auto file = TROUPE_TRY(value_of("output", "-o"))) {
      request_.file = *file;
      return true;
    }
    if (const auto more = TROUPE_TRY(value_of("sbatch", ""))) {
      auto directive = TROUPE_TRY(directive_of(*more));
      const bool known = std::any_of(std::begin(kOptions), std::end(kOptions),
                                     [&](const Option& at) { return directive.name == at.name; });
      if (known) {
        request_.given[directive.name] = directive.value;
      } else {
        request_.more.push_back(std::move(directive));
      }
      return true;
    }
    for (const Option& option : kOptions) {
      if (const auto value = TROUPE_TRY(value_of(option.name, option.letter))) {
        request_.given[option.name] = *value;
        return true;
      }
    }
    return false;
  }

  const Words words_;
  std::size_t at_ = 0;
  SlurmRequest request_;
};

}  // namespace

Result<std::int64_t> whole_number_option(const std::string& flag, const std::string& text,
                                         std::int64_t most) {
  const auto number = parse_integer<std::int64_t>(text);
  if (number && *number >= 1 && *number <= most) return *number;
  return error(Code::kInvalidArgument, "--{}={}: a whole number from 1 to {} is needed", flag, text,
               most);
}

Result<SlurmRequest> read_slurm_words(Words words) { return WordReader(std::move(words)).read(); }

}  // namespace troupe::tools
