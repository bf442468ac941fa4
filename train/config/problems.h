#pragma once
// Collects what is wrong with a configuration, so that all of it is reported at once.

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "train/config/source.h"

namespace troupe::train {

class Problems {
 public:
  explicit Problems(const SourceDocument& source) : source_(source) {}

  // `message` without place; "x.yaml:12: key: message". A message that begins with the key is not
  // given it once more.
  void add(Code code, std::string_view key, std::string_view message);
  // A message that names by itself what it is about (refusals, arguments).
  void add_named(Code code, std::string_view key, std::string_view message);
  void add(std::string_view key, const Status& status);

  // Those that another list has found, behind those of this one.
  void take(Problems&& others);

  bool empty() const { return list_.empty(); }
  bool has(std::string_view key) const;
  Status status() const;

 private:
  struct Problem {
    Code code;
    std::string key;
    std::string text;
    int line;
  };
  void insert(Code code, std::string_view key, std::string text);

  const SourceDocument& source_;
  std::vector<Problem> list_;
};

}  // namespace troupe::train
