#include "train/hub/repository.h"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::train::hub {
namespace {

constexpr std::size_t kNameBytesMax = 96;

bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

}  // namespace

const char* plural(RepositoryType type) {
  return type == RepositoryType::kModel ? "models" : "datasets";
}

std::string quoted(std::string_view text, bool keep_slashes) {
  std::string out;
  for (const char c : text) {
    if (is_letter_or_digit(c) || c == '-' || c == '_' || c == '.' || c == '~' ||
        (c == '/' && keep_slashes)) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

bool is_commit(std::string_view revision) {
  return revision.size() == 40 && std::ranges::all_of(revision, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

bool Repository::is_commit() const { return hub::is_commit(revision); }

std::string Repository::flat_name() const {
  std::string flat;
  for (const char c : name) flat += c == '/' ? "--" : std::string(1, c);
  return flat;
}

std::string Repository::folder_name() const {
  return fmt::format("{}--{}", plural(type), flat_name());
}

std::string Repository::info_path() const {
  return fmt::format("/api/{}/{}/revision/{}", plural(type), name, quoted(revision, false));
}

std::string Repository::file_path(std::string_view file) const {
  return fmt::format("{}/{}/resolve/{}/{}", type == RepositoryType::kModel ? "" : "/datasets", name,
                     quoted(revision, false), quoted(file, true));
}

std::string Repository::shown() const {
  return fmt::format("{} {}{}", type == RepositoryType::kModel ? "model" : "data set", name,
                     revision == "main" ? "" : " at " + revision);
}

std::string Repository::download_command() const {
  return fmt::format("'troupe download {}{}{}'", name,
                     type == RepositoryType::kDataset ? " --repo-type dataset" : "",
                     revision == "main" ? "" : " --revision " + revision);
}

bool is_repository_name(std::string_view name) {
  if (name.empty() || name.size() > kNameBytesMax || name.ends_with(".git")) return false;
  if (name.find("--") != std::string_view::npos || name.find("..") != std::string_view::npos)
    return false;
  if (std::ranges::count(name, '/') > 1) return false;
  for (std::string_view rest = name;;) {
    const auto slash = rest.find('/');
    const auto part = rest.substr(0, slash);
    const auto edge = [](char c) { return c == '-' || c == '.'; };
    if (part.empty() || edge(part.front()) || edge(part.back())) return false;
    for (const char c : part) {
      if (!is_letter_or_digit(c) && c != '-' && c != '_' && c != '.') return false;
    }
    if (slash == std::string_view::npos) return true;
    rest.remove_prefix(slash + 1);
  }
}

bool is_safe_path(std::string_view path) {
  if (path.empty() || path.find('\0') != std::string_view::npos) return false;
  while (true) {
    const auto slash = path.find('/');
    const auto part = path.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

std::optional<Repository> repository_of_snapshot(std::string_view folder) {
  constexpr std::string_view kSnapshots = "/snapshots/";
  while (folder.ends_with('/')) folder.remove_suffix(1);
  const auto at = folder.rfind(kSnapshots);
  if (at == std::string_view::npos) return std::nullopt;
  Repository out;
  out.revision = folder.substr(at + kSnapshots.size());
  auto name = folder.substr(0, at);
  if (const auto slash = name.rfind('/'); slash != std::string_view::npos)
    name.remove_prefix(slash + 1);
  for (const auto type : {RepositoryType::kModel, RepositoryType::kDataset}) {
    const std::string prefix = std::string(plural(type)) + "--";
    if (!name.starts_with(prefix) || !out.is_commit()) continue;
    out.type = type;
    out.name = name.substr(prefix.size());
    if (const auto dashes = out.name.find("--"); dashes != std::string::npos)
      out.name.replace(dashes, 2, "/");
    return out;
  }
  return std::nullopt;
}

}  // namespace troupe::train::hub
