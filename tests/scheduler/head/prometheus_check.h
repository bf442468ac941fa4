#pragma once
// What `promtool check metrics` and a scraper would say of a page: a reader of the text exposition
// format 0.0.4 that refuses what is not well-formed or not named as Prometheus' guide on metric and
// label naming asks.

#include <cctype>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::tests {

class PrometheusPage {
 public:
  // The faults found, one sentence each; empty: none.
  const std::vector<std::string>& faults() const { return faults_; }
  // A sample by its whole name: `troupe_nodes{state="alive"}`.
  std::optional<double> value(const std::string& series) const {
    const auto found = samples_.find(series);
    return found == samples_.end() ? std::nullopt : std::optional(found->second);
  }
  const std::map<std::string, std::string>& families() const { return types_; }

  explicit PrometheusPage(std::string_view text) {
    if (!text.empty() && text.back() != '\n') fault("the last line has no end", "");
    while (!text.empty()) {
      const auto end = text.find('\n');
      line(text.substr(0, end));
      if (end == std::string_view::npos) break;
      text.remove_prefix(end + 1);
    }
    end_family();
    for (const auto& [name, type] : types_) {
      if (!helped_.contains(name)) fault("no HELP", name);
      check_name(name, type);
    }
  }

 private:
  void fault(const std::string& what, std::string_view where) {
    faults_.push_back(what + ": " + std::string(where));
  }
  static bool is_name(std::string_view name, bool colons) {
    if (name.empty() || std::isdigit(static_cast<unsigned char>(name[0]))) return false;
    for (const char c : name) {
      const bool ok =
          std::isalnum(static_cast<unsigned char>(c)) || c == '_' || (colons && c == ':');
      if (!ok) return false;
    }
    return true;
  }
  void check_name(const std::string& name, const std::string& type) {
    if (!is_name(name, true)) fault("no metric name", name);
    if ((type == "counter") != name.ends_with("_total")) {
      fault("counters, and they alone, end in _total", name);
    }
    for (const char* unit : {"_ms", "_us", "_milliseconds", "_kib", "_mib", "_kilobytes",
                             "_percent", "_minutes", "_hours"}) {
      if ((name + "_").find(std::string(unit) + "_") != std::string::npos) {
        fault("not in a base unit", name);
      }
    }
    if (name.find(type) != std::string::npos) fault("the type is part of the name", name);
  }
  void line(std::string_view line) {
    if (line.empty()) return;
    if (line.starts_with("# ")) return comment(line.substr(2));
    if (line.starts_with('#')) return fault("a comment without a space", line);
    sample(line);
  }
  void comment(std::string_view text) {
    const auto word_end = text.find(' ');
    const std::string_view word = text.substr(0, word_end);
    if (word != "HELP" && word != "TYPE") return;
    text.remove_prefix(word_end + 1);
    const std::string name(text.substr(0, text.find(' ')));
    const std::string rest(
        text.find(' ') == std::string_view::npos ? "" : text.substr(text.find(' ') + 1));
    if (word == "HELP") {
      if (!helped_.insert(name).second) fault("a second HELP", name);
      if (rest.empty()) fault("an empty HELP", name);
      return;
    }
    end_family();
    if (rest != "counter" && rest != "gauge" && rest != "histogram") fault("a strange TYPE", text);
    if (!types_.emplace(name, rest).second) fault("a second TYPE", name);
    family_ = name;
  }
  // name{label="value",…} number
  void sample(std::string_view text) {
    const std::string whole(text);
    std::size_t at = text.find_first_of("{ ");
    if (at == std::string_view::npos) return fault("no sample", whole);
    const std::string name(text.substr(0, at));
    std::map<std::string, std::string> labels;
    if (text[at] == '{') {
      ++at;
      while (at < text.size() && text[at] != '}') {
        const auto equals = text.find('=', at);
        if (equals == std::string_view::npos) return fault("a label without a value", whole);
        const std::string label(text.substr(at, equals - at));
        if (!is_name(label, false) || label.starts_with("__")) fault("no label name", whole);
        at = equals + 1;
        if (at >= text.size() || text[at] != '"') return fault("a value without quotes", whole);
        std::string value;
        for (++at; at < text.size() && text[at] != '"'; ++at) {
          if (text[at] == '\\') {
            if (++at >= text.size() || std::string_view("\\\"n").find(text[at]) == text.npos) {
              return fault("a strange escape", whole);
            }
          }
          value += text[at];
        }
        if (!labels.emplace(label, value).second) fault("a label twice", whole);
        ++at;
        if (at < text.size() && text[at] == ',') ++at;
      }
      ++at;
    }
    if (at >= text.size() || text[at] != ' ') return fault("no number", whole);
    const std::string number(text.substr(at + 1));
    char* end = nullptr;
    const double value = std::strtod(number.c_str(), &end);
    if (number.empty() || *end != '\0') return fault("no number", whole);
    const std::string series = whole.substr(0, whole.size() - number.size() - 1);
    if (!samples_.emplace(series, value).second) fault("a series twice", series);
    belongs(name, labels, value, whole);
  }
  void belongs(const std::string& name, std::map<std::string, std::string> labels, double value,
               const std::string& whole) {
    if (family_.empty()) return fault("a sample before its TYPE", whole);
    const std::string type = types_[family_];
    if (type != "histogram") {
      if (name != family_) fault("a sample of another family", whole);
      if (type == "counter" && !(value >= 0)) fault("a counter below zero", whole);
      return;
    }
    if (name == family_ + "_bucket") {
      const auto le = labels.find("le");
      if (le == labels.end()) return fault("a bucket without le", whole);
      const double bound =
          le->second == "+Inf" ? HUGE_VAL : std::strtod(le->second.c_str(), nullptr);
      if (!buckets_.empty() && (bound <= buckets_.back().first || value < buckets_.back().second)) {
        fault("buckets that do not grow", whole);
      }
      buckets_.emplace_back(bound, value);
    } else if (name == family_ + "_count") {
      count_ = value;
    } else if (name == family_ + "_sum") {
      sum_ = value;
    } else {
      fault("a sample of another family", whole);
    }
  }
  void end_family() {
    if (!family_.empty() && types_[family_] == "histogram") {
      if (buckets_.empty() || buckets_.back().first != HUGE_VAL) fault("no +Inf bucket", family_);
      if (!count_ || !sum_) fault("a histogram without count or sum", family_);
      if (count_ && !buckets_.empty() && *count_ != buckets_.back().second) {
        fault("the count is not that of the last bucket", family_);
      }
    }
    family_.clear();
    buckets_.clear();
    count_.reset();
    sum_.reset();
  }

  std::vector<std::string> faults_;
  std::map<std::string, std::string> types_;
  std::set<std::string> helped_;
  std::map<std::string, double> samples_;
  std::string family_;
  std::vector<std::pair<double, double>> buckets_;
  std::optional<double> count_;
  std::optional<double> sum_;
};

}  // namespace troupe::tests
