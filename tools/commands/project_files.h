#pragma once
// The files that `troupe new` writes (tools/packaging/templates). In the program itself, so that it
// works wherever that is installed.

#include <span>
#include <string_view>

namespace troupe::tools {

struct ProjectFile {
  std::string_view of;    // a template's name; "cpp": every template that is written in C++
  std::string_view path;  // in the project
  std::string_view text;  // @NAME@ is the project's name
};
std::span<const ProjectFile> project_files();

}  // namespace troupe::tools
