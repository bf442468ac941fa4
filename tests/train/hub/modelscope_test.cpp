#include "train/hub/modelscope.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/text.h"
#include "tests/train/hub/hub_fixture.h"
#include "train/hub/errors.h"

namespace troupe::train::hub {
namespace {

using tests::contains;
using Fault = tests::HubServer::Fault;

ModelScope modelscope(HubFixture& f, const std::string& cache, bool offline = false) {
  Settings settings;
  settings.token = "hf_for_another_hub";
  settings.modelscope_token = "ms_token_of_test";
  settings.modelscope_endpoint = f.server.endpoint();
  settings.modelscope_cache = cache;
  settings.offline = offline;
  return ModelScope(settings, {.files = f.files,
                               .open_http = [] { return open_curl(""); },
                               .wait = [&f](Duration time) { f.recorded.wait(time); },
                               .progress = f.recorded});
}

const Repository kModel{.name = "acme/tiny"};

TEST_CASE("ModelScope: a model comes into its library's layout, cut connections or not") {
  HubFixture f;
  const tests::TemporaryDirectory cache;
  f.server.plan("GET", "notes.txt", {.kind = Fault::kStatus, .status = 503, .headers = {}});
  auto hub = modelscope(f, cache.path());
  int cuts = 3;
  std::mutex mutex;
  f.server.cut_by = [&]() -> std::optional<std::size_t> {
    const std::lock_guard lock(mutex);
    return cuts-- > 0 ? std::optional<std::size_t>(70'000) : std::nullopt;
  };
  const auto found = hub.snapshot(kModel, all_files);
  REQUIRE_MESSAGE(found.ok(), found.status().to_string());
  CHECK(found->folder == cache.file("models/acme--tiny/snapshots/master"));
  CHECK(found->downloaded == 4);
  CHECK(found->asked_hub);
  for (const auto& [name, content] : tiny_files())
    CHECK(f.files.read(found->folder + "/" + name, 1 << 20).value() == content);
  CHECK_FALSE(std::filesystem::is_symlink(found->folder + "/config.json"));
  CHECK(f.server.body_bytes() < big_content().size() + 5'000);  // nothing came twice
  for (const auto& seen : f.server.take_seen()) {
    const bool to_hub = seen.to == "hub";
    CHECK(seen.authorization == (to_hub ? "Bearer ms_token_of_test" : ""));
    CHECK(seen.cookie == (to_hub ? "m_session_id=ms_token_of_test" : ""));
  }
  // Again: nothing but the list. What has another size is fetched anew.
  CHECK(hub.snapshot(kModel, all_files)->downloaded == 0);
  std::ofstream(found->folder + "/config.json") << "cut";
  CHECK(hub.snapshot(kModel, all_files)->downloaded == 1);
  // Without a network the cache answers.
  CHECK(modelscope(f, cache.path(), true).snapshot(kModel, all_files)->folder == found->folder);
  f.server.plan("GET", "/api/v1/", {.status = 503}, 6);
  CHECK_FALSE(hub.snapshot(kModel, all_files)->asked_hub);
  CHECK(contains(f.recorded.said, "the cache's copy is used"));
}

TEST_CASE("ModelScope: data sets, older caches, names that it does not have") {
  HubFixture f;
  const tests::TemporaryDirectory cache;
  auto hub = modelscope(f, cache.path());
  const Repository data{.type = RepositoryType::kDataset, .name = "acme/tiny"};
  CHECK(hub.file(data, "sub/dir/notes.txt").value() ==
        cache.file("datasets/acme--tiny/snapshots/master/sub/dir/notes.txt"));
  CHECK(is_kind(hub.file(data, "none.txt").status(), kEntryNotFound));
  const auto none = hub.snapshot({.name = "acme/none"}, all_files).status();
  CHECK(is_kind(none, kRepositoryNotFound));
  CHECK(contains(none.message(), "MODELSCOPE_API_TOKEN"));
  CHECK_FALSE(contains(none.to_string(), "ms_token"));
  const auto unknown = hub.snapshot({.name = "acme/tiny", .revision = "v9"}, all_files).status();
  CHECK(contains(unknown.message(), "v9"));
  f.server.plan("GET", "/api/v1/", {.status = 200});
  CHECK_FALSE(hub.snapshot(kModel, all_files).ok());
  CHECK(contains(modelscope(f, cache.path(), true).snapshot(kModel, all_files).status().message(),
                 "'USE_MODELSCOPE_HUB=1 troupe download acme/tiny' fetches it"));
  // What a library before 1.38 has downloaded is gone on with.
  const auto old = cache.file("hub/models/acme/tiny");
  std::filesystem::create_directories(old);
  std::ofstream(old + "/config.json") << tiny_files().at("config.json");
  const auto found = hub.snapshot(kModel, all_files).value();
  CHECK(found.folder == old);
  CHECK(found.downloaded == 3);
}

TEST_CASE("ModelScope: a content of another hash is not kept") {
  HubFixture f;
  const tests::TemporaryDirectory cache;
  f.server.plan("GET", "FilePath=config.json",
                {.status = 302,
                 .headers = {{"Location", f.server.second_host() + "/lfs/" +
                                              tests::sha256_hex(big_content())}}},
                2);
  const auto path = modelscope(f, cache.path()).file(kModel, "config.json");
  CHECK_FALSE(path.ok());
  CHECK_FALSE(f.files.exists(cache.file("models/acme--tiny/snapshots/master/config.json")));
}

}  // namespace
}  // namespace troupe::train::hub
