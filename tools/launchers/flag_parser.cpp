#include "tools/launchers/flag_parser.h"

#include <algorithm>

#include "runtime/base/suggest.h"
#include "runtime/base/text.h"
#include "tools/launchers/help_text.h"

namespace troupe::tools {
namespace {

std::string underscored(std::string_view name) {
  std::string text(name);
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
}

constexpr const char* kAnswers = "Answers";

}  // namespace

FlagParser::FlagParser(std::string program, bool prefixes)
    : prefix_(program.empty() ? program : program + ": "), prefixes_(prefixes) {
  section(kAnswers);
  toggle("help|h", help_wanted_, "this text");
  toggle("version", version_wanted_, "the version of Troupe");
  section("Flags");
}

FlagParser& FlagParser::about(std::string usage, std::string summary,
                              std::vector<std::string> examples) {
  usage_ = std::move(usage);
  summary_ = std::move(summary);
  examples_ = std::move(examples);
  return *this;
}

FlagParser& FlagParser::section(std::string title) {
  section_ = std::move(title);
  return *this;
}

FlagParser::Flag& FlagParser::add(std::string_view names, bool has_value) {
  const auto parts = split_words(names);
  Flag& flag = flags_.emplace_back();
  flag.shown = "--" + parts.front();
  flag.name = underscored(parts.front());
  if (parts.size() > 1) flag.letter = parts[1];
  flag.has_value = has_value;
  flag.section = section_;
  return flag;
}

FlagParser& FlagParser::value(std::string_view names, std::string& into, std::string type,
                              std::string help) {
  Flag& flag = add(names, true);
  flag.type = std::move(type);
  flag.help = std::move(help);
  if (!into.empty()) flag.help += fmt::format(" (default: {})", into);
  flag.set = [&into](const std::string& text) {
    into = text;
    return Status();
  };
  return *this;
}

FlagParser& FlagParser::value(std::string_view names, std::optional<std::string>& into,
                              std::string type, std::string help) {
  Flag& flag = add(names, true);
  flag.type = std::move(type);
  flag.help = std::move(help);
  flag.set = [&into](const std::string& text) {
    into = text;
    return Status();
  };
  return *this;
}

FlagParser& FlagParser::toggle(std::string_view names, bool& into, std::string help) {
  Flag& flag = add(names, false);
  flag.help = std::move(help);
  flag.set = [&into](const std::string&) {
    into = true;
    return Status();
  };
  return *this;
}

FlagParser& FlagParser::refused(std::string_view names, bool has_value, std::string why) {
  add(names, has_value).refusal = std::move(why);
  return *this;
}

FlagParser& FlagParser::inert(std::string_view names, bool has_value) {
  Flag& flag = add(names, has_value);
  flag.inert = true;
  flag.set = [](const std::string&) { return Status(); };
  return *this;
}

Status FlagParser::take(Flag& flag, const std::string& value) {
  flag.given = true;
  if (!flag.refusal.empty()) {
    return error(Code::kUnsupported, "{}{}: {}", prefix_, flag.shown, flag.refusal);
  }
  return flag.set(value);
}

Status FlagParser::read_environment(std::string_view prefix, const Environment& environment) {
  for (Flag& flag : flags_) {
    if (flag.given || !flag.set || flag.section == kAnswers) continue;
    const std::string name = std::string(prefix) + upper_case(flag.name);
    const auto value = environment.get(name);
    if (!value) continue;
    if (flag.has_value) {
      TROUPE_RETURN_IF_ERROR(flag.set(*value));
      continue;
    }
    // argparse_util's check_env reads a number. Kubeflow sets variables to the empty text, which
    // leaves the switch off.
    if (value->empty() || *value == "0") continue;
    if (*value != "1") {
      return error(Code::kInvalidArgument, "environment {}={}: a switch is 0 or 1", name, *value);
    }
    TROUPE_RETURN_IF_ERROR(flag.set({}));
  }
  return {};
}

Result<FlagParser::Flag*> FlagParser::find(const std::string& written) {
  const std::string name = underscored(std::string_view(written).substr(2));
  std::vector<Flag*> begun;
  for (Flag& flag : flags_) {
    if (flag.name == name) return &flag;
    if (prefixes_ && flag.name.starts_with(name)) begun.push_back(&flag);
  }
  if (begun.size() == 1) return begun.front();
  std::vector<std::string> names;
  for (const Flag* flag : begun) names.push_back(flag->shown);
  if (begun.size() > 1) {
    return error(Code::kInvalidArgument, "{}error: ambiguous option: {} could match {}", prefix_,
                 written, join_words(names));
  }
  for (const Flag& flag : flags_) names.push_back(flag.shown);
  return error(Code::kInvalidArgument, "{}error: unrecognized arguments: {}{}", prefix_, written,
               did_you_mean(written, names));
}

Result<std::vector<std::string>> FlagParser::parse(std::span<const std::string> words) {
  std::size_t i = 0;
  for (; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--") {
      ++i;
      break;
    }
    if (!word.starts_with('-') || word == "-") break;
    Flag* flag = nullptr;
    std::optional<std::string> value;
    if (word.starts_with("--")) {
      const std::size_t equals = word.find('=');
      flag = TROUPE_TRY(find(word.substr(0, equals)));
      if (equals != std::string::npos) value = word.substr(equals + 1);
    } else {
      const auto found = std::find_if(flags_.begin(), flags_.end(), [&](const Flag& one) {
        return !one.letter.empty() && word.substr(1).starts_with(one.letter);
      });
      if (found == flags_.end()) {
        return error(Code::kInvalidArgument, "{}error: unrecognized arguments: {}", prefix_, word);
      }
      flag = &*found;
      const std::string rest = word.substr(1 + flag->letter.size());
      if (!rest.empty()) value = rest.starts_with('=') ? rest.substr(1) : rest;
    }
    if (!flag->has_value && value) {
      return error(Code::kInvalidArgument, "{}error: {} takes no value", prefix_, flag->shown);
    }
    if (flag->has_value && !value) {
      if (i + 1 == words.size()) {
        return error(Code::kInvalidArgument, "{}error: argument {}: expected one argument", prefix_,
                     flag->shown);
      }
      value = words[++i];
    }
    TROUPE_RETURN_IF_ERROR(take(*flag, value.value_or("")));
    if (help_wanted_ || version_wanted_) return std::vector<std::string>();
  }
  return std::vector<std::string>(words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
}

std::string FlagParser::flags_help() const {
  std::vector<std::string> titles;
  for (const Flag& flag : flags_) {
    const bool known = std::find(titles.begin(), titles.end(), flag.section) != titles.end();
    if (!known && flag.section != kAnswers) titles.push_back(flag.section);
  }
  std::string text;
  std::vector<std::string> inert, refused;
  for (const std::string& title : titles) {
    std::vector<HelpRow> rows;
    for (const Flag& flag : flags_) {
      if (flag.section != title) continue;
      if (!flag.refusal.empty()) {
        refused.push_back(flag.shown);
      } else if (flag.inert) {
        inert.push_back(flag.shown);
      } else {
        rows.push_back(
            {.left = fmt::format("{}{}{}{}", flag.letter.empty() ? "" : "-" + flag.letter + ", ",
                                 flag.shown, flag.type.empty() ? "" : " ", flag.type),
             .right = flag.help});
      }
    }
    text += help_section(title, rows);
  }
  text += help_names("Taken, and without effect here", inert);
  text += help_names("Refused here, each with what to do instead", refused);
  return text;
}

std::string FlagParser::help() const {
  return help_head(usage_, summary_) + flags_help() + help_answers() + help_examples(examples_) +
         help_end();
}

bool FlagParser::given(std::string_view long_name) const {
  const std::string name = underscored(long_name);
  return std::any_of(flags_.begin(), flags_.end(),
                     [&](const Flag& flag) { return flag.name == name && flag.given; });
}

}  // namespace troupe::tools
