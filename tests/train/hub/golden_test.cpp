// What huggingface_hub asks a server, returns and leaves in its cache, and what this does in the
// same situations (lf_data_golden/hub.json). It does better in some: a hash is checked, 429 is
// tried again, an early close is gone on from.

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "runtime/base/json.h"
#include "tests/support/text.h"
#include "tests/train/hub/hub_fixture.h"
#include "train/hub/errors.h"

namespace troupe::train::hub {
namespace {

namespace fs = std::filesystem;
using tests::contains;
using Server = tests::HubServer;
using Seen = Server::Seen;
using Tree = std::map<std::string, std::string>;

Tree tree_of(const std::string& folder) {
  Tree out;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const auto name = entry.path().lexically_relative(folder).string();
    if (entry.is_symlink()) {
      out[name] = "-> " + fs::read_symlink(entry.path()).string();
    } else if (entry.is_regular_file()) {
      std::ifstream in(entry.path(), std::ios::binary);
      const std::string text((std::istreambuf_iterator<char>(in)), {});
      const bool shown = !text.empty() && text.size() <= 40 &&
                         std::ranges::all_of(text, [](char c) { return (c & 0x80) == 0; });
      out[name] = shown ? text
                        : fmt::format("{} bytes, sha256 {}", text.size(),
                                      tests::sha256_hex(text).substr(0, 16));
    }
  }
  return out;
}

std::string line_of(const Seen& seen) {
  return fmt::format("{} {} {} {} range={} {}", seen.method, seen.to, seen.path, seen.status,
                     seen.range, seen.authorization.empty() ? "" : "auth");
}

std::string line_of(const json::Value& request) {
  const auto text = [&](const char* key) { return json::find_string(request, key).value_or(""); };
  const auto& headers = *json::find(request, "headers");
  return fmt::format("{} {} {} {} range={} {}", text("method"), text("to"), text("path"),
                     json::find_integer(request, "status").value_or(0),
                     json::find_string(headers, "range").value_or(""),
                     json::find(headers, "authorization") ? "auth" : "");
}

std::string joined(const std::vector<std::string>& lines) {
  std::string out;
  for (const auto& line : lines) out += line + "\n";
  return out;
}

class Golden {
 public:
  explicit Golden(const json::Value& root) : root_(root) {}

  std::string folder(const char* name) {
    const auto path = place_.file(name);
    fs::create_directories(path);
    return path;
  }

  // `better`: this does what huggingface_hub does not, which the caller checks.
  void check(const std::string& name, const std::string& cache,
             const std::function<Result<std::string>(Hub&)>& what, bool better = false,
             bool offline = false, const char* token = "hf_token_of_test") {
    INFO(name);
    const json::Value* golden = nullptr;
    for (const auto& one : json::find(root_, "cases")->get_array()) {
      if (json::find_string(one, "case") == name) golden = &one;
    }
    REQUIRE(golden != nullptr);
    seen_names.insert(name);
    auto hub = f.hub(cache, offline, token);
    hub.files_at_a_time = 1;
    result = what(hub);
    seen = f.server.take_seen();
    tree = tree_of(cache);
    if (!result.ok()) {
      CHECK_FALSE(contains(result.status().to_string(), "hf_token_of_test"));
      CHECK_FALSE(contains(result.status().to_string(), "signature"));
    }
    if (better) return;
    const auto expected = *json::find_string(*golden, "result");
    if (result.ok()) {
      CHECK("<cache>" + result->substr(cache.size()) == expected);
    } else {
      CHECK(expected.substr(0, expected.find(':')) == result.status().context("kind"));
    }
    std::vector<std::string> asked, should;
    for (const auto& request : seen) asked.push_back(line_of(request));
    for (const auto& request : json::find(*golden, "requests")->get_array())
      should.push_back(line_of(request));
    CHECK(joined(asked) == joined(should));
    Tree left;
    for (const auto& member : json::find(*golden, "tree")->get_object())
      left[std::string(member.key())] = std::string(member.value().get_string());
    CHECK(tree == left);
  }

  HubFixture f;
  Result<std::string> result = std::string();
  std::vector<Seen> seen;
  Tree tree;
  std::set<std::string> seen_names;

 private:
  const json::Value& root_;
  tests::TemporaryDirectory place_;
};

Repository tiny(const std::string& revision = "main") {
  return {.name = "acme/tiny", .revision = revision};
}

std::function<Result<std::string>(Hub&)> one(std::string file = "model.safetensors",
                                             std::string revision = "main") {
  return [=](Hub& hub) { return hub.file(tiny(revision), file); };
}

Result<std::string> snapshot(Hub& hub) {
  const auto found = hub.snapshot(tiny(), all_files);
  if (!found.ok()) return found.status();
  return found->folder;
}

TEST_CASE("the situations of huggingface_hub: requests, results, trees") {
  const auto path = tests::test_data("lf_data_golden/hub.json");
  if (!path) return;
  PosixFileSystem files;
  const auto text = files.read(*path, 1 << 20).value();
  const auto root = json::parse(text, *path, {.bytes_max = 1 << 20}).value();
  Golden g(root);
  auto& server = g.f.server;
  const auto status = [](int code, std::map<std::string, std::string> headers = {}) {
    return Server::Fault{.status = code, .headers = std::move(headers)};
  };

  const auto a = g.folder("a");
  g.check("snapshot, empty cache", a, snapshot);
  g.check("snapshot again", a, snapshot);
  g.check("one file again by branch", a, one("config.json"));
  g.check("one file again by commit", a, one("config.json", Server::kCommit));
  g.check("file that does not exist", a, one("tokenizer.model"));
  CHECK(contains(g.result.status().message(), "/acme/tiny/resolve/main/tokenizer.model"));
  g.check("tag, same content", a, one("config.json", "v1.0"));
  g.check("pull request's revision", a, one("config.json", "refs/pr/1"));
  g.check("unknown revision", a, one("config.json", "nope"));
  server.plan("HEAD", "config.json", status(503), 9);
  g.check("HEAD 503, file in the cache", a, one("config.json"));
  CHECK(g.f.recorded.waits_s == std::vector<std::int64_t>{1, 2, 4, 8, 8});
  CHECK(contains(g.f.recorded.said, "the cache's copy is used"));
  g.f.recorded.waits_s.clear();
  server.plan("HEAD", "config.json", status(429, {{"Retry-After", "3"}}), 2);
  g.check("HEAD 429, file in the cache", a, one("config.json"), true);
  CHECK(g.result.ok());
  CHECK(g.seen.size() == 3);  // the third brought the answer
  CHECK(g.f.recorded.waits_s == std::vector<std::int64_t>{3, 3});
  g.check("local_files_only", a, snapshot, false, true);

  const auto big = big_content();
  const auto hash = tests::sha256_hex(big);
  const auto blob = "models--acme--tiny/blobs/" + hash;
  const auto whole = fmt::format("300000 bytes, sha256 {}", hash.substr(0, 16));
  const auto left = [&](const std::string& cache, const std::string& bytes) {
    fs::create_directories(cache + "/models--acme--tiny/blobs");
    std::ofstream(cache + "/" + blob + ".incomplete", std::ios::binary) << bytes;
  };
  const auto b = g.folder("b");
  server.plan("GET", "/lfs/", {.kind = Server::Fault::kCut, .cut_after = 100'000});
  server.plan("GET", "/lfs/", {.kind = Server::Fault::kCut, .cut_after = 50'000});
  g.check("cut twice", b, one(), true);
  REQUIRE(g.result.ok());
  CHECK(g.tree[blob] == whole);
  REQUIRE(g.seen.size() == 4);
  CHECK(g.seen[1].range.empty());
  CHECK(g.seen[2].range == "bytes=100000-");
  CHECK(g.seen[3].range == "bytes=150000-");

  const auto b2 = g.folder("b2");
  left(b2, big.substr(0, 120'000));
  g.check("an .incomplete file is there", b2, one());
  const auto b3 = g.folder("b3");
  left(b3, std::string(1000, 'x'));
  g.check("an .incomplete file with wrong bytes", b3, one(), true);
  REQUIRE(g.result.ok());
  CHECK(g.tree[blob] == whole);
  CHECK(g.seen.size() == 3);
  const auto b4 = g.folder("b4");
  left(b4, big.substr(0, 120'000));
  server.plan("GET", "/lfs/", {.kind = Server::Fault::kIgnoreRange});
  g.check("range ignored by the server", b4, one());

  const auto empty = [&](const char* name, int code, std::map<std::string, std::string> headers,
                         bool better = false) {
    server.plan("HEAD", "config.json", status(code, std::move(headers)), 9);
    g.check(name, g.folder(name), one("config.json"), better);
  };
  empty("HEAD 429, empty cache", 429, {{"Retry-After", "1"}}, true);
  CHECK(g.result.status().context("kind") == kLocalEntryNotFound);
  CHECK(g.seen.size() == 6);
  CHECK(g.tree.empty());
  empty("HEAD 401, no such repository", 401,
        {{"X-Error-Code", "RepoNotFound"}, {"X-Error-Message", "Repository not found"}});
  empty("HEAD 401, bad token", 401,
        {{"X-Error-Message", "Invalid credentials in Authorization header"}});
  empty("HEAD 403, gated", 403,
        {{"X-Error-Code", "GatedRepo"}, {"X-Error-Message", "Access restricted"}});
  empty("HEAD 500, empty cache", 500, {});

  server.plan("GET", "/lfs/", status(429, {{"Retry-After", "1"}}), 9);
  g.check("GET 429", g.folder("d1"), one(), true);
  CHECK(g.result.status().context("kind") == kHttpError);
  CHECK(g.result.status().code() == Code::kResourceExhausted);
  CHECK(g.seen.size() == 7);
  server.plan("GET", "/lfs/", status(503));
  g.check("GET 503 once", g.folder("d2"), one());
  g.check("renamed repository (relative redirect)", g.folder("e"),
          [](Hub& hub) { return hub.file({.name = "acme/old"}, "config.json"); });
  g.check("data set", g.folder("f"), [](Hub& hub) {
    return hub.file({.type = RepositoryType::kDataset, .name = "acme/tiny"}, "config.json");
  });
  g.check("snapshot of a pattern", g.folder("g"), [](Hub& hub) -> Result<std::string> {
    const auto found = hub.snapshot(tiny(), [](const Snapshot& all) {
      return Result<std::vector<std::string>>(matching(all.all, {"*.json"}, {}));
    });
    if (!found.ok()) return found.status();
    return found->folder;
  });
  g.check("local_files_only, empty cache", g.folder("h"), snapshot, false, true);
  g.check("no token", g.folder("i"), one("config.json"), false, false, "");
  CHECK(g.seen_names.size() == json::find(root, "cases")->get_array().size());
}

TEST_CASE("a cache that huggingface_hub wrote is read as it stands") {
  const auto path = tests::test_data("lf_data_golden/hub.json");
  if (!path) return;
  PosixFileSystem files;
  const auto text = files.read(*path, 1 << 20).value();
  const auto root = json::parse(text, *path, {.bytes_max = 1 << 20}).value();
  const json::Value* golden = nullptr;
  for (const auto& one : json::find(root, "cases")->get_array()) {
    if (json::find_string(one, "case") == "local_files_only") golden = &one;
  }
  REQUIRE(golden != nullptr);
  const tests::TemporaryDirectory place;
  for (const auto& member : json::find(*golden, "tree")->get_object()) {
    const fs::path at = place.file(std::string(member.key()));
    const std::string said(member.value().get_string());
    fs::create_directories(at.parent_path());
    if (said.starts_with("-> ")) {
      fs::create_symlink(said.substr(3), at);
    } else if (!said.starts_with("0 bytes")) {
      std::ofstream(at, std::ios::binary) << (said.starts_with("300000 ") ? big_content() : said);
    } else {
      std::ofstream(at, std::ios::binary);
    }
  }
  const Cache cache(files, place.path());
  const auto folder = place.file("models--acme--tiny/snapshots/" + Server::kCommit);
  CHECK(cache.find_snapshot(tiny()) == folder);
  CHECK(cache.find_snapshot(tiny(Server::kCommit)) == folder);
  CHECK(cache.find_file(tiny(), "sub/dir/notes.txt") == folder + "/sub/dir/notes.txt");
  CHECK(files.read(folder + "/model.safetensors", 1 << 20).value() == big_content());
  CHECK(cache.commit_of(tiny("refs/pr/1")) == Server::kCommit2);
  CHECK(cache.find_file(tiny("v1.0"), "config.json"));
  CHECK_FALSE(cache.find_file(tiny("v1.0"), "model.safetensors"));
  CHECK(cache.known_absent(tiny(), Server::kCommit, "tokenizer.model"));
  CHECK_FALSE(cache.known_absent(tiny(), Server::kCommit, "config.json"));
  CHECK_FALSE(cache.find_snapshot(tiny("other")));
  CHECK_FALSE(cache.find_snapshot({.name = "acme/other"}));
  CHECK_FALSE(cache.find_file(tiny(), "../../refs/main"));
  const auto named = repository_of_snapshot(folder);
  REQUIRE(named);
  CHECK(named->name == "acme/tiny");
  CHECK(named->revision == Server::kCommit);
}

}  // namespace
}  // namespace troupe::train::hub
