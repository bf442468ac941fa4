// What others link: the installed library by CMake and by pkg-config, its sources by FetchContent,
// and the projects that `troupe new` writes, built and tested as a user does it.

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/suggest.h"
#include "tests/support/command.h"
#include "tests/support/test_data.h"

namespace troupe::tests {
namespace {

using std::string;
using std::chrono::seconds;
namespace fs = std::filesystem;

CommandResult must_run(const std::vector<string>& argv, const CommandOptions& options = {}) {
  auto result = run_command(argv, options);
  REQUIRE_MESSAGE(result.exit_code == 0, argv[0] << ": " << result.out << result.err);
  return result;
}

// The library under a prefix of its own, once for all cases.
struct Installed {
  Installed() {
    for (const char* component : {"runtime", "train"})
      must_run({TROUPE_TEST_CMAKE, "--install", TROUPE_TEST_BUILD_DIR, "--prefix", prefix(),
                "--component", component});
    for (const auto& entry : fs::recursive_directory_iterator(prefix())) {
      if (entry.path().filename() == "troupe.pc") pkg_config = entry.path().parent_path();
      if (entry.path().filename() == "libtroupe.so") libraries = entry.path().parent_path();
    }
  }
  string prefix() const { return folder.file("prefix"); }
  TemporaryDirectory folder;
  string pkg_config, libraries;
};
const Installed& installed() {
  static const Installed it;
  return it;
}

string read_file(const string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}
void write_file(const string& path, const string& text) { std::ofstream(path) << text; }

std::vector<string> words(const string& text) {
  auto all = split_words(trim(text), ' ');
  std::erase(all, "");
  return all;
}

// What comes with a program, by a compiler's list, but itself, our public headers, the standard
// library and PFR. The project may lie in a folder of any name.
string strangers(const std::vector<string>& files, const string& source, const string& prefix) {
  std::set<string> found;
  for (const string& path : files) {
    const string clean = fs::path(path).lexically_normal();
    if (clean == source || clean.starts_with(prefix + "/include/troupe/")) continue;
    if (clean.starts_with(source_dir() + "/") || clean.find("/include/troupe/") != string::npos)
      found.insert(clean);
    for (const char* name : {"asio", "capnp", "/kj/", "boost/json", "fmt/", "openssl", "xxhash",
                             "Eigen", "dnnl", "/tbb/"})
      if (clean.find(name) != string::npos) found.insert(clean);
  }
  return join_words({found.begin(), found.end()});
}

// The first example, compiled with the flags of pkg-config and the warnings that people turn on.
TEST_CASE(
    "pkg-config: the public headers alone, without a warning, and the library by its soname") {
  const Installed& it = installed();
  const CommandOptions options{.environment = {{"PKG_CONFIG_PATH", it.pkg_config}}};
  CHECK(trim(must_run({"pkg-config", "--modversion", "troupe"}, options).out) == "0.1.0");
  const auto flags = words(must_run({"pkg-config", "--cflags", "troupe"}, options).out);
  const auto libs = words(must_run({"pkg-config", "--libs", "troupe"}, options).out);
  const string program = it.folder.file("hello"),
               source = source_dir() + "/examples/01_hello_actor/main.cpp";
  std::vector<string> compile = {TROUPE_TEST_CXX, "-std=c++20", "-Wall",
                                 "-Wextra",       "-Wpedantic", "-Werror"};
  compile.insert(compile.end(), flags.begin(), flags.end());

  const string list = it.folder.file("hello.d");
  compile.insert(compile.end(), {"-MD", "-MF", list, source, "-o", program});
  compile.insert(compile.end(), libs.begin(), libs.end());
  must_run(compile, options);
  const auto ran = must_run({program}, {.environment = {{"LD_LIBRARY_PATH", it.libraries}}});
  CHECK(ran.out.find("Hello, Ada!") != string::npos);
  CHECK(must_run({"readelf", "-d", program}).out.find("[libtroupe.so.0.1]") != string::npos);
  CHECK(strangers(words(read_file(list)), source, it.prefix()) == "");
}

const string& readme() {
  static const string page = source_dir() + "/README.md";
  return page;
}
std::vector<string> all_pages() {
  std::vector<string> pages = {readme()};
  for (const auto& page : fs::directory_iterator(source_dir() + "/examples/guide"))
    if (page.path().extension() == ".md") pages.push_back(page.path());
  return pages;
}

// The blocks of that language in the pages, each once.
std::vector<string> blocks(const string& language, const std::vector<string>& pages) {
  std::vector<string> all;
  const string begin = "\n```" + language + "\n", end = "\n```\n";
  for (const string& page : pages) {
    const string text = read_file(page);
    for (std::size_t at = 0; (at = text.find(begin, at)) != string::npos;) {
      at += begin.size();
      const string block = text.substr(at, text.find(end, at) + 1 - at);
      if (std::find(all.begin(), all.end(), block) == all.end()) all.push_back(block);
    }
  }
  return all;
}

bool trains(const string& program) { return program.find("<troupe/train.h>") != string::npos; }

// Every program of the pages, linked as the guide says, runs.
void build_and_run(const std::vector<string>& pages) {
  const Installed& it = installed();
  auto programs = blocks("cpp", pages);
  const auto ways = blocks("cmake", all_pages());
  std::erase_if(programs, trains);  // a case below builds it, and runs it
  REQUIRE_FALSE(programs.empty());
  REQUIRE(ways.size() == 2);  // find_package, FetchContent
  const string& found = ways[0].find("find_package") != string::npos ? ways[0] : ways[1];
  const CommandOptions options{
      .timeout = seconds(240),
      .environment = {{"CMAKE_PREFIX_PATH", it.prefix()}, {"CMAKE_GENERATOR", "Ninja"}}};
  const string folder = it.folder.file("guide");
  fs::create_directories(folder);
  string project = "cmake_minimum_required(VERSION 3.22)\nproject(guide LANGUAGES CXX)\n";
  for (std::size_t i = 0; i < programs.size(); ++i) {
    const string name = "program" + std::to_string(i);
    CAPTURE(programs[i]);
    CHECK(programs[i].find("int main(") != string::npos);
    write_file(folder + "/" + name + ".cpp", programs[i]);
    string link = found;
    for (std::size_t at; (at = link.find("(app ")) != string::npos;)
      link.replace(at, 5, "(" + name + " ");
    project += "add_executable(" + name + " " + name + ".cpp)\n" + link;
  }
  write_file(folder + "/CMakeLists.txt", project);
  must_run({TROUPE_TEST_CMAKE, "-S", folder, "-B", folder + "/build"}, options);
  must_run({TROUPE_TEST_CMAKE, "--build", folder + "/build", "-j2"}, options);
  for (std::size_t i = 0; i < programs.size(); ++i)
    must_run({folder + "/build/program" + std::to_string(i)}, options);
}

TEST_CASE("the README's program, linked as the guide says, runs") { build_and_run({readme()}); }

// A second of the compiler's for each.
TEST_CASE("long: every program in README and guide, linked as the guide says, runs" *
          doctest::skip()) {
  build_and_run(all_pages());
}

// `troupe new`, then what it says to do.
void build_and_test(const string& which, const string& troupe_folder) {
  CAPTURE(which);
  const Installed& it = installed();
  const string name = which + "-app", folder = it.folder.file(name);
  const CommandOptions options{
      .timeout = seconds(120),
      .environment = {{"LD_LIBRARY_PATH", it.libraries},
                      {"CMAKE_PREFIX_PATH", it.prefix()},
                      {"CMAKE_GENERATOR", "Ninja"},  // which building Troupe needs anyway
                      {"CMAKE_BUILD_TYPE", "None"},  // optimising is the compiler's own affair
                      {"PATH", troupe_folder + ":/usr/local/bin:/usr/bin:/bin"}},
      .directory = it.folder.path()};
  const auto made = must_run({bin_dir() + "/troupe", "new", folder, "--template", which}, options);
  CHECK(made.out.find("ctest --test-dir " + folder + "/build") != string::npos);
  must_run({TROUPE_TEST_CMAKE, "-S", folder, "-B", folder + "/build"}, options);
  must_run({TROUPE_TEST_CMAKE, "--build", folder + "/build", "-j2"}, options);
  must_run({folder + "/build/" + name}, options);
  must_run({"ctest", "--test-dir", folder + "/build", "--output-on-failure"}, options);
  // It would not be written over.
  const auto again = run_command({bin_dir() + "/troupe", "new", folder}, options);
  CHECK(again.exit_code == 2);
  CHECK(again.err.find("is there already") != string::npos);
}

TEST_CASE(
    "troupe new: a project that finds the installed library, builds, and survives its faults") {
  build_and_test("actors", bin_dir());
}

TEST_CASE("troupe new: a training by a file that survives a kill, to the bit") {
  const TemporaryDirectory place;
  const string folder = place.file("tune");
  must_run({bin_dir() + "/troupe", "new", folder, "--template", "yaml"});
  const auto tested =
      must_run({folder + "/tests/survives_kill.sh"},
               {.environment = {{"PATH", bin_dir() + ":/usr/bin:/bin"}, {"HOME", place.path()}}});
  CHECK(tested.out.find("the same weights, to the bit") != string::npos);
}

// find_package's component, with a rank killed by the project's own test.
TEST_CASE("troupe new: a training of one's own in C++ that survives a kill, to the bit") {
  build_and_test("train", bin_dir());
}

TEST_CASE("pkg-config: the guide's own training, from the public headers without a warning") {
  const Installed& it = installed();
  const auto programs = blocks("cpp", all_pages());
  const auto program = std::find_if(programs.begin(), programs.end(), trains);
  REQUIRE(program != programs.end());
  const string source = it.folder.file("training.cpp"), output = it.folder.file("training.d");
  write_file(source, *program);
  const CommandOptions options{.environment = {{"PKG_CONFIG_PATH", it.pkg_config}}};
  const auto flags = words(must_run({"pkg-config", "--cflags", "troupe-train"}, options).out);
  const auto libs = words(must_run({"pkg-config", "--libs", "troupe-train"}, options).out);
  std::vector<string> link = {TROUPE_TEST_CXX, "-std=c++20", "-Wall", "-Wextra",
                              "-Wpedantic",    "-Werror",    "-MD",   "-MF",
                              output,          source,       "-o",    it.folder.file("training")};
  link.insert(link.end(), flags.begin(), flags.end());
  link.insert(link.end(), libs.begin(), libs.end());
  must_run(link, options);
  must_run({it.folder.file("training")}, {.environment = {{"LD_LIBRARY_PATH", it.libraries}}});
  const auto linked = must_run({"readelf", "-d", it.folder.file("training")}).out;
  CHECK(linked.find("[libtroupe_train.so.0.1]") != string::npos);
  CHECK(strangers(words(read_file(output)), source, it.prefix()) == "");
}

TEST_CASE("troupe new refuses what is no name, or no template") {
  const TemporaryDirectory place;
  for (const char* name : {"9lives", "a b", "test", "-", "x.y"}) {
    CAPTURE(name);
    CHECK(run_command({bin_dir() + "/troupe", "new", place.file(name)}).exit_code == 2);
  }
  const auto refused =
      run_command({bin_dir() + "/troupe", "new", place.file("app"), "--template", "actor"});
  CHECK(refused.exit_code == 2);
  CHECK(refused.err.find("did you mean 'actors'") != string::npos);
  CHECK(fs::is_empty(place.path()));
}

TEST_CASE("troupe new: where the library is missing, the project says so and how it comes") {
  const TemporaryDirectory place;
  const string folder = place.file("app");
  const auto made = must_run({bin_dir() + "/troupe", "new", folder});
  CHECK(made.out.find("Troupe's library (libtroupe-dev)") != string::npos);
  const auto configured = run_command({TROUPE_TEST_CMAKE, "-S", folder, "-B", folder + "/build",
                                       "-G", "Ninja", "-DCMAKE_DISABLE_FIND_PACKAGE_Troupe=ON"});
  CHECK(configured.exit_code != 0);
  CHECK(configured.err.find("libtroupe-dev") != string::npos);
}

TEST_CASE("the command is installed with troupe-shims, whose links are to it") {
  const TemporaryDirectory place;
  must_run({TROUPE_TEST_CMAKE, "--install", TROUPE_TEST_BUILD_DIR, "--prefix", place.path(),
            "--component", "cli"});
  const CommandOptions options{.environment = {{"PATH", "/usr/bin:/bin"}}};
  must_run({place.file("bin/troupe-shims"), place.file("links"), "--force"}, options);
  CHECK(fs::canonical(place.file("links/torchrun")) == fs::canonical(place.file("bin/troupe")));
  const auto help = must_run({place.file("links/torchrun"), "--help"}, options);
  CHECK(help.out.find("--nproc-per-node") != string::npos);
}

TEST_CASE("long: troupe new: pipeline and chaos" * doctest::skip()) {
  build_and_test("pipeline", bin_dir());
  build_and_test("chaos", bin_dir());
}

// Configures the project that takes the sources in, without the packages that it should not need.
string fetch(const TemporaryDirectory& place, const CommandOptions& options, const char* trains,
             const std::vector<string>& unneeded) {
  const string build = place.file("build");
  std::vector<string> configure = {TROUPE_TEST_CMAKE,
                                   "-S",
                                   source_dir() + "/tests/packaging/fetch",
                                   "-B",
                                   build,
                                   "-DTROUPE_SOURCE_DIR=" + source_dir(),
                                   string("-DTROUPE_BUILD_TRAIN=") + trains};
  for (const string& package : unneeded)
    configure.push_back("-DCMAKE_DISABLE_FIND_PACKAGE_" + package + "=ON");
  const auto configured = must_run(configure, options);
  CHECK(configured.out.find("options of our own: options-NOTFOUND; build type: ''") !=
        string::npos);
  return build;
}

TEST_CASE("long: FetchContent: only what actors need, with the other project's own settings" *
          doctest::skip()) {
  const TemporaryDirectory place;
  const CommandOptions options{.timeout = seconds(1000),
                               .environment = {{"CMAKE_GENERATOR", "Ninja"}}};
  const string build = fetch(place, options, "OFF", {"doctest", "TBB", "CLI11", "Eigen3"});
  must_run({TROUPE_TEST_CMAKE, "--build", build, "--target", "fetches", "-j2"}, options);
  CHECK(must_run({build + "/fetches"}).out.find("Hello, Ada!") != string::npos);
}

TEST_CASE("FetchContent: TROUPE_BUILD_TRAIN offers what trains, without tests and tools") {
  const TemporaryDirectory place;
  const CommandOptions options{.environment = {{"CMAKE_GENERATOR", "Ninja"}}};
  const string build = fetch(place, options, "ON", {"doctest", "CLI11"});
  const auto linked = must_run(
      {TROUPE_TEST_CMAKE, "--build", build, "--", "-t", "query", "fetches_train"}, options);
  CHECK(linked.out.find("libtroupe_train.so") != string::npos);
}

TEST_CASE("long: FetchContent: what trains is built, and a training of one's own runs" *
          doctest::skip()) {
  const TemporaryDirectory place;
  const CommandOptions options{.timeout = seconds(2400),
                               .environment = {{"CMAKE_GENERATOR", "Ninja"}}};
  const string build = fetch(place, options, "ON", {"doctest", "CLI11"});
  must_run({TROUPE_TEST_CMAKE, "--build", build, "--target", "fetches_train", "-j2"}, options);
  const auto ran = must_run({build + "/fetches_train"});
  CHECK(ran.out.find("as many steps and the same bits: yes") != string::npos);
}

}  // namespace
}  // namespace troupe::tests
