// What is refused before anything runs, help, and the parts of the tools that need no cluster.

#include <signal.h>

#include <sstream>

#include "runtime/net/parse_address.h"
#include "scheduler/client/cluster_record.h"
#include "tests/support/text.h"
#include "tests/tools/troupe_program.h"
#include "tools/commands/command.h"
#include "tools/commands/table.h"

namespace troupe::tests {
namespace {

using std::string;
using tools::nearest;

TEST_CASE("standard streams that are closed, or full, hang nothing and are no success") {
  const std::string troupe = bin_dir() + "/troupe";
  const auto shell = [&](const std::string& words) {
    return run_command({"/bin/sh", "-c", "'" + troupe + "' " + words});
  };
  CHECK(shell("version 2>&- <&-").exit_code == 0);
  const auto full = shell("version >/dev/full");
  CHECK(full.exit_code == 5);
  CHECK(full.err.find("standard output could not be written") != std::string::npos);
  // As of a program that SIGPIPE ended. The reader goes before the first byte is written.
  const auto unread = run_command(
      {"/bin/bash", "-c",
       "trap '' PIPE; exec 3> >(exec true); wait $!; '" + troupe + "' version >&3; exit $?"});
  CHECK(unread.exit_code == 128 + SIGPIPE);
  CHECK(unread.err.empty());
}

TEST_CASE("a mistyped flag of a training is told before the configuration is looked for") {
  const TroupeHome home;
  const auto said = [&](const std::vector<string>& words) {
    const auto result = home.run(words);
    CHECK(result.exit_code == 2);
    CHECK_FALSE(contains(result.err, "dataset"));
    return result.err;
  };
  CHECK(contains(said({"train", "x.yaml", "--explian"}), "did you mean '--explain'?"));
  CHECK(contains(said({"data", "--hlep"}), "did you mean '--help'?"));
  CHECK(contains(said({"train", "--no_wait"}), "did you mean '--no-wait'?"));
  CHECK(contains(said({"train", "x.yaml", "--detach=1"}), "--detach takes no value"));
  CHECK(contains(said({"plan", "--explain", "x.yaml"}),
                 "--explain is a flag of 'troupe train', not of 'troupe plan'"));
  CHECK(contains(said({"plan", "x.yaml", "--help=1"}), "--help takes no value"));
  // Keys of other tools are keys, also with no_ before them, and may be what was meant.
  for (const char* key : {"--no_ebft", "--include_tkp=1"}) {
    CHECK_FALSE(contains(home.run({"train", "x.yaml", key}).err, "is no flag"));
  }
  // A key's name that is no key is told with the rest.
  CHECK(contains(home.run({"train", "--learnig_rate", "1"}).err, "dataset"));
}

TEST_CASE("help of another launcher's name") {
  const TroupeHome home;
  const auto help = home.run({"help", "torchrun"});
  CHECK(help.exit_code == 0);
  CHECK(contains(help.out, "torchrun"));
  CHECK(contains(help.out, "--nproc"));
}

TEST_CASE("every command has help with examples") {
  const TroupeHome home;
  const auto list = home.run({"--help"});
  CHECK(list.exit_code == 0);
  for (const char* name :
       {"new",       "train",  "run",    "plan", "data",   "generate", "chat",  "export",
        "tokenizer", "merge",  "verify", "head", "worker", "status",   "nodes", "drain",
        "actors",    "groups", "events", "logs", "stop",   "version",  "help"}) {
    CAPTURE(name);
    CHECK(contains(list.out, string("\n  ") + name + " "));
    const auto help = home.run({name, "--help"});
    CHECK(help.exit_code == 0);
    CHECK(contains(help.out, string("Usage: troupe ") + name));
    CHECK(contains(help.out, "Examples:\n  troupe "));
    CHECK(home.run({"help", name}).out == help.out);
  }
  CHECK(home.run({"help"}).out == list.out);
  // Behind arguments of its own, too.
  for (const char* name : {"train", "plan", "export", "data", "slurm"}) {
    CHECK(home.run({name, "x.yaml", "--help"}).out == home.run({name, "--help"}).out);
  }
  CHECK(home.run({"run", "--nproc-per-node", "2", "--help"}).out == home.run({"help", "run"}).out);
  CHECK(home.run({"run", "sh", "-c", "echo $0", "--help"}).out == "--help\n");
  CHECK(contains(home.run({"--version"}).out, "troupe "));
  CHECK(json::find_integer(home.run_json({"version"}), "protocol").has_value());
}

TEST_CASE("what is misspelt is refused with the nearest name") {
  const TroupeHome home;
  const auto refused = [&](const std::vector<string>& arguments, const string& what) {
    const auto result = home.run(arguments);
    CAPTURE(result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK(contains(result.err, what));
  };
  refused({"wroker"}, "Did you mean 'worker'?");
  refused({"stat"}, "Did you mean 'status'?");
  refused({"frobnicate"}, "no command 'frobnicate'");
  refused({"help", "hed"}, "Did you mean 'head'?");
  refused({"head", "--interfase", "eth0"}, "Did you mean '--interface'?");
  refused({"nodes", "everything"}, "argument 'everything' is too many");
  refused({"logs"}, "troupe logs --help");
  refused({"head", "--port", "many"}, "--port");
  refused({"head", "--port", "70000"}, "--port");
  refused({"head", "--address", "203.0.113.77"}, "203.0.113.77");
  refused({"head", "--interface", "nosuch0"}, "nosuch0");
  refused({"head", "--token-stdin", "--token-file", "x"}, "exclude each other");
  refused({"worker", "--address", "nohost"}, "HOST:PORT");
  refused({"status", "--timeout", "0"}, "--timeout");
  CHECK(home.run({}).exit_code == 2);
  CHECK(home.things().empty());
}

TEST_CASE("what a worker is to offer is checked before it joins") {
  const TroupeHome home;
  run_command({"sh", "-c",
               "mkdir -p \"$0/.troupe\" && echo 00112233445566778899aabbccddeeff > "
               "\"$0/.troupe/token\" && chmod 600 \"$0/.troupe/token\"",
               home.path()});
  const auto refused = [&](const string& option, const string& value) {
    const auto result = home.run({"worker", "--address", "127.0.0.1:1", option, value});
    CAPTURE(result.err);
    CHECK(result.exit_code == 2);
    CHECK(contains(result.err, option));
  };
  refused("--num-cpus", "two");
  refused("--num-cpus", "-1");
  refused("--memory", "8Q");
  refused("--resources", "ssd");
  refused("--resources", "=1");
  refused("--labels", "rack");
  refused("--labels", "rack=1,rack=2");
}

TEST_CASE("the nearest name") {
  const std::vector<string> names = {"status", "stop", "nodes"};
  CHECK(nearest("status", names) == "status");
  CHECK(nearest("sttaus", names) == "status");
  CHECK(nearest("node", names) == "nodes");
  CHECK_FALSE(nearest("train", names).has_value());
  CHECK_FALSE(nearest("", names).has_value());
}

TEST_CASE("addresses") {
  using net::parse_address;
  CHECK(parse_address("10.0.0.2:6379", "x")->host == "10.0.0.2");
  CHECK(parse_address("[2001:db8::2]:80", "x")->host == "2001:db8::2");
  CHECK(parse_address("[2001:db8::2]:80", "x")->port == 80);
  for (const char* wrong : {"", ":", "host", "host:", ":80", "host:0", "host:65536", "host:8x",
                            "2001:db8::2:80", "host:-1"}) {
    CAPTURE(wrong);
    const auto result = parse_address(wrong, "--address");
    CHECK(result.status().code() == Code::kInvalidArgument);
    CHECK(contains(result.status().message(), "--address"));
  }
  CHECK(scheduler::format_address("10.0.0.2", 80) == "10.0.0.2:80");
  CHECK(scheduler::format_address("::1", 80) == "[::1]:80");
}

TEST_CASE("tables align their columns, leave out empty ones, and are harmless to a terminal") {
  tools::Table table({"NAME", "GPU", "STATE"});
  table.add({"trainer-0", "", "alive"});
  table.add({"\x1b[31mé", "", "dead\nnow"});
  std::ostringstream out;
  table.print(out);
  CHECK(out.str() ==
        "NAME       STATE\n"
        "trainer-0  alive\n"
        "?[31mé     dead now\n");
  CHECK(tools::format_age(-5) == "0s");
  CHECK(tools::format_age(61'000'000) == "1m 1s");
  CHECK(tools::format_age(90'061'000'000) == "1d 1h");
}

TEST_CASE("the record of a head") {
  PosixFileSystem files;
  const TroupeHome home;
  const string path = home.file(".troupe/current");
  const scheduler::ClusterRecord record{"10.0.0.2", 6379, "/t", 4711, "machine"};
  CHECK(scheduler::read_cluster_record(files, path).status().code() == Code::kNotFound);
  REQUIRE(scheduler::write_cluster_record(files, path, record).ok());
  CHECK(files.permissions(path).value() == 0600);
  CHECK(scheduler::read_cluster_record(files, path).value() == record);
  auto other = record;
  other.pid = 4712;
  CHECK(scheduler::remove_cluster_record(files, path, other).ok());
  CHECK(files.exists(path));
  CHECK(scheduler::remove_cluster_record(files, path, record).ok());
  CHECK_FALSE(files.exists(path));
  for (const char* damaged : {"", "{}", "[1]", R"({"host":"x","port":0,"pid":1})", "not json"}) {
    REQUIRE(write_file_atomically(files, path, damaged).ok());
    CHECK(scheduler::read_cluster_record(files, path).status().code() == Code::kDataLoss);
  }
}

}  // namespace
}  // namespace troupe::tests
