#include "tools/commands/command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "runtime/base/suggest.h"

namespace troupe::tools {
namespace {

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) names.push_back(command->get_name());
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::string suggestion(const std::string& word, const std::vector<std::string>& candidates) {
  const auto near = nearest(word, candidates);
  return near ? fmt::format(" Did you mean '{}'?", *near) : std::string();
}

const CLI::App* find_command(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

int refuse(CommandContext& context, const std::string& who, const std::string& what) {
  context.err << fmt::format("{}: {}\n", who, what);
  return exit_code(Code::kInvalidArgument);
}

// The argument that CLI11 did not take, with what may have been meant.
std::string describe_extra(const CLI::App& command, const std::string& name) {
  const auto extras = command.remaining(true);
  const std::string extra = extras.empty() ? "" : extras.front();
  const std::string key = extra.substr(0, extra.find('='));
  if (!key.starts_with('-')) {
    return fmt::format("argument '{}' is too many. See 'troupe {} --help'", extra, name);
  }
  return fmt::format("there is no option '{}'.{} See 'troupe {} --help'", key,
                     suggestion(key, option_names(command)), name);
}

int parse_failed(const CLI::App& app, CommandContext& context, const CLI::ParseError& failure,
                 const std::vector<std::string>& arguments) {
  const CLI::App* command = find_command(app, arguments.front());
  if (failure.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
    if (failure.get_name() == "CallForVersion") {
      context.out << failure.what() << "\n";
    } else {
      context.out << (command ? command->help("troupe") : app.help());
    }
    return 0;
  }
  if (!command)
    return refuse(context, "troupe", std::string(failure.what()) + "; see 'troupe --help'");
  const std::string who = "troupe " + command->get_name();
  if (failure.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError)) {
    return refuse(context, who, describe_extra(*command, command->get_name()));
  }
  return refuse(context, who, fmt::format("{}; see '{} --help'", failure.what(), who));
}

// Of a command whose arguments CLI11 does not know.
class UsageFormatter final : public CLI::Formatter {
 public:
  explicit UsageFormatter(std::string arguments) : arguments_(std::move(arguments)) {}
  std::string make_usage(const CLI::App*, std::string name) const override {
    return fmt::format("Usage: {} [OPTIONS] {}\n", name, arguments_);
  }

 private:
  const std::string arguments_;
};

template <typename T>
void add_option(CLI::App& app, const std::string& names, T& value, const std::string& type,
                const std::string& help) {
  app.add_option(names, value, help)->option_text(type);
}

}  // namespace

std::optional<std::string> nearest(const std::string& word,
                                   const std::vector<std::string>& candidates) {
  const std::size_t limit = std::max<std::size_t>(1, word.size() / 3);
  std::optional<std::string> best;
  std::size_t best_distance = limit + 1;
  for (const auto& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    const bool begins = word.size() >= 3 && candidate.starts_with(word);
    if (const std::size_t rank = begins ? 0 : distance; rank < best_distance) {
      best = candidate;
      best_distance = rank;
    }
  }
  return best;
}

Command::Command(CLI::App& app, CommandContext& context, const std::string& name,
                 const std::string& summary)
    : app_(app.add_subcommand(name, summary)), context_(context) {}

Command& Command::option(const std::string& names, std::string& value, const std::string& type,
                         const std::string& help) {
  add_option(*app_, names, value, type, help);
  return *this;
}

Command& Command::option(const std::string& names, std::optional<std::string>& value,
                         const std::string& type, const std::string& help) {
  add_option(*app_, names, value, type, help);
  return *this;
}

Command& Command::option(const std::string& names, std::optional<double>& value,
                         const std::string& type, const std::string& help) {
  add_option(*app_, names, value, type, help);
  return *this;
}

Command& Command::option(const std::string& names, std::optional<std::uint16_t>& value,
                         const std::string& type, const std::string& help) {
  add_option(*app_, names, value, type, help);
  return *this;
}

Command& Command::option(const std::string& names, std::uint64_t& value, const std::string& type,
                         const std::string& help) {
  // Else -1 were the largest number.
  const auto is_positive = [](const std::string& word) {
    return word.starts_with('-') ? "a number of 0 or more is expected, not " + word : "";
  };
  app_->add_option(names, value, help)->option_text(type)->check(is_positive);
  return *this;
}

Command& Command::option(const std::string& names, std::vector<std::string>& values,
                         const std::string& type, const std::string& help) {
  app_->add_option(names, values, help)->option_text(type)->delimiter(',')->take_all();
  return *this;
}

Command& Command::repeated(const std::string& names, std::vector<std::string>& values,
                           const std::string& type, const std::string& help) {
  app_->add_option(names, values, help)->option_text(type)->allow_extra_args(false)->take_all();
  return *this;
}

Command& Command::rest(const std::string& name, std::vector<std::string>& values,
                       const std::string& help) {
  // The first one as an argument of its own: without one CLI11 takes "--" for the end of a command.
  // The others as what is left over, which it does not look into.
  const auto first = std::make_shared<std::string>();
  app_->add_option(name, *first, help)->option_text(" ");
  app_->prefix_command();
  app_->parse_complete_callback([app = app_, first, &values] {
    auto others = app->remaining();
    if (!others.empty() && others.front() == "--") {
      others.erase(others.begin());
    } else if (!others.empty() && others.front().starts_with('-')) {
      throw CLI::ExtrasError(app->get_name(), {others.front()});
    }
    if (first->empty()) return;
    values = {*first};
    values.insert(values.end(), others.begin(), others.end());
  });
  return *this;
}

Command& Command::arguments(const std::string& name, std::vector<std::string>& values,
                            const std::string& type, const std::string& help) {
  app_->add_option(name, values, help)->option_text(type)->take_all();
  return *this;
}

Command& Command::argument(const std::string& name, std::string& value, const std::string& help) {
  app_->add_option(name, value, help)->required()->option_text(" ");
  return *this;
}

Command& Command::flag(const std::string& names, bool& value, const std::string& help) {
  app_->add_flag(names, value, help);
  return *this;
}

Command& Command::example(const std::string& line) {
  examples_ += "  " + line + "\n";
  write_footer();
  return *this;
}

Command& Command::note(const std::string& text) {
  notes_ += "\n" + text + "\n";
  write_footer();
  return *this;
}

Command& Command::flags_help(const std::string& text) {
  flags_ = text.substr(text.starts_with('\n') ? 1 : 0) + "\n";
  write_footer();
  return *this;
}

void Command::write_footer() { app_->footer(flags_ + "Examples:\n" + examples_ + notes_); }

Command& Command::pass_through(std::vector<std::string>& values, const std::string& usage,
                               bool helps) {
  const auto formatter = std::make_shared<UsageFormatter>(usage);
  formatter->column_width(app_->get_formatter()->get_column_width());
  app_->formatter(formatter);
  app_->prefix_command();
  app_->parse_complete_callback([app = app_, context = &context_, &values, helps] {
    values = app->remaining();
    const auto asks = [](const std::string& word) { return word == "--help" || word == "-h"; };
    if (helps && std::any_of(values.begin(), values.end(), asks)) throw CLI::CallForHelp();
    values.insert(values.end(), context->behind_mark.begin(), context->behind_mark.end());
  });
  return *this;
}

void Command::run(std::function<Status()> work) {
  app_->final_callback([app = app_, context = &context_, work = std::move(work)] {
    context->selected_name = app->get_name();
    context->selected = work;
  });
}

Status print_help(const CLI::App& app, CommandContext& context, const std::string& name) {
  const CLI::App* command = name.empty() ? &app : find_command(app, name);
  if (!command) {
    return error(Code::kInvalidArgument, "there is no command '{}'.{}", name,
                 suggestion(name, command_names(app)));
  }
  // app.help() is that of the command which is being run.
  context.out << (name.empty()
                      ? app.get_formatter()->make_help(&app, "troupe", CLI::AppFormatMode::Normal)
                      : command->help("troupe"));
  return {};
}

std::optional<int> parse_command_line(CLI::App& app, CommandContext& context,
                                      std::vector<std::string> arguments) {
  if (arguments.empty()) {
    context.err << app.help();
    return exit_code(Code::kInvalidArgument);
  }
  const std::string& first = arguments.front();
  if (!first.starts_with('-') && !find_command(app, first)) {
    return refuse(context, "troupe",
                  fmt::format("there is no command '{}'.{} See 'troupe --help'", first,
                              suggestion(first, command_names(app))));
  }
  // CLI11 takes what stands behind "--" for arguments of the program itself, unless the command has
  // arguments with names. One that takes everything as it stands has none.
  const CLI::App* command = find_command(app, first);
  const auto is_named = [](const CLI::Option* option) { return option->get_positional(); };
  if (command && command->get_prefix_command() && command->get_options(is_named).empty()) {
    const auto words = arguments.begin() + 1;
    const auto mark = std::find(words, arguments.end(), "--");
    const auto is_flag = [](const std::string& word) { return word.starts_with('-'); };
    if (mark == words && mark != arguments.end()) {
      arguments.erase(mark);
    } else if (std::all_of(words, mark, is_flag)) {
      // From the first word that is no flag on CLI11 leaves everything as it is; here it would not.
      context.behind_mark.assign(mark, arguments.end());
      arguments.erase(mark, arguments.end());
    }
  }
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& failure) {
    return parse_failed(app, context, failure, arguments);
  }
  if (!context.selected) {
    context.err << app.help();
    return exit_code(Code::kInvalidArgument);
  }
  return std::nullopt;
}

int run_command_line(CLI::App& app, CommandContext& context, std::vector<std::string> arguments) {
  if (const auto ended = parse_command_line(app, context, std::move(arguments))) return *ended;
  const Status status = context.selected();
  context.out.flush();
  if (status.ok()) return context.exit_code;
  context.err << fmt::format("troupe {}: {}\n", context.selected_name, status.to_string());
  // A command that knows better, as 130 after Ctrl-C, has said so.
  return context.exit_code != 0 ? context.exit_code : exit_code(status.code());
}

}  // namespace troupe::tools
