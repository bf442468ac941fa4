// The environment, names, ModelScope's cache, progress.

#include "train/hub/settings.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "runtime/base/clock.h"
#include "tests/support/test_data.h"
#include "tests/support/text.h"
#include "train/hub/modelscope.h"
#include "train/hub/progress.h"

namespace troupe::train::hub {
namespace {

using tests::contains;

Settings from(std::map<std::string, std::string, std::less<>> variables) {
  PosixFileSystem files;
  return Settings::from(MapEnvironment(std::move(variables)), files);
}

TEST_CASE("variables of huggingface_hub") {
  const auto plain = from({{"HOME", "/home/a"}});
  CHECK(plain.cache == "/home/a/.cache/huggingface/hub");
  CHECK(plain.endpoint == "https://huggingface.co");
  CHECK(plain.token.empty());
  CHECK_FALSE(plain.offline);
  CHECK(plain.modelscope_cache == "/home/a/.cache/modelscope");
  CHECK(plain.modelscope_endpoint == "https://www.modelscope.cn");
  CHECK(from({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}}).cache == "/x/huggingface/hub");
  CHECK(from({{"HOME", "/h"}, {"HF_HOME", "~/hf"}}).cache == "/h/hf/hub");
  CHECK(from({{"HF_HOME", "/h"}, {"HUGGINGFACE_HUB_CACHE", "/old"}}).cache == "/old");
  CHECK(from({{"HF_HUB_CACHE", "/new"}, {"HUGGINGFACE_HUB_CACHE", "/old"}}).cache == "/new");
  const auto mirror = from({{"HF_ENDPOINT", "https://hf-mirror.com/"},
                            {"HF_HUB_OFFLINE", "Yes"},
                            {"HF_HUB_ETAG_TIMEOUT", "3"},
                            {"HF_HUB_DISABLE_PROGRESS_BARS", "1"},
                            {"USE_MODELSCOPE_HUB", "1"},
                            {"MODELSCOPE_DOMAIN", "modelscope.ai"},
                            {"MODELSCOPE_API_TOKEN", " ms-1 "},
                            {"MODELSCOPE_CACHE", "/ms"}});
  CHECK(mirror.endpoint == "https://hf-mirror.com");
  CHECK(mirror.offline);
  CHECK(mirror.metadata_timeout == std::chrono::seconds(3));
  CHECK_FALSE(mirror.shows_progress);
  CHECK(mirror.modelscope);
  CHECK(mirror.modelscope_cache == "/ms");
  CHECK(mirror.modelscope_endpoint == "https://modelscope.ai");
  CHECK(mirror.modelscope_token == "ms-1");
  CHECK(from({{"TRANSFORMERS_OFFLINE", "1"}}).offline);
}

TEST_CASE("the token: the variable, else the file") {
  const tests::TemporaryDirectory home;
  std::ofstream(home.file("token")) << " hf_of_file\n";
  std::ofstream(home.file("other")) << "hf_of_other";
  CHECK(from({{"HF_HOME", home.path()}}).token == "hf_of_file");
  CHECK(from({{"HF_HOME", home.path()}, {"HF_TOKEN_PATH", home.file("other")}}).token ==
        "hf_of_other");
  CHECK(from({{"HF_HOME", home.path()}, {"HF_TOKEN", "hf_a"}}).token == "hf_a");
  CHECK(from({{"HF_HOME", home.path()}, {"HUGGING_FACE_HUB_TOKEN", "hf_b"}}).token == "hf_b");
  CHECK(
      from({{"HF_HOME", home.path()}, {"HF_TOKEN", "hf_a"}, {"HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"}})
          .token.empty());
}

TEST_CASE("names that a hub may have, and paths") {
  for (const char* good : {"gpt2", "Qwen/Qwen3-0.6B", "a/b_c.d", "01-ai/Yi-6B"})
    CHECK(is_repository_name(good));
  for (const char* bad : {"", "/a", "a/", "a/b/c", "a--b/c", "a/b..c", ".hidden", "./model",
                          "../model", "a b", "a/b.git", "~/model", "-a/b"})
    CHECK_FALSE(is_repository_name(bad));
  CHECK(is_safe_path("a/b.json"));
  for (const char* bad : {"", "/a", "a//b", "../a", "a/../b", "a/."})
    CHECK_FALSE(is_safe_path(bad));
  const Repository repository{
      .type = RepositoryType::kDataset, .name = "a/b", .revision = "refs/pr/1"};
  CHECK(repository.folder_name() == "datasets--a--b");
  CHECK(repository.info_path() == "/api/datasets/a/b/revision/refs%2Fpr%2F1");
  CHECK(repository.file_path("x y/z.json") == "/datasets/a/b/resolve/refs%2Fpr%2F1/x%20y/z.json");
  CHECK(repository.download_command() ==
        "'troupe download a/b --repo-type dataset --revision refs/pr/1'");
  CHECK_FALSE(repository_of_snapshot("/a/models--x--y/snapshots/main"));
  CHECK_FALSE(repository_of_snapshot("/a/model"));
}

TEST_CASE("ModelScope's cache: dots in names are written otherwise, and older places") {
  PosixFileSystem files;
  const tests::TemporaryDirectory cache;
  Settings settings;
  settings.modelscope_cache = cache.path();
  const auto make = [&](const std::string& folder) {
    std::filesystem::create_directories(cache.file(folder));
    std::ofstream(cache.file(folder + "/config.json")) << "{}";
    return cache.file(folder);
  };
  const auto find = [&](const char* name) {
    return find_in_modelscope(files, settings, {.name = name});
  };
  const auto dotted = make("models/Qwen/Qwen3-0___6B");
  const auto older = make("Qwen/Qwen2");
  CHECK(find("Qwen/Qwen3-0.6B") == dotted);
  CHECK(find("Qwen/Qwen2") == older);
  CHECK_FALSE(find("Qwen/Qwen1"));
}

TEST_CASE("progress: a line that is written over on a terminal, few lines in a log") {
  ManualClock clock;
  std::string text;
  const auto write = [&](const std::string& more) { text += more; };
  {
    ProgressText bar(clock, true, write);
    bar.begin("a", 100u << 20);
    for (int i = 0; i < 10; ++i) {
      clock.advance(std::chrono::milliseconds(200));
      bar.received(10u << 20);
    }
    bar.end("a");
    bar.finish();
    CHECK(text.ends_with("\n"));
    bar.finish();
    bar.say("said");
  }
  CHECK_FALSE(contains(text, "\n\n"));
  CHECK(contains(text, "\rdownloading: 0 of 1 files, 50.0 MiB of 100.0 MiB, 50.0 MiB/s, 1 s left"));
  CHECK(contains(text, "\nsaid\n"));
  text.clear();
  ProgressText log(clock, false, write);
  log.begin("a", 100u << 20);
  for (int i = 0; i < 10; ++i) {
    clock.advance(std::chrono::seconds(3));
    log.received(10u << 20);
  }
  log.end("a");
  CHECK(std::count(text.begin(), text.end(), '\n') == 3);
  CHECK_FALSE(contains(text, "\r"));
}

}  // namespace
}  // namespace troupe::train::hub
