// `troupe submit --ship`: what a job needs reaches nodes that lack it. Two nodes of one machine,
// each with a folder of its own for packages; what was shipped is moved away before it is needed.

#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/support/text.h"
#include "tests/tools/troupe_program.h"

namespace troupe::tests {
namespace {

namespace fs = std::filesystem;
using std::string;

void write(const string& path, const string& content) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path) << content;
}

struct Shipping {
  TroupeHome home;
  RunningHead head = start_head(home);
  std::unique_ptr<BackgroundCommand> a = worker("a"), b = worker("b");
  string project = home.file("project");

  Shipping() {
    fs::create_directories(project + "/bin");
    fs::copy_file(bin_dir() + "/test_tools_ship_driver", project + "/bin/app");
    fs::create_directories(home.file("libraries"));
    fs::copy_file(bin_dir() + "/../shipped/libtest_ship_words.so",
                  home.file("libraries/libtest_ship_words.so"));
    write(project + "/data/words.txt", "hello");
    fs::create_symlink("data/words.txt", project + "/link");
    write(project + "/.git/config", "secret");
    write(project + "/build/large", string(2 << 20, 'x'));
    write(project + "/run.sh", "#!/bin/sh\npwd; ls -A; cat link; echo; exit 4\n");
    fs::permissions(project + "/run.sh", fs::perms::owner_all);
  }
  std::unique_ptr<BackgroundCommand> worker(const string& name) const {
    return start_worker(home, head,
                        {"--num-cpus", "2", "--labels", "n=" + name, "--package-dir",
                         home.file("packages-" + name)});
  }
  std::vector<string> arguments(const std::vector<string>& options,
                                const std::vector<string>& program) const {
    std::vector<string> all{"submit", "--ship", "--working-dir", project, "--exclude", "build"};
    all.insert(all.end(), options.begin(), options.end());
    all.push_back("--");
    all.insert(all.end(), program.begin(), program.end());
    return all;
  }
  CommandResult ship(const std::vector<string>& options, const std::vector<string>& program) const {
    return home.run(arguments(options, program));
  }
  // Where a node has unpacked the one package that it has.
  string place(const string& node) const {
    for (const auto& entry : fs::recursive_directory_iterator(home.file("packages-" + node))) {
      if (entry.path().extension() == ".package")
        return entry.path().parent_path() / entry.path().stem();
    }
    return "no package on node " + node;
  }
  void stop() {
    CHECK(home.run({"stop"}).exit_code == 0);
    CHECK(a->wait(kPatience) == 0);
    CHECK(b->wait(kPatience) == 0);
  }
};

TEST_CASE("program, library and folder reach the driver's node and its actors' nodes, once") {
  Shipping cluster;
  cluster.home.more().environment["LD_LIBRARY_PATH"] = cluster.home.file("libraries");
  const std::vector<string> program{"./bin/app", cluster.home.file("go"), "a", "b"};
  auto job = start_troupe(cluster.home, cluster.arguments({"--labels", "n=b"}, program));
  REQUIRE_MESSAGE(job->wait_for_output("was submitted", kPatience), job->output());
  CHECK_MESSAGE(contains(job->output(), " was sent to node "), job->output());
  // Nothing of it is where it was.
  fs::rename(cluster.project, cluster.home.file("moved"));
  fs::rename(cluster.home.file("libraries"), cluster.home.file("moved-libraries"));
  write(cluster.home.file("go"), "");
  CHECK_MESSAGE(job->wait(kPatience) == 0, job->output());
  const auto found = [&](const string& who, const string& node) {
    return who + ": " + cluster.place(node) + "/work has 'hello' and words of the library\n";
  };
  CHECK_MESSAGE(contains(job->output(), found("driver", "b")), job->output());
  CHECK(contains(job->output(), found("a", "a")));
  CHECK(contains(job->output(), found("b", "b")));
  CHECK(fs::exists(cluster.place("a") + "/lib/libtest_ship_words.so"));
  CHECK(fs::is_symlink(cluster.place("a") + "/work/link"));
  for (const char* absent : {"/work/.git", "/work/build"}) {
    CHECK_FALSE(fs::exists(cluster.place("b") + absent));
  }
  // The same contents from another place: they are there.
  cluster.project = cluster.home.file("moved");
  cluster.home.more().environment["LD_LIBRARY_PATH"] = cluster.home.file("moved-libraries");
  const auto again = cluster.ship({"--json"}, program);
  CHECK(again.exit_code == 0);
  CHECK_MESSAGE(contains(again.err, "already: nothing was sent"), again.err);
  CHECK(std::count(again.out.begin(), again.out.end(), '\n') == 4);  // three lines, and the job
  // A node that comes later has it from the others: who sent it has gone, and so has the folder.
  auto late =
      start_troupe(cluster.home, cluster.arguments({"--name", "late", "--labels", "n=b"},
                                                   {"./bin/app", cluster.home.file("go-on"), "c"}));
  REQUIRE_MESSAGE(late->wait_for_output("was submitted", kPatience), late->output());
  late->kill(SIGKILL);
  fs::remove_all(cluster.project);
  const auto c = cluster.worker("c");
  write(cluster.home.file("go-on"), "");
  REQUIRE(in_time([&] { return contains(cluster.home.run({"logs", "late"}).out, "c: "); }));
  CHECK(contains(cluster.home.run({"logs", "late"}).out, found("c", "c")));
  cluster.stop();
}

TEST_CASE("a script, a program of the node's, and one outside of the folder") {
  Shipping cluster;
  const auto script = cluster.ship({"--labels", "n=a"}, {"./run.sh"});
  CHECK(script.exit_code == 4);
  CHECK_MESSAGE(script.out == cluster.place("a") + "/work\nbin\ndata\nlink\nrun.sh\nhello\n",
                script.out);
  CHECK(cluster.ship({"--labels", "n=b"}, {"sh", "run.sh"}).exit_code == 4);
  fs::rename(cluster.project + "/run.sh", cluster.home.file("elsewhere.sh"));
  const auto outside = cluster.ship({"--exclude", "bin"}, {"../elsewhere.sh"});
  CHECK(outside.exit_code == 4);
  CHECK_MESSAGE(contains(outside.out, "/work\ndata\nlink\nhello\n"), outside.out);
  cluster.stop();
}

TEST_CASE("what cannot be shipped is named, with the way out") {
  Shipping cluster;
  const auto refused = [&](const std::vector<string>& options, const std::vector<string>& program,
                           int code, const string& text) {
    const auto result = cluster.ship(options, program);
    CHECK(result.exit_code == code);
    CHECK_MESSAGE(contains(result.err, text), result.err);
    CHECK_FALSE(contains(result.err, "was submitted"));
  };
  refused({}, {"./absent"}, 3, "there is no program ./absent in " + cluster.project);
  refused({}, {"./data/words.txt"}, 4, "is not executable: 'chmod +x' it");
  refused({}, {"./data"}, 2, "is no file that can be run");
  refused({"--ship-limit", "1Mi"}, {"./run.sh"}, 5,
          "at most 1.0 MiB are shipped. The largest is bin (");
  refused({"--ship-limit", "x"}, {"./run.sh"}, 2, "--ship-limit");
  refused({}, {"./bin/app"}, 3, "library libtest_ship_words.so of ");
  fs::create_symlink("/etc", cluster.project + "/data/out");
  refused({}, {"./run.sh"}, 2, "data/out is a link to /etc, out of what is shipped");
  CHECK(cluster.ship({"--exclude", "data/out"}, {"./run.sh"}).exit_code == 4);
  REQUIRE(::mkfifo((cluster.project + "/pipe").c_str(), 0600) == 0);
  refused({"--exclude", "out"}, {"./run.sh"}, 2, "/pipe is no file, folder or link");
  const auto needless = cluster.home.run({"submit", "--exclude", "x", "--", "true"});
  CHECK(needless.exit_code == 2);
  CHECK(contains(needless.err, "--exclude and --ship-limit say what --ship sends"));
  // No node has room.
  for (auto* worker : {&cluster.a, &cluster.b}) {
    (*worker)->kill(SIGTERM);
    CHECK((*worker)->wait(kPatience) == 0);
  }
  cluster.a = start_worker(cluster.home, cluster.head, {"--package-bytes", "1Ki"});
  refused({"--exclude", "out", "--exclude", "pipe"}, {"./run.sh"}, 5, "no node took package ");
  cluster.b = start_worker(cluster.home, cluster.head);
  cluster.stop();
}

}  // namespace
}  // namespace troupe::tests
