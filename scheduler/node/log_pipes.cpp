#include "scheduler/node/log_pipes.h"

namespace troupe::scheduler {

Status ActorLog::add_file(FileSystem& files, const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash != std::string::npos && slash > 0) {
    TROUPE_RETURN_IF_ERROR(files.create_directories(path.substr(0, slash)));
  }
  files_.push_back(TROUPE_TRY(files.open_append(path)));
  return {};
}

void ActorLog::append(std::string_view line) {
  tail_.append(line);
  std::string text(line);
  text += '\n';
  // A full disk must not end an actor: the file is given up, the lines in memory stay.
  std::erase_if(files_, [&](auto& file) { return !file->append(std::string_view(text)).ok(); });
  if (sink_) sink_(actor_, line);
}

}  // namespace troupe::scheduler
