// Downloads under faults: large files over several connections, URLs that run out, other processes.

#include <doctest/doctest.h>

#include <filesystem>
#include <random>

#include "tests/support/text.h"
#include "tests/train/hub/hub_fixture.h"
#include "train/hub/client.h"
#include "train/hub/download_lock.h"
#include "train/hub/errors.h"
#include "train/hub/model_files.h"

namespace troupe::train::hub {
namespace {

using tests::contains;
using Fault = tests::HubServer::Fault;
const Repository kTiny{.name = "acme/tiny"};

TEST_CASE("a large file over several connections, cut at random: every byte came once") {
  const auto big = big_content(1'000'003);
  HubFixture f(big);
  std::mutex mutex;
  std::mt19937 random(7);
  int cuts = 40;
  f.server.cut_by = [&]() -> std::optional<std::size_t> {
    const std::lock_guard lock(mutex);
    if (cuts == 0 || random() % 2 == 0) return std::nullopt;
    --cuts;
    return random() % 16'000;
  };
  const tests::TemporaryDirectory cache;
  auto hub = f.hub(cache.path());
  hub.piece_bytes = 16 << 10;
  hub.connections = 4;
  const auto path = hub.file(kTiny, "model.safetensors");
  REQUIRE_MESSAGE(path.ok(), path.status().to_string());
  CHECK(f.files.read(*path, 1 << 22).value() == big);
  CHECK(cuts == 0);
  // Nothing of a request for the hub is signed in to the second host.
  int ranges = 0;
  for (const auto& seen : f.server.take_seen()) {
    CHECK(seen.authorization == (seen.to == "hub" ? "Bearer hf_token_of_test" : ""));
    ranges += !seen.range.empty();
  }
  CHECK(ranges >= 62);
  CHECK(f.server.body_bytes() == big.size());
  CHECK(f.recorded.came == big.size());
}

TEST_CASE("a large file where the server sends no ranges") {
  const auto big = big_content(200'000);
  HubFixture f(big);
  const tests::TemporaryDirectory cache;
  auto hub = f.hub(cache.path());
  hub.piece_bytes = 16 << 10;
  f.server.plan("GET", "/lfs/", {.kind = Fault::kIgnoreRange}, 20);
  const auto path = hub.file(kTiny, "model.safetensors");
  REQUIRE_MESSAGE(path.ok(), path.status().to_string());
  CHECK(f.files.read(*path, 1 << 22).value() == big);
}

TEST_CASE("what stops is gone on from by the next command, and a signed URL is asked for anew") {
  const auto big = big_content(500'000);
  HubFixture f(big);
  const tests::TemporaryDirectory cache;
  f.server.plan("GET", "/lfs/", {.kind = Fault::kCut, .cut_after = 200'000});
  f.server.plan("GET", "/lfs/", {.status = 503}, 6);
  auto first = f.hub(cache.path());
  const auto failed = first.file(kTiny, "model.safetensors");
  REQUIRE_FALSE(failed.ok());
  CHECK(failed.status().code() == Code::kUnavailable);
  CHECK(contains(failed.status().message(), "503"));
  CHECK_FALSE(contains(failed.status().to_string(), "signature"));
  f.server.take_seen();
  f.server.plan("GET", "/lfs/", {.status = 403});
  auto second = f.hub(cache.path());
  REQUIRE(second.file(kTiny, "model.safetensors").ok());
  const auto seen = f.server.take_seen();
  REQUIRE(seen.size() == 4);
  CHECK(seen[1].range == "bytes=200000-");
  CHECK(seen[2].method == "HEAD");
  CHECK(seen[3].range == "bytes=200000-");
}

TEST_CASE("a content that is not what its hash says is not kept") {
  HubFixture f;
  const tests::TemporaryDirectory cache;
  auto hub = f.hub(cache.path());
  // The hub names another hash than that of what its second host sends.
  f.server.plan("HEAD", "model.safetensors",
                {.status = 302,
                 .headers = {{"Location", f.server.second_host() + "/lfs/" +
                                              tests::sha256_hex(big_content()) + "?signature=x"},
                             {"X-Repo-Commit", tests::HubServer::kCommit},
                             {"X-Linked-Size", "300000"},
                             {"X-Linked-Etag", '"' + std::string(64, '0') + '"'}}});
  const auto path = hub.file(kTiny, "model.safetensors");
  CHECK(path.status().code() == Code::kDataLoss);
  CHECK(contains(path.status().message(), "Consistency check failed"));
  int files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(cache.file("models--acme--tiny/blobs")))
    files += entry.is_regular_file();
  CHECK(files == 0);
}

TEST_CASE(
    "a content that is shorter than the hub says is an error, not asked for again and again") {
  HubFixture f;
  const tests::TemporaryDirectory cache;
  auto hub = f.hub(cache.path());
  f.server.plan("HEAD", "model.safetensors",
                {.status = 302,
                 .headers = {{"Location", f.server.second_host() + "/lfs/" +
                                              tests::sha256_hex(big_content()) + "?signature=x"},
                             {"X-Repo-Commit", tests::HubServer::kCommit},
                             {"X-Linked-Size", "400000"},
                             {"X-Linked-Etag", '"' + tests::sha256_hex(big_content()) + '"'}}});
  const auto path = hub.file(kTiny, "model.safetensors");
  CHECK(path.status().code() == Code::kDataLoss);
  CHECK(contains(path.status().message(), "should be of size 400000"));
}

TEST_CASE("redirects: a scheme stands in front, or it is none") {
  const std::string from = "https://hub.example/a/b?c=1";
  CHECK(redirect_of(from, "https://other/x") == "https://other/x");
  CHECK(redirect_of(from, "/o/n?src=https://x/y") == "https://hub.example/o/n?src=https://x/y");
  CHECK(redirect_of(from, "n?src=https://x/y") == "https://hub.example/a/n?src=https://x/y");
  CHECK(redirect_of(from, "//other/x") == "https://other/x");
}

TEST_CASE("answers that no hub gives are named") {
  HubFixture f;
  const tests::TemporaryDirectory cache;
  auto hub = f.hub(cache.path());
  f.server.plan("HEAD", "config.json", {.status = 200, .headers = {{"Content-Length", "5"}}});
  const auto page = hub.file(kTiny, "config.json");
  CHECK(contains(page.status().message(), "Distant resource does not have a commit"));
  f.server.plan("HEAD", "config.json",
                {.status = 200,
                 .headers = {{"Content-Length", "5"},
                             {"X-Repo-Commit", tests::HubServer::kCommit},
                             {"ETag", "\"../../../x\""}}});
  CHECK(contains(hub.file(kTiny, "config.json").status().message(), "does not have a ETag"));
  f.server.plan("GET", "/api/", {.status = 200});
  CHECK_FALSE(hub.snapshot(kTiny, all_files).ok());
}

TEST_CASE("two that want the same file: one downloads, the other waits") {
  HubFixture f;
  const tests::TemporaryDirectory cache;
  auto a = f.hub(cache.path());
  auto b = f.hub(cache.path());
  Result<std::string> other = std::string();
  std::thread thread([&] { other = b.file(kTiny, "model.safetensors"); });
  const auto path = a.file(kTiny, "model.safetensors");
  thread.join();
  REQUIRE(path.ok());
  REQUIRE(other.ok());
  CHECK(*path == *other);
  CHECK(f.server.body_bytes() == 300'000);
  // A holder that does nothing is not waited for without end.
  const auto lock = cache.file("x.lock");
  std::uint64_t done = 0;
  int looks = 0;
  const auto wait = [&](Duration) { done += ++looks < 100; };
  const auto first = DownloadLock::take(
                         lock, [&] { return done; }, wait)
                         .value();
  CHECK(first.exclusive());
  const auto second = DownloadLock::take(
      lock, [&] { return done; }, wait);
  CHECK(second.status().code() == Code::kDeadlineExceeded);
  CHECK(contains(second.status().message(), lock));
  CHECK(looks > 1'000);
}

TEST_CASE("no hub is there: the cache's copy at once, or an error that says what to look at") {
  const tests::TemporaryDirectory cache;
  std::optional<HubFixture> f(std::in_place);
  REQUIRE(f->hub(cache.path()).snapshot(kTiny, all_files).ok());
  auto hub = f->hub(cache.path());
  Settings settings = hub.settings();
  settings.endpoint = "http://127.0.0.1:1";
  Recorded recorded;
  Hub away(settings, {.files = f->files,
                      .open_http = [] { return open_curl(""); },
                      .wait = [&](Duration time) { recorded.wait(time); },
                      .progress = recorded});
  const auto found = away.snapshot(kTiny, all_files);
  REQUIRE(found.ok());
  CHECK_FALSE(found->asked_hub);
  CHECK(recorded.waits_s.empty());
  CHECK(contains(recorded.said, "the cache's copy is used"));
  const auto other = away.snapshot({.name = "acme/other"}, all_files);
  CHECK(is_kind(other.status(), kLocalEntryNotFound));
  CHECK(contains(other.status().message(), "HTTPS_PROXY"));
  CHECK(recorded.waits_s == std::vector<std::int64_t>{1, 2, 4, 8, 8});
}

TEST_CASE("the files of a model that a training needs") {
  const std::vector<std::string> all = {".gitattributes",
                                        "README.md",
                                        "config.json",
                                        "consolidated.safetensors",
                                        "figures/a.png",
                                        "generation_config.json",
                                        "model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors",
                                        "model.safetensors.index.json",
                                        "onnx/model.onnx",
                                        "onnx/config.json",
                                        "original/consolidated.00.pth",
                                        "pytorch_model.bin",
                                        "tokenizer.json",
                                        "tokenizer.model",
                                        "merges.txt",
                                        "chat_template.jinja",
                                        "model.gguf"};
  const auto chosen = model_files(all, {}).value();
  const std::vector<std::string> expected = {"config.json",
                                             "generation_config.json",
                                             "model.safetensors.index.json",
                                             "tokenizer.json",
                                             "tokenizer.model",
                                             "merges.txt",
                                             "chat_template.jinja",
                                             "model-00001-of-00002.safetensors",
                                             "model-00002-of-00002.safetensors"};
  CHECK(chosen == expected);
  CHECK(model_files(all, {.weights = false}).value().size() == 7);
  CHECK(model_files({"a/adapter_config.json", "a/adapter_model.safetensors", "b/x.json"},
                    {.folder = "a"})
            .value()
            .size() == 2);
  CHECK(model_files({"consolidated.safetensors"}, {}).value().size() == 1);
  const auto none = model_files({"config.json", "pytorch_model.bin"}, {});
  CHECK(contains(none.status().message(), "no weights in safetensors, but pytorch_model.bin"));
}

}  // namespace
}  // namespace troupe::train::hub
