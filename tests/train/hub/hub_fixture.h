#pragma once
// A hub server and what downloads from it into a folder of the test's own.

#include <mutex>

#include "tests/support/test_data.h"
#include "tests/train/hub/hub_server.h"
#include "train/hub/curl_http.h"
#include "train/hub/hub.h"

namespace troupe::train::hub {

inline std::string big_content(std::size_t size = 300'000) {
  std::string out(size, '\0');
  for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<char>((i * 31 + i / 251) % 256);
  return out;
}

inline const std::vector<std::string> kOrder = {"config.json", "sub/dir/notes.txt",
                                                "model.safetensors", "empty.txt"};

inline std::map<std::string, std::string> tiny_files(std::string big = big_content()) {
  return {{"config.json", "{\"model_type\": \"llama\"}\n"},
          {"sub/dir/notes.txt", "deep\n"},
          {"model.safetensors", std::move(big)},
          {"empty.txt", ""}};
}

// Remembers what it was told, and how long downloads wanted to wait.
struct Recorded final : Progress {
  std::mutex mutex;
  std::string said;
  std::uint64_t missing = 0, came = 0;
  std::vector<std::int64_t> waits_s;
  void begin(std::string_view, std::uint64_t bytes) override { add(missing, bytes); }
  void received(std::uint64_t bytes) override { add(came, bytes); }
  void lost(std::uint64_t bytes) override { add(missing, bytes); }
  void end(std::string_view) override {}
  void say(std::string_view line) override {
    const std::lock_guard lock(mutex);
    said += std::string(line) + "\n";
  }
  void add(std::uint64_t& to, std::uint64_t bytes) {
    const std::lock_guard lock(mutex);
    to += bytes;
  }
  // Waits for other processes are short, and real.
  void wait(Duration time) {
    if (time < std::chrono::seconds(1)) return std::this_thread::sleep_for(time / 20);
    const std::lock_guard lock(mutex);
    waits_s.push_back(std::chrono::duration_cast<std::chrono::seconds>(time).count());
  }
};

struct HubFixture {
  explicit HubFixture(std::string big = big_content())
      : server(tiny_files(std::move(big)), kOrder) {}

  Hub hub(const std::string& cache, bool offline = false,
          const std::string& token = "hf_token_of_test") {
    Settings settings;
    settings.cache = cache;
    settings.endpoint = server.endpoint();
    settings.offline = offline;
    settings.token = token;
    return Hub(settings, {.files = files,
                          .open_http = [] { return open_curl(""); },
                          .wait = [this](Duration time) { recorded.wait(time); },
                          .progress = recorded});
  }

  PosixFileSystem files;
  Recorded recorded;
  tests::HubServer server;
};

inline Result<std::vector<std::string>> all_files(const Snapshot& found) { return found.all; }

}  // namespace troupe::train::hub
