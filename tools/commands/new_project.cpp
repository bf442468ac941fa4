#include "tools/commands/new_project.h"

#include <algorithm>
#include <cctype>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/suggest.h"
#include "runtime/base/text.h"
#include "tools/commands/project_files.h"

namespace troupe::tools {
namespace {

constexpr std::string_view kEveryCpp = "cpp";
constexpr std::size_t kNameMax = 64;

struct NewOptions {
  std::string name;
  std::string chosen = "actors";
};

struct Template {
  std::string name;
  std::string component;  // of Troupe's libraries; empty: the project has no C++
  std::string needs;      // besides the command
  std::string next;       // what the user does then
};

const std::vector<Template>& templates() {
  static const std::string library =
      " It needs CMake, a C++20 compiler and Troupe's library ({0}).";
  static const std::string build =
      "  cmake -S {0} -B {0}/build && cmake --build {0}/build -j\n"
      "  {0}/build/{1}\n"
      "  ctest --test-dir {0}/build --output-on-failure\n";
  static const std::vector<Template> all = {
      {"actors", "actors", library, build},
      {"pipeline", "actors", library, build},
      {"chaos", "actors", library, build},
      {"train", "train", library, build},
      {"yaml", "", "", "  cd {0} && troupe train train.yaml\n  tests/survives_kill.sh\n"}};
  return all;
}

void fill_in(std::string& text, std::string_view mark, std::string_view word) {
  for (std::size_t at = 0; (at = text.find(mark, at)) != std::string::npos; at += word.size())
    text.replace(at, mark.size(), word);
}

// The last part of the path is a program's, a target's and a project's name.
Result<std::string> project_name(const std::string& path) {
  std::string name = path;
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  name = name.substr(name.rfind('/') + 1);
  const bool good = !name.empty() && name.size() <= kNameMax &&
                    std::isalpha(static_cast<unsigned char>(name.front())) &&
                    std::all_of(name.begin(), name.end(), [](unsigned char c) {
                      return std::isalnum(c) || c == '_' || c == '-';
                    });
  // CMake has most of these for itself (policy CMP0037).
  static const std::vector<std::string> reserved = {
      "all",     "ALL_BUILD",  "help",           "install",    "INSTALL", "preinstall",
      "clean",   "edit_cache", "rebuild_cache",  "ZERO_CHECK", "test",    "RUN_TESTS",
      "package", "PACKAGE",    "package_source", "troupe"};
  const bool taken = std::find(reserved.begin(), reserved.end(), name) != reserved.end();
  if (good && !taken) return name;
  return error(Code::kInvalidArgument,
               "'{}' is no name for a project: letters, digits, '_' and '-', a letter first, at "
               "most {} of them{}",
               name, kNameMax, taken ? "; and this one is CMake's own, or Troupe's" : "");
}

Status write_project(CommandContext& context, const NewOptions& options) {
  const std::string name = TROUPE_TRY(project_name(options.name));
  const auto& all = templates();
  const auto chosen = std::find_if(all.begin(), all.end(),
                                   [&](const Template& t) { return t.name == options.chosen; });
  if (chosen == all.end()) {
    std::vector<std::string> names;
    for (const Template& known : all) names.push_back(known.name);
    return error(Code::kInvalidArgument,
                 "there is no template '{}'{}: actors, pipeline, chaos, train or yaml",
                 options.chosen, did_you_mean(options.chosen, names));
  }
  FileSystem& files = context.files;
  if (files.exists(options.name)) {
    const auto there = files.list(options.name);
    if (!there.ok() || !there->empty()) {
      return error(Code::kAlreadyExists,
                   "{} is there already, and not an empty folder: choose another name",
                   options.name);
    }
  }
  const std::string package =
      chosen->component == "train" ? "libtroupe-train-dev" : "libtroupe-dev";
  for (const ProjectFile& file : project_files()) {
    if (file.of != chosen->name && (file.of != kEveryCpp || chosen->component.empty())) continue;
    const std::string path = join_path(options.name, file.path);
    TROUPE_RETURN_IF_ERROR(files.create_directories(path.substr(0, path.rfind('/'))));
    std::string text(file.text);
    fill_in(text, "@NAME@", name);
    fill_in(text, "@COMPONENT@", chosen->component);
    fill_in(text, "@PACKAGE@", package);
    fill_in(text, "@TRAINS@", chosen->component == "train" ? "ON" : "OFF");
    const unsigned mode = file.path.ends_with(".sh") ? 0755 : 0644;
    auto out = TROUPE_TRY(files.create(path, mode));
    TROUPE_RETURN_IF_ERROR(out->append(std::as_bytes(std::span(text))));
    TROUPE_RETURN_IF_ERROR(out->close());
    context.out << "  " << path << "\n";
  }
  context.out << fmt::format("{} is a project of its own ({}).{} Now:\n", options.name,
                             chosen->name, fmt::format(fmt::runtime(chosen->needs), package))
              << fmt::format(fmt::runtime(chosen->next), options.name, name);
  return {};
}

}  // namespace

void add_new_command(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<NewOptions>();
  Command(app, context, "new",
          "Writes a project of your own to begin with: program, test, CMake, CI.")
      .argument("name", options->name, "the folder to write; its last part is the project's name")
      .option("--template", options->chosen, "NAME",
              "actors (default): two actors; pipeline: three stages; chaos: a machine is lost; "
              "train: a training of your own in C++; yaml: a training by a file")
      .example("troupe new app")
      .example("troupe new words --template pipeline")
      .example("troupe new tune --template yaml")
      .run([options, &context] { return write_project(context, *options); });
}

}  // namespace troupe::tools
