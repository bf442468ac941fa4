// Counts words: a text is put into shared memory once, and tasks read parts of it in place.
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <troupe/cluster.h>
#include <troupe/object.h>
#include <troupe/tasks.h>

using Counts = std::map<std::string, int>;

bool in_word(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }

// The words that begin in [begin, end) of the text, which stays where it is.
Counts count_part(troupe::Object<std::string> object, std::size_t begin, std::size_t end) {
  const std::string_view text = *object;
  Counts counts;
  for (std::size_t at = begin; at < std::min(end, text.size()); ++at) {
    if (!in_word(text[at]) || (at > 0 && in_word(text[at - 1]))) continue;
    std::string word;
    for (std::size_t i = at; i < text.size() && in_word(text[i]); ++i) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(text[i])));
    }
    ++counts[word];
  }
  return counts;
}

Counts merge(Counts a, Counts b) {
  for (const auto& [word, count] : b) a[word] += count;
  return a;
}

int main(int argc, char** argv) {
  if (auto code = troupe::host_main(argc, argv, troupe::tasks<&count_part, &merge>)) return *code;

  auto cluster = troupe::Cluster::start_embedded().value();
  std::string text;
  for (int i = 0; i < 20'000; ++i) {
    text += "The Fox jumps over the dog; the dog sleeps, and the fox runs on. ";
  }
  const troupe::ObjectRef<std::string> object = cluster.put(text).value();

  std::vector<std::tuple<troupe::ObjectRef<std::string>, std::size_t, std::size_t>> parts;
  const std::size_t part = 100'000;
  for (std::size_t at = 0; at < text.size(); at += part) parts.emplace_back(object, at, at + part);
  const Counts counts = cluster.tasks().map_reduce<&count_part, &merge>(parts).value();

  std::printf("%zu parts of one object of %zu bytes\n", parts.size(), text.size());
  for (const auto& [word, count] : counts) std::printf("%s %d\n", word.c_str(), count);
}
