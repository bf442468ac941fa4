#include "scheduler/node/images.h"

#include <utility>

namespace troupe::scheduler {
namespace {

constexpr std::size_t kOpenedMax = 16;

}  // namespace

Result<std::shared_ptr<process::Executable>> Images::own() {
  if (!own_) {
    own_ = TROUPE_TRY(own_path_.empty() ? process::Executable::self()
                                        : process::Executable::open(own_path_));
  }
  return own_;
}

Result<std::shared_ptr<process::Executable>> Images::find(const wire::Image& wanted,
                                                          const PackagePlace& package) {
  const wire::Image image{package.here(wanted.path), wanted.xxh3};
  auto mine = TROUPE_TRY(own());
  if (image.path.empty() && image.xxh3 == 0) return mine;
  if (image.xxh3 != 0 && TROUPE_TRY(mine->xxh3()) == image.xxh3) return mine;
  for (const auto& [known, executable] : opened_) {
    if (known == image) return executable;
  }
  auto opened = process::Executable::open(image.path);
  if (!opened.ok()) {
    return opened.status()
        .prefixed("the actor's program is not on this node")
        .with("path", image.path);
  }
  if (image.xxh3 == 0) return opened;
  const std::uint64_t found = TROUPE_TRY((*opened)->xxh3());
  if (found != image.xxh3) {
    return error(Code::kFailedPrecondition,
                 "the driver runs {} with hash {:016x}; on this node that file has hash {:016x}, "
                 "and {} has {:016x}. Install the same build on every node",
                 image.path, image.xxh3, found, mine->path(), TROUPE_TRY(mine->xxh3()));
  }
  opened_.emplace_back(image, *opened);
  if (opened_.size() > kOpenedMax) opened_.pop_front();
  return opened;
}

}  // namespace troupe::scheduler
