#pragma once
// A repository of a hub, at a revision: "Qwen/Qwen3-0.6B", "gpt2".

#include <optional>
#include <string>
#include <string_view>

namespace troupe::train::hub {

enum class RepositoryType { kModel, kDataset };

struct Repository {
  RepositoryType type = RepositoryType::kModel;
  std::string name;
  std::string revision = "main";  // a branch, a tag, refs/pr/N, or a commit

  bool is_commit() const;
  // "models--Qwen--Qwen3-0.6B"
  std::string folder_name() const;
  // "Qwen--Qwen3-0.6B"
  std::string flat_name() const;
  // Behind the endpoint: "/api/models/NAME/revision/REVISION".
  std::string info_path() const;
  // "/NAME/resolve/REVISION/FILE", of data sets below /datasets.
  std::string file_path(std::string_view file) const;
  // "model Qwen/Qwen3-0.6B", with its revision where it is not main.
  std::string shown() const;
  // What fetches it: "troupe download NAME --repo-type dataset --revision v2".
  std::string download_command() const;
};

// Whether a hub may have a repository of that name: NAME or OWNER/NAME of letters, digits, ".",
// "-", "_", as huggingface_hub checks it.
bool is_repository_name(std::string_view name);
// "models", "datasets": in paths of hubs and caches.
const char* plural(RepositoryType type);
// Percent-encoded but for what an URL's path may hold; slashes, too, where they are not kept.
std::string quoted(std::string_view text, bool keep_slashes);
// 40 hexadecimal digits.
bool is_commit(std::string_view revision);
// Whether the path of a file may be used below a folder: relative, and within it.
bool is_safe_path(std::string_view path);

// The repository whose snapshot in a cache a folder is, at that commit: of
// ".../models--Qwen--Qwen3-0.6B/snapshots/COMMIT". Nothing: it is none.
std::optional<Repository> repository_of_snapshot(std::string_view folder);

}  // namespace troupe::train::hub
