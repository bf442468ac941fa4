// How fast one thread turns texts into ids: a part of `tools/bench tokenizer`.
//
//   bench_tokenizer TOKENIZER TEXTS.json IDS REPEATS
//
// TOKENIZER: a folder with a tokenizer.json; TEXTS.json: an array of strings, each a text. Prints
// one line of JSON: seconds of loading, of the first pass over all texts after it, and of another
// pass, each REPEATS times with a tokenizer of its own. Writes the ids to IDS: for each text their
// count, then they, as 32-bit little-endian numbers.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "train/tokenizer/tokenizer.h"

namespace {

using namespace troupe;         // NOLINT
using namespace troupe::train;  // NOLINT

constexpr std::uint64_t kTextsBytesMax = std::uint64_t{1} << 30;

template <typename T>
T must(Result<T> result) {
  if (result.ok()) return std::move(*result);
  std::fprintf(stderr, "bench_tokenizer: %s\n", result.status().to_string().c_str());
  std::exit(exit_code(result.status().code()));
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::vector<std::string> read_texts(FileSystem& files, const std::string& path) {
  const auto root = must(
      json::parse(must(files.read(path, kTextsBytesMax)), path, {.bytes_max = kTextsBytesMax}));
  std::vector<std::string> texts;
  for (const auto& text : root.as_array()) texts.emplace_back(text.as_string());
  return texts;
}

double pass(const Tokenizer& tokenizer, const std::vector<std::string>& texts,
            std::vector<std::vector<TokenId>>& ids) {
  for (auto& of_text : ids) of_text.clear();
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const Status done = tokenizer.encode_to(texts[i], false, ids[i]);
    if (!done.ok()) must<int>(done);
  }
  return seconds_since(begin);
}

void write_ids(const std::string& path, const std::vector<std::vector<TokenId>>& ids) {
  std::ofstream out(path, std::ios::binary);
  const auto put = [&](const void* data, std::size_t size) {
    out.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
  };
  for (const auto& of_text : ids) {
    const auto count = static_cast<std::int32_t>(of_text.size());
    put(&count, sizeof count);
    put(of_text.data(), of_text.size() * sizeof(TokenId));
  }
  if (!out.flush()) {
    std::fprintf(stderr, "bench_tokenizer: %s cannot be written\n", path.c_str());
    std::exit(1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int repeats = argc == 5 ? std::atoi(argv[4]) : 0;
  if (repeats < 1) {
    std::fprintf(stderr, "usage: bench_tokenizer TOKENIZER TEXTS.json IDS REPEATS\n");
    return 2;
  }
  PosixFileSystem files;
  const auto texts = read_texts(files, argv[2]);
  std::vector<std::vector<TokenId>> ids(texts.size());
  json::Array load, first, again;
  for (int i = 0; i < repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const Tokenizer tokenizer = must(Tokenizer::load(files, argv[1]));
    load.push_back(seconds_since(begin));
    first.push_back(pass(tokenizer, texts, ids));
    again.push_back(pass(tokenizer, texts, ids));
  }
  write_ids(argv[3], ids);
  const json::Object figures{{"load", load}, {"first", first}, {"again", again}};
  std::printf("%s\n", json::write(figures).c_str());
  return 0;
}
